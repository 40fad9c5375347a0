"""Positions ahead of a session's read position that it passes over when it reads there."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from .position import POSITION_BYTES, Position

FINISHED_MAX = 65_535
"""As many as a session may have in flight when it is set back."""


class Finished(dict[Position, bytes]):
    """The positions ahead of a read position that are passed over, each with its stored form.

    Holds at most FINISHED_MAX. One more drives out the first, whose message then comes once more. `add` is
    O(log n), as is each position that `forget` takes out.
    """

    __slots__ = ("_order",)

    def __init__(self, places: Iterable[Position] = ()) -> None:
        super().__init__({place: place.to_bytes(POSITION_BYTES, "big") for place in places})
        self._order = list(self)
        """A heap of them."""
        heapify(self._order)

    def add(self, place: Position) -> bool:
        """False: it is here already."""
        if place in self:
            return False
        self[place] = place.to_bytes(POSITION_BYTES, "big")
        heappush(self._order, place)
        if len(self._order) > FINISHED_MAX:
            del self[heappop(self._order)]
        return True

    def forget(self, read: Position) -> None:
        """Take out what is read by now."""
        order = self._order
        while order and order[0] <= read:
            del self[heappop(order)]
