"""`spark.read.format("fasti").load(DIR)`: the timeline as rows.

DIR is a checkpoint, a backup, or the data of a stopped server.

    register(session)
    rows = session.read.format("fasti").option("topic", "orders/#").option("state", "pending").load(DIR)
    rows.groupBy("topic").count()

Each message is a row in its current state; stubs of moves are not shown. With `option("archive", URL)` the
archive's messages are in the same table, each once (view.py); without DIR there is only the archive. A
partition has several small slices or some shards of a large one, or files of the archive, and reads them one
after the other; a batch of rows goes to Spark as Arrow. With options (pushdown.py) only matching slices,
shards and ranges of them, files and row groups are read, and only matching rows and columns are sent. The
columns `slice` and `shard` alone come from the directory's counts.

The archive's other tables, `option("table", "deliveries")` and "ends", have all ends of deliveries; of one
place and root the one with the highest `number` is the last.

`register(session, pushdown=True)` does the same for `where`, and `explain("formatted")` shows what it pushed.
It is not the default because Spark 4.3 keeps the last pushed filters with the *relation*, not with the scan:
after `t.where(…)`, a plain `t.count()` counts only what that `where` accepted, and two scans of `t` in one
query both use the later filters. With `pushdown=True` each `load` may be used for one filtered scan only.
tests/spark/test_table.py shows both. Spark has no place in a plan for options.

Messages in the table `held` (the clock was set back) are pending; they have no slice and no shard yet.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter, itemgetter

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from shards.archives import MESSAGES
from shards.read import Row
from shards.record import due_at, due_of, is_moved, is_stub, topic_of
from shards.state import CANCELLED, PENDING, Journal
from timeline.position import AT_MAX, END, START, Position, at_of, before
from timeline.slices import Shard, Slice

from .archived import BATCH_ROWS, Piece, archive_at, pieces_of, read_piece, table_schema
from .columns import batches, record_batch
from .manifests import Archive, over
from .pushdown import ANY_ROW, Predicate, Range, Wanted, accepted, narrowed, wanted_of
from .snapshot import Snapshot, opened_snapshot
from .storage import storage_at
from .stream import ArchiveStream
from .tasks import grouped
from .view import Beyond, View, read_archived, view_of
from .worker import in_a_line

NAME = "fasti"
BATCH_BYTES = 8 << 20
PARTITION_ROWS = 250_000
BEYOND_PARTITION_ROWS = 1_000_000
"""Of a partition that has to know what the archive has beyond the horizon."""
LOOKED_UP_ROWS = 50_000
"""With so many ids looked up, partitions of the archive are twice as large; with more, more."""
COUNTED = frozenset({"slice", "shard"})
"""Columns that the directory knows."""
HELD = -1
"""In place of a slice's start: the table `held`."""


@dataclass(frozen=True, slots=True)
class Run:
    """Some shards of a slice, at low <= position < high; or of a slice the rows of those addresses."""

    start_ms: int
    shards: tuple[int, ...] = ()
    low: Position = START
    high: Position = END
    rows: tuple[tuple[Position, int], ...] = ()


@dataclass(slots=True)
class Part(InputPartition):
    """The work of one task. `node`: the server's number."""

    node: int
    view: View
    runs: list[Run] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)


class FastiReader(DataSourceReader):
    """Plans partitions on the driver, reads them in tasks."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def partitions(self) -> Sequence[Part]:
        with in_a_line():
            return parts(self._wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        with in_a_line():
            yield from read_part(self._wanted, partition)


class PushingReader(FastiReader):
    """Takes from Spark the filters that it applies to the row; the rest Spark applies."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        if self._wanted.table == MESSAGES:
            self._wanted = replace(self._wanted, predicate=narrowed(filters, self._wanted.predicate))
            filters = [one for one in filters if not accepted(one)[1]]
        yield from filters


class FastiSource(DataSource):
    """Options: those of `wanted_of`."""

    made: type[FastiReader] = FastiReader

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        with in_a_line():
            wanted = wanted_of(self.options)
            return from_arrow_schema(table_schema(wanted.table, wanted.columns))

    def reader(self, schema: StructType) -> FastiReader:  # noqa: ARG002
        with in_a_line():
            return self.made(wanted_of(self.options))


class PushingSource(FastiSource):
    """The source with pushed-down filters of `where`."""

    made = PushingReader


def register(session: SparkSession, *, pushdown: bool = False) -> None:
    """Register the formats in a session. `pushdown`: also for `where`; see above for its limits."""
    if pushdown:
        session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(PushingSource if pushdown else FastiSource)
    session.dataSource.register(ArchiveStream)


def parts(wanted: Wanted) -> list[Part]:
    """Partitions of about `PARTITION_ROWS` rows each; one empty part if there is nothing to read."""
    storage = storage_at(wanted.archive) if wanted.archive else None
    archive = Archive(()) if storage is None else archive_at(storage)
    node = _node_of(wanted, archive)
    view, made = View(), []
    with opened_snapshot(wanted.path) if wanted.path else nullcontext() as snapshot:
        if storage is not None and wanted.table == MESSAGES:
            view = view_of(storage, archive, snapshot, node)
        if snapshot is not None:
            most = BEYOND_PARTITION_ROWS if view.beyond else PARTITION_ROWS
            runs = grouped(list(_runs(snapshot, archive, view, wanted.predicate)), itemgetter(1), most)
            mine = replace(view, last={}, kept=())
            made += [Part(node, mine, runs=[run for run, _ in group]) for group in runs]
    # Each partition takes along what was looked up: 60 bytes or more an id.
    most = PARTITION_ROWS * (1 + len(view.last) // LOOKED_UP_ROWS)
    for pieces in grouped(_pieces(archive, wanted), attrgetter("rows"), most):
        last = view.last if any(piece.has_withheld for piece in pieces) else {}
        made.append(Part(node, View(last=last), pieces=pieces))
    return made or [Part(node, view)]


def _node_of(wanted: Wanted, archive: Archive) -> int:
    """The server's number, which is in ids."""
    known = archive.commits[-1].node if archive.commits else wanted.node
    if wanted.node not in (None, known):
        raise ValueError(f"option node: {wanted.node} is not the number of the archive's server, {known}")
    return known or 0


def _pieces(archive: Archive, wanted: Wanted) -> list[Piece]:
    """The archive's files that may have wanted rows."""
    predicate = wanted.predicate
    is_passed = predicate.states is None or bool(predicate.states - {PENDING})
    files = archive.files(wanted.table) if is_passed else []
    low = max(predicate.due.low, predicate.at.low, predicate.slice.low)
    return pieces_of(over(files, low, predicate.at.high))


def _runs(
    snapshot: Snapshot, archive: Archive, view: View, predicate: Predicate
) -> Iterator[tuple[Run, int]]:
    """(run, its rows) of everything in the backup that the filters accept."""
    directory = snapshot.reader.directory
    filters = predicate.topic_filters()
    structures = None if filters is None else snapshot.reader.structures.overlapping(filters)
    low, high = _stretch(snapshot, predicate)
    after = Position(snapshot.cursor.horizon + 1)
    stretches = [(low, high)]
    if archive.covered:
        stretches = [*_not_in(archive.covered, low, min(high, after)), (max(low, after), high)]
    for start, end in stretches:
        for piece in directory.over(start, end) if start < end else ():
            if not predicate.slice.holds(piece.start_ms):
                continue
            shards = [(shard.number, shard.count) for shard in piece.over(start, end, structures)]
            for group in grouped(shards, itemgetter(1), PARTITION_ROWS):
                numbers, counts = zip(*group, strict=True)
                yield Run(piece.start_ms, numbers, start, end), sum(counts)
    kept = [(place, number) for place, number in view.kept if low <= place < high]
    for home, rows in groupby(kept, lambda row: directory.find(at_of(row[0]))):
        if home is not None and predicate.slice.holds(home.start_ms):
            found = tuple(rows)
            yield Run(home.start_ms, rows=found), len(found)
    is_placed = predicate.at != Range() or predicate.slice != Range()
    if not is_placed and (predicate.states is None or predicate.states & {PENDING, CANCELLED}):
        yield Run(HELD), 0


def _stretch(snapshot: Snapshot, predicate: Predicate) -> tuple[Position, Position]:
    """The range [low, high) of a wanted row's position."""
    within = predicate.at_range(snapshot.cursor.bound_ms)
    low = before(min(max(within.low, 0), AT_MAX))
    high = before(min(max(within.high, -1) + 1, AT_MAX))
    after = Position(snapshot.cursor.horizon + 1)
    if predicate.states is not None:
        if predicate.states <= {PENDING}:
            low = max(low, after)
        elif not predicate.states & {PENDING, CANCELLED}:
            high = min(high, after)
    return low, high


def _not_in(
    covered: Sequence[tuple[int, int]], low: Position, high: Position
) -> Iterator[tuple[Position, Position]]:
    """What is left of [low, high) without these ranges of ms."""
    for start, end in covered:
        if low < min(before(start), high):
            yield low, min(before(start), high)
        low = max(low, before(end))
    if low < high:
        yield low, high


def read_part(wanted: Wanted, part: Part) -> Iterator[pa.RecordBatch]:
    """The batches of one task."""
    beyond = None
    if wanted.archive:
        storage = storage_at(wanted.archive)
        for piece in part.pieces:
            if wanted.table == MESSAGES:
                yield from read_archived(storage, piece, wanted.columns, wanted.predicate, part.view)
            else:
                yield from read_piece(storage, piece, wanted.table, wanted.columns)
        if part.runs and part.view.beyond:
            beyond = Beyond(storage, part.view)
    if part.runs:
        with opened_snapshot(wanted.path) as snapshot:
            task = _Task(wanted, part, snapshot, beyond)
            for run in part.runs:
                yield from task.read(run)


class _Task:
    """Reads a backup."""

    def __init__(self, wanted: Wanted, part: Part, snapshot: Snapshot, beyond: Beyond | None) -> None:
        self._schema = table_schema(MESSAGES, wanted.columns)
        self._predicate = wanted.predicate
        self._node = part.node
        self._snapshot = snapshot
        self._journal = Journal(snapshot.store)
        self._beyond = beyond
        states = wanted.predicate.states
        any_place = replace(wanted.predicate, at=Range(), slice=Range(), states=None)
        is_plain = any_place == ANY_ROW and states in (None, {PENDING})
        self._may_count = is_plain and beyond is None and {*self._schema.names} <= COUNTED

    def read(self, run: Run) -> Iterator[pa.RecordBatch]:
        reader = self._snapshot.reader
        if run.start_ms == HELD:
            yield from self._sent(reader.held(), None)
            return
        piece = reader.directory.get(run.start_ms)
        assert piece is not None
        found = ((*address, reader.value_at(*address)) for address in run.rows)
        yield from self._sent(((at, number, value) for at, number, value in found if value), piece)
        for number in run.shards:
            shard = piece.shard(number)
            assert shard is not None
            if self._may_count and _is_counted(piece, shard, run):
                yield self._counted(piece, shard)
            else:
                yield from self._sent(reader.run(piece, shard, run.low, run.high), piece)

    def _counted(self, piece: Slice, shard: Shard) -> pa.RecordBatch:
        values = {"slice": piece.start_ms * 1_000, "shard": shard.number}
        columns = [pa.repeat(pa.scalar(values[one.name], one.type), shard.count) for one in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _sent(self, rows: Iterator[Row], piece: Slice | None) -> Iterator[pa.RecordBatch]:
        names, states, beyond = self._schema.names, self._predicate.states, self._beyond
        needed = dict.fromkeys([*names, *["state"] * (states is not None), *["id"] * (beyond is not None)])
        schema = table_schema(MESSAGES, list(needed))
        for some in batches(_kept(rows, self._predicate), BATCH_ROWS, BATCH_BYTES):
            made = record_batch(some, self._snapshot, self._journal, self._node, piece, schema)
            if states is not None:
                made = made.filter(pc.is_in(made["state"], pa.array(sorted(states))))
            yield (made if beyond is None else beyond.without(made)).select(names)


def _is_counted(piece: Slice, shard: Shard, run: Run) -> bool:
    """Whether the directory says how many messages a shard has in the run: it is whole and without stubs."""
    is_whole = run.low <= shard.first and shard.last < run.high
    return is_whole and shard.live == shard.count and piece.shards.get(shard.number) is shard


def _kept(rows: Iterator[Row], predicate: Predicate) -> Iterator[Row]:
    """Rows without stubs of moves, and without obviously unwanted ones."""
    no_stubs = predicate.states is not None and CANCELLED not in predicate.states
    only_stubs = predicate.states is not None and predicate.states <= {CANCELLED}
    due = predicate.due if predicate.due != Range() else None
    for row in rows:
        value = row[2]
        if is_stub(value):
            if no_stubs or is_moved(value):
                continue
        elif only_stubs:
            continue
        if predicate.has_topic and not predicate.wants_topic(topic_of(value).decode()):
            continue
        if due is not None and not due.holds(due_at(row[0], due_of(value))):
            continue
        yield row
