"""Which deliveries of a place have rows (shards/delivery_rows.py), as far as the server knows of them."""

from collections.abc import Iterable

from timeline.position import Position


class PlaceRows:
    """Of one place."""

    __slots__ = ("ahead", "out", "over")

    def __init__(self) -> None:
        self.out: set[Position] = set()
        """Roots of its deliveries that waited and are out now. The row of one that is in flight no more goes
        with the next cursor."""
        self.over: set[Position] = set()
        """Roots of those that it has read again since. Their rows go in the same way."""
        self.ahead = True
        """Whether rows of its deliveries may lie ahead of where it reads, as it was set back. At first it is
        not known."""

    @property
    def is_any(self) -> bool:
        """Whether rows may have to go with the next cursor."""
        return bool(self.out or self.over)

    def ended(self, flying: set[Position]) -> list[Position]:
        """Roots of rows that have no effect any more. `flying`: those that are in flight."""
        return [*self.over, *self.out.difference(flying)]

    def forget(self, roots: Iterable[Position]) -> None:
        """These rows are gone, or their deliveries are another's now."""
        self.out.difference_update(roots)
        self.over.difference_update(roots)
