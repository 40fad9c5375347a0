"""Has a plot played again and again by children that end themselves at points, and looks at what is left.

    python -m tests.crash.nursery PLOT FOLDER MOST SEED

One process with everything imported, that never opens a store itself and forks: a child prepares, a child
plays and is killed, a child looks. It prints a JSON line for each:

    ["passed", {point: passages}, [points with halves], [[module, line], ...]]      played to the end
    ["killed", point, nth, when, [[module, line], ...], [faults]]
    ["missed", point, nth, when]                    it was not passed so often: threads differ a little

`MOST` tries in all, spread over the points, at each of them the first passage and the last ones first.
"""

import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .passing import AFTER, BEFORE, HALF, Doom, Line, Watch
from .plots import PLOTS, Plot

LIMIT_S = 120


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

    @staticmethod
    def _in_child(work: Callable[[], None], *, must_end: bool = False) -> int:
        """Its exit code; negative: the signal."""
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
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert not must_end or code == 0, f"{work}: {code}"
        return code


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


def main() -> int:
    name, folder, most, seed = sys.argv[1:]
    nursery = Nursery(PLOTS[name], Path(folder))
    points, torn = nursery.passed()
    for doom in dooms(points, torn, int(most), random.Random(f"{seed} {name}")):
        nursery.kill(doom)
    return 0


if __name__ == "__main__":
    sys.exit(main())
