"""The map of a package, in its `__init__`, names every file and room of it and no other."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / "timeline", ROOT / "shards", ROOT / "server", ROOT / "spark", ROOT / "sdk" / "fasti"]
PACKAGES = sorted(path.parent for room in ROOMS for path in room.rglob("__init__.py"))
LINE = re.compile(r"^ *(\w+(?:\.py|/)) {2,}\S", re.MULTILINE)


def named(text: str) -> list[str]:
    return LINE.findall(text)


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_map_names_every_file(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")), clean=False)
    there = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    rooms = [f"{path.parent.name}/" for path in folder.glob("*/__init__.py")]
    assert sorted(named(text or "")) == sorted([*there, *rooms])


def test_this_test_sees_what_it_should() -> None:
    text = "Room\n    a.py   what a is\n    b.py\n    c_d.py  and c\n    e/  a room\nnot.py here\n"
    assert named(text) == ["a.py", "c_d.py", "e/"]
