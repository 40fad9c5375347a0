"""The mutation test itself: it kills what a test notices, finds what none does, and judges its list."""

import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import quoted
from .edits import MODULE, mutants_of
from .survivors import KINDS, Judged, Survivor, nowhere, read, unlisted, wrong
from .trial import KILLED, SURVIVED, TIMED_OUT, UNREACHED, Place, all_mutants

ROOT = Path(__file__).parents[2]
CLOCK = '''"""A clock."""

HOURS = 12


def later(hour: int, by: int) -> int:
    if by > 0 and hour + by > HOURS:
        by -= HOURS
    return hour + by


def known(hour: int) -> int:
    while True:
        if hour:
            break
    return hour


def never(path):
    path.unlink()
'''
TESTS = """
from planted.clock import known, later

def test_it_goes_round():
    assert later(10, 3) == 1
    assert later(9, 3) == 12

def test_what_it_knows():
    assert known(7) == 7

def test_of_a_server_elsewhere():
    raise AssertionError
"""
LISTED = """
judged = ["planted/clock.py"]

[[survivor]]
module = "planted/clock.py"
function = "later"
line = "if by > 0 and hour + by > HOURS:"
change = "> -> >="
reason = "equivalent: planted"

[[survivor]]
module = "planted/clock.py"
function = "later"
line = "if by > 0 and hour + by > HOURS:"
change = "> -> <="
reason = "equivalent: planted, and not true"

[[survivor]]
module = "planted/clock.py"
function = "later"
line = "if by > 3 and hour + by > HOURS:"
change = "> -> >="
reason = "equivalent: planted, of a line that has gone"
"""


def test_planted_mutants_are_killed_found_and_judged(tmp_path: Path) -> None:
    for name, text in {
        "planted/clock.py": CLOCK,
        "tests/test_clock.py": TESTS,
        "list.toml": LISTED,
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    where = ["--root", str(tmp_path), "--rooms", "planted", "--tests", "tests", "--without", "elsewhere"]
    more = ["--survivors", str(tmp_path / "list.toml"), "--minutes", "all"]
    command = [sys.executable, "-m", "tests.mutation", *where, *more]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    found = run.stdout.splitlines()
    alive = {
        line.partition(": ")[2] for line in found if line.startswith((f"{SURVIVED}: ", f"{UNREACHED}: "))
    }
    line = "if by > 0 and hour + by > HOURS:"
    assert alive == {
        f"planted/clock.py:7 later: {line} [> -> >=]",
        f"planted/clock.py:7 later: {line} [0 -> 1]",
        "planted/clock.py:13 known: while True: [True -> False]",
        "planted/clock.py:20 never: path.unlink() [removed]",
    }
    counts = next(line.split() for line in found if line.startswith("all "))
    assert counts[0] == "all"
    mutants, tried, killed, timed_out, survived, unreached = map(int, counts[1:])
    assert mutants == tried == killed + timed_out + survived + unreached
    assert (survived, unreached) == (3, 1)
    assert timed_out == 2  # the loop does not end
    summary = found.index(f"seed 0: {mutants} of {mutants} mutants tried") + 1
    assert found[summary] == "3 of those that live are not judged, 5 faults:"
    assert sorted(found[summary + 1 :]) == [
        f"listed, but killed: planted/clock.py later: {line} [> -> <=]",
        "no such mutant: planted/clock.py later: if by > 3 and hour + by > HOURS: [> -> >=]",
        "survived, not listed: planted/clock.py:13 known: while True: [True -> False]",
        f"survived, not listed: planted/clock.py:7 later: {line} [0 -> 1]",
        "unreached, not listed: planted/clock.py:20 never: path.unlink() [removed]",
    ]
    assert (tmp_path / "planted/clock.py").read_text() == CLOCK


def test_what_is_changed_and_what_is_left_alone() -> None:
    source = (
        "SIZE = 2\n"
        "@decorated(3)\n"
        "def f(x: Four[4]):\n"
        '    """5"""\n'
        "    assert x < 6\n"
        "    if not x and x[1:] == b'8':\n"
        "        raise Wrong(f'{9}')\n"
        "    return min(x, x)\n"
    )
    found = [(one.function, one.lines.start, one.change) for one in mutants_of("m.py", source)]
    assert sorted(found) == sorted(
        [
            *((MODULE, 1, change) for change in ("2 -> 1", "2 -> 3")),
            *(("f", 6, change) for change in ("and -> or", "not removed", "condition negated", "== -> !=")),
            *(("f", 6, change) for change in ("1 -> 0", "1 -> 2", "start of the slice removed")),
            ("f", 6, "b'8' -> b'8~'"),
            ("f", 7, "removed"),
            *(("f", 8, change) for change in ("min -> max", "returns None")),
        ]
    )


def test_the_same_change_twice_in_a_line_is_told_apart() -> None:
    mutants = mutants_of("m.py", "def f():\n    return f < g < h\n")
    assert [mutant.change for mutant in mutants if "<=" in mutant.change] == ["< -> <=", "< -> <= #2"]
    assert len({mutant.key for mutant in mutants}) == len(mutants) == 5


def test_a_whole_line_may_be_listed() -> None:
    mutants = mutants_of("m.py", "def f(x):\n    return x < 3\n")
    entry = Survivor("m.py", "f", "return x < 3", "*", "tolerated: anything")
    judged = Judged(("m.py",), (entry,))
    assert wrong(judged, mutants, {mutants[0]: SURVIVED, mutants[1]: KILLED}) == []
    assert wrong(judged, mutants, dict.fromkeys(mutants, TIMED_OUT)) == [f"listed, but killed: {entry}"]
    assert wrong(judged, mutants, {mutants[0]: KILLED}) == []  # The others were not tried.


def test_what_lives_in_a_module_that_is_not_judged_is_no_fault() -> None:
    mutants = mutants_of("m.py", "def f(x):\n    return x < 3\n")
    lives = {mutants[0]: SURVIVED}
    assert unlisted(Judged((), ()), lives) == [mutants[0]]
    assert wrong(Judged((), ()), mutants, lives) == []
    assert wrong(Judged(("m.py",), ()), mutants, lives) == [f"survived, not listed: {mutants[0]}"]
    assert wrong(Judged(("gone.py",), ()), mutants, lives) == ["no such mutant: gone.py"]


def test_each_entry_of_the_list_is_of_a_mutant_that_there_is_and_says_why() -> None:
    judged = read(ROOT / "tests" / "mutation" / "survivors.toml")
    assert len(set(judged.entries)) == len(judged.entries)
    assert nowhere(judged, all_mutants(Place(ROOT, ("timeline", "shards"), (), ROOT))) == []


def test_an_entry_has_to_say_why(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(LISTED.replace(KINDS[0], ""))
    with pytest.raises(ValueError, match="reason"):
        read(tmp_path / "list.toml")


@pytest.mark.parametrize("line", ["if a == 'b':", 'say("c")', "x = '\"\\\\'"])
def test_an_entry_is_written_as_it_is_read(line: str, tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(LISTED.replace('"if by > 0 and hour + by > HOURS:"', quoted(line)))
    assert read(tmp_path / "list.toml").entries[0].line == line
