"""The Parquet archive: writes a past slice into files by day, exactly once however often it is tried.

    DIR/date=2026-12-01/1796083200000-0.parquet        slice start (ms) and generation
    DIR/_manifests/1796083200000-0.json                written last: lists the slice's files

A slice and its generation name a set of rows for ever, so a file's name follows from its content. Each file
is written under another name, synced, renamed, and the directory synced; the manifest comes last. So after
any interruption the next try writes the same files again, and skips a slice with a correct manifest. A
manifest with other rows under the same name belongs to another server: nothing of it is overwritten
(`ArchiveClash`).

Rows are in position order. Stubs of moves are not archived: the message is where it was moved to. Nor are
retries: the message was written before. Cancelled messages are archived without payload. Memory: one row
group.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow.parquet as pq

from shards.archives import ArchivedFile, fault_in
from shards.read import Row
from shards.record import is_moved
from shards.sectors import sync_path
from shards.state import Journal
from timeline.position import Position, before
from timeline.slices import DAY_MS, Home, Slice

from .columns import DICTIONARY, SCHEMA, batches, table
from .errors import ArchiveClash, SparkError
from .snapshot import Snapshot

VERSION = 1
GROUP_ROWS = 32_768
GROUP_BYTES = 16 << 20
MANIFESTS = "_manifests"

Manifest = dict[str, Any]


class Extent(NamedTuple):
    """Rows of a slice, as far as keys alone show."""

    rows: int
    first: str
    last: str


def archive_slice(snapshot: Snapshot, home: Home, folder: Path, node: int) -> Manifest:
    """Make sure that a slice is in the archive; returns its manifest. Raises ArchiveClash, OSError."""
    piece = piece_of(snapshot, home)
    known = read_manifest(folder, home)
    if known is not None:
        extent = extent_of(snapshot, piece)
        if Extent(known["rows"], known["first"], known["last"]) != extent:
            raise ArchiveClash(
                f"{folder} has another slice {name_of(home)}: {known['rows']} rows, not {extent.rows}. "
                "Each server needs an archive of its own"
            )
        if not any(fault_in(folder, ArchivedFile(**file)) for file in known["files"]):
            return known
    return _write(snapshot, piece, folder, node)


def piece_of(snapshot: Snapshot, home: Home) -> Slice:
    piece = snapshot.reader.directory.get(home.start_ms)
    if piece is None or piece.generation != home.generation:
        raise SparkError(f"the checkpoint has no slice {name_of(home)}")
    return piece


def extent_of(snapshot: Snapshot, piece: Slice) -> Extent:
    """Scan the slice."""
    rows, first, last = 0, None, None
    for place, _, _ in snapshot.reader.read(before(piece.start_ms), before(piece.end_ms)):
        first = place if first is None else first
        rows, last = rows + 1, place
    return Extent(rows, _text(first), _text(last))


def read_manifest(folder: Path, home: Home) -> Manifest | None:
    path = manifest_path(folder, home)
    return json.loads(path.read_bytes()) if path.exists() else None


def name_of(home: Home) -> str:
    return f"{home.start_ms}-{home.generation}"


def manifest_path(folder: Path, home: Home) -> Path:
    return folder / MANIFESTS / f"{name_of(home)}.json"


def clear_unfinished(folder: Path, home: Home) -> None:
    """Remove what interrupted tries left of a slice. Do not call it during a try."""
    for path in folder.glob(f"*/.{name_of(home)}.*.tmp"):
        path.unlink(missing_ok=True)


def _write(snapshot: Snapshot, piece: Slice, folder: Path, node: int) -> Manifest:
    """Write the files, one day after the other, then the manifest."""
    files, seen = [], _Seen()
    journal = Journal(snapshot.store)
    for day in range(piece.start_ms // DAY_MS, (piece.end_ms - 1) // DAY_MS + 1):
        start, end = max(day * DAY_MS, piece.start_ms), min((day + 1) * DAY_MS, piece.end_ms)
        rows = seen.through(snapshot.reader.read(before(start), before(end)))
        path = folder / f"date={_date(day)}" / f"{name_of(piece.home)}.parquet"
        written = _write_file(path, batches(rows, GROUP_ROWS, GROUP_BYTES), snapshot, journal, node, piece)
        if written:
            files.append({"path": path.relative_to(folder).as_posix(), **written})
    manifest: Manifest = {
        "version": VERSION,
        "start_ms": piece.start_ms,
        "end_ms": piece.end_ms,
        "generation": piece.generation,
        "node": node,
        "rows": seen.rows,
        "archived": sum(file["rows"] for file in files),
        "first": _text(seen.first),
        "last": _text(seen.last),
        "files": files,
    }
    path = manifest_path(folder, piece.home)
    with _replacing(path) as unfinished:
        unfinished.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


class _Seen:
    """Counts the rows that pass."""

    def __init__(self) -> None:
        self.rows = 0
        self.first: Position | None = None
        self.last: Position | None = None

    def through(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            if self.first is None:
                self.first = row[0]
            self.last = row[0]
            self.rows += 1
            if not is_moved(row[2]):
                yield row


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file that is either complete or unchanged: written beside, synced, renamed, the directory synced."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        sync_path(path.parent.parent)
    unfinished = path.with_name(f".{path.stem}.{uuid4().hex[:12]}.tmp")
    try:
        yield unfinished
        sync_path(unfinished)
        unfinished.rename(path)
        sync_path(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_file(
    path: Path, batches: Iterator[list[Row]], snapshot: Snapshot, journal: Journal, node: int, piece: Slice
) -> dict[str, Any]:
    """Write a day's file; returns its entry, empty if there are no rows."""
    first = next(batches, None)
    if first is None:
        return {}
    count = 0
    with _replacing(path) as unfinished:
        with pq.ParquetWriter(unfinished, SCHEMA, compression="zstd", use_dictionary=DICTIONARY) as writer:
            for batch in chain((first,), batches):
                writer.write_table(table(batch, snapshot, journal, node, piece), row_group_size=GROUP_ROWS)
                count += len(batch)
        with unfinished.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = unfinished.stat().st_size
    return {"rows": count, "bytes": size, "sha256": digest}


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * DAY_MS // 1000, UTC).strftime("%Y-%m-%d")


def _text(place: Position | None) -> str:
    return "" if place is None else f"{place:024x}"
