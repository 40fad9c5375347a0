"""Who among the origins of full URLs may be posted to now, so that a slow one slows no other.

All share `capacity` posts. An origin may have `each` of them under way, but no more than a SHARE-th of what
is free, and one at least: however many are slow, as their posts end something is free for the next one.

    200 in all, 10 each      8 slow ones have 10 each, 120 are free      100 slow ones have 2 each

For what has no room now there is no queue: the timeline is one. It goes there again, for the moment at
which it should be its turn: behind all that were put off before, at the pace at which the origin has
answered lately. So a burst of a thousand is posted about as fast as the origin takes it, and each of it
waits once or twice.

Bounded: as many origins are remembered as MOST, those that nothing is posted to forgotten first.
"""

from collections import OrderedDict

MOST = 10_000
SHARE = 8
FIRST_MS = 50.0
"""How long an origin is thought to take before it has answered."""
WAIT_MIN_MS, WAIT_MAX_MS = 100, 3_600_000
_WEIGHT = 0.2
"""Of the last answer, in what is thought of the next one."""


class _Origin:
    """What is under way to it, how long it takes, and when the last one that was put off has its turn."""

    __slots__ = ("open", "takes_ms", "turn_ms")

    def __init__(self) -> None:
        self.open = 0
        self.takes_ms = FIRST_MS
        self.turn_ms = 0.0


class Origins:
    """Origins by what `origin_of` says."""

    def __init__(self, *, capacity: int, each: int) -> None:
        self._capacity = capacity
        self._each = each
        self._known: OrderedDict[str, _Origin] = OrderedDict()
        self.open = 0
        """Posts under way in all."""

    def __len__(self) -> int:
        return len(self._known)

    def take(self, name: str) -> bool:
        """Whether one more may be posted to it; it counts then."""
        origin = self._of(name)
        free = self._capacity - self.open
        if free <= 0 or origin.open >= min(self._each, max(1, free // SHARE)):
            return False
        origin.open += 1
        self.open += 1
        return True

    def give(self, name: str, took_ms: float) -> None:
        """A post that was taken has ended."""
        origin = self._of(name)
        origin.open -= 1
        origin.takes_ms += _WEIGHT * (took_ms - origin.takes_ms)
        self.open -= 1

    def put_off_ms(self, name: str, now_ms: float) -> int:
        """After how long one that has no room should come again. `now_ms`: of a clock that elapses."""
        origin = self._of(name)
        turn_ms = max(origin.turn_ms, now_ms + WAIT_MIN_MS)
        origin.turn_ms = turn_ms + origin.takes_ms / self._each
        wait_ms = turn_ms - now_ms
        if wait_ms > WAIT_MAX_MS:
            origin.turn_ms = now_ms
            return WAIT_MAX_MS
        return int(wait_ms)

    def _of(self, name: str) -> _Origin:
        origin = self._known.get(name)
        if origin is None:
            origin = self._known[name] = _Origin()
            self._forget()
        self._known.move_to_end(name)
        return origin

    def _forget(self) -> None:
        """At the bound the one that was asked for longest ago and has nothing under way."""
        if len(self._known) > MOST:
            idle = next((name for name, one in self._known.items() if not one.open), None)
            if idle is not None:
                del self._known[idle]
