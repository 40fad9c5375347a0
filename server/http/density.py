"""How many messages are pending in each stretch of time, exactly; asked for it, how many have been there too.

A shard knows how many live messages it holds and where the first and the last row stand. If both fall into
one bucket the number is the answer and nothing is read, which is so for every whole slice when buckets are
wide. Rows are read only of shards that straddle a bucket's end or the horizon, or when a topic filter
decides, and then only of shards whose structure can hold such a topic.

    buckets of 1 h, 50,000 messages a day far ahead     a slice of 6 h: its rows are read
    buckets of 1 day                                    four slices' numbers each

Reading is done in steps, each in a turn of its own (turns.py); the count is of what was pending when
it began, as far as nobody changes it meanwhile.
"""

from collections.abc import Callable

from shards.read import Row
from shards.record import is_stub
from timeline.position import Position, at_of, before
from timeline.slices import Shard, Slice

from .timeline import Timeline
from .turns import Turn

STEP_ROWS = 4_000

Wanted = Callable[[Row], bool]


class Density:
    """Counts over [start_ms, end_ms) in buckets of `width_ms`, the last one clipped at the end."""

    def __init__(
        self, timeline: Timeline, start_ms: int, end_ms: int, width_ms: int, *, with_past: bool = False
    ) -> None:
        """`with_past`: what the horizon has passed counts too, delivered or expired, while it is kept."""
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
        wanted: Wanted = lambda row: not is_stub(row[2]),
        is_abandoned: Callable[[], bool] = lambda: False,
        *,
        is_all: bool = True,
    ) -> list[int]:
        """Fill `counts` with what `wanted` lets pass.

        If `topic` is "" and `is_all`, everything that is a message. `is_abandoned`: nobody waits for it.
        """
        structures = self._timeline.structures_of((topic,)) if topic else None
        if self._timeline.held:
            # All of them stand behind the horizon, and are pending nevertheless.
            start = before(self._start_ms)
            for row in self._timeline.reader.held():
                if start <= row[0] < self._end and wanted(row):
                    self._add(row[0], 1)
        await turn.begin()
        # Slice by slice, each looked up when it is its turn: what has to be read of 20,000 is a long list.
        low, pieces = self._low, 0
        while (piece := self._timeline.directory.first_over(low, self._end)) is not None:
            pieces += 1
            if turn.is_over(pieces):
                await turn.begin()
                continue  # the directory may be another by now
            for number, start, end in self._by_numbers(piece, structures, is_exact=is_all and not topic):
                await self._read(number, start, end, wanted, turn, is_abandoned)
            low = before(piece.end_ms)
        return self.counts

    def _by_numbers(
        self, piece: Slice, structures: set[int] | None, *, is_exact: bool
    ) -> list[tuple[int, Position, Position]]:
        """Count the shards whose own figures are enough; give the numbers of the others, whose rows have to
        be read, each with the span to read.

        A split, or the copying after it, may come in between: the number of a row's shard stays.
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
        wanted: Wanted,
        turn: Turn,
        is_abandoned: Callable[[], bool],
    ) -> None:
        is_end = False
        while not (is_end or is_abandoned()):
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
