"""The server, with a wall clock that is ahead of the machine's by as many seconds as a file says.

A step of a node's clock, without a library below the process. `VARIABLE` names the file, which is read at
most every READ_S.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "SHIFTED_BY"
READ_S = 0.02


class _Shift:
    """Nanoseconds that the file says."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = float("-inf")
        self._ns = 0

    def ns(self) -> int:
        now = time.monotonic()
        if now - self._read_at > READ_S:
            self._read_at = now
            self._ns = int(float(self._file.read_text() or 0) * 1e9)
        return self._ns


def main(arguments: Sequence[str]) -> int:
    shift, time_ns = _Shift(Path(os.environ[VARIABLE])), time.time_ns
    time.time_ns = lambda: time_ns() + shift.ns()
    time.time = lambda: time.time_ns() / 1e9

    from server.__main__ import main as serve

    return serve(arguments)
