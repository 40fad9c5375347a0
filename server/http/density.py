"""Exact density: pending messages per bucket of time, on request also past ones.

A slice knows how many live messages it holds in each minute, a wide one in each hour (timeline/cells.py).
Buckets that end on a minute are sums of those numbers, however many messages there are. Rows are read only
for minutes cut by a bucket's end or by the horizon, for slices that are still being counted, and with a topic
filter; then only of shards whose structure can hold such a topic.

    buckets of 1 h from 12:00       a slice of 6 h: six sums of 60 numbers
    buckets of 1 h from 12:00:30    the same, plus the rows of the six cut minutes

A slice without cells is read, except shards that lie in one bucket: their own counts are the answer. Reading
is done in steps, each in its own turn (turns.py). The count is of what was pending when it began, except for
changes made meanwhile.
"""

from collections.abc import Callable

from shards.read import Row
from shards.record import is_stub
from timeline.cells import Cells
from timeline.position import Position, at_of, before
from timeline.slices import Shard, Slice

from .timeline import Timeline
from .turns import Turn

STEP_ROWS = 4_000

RowFilter = Callable[[Row], bool]


class Density:
    """Counts over [start_ms, end_ms) in buckets of `width_ms`; the last one is clipped at the end."""

    def __init__(
        self, timeline: Timeline, start_ms: int, end_ms: int, width_ms: int, *, with_past: bool = False
    ) -> None:
        """`with_past`: messages that the horizon has passed count too, while they are kept."""
        self._timeline = timeline
        self._start_ms, self._width_ms = start_ms, width_ms
        self._low = before(start_ms)
        if not with_past:
            self._low = max(self._low, Position(timeline.horizon.position + 1))
        self._end = before(end_ms)
        self.counts = [0] * -(-(end_ms - start_ms) // width_ms)

    async def count(
        self,
        turn: Turn,
        topic: str = "",
        wanted: RowFilter = lambda row: not is_stub(row[2]),
        is_abandoned: Callable[[], bool] = lambda: False,
        *,
        is_all: bool = True,
    ) -> list[int]:
        """Fill `counts` with the rows that `wanted` accepts.

        `topic` "" and `is_all`: every message. `is_abandoned`: whether the caller is gone.
        """
        structures = self._timeline.structures_of((topic,)) if topic else None
        if self._timeline.held:
            # Held messages are all behind the horizon, but pending.
            start = before(self._start_ms)
            for row in self._timeline.reader.held():
                if start <= row[0] < self._end and wanted(row):
                    self._add(row[0], 1)
        await turn.begin()
        # Slice by slice, each looked up in its turn: the rows to read of 20,000 slices are a long list.
        low = self._low
        while (piece := self._timeline.directory.first_over(low, self._end)) is not None:
            if turn.is_over(0):
                await turn.begin()
                continue  # the directory may have changed
            is_exact = is_all and not topic
            if is_exact and piece.cells is not None and piece.cells.is_exact:
                left = self._by_cells(piece, piece.cells)
            else:
                left = self._by_numbers(piece, structures, is_exact=is_exact)
            for number, start, end in left:
                await self._read(number, start, end, wanted, turn, is_abandoned)
            low = before(piece.end_ms)
        return self.counts

    def _by_cells(self, piece: Slice, cells: Cells) -> list[tuple[int, Position, Position]]:
        """Add the whole cells. Returns the spans to read of the cut ones, with their shards."""
        low, end = piece.within(self._low, self._end)
        first = min((shard.first for shard in piece.readable()), default=low)
        start = before(piece.start_ms) if low <= first else low  # no row lies before it: no cell is cut
        spans: list[tuple[Position, Position]] = []
        while low < end:
            bucket = self._bucket(low)
            upto_ms = min(self._start_ms + (bucket + 1) * self._width_ms, at_of(end))
            count, cut = cells.within(start, upto_ms)
            self.counts[bucket] += count
            for span in cut:
                if spans and spans[-1][1] == span[0]:
                    spans[-1] = spans[-1][0], span[1]
                else:
                    spans.append(span)
            low = start = before(upto_ms)
        return [(shard.number, *span) for span in spans for shard in piece.over(*span)]

    def _by_numbers(
        self, piece: Slice, structures: set[int] | None, *, is_exact: bool
    ) -> list[tuple[int, Position, Position]]:
        """Count the shards whose own counts are enough. Returns the numbers of the others, each with the span
        to read.

        A split may happen meanwhile: the shard number of a row stays.
        """
        left = []
        for shard in piece.over(self._low, self._end, structures):
            is_own = shard.number in piece.shards
            if is_exact and is_own and self._is_inside(shard):
                self._add(shard.first, shard.live)
            elif shard.live:
                left.append((shard.number, *piece.within(self._low, self._end)))
        return left

    def _is_inside(self, shard: Shard) -> bool:
        """Whether all its rows are ahead and in one bucket."""
        is_ahead = self._low <= shard.first and shard.last < self._end
        return is_ahead and self._bucket(shard.first) == self._bucket(shard.last)

    async def _read(
        self,
        number: int,
        start: Position,
        end: Position,
        wanted: RowFilter,
        turn: Turn,
        is_abandoned: Callable[[], bool],
    ) -> None:
        is_end = False
        while not (is_end or is_abandoned()):
            if turn.is_over(0):  # there may be many short spans
                await turn.begin()
            is_end = True
            for looked, row in enumerate(self._timeline.reader.numbered(number, start, end), 1):
                start = Position(row[0] + 1)
                if wanted(row):
                    self._add(row[0], 1)
                if looked == STEP_ROWS or turn.is_over(looked):
                    is_end = False
                    break

    def _bucket(self, place: Position) -> int:
        return (at_of(place) - self._start_ms) // self._width_ms

    def _add(self, place: Position, count: int) -> None:
        self.counts[self._bucket(place)] += count
