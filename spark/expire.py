"""The Spark stage of an expiry: each slice behind retention into the archive, one task a slice.

Without an archive a task only counts: the server drops nothing that was not read whole.
"""

from pathlib import Path

from pyspark.sql import SparkSession

from .archive import archive_slice, clear_unfinished, extent_of, manifest_path, piece_of
from .job import Job, Span, path_of
from .snapshot import opened_snapshot
from .tasks import Line, each

SAID = ("start_ms", "generation", "rows", "archived", "files")


def archive_all(session: SparkSession, job: Job, archive: str) -> list[Line]:
    """Read all slices of a job, and write them if there is an archive; the `slices` of the manifest."""
    uri, node = job.checkpoint, job.node
    if archive:
        prepare(job, archive)

    def work(piece: Span) -> Line:
        return archive_one(uri, piece, archive, node)

    return each(session, job.slices, work)


def prepare(job: Job, archive: str) -> None:
    folder = path_of(archive)
    folder.mkdir(parents=True, exist_ok=True)
    for piece in job.slices:
        clear_unfinished(folder, piece.home)


def archive_one(uri: str, piece: Span, archive: str, node: int) -> Line:
    """In a task: one slice; what the server is told of it."""
    with opened_snapshot(uri) as snapshot:
        if archive:
            manifest = archive_slice(snapshot, piece.home, path_of(archive), node)
            return {name: manifest[name] for name in SAID}
        rows = extent_of(snapshot, piece_of(snapshot, piece.home)).rows
        return {
            "start_ms": piece.start_ms,
            "generation": piece.generation,
            "rows": rows,
            "archived": 0,
            "files": [],
        }


def archived_count(folder: Path, job: Job) -> int:
    """How many slices of a job have their manifest."""
    return sum(manifest_path(folder, piece.home).exists() for piece in job.slices)
