"""Finished positions ahead of a session's read position: it skips them when it reads there."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from .position import POSITION_BYTES, Position

FINISHED_MAX = 65_535
"""Maximum flights of a session when it is set back."""


class Finished(dict[Position, bytes]):
    """Finished positions ahead of a read position, each with its stored form.

    Holds at most FINISHED_MAX. One more evicts the first, whose message is then delivered again. `add` is
    O(log n), and so is each position that `forget` removes.
    """

    __slots__ = ("_order",)

    def __init__(self, places: Iterable[Position] = ()) -> None:
        super().__init__({place: place.to_bytes(POSITION_BYTES, "big") for place in places})
        self._order = list(self)
        """A heap of them."""
        heapify(self._order)

    def add(self, place: Position) -> bool:
        """False: it was there already."""
        if place in self:
            return False
        self[place] = place.to_bytes(POSITION_BYTES, "big")
        heappush(self._order, place)
        if len(self._order) > FINISHED_MAX:
            del self[heappop(self._order)]
        return True

    def forget(self, read: Position) -> None:
        """Remove positions that have been read."""
        order = self._order
        while order and order[0] <= read:
            del self[heappop(order)]
