"""docs/architecture.md names files, and what is in them: both are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILE = re.compile(r"`((?:server|shards|timeline|spark|sdk|tests)/[\w/]+\.py)`((?: `\w+`)*)")


def claims(text: str) -> list[tuple[str, str]]:
    """(file, name in it) of each file that is named with what does the work; ("file", "") of the others."""
    found: list[tuple[str, str]] = []
    for path, names in FILE.findall(text):
        found += [(path, name) for name in re.findall(r"\w+", names)] or [(path, "")]
    return found


def defined(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("path", "name"), sorted(set(claims(PAGE))))
def test_what_it_names_is_there(path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    assert not name or name in defined(ROOT / path)


def walks() -> list[list[tuple[str, str]]]:
    """Lines of the tables, walk by walk."""
    return [
        re.findall(r"^\| (`.*?`.*?) \| (.*) \|$", walk, re.MULTILINE) for walk in PAGE.split("\n## Walk")[1:]
    ]


def test_a_walk_s_methods_are_there_too() -> None:
    """`put`, `seal`: what a line says in code marks of its own file is a method or a function of it."""
    missing = []
    for lines in walks():
        for head, text in lines:
            path = FILE.match(head)
            assert path is not None
            source = (ROOT / path[1]).read_text(encoding="utf-8")
            words = re.findall(r"`([a-z_]+)`", text)
            missing += [(path[1], word) for word in words if f"def {word}(" not in source]
    assert missing == []


def test_this_test_sees_what_it_should() -> None:
    assert claims("`server/a.py` `B` `c` and `timeline/x/d.py`, `docs/e.md`") == [
        ("server/a.py", "B"),
        ("server/a.py", "c"),
        ("timeline/x/d.py", ""),
    ]
    assert len(walks()) == 5
    assert all(len(lines) > 8 for lines in walks())
