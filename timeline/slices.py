"""Slices and shards: how the timeline is cut, and the directory that knows every piece.

A *slice* is a half-open span of due time [start, end). It is opened by the first message that falls into
it, as wide as its distance from now allows: 15 minutes within two days, 6 hours within sixty days, 8 days
beyond. Each width is a multiple of the one before and all are aligned, so a wide slice that has come near
never half covers a quarter of an hour; a new slice is the widest that overlaps no neighbour. A message
per quarter of an hour for ten years is about 900 slices instead of 350,000.

A *shard* is a capped run of messages inside a slice. Writes go to the newest shard of a structure; when
it has reached its cap the next one opens; readers merge all of them. A shard's number is unique within
its slice and everything split from it, because a message id carries it.

A split is a cut: the children *borrow* the parent's shards. A borrowed shard keeps its home (start and
generation of the parent, under which its rows are found) and takes no more messages. Each child reads its own
span of it, and knows what it holds of all that it borrows: its *part*.

The directory is the only place that knows where a row lies; everything else holds ids and positions. It
is kept in RAM (a few hundred bytes a slice), ordered by start, and bounded by `max_slices`.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from sortedcontainers import SortedDict

from .cells import MINUTE_MS, Cells
from .position import END, START, Position, at_of, before

DAY_MS = 86_400_000
WIDTHS = ((2 * DAY_MS, 15 * MINUTE_MS), (60 * DAY_MS, 360 * MINUTE_MS), (1 << 62, 8 * DAY_MS))
"""(up to this distance from T, this wide), ms."""
SHARDS_MAX = 0xFFFE
NARROWEST_MS = WIDTHS[0][1]
CELLED_MAX = 2_048
"""Slices that have cells, 26 MB at the very most: messages over ten years make 900 slices and 1 to 6 MB."""
WATCH_MAX = 250_000
"""Rows that may become stubs while a job counts a slice: 2 MB."""


class SlicesError(Exception):
    """The directory refuses a change."""


class TooManySlices(SlicesError):
    def __init__(self, limit: int) -> None:
        super().__init__(f"the timeline has {limit} slices, as many as there may be")
        self.limit = limit


class TooManyShards(SlicesError):
    def __init__(self, start_ms: int) -> None:
        super().__init__(f"the slice at {start_ms} has {SHARDS_MAX} shards, as many as a slice can have")


class Home(NamedTuple):
    """The slice under which a shard's rows are stored."""

    start_ms: int
    generation: int


class Counts(NamedTuple):
    """Number of rows, of live ones among them, and their bytes with keys."""

    rows: int = 0
    live: int = 0
    bytes: int = 0


class Shard:
    """A capped run of messages of one structure. Counts are of rows; `live` is without stubs.

    They are changed by the methods here and nowhere else, but for one loop (shards/open_batch.py). Those of a
    borrowed shard stay as they were when its slice was cut.
    """

    __slots__ = ("bytes", "count", "first", "home", "last", "live", "number", "prefix", "structure")

    def __init__(self, home: Home, number: int, structure: int = 0) -> None:
        self.home = home
        self.number = number
        self.structure = structure
        self.count = self.live = self.bytes = 0
        self.first, self.last = END, START
        self.prefix = (home.start_ms << 32 | home.generation << 16 | number).to_bytes(10, "big")
        """The first ten bytes of each of its row keys; the position makes the other twelve."""

    def grow(self, place: Position, size: int) -> None:
        """Count a new row of `size` bytes."""
        self.count += 1
        self.live += 1
        self.bytes += size
        if place < self.first:
            self.first = place
        if place > self.last:
            self.last = place

    def take(self, rows: int, live: int, size: int, first: Position, last: Position) -> None:
        """Rows that were counted elsewhere, `live` of them no stubs, from `first` to `last`."""
        self.count += rows
        self.live += live
        self.bytes += size
        self.first, self.last = min(self.first, first), max(self.last, last)

    def retire(self, rows: int = 1) -> None:
        """Count live rows that are now stubs."""
        self.live -= rows

    def touches(self, low: Position, high: Position) -> bool:
        """Whether there may be rows with low <= position < high."""
        return low < high and self.last >= low and self.first < high


class Slice:
    """One span of the timeline and its shards, own and borrowed, by number."""

    __slots__ = (
        "borrowed",
        "cells",
        "count",
        "end_ms",
        "generation",
        "newest",
        "part",
        "passed_s",
        "shards",
        "start_ms",
        "watch",
    )

    def __init__(self, start_ms: int, end_ms: int, generation: int) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.generation = generation
        self.shards: dict[int, Shard] = {}
        self.borrowed: dict[int, Shard] = {}
        self.newest: dict[int, Shard] = {}
        """The shard that takes writes, by structure."""
        self.part = Counts()
        """Counts of its part of borrowed shards."""
        self.count = 0
        """Rows in all of its shards, of borrowed ones its part."""
        self.cells: Cells | None = None
        """Histogram of its messages over time; None: unknown."""
        self.watch: Watch | None = None
        """Changes during a job that counts its rows."""
        self.passed_s: int | None = None
        """Server running time, s, at which the horizon had passed the slice: set once, then it is sealed."""

    @property
    def home(self) -> Home:
        return Home(self.start_ms, self.generation)

    @property
    def live(self) -> int:
        return self.part.live + sum(shard.live for shard in self.shards.values())

    @property
    def bytes(self) -> int:
        return self.part.bytes + sum(shard.bytes for shard in self.shards.values())

    @property
    def highest(self) -> int:
        """The highest number of its shards; -1: it has none."""
        return max(max(self.shards, default=-1), max(self.borrowed, default=-1))

    def open_shard(self, structure: int) -> Shard:
        """Open the next shard of a structure. Raises TooManyShards."""
        number = 1 + self.highest
        if number >= SHARDS_MAX:
            raise TooManyShards(self.start_ms)
        shard = Shard(self.home, number, structure)
        self.adopt(shard)
        return shard

    def adopt(self, shard: Shard) -> None:
        """Add an own shard; a structure's newest one takes writes."""
        self.shards[shard.number] = shard
        self.count += shard.count
        newest = self.newest.get(shard.structure)
        if newest is None or newest.number < shard.number:
            self.newest[shard.structure] = shard

    def borrow(self, shards: Iterable[Shard], part: Counts) -> None:
        """Borrow these shards of other slices, within its own span. `part`: counts of what it holds of
        them."""
        self.borrowed = {shard.number: shard for shard in shards}
        self.count += part.rows - self.part.rows
        self.part = part

    def seal(self) -> None:
        """The next message of any structure opens a shard."""
        self.newest.clear()

    def retire(self, shard: Shard, place: Position) -> bool:
        """Count a row of `shard` as a stub. True if the shard is its own, False if it is borrowed."""
        is_own = self.shards.get(shard.number) is shard
        if is_own:
            shard.retire()
        else:
            # A job may have counted it wrong: that must not keep a group from being written.
            self.part = self.part._replace(live=max(0, self.part.live - 1))
        if self.cells is not None:
            self.cells.retire(place)
        if self.watch is not None:
            self.watch.retired(shard.number, at_of(place))
        return is_own

    def shard(self, number: int) -> Shard | None:
        return self.shards.get(number) or self.borrowed.get(number)

    def readable(self) -> Iterator[Shard]:
        """Every shard that may have rows of this slice."""
        yield from self.shards.values()
        yield from self.borrowed.values()

    def within(self, start: Position, end: Position) -> tuple[Position, Position]:
        """The part of [start, end) that lies in the slice, as bounds; if low >= high there is none."""
        return max(start, before(self.start_ms)), min(end, before(self.end_ms))

    def over(self, start: Position, end: Position, structures: set[int] | None = None) -> list[Shard]:
        """The shards that may have rows of [start, end) in this slice; with `structures` only of those.

        A borrowed shard may have rows on both sides of the slice and none in it.
        """
        low, high = self.within(start, end)
        return [
            shard
            for shard in self.readable()
            if shard.touches(low, high) and (structures is None or shard.structure in structures)
        ]


class Watch:
    """Changes of a slice while a job counts its rows, to bring the job's counts up to date.

    The job counts the shards that the slice had when it was *sealed*; new messages go to later shards, which
    the server counts itself. Rows that become stubs are noted by their instants, in order. A checkpoint holds
    a prefix of all that was ever written, so the live rows that the job misses are the first of those:

        sealed: 100 live    stubs at 5, 9, 7    the job has counted 98 live: the checkpoint has those at 5, 9
                                                the cut is at 8: the piece before it has one less, for 7
    """

    __slots__ = ("early", "last", "late", "live", "most", "rows")

    def __init__(self, piece: Slice) -> None:
        """Begin: the slice is sealed."""
        piece.seal()
        self.most = WATCH_MAX
        """Stubs that are noted."""
        self.rows, self.live, self.last = piece.count, piece.live, piece.highest
        """What the job must count, and the highest number of the shards that it counts."""
        self.early, self.late = array("q"), array("q")
        """The instants of stubs, ms: in those shards, and in later ones."""

    @property
    def noted(self) -> int:
        return len(self.early) + len(self.late)

    def retired(self, number: int, at_ms: int) -> None:
        if self.noted <= self.most:
            (self.early if number <= self.last else self.late).append(at_ms)

    @property
    def is_overrun(self) -> bool:
        return self.noted > self.most

    def lost(self, cuts: Sequence[int], missed: int) -> list[int]:
        """Live rows that each piece has lost since it was counted.

        The job has counted without the first `missed` stubs, which its checkpoint has. Stubs in later shards
        all count: the server has counted those rows as live.
        """
        pieces = [0] * (len(cuts) + 1)
        for at_ms in self.early[missed:] + self.late:
            pieces[bisect_right(cuts, at_ms)] += 1
        return pieces


class Directory:
    """Every slice of the timeline by start. Look-ups O(log slices)."""

    def __init__(self, *, max_slices: int) -> None:
        self.max_slices = max_slices
        self.floor = START
        """The retention floor: everything before it has been dropped."""
        self.epoch = 0
        """Number of times it was read again after a failure: look-ups of an older epoch may be stale."""
        self._by_start: SortedDict[int, Slice] = SortedDict()
        self._borrowers: Counter[bytes] = Counter()
        """How many slices borrow a shard, by its prefix."""

    def __len__(self) -> int:
        return len(self._by_start)

    def __iter__(self) -> Iterator[Slice]:
        return iter(self._by_start.values())

    def get(self, start_ms: int) -> Slice | None:
        found: Slice | None = self._by_start.get(start_ms)
        return found

    def find(self, at_ms: int) -> Slice | None:
        """The slice that covers `at_ms`."""
        index = self._by_start.bisect_right(at_ms) - 1
        if index < 0:
            return None
        found: Slice = self._by_start.peekitem(index)[1]
        return found if at_ms < found.end_ms else None

    def over(self, start: Position, end: Position) -> Iterator[Slice]:
        """The slices that hold positions in [start, end), in order."""
        first = self._by_start.bisect_right(at_of(start)) - 1
        lowest = self._by_start.keys()[first] if first >= 0 else None
        for key in list(self._by_start.irange(lowest, at_of(end))):
            piece: Slice = self._by_start[key]
            if before(piece.end_ms) > start and before(piece.start_ms) < end:
                yield piece

    def first_over(self, start: Position, end: Position) -> Slice | None:
        """The first of `over`, for callers that continue behind it when the directory may have changed."""
        for at in range(max(0, self._by_start.bisect_right(at_of(start)) - 1), len(self._by_start)):
            piece: Slice = self._by_start.peekitem(at)[1]
            if before(piece.start_ms) >= end:
                return None
            if before(piece.end_ms) > start:
                return piece
        return None

    def adopt(self, piece: Slice) -> None:
        """Enter a slice that is known to overlap none (recovery, split), with all that it borrows."""
        self._by_start[piece.start_ms] = piece
        self._borrowers.update(shard.prefix for shard in piece.borrowed.values())

    def drop(self, piece: Slice) -> None:
        del self._by_start[piece.start_ms]
        for shard in piece.borrowed.values():
            self._borrowers[shard.prefix] -= 1
            if not self._borrowers[shard.prefix]:
                del self._borrowers[shard.prefix]

    def is_borrowed(self, shard: Shard) -> bool:
        """Whether a slice reads this shard of another one. O(1), however many do."""
        return shard.prefix in self._borrowers

    def replace(self, other: "Directory") -> None:
        """Take over the content of `other`, in place.

        Cells of unchanged slices are kept: rows only grow in number, and live ones shrink.
        """
        for piece in other:
            mine, stored = self.get(piece.start_ms), piece.cells
            if mine is None or mine.cells is None or mine.home != piece.home:
                continue
            if (mine.count, mine.live) != (piece.count, piece.live):
                continue
            if mine.cells.is_exact or stored is None:
                piece.cells = mine.cells
                piece.cells.saved = (-1, 0) if stored is None else (piece.count, piece.cells.retired)
        self._by_start, self._borrowers = other._by_start, other._borrowers
        self.epoch += 1

    def passed(self, horizon: Position) -> list[Slice]:
        """Slices that the horizon has passed since this was last asked, oldest first."""
        ended = takewhile(lambda piece: before(piece.end_ms) <= horizon, self)
        return [piece for piece in ended if piece.passed_s is None]

    def expired(self, running_s: int, retention_s: int, needed: Position = END) -> list[Slice]:
        """Slices whose retention is over at `running_s` seconds of running time, oldest first and without
        gaps, so that one position, the floor, bounds what is gone. It begins when the horizon has passed a
        slice's end.

        `needed`: messages from there on are still needed.
        """
        plan = []
        for piece in self:
            is_kept = piece.passed_s is None or running_s - piece.passed_s < retention_s
            if is_kept or before(piece.end_ms) > needed:
                break
            plan.append(piece)
        return plan

    def open(self, at_ms: int, clock_ms: int) -> Slice:
        """Open the slice for `at_ms`, which no slice covers. Raises TooManySlices at the bound."""
        if len(self._by_start) >= self.max_slices:
            raise TooManySlices(self.max_slices)
        low, high = self._gap(at_ms)
        start_ms, end_ms = _span(at_ms, at_ms - clock_ms, low, high)
        piece = Slice(start_ms, end_ms, 0)
        if len(self._by_start) < CELLED_MAX:
            piece.cells = Cells(start_ms, end_ms)
        self._by_start[start_ms] = piece
        return piece

    def _gap(self, at_ms: int) -> tuple[int, int]:
        """The free span round `at_ms`."""
        index = self._by_start.bisect_right(at_ms)
        low = self._by_start.peekitem(index - 1)[1].end_ms if index else 0
        high = self._by_start.peekitem(index)[0] if index < len(self._by_start) else 1 << 48
        return low, high

    def check(self) -> None:
        """The directory's invariants, for tests and verify. Raises SlicesError."""
        last = 0
        borrowed = Counter([shard.prefix for piece in self for shard in piece.borrowed.values()])
        if borrowed != self._borrowers:
            raise SlicesError("the shards that are borrowed are not those that the slices borrow")
        for start_ms, piece in self._by_start.items():
            if not last <= start_ms == piece.start_ms < piece.end_ms:
                raise SlicesError(f"the slice at {start_ms} ends before it, or overlaps the one before")
            last = piece.end_ms


def _span(at_ms: int, distance_ms: int, low: int, high: int) -> tuple[int, int]:
    """The widest aligned span for a distance that stays within [low, high).

    What a split or an expiry left free may be narrower than any width: then the gap itself.
    """
    widest = next(width for reach, width in WIDTHS if distance_ms <= reach)
    for width in sorted((w for _, w in WIDTHS if w <= widest), reverse=True):
        start = at_ms - at_ms % width
        if low <= start and start + width <= high:
            return start, start + width
    start = at_ms - at_ms % NARROWEST_MS
    return max(low, start), min(high, start + NARROWEST_MS)
