"""What happens to the rows of a slice that is being cut, between `begin` and `switch` (handover.py).

A job copies the rows as they were at `begin`. Those that a cancel or move overwrites by a stub meanwhile are
noted with the cut, so that they can be overwritten again where they have been copied to. One row may be under
several cuts: a shard that several slices borrow is a source of all of them.

    begin      notes.add(cut)
    cancel     notes.note(prefix, place)    ->  cut.noted gains (shard, place)
    switch     the noted ones are put over the copies; notes.drop(cut)

Bound: NOTED_MAX rows for each cut; beyond it the cut is overrun, and its job is given up.
"""

from dataclasses import dataclass, field

from timeline.position import Position, at_of

from . import keys
from .jobs import PieceRow, SourceRow

NOTED_MAX = 100_000


@dataclass(slots=True)
class Cut:
    """A slice that is being cut."""

    children: list[PieceRow]
    sources: list[SourceRow]
    rows: dict[int, int]
    """How many rows each source holds for the job, by shard number."""
    prefixes: dict[int, bytes]
    """Of the sources."""
    noted: set[tuple[int, Position]] = field(default_factory=set)
    """(shard, place) of rows that have changed."""
    overwritten: set[tuple[int, Position]] = field(default_factory=set)
    """Those of them whose ingested rows have been overwritten."""
    retired: dict[tuple[int, int], int] = field(default_factory=dict)
    """By child and shard: how many ingested rows were live and are not any more."""
    is_overrun: bool = False

    @property
    def start_ms(self) -> int:
        return self.children[0].start_ms

    @property
    def end_ms(self) -> int:
        return self.children[-1].end_ms

    def child_at(self, place: Position) -> PieceRow:
        at_ms = at_of(place)
        return next(child for child in self.children if at_ms < child.end_ms)


class Notes:
    """What changes under the cuts that are under way."""

    def __init__(self, most: int = NOTED_MAX) -> None:
        self.most = most
        """Rows that are noted of one cut."""
        self._cuts: dict[bytes, list[Cut]] = {}

    def add(self, cut: Cut) -> None:
        for prefix in cut.prefixes.values():
            self._cuts.setdefault(prefix, []).append(cut)

    def drop(self, cut: Cut) -> None:
        for prefix in cut.prefixes.values():
            left = [other for other in self._cuts.get(prefix, ()) if other is not cut]
            if left:
                self._cuts[prefix] = left
            else:
                self._cuts.pop(prefix, None)

    def note(self, prefix: bytes, place: Position) -> None:
        """The row at `place` in the shard with this prefix is being overwritten by a stub."""
        for cut in self._cuts.get(prefix, ()):
            if cut.start_ms <= at_of(place) < cut.end_ms:
                if len(cut.noted) < self.most:
                    cut.noted.add((keys.shard_of(prefix)[1], place))
                else:
                    cut.is_overrun = True
