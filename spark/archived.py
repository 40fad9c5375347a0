"""Rows of an archive's files as Spark gets them: only what is asked for, a batch at a time.

A file is read where its manifest says, or, if a compaction has moved it since, below `_replaced/`. Row groups
that the filter cannot match are skipped by their statistics. Columns that an older file lacks are null.

Only *withheld* messages come twice, the second time later under their old id: the last row counts
(`withheld_in`, `last_rows`, `standing`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, pairwise
from typing import NamedTuple

import pyarrow as pa
from pyarrow.dataset import Expression, ParquetFileFormat, field

from shards.archives import MARKER, MESSAGES, REPLACED, ArchivedFile
from shards.state import WITHHELD

from .columns import TIME
from .errors import SparkError
from .manifests import READS, Archive, read_archive
from .parquet import SCHEMAS, TIMES, Table
from .storage import Missing, Storage, StorageFailed

BATCH_ROWS = 8_192
PIECE_ROWS = 250_000
TIME_END = 1 << 48
SPARK_TIME = pa.timestamp("us", "UTC")


class Piece(NamedTuple):
    """A share of a file's row groups: of `shares`, the one of that number."""

    path: str
    rows: int
    number: int = 0
    shares: int = 1
    has_withheld: bool = False


def table_schema(table: Table, names: Sequence[str] = ()) -> pa.Schema:
    """The columns that Spark gets: times in us, and `date`. Raises ValueError for a name that is none."""
    kinds = {one.name: SPARK_TIME if one.type == TIME else one.type for one in SCHEMAS[table]}
    kinds["date"] = pa.date32()
    for name in names:
        if name not in kinds:
            raise ValueError(f"option columns: {name!r} is not one of {', '.join(kinds)}")
    return pa.schema([(name, kinds[name]) for name in names or kinds])


def archive_at(storage: Storage) -> Archive:
    """The archive, now. Raises SparkError if there is none, or a commit in it is missing."""
    archive = read_archive(storage)
    for before, after in pairwise(archive.commits):
        if after.number != before.number + 1:
            raise SparkError(f"{storage.name} lacks commit {before.number + 1}: python -m spark verify")
    if not (archive.commits or archive.old or storage.exists(MARKER)):
        raise SparkError(f"{storage.name} is no archive: it has no manifests")
    return archive


def between(name: str, low: int, high: int) -> Expression:
    """low <= a column of times <= high, ms."""
    bounds = pa.array([low, high], pa.int64()).cast(TIME)
    return (field(name) >= bounds[0]) & (field(name) <= bounds[1])


def pieces_of(files: Iterable[ArchivedFile]) -> list[Piece]:
    """Files in pieces of at most about `PIECE_ROWS` rows."""
    found: list[Piece] = []
    for file in files:
        shares = -(-file.rows // PIECE_ROWS) or 1
        rows, has_withheld = file.rows // shares, file.withheld > 0
        found += [Piece(file.path, rows, number, shares, has_withheld) for number in range(shares)]
    return found


def read_piece(
    storage: Storage, piece: Piece, table: Table, names: Sequence[str], where: Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece that `where`, of stored columns, accepts. Raises StorageFailed, Missing."""
    stored, schema = SCHEMAS[table], table_schema(table, names)
    wanted = [TIMES[table] if name == "date" else name for name in names or schema.names]
    with _opened(storage, piece.path) as file:
        try:
            fragment = ParquetFileFormat().make_fragment(file)
            if piece.shares > 1:
                groups = range(fragment.num_row_groups)
                size = -(-len(groups) // piece.shares)
                fragment = fragment.subset(row_group_ids=list(groups[size * piece.number :][:size]))
            columns = list(dict.fromkeys(wanted))
            options = {"batch_size": BATCH_ROWS, "batch_readahead": 1, "use_threads": False}
            for batch in fragment.to_batches(schema=stored, columns=columns, filter=where, **options):
                if batch.num_rows:
                    given = [batch[name].cast(one.type) for name, one in zip(wanted, schema, strict=True)]
                    yield pa.RecordBatch.from_arrays(given, schema=schema)
        except (OSError, pa.ArrowException) as error:
            why = " ".join(str(error).split())[:300]
            raise StorageFailed(f"{storage.name}/{piece.path} cannot be read: {why}") from error


@contextmanager
def _opened(storage: Storage, path: str) -> Iterator[pa.NativeFile]:
    with ExitStack() as opened:
        for place in (path, f"{REPLACED}/{path}"):
            with suppress(Missing):
                file = opened.enter_context(storage.opened(place))
                break
        else:
            raise SparkError(
                f"{storage.name}/{path} is missing, and below {REPLACED}/ too: "
                "python -m spark verify --archive says what else is"
            )
        yield file


def withheld_in(storage: Storage, files: Iterable[ArchivedFile], most: int) -> dict[str, int]:
    """The last `at` of each id that was withheld. Raises SparkError if there are more than `most`."""
    found: dict[str, int] = {}
    for name, at_ms, _ in _states(
        storage, [one for one in files if one.withheld], field("state") == WITHHELD
    ):
        found[name] = max(at_ms, found.get(name, 0))
        if len(found) > most:
            raise SparkError(f"{storage.name} has more than {most:,} withheld messages")
    return found


def last_rows(
    storage: Storage, files: Iterable[ArchivedFile], names: Iterable[str], since: int
) -> dict[str, tuple[int, str]]:
    """(`at`, state) of the last row of each of these ids."""
    found: dict[str, tuple[int, str]] = {}
    wanted = sorted(names)
    where = field("id").isin(wanted) & between("at", since, TIME_END)
    for name, at_ms, state in _states(storage, files if wanted else (), where):
        found[name] = max((at_ms, state), found.get(name, (0, "")))
    return found


def _states(
    storage: Storage, files: Iterable[ArchivedFile], where: Expression
) -> Iterator[tuple[str, int, str]]:
    """(id, `at`, state) of these rows."""

    def read(file: ArchivedFile) -> list[pa.RecordBatch]:
        return [*read_piece(storage, Piece(file.path, file.rows), MESSAGES, ("id", "at", "state"), where)]

    with ThreadPoolExecutor(READS) as threads:
        for batch in chain.from_iterable(threads.map(read, files)):
            yield from _known(batch)


def standing(rows: pa.Table, last: Mapping[str, int]) -> pa.Table:
    """The rows, of a table or batch, but those withheld before the `at` that `last` has of their id."""
    stands = [state != WITHHELD or at_ms >= last.get(name, 0) for name, at_ms, state in _known(rows)]
    return rows.filter(pa.array(stands, pa.bool_()))


def _known(rows: pa.Table) -> Iterator[tuple[str, int, str]]:
    at_ms = rows["at"].cast(TIME).cast(pa.int64())
    return zip(rows["id"].to_pylist(), at_ms.to_pylist(), rows["state"].to_pylist(), strict=True)
