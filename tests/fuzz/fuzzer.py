"""A small coverage-guided fuzzer on the interpreter's own trace: the same run for the same seed.

    corpus -> one of it, changed a little -> the target, traced -> kept if it reached a line that none had

A *target* takes bytes and returns, or raises for what must not be. While it runs, the steps are counted:
lines of the rooms and calls of everything else. More of them than the target allows for so many bytes is a
failure like any other: a loop that grows with the square of its input shows early, on any machine.
"""

import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = tuple(f"{ROOT / room}/" for room in ("server", "shards", "timeline"))
KEPT_MAX = 4_096
"""Bytes of one input."""
HANGS_S = 60
"""What takes so long is taken for hanging: an expression that goes back and forth makes no steps."""
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)


class TooManySteps(BaseException):
    """Not an Exception: nothing on the way may take it for its own."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooManySteps(f"not done in {HANGS_S} s, in one step")


@dataclass(frozen=True)
class Target:
    """What is to be tried. `check` takes bytes; `seeds` are good inputs, `words` what a change may put in."""

    name: str
    check: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    steps: int = 2_000
    """How many may be taken for an input of no bytes ..."""
    steps_per_byte: int = 50
    """... and for each byte more."""
    rooms: tuple[str, ...] = ROOMS
    """How the paths begin whose lines count."""


class Trace:
    """Counts the steps of a call and notes the lines that it reaches."""

    def __init__(self, rooms: tuple[str, ...], steps_max: int) -> None:
        self._rooms = rooms
        self.steps = 0
        self.lines: set[tuple[str, int]] = set()
        self._max = steps_max

    def run(self, check: Callable[[bytes], object], data: bytes) -> None:
        before, handler = sys.gettrace(), signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(HANGS_S)
        sys.settrace(self._call)
        try:
            check(data)
        finally:
            sys.settrace(before)
            signal.alarm(0)
            signal.signal(signal.SIGALRM, handler)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._step()
        return self._line if frame.f_code.co_filename.startswith(self._rooms) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self._step()
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._max:
            raise TooManySteps(f"more than {self._max} steps")


@dataclass
class Run:
    """A target, and what has been found of it."""

    target: Target
    seed: int
    count: int = 0
    steps_max: int = 0
    lines: set[tuple[str, int]] = field(default_factory=set)
    corpus: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(f"{self.target.name} {self.seed}")

    def __str__(self) -> str:
        return (
            f"{self.target.name}: {self.count} inputs, seed {self.seed}, {len(self.corpus)} kept, "
            f"{len(self.lines)} lines reached, at most {self.steps_max} steps"
        )

    def start(self, more: Iterable[bytes] = ()) -> None:
        """Try the seeds, and what was kept of runs before."""
        for data in (*self.target.seeds, b"", *more):
            self.attempt(data)
        assert self.corpus, "no seed reaches anything"

    def step(self) -> None:
        self.attempt(self._changed())

    def attempt(self, data: bytes) -> None:
        """Raises AssertionError with the input, in hex, for whatever the target raises."""
        trace = Trace(self.target.rooms, self.target.steps + self.target.steps_per_byte * len(data))
        try:
            trace.run(self.target.check, data)
        except (Exception, TooManySteps) as error:
            raise AssertionError(
                f"{self.target.name}: {type(error).__name__}: {error}\n"
                f"bytes.fromhex('{data.hex()}')\n{data[:200]!r}"
            ) from error
        self.count += 1
        self.steps_max = max(self.steps_max, trace.steps)
        if not trace.lines <= self.lines:
            self.lines |= trace.lines
            self.corpus.append(data)

    def _changed(self) -> bytes:
        random = self._random
        data = bytearray(random.choice(self.corpus))
        for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
            at = random.randrange(len(data) + 1)
            upto = min(len(data), at + random.choice((1, 2, 4, 16, 64)))
            match random.randrange(9):
                case 0 if at < len(data):
                    data[at] ^= 1 << random.randrange(8)
                case 1 if at < len(data):
                    data[at] = random.choice(NUMBERS)
                case 2 if at < len(data):
                    data[at] = random.randrange(256)
                case 3:
                    del data[at:upto]
                case 4:
                    data[at:at] = random.randbytes(random.choice((1, 2, 4, 8)))
                case 5:
                    data[at:at] = data[at:upto] * random.choice((1, 2, 50))
                case 6:
                    other = random.choice(self.corpus)
                    start = random.randrange(len(other) + 1)
                    data[at:upto] = other[start : start + 64]
                case 7 if self.target.words:
                    data[at : random.choice((at, upto))] = random.choice(self.target.words)
                case 8:
                    del data[at:]
                case _:
                    pass
        return bytes(data[:KEPT_MAX])
