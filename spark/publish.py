"""Makes a recorded commit part of the archive: its manifest, read back, and what follows from it.

The server records a commit before its manifest is written, and the manifest has exactly what was recorded.
So whoever publishes it, and however often, writes the same bytes: a program that was killed between the two
is followed by the next job, which gets the commit as `unpublished`.

    claim      the archive is this timeline's: its marker, _timeline.json
    publish    write the manifest; then files of other tries go, and replaced ones, or the catalog is told
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from shards.archives import MANIFESTS, MARKER, TABLES, VERSION, Manifest, dates_of, file_name, manifest_name

from .compact import after
from .errors import ArchiveClash
from .job import Job
from .storage import Storage, StorageFailed

AHEAD = "as after a restore: give another archive"


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
        raise ArchiveClash(f"{storage.name} is ahead of this timeline, {AHEAD}")


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
    data = storage.find(MARKER)
    try:
        return None if data is None else msgspec.json.decode(data, type=Marker)
    except msgspec.DecodeError as error:
        raise ArchiveClash(f"{storage.name}/{MARKER} cannot be read: {error}") from None


def publish(storage: Storage, manifest: Manifest, catalog: str | None = None) -> None:
    """Raises StorageFailed, SparkError. `catalog`: of Iceberg, if there is one."""
    write_manifest(storage, manifest)
    if catalog:
        from .iceberg import add

        add(catalog, storage, manifest)
    after(storage, manifest)


@contextmanager
def cleared(storage: Storage, job: Job) -> Iterator[None]:
    """Before a job's commit is sent to be recorded: if the writing fails, its files go. A job that fails
    again and again, as on a full disk, would else fill it with each try."""
    try:
        yield
    except BaseException:
        dates = [job.date] if job.date else dates_of(job.from_ms, job.to_ms)
        with suppress(StorageFailed):
            for first in (file_name(table, one, job.number, job.id, 0) for table in TABLES for one in dates):
                for entry in storage.list(first.rpartition("/")[0]):
                    if entry.path.startswith(first.removesuffix("0.parquet")):
                        storage.delete(entry.path)
        raise


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Make sure that the manifest is there as it was recorded. Raises StorageFailed; ArchiveClash if there is
    one of another commit: two servers of one timeline write there, as after a restore."""
    path, data = manifest_name(manifest.number), msgspec.json.encode(manifest)
    if (found := storage.find(path)) == data:
        return
    with suppress(msgspec.DecodeError):  # What is damaged is written again.
        if msgspec.json.decode(found or b"", type=Manifest).job != manifest.job:
            raise ArchiveClash(f"{storage.name}/{path} is of a commit that was not made here, {AHEAD}")
    storage.write(path, data)
    if storage.find(path) != data:
        raise StorageFailed(f"{storage.name}/{path} has other bytes than were written")
