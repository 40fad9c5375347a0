"""Which deliveries of a place have rows (shards/delivery_rows.py), as far as the server knows of them."""

from collections.abc import Iterable
from typing import Final

from timeline.position import Position

_NONE: Final[frozenset[Position]] = frozenset()
"""Most places have none. A set of its own takes 216 bytes, and there are two."""


class PlaceRows:
    """Of one place."""

    __slots__ = ("ahead", "out", "over")

    def __init__(self) -> None:
        self.out: set[Position] | frozenset[Position] = _NONE
        """Roots of its deliveries that waited and are out now. The row of one that is in flight no more goes
        with the next cursor."""
        self.over: set[Position] | frozenset[Position] = _NONE
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

    def note_out(self, root: Position) -> None:
        """The delivery is out."""
        if not isinstance(self.out, set):
            self.out = set()
        self.out.add(root)

    def note_over(self, root: Position) -> None:
        """The delivery has been read again."""
        if not isinstance(self.over, set):
            self.over = set()
        self.over.add(root)

    def forget(self, roots: Iterable[Position]) -> None:
        """These rows are gone, or their deliveries are another's now."""
        for noted in (self.out, self.over):
            if isinstance(noted, set):
                noted.difference_update(roots)
