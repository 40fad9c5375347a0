"""Makes a recorded commit part of the archive: its manifest, read back, and what follows from it.

The server records a commit before its manifest is written, and the manifest has exactly what was recorded.
So whoever publishes it, and however often, writes the same bytes: a program that was killed between the two
is followed by the next job, which gets the commit as `unpublished`.

    claim      the archive is this timeline's: its marker, _timeline.json
    publish    write the manifest, then replaced files go, or the catalog is told
"""

import msgspec

from shards.archives import MANIFESTS, MARKER, VERSION, Manifest, manifest_name

from .errors import ArchiveClash
from .job import Job
from .storage import Missing, Storage, StorageFailed


class Marker(msgspec.Struct, frozen=True):
    """Whose archive it is."""

    version: int
    timeline: str


def claim(storage: Storage, job: Job) -> None:
    """Make sure that the archive is of the job's timeline, and not ahead of it. Raises ArchiveClash."""
    if not job.last and not storage.exists(MARKER):
        storage.write(MARKER, msgspec.json.encode(Marker(VERSION, job.timeline)))
    check(storage, job.timeline)
    if job.last:
        is_ahead = storage.exists(manifest_name(job.last + 1))
    else:
        names = [entry.path.rpartition("/")[2] for entry in storage.list(MANIFESTS)]
        is_ahead = any("-" not in name for name in names)
    if is_ahead:
        raise ArchiveClash(
            f"{storage.name} is ahead of this timeline, as after a restore: give another archive"
        )


def check(storage: Storage, timeline: str) -> None:
    """Raise ArchiveClash unless the archive is marked as that timeline's."""
    marker = read_marker(storage)
    if marker is None:
        raise ArchiveClash(
            f"{storage.name} has no {MARKER}, but this timeline has archived there: it is another folder, or "
            "empty"
        )
    if marker.timeline != timeline:
        raise ArchiveClash(f"{storage.name} is the archive of another timeline: each needs its own")


def read_marker(storage: Storage) -> Marker | None:
    """None: there is none. Raises ArchiveClash."""
    try:
        return msgspec.json.decode(storage.read(MARKER), type=Marker)
    except Missing:
        return None
    except msgspec.DecodeError as error:
        raise ArchiveClash(f"{storage.name}/{MARKER} cannot be read: {error}") from None


def publish(storage: Storage, manifest: Manifest) -> None:
    """Raises StorageFailed."""
    write_manifest(storage, manifest)


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Make sure that the manifest is there as it was recorded. Raises StorageFailed."""
    path, data = manifest_name(manifest.number), msgspec.json.encode(manifest)
    if not _has(storage, path, data):
        storage.write(path, data)
        if not _has(storage, path, data):
            raise StorageFailed(f"{storage.name}/{path} has other bytes than were written")


def _has(storage: Storage, path: str, data: bytes) -> bool:
    try:
        return storage.read(path) == data
    except Missing:
        return False
