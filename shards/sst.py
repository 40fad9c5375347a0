"""One table file written outside of the database, for a slice that is to take it in whole.

A child of a split gets the rows of its parent's shards under keys of its own: (child, shard number, place)
with the same value. Rows of one source shard are already in the order of their places and a key has the
shard number before the place, so writing one source after the other, by number, is writing in key order:
nothing is merged and nothing is held.

    parent  1000·0·shard 0: a c e      child  1000·1·0: a c   1000·1·1: b
            1000·0·shard 1: b d        child  2000·1·0: e     2000·1·1: d

The file is written under a name of its own, synced, and only then renamed: what has the final name is whole.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rocksdict import SstFileWriter

from timeline.position import POSITION_BYTES
from timeline.slices import Home

from .errors import ShardsError, StoreFailed
from .keys import MESSAGE_KEY_BYTES, slice_key
from .record import STUB_BYTE
from .rocks import file_options

Rows = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ShardPart:
    """What a file has of one shard. `size`: bytes with keys, as the directory counts; places of 12 bytes."""

    shard: int
    rows: int
    live: int
    size: int
    first: bytes
    last: bytes


@dataclass(frozen=True, slots=True)
class SstFile:
    """A finished, durable file of `size` bytes; `first` and `last` are whole keys."""

    path: Path
    rows: int
    size: int
    sha256: str
    first: bytes
    last: bytes
    shards: tuple[ShardPart, ...]


def write_sst(path: Path, home: Home, runs: Iterable[tuple[int, Rows]]) -> SstFile | None:
    """Write the rows as shards of `home`: (number, rows in key order), by rising number. None: no rows.

    Raises StoreFailed, and what reading the rows raises; then nothing is left behind.
    """
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        parts = _write(unfinished, slice_key(home), runs)
        if not parts:
            return None
        digest = _synced_digest(unfinished)
        size = unfinished.stat().st_size
        unfinished.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise StoreFailed(f"{path}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    first, last = parts[0], parts[-1]
    prefix = slice_key(home)
    return SstFile(
        path,
        sum(part.rows for part in parts),
        size,
        digest,
        prefix + first.shard.to_bytes(2, "big") + first.first,
        prefix + last.shard.to_bytes(2, "big") + last.last,
        tuple(parts),
    )


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(path: Path, home: bytes, runs: Iterable[tuple[int, Rows]]) -> list[ShardPart]:
    try:
        writer = SstFileWriter(file_options())
        writer.open(str(path))
        parts = [part for number, rows in runs if (part := _put(writer, home, number, iter(rows)))]
        if parts:
            writer.finish()
    except (ShardsError, OSError):
        raise
    except Exception as error:
        raise StoreFailed(f"{path}: {error}") from error
    return parts


def _put(
    writer: SstFileWriter, home: bytes, number: int, rows: Iterator[tuple[bytes, bytes]]
) -> ShardPart | None:
    """One shard's rows. The inner loop of a split."""
    first = next(rows, None)
    if first is None:
        return None
    prefix = home + number.to_bytes(2, "big")
    skip = len(prefix)
    count = size = stubs = 0
    for key, value in chain([first], rows):
        writer[prefix + key[skip:]] = value
        count += 1
        size += len(value)
        if value[1] & STUB_BYTE:
            stubs += 1
    places = first[0][-POSITION_BYTES:], key[-POSITION_BYTES:]
    return ShardPart(number, count, count - stubs, size + MESSAGE_KEY_BYTES * count, *places)


def _synced_digest(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
