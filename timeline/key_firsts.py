"""Keys that are behind or in trouble, in RAM, and the lowest position that one of them is behind at.

The lowest `next` of all keys is asked for all the time: the retention floor and the read position of a group
depend on it. It stands in a heap of each `next`, also of those that have passed since: an entry counts only
while its key has that `next`. The heap has at most twice as many entries as there are keys.

After a replay the heap is empty, and `low` stands for all keys that were not looked at: one number below each
of their `next`.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from .key_rows import NO_SHARD, NOWHERE, Address, KeyRow
from .position import END, Position

KNOWN_MAX = 4
"""Followers of a key that are known without reading the index."""


@dataclass(slots=True)
class Key:
    """A key that is behind, or in trouble, or held."""

    next: Position = NOWHERE
    known: list[Address] = field(default_factory=list)
    """Its first followers; the first of them stands at `next`."""
    is_whole: bool = True
    """`known` are all."""
    root: Position = NOWHERE
    """Its head, if that is not in flight: it waits for its next try, ..."""
    is_dead: bool = False
    """... or is a dead letter that holds the key."""
    by_hand: bool = False
    stops: int = 0
    """Holds and releases that are not durable yet."""
    gives_retry: bool = True
    """Without order: whether a retry in line goes before the followers, in turns."""

    @property
    def first(self) -> Address | None:
        """The message to give next; None: the index has it, from `next` on."""
        return self.known[0] if self.known else None

    @property
    def is_held(self) -> bool:
        """Whether a dead letter or somebody holds it."""
        return self.by_hand or self.is_dead or self.stops > 0

    @property
    def row(self) -> KeyRow:
        shard = self.known[0][1] if self.known else NO_SHARD
        return KeyRow(self.next, shard, self.root, self.by_hand)


class KeyFirsts:
    """Where each key of a group is behind."""

    __slots__ = ("_heap", "_keys", "low")

    def __init__(self, keys: dict[bytes, Key]) -> None:
        self._keys = keys
        self._heap: list[tuple[Position, bytes]] = []
        self.low = END
        """Since a replay: a lower bound of the `next` of keys that are not in the heap."""

    def note(self, key: bytes, found: Key) -> None:
        """The key has another `next`. O(log keys), now and then O(keys)."""
        if found.next == NOWHERE:
            return
        heappush(self._heap, (found.next, key))
        if len(self._heap) > 2 * len(self._keys) + KNOWN_MAX:
            self._heap = [(one.next, name) for name, one in self._keys.items() if one.next != NOWHERE]
            heapify(self._heap)

    @property
    def first(self) -> tuple[Position, bytes] | None:
        """The lowest `next` in the heap, and its key."""
        while self._heap:
            place, key = self._heap[0]
            found = self._keys.get(key)
            if found is not None and found.next == place:
                return place, key
            heappop(self._heap)
        return None

    @property
    def needed(self) -> Position:
        """The first position behind the read position that is still to be given; END: none. A message that
        rests is in its retry, or in its dead letter."""
        first = self.first
        return self.low if first is None else min(first[0], self.low)

    def forget(self, low: Position) -> None:
        """Each `next` stands at `low` or behind it, until it is noted again."""
        self._heap, self.low = [], low
