"""State of a place, in parts by the module that writes each."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shards.kept import Story
from timeline.position import Position
from timeline.session import Flight

from .publish_request import Will

_NONE = Position(-1)
ENDED_MAX = 100_000
"""Acks of a place that are to be kept and wait for its cursor; the story of more is not kept."""
_NO_ROOTS: Final[frozenset[Position]] = frozenset()
"""Most places have none. A set of its own takes 216 bytes, and there are two."""
_NO_ENDS: Final[Counter[str]] = Counter()
_NO_ENDED: Final[dict[Position, Story]] = {}


class PlaceRows:
    """Delivery rows of one place."""

    __slots__ = ("ahead", "ended", "ends", "noted", "out", "over", "told", "unsure")

    def __init__(self) -> None:
        self.out: set[Position] | frozenset[Position] = _NO_ROOTS
        """Roots of its deliveries that waited and are out now. The row of one that is in flight no more goes
        with the next cursor."""
        self.over: set[Position] | frozenset[Position] = _NO_ROOTS
        """Roots of those that it has read again since. Their rows go in the same way."""
        self.ended = _NO_ENDED
        """Acks of which the next cursor keeps the story, by root."""
        self.told: dict[Position, Story] = _NO_ENDED
        """Those in batches that are not durable yet: later ones that overlap do not write them again."""
        self.unsure: frozenset[Position] = frozenset()
        """Those of which a batch with the story has failed, and may be stored."""
        self.ends = _NO_ENDS
        """A group's: how many deliveries are done, dead, dropped and withheld, since the start."""
        self.noted = 0
        """How many of the done ones are noted for the archive (done_counts.py)."""
        self.ahead = True
        """Whether rows of its deliveries may lie ahead of where it reads, as it was set back. At first it is
        not known."""

    @property
    def is_any(self) -> bool:
        """Whether rows may have to go with the next cursor."""
        return bool(self.out or self.over or self.ended)

    def holds(self, root: Position) -> bool:
        """Whether its delivery that waited is out, or has been read again."""
        return root in self.out or root in self.over

    def without_effect(self, flying: set[Position]) -> list[Position]:
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

    def had_failed(self, flight: Flight) -> bool:
        """Whether a try of what is in flight may have failed before."""
        return flight.attempts > 1 or flight.position in self.out

    def note_ended(self, root: Position, ended: Story) -> None:
        """The delivery is done, which is to be kept."""
        if self.ended is _NO_ENDED:
            self.ended = {}
        if ended.result is not None or len(self.ended) < ENDED_MAX:  # a result is promised
            self.ended[root] = ended

    def untold(self) -> dict[Position, Story]:
        """The stories for a batch: those that no open one has."""
        return {root: one for root, one in self.ended.items() if root not in self.told}

    def tell(self, ended: dict[Position, Story]) -> None:
        """The open batch has these."""
        self.told = {**self.told, **ended}

    def failed(self, ended: dict[Position, Story]) -> None:
        """The batch with these stories has failed."""
        self.unsure = self.unsure.union(ended)
        self._untell(ended)

    def _untell(self, ended: dict[Position, Story]) -> None:
        self.told = {root: one for root, one in self.told.items() if root not in ended} or _NO_ENDED

    def wrote(self, ended: dict[Position, Story]) -> None:
        """These stories are durable."""
        self.unsure = self.unsure.difference(ended)
        self._untell(ended)
        for root, one in ended.items():
            if self.ended.get(root) is one:
                del self.ended[root]

    def forget(self, roots: Iterable[Position]) -> None:
        """These rows are gone, or their deliveries are another's now."""
        for noted in (self.out, self.over):
            if isinstance(noted, set):
                noted.difference_update(roots)


@dataclass(slots=True, eq=False)
class CursorState:
    """What its rows on disk say, and when they are next written (cursors.py)."""

    is_stored: bool = False
    """Whether it has rows on disk."""
    written_at: float = 0.0
    """Time of the last cursor write, s of monotonic time."""
    changes: int = -1
    """`session.changes` when the subscriptions were last written; -1: not as they are now."""
    read: Position = _NONE
    """The read position in the cursor that was last written; -1: none."""
    even_at: float = 0.0
    """When its writes will be paid for, s of monotonic time."""
    is_entangled: bool = False
    """Its cursor is next written together with those of its shared subscriptions, whichever is first."""
    has_given_back: bool = False
    """Their cursors are next written with its own, so that a kill loses no count of tries."""


@dataclass(slots=True, eq=False)
class WillState:
    """The wills of a session (wills.py)."""

    current: Will | None = None
    """Published if the connection ends without DISCONNECT."""
    former: Will | None = None
    """The delayed will of the connection before, until the client is back for certain."""
    unplaced: Will | None = None
    """A will to publish at once that has no place yet: stored until it has."""
    delayed_id: int = 0
    """Message id of the delayed will on the timeline, while the client is away."""


@dataclass(slots=True, eq=False)
class Presence:
    """When its client came and went (clients.py)."""

    connected_ms: int = 0
    ended_ms: int = 0
    """When its last connection ended, wall ms; 0: it has had none, or the server was killed meanwhile."""
    left_ms: int = 0
    left_running_ms: int = 0
    """When its last connection ended, by the wall clock and in running time; 0: it is there."""
