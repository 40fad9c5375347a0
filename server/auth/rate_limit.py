"""Rate limiter: a token bucket that holds one second's rate.

More than the bucket holds is let through if there is anything in it, and paid for afterwards: a batch of 500
at 100 a second is accepted, and then nothing for five seconds. Otherwise it could never be accepted.
"""

from collections.abc import Callable


class RateLimiter:
    """`rate` a second; 0: no limit."""

    __slots__ = ("_at_s", "_left", "_mono", "_rate")

    def __init__(self, rate: int, mono: Callable[[], float]) -> None:
        """`mono`: monotonic seconds."""
        self._rate = rate
        self._mono = mono
        self._left = float(rate)
        self._at_s = mono()

    def resize(self, rate: int) -> None:
        """Change the rate; a debt stays."""
        self._fill()
        self._left = min(self._left, float(rate)) if self._rate else float(rate)
        self._rate = rate

    def take(self, count: int = 1) -> float:
        """Take `count` tokens. Returns 0.0, or the seconds until there is a token, with none taken."""
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
