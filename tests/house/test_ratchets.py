"""What a reader has to hold in mind: arguments, attributes, methods, imports. The exceptions become fewer.

`ratchets.toml` lists what is above a bound, with its figure. A figure that grows fails. So does one that has
become smaller, until the list says it, and an entry whose bound is kept.

    arguments    of an `__init__` that is written, without `self`. Where a decorator or base makes it from the
                 fields of a class, these count as attributes
    attributes   names that a class declares as fields or slots, and names that its methods set on `self`;
                 not those of its bases
    methods      names of functions in a class, properties among them
    imports      modules that a file imports, or imports names of, inside a function and for types as well
"""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .test_imports import ROOMS, ROOT, all_imports, needed_by, parsed

MOST = {"arguments": 12, "attributes": 24, "methods": 40, "imports": 30}
LISTED = Path(__file__).with_name("ratchets.toml")

Figures = dict[str, dict[str, int]]
"""Kind -> `path Class`, or the path of a file -> figure."""


def functions_of(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def arguments_of(node: ast.ClassDef) -> int:
    made = [one.args for one in functions_of(node) if one.name == "__init__"]
    return sum(isinstance(one, ast.arg) for args in made for one in ast.iter_child_nodes(args)) - len(made)


def attributes_of(node: ast.ClassDef) -> set[str]:
    return {*declared_in(node), *set_in(node)}


def declared_in(node: ast.ClassDef) -> Iterator[str]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one.annotation):
            yield ast.unparse(one.target)
        elif isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__slots__":
            yield from (name.value for name in ast.walk(one.value) if isinstance(name, ast.Constant))


def set_in(node: ast.ClassDef) -> Iterator[str]:
    for function in functions_of(node):
        for one in ast.walk(function):
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
                yield from [one.attr] if ast.unparse(one.value) == "self" else []


def figures_of(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """(kind, class, figure)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield "arguments", node.name, arguments_of(node)
            yield "attributes", node.name, len(attributes_of(node))
            yield "methods", node.name, len({one.name for one in functions_of(node)})


@pytest.fixture(scope="module")
def figures() -> Figures:
    found: Figures = {kind: {} for kind in MOST}
    imported: dict[str, set[str]] = defaultdict(set)
    for room in ROOMS:
        for path, tree in parsed(room):
            for kind, name, figure in figures_of(tree):
                found[kind][f"{path.relative_to(ROOT)} {name}"] = figure
        for one in all_imports(room):
            imported[str(one.path.relative_to(ROOT))].add(needed_by(one))
    found["imports"] = {path: len(modules) for path, modules in imported.items()}
    return found


def faults_in(found: Mapping[str, int], listed: Mapping[str, int], most: int) -> list[str]:
    """What has grown, and how the list has to be mended."""
    grown = [
        f"{name} has {figure}, at most {listed.get(name, most)}"
        for name, figure in found.items()
        if figure > listed.get(name, most)
    ]
    clean = [f"{name} is to be struck off" for name in listed if found.get(name, 0) <= most]
    lower = [
        f"{name} is to say {found[name]}" for name, was in listed.items() if most < found.get(name, 0) < was
    ]
    return [*grown, *clean, *lower]


@pytest.mark.long
@pytest.mark.parametrize("kind", MOST)
def test_nothing_grows_above_its_bound(kind: str, figures: Figures) -> None:
    listed = tomllib.loads(LISTED.read_text(encoding="utf-8"))
    assert listed.keys() == MOST.keys()
    assert faults_in(figures[kind], listed[kind], MOST[kind]) == []


def test_this_test_sees_what_it_should() -> None:
    tree = ast.parse("""
class Part:
    __slots__ = (*("a", "b"), "d")
    kind: ClassVar[int] = 1
    def __init__(self, a, /, b=lambda x: x, *rest, c: int, **named): self.a, self.d = a, b
    @property
    def e(self): return self.a.x
    @e.setter
    def e(self, e): self.f = other.g = self.a.h = e
class Value(Struct):
    a: int = 0
    b: list[int]
""")
    assert list(figures_of(tree)) == [
        *(("arguments", "Part", 5), ("attributes", "Part", 4), ("methods", "Part", 2)),
        *(("arguments", "Value", 0), ("attributes", "Value", 2), ("methods", "Value", 0)),
    ]
    found = {"new": 13, "as it was": 15, "grown": 16, "smaller": 14, "clean": 12, "small": 3}
    listed = {"as it was": 15, "grown": 15, "smaller": 15, "clean": 15, "gone": 15}
    assert faults_in(found, listed, most=12) == [
        *("new has 13, at most 12", "grown has 16, at most 15"),
        *("clean is to be struck off", "gone is to be struck off", "smaller is to say 14"),
    ]
