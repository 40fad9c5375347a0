"""What is compiled can be: the list names what is there, and compiled, none of it is something else.

Each rule was seen to matter: see `fast/modules.py`.
"""

import ast
import keyword
from collections.abc import Iterator, Sequence
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
            yield from (f"{node.name}: asked twice, {text}" for text in asked_twice(node.body, frozenset()))
        elif isinstance(node, ast.Attribute) and node.attr[0] == "_" and node.attr[1:] in C_WORDS:
            yield f"{node.attr}: a word of the compiler"
        elif isinstance(node, ast.Delete) and any(isinstance(one, ast.Name) for one in node.targets):
            yield f"line {node.lineno}: a local is let go, which may have been before"
        elif isinstance(node, ast.GeneratorExp) and not is_drained(node, tree):
            yield f"line {node.lineno}: a generator expression that may be meant to be lazy"


def asked_twice(body: Sequence[ast.stmt], known: frozenset[str]) -> Iterator[str]:
    """Attributes that are compared with None where the compiler takes for known that they are not None.

    Only a call may have changed them, and then it is a TypeError. `known`: at the beginning of `body`."""
    for one in body:
        blocks = [part for name in ("body", "orelse", "finalbody") if (part := getattr(one, name, []))]
        blocks += [handler.body for handler in getattr(one, "handlers", [])]
        heads = [getattr(one, "test", None)] if blocks else [one]
        for text in (found for head in heads if head is not None for found, _ in asked(head)):
            if text in known:
                yield text
        tested = dict(asked(one.test)) if isinstance(one, ast.If | ast.Assert | ast.While) else {}
        some = {text for text, is_some in tested.items() if is_some}
        none = tested.keys() - some
        for part in blocks:
            is_then = isinstance(one, ast.If | ast.While) and part is one.body
            yield from asked_twice(part, known | some if is_then else known)
        for target in getattr(one, "targets", []):
            if isinstance(target, ast.Attribute):
                value = getattr(one, "value", None)
                known -= {ast.unparse(target)}
                known |= (
                    {ast.unparse(target)} if isinstance(value, ast.Tuple | ast.List | ast.Dict) else set()
                )
        if isinstance(one, ast.Assert):
            known |= some
        elif isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return | ast.Raise | ast.Continue):
            known |= none
        elif blocks:  # what is set in one branch may be another thing in the next
            known -= {ast.unparse(n) for n in ast.walk(one) if isinstance(n, ast.Attribute) and is_set(n)}


def is_set(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def asked(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Attributes that are compared with None, and whether they must not be it."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Compare)
            and isinstance(node.left, ast.Attribute)
            and isinstance(node.ops[0], ast.Is | ast.IsNot)
            and ast.unparse(node.comparators[0]) == "None"
        ):
            yield ast.unparse(node.left), isinstance(node.ops[0], ast.IsNot)


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
    compiled = {node.name for module in MODULES for node in classes_in(tree_of(path_of(module)))}
    sources = {module.rpartition(".")[2] for module in MODULES}  # a class may be had from another one too
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
            if alias.name in compiled and (node.module or "").rpartition(".")[2] in sources
        }
        yield from ((module, node.name) for node in classes_in(tree) if taken.intersection(bases_of(node)))


@pytest.mark.long
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
def decide(self, deciding):
    deciding.begun = 1, 2
    self.go_on(deciding)
    if deciding.begun is not None: return
def go_on(self):
    if self.begun is not None:
        self.step()
        self.is_over = self.begun is None
@asynccontextmanager
async def room(): yield
"""
    assert sorted(fault.partition(":")[0] for fault in faults_in(ast.parse(planted))) == [
        *("Plan", "Refused", "Row", "_volatile", "decide", "go_on", "line 13", "line 14", "read", "room"),
    ]
