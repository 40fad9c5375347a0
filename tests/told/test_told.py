"""Each told script says what comes. After a change that is meant to be seen have them told anew, and read the
diff:

FASTI_TELL=anew python -m pytest tests/told
"""

import os
from pathlib import Path

import pytest

from tests.told.teller import INDENT, Unreadable, told

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_it_is_so(path: Path) -> None:
    script = path.read_text(encoding="utf-8")
    now = told(script)
    if os.environ.get("FASTI_TELL") == "anew":
        path.write_text(now, encoding="utf-8")
        pytest.skip("told anew, nothing was compared")
    assert now.splitlines() == script.splitlines()


def test_every_command_is_followed_by_what_came() -> None:
    """So that no script is there of which nothing has been looked at."""
    assert len(SCRIPTS) >= 5
    for path in SCRIPTS:
        lines = path.read_text(encoding="utf-8").splitlines()
        commands = [n for n, line in enumerate(lines) if line and not line.startswith(("#", INDENT))]
        assert len(commands) > 5
        assert all(lines[n + 1].startswith(INDENT) for n in commands)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "dance ann",
            "connect",
            "connect ann fast=1",
            "connect ann expiry=soon",
            "publish ann t x",
            "leave ann",
        ),
        *("wait", "wait 5", "wait 5s 6s", "connect ann clean retain"),
    ],
)
def test_a_slip_of_the_pen_is_no_command(line: str) -> None:
    with pytest.raises(Unreadable, match="line 1, "):
        told(line)


def test_what_came_is_not_taken_from_what_is_told() -> None:
    script = "connect ann\n    -> ann CONNACK session-present\n    -> ann is cut off\n"
    assert told(script) == "connect ann\n    -> ann CONNACK\n"
