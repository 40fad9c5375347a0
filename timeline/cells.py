"""The messages of one slice by time: an exact count for each minute, or hour in a wide slice.

A slice's counts say how many messages it holds; its cells say when. A slice has at most 361 cells of 36
bytes (6 hours by minutes; 8 days by hours), however many messages they count. Cells lie on multiples of their
width since the epoch, so the first and the last one may reach over the slice's bounds; they count only the
slice's own messages.

    slice [00:00, 00:15), cells of a minute     a message at 00:03:20     cell 3 is one more
    cancelled                                   cell 3 is one less

Cells that begin empty with an empty slice are exact from then on. The cells of a slice that has messages have
to be *counted*, in position order and in steps, while messages come and go. `since` and `upto` keep a message
from being counted twice or never:

    put        its seq is above `since`: counted at once; the count passes over it
    cancelled  counted already (before `upto`, or put since): one less. Else the count will find a stub
"""

from collections.abc import Sequence
from itertools import pairwise

from .position import END, Position, at_of, before, seq_of

MINUTE_MS = 60_000
NARROW_MS = 360 * MINUTE_MS
WIDE_MS = 60 * MINUTE_MS
"""The width of cells in a slice that is wider than NARROW_MS."""


class Cells:
    """Live messages of a slice by cell. `open_batch` adds to `counts` in its own loop."""

    __slots__ = (
        "base_ms",
        "counts",
        "end_ms",
        "first",
        "retired",
        "saved",
        "since",
        "start_ms",
        "upto",
        "width_ms",
    )

    def __init__(self, start_ms: int, end_ms: int, width_ms: int = 0) -> None:
        """Cells of an empty slice, exact. `width_ms` 0: the width that fits the slice."""
        self.start_ms, self.end_ms = start_ms, end_ms
        self.width_ms = width_ms or (MINUTE_MS if end_ms - start_ms <= NARROW_MS else WIDE_MS)
        self.first = start_ms // self.width_ms
        """The number of the first cell, counted from the epoch, ..."""
        self.base_ms = self.first * self.width_ms
        """... and where it begins. Dividing what is counted from there costs half as much: it is small."""
        self.counts = [0] * ((end_ms - 1) // self.width_ms - self.first + 1)
        self.since = 0
        """The last seq that was issued before the count began."""
        self.upto = END
        """Messages before it have been counted; END: the cells are exact."""
        self.retired = 0
        """Number of messages taken out: with the slice's rows, it changes with every change."""
        self.saved = (-1, 0)
        """Rows and `retired` when they were written last."""

    @property
    def is_exact(self) -> bool:
        return self.upto == END

    @property
    def total(self) -> int:
        return sum(self.counts)

    def begin(self, seq: int) -> None:
        """Count a slice that has messages. `seq`: the last one issued; all of them can be read."""
        self.since, self.upto = seq, before(self.start_ms)

    def add(self, place: Position) -> None:
        """The count has come to a live message."""
        if seq_of(place) <= self.since:
            self.count_in(place)

    def count_in(self, place: Position) -> None:
        """Count a message, if it belongs to the slice."""
        if self.start_ms <= at_of(place) < self.end_ms:
            self.counts[(at_of(place) - self.base_ms) // self.width_ms] += 1

    def retire(self, place: Position) -> None:
        """Uncount a message: it is now a stub."""
        self.retired += 1
        index = (at_of(place) - self.base_ms) // self.width_ms
        # Never below 0: wrong cells must not keep a group from being written.
        if (place < self.upto or seq_of(place) > self.since) and self.counts[index]:
            self.counts[index] -= 1

    def start_of(self, index: int) -> int:
        """Start of a cell within the slice, ms. For the number of cells: the slice's end."""
        return min(max(self.start_ms, (self.first + index) * self.width_ms), self.end_ms)

    def within(self, low: Position, end_ms: int) -> tuple[int, list[tuple[Position, Position]]]:
        """Messages in [low, end_ms), which lie in the slice: how many the whole cells hold, and the spans at
        either end that cut a cell which is not empty."""
        low_ms = at_of(low) + (seq_of(low) > 0)
        width, counts, end = self.width_ms, self.counts, before(end_ms)
        first = 0 if low_ms <= self.start_ms else -(-low_ms // width) - self.first
        last = len(counts) if end_ms >= self.end_ms else end_ms // width - self.first
        if first > last:  # one cell contains all of it
            return 0, [(low, end)] if counts[last] and low < end else []
        left, right = before(self.start_of(first)), before(self.start_of(last))
        cut = []
        if low < left and counts[first - 1]:
            cut.append((low, left))
        if right < end and counts[last]:
            cut.append((right, end))
        return sum(counts[first:last]), cut


def divided(cells: Cells, cuts: Sequence[int], lives: Sequence[int]) -> list[Cells] | None:
    """The cells of the pieces that a slice is cut into. `lives`: how many messages each piece holds.

    A cell that is cut is shared out by what the pieces hold in all, so nothing is read. None: the cells are
    not exact, or do not fit these numbers.
    """
    left = cells.counts[:]
    if not cells.is_exact or sum(left) != sum(lives):
        return None
    made = []
    for (start_ms, end_ms), live in zip(pairwise([cells.start_ms, *cuts, cells.end_ms]), lives, strict=True):
        piece = Cells(start_ms, end_ms, cells.width_ms)
        offset = piece.first - cells.first
        piece.counts = left[offset : offset + len(piece.counts)]
        if end_ms % cells.width_ms:
            piece.counts[-1] = 0
            rest = live - piece.total
            if not 0 <= rest <= left[offset + len(piece.counts) - 1]:
                return None
            piece.counts[-1] = rest
            left[offset + len(piece.counts) - 1] -= rest
        if piece.total != live:
            return None
        made.append(piece)
    return made
