"""`spark.read.format("fasti").load(DIR)`: the timeline as rows.

DIR is a checkpoint, a backup, or the data of a stopped server.

    register(session)
    rows = session.read.format("fasti").option("topic", "orders/#").option("state", "pending").load(DIR)
    rows.groupBy("topic").count()

Each message is a row in its current state; stubs of moves are not shown. A partition has several small slices
or some shards of a large one, and reads them one after the other; a batch of rows goes to Spark as Arrow.
With options (pushdown.py) only matching slices, shards and ranges of them are read, and only matching rows
are sent.

`register(session, pushdown=True)` does the same for `where`. It is not the default because Spark 4.3 keeps
the last pushed filters with the *relation*, not with the scan: after `t.where(…)`, a plain `t.count()` counts
only what that `where` accepted, and two scans of `t` in one query both use the later filters. With
`pushdown=True` each `load` may be used for one filtered scan only. tests/spark/test_table.py shows both.

Messages in the table `held` (the clock was set back) are pending; they have no slice and no shard yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from shards.read import Row
from shards.record import due_at, due_of, is_moved, is_stub, topic_of
from shards.state import CANCELLED, PENDING, Journal
from timeline.position import AT_MAX, Position, before
from timeline.slices import Slice

from .columns import ARROW, batches, record_batch
from .pushdown import Predicate, Range, narrowed, predicate_of
from .snapshot import Snapshot, opened_snapshot
from .tasks import grouped

NAME = "fasti"
BATCH_ROWS = 8_192
BATCH_BYTES = 8 << 20
PARTITION_ROWS = 250_000
HELD = -1
"""In place of a slice's start: the table `held`."""


def register(session: SparkSession, *, pushdown: bool = False) -> None:
    """Register the format in a session. `pushdown`: also for `where`; see above for its limits."""
    if pushdown:
        session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(PushingSource if pushdown else FastiSource)


class FastiSource(DataSource):
    """Options: `path`, a directory or file:// URI; `node`, the server's node number (0); and those of
    `predicate_of`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return from_arrow_schema(ARROW)

    def reader(self, schema: StructType) -> "FastiReader":  # noqa: ARG002
        return FastiReader(*self.read_options())

    def read_options(self) -> tuple[str, int, Predicate]:
        path = self.options.get("path")
        if not path:
            raise ValueError('the directory is missing: spark.read.format("fasti").load(DIR)')
        return path, int(self.options.get("node", "0")), predicate_of(self.options)


class PushingSource(FastiSource):
    """The source with pushed-down filters of `where`."""

    def reader(self, schema: StructType) -> "PushingReader":  # noqa: ARG002
        return PushingReader(*self.read_options())


@dataclass(frozen=True, slots=True)
class Run:
    """Some shards of a slice."""

    start_ms: int
    shards: tuple[int, ...]


class Part(InputPartition):
    """The work of one task."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(None)
        self.runs = tuple(runs)


class FastiReader(DataSourceReader):
    """Plans partitions on the driver, reads them in tasks."""

    def __init__(self, path: str, node: int, predicate: Predicate) -> None:
        self._path = path
        self._node = node
        self._predicate = predicate

    def partitions(self) -> Sequence[Part]:
        with opened_snapshot(self._path) as snapshot:
            return parts(snapshot, self._predicate)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        with opened_snapshot(self._path) as snapshot:
            yield from read_part(snapshot, partition, self._predicate, self._node)


class PushingReader(FastiReader):
    """Spark checks every row again: here its filters only reduce reading."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        self._predicate = narrowed(filters, self._predicate)
        yield from filters


def parts(snapshot: Snapshot, predicate: Predicate) -> list[Part]:
    """Partitions of about `PARTITION_ROWS` rows each; one empty part if there is nothing to read."""
    groups = grouped(list(_runs(snapshot, predicate)), lambda one: one[1], PARTITION_ROWS)
    return [Part([run for run, _ in group]) for group in groups or [[]]]


def _runs(snapshot: Snapshot, predicate: Predicate) -> Iterator[tuple[Run, int]]:
    """(run, its rows) of everything that the filters accept."""
    low, high = _stretch(snapshot, predicate)
    filters = predicate.topic_filters()
    structures = None if filters is None else snapshot.reader.structures.overlapping(filters)
    for piece in snapshot.reader.directory.over(low, high):
        if not predicate.slice.holds(piece.start_ms):
            continue
        shards = [(shard.number, shard.count) for shard in piece.over(low, high, structures)]
        for group in grouped(shards, lambda one: one[1], PARTITION_ROWS):
            numbers, counts = zip(*group, strict=True)
            yield Run(piece.start_ms, numbers), sum(counts)
    is_placed = predicate.at != Range() or predicate.slice != Range()
    if not is_placed and (predicate.states is None or predicate.states & {PENDING, CANCELLED}):
        yield Run(HELD, ()), 0


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


def read_part(snapshot: Snapshot, part: Part, predicate: Predicate, node: int) -> Iterator[pa.RecordBatch]:
    """The batches of one task."""
    for run in part.runs:
        yield from _read(snapshot, run, predicate, node)


def _read(snapshot: Snapshot, run: Run, predicate: Predicate, node: int) -> Iterator[pa.RecordBatch]:
    if run.start_ms == HELD:
        yield from _sent(snapshot, snapshot.reader.held(), None, predicate, node)
        return
    piece = snapshot.reader.directory.get(run.start_ms)
    assert piece is not None
    low, high = _stretch(snapshot, predicate)
    for number in run.shards:
        shard = piece.shard(number)
        assert shard is not None
        yield from _sent(snapshot, snapshot.reader.run(piece, shard, low, high), piece, predicate, node)


def _sent(
    snapshot: Snapshot, rows: Iterator[Row], piece: Slice | None, predicate: Predicate, node: int
) -> Iterator[pa.RecordBatch]:
    journal = Journal(snapshot.store)
    for batch in batches(_kept(rows, predicate), BATCH_ROWS, BATCH_BYTES):
        made = record_batch(batch, snapshot, journal, node, piece)
        if predicate.states is not None:
            made = made.filter(pc.is_in(made["state"], pa.array(sorted(predicate.states))))
        yield made


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
        elif only_stubs or is_moved(value):
            continue
        if predicate.has_topic and not predicate.wants_topic(topic_of(value).decode()):
            continue
        if due is not None and not due.holds(due_at(row[0], due_of(value))):
            continue
        yield row
