"""What docstrings, comments and pages name is there: files of the repository."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / "timeline", ROOT / "shards", ROOT / "server", ROOT / "spark", ROOT / "sdk" / "fasti"]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
TREE = ("timeline", "shards", "server", "spark", "sdk", "tests", "docs")
NAME = re.compile(
    r"(?<![\w./-])((?:\w+/)*\w+\.py)\b"  # a file of Python, with or without its folder
    rf"|(?<![\w./-])((?:{'|'.join(TREE)})/[\w./-]*\w)"  # whatever lies in the tree: server/delivery/replay
)
OTHERS = {
    *("test_reminders.py", "shop.py", "test_shop.py", "test_trouble.py", "remind.py", "test_remind.py"),
    *("mailer.py", "test_mailer.py", "tasks.py"),
}
"""Files that a reader is shown, or is to write."""


def said_in(source: str) -> str:
    """The docstrings and comments of a module."""
    texts = [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join([*texts, *(token.string for token in tokens if token.type == tokenize.COMMENT)])


def named(text: str) -> list[str]:
    return [python or path for python, path in NAME.findall(text)]


def ends_of(files: set[str]) -> set[str]:
    """What a file may be called: its path, or the end of it."""
    return {"/".join(parts[at:]) for parts in (path.split("/") for path in files) for at in range(len(parts))}


def is_there(name: str, ends: set[str]) -> bool:
    """Whether a file or folder has this name, or this end; a decision may be named by its number."""
    if name in OTHERS or name in ends or (ROOT / name).exists() or (ROOT / f"{name}.py").exists():
        return True
    return any(end.startswith(f"{name}-") for end in ends)


def lost_in(path: Path, ends: set[str]) -> list[str]:
    """What a page names, or a module in its docstrings and comments. These are read out only if need be."""
    text = path.read_text(encoding="utf-8")
    lost = [name for name in named(text) if not is_there(name, ends)]
    if lost and path.suffix == ".py":
        lost = [name for name in named(said_in(text)) if not is_there(name, ends)]
    return lost


def test_every_file_that_is_named_is_there() -> None:
    files = {
        str(path.relative_to(ROOT))
        for top in (*TREE, "sdk/fasti")
        for path in (ROOT / top).rglob("*")
        if path.suffix in (".py", ".md")
    }
    ends = ends_of(files)
    modules = sorted(path for room in ROOMS for path in room.rglob("*.py"))
    lost = [
        f"{path.relative_to(ROOT)}: {name}" for path in [*modules, *PAGES] for name in lost_in(path, ends)
    ]
    assert lost == []
    assert is_there("delivery/replay.py", ends)
    assert not is_there("mqtt/replay.py", ends)
    assert not is_there("play.py", ends)


def test_this_test_sees_what_it_should() -> None:
    text = "wheel.py, jobs/launch.py (server/delivery/replay), `docs/decisions/0018`; a.pyx, app/is.it"
    assert named(text) == [
        *("wheel.py", "jobs/launch.py"),
        *("server/delivery/replay", "docs/decisions/0018"),
    ]
    assert said_in('"""a"""\nx = "no"  # b\n') == "a\n# b"
