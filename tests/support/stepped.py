"""A server on a simulated clock that a test steps under it, both ways, as NTP or an operator would.

    python -m tests.support.stepped --data DIR --clock simulated --wall FILE

The wall clock is a number in a file that the server and the test have mapped, so a step is seen at once,
between any two looks at the clock. Monotonic time is the machine's. `POST /v1/clock:advance` walks it.
"""

import mmap
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

from server import run
from server.engine.clock import SimulatedClock

from . import parted

WALL = "--wall"
_SIZE = 8


class Wall:
    """Wall time in ms, in a file that several processes have mapped."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with file.open("a+b") as opened:
            opened.truncate(_SIZE)
            self._map = mmap.mmap(opened.fileno(), _SIZE)
        self._number = memoryview(self._map).cast("q")

    @property
    def now_ms(self) -> int:
        return self._number[0]

    @now_ms.setter
    def now_ms(self, to_ms: int) -> None:
        self._number[0] = to_ms


class SteppedClock(SimulatedClock):
    """It shows what the file says, also behind what the data has seen."""

    def __init__(self, file: Path, _: int) -> None:
        self._wall = Wall(file)
        self._is_started = False

    @property
    def now_ms(self) -> int:
        return self._wall.now_ms

    @now_ms.setter
    def now_ms(self, to_ms: int) -> None:
        # A start sets a simulated clock to the latest time that the data has seen. This one may be behind.
        if self._is_started:
            self._wall.now_ms = to_ms
        self._is_started = True


def main(arguments: Sequence[str]) -> int:
    """As of `python -m server`, which knows all arguments but WALL and its file, with parts as there."""
    at = arguments.index(WALL)
    file, rest = arguments[at + 1], [*arguments[:at], *arguments[at + 2 :]]
    with patch.object(run, "SimulatedClock", partial(SteppedClock, Path(file))):
        return parted.main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
