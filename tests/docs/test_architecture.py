"""docs/architecture.md names files, and what is in them: both are there. One of its walks is walked."""

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from server.codec import wire
from server.codec.packets import Ack
from tests.support.build import OPENED
from tests.support.rig import Rig, props

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
OTHER = {"1s": "`bury`", "never": "`wait`"}
"""What is not on the way of a job that is to come again after that time."""
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


def way(act: Callable[[], object]) -> list[tuple[str, str]]:
    """(file, function) of each call of ours in its order."""
    seen: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            seen.append((str(path.relative_to(ROOT)), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return seen


def told(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """(file, function) that these lines name: those in their texts, or else the function at their head."""
    found = []
    for head, text in lines:
        path = FILE.match(head)
        assert path is not None
        found += [(path[1], name) for name in re.findall(r"`([a-z_]+)`", text) or [path[2].strip(" `")]]
    return found


@OPENED
@pytest.mark.parametrize("fate", ["1s", "never"])
def test_a_job_that_fails_goes_the_way_that_is_told(fate: str) -> None:
    """Each line is called after those before it."""
    rig = Rig()
    worker = rig.lasting("w").subscribed("$share/g/job/#", qos=1)
    rig.connected("p").publish1("job/1")
    (packet,) = worker.publishes()
    nack = Ack(wire.PUBACK, packet.packet_id, 0x80, props(user_properties=(("retry-in", fate),)))
    seen = way(lambda: worker.send(nack)) + way(lambda: rig.pass_ms(1_500))
    is_dead, lines = fate == "never", [one for one in walks()[3] if OTHER[fate] not in one[0]]
    comes_again = next(index for index, (head, _) in enumerate(lines) if "retries.py" in head)
    expected = told(lines[:comes_again] if is_dead else lines)
    left = iter(seen)
    assert [one for one in expected if one not in left] == []
    assert bool(worker.publishes()) != is_dead


def test_this_test_sees_what_it_should() -> None:
    assert claims("`server/a.py` `B` `c` and `timeline/x/d.py`, `docs/e.md`") == [
        ("server/a.py", "B"),
        ("server/a.py", "c"),
        ("timeline/x/d.py", ""),
    ]
    assert len(walks()) == 5
    assert all(len(lines) > 8 for lines in walks())
