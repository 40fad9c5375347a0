"""The tail in RAM: the last dispatched messages, shared by all sessions that are nearly caught up.

A session that is a little behind (its window was full, its socket slow) reads from here instead of from disk,
and gets the same objects as the others, with their encoded bytes. The ring holds everything dispatched after
`floor`; a session whose read position is before that reads from the store. Bounded in entries and bytes:
dropped messages are still on disk, or cannot be replayed anyway.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Generic, TypeVar

from .position import Position

Item = TypeVar("Item")


class Tail(Generic[Item]):
    """(position, item) in position order. `append` is O(1) amortised, `after` O(log n + returned)."""

    def __init__(self, start: Position, *, max_entries: int, max_bytes: int) -> None:
        self.floor = start
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.bytes = 0
        self._dropped = 0
        self._places: list[Position] = []
        self._items: list[Item] = []
        self._sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._places)

    @property
    def count(self) -> int:
        """Number of all that were appended, dropped ones too."""
        return self._dropped + len(self._places)

    def since(self, count: int, limit: int) -> list[Item]:
        """At most `limit` of those that came after the first `count`, oldest first; without dropped ones."""
        low = max(0, count - self._dropped)
        return self._items[low : low + limit]

    def covers(self, read: Position) -> bool:
        """Whether a session that has read up to `read` finds all it has not read here."""
        return read >= self.floor

    def append(self, place: Position, item: Item, size: int) -> None:
        """Take the next dispatched message; the oldest ones go at the bound."""
        self._places.append(place)
        self._items.append(item)
        self._sizes.append(size)
        self.bytes += size
        if self.bytes > self.max_bytes or len(self._places) > self.max_entries:
            self._drop_oldest()

    def extend(self, places: Sequence[Position], items: Sequence[Item], sizes: Sequence[int]) -> None:
        """`append` of several, in position order."""
        self._places += places
        self._items += items
        self._sizes += sizes
        self.bytes += sum(sizes)
        if self.bytes > self.max_bytes or len(self._places) > self.max_entries:
            self._drop_oldest()

    def after(self, read: Position, limit: int) -> list[tuple[Position, Item]]:
        """The next messages after `read`, at most `limit`."""
        low = bisect_right(self._places, read)
        high = low + limit
        return list(zip(self._places[low:high], self._items[low:high], strict=True))

    def _drop_oldest(self) -> None:
        """Drop entries over the bound and an eighth more, so that this does not run for each message.

        They are freed at once: waiting until moving the rest is worthwhile would exceed the bound.
        """
        sizes, dropped = self._sizes, 0
        keep_bytes, keep_entries = self.max_bytes * 7 // 8, self.max_entries * 7 // 8
        count = len(sizes)
        while dropped < count and (self.bytes > keep_bytes or count - dropped > keep_entries):
            self.bytes -= sizes[dropped]
            dropped += 1
        self._dropped += dropped
        self.floor = self._places[dropped - 1]
        del self._places[:dropped], self._items[:dropped], self._sizes[:dropped]
