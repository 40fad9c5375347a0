"""The map of a room, in its `__init__`, names every file of the room and no other."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAPPED = (
    *("shards", "timeline", "server", "server/jobs", "server/schedules"),
    *("server/http", "server/http/routes", "server/http/values"),
    *("shards", "timeline", "server", "server/codec", "server/jobs", "server/mqtt", "server/schedules"),
)
LINE = re.compile(r"^ *(\w+\.py) {2,}\S", re.MULTILINE)


def named(text: str) -> list[str]:
    return LINE.findall(text)


@pytest.mark.parametrize("room", MAPPED)
def test_a_map_names_every_file(room: str) -> None:
    folder = ROOT / room
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")), clean=False)
    assert text is not None
    assert sorted(named(text)) == sorted(
        path.name for path in folder.glob("*.py") if path.name != "__init__.py"
    )


def test_this_test_sees_what_it_should() -> None:
    assert named("Room\n    a.py   what a is\n    b.py\n    c_d.py  and c\nnot.py here\n") == [
        "a.py",
        "c_d.py",
    ]
