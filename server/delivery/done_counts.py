"""Notes for the archive what places have done (shards/ended.py), in the batch with the cursor that says so.

A group counts in RAM what it has done. `noted` says how many of these a batch has counted. If that batch
fails it may be stored all the same: then the number in the store has come as far, since it only rises.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shards.commit import Commit
from shards.ended import DONE, Counted, counted, note_done
from shards.kept import Story
from shards.open_batch import OpenBatch
from timeline.position import Position

from .place import Place


class Noted(NamedTuple):
    """Ends of a place that a batch counts."""

    place: Place
    number: int
    group: OpenBatch
    stored: Counted
    is_last: bool


class DoneCounts:
    """Of all groups."""

    def __init__(self) -> None:
        self._parting: list[Place] = []
        """Groups that have ended, and have done what is not noted yet."""
        self._open: list[Noted] = []
        """In the open batch."""
        self._unsure: list[Noted] = []
        """In batches that have failed, and may be stored."""

    def part(self, group: Place) -> None:
        """The group ends, or its cursor does: what it has done is noted with the next batch."""
        rows = group.rows
        if rows.ends[DONE] > rows.noted or rows.ended:
            self._parting.append(group)

    def begin(self, commit: Commit) -> None:
        """A batch is about to be sealed."""
        unsealed, self._open = self._open, []
        self._forget(unsealed)
        parting, self._parting = self._parting, []
        for group in parting:
            self.write(commit, group, group.rows.ended, is_last=True)

    def write(
        self, commit: Commit, one: Place, stories: Mapping[Position, Story], *, is_last: bool = False
    ) -> None:
        """In the writer: its cursor is written, and what is in `stories` is kept."""
        rows, group = one.rows, commit.open_batch
        number = rows.ends[DONE] - rows.noted
        if not group.notes_ends or not (number or stories):
            return
        stored = note_done(commit, one.whose, one.names, stories, number)
        rows.noted += number
        if stored is not None:
            self._open.append(Noted(one, number, group, stored, is_last))

    def sealed(self) -> list[Noted]:
        """What the batch has."""
        written, self._open = self._open, []
        return written

    def failed(self, written: Iterable[Noted]) -> None:
        """The batch of these has failed."""
        self._unsure += written

    def recover(self) -> None:
        """The store can be read again. Raises StoreFailed, Corrupt."""
        lost = [one for one in self._unsure if counted(one.group, one.stored.key, DONE) < one.stored.number]
        self._unsure = []
        self._forget(lost)

    def _forget(self, lost: Iterable[Noted]) -> None:
        """They are not stored."""
        for one in lost:
            one.place.rows.noted -= one.number
            if one.is_last:
                self._parting.append(one.place)
