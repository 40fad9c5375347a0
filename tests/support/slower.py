"""A machine that is some times slower, for tests that hang on how fast it is.

    FASTI_SLOWER=10 python -m pytest -p tests.support.slower tests/server/webhook

The running time of this process goes so many times faster, and what sleeps or waits for a time is woken so
much earlier. So all that it computes takes longer by its own clock, deadlines in seconds come too soon, and
the run takes no longer. Now and then a stall of up to 0.3 s comes on top, as when others have the processor.
Processes that a test starts are not slower. FASTI_SEED: when the stalls come.
"""

import os
import random
import selectors
import threading
import time
from typing import Any

TIMES = float(os.environ.get("FASTI_SLOWER", "10"))
STALL_S, EACH = 0.3, 0.001
"""The longest stall, and how often the clock is read after one."""


class _Clock:
    def __init__(self, times: float, seed: int) -> None:
        self._times, self._real, self._chance = times, time.monotonic, random.Random(seed)
        self._began_s, self._stalled_s = self._real(), 0.0

    def monotonic(self) -> float:
        if self._chance.random() < EACH:
            self._stalled_s += STALL_S * self._chance.random()
        return self._began_s + (self._real() - self._began_s) * self._times + self._stalled_s

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1e9)


def _shortened(wait: Any, times: float) -> Any:
    """A method that waits for at most `timeout` seconds."""

    def shorter(self: Any, timeout: float | None = None) -> Any:
        return wait(self, None if timeout is None else timeout / times)

    return shorter


def _begin(times: float) -> None:
    clock, sleep = _Clock(times, int(os.environ.get("FASTI_SEED", "1"))), time.sleep
    time.monotonic, time.monotonic_ns = clock.monotonic, clock.monotonic_ns
    time.sleep = lambda seconds: sleep(float(seconds) / times)
    for selector in (selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector):
        selector.select = _shortened(selector.select, times)  # type: ignore[method-assign]
    threading.Condition.wait = _shortened(threading.Condition.wait, times)  # type: ignore[method-assign]


_begin(TIMES)
