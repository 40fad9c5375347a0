"""Log lines are limited by their format texts (server/observe/logs.py): these have to be few and fixed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.observe.logs import OURS

Sources = list[tuple[str, ast.Module]]
ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
EACH_IN = {"server/__main__.py", "server/schedules/retime.py"}
"""Files with lines that no client can cause, and that are written however many there are."""


@pytest.fixture(scope="module")
def sources() -> Sources:
    """Path and tree of each of our files. Kept no longer: the garbage collector walks all their nodes."""
    paths = [path for room in OURS for path in sorted((ROOT / room).rglob("*.py"))]
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())) for path in paths]


def is_fixed(text: ast.expr, texts: dict[str, list[ast.expr]]) -> bool:
    """Whether an expression is a text of the source, or a choice of such."""
    match text:
        case ast.Constant():
            return isinstance(text.value, str)
        case ast.IfExp():
            return is_fixed(text.body, texts) and is_fixed(text.orelse, texts)
        case ast.Name():
            return text.id in texts and all(is_fixed(one, {}) for one in texts[text.id])
    return False


def loose_lines(tree: ast.Module) -> Iterator[int]:
    """Where the format text of a line is made while the program runs."""
    texts: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    texts.setdefault(target.id, []).append(node.value)
        elif isinstance(node, ast.arg):
            texts.setdefault(node.arg, []).append(ast.Name("an argument"))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "log"
            and node.func.attr in LEVELS
            and not is_fixed(node.args[node.func.attr == "log"], texts)
        ):
            yield node.lineno


def test_format_texts_are_fixed(sources: Sources) -> None:
    loose = [f"{path}:{line}" for path, tree in sources for line in loose_lines(tree)]
    assert not loose, "the values belong into the arguments"


def test_the_check_finds_what_is_made_while_the_program_runs() -> None:
    bad = 'text = "a"\nlog.info(text)\nlog.info("b" if x else y)\nlog.info(f"c {x}")\nlog.log(10, "d" + x)'
    assert list(loose_lines(ast.parse(bad))) == [3, 4, 5]
    assert list(loose_lines(ast.parse("def f(text): log.info(text)"))) == [1]


def test_few_lines_are_not_limited(sources: Sources) -> None:
    users = {
        path
        for path, tree in sources
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "EACH" and isinstance(node.ctx, ast.Load)
    }
    assert users == EACH_IN


def test_a_logger_has_the_name_of_its_module(sources: Sources) -> None:
    """By it a line counts as ours."""
    for path, tree in sources:
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "log":
                assert ast.unparse(node.value) == "logging.getLogger(__name__)", path
