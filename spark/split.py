"""The two Spark stages of a split: sketch each source shard, write each child.

Sketching reads the keys of the plan checkpoint, some shards a task. Writing reads the checkpoint that was
taken after `begin` (with every row of the sealed shards), one task a child, and puts the child's file beside
the database; what comes back is the file's row of the manifest. Each attempt of a task gives its file a name
of its own: the manifest names one of them, and the server throws the rest away with the job's directory.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from pyspark.sql import SparkSession

from shards.keys import span_range
from shards.sst import SstFile, write_sst
from shards.store import Store, Table

from .job import Begun, Job, Source, Span, path_of
from .plan import Sketch, sketch
from .snapshot import opened_store
from .tasks import Line, Lines, each, grouped


def sketches(session: SparkSession, job: Job) -> list[Sketch]:
    """Of every shard of the job's slice, within the slice."""
    (piece,) = job.slices
    uri = job.checkpoint

    def work(sources: list[Source]) -> Lines:
        return [sketch_line(one) for one in sketch_sources(uri, piece, sources)]

    groups = grouped(piece.sources, lambda source: source.count)
    return [sketch_from(line) for lines in each(session, groups, work) for line in lines]


def write_children(session: SparkSession, begun: Begun) -> list[Line]:
    """Write every child; the `files` of the manifest. A child without rows has none."""
    uri, output = begun.checkpoint, begun.output

    def work(child: Span) -> Line:
        return write_child(uri, output, child)

    return [line for line in each(session, begun.children, work) if line]


def sketch_sources(uri: str, piece: Span, sources: Sequence[Source]) -> list[Sketch]:
    """In a task: of the keys of some shards within a slice."""
    with opened_store(uri) as store:
        return [sketch(key for key, _ in _rows(store, piece, source)) for source in sources]


def write_child(uri: str, output: str, child: Span) -> Line:
    """In a task: one child's file; its row of the manifest, empty if there is no row to write."""
    attempt = uuid4().hex[:12]
    path = path_of(output) / f"{child.start_ms}-{child.generation}-{attempt}.sst"
    with opened_store(uri) as store:
        sources = sorted(child.sources, key=lambda source: source.number)
        runs = ((source.number, _rows(store, child, source)) for source in sources)
        file = write_sst(path, child.home, runs)
    return manifest_row(child, file) if file else {}


def manifest_row(child: Span, file: SstFile) -> dict[str, Any]:
    return {
        "name": file.path.name,
        "rows": file.rows,
        "bytes": file.size,
        "sha256": file.sha256,
        "first": file.first.hex(),
        "last": file.last.hex(),
        "slice": child.start_ms,
        "shards": [
            {
                "shard": part.shard,
                "rows": part.rows,
                "live": part.live,
                "bytes": part.size,
                "first": part.first.hex(),
                "last": part.last.hex(),
            }
            for part in file.shards
        ],
    }


def sketch_line(one: Sketch) -> Line:
    return {
        name: b64encode(column.astype("<i8").tobytes()).decode() for name, column in one._asdict().items()
    }


def sketch_from(line: Line) -> Sketch:
    at, rows = (np.frombuffer(b64decode(line[name]), "<i8").astype(np.int64) for name in Sketch._fields)
    return Sketch(at, rows)


def _rows(store: Store, span: Span, source: Source) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a shard that lie within a span, in key order."""
    start, end = span_range(source.prefix, span.start_ms, span.end_ms)
    return store.scan(Table.MESSAGES, start, end)
