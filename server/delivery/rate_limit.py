"""Rate limiter of a group: a maximum number of messages a second, over all members.

A token bucket fills at the rate and holds a tenth of a second of it, at least one message:

    rate 0.5     a message, and the next one 2 s later
    rate 100     10 at once, then 100 a second, some 5 in each go

A group with an empty bucket falls behind, like one whose members have no room, and is woken when the bucket
is half full again: one message at a time would cost a turn each. The state is not stored: after a start the
bucket is full.
"""

from collections.abc import Callable
from itertools import count

from sortedcontainers import SortedDict

from .place import Place

BURST_S = 0.1
WHOLE = 1.0 - 1e-6
"""Counts as one: sums of parts fall short by a little."""
NEVER = float("inf")


class RateLimiter:
    """Token bucket of one group."""

    __slots__ = ("_at_s", "_burst", "_mono", "_rate", "_tokens")

    def __init__(self, rate: float, mono: Callable[[], float]) -> None:
        """`rate`: messages a second, above 0. `mono`: s of a clock that only elapses."""
        self._rate = rate
        self._burst = self._tokens = max(1.0, rate * BURST_S)
        self._mono = mono
        self._at_s = mono()

    @property
    def has_token(self) -> bool:
        """Whether a message may be given now."""
        if self._tokens < WHOLE:
            now_s = self._mono()
            self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
        return self._tokens >= WHOLE

    @property
    def tokens(self) -> int:
        """How many messages may be given now."""
        return int(self._tokens + 1.0 - WHOLE) if self.has_token else 0

    def spend(self, count: int = 1) -> None:
        """Take tokens."""
        if self._tokens >= self._burst:
            self._at_s = self._mono()  # what is full does not fill
        self._tokens -= count

    @property
    def wake_s(self) -> float:
        """Time of the next token, s of that clock."""
        return self._at_s + (max(1.0, self._burst / 2) - self._tokens) / self._rate


class RateLimited:
    """Groups that wait for a token, each once."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._by_time: SortedDict[tuple[float, int], Place] = SortedDict()
        self._waiting: dict[Place, tuple[float, int]] = {}
        self._numbers = count()

    def of(self, rate: float | None) -> RateLimiter | None:
        """A bucket for a rate; None: no limit."""
        return RateLimiter(rate, self._mono) if rate else None

    @property
    def now_ms(self) -> float:
        """Time of the monotonic clock, ms."""
        return self._mono() * 1_000

    def wait(self, group: Place, until_s: float) -> None:
        """Wake the group when it, or one of its keys, may continue."""
        known = self._waiting.get(group)
        if known is None or until_s < known[0]:
            self.forget(group)
            at = self._waiting[group] = until_s, next(self._numbers)
            self._by_time[at] = group

    def lets(self, group: Place, limiter: RateLimiter) -> bool:
        """Whether the group may be given a message now; if not, it is woken when it may."""
        if limiter.has_token:
            return True
        self.wait(group, limiter.wake_s)
        return False

    def pause(self, group: Place, pause_s: float) -> None:
        """Wake the group after a while."""
        self.wait(group, self._mono() + pause_s)

    def look_at_tokens(self, group: Place) -> None:
        """Let keys of the group go on whose tokens are there."""
        order = group.session.order
        if order.rule.per_ms:
            order.tokens.advance(self.now_ms)

    def spend(self, group: Place, key: bytes) -> None:
        """The group is given a message of the key."""
        order = group.session.order
        if key and order.rule.per_ms:
            order.tokens.spend(key, self.now_ms)

    def await_tokens(self, group: Place) -> None:
        """Wake the group when a key of it may go on, or its reader, if they wait for that."""
        next_ms = group.session.order.next_ms
        if next_ms is not None:
            self.wait(group, next_ms / 1_000)

    def forget(self, group: Place) -> None:
        """Stop waiting: the group has ended, or its rate has changed."""
        at = self._waiting.pop(group, None)
        if at is not None:
            del self._by_time[at]

    def due(self) -> list[Place]:
        """Groups to wake now."""
        found: list[Place] = []
        if not self._by_time:
            return found
        now_s = self._mono()
        while self._by_time and self._by_time.peekitem(0)[0][0] <= now_s:
            group = self._by_time.popitem(0)[1]
            del self._waiting[group]
            found.append(group)
        return found

    def wait_s(self) -> float:
        """Seconds until the next group must be woken."""
        return max(0.001, self._by_time.peekitem(0)[0][0] - self._mono()) if self._by_time else NEVER
