"""Writes a commit of the archive: the messages of a closed span of positions as Parquet files by day.

    date=2026-12-01/0000000123-1f0c9a2b-0.parquet               number of the commit, try, index: the messages
    _deliveries/..., _ends/...                                  ends of deliveries, and their counts

A try is the first eight digits of its job's id, so no try meets the files of another one. Files of a try that
ended early belong to no manifest; they go when a commit of that number is published (publish.py).

Rows are in position order. Stubs of moves are not archived: the message is where it was moved to. Nor are
retries: the message was written before. Cancelled messages are archived without payload. What cannot be read
is left out, and the commit names it.

Memory: one row group. A quarter of an hour ends a commit that has ROWS_MAX rows or BYTES_MAX bytes. The next
one goes on there.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import structs

from shards.archives import (
    AGAIN,
    APPEND,
    DAMAGED_MAX,
    DELIVERIES,
    ENDS,
    MESSAGES,
    QUARTER_MS,
    SPANS_MAX,
    ArchivedFile,
    DamagedRange,
    Report,
    Span,
    date_of,
    day_of,
    file_name,
    prefix_of,
)
from shards.errors import Corrupt
from shards.read import Row
from shards.state import Journal
from shards.store import Store
from timeline.position import Position, at_of, before
from timeline.slices import DAY_MS, Slice

from . import columns, deliveries
from .job import Job
from .lease import Lease
from .parquet import GROUP_BYTES, GROUP_ROWS, Table, row_groups, write_file
from .snapshot import Snapshot, opened_snapshot
from .storage import Storage, storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_MAX, NO_END = 1_000_000, 1 << 62
"""Rows after which a commit ends at the next quarter of an hour."""
BYTES_MAX = 4 << 30
"""Bytes, in memory, after which it does: of each task of a backfill, as that is one file."""
TASKS_MAX = 100
LEFT_S, CLEARED = 3_600.0, 96
"""Age of an unfinished file that nobody writes to any more, and after how many commits these go: they are
looked for everywhere."""

Dated = Iterator[tuple[int, pa.Table]]
"""(day since the epoch, rows of it)."""
Gap = tuple[Position, Position]
"""Positions [start, end) that could not be read."""


def archive(job: Job, storage: Storage, lease: Lease, session: "SparkSession | None" = None) -> Report:
    """Write the files of a job's commit. Returns what to have recorded. Raises StorageFailed, SparkError."""
    if job.number % CLEARED == 1:
        storage.clear_unfinished(time.time() - LEFT_S)
    if session is not None:
        return _in_tasks(session, job, storage)
    with opened_snapshot(job.checkpoint) as snapshot:
        writer = Writer(snapshot, storage, job, job.from_ms, job.to_ms)
        lease.follow(lambda: writer.progress)
        return writer.again(job.again[0].paths) if job.again else writer.append()


def is_backfill(job: Job, master: str | None) -> bool:
    """Whether Spark is worth its start: more than ROWS_MAX rows, of more than an hour."""
    is_long = job.to_ms - job.from_ms > 4 * QUARTER_MS and not job.again
    return bool(master and is_long and rows_within(job) > ROWS_MAX and find_spec("pyspark"))


def rows_within(job: Job) -> int:
    """About as many rows are to be archived: a slice's lie anywhere in it."""
    return sum(
        piece.count
        * max(0, min(piece.end_ms, job.to_ms) - max(piece.start_ms, job.from_ms))
        // (piece.end_ms - piece.start_ms)
        for piece in job.slices
    )


def _in_tasks(session: "SparkSession", job: Job, storage: Storage) -> Report:
    """The same by Spark, a part of the span in each task."""
    from .tasks import TASK_ROWS, each

    first_ms = job.from_ms - job.from_ms % QUARTER_MS
    quarters = (job.to_ms - first_ms) // QUARTER_MS
    count = min(quarters, TASKS_MAX, rows_within(job) // TASK_ROWS + 1)
    cuts = [max(job.from_ms, first_ms + quarters * n // count * QUARTER_MS) for n in range(count + 1)]
    given = structs.replace(job, token="", unpublished=(), manifests=())

    def work(index: int) -> dict[str, Any]:
        with opened_snapshot(given.checkpoint) as snapshot:
            there = storage_at(given.archive or "")
            writer = Writer(snapshot, there, given, cuts[index], cuts[index + 1], index)
            report: dict[str, Any] = msgspec.to_builtins(writer.append(NO_END, SPANS_MAX // count))
            return report

    parts = [msgspec.convert(one, Report) for one in each(session, range(count), work)]
    stops = [n for n, one in enumerate(parts) if one.end_ms < cuts[n + 1]]
    used = stops[0] + 1 if stops else count
    for file in (file for one in parts[used:] for file in one.files):
        storage.delete(file.path)
    found = parts[:used]
    return Report(
        APPEND,
        job.from_ms,
        found[-1].end_ms,
        [span for one in found for span in one.spans],
        [file for one in found for file in one.files],
    )


class Writer:
    """Writes [start, end) of a checkpoint into files of a job's commit. `end_ms`: where it has stopped."""

    def __init__(
        self, snapshot: Snapshot, storage: Storage, job: Job, start_ms: int, end_ms: int, index: int = 0
    ) -> None:
        """`index`: tells the files of this writer from those of others in the same commit."""
        self._snapshot = snapshot
        self._storage = storage
        self._job = job
        self._index = index
        self.start_ms = self.done_ms = start_ms
        self.end_ms = end_ms
        self.rows = self.bytes = 0
        self.spans: list[Span] = []
        self._room = DAMAGED_MAX
        """For damaged ranges of all spans: a span has one at least."""

    @property
    def progress(self) -> tuple[int, int]:
        """Quarters of an hour that are written, and all."""
        return (self.done_ms - self.start_ms) // QUARTER_MS, (self.end_ms - self.start_ms) // QUARTER_MS

    def append(self, rows_max: int = ROWS_MAX, spans_max: int = SPANS_MAX // 2) -> Report:
        """All tables. Stops at the end of the quarter in which there are more than that."""
        files = [*self._files(MESSAGES, self._messages(rows_max, spans_max, BYTES_MAX))]
        files += self._files(DELIVERIES, self._ends(deliveries.deliveries))
        files += self._files(ENDS, self._ends(deliveries.ends))
        return Report(APPEND, self.start_ms, self.end_ms, self.spans, files)

    def again(self, paths: Iterable[str]) -> Report:
        """The messages of the days of these files, which are replaced."""
        replaced = [path for path in paths if path.startswith(prefix_of(MESSAGES))]
        days = {day_of(path) for path in replaced}
        messages = (one for one in self._messages() if date_of(one[0] * DAY_MS) in days)
        files = [*self._files(MESSAGES, messages)]
        return Report(AGAIN, self.start_ms, self.end_ms, self.spans, files, replaced)

    def _messages(self, rows_max: int = NO_END, spans_max: int = SPANS_MAX, bytes_max: int = NO_END) -> Dated:
        reader, journal, last = self._snapshot.reader, self._snapshot.journal(), self.start_ms // QUARTER_MS
        for piece in reader.directory.over(before(self.start_ms), before(self.end_ms)):
            start_ms, end_ms = max(piece.start_ms, self.start_ms), min(piece.end_ms, self.end_ms)
            rows, archived, lost = Counter[int](), Counter[int](), list[Gap]()
            for batch in columns.batches(
                reader.read(before(start_ms), before(end_ms)), GROUP_ROWS, GROUP_BYTES
            ):
                taken = 0
                for quarter, count in _by_quarter(batch):
                    is_full = self.rows >= rows_max or self.bytes >= bytes_max
                    if quarter > last and (is_full or len(self.spans) + len(rows) > spans_max):
                        self.end_ms = quarter * QUARTER_MS
                        break
                    last, taken = quarter, taken + count
                    rows[quarter] += count
                    self.rows += count
                self.done_ms = last * QUARTER_MS
                table, undecoded = self._table(batch[:taken], journal, piece)
                self.bytes += table.nbytes
                lost += undecoded
                quarters = table["at"].cast(pa.int64()).to_numpy() // QUARTER_MS
                archived.update(quarters.tolist())
                yield from _by_day(table, quarters // (DAY_MS // QUARTER_MS))
                if taken < len(batch):
                    break
            self._add_spans(piece, rows, archived, lost)
            if self.end_ms < end_ms:
                return

    def _table(self, rows: list[Row], journal: Journal, piece: Slice) -> tuple[pa.Table, list[Gap]]:
        """The rows without those that cannot be decoded, and where these are."""
        snapshot, node = self._snapshot, self._job.node
        try:
            return columns.table(rows, snapshot, journal, node, piece), []
        except Corrupt:
            good, bad = _decodable(rows)
            return columns.table(good, snapshot, journal, node, piece), bad

    def _add_spans(self, piece: Slice, rows: Counter[int], archived: Counter[int], lost: list[Gap]) -> None:
        """What the slice has in each quarter of an hour."""
        low_ms, high_ms = max(piece.start_ms, self.start_ms), min(piece.end_ms, self.end_ms)
        gaps: dict[int, list[Gap]] = defaultdict(list)
        for start, end in chain(lost, self._unreadable(piece, before(low_ms), before(high_ms))):
            for quarter in range(at_of(start) // QUARTER_MS, at_of(Position(end - 1)) // QUARTER_MS + 1):
                first, behind = before(quarter * QUARTER_MS), before((quarter + 1) * QUARTER_MS)
                gaps[quarter].append((max(start, first), min(end, behind)))
        for quarter in sorted({*rows, *gaps}):
            start_ms = max(low_ms, quarter * QUARTER_MS)
            end_ms = min(high_ms, (quarter + 1) * QUARTER_MS)
            damaged = _damaged(gaps[quarter], max(1, self._room))
            self._room -= len(damaged)
            self.spans.append(Span(*piece.home, start_ms, end_ms, rows[quarter], archived[quarter], damaged))

    def _unreadable(self, piece: Slice, low: Position, high: Position) -> Iterator[Gap]:
        """What was skipped there."""
        for shard in piece.readable():
            for corrupt in self._snapshot.reader.unreadable.of(shard.prefix):
                start, end = max(corrupt.first, low), min(Position(corrupt.last + 1), high)
                if start < end:
                    yield start, end

    def _ends(self, read: Callable[[Store, int, int], Iterator[pa.Table]]) -> Dated:
        for day in range(self.start_ms // DAY_MS, (self.end_ms - 1) // DAY_MS + 1):
            low_ms, high_ms = max(day * DAY_MS, self.start_ms), min((day + 1) * DAY_MS, self.end_ms)
            for table in read(self._snapshot.store, low_ms, high_ms):
                yield day, table

    def _files(self, name: Table, tables: Dated) -> Iterator[ArchivedFile]:
        """Write a file a day."""
        for day, same in groupby(tables, key=itemgetter(0)):
            path = file_name(name, date_of(day * DAY_MS), self._job.number, self._job.id, self._index)
            groups = row_groups(table for _, table in same)
            if (file := write_file(self._storage, path, name, groups)) is not None:
                yield file


def _by_quarter(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """(quarter of an hour since the epoch, number of its rows)."""
    first = 0
    while first < len(rows):
        quarter = at_of(rows[first][0]) // QUARTER_MS
        end = bisect_left(rows, before((quarter + 1) * QUARTER_MS), first, key=itemgetter(0))
        yield quarter, end - first
        first = end


def _by_day(table: pa.Table, days: npt.NDArray[np.int64]) -> Dated:
    """The rows of each day. `days`: of each row."""
    cuts = np.flatnonzero(np.diff(days)) + 1
    for first, end in pairwise([0, *cuts.tolist(), len(days)]):
        if first < end:
            yield int(days[first]), table.slice(first, end - first)


def _decodable(rows: list[Row]) -> tuple[list[Row], list[Gap]]:
    """The rows that can be decoded, and where the others are."""
    good, bad = list[Row](), list[Gap]()
    for row in rows:
        try:
            columns.check(row)
        except Corrupt:
            bad.append((row[0], Position(row[0] + 1)))
        else:
            good.append(row)
    return good, bad


def _damaged(gaps: list[Gap], most: int) -> list[DamagedRange]:
    """At most so many; beyond these one reaches from the first to the last of the rest."""
    gaps = sorted(gaps)
    if len(gaps) > most:
        rest = gaps[most - 1 :]
        gaps[most - 1 :] = [(rest[0][0], max(end for _, end in rest))]
    return [DamagedRange(f"{start:024x}", f"{end:024x}") for start, end in gaps]
