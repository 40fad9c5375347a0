"""Splits in the writer: cut a slice while the server continues.

A split is only a cut. In one batch the slice leaves the directory and its children enter. Each child borrows
the shards of the parent that reach into its span (borrow.py). From then on new messages go to shards of the
children. No row is ever copied: shard numbers are part of ids, so a copy could merge nothing.

    slice A(gen 0)  shards 0, 1      cut at t    A(gen 1) borrows 0, 1     B(gen 1, from t) borrows 0, 1
    put in B        B opens shard 2: its number is above all that it borrows, because an id carries it

The exact number of rows that each child borrows is stored with it, so all of them must be counted before. A
job counts them in a checkpoint, and the server adds what has changed since:

    begin    the slice is sealed: new messages go to *later* shards
    ...      the job counts the existing shards; the server notes new stubs (`Watch`)
    cut      the counts of the job, less the stubs that it has not seen, plus the rows of the later shards.
             A few rows are counted here; if there are many the slice is sealed again and they are counted
             outside of the writer first (`Tally`)

A refusal comes before anything is changed.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from timeline.cells import divided
from timeline.position import Position, at_of, before
from timeline.slices import WATCH_MAX, Counts, Home, Shard, Slice, Watch

from . import keys
from .borrow import abandon
from .commit import Commit
from .dedupe import Refused
from .jobs import SourceRow
from .store import Store, Table
from .unreadable import readable

GENERATION_MAX = 0xFFFF
PARTS_MAX = 1_000
FEW_ROWS = 5_000
FEW_BYTES = 4 << 20
"""Maximum bytes of rows counted in the writer, where every request waits: 800 rows of 250 KB took 56 ms."""
OVERRUN = f"more than {WATCH_MAX} messages were cancelled or moved during the job"
"""Why the watching job can no longer cut the slice."""


class Tally:
    """Counts the rows of a slice's later shards by child slice."""

    def __init__(self, piece: Slice, cuts: Sequence[int]) -> None:
        assert piece.watch is not None
        self.piece = piece
        self.cuts = cuts
        self.few = FEW_ROWS
        """Maximum rows that `take_few` counts."""
        self.rows = [0] * (len(cuts) + 1)
        self.bytes = [0] * (len(cuts) + 1)
        self.sealed: list[Shard] = []
        """Shards to count outside of the writer."""
        self._upto = piece.watch.last

    def left(self) -> list[Shard]:
        """Later shards that are not counted yet, by number."""
        return [shard for number, shard in self.piece.shards.items() if number > self._upto]

    def step(self, store: Store, step_rows: int) -> Iterator[None]:
        """Count the sealed shards, outside of the writer, `step_rows` rows in a step.

        Raises Refused if a row cannot be read.
        """
        for shard in self.sealed:
            before_it = sum(self.rows)
            for looked, (key, value) in enumerate(_rows_of(store, shard), 1):
                self._add(keys.place_of(key), value)
                if looked % step_rows == 0:
                    yield
            if sum(self.rows) - before_it != shard.count:
                raise Refused("wrong-state", f"not all messages of shard {shard.number} can be read")
            self._upto = shard.number

    def take_few(self, commit: Commit) -> bool:
        """Count the remaining rows, in the writer. False: too many, or some rows were not found."""
        shards = self.left()
        count = sum(shard.count for shard in shards)
        if count > self.few or sum(shard.bytes for shard in shards) > FEW_BYTES:
            return False
        rows, size, group = list(self.rows), list(self.bytes), commit.open_batch
        for shard in shards:
            for key, value in _rows_of(group.store, shard):
                self._add(keys.place_of(key), value)
        if shards:
            # Rows of the open group are in no table yet.
            numbers, piece = {shard.number for shard in shards}, self.piece
            for place, number, value in group.made.placed:
                if number in numbers and piece.start_ms <= at_of(place) < piece.end_ms:
                    self._add(place, value)
        if sum(self.rows) - sum(rows) == count:
            return True
        self.rows, self.bytes = rows, size
        return False

    def _add(self, place: Position, value: bytes) -> None:
        index = bisect_right(self.cuts, at_of(place))
        self.rows[index] += 1
        self.bytes[index] += len(value) + keys.MESSAGE_KEY_BYTES


def _rows_of(store: Store, shard: Shard) -> Iterator[tuple[bytes, bytes]]:
    return readable(store, Table.MESSAGES, *keys.under(shard.prefix))


def far_slice(commit: Commit, home: Home, nearest: Position) -> Slice:
    """The slice of this home, which must start behind `nearest`. Raises Refused if there is none."""
    piece = commit.directory.get(home.start_ms)
    if piece is None or piece.generation != home.generation:
        raise Refused("wrong-state", "the slice changed after the job was created")
    if before(piece.start_ms) <= nearest:
        raise Refused("too-near", "the slice is in memory or will be soon")
    return piece


def sources_of(piece: Slice) -> list[SourceRow]:
    """The shards that a job must read for a slice, by number."""
    return [
        SourceRow(s.home.start_ms, s.home.generation, s.number, s.structure, s.count, s.live)
        for s in sorted(piece.readable(), key=lambda shard: shard.number)
    ]


def begin(commit: Commit, home: Home, nearest: Position) -> tuple[Slice, list[SourceRow]]:
    """Seal and watch the slice. Returns it, and the shards that the job must count. Raises Refused."""
    piece = far_slice(commit, home, nearest)
    piece.watch = Watch(piece)
    return piece, sources_of(piece)


def cut(commit: Commit, tally: Tally, counted: Sequence[Counts], nearest: Position) -> list[Slice] | None:
    """Cut the slice with this group. Returns its children. Raises Refused.

    `counted`: the job's counts for each child. Returns None if too many messages have arrived since to count
    them here. Then the slice is sealed again, and the caller first counts the tally's `sealed` shards.
    """
    piece, cuts = tally.piece, tally.cuts
    if far_slice(commit, piece.home, nearest) is not piece:
        raise Refused("wrong-state", "the store failed while the job was counting")
    _check_cuts(commit, piece, cuts)
    missed = _missed(piece, counted)
    if not tally.take_few(commit):
        tally.sealed = tally.left()
        piece.seal()
        return None
    children = [
        Slice(start, end, piece.generation + 1)
        for start, end in pairwise([piece.start_ms, *cuts, piece.end_ms])
    ]
    parts = _parts(tally, counted, missed)
    cells = divided(piece.cells, cuts, [part.live for part in parts]) if piece.cells is not None else None
    for child, own in zip(children, cells or (), strict=False):
        child.cells = own
    for child, part in zip(children, parts, strict=True):
        low, high = before(child.start_ms), before(child.end_ms)
        child.borrow([shard for shard in piece.readable() if shard.touches(low, high)], part)
    commit.open_batch.replaced(piece, children)
    for shard in piece.readable():
        if not commit.directory.is_borrowed(shard):
            abandon(commit, shard)
    return children


def _parts(tally: Tally, counted: Sequence[Counts], missed: int) -> list[Counts]:
    """Current counts of each child. Raises Refused."""
    watch = tally.piece.watch
    assert watch is not None
    lost = watch.lost(tally.cuts, missed)
    parts = [
        Counts(known.rows + rows, known.live + rows - less, known.bytes + size)
        for known, rows, size, less in zip(counted, tally.rows, tally.bytes, lost, strict=True)
    ]
    for part, known in zip(parts, counted, strict=True):
        if part.live < 0:
            raise Refused("bad-manifest", f"a piece with {known.live} live rows has lost more than those")
    return parts


def _check_cuts(commit: Commit, piece: Slice, cuts: Sequence[int]) -> None:
    if not cuts or any(low >= high for low, high in pairwise([piece.start_ms, *cuts, piece.end_ms])):
        raise Refused("cuts", "must rise, lie inside the slice, and be at least one")
    directory = commit.directory
    if len(cuts) >= PARTS_MAX or len(directory) + len(cuts) > directory.max_slices:
        raise Refused("cuts", f"would make more slices than there may be, {directory.max_slices}")
    if piece.generation == GENERATION_MAX:
        raise Refused("cuts", f"are too many: a slice and what came of it can be cut {GENERATION_MAX} times")


def _missed(piece: Slice, counted: Sequence[Counts]) -> int:
    """How many of the noted stubs the job has seen. Raises Refused if its counts do not fit the slice."""
    watch = piece.watch
    assert watch is not None, "the slice was watched since the job began"
    if watch.is_overrun:
        raise Refused("wrong-state", OVERRUN)
    rows, live = sum(one.rows for one in counted), sum(one.live for one in counted)
    if rows != watch.rows:
        raise Refused("bad-manifest", f"{rows} rows in all pieces, the slice had {watch.rows}")
    low = watch.live - len(watch.early)
    if not low <= live <= watch.live:
        raise Refused("bad-manifest", f"{live} live rows in all pieces, the slice had {low} to {watch.live}")
    for one in counted:
        if not 0 <= one.live <= one.rows or one.bytes < one.rows * keys.MESSAGE_KEY_BYTES:
            raise Refused("bad-manifest", f"a piece with {one.rows} rows, {one.live} live, {one.bytes} bytes")
    return watch.live - live
