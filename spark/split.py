"""A split: sketch the shards in Spark, then read the few rows around each cut, and have the slice cut there.

Sketching is the one scan of the slice: every row of the checkpoint is read once, some shards per task, and
each task returns one sketch (plan.py). When the cuts are known, the rows of their entries are read again,
which makes the counts of the pieces exact. Nothing is written.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence

import numpy as np
from pyspark.sql import SparkSession

from shards.borrow import count
from shards.keys import span_range
from shards.store import Table
from timeline.slices import Counts

from .job import Job, Source, Span
from .lease import Lease
from .plan import Beyond, Sketch, beyond, cut_points, parts_for, pieces, sketch
from .remote import Remote
from .snapshot import opened_store
from .tasks import Line, Lines, each, grouped


def split(remote: Remote, job: Job, lease: Lease, session: SparkSession) -> str:
    """The job, to its end; returns a summary."""
    found = sketches(session, job)
    parts = job.parts or parts_for(sum(one.total for one in found), job.split_above)
    cuts = cut_points(found, parts)
    if not cuts:
        return _left_alone(remote, job)
    counts = counted(session, job, found, cuts)
    lease.begin_commit()
    remote.commit(job, {"cuts": cuts, "pieces": [one._asdict() for one in counts]})
    rows = sum(one.rows for one in counts)
    return f"job {job.id}: {rows} rows cut into {len(counts)} slices"


def _left_alone(remote: Remote, job: Job) -> str:
    (piece,) = job.slices
    if job.parts is None and piece.count <= job.split_above:
        why = f"it has {piece.count} rows, and is overfull above {job.split_above}; --parts cuts it anyway"
    else:
        why = f"all of its {piece.count} rows are due in the same millisecond"
    remote.abort(job, f"nothing to do: {why}")
    return f"nothing to do: the slice at {piece.start_ms} is left alone: {why}"


def groups_of(piece: Span) -> list[list[Source]]:
    """The shards of a slice, grouped by task."""
    return grouped(piece.sources, lambda source: source.count)


def sketches(session: SparkSession, job: Job) -> list[Sketch]:
    """Sketches of each group of shards of the job's slice, within the slice."""
    (piece,) = job.slices
    uri = job.checkpoint
    lines = each(session, groups_of(piece), lambda sources: sketch_line(sketch_sources(uri, piece, sources)))
    return [sketch_from(line) for line in lines]


def counted(session: SparkSession, job: Job, found: Sequence[Sketch], cuts: list[int]) -> list[Counts]:
    """Counts of each piece. `found`: the sketches."""
    (piece,) = job.slices
    uri = job.checkpoint
    wanted = [
        (sources, spans)
        for sources, one in zip(groups_of(piece), found, strict=True)
        if (spans := beyond(one, cuts, piece.end_ms))
    ]

    def work(one: tuple[list[Source], list[Beyond]]) -> Lines:
        sources, spans = one
        return [found._asdict() for found in count_sources(uri, sources, spans)]

    again = [
        (span, Counts(**line))
        for (_, spans), lines in zip(wanted, each(session, wanted, work), strict=True)
        for span, line in zip(spans, lines, strict=True)
    ]
    return pieces(found, again, cuts)


def sketch_sources(uri: str, piece: Span, sources: Sequence[Source]) -> Sketch:
    """In a task: the sketch of some shards within a slice."""
    with opened_store(uri) as store:
        spans = [span_range(source.prefix, piece.start_ms, piece.end_ms) for source in sources]
        return sketch(row for span in spans for row in store.scan(Table.MESSAGES, *span))


def count_sources(uri: str, sources: Sequence[Source], spans: Sequence[Beyond]) -> list[Counts]:
    """In a task: counts of some shards in each of these spans."""
    with opened_store(uri) as store:
        return [
            count(
                row
                for source in sources
                for row in store.scan(Table.MESSAGES, *span_range(source.prefix, span.low, span.high))
            )
            for span in spans
        ]


def sketch_line(one: Sketch) -> Line:
    return {
        name: b64encode(column.astype("<i8").tobytes()).decode() for name, column in one._asdict().items()
    }


def sketch_from(line: Line) -> Sketch:
    columns = (np.frombuffer(b64decode(line[name]), "<i8").astype(np.int64) for name in Sketch._fields)
    return Sketch(*columns)
