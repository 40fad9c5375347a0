"""The Spark stage of an expiry: archives slices behind retention, one or some small ones per task.

Without an archive a task only counts: the server drops only slices that were read completely.
"""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from shards.archives import ArchivedFile, fault_in, local_path, why_not_usable
from timeline.slices import Home

from .archive import archive_slice, clear_unfinished, extent_of, manifest_path, piece_of
from .errors import SparkError
from .job import Job, Span
from .snapshot import Snapshot, opened_snapshot
from .tasks import Line, Lines, each, grouped

REPORTED = ("start_ms", "generation", "rows", "archived", "files")


def usable_archive(name: str) -> str:
    """The absolute path of an archive that this program can write to. Raises SparkError."""
    try:
        path = local_path(name)
    except ValueError as error:
        raise SparkError(f"the archive {error}, not {name!r}") from None
    why = why_not_usable(Path(path))
    if why:
        raise SparkError(f"the archive {name} cannot be used: {why}")
    return path


def archive_all(session: SparkSession, job: Job, archive: str | None) -> list[Line]:
    """Read all slices of a job, and archive them if there is an archive. Returns the `slices` to commit.

    Reads the tasks' files back here, because on their machine the archive may be another directory. Raises
    SparkError."""
    uri, node, path = job.checkpoint, job.node, local_path(archive) if archive else ""
    if path:
        prepare(job, path)
    groups = grouped(job.slices, lambda piece: piece.count)
    done = each(session, groups, lambda pieces: archive_some(uri, pieces, path, node))
    report = [line for lines in done for line in lines]
    for file in (file for line in report for file in line["files"]):
        fault = fault_in(Path(path), ArchivedFile(**file))
        if fault:
            raise SparkError(f"a worker has archived, but {fault}")
    return report


def prepare(job: Job, archive: str) -> None:
    folder = Path(archive)
    folder.mkdir(parents=True, exist_ok=True)
    for piece in job.slices:
        clear_unfinished(folder, piece.home)


def archive_some(uri: str, pieces: Sequence[Span], archive: str, node: int) -> Lines:
    """In a task: process some slices, one after the other. Returns the report on each."""
    with opened_snapshot(uri) as snapshot:
        return [_line(snapshot, piece.home, archive, node) for piece in pieces]


def _line(snapshot: Snapshot, home: Home, archive: str, node: int) -> Line:
    if archive:
        manifest = archive_slice(snapshot, home, Path(archive), node)
        return {name: manifest[name] for name in REPORTED}
    rows = extent_of(snapshot, piece_of(snapshot, home)).rows
    return dict(zip(REPORTED, (*home, rows, 0, []), strict=True))


def archived_count(folder: Path, job: Job) -> int:
    """Number of a job's slices with a manifest."""
    return sum(manifest_path(folder, piece.home).exists() for piece in job.slices)
