"""`spark.readStream.format("fasti.archive").load(URL)`: what an archive gets, commit by commit.

    orders = session.readStream.format("fasti.archive").option("columns", "id,topic,at").load("s3://bucket/fasti")
    orders.writeStream.option("checkpointLocation", DIR).toTable("orders")

An offset is the number of a commit. Each append covers the positions from where the one before it ended, so
the rows after offset 3 up to offset 5 are those at the positions of the appends 4 and 5, in whatever files
they lie now:

    4 append [10:00, 10:15)     5 append [10:15, 11:00)     6 compact: the day in one file
    (3, 5]                      rows of that file at [10:00, 11:00)

So a row comes exactly once over restarts (Spark keeps the offsets), and a compaction, or files that were
written again, change nothing. Archives of before have no numbers, and are not in the stream. A message that
was withheld comes again, later, under its id; a compaction may have left out the first of the two.

Options: `path`, `table`, `columns`; `rows`: about so many in a micro-batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .archived import PIECE_ROWS, Piece, archive_at, between, pieces_of, read_piece, table_schema
from .errors import SparkError
from .manifests import Archive, over
from .parquet import TIMES
from .pushdown import Wanted, wanted_of
from .storage import storage_at
from .tasks import grouped
from .worker import in_a_line

NAME = "fasti.archive"
BATCH_ROWS = 5_000_000
OPTIONS = ("path", "table", "columns", "rows")


class ArchiveStream(DataSource):
    """Options: see above."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        with in_a_line():
            wanted, _ = stream_of(self.options)
            return from_arrow_schema(table_schema(wanted.table, wanted.columns))

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: ARG002, N802
        with in_a_line():
            return StreamReader(*stream_of(self.options))


def stream_of(options: Mapping[str, str]) -> tuple[Wanted, int]:
    """(what to read, rows of a micro-batch). Raises ValueError naming the option."""
    for name in sorted(options.keys() - {*OPTIONS}):
        raise ValueError(f"option {name}: is not known; there are {', '.join(OPTIONS)}")
    if not options.get("path"):
        raise ValueError('option path: is missing: the archive, readStream.format("fasti.archive").load(URL)')
    given = {name: options[name] for name in ("table", "columns") if name in options}
    wanted = wanted_of({**given, "archive": options["path"]})
    rows = options.get("rows", str(BATCH_ROWS))
    if not rows.isdecimal() or not int(rows):
        raise ValueError(f"option rows: {rows!r} is not a number above 0")
    return wanted, int(rows)


@dataclass(slots=True)
class Part(InputPartition):
    """The work of one task: the rows at low <= time < high, ms, of some files."""

    low: int
    high: int
    pieces: list[Piece]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, reads them in tasks."""

    def __init__(self, wanted: Wanted, rows: int) -> None:
        self._wanted = wanted
        self._rows = rows
        self._last: int | None = None
        """With the trigger `availableNow`, where it ends."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"number": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with in_a_line():
            self._last = self._archive().last

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The last commit, or one before it at which there are rows enough."""
        with in_a_line():
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            rows, number = 0, start["number"]
            for one in self._archive(number).commits:
                if number < one.number <= (one.number if self._last is None else self._last):
                    rows += sum(file.rows for file in one.files if file.table == self._wanted.table)
                    if most is not None and rows > most and number > start["number"]:
                        break
                    number = one.number
            return {"number": number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Part]:
        with in_a_line():
            archive = self._archive(end["number"])
            files = archive.files(self._wanted.table)
            new = [one for one in archive.commits if start["number"] < one.number <= end["number"]]
            return [
                Part(low, high, group)
                for low, high in Archive(new).covered
                for group in grouped(pieces_of(over(files, low, high - 1)), attrgetter("rows"), PIECE_ROWS)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        wanted = self._wanted
        with in_a_line():
            storage = storage_at(wanted.archive)
            where = between(TIMES[wanted.table], partition.low, partition.high - 1)
            for piece in partition.pieces:
                yield from read_piece(storage, piece, wanted.table, wanted.columns, where)

    def _archive(self, number: int = 0) -> Archive:
        """The archive, which has that commit. Raises SparkError."""
        archive = archive_at(storage_at(self._wanted.archive))
        if archive.last < number:
            raise SparkError(
                f"{self._wanted.archive} ends at commit {archive.last}, the stream is at {number}"
            )
        return archive
