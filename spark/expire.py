"""The Spark stage of an expiry: counts the rows of slices behind retention, one or some small ones per task.

The server drops only slices that were read completely.
"""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from timeline.position import before
from timeline.slices import Home

from .errors import SparkError
from .job import Job, Span
from .snapshot import Snapshot, opened_snapshot
from .tasks import Line, Lines, each, grouped


def count_all(session: SparkSession, job: Job) -> list[Line]:
    """Read all slices of a job. Returns the `slices` to commit."""
    uri = job.checkpoint
    groups = grouped(job.slices, lambda piece: piece.count)
    done = each(session, groups, lambda pieces: count_some(uri, pieces))
    return [line for lines in done for line in lines]


def count_some(uri: str, pieces: Sequence[Span]) -> Lines:
    """In a task: read some slices, one after the other. Returns the report on each."""
    with opened_snapshot(uri) as snapshot:
        return [
            {**piece.home._asdict(), "rows": rows_of(snapshot, piece.home), "archived": 0, "files": []}
            for piece in pieces
        ]


def rows_of(snapshot: Snapshot, home: Home) -> int:
    piece = snapshot.reader.directory.get(home.start_ms)
    if piece is None or piece.generation != home.generation:
        raise SparkError(f"the checkpoint has no slice {home.start_ms}, generation {home.generation}")
    return sum(1 for _ in snapshot.reader.read(before(piece.start_ms), before(piece.end_ms)))
