"""An expiry: reads back what the archive has of slices behind retention, or without an archive counts them.

A drop is final. So a slice is dropped only after its commits were read back in the same job, from where the
archive is now: the manifests as the server has recorded them, and each file of messages by size and SHA-256.
A manifest that is missing is written again, as it is known; a file that is missing or damaged is a fault, and
the server has it written again while it still has the rows.
"""

from itertools import chain
from typing import Any

from shards.archived import Archived, archived_of
from timeline.position import before
from timeline.slices import Home

from .errors import SparkError
from .job import Job
from .lease import Lease
from .snapshot import Snapshot, opened_snapshot

Line = dict[str, Any]


def counted(job: Job) -> list[Line]:
    """Read all slices of a job. Returns the `slices` to commit."""
    with opened_snapshot(job.checkpoint) as snapshot:
        return [_line(piece.home, rows_of(snapshot, piece.home), 0) for piece in job.slices]


def rows_of(snapshot: Snapshot, home: Home) -> int:
    piece = snapshot.reader.directory.get(home.start_ms)
    if piece is None or piece.generation != home.generation:
        raise SparkError(f"the checkpoint has no slice {home.start_ms}, generation {home.generation}")
    return sum(1 for _ in snapshot.reader.read(before(piece.start_ms), before(piece.end_ms)))


def read_back(job: Job, lease: Lease) -> tuple[list[Line], list[Line]]:
    """Read the archive of a job's slices. Returns the `slices` to commit and the `faults`, one of them empty.
    Raises ArchiveClash, StorageFailed."""
    from .manifests import Archive, over
    from .publish import check, write_manifest
    from .storage import storage_at

    storage = storage_at(job.archive or "")
    for timeline in {manifest.timeline for manifest in job.manifests}:
        check(storage, timeline)
    for manifest in job.manifests:
        write_manifest(storage, manifest)
    live = Archive(job.manifests).files()
    needed = [over(live, piece.start_ms, piece.end_ms - 1) for piece in job.slices]
    files = list(dict.fromkeys(chain.from_iterable(needed)))
    found: dict[str, str] = {}
    lease.follow(lambda: (len(found), len(files)))
    for file in files:
        found[file.path] = storage.fault_in(file)
    faults = [{"path": path, "detail": fault} for path, fault in found.items() if fault]
    kept = archived_of(job.manifests)
    slices = [(piece.home, kept.get(piece.home, Archived())) for piece in job.slices]
    lines = [_line(home, one.rows, one.written) for home, one in slices]
    return ([], faults) if faults else (lines, [])


def _line(home: Home, rows: int, archived: int) -> Line:
    return {**home._asdict(), "rows": rows, "archived": archived}
