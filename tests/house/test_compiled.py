"""What is compiled can be: the list names what is there, and compiled, none of it is something else.

Each rule was seen to matter: see `fast/modules.py`.
"""

import ast
import keyword
from collections.abc import Iterator
from pathlib import Path

import pytest

from fast.modules import MODULES

ROOT = Path(__file__).parents[2]
ROOMS = ("timeline", "shards", "server")
C_WORDS = {
    *("asm", "attribute", "complex", "const", "extension", "imag", "inline", "label", "real", "restrict"),
    *("signed", "thread", "typeof", "volatile", "alignof", "func", "int128", "float128", "auto_type"),
}
"""With two underscores before them, words of the compiler."""


def path_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def bases_of(node: ast.ClassDef) -> list[str]:
    """The last names: Struct of msgspec.Struct, Wheel of Wheel[Item]."""
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


def classes_in(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def faults_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _faults_of_class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            caught = [one.name for one in ast.walk(node) if isinstance(one, ast.ExceptHandler) and one.name]
            if len(caught) > len(set(caught)):
                yield f"{node.name}: two `except` with one name"
            names = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            if "asynccontextmanager" in names:
                yield f"{node.name}: an async generator"
        elif isinstance(node, ast.Attribute) and node.attr[0] == "_" and node.attr[1:] in C_WORDS:
            yield f"{node.attr}: a word of the compiler"
        elif isinstance(node, ast.Delete) and any(isinstance(one, ast.Name) for one in node.targets):
            yield f"line {node.lineno}: a local is let go, which may have been before"
        elif isinstance(node, ast.GeneratorExp) and not is_drained(node, tree):
            yield f"line {node.lineno}: a generator expression that may be meant to be lazy"


DRAIN = {
    *("any", "all", "sum", "tuple", "list", "set", "frozenset", "dict", "sorted", "max", "min", "join"),
    *("fromkeys", "extend", "update"),
    "next",
}
"""`next` is compiled as a loop that ends."""


def is_drained(wanted: ast.GeneratorExp, tree: ast.Module) -> bool:
    """Whether it is the argument of what reads it to its end, or is all the same as a list."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and wanted in node.args:
            return ast.unparse(node.func).rpartition(".")[2] in DRAIN
        if isinstance(node, ast.Starred) and node.value is wanted:
            return True
    return False


def _faults_of_class(node: ast.ClassDef) -> Iterator[str]:
    bases = bases_of(node)
    if "Struct" in bases:
        yield f"{node.name}: a Struct"
    is_error = any(base.endswith(("Error", "Exception", "Refused")) for base in bases)
    if is_error and any(isinstance(one, ast.Assign | ast.AnnAssign) for one in node.body):
        yield f"{node.name}: an exception with attributes of its class"
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and ast.unparse(one.annotation) == "object" and node.decorator_list:
            yield f"{node.name}: a field that is any object"


def test_the_list_names_what_is_there_once() -> None:
    assert [module for module in MODULES if not path_of(module).is_file()] == []
    assert len(set(MODULES)) == len(MODULES)
    assert not any(keyword.iskeyword(part) for module in MODULES for part in module.split("."))


@pytest.mark.parametrize("module", MODULES)
def test_a_compiled_module_has_nothing_that_would_be_something_else(module: str) -> None:
    assert list(faults_in(tree_of(path_of(module)))) == []


def extending() -> Iterator[tuple[str, str]]:
    """(module, class) of what extends a class of a compiled module, and is not compiled."""
    compiled = {node.name: module for module in MODULES for node in classes_in(tree_of(path_of(module)))}
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module in MODULES:
            continue
        tree = tree_of(path)
        taken = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (node.module or "").rpartition(".")[2] == compiled.get(alias.name, "").rpartition(".")[2]
        }
        yield from ((module, node.name) for node in classes_in(tree) if taken.intersection(bases_of(node)))


def test_what_extends_a_compiled_class_is_compiled() -> None:
    assert list(extending()) == []


def test_this_test_sees_what_it_should() -> None:
    planted = """
class Row(msgspec.Struct, frozen=True): pass
class Refused(ShardsError):
    why = "x"
@dataclass
class Plan:
    told: object
def read(rows):
    try: ...
    except KeyError as error: ...
    except ValueError as error: ...
    self._volatile = sum(x for x in rows)
    return merge(x for x in rows)
    del rows
@asynccontextmanager
async def room(): yield
"""
    assert sorted(fault.partition(":")[0] for fault in faults_in(ast.parse(planted))) == [
        *("Plan", "Refused", "Row", "_volatile", "line 13", "line 14", "read", "room"),
    ]
