"""Has a plot played again and again by children that end themselves at points, and looks at what is left.

    python -m tests.crash.nursery PLOT FOLDER MOST SEED [INSIDE]

One process with everything imported, that never opens a store itself and forks: a child prepares, a child
plays and is killed, a child looks. It prints a JSON line for each:

    ["passed", {point: passages}, [points with halves], [[module, line], ...]]      played to the end
    ["killed", point, nth, when, [[module, line], ...], [faults]]
    ["missed", point, nth, when]                    it was not passed so often: threads differ a little

`MOST` tries in all: every point once in each way, then other passages. And `INSIDE` tries that end at any
system call of any thread, the engine's own included, by strace: its point is `inside CALL`.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .passing import AFTER, BEFORE, HALF, Doom, Line, Watch
from .plots import PLOTS, Plot

LIMIT_S = 120
INSIDE = (
    *("fsync", "fdatasync", "rename,renameat,renameat2", "link,linkat", "unlink,unlinkat,rmdir"),
    "ftruncate,truncate,fallocate",
)
INSIDE_MOST = 30
_CALL = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)", re.MULTILINE)


def tell(*words: object) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


class Nursery:
    """One plot."""

    def __init__(self, plot: Plot, folder: Path) -> None:
        self._plot = plot
        self._base = folder / "base"
        self._run = folder / "run"
        self._notes = folder / "notes"
        self._base.mkdir()
        self._in_child(partial(plot.prepare, self._base), must_end=True)

    def passed(self) -> tuple[dict[str, int], set[str]]:
        """Play it to the end."""
        self._again()
        self._in_child(partial(self._play, None), must_end=True)
        _, points, torn, lines = self._said("watched")[0]
        faults = self._faults()
        assert not faults, f"with nobody killed: {faults}"
        tell("passed", points, torn, lines)
        return points, set(torn)

    def kill(self, doom: Doom) -> None:
        self._again()
        code = self._in_child(partial(self._play, doom))
        if code != -signal.SIGKILL:
            tell("missed", *doom)
            assert code == 0, f"{doom}: {code}"
            return
        (_, lines), *_ = self._said("dying")
        tell("killed", *doom, lines, self._faults())

    def kill_inside(self, calls: str, nth: int) -> None:
        """At the nth of these system calls by any one thread."""
        self._again()
        reading, writing = os.pipe()
        trace = self._run.with_name("trace")

        def play() -> None:
            os.read(reading, 1)
            self._play(None)

        child = self._fork(play)
        fault = f"inject={calls}:signal=SIGKILL:when={nth}"
        strace = subprocess.Popen(
            ["strace", "-f", "-o", trace, "-e", f"trace={calls}", "-e", fault, "-p", str(child)],
            stderr=subprocess.PIPE,
        )
        assert strace.stderr is not None
        said = strace.stderr.readline()
        assert b"attached" in said, said
        os.write(writing, b".")
        _, status = os.waitpid(child, 0)
        strace.communicate()
        os.close(reading)
        os.close(writing)
        killed = _CALL.findall(trace.read_text(errors="replace"))
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            tell("missed", f"inside {calls}", nth, BEFORE)
            return
        tell("killed", f"inside {killed[-1]}", nth, BEFORE, [], self._faults())

    def _again(self) -> None:
        shutil.rmtree(self._run, ignore_errors=True)
        shutil.copytree(self._base, self._run)
        self._notes.write_bytes(b"")

    def _play(self, doom: Doom | None) -> None:
        """In a child: what it says goes into a file at once, line by line."""
        notes = os.open(self._notes, os.O_WRONLY | os.O_APPEND)
        os.dup2(notes, 1)  # some say it there

        def say(*words: object) -> None:
            os.write(notes, json.dumps(words).encode() + b"\n")

        def dying(lines: list[Line]) -> None:
            say("dying", lines)

        watch = Watch(doom, dying)
        watch.begin()
        self._plot.play(self._run, say)
        watch.end()
        say("watched", watch.passed, sorted(watch.torn), sorted(watch.lines))

    def _said(self, word: str = "") -> list[list[Any]]:
        lines = [line for line in self._notes.read_bytes().splitlines() if line.startswith(b"[")]
        said = [json.loads(line) for line in lines]
        return [one for one in said if one[0] == word] if word else said

    def _faults(self) -> list[str]:
        """What a child finds in what is left."""
        said = [one for one in self._said() if one[0] not in ("dying", "watched")]
        reading, writing = os.pipe()

        def look() -> None:
            try:
                faults = self._plot.check(self._run, said)
            except BaseException:
                faults = [f"strange: {traceback.format_exc()}"]
            os.write(writing, json.dumps(faults[:20]).encode())

        self._in_child(look, must_end=True)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            found: list[str] = json.loads(file.read())
        return found

    @classmethod
    def _in_child(cls, work: Callable[[], None], *, must_end: bool = False) -> int:
        """Its exit code; negative: the signal."""
        _, status = os.waitpid(cls._fork(work), 0)
        code = os.waitstatus_to_exitcode(status)
        assert not must_end or code == 0, f"{work}: {code}"
        return code

    @staticmethod
    def _fork(work: Callable[[], None]) -> int:
        child = os.fork()
        if not child:
            signal.alarm(LIMIT_S)
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                work()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        return child


def dooms(points: dict[str, int], torn: set[str], most: int, chance: random.Random) -> Iterator[Doom]:
    """Every point once in each way, in any order; then other passages, as many as there are or as may be."""
    ways = [
        (point, when) for point in points for when in (BEFORE, HALF, AFTER) if when != HALF or point in torn
    ]
    chance.shuffle(ways)
    first = [Doom(point, chance.randrange(1, points[point] + 1), when) for point, when in ways]
    rest = [
        Doom(point, nth, when)
        for point, when in ways
        for nth in range(1, points[point] + 1)
        if Doom(point, nth, when) not in first
    ]
    chance.shuffle(rest)
    yield from (first + rest)[:most]


def main(arguments: Sequence[str]) -> int:
    name, folder, most, seed, *inside = arguments
    chance = random.Random(f"{seed} {name}")
    nursery = Nursery(PLOTS[name], Path(folder))
    points, torn = nursery.passed()
    for doom in dooms(points, torn, int(most), chance):
        nursery.kill(doom)
    for _ in range(int(inside[0]) if inside else 0):
        nursery.kill_inside(chance.choice(INSIDE), chance.randrange(1, INSIDE_MOST))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
