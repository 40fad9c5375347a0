"""A token bucket: so many a second, a second's worth at once.

What is more than the bucket holds is let through when there is anything in it, and paid for afterwards: a
batch of 500 at 100 a second is taken, and then nothing for five seconds. Otherwise it could never be.
"""

from collections.abc import Callable


class Bucket:
    """`rate` a second; 0: any number."""

    __slots__ = ("_at_s", "_left", "_mono", "_rate")

    def __init__(self, rate: int, mono: Callable[[], float]) -> None:
        """`mono`: seconds that elapse."""
        self._rate = rate
        self._mono = mono
        self._left = float(rate)
        self._at_s = mono()

    def resize(self, rate: int) -> None:
        """Another rate from now on; what is owed stays owed."""
        self._fill()
        self._left = min(self._left, float(rate)) if self._rate else float(rate)
        self._rate = rate

    def take(self, count: int = 1) -> float:
        """Take so many: 0.0, or how many seconds there is nothing to take, with nothing taken."""
        if not self._rate:
            return 0.0
        self._fill()
        if self._left <= 0.0:
            return (0.001 - self._left) / self._rate
        self._left -= count
        return 0.0

    def _fill(self) -> None:
        now_s = self._mono()
        self._left = min(float(self._rate), self._left + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
