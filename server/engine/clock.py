"""The clocks: `wall` can jump, `mono` only elapses. Everything that needs the time gets one of these."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time in ms since the epoch, and seconds of monotonic time."""

    is_simulated: bool

    def wall_ms(self) -> int: ...

    def until(self, at_ms: int) -> float:
        """Seconds until the wall clock shows `at_ms`, if it does not jump."""

    def mono(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    is_simulated = False
    mono = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def until(self, at_ms: int) -> float:
        return at_ms / 1000 - time.time()


class NotSimulated(Exception):
    """The server runs on the system's clock, which cannot be moved."""


class SimulatedClock:
    """A wall clock that stands still until it is set; monotonic time is real."""

    is_simulated = True

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def until(self, at_ms: int) -> float:
        """It does not elapse: infinitely long, or at once."""
        return 0.0 if at_ms <= self.now_ms else float("inf")

    def mono(self) -> float:
        return time.monotonic()
