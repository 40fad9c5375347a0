"""Who among the origins of full URLs may be posted to now, so that a slow one slows no other.

All share `capacity` posts. An origin may have `each` of them under way, but no more than a SHARE-th of what
is free for it, and one at least: however many are slow, as their posts end something is free for the next.

A thousand origins that hang would have everything, one each. So what is not known to be quick, by its last
post, has PART_PERCENT of the capacity; the rest is for those that are. And an owner (the key that sent the
message) may have PART_FREE times what is free: however many origins he names, another one finds room.

For what has no room now there is no queue: the timeline is one. It goes there again, for the moment at
which it should be its turn: behind all that were put off before, at the pace at which the origin, or what
its owner has under way, has ended lately. So a burst of a thousand is posted about as fast as the origin
takes it, and each of it waits once or twice. While nothing ends, the pace is as slow as that has lasted.

Bounded: as many origins are remembered as MOST, and owners, those that nothing is posted to forgotten first.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

MOST = 10_000
SHARE = 6
PART_PERCENT = 75
PART_FREE = 3
QUICK_MS = 2_000.0
"""An origin whose last post took less is quick."""
FIRST_MS = 50.0
"""How long an origin is thought to take before it has answered."""
WAIT_MIN_MS, WAIT_MAX_MS = 100, 3_600_000
_WEIGHT = 0.2
"""Of the last answer, in what is thought of the next one."""


class _Part:
    """What is under way of one origin or owner, how long it takes, and when the last one that was put off has
    its turn."""

    __slots__ = ("ended_ms", "is_quick", "open", "takes_ms", "turn_ms")

    def __init__(self) -> None:
        self.open = 0
        self.is_quick = False
        self.takes_ms = FIRST_MS
        self.turn_ms = 0.0
        self.ended_ms = 0.0
        """When the last one ended, or the first one since nothing was under way began."""

    def begin(self, now_ms: float) -> None:
        if not self.open:
            self.ended_ms = now_ms
        self.open += 1

    def end(self, took_ms: float, now_ms: float) -> None:
        self.open -= 1
        self.ended_ms = now_ms
        self.takes_ms += _WEIGHT * (took_ms - self.takes_ms)

    def next_turn_ms(self, now_ms: float, at_a_time: int) -> float:
        """From now on. It is taken."""
        takes_ms = max(self.takes_ms, now_ms - self.ended_ms) if self.open else self.takes_ms
        turn_ms = max(self.turn_ms, now_ms + WAIT_MIN_MS)
        self.turn_ms = turn_ms + takes_ms / at_a_time
        if turn_ms - now_ms > WAIT_MAX_MS:
            self.turn_ms = now_ms
        return turn_ms - now_ms


class _Parts:
    """Those that are remembered."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, _Part] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, key: Hashable) -> _Part:
        part = self._known.get(key)
        if part is None:
            part = self._known[key] = _Part()
            self._forget()
        self._known.move_to_end(key)
        return part

    def _forget(self) -> None:
        """Evicts the least recently used endpoint that is idle."""
        if len(self._known) > MOST:
            idle = next((key for key, one in self._known.items() if not one.open), None)
            if idle is not None:
                del self._known[idle]


class Slot(NamedTuple):
    """A post that is under way."""

    origin: _Part
    owner: _Part
    is_quick: bool
    """What its origin was when it began."""


class Origins:
    """Origins by what `origin_of` says. Times are of a clock that elapses, in ms."""

    def __init__(self, *, capacity: int, each: int) -> None:
        self._capacity = capacity
        self._slow_capacity = max(1, capacity * PART_PERCENT // 100)
        self._each = each
        self._origins = _Parts()
        self._owners = _Parts()
        """By owner, and whether the origins are quick."""
        self.open = self._slow_open = 0
        """Posts under way in all, and of these to origins that were not known to be quick."""

    def __len__(self) -> int:
        return len(self._origins)

    def take(self, name: str, owner: bytes, now_ms: float) -> Slot | None:
        """One more post to it; None: there is no room."""
        origin = self._origins.of(name)
        slot = Slot(origin, self._owners.of((owner, origin.is_quick)), origin.is_quick)
        room = self._room(origin, owner)
        if room <= 0 or origin.open >= self._at_a_time(room):
            return None
        slot.origin.begin(now_ms)
        slot.owner.begin(now_ms)
        self.open += 1
        self._slow_open += not slot.is_quick
        return slot

    def give(self, slot: Slot, took_ms: float, now_ms: float) -> None:
        """A post that was taken has ended."""
        slot.origin.end(took_ms, now_ms)
        slot.origin.is_quick = took_ms < QUICK_MS
        slot.owner.end(took_ms, now_ms)
        self.open -= 1
        self._slow_open -= not slot.is_quick

    def put_off_ms(self, name: str, owner: bytes, now_ms: float) -> int:
        """After how long one that has no room should come again."""
        origin = self._origins.of(name)
        room = self._room(origin, owner)
        wait_ms = origin.next_turn_ms(now_ms, self._at_a_time(room))
        if room <= 0:
            part = self._owners.of((owner, origin.is_quick))
            wait_ms = max(wait_ms, part.next_turn_ms(now_ms, max(1, part.open)))
        return int(min(wait_ms, WAIT_MAX_MS))

    def _room(self, origin: _Part, owner: bytes) -> int:
        """How many more may be posted for that owner to an origin as quick as this one."""
        free = self._capacity - self.open
        if not origin.is_quick:
            free = min(free, self._slow_capacity - self._slow_open)
        theirs = sum(self._owners.of((owner, is_quick)).open for is_quick in (False, True))
        return min(free, -((theirs - PART_FREE * free) // (PART_FREE + 1)))

    def _at_a_time(self, room: int) -> int:
        """How many an origin may have under way."""
        return min(self._each, max(1, room // SHARE))
