"""A job's folder in the store's directory, and what is done in it. All of this blocks: it is for threads.

    <store>/jobs/<id>/plan          a checkpoint to plan from
                      checkpoint    one taken after `begin`: every row that has to be moved is in it
                      out           where the job writes
                      in, scratch   the server's own: links to what it takes, and a place to open it

Everything lies on the store's file system, so that a checkpoint and taking a file are links. What is there
when the server starts belongs to nobody and goes. A file is linked into `in` before anybody looks at it: what
the job puts in its place in `out` afterwards, a link to somebody else's file say, is not what is taken.
"""

import os
import shutil
import stat
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from shards.borrow import Counts, counted_key, counting
from shards.errors import Corrupt
from shards.manifest import Fault, MovedFile, files_faults
from shards.store import Store, Table
from timeline.slices import Shard, Slice

STEP_ROWS = 1_000
CHUNK_ROWS = 500
CHUNK_BYTES = 1 << 20
"""Of rows that go through the writer: each chunk is one group, which the loop stands still for."""
PAUSE_S = 0.001
"""Between two steps: the thread shares its interpreter with the event loop."""


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def plan(store: Store, folder: Path) -> None:
    """Make the folder, with a checkpoint. Raises StoreFailed, OSError."""
    folder.mkdir(parents=True)
    store.checkpoint(folder / "plan")


def begin(store: Store, folder: Path) -> None:
    """What a job needs when it has begun. Raises StoreFailed, OSError."""
    (folder / "out").mkdir()
    store.checkpoint(folder / "checkpoint")


def check(store: Store, folder: Path, files: Sequence[MovedFile]) -> list[Fault]:
    """Link the files out of `out`; what is wrong with them. Raises OSError."""
    taken, scratch = folder / "in", folder / "scratch"
    for own in (taken, scratch):
        remove(own)
        own.mkdir()
    for file in files:
        _take(folder / "out" / file.name, taken / file.name)
    faults = files_faults(store, files, taken, scratch)
    remove(scratch)
    return faults


def _take(path: Path, link: Path) -> None:
    """What is no file is not taken, nor what a link leads to."""
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if is_file:
        os.link(path, link, follow_symlinks=False)


def ingest(store: Store, folder: Path, files: Sequence[MovedFile]) -> None:
    """Take in what `check` has linked; the files in `out` stay. Raises StoreFailed."""
    if files:
        store.ingest(Table.MESSAGES, [folder / "in" / file.name for file in files])


def rows(
    store: Store, folder: Path, files: Sequence[MovedFile]
) -> Generator[list[tuple[bytes, bytes]], None, None]:
    """The rows of what `check` has linked, a chunk at a time. Raises Corrupt: they are not what it was."""
    scratch = folder / "scratch"
    scratch.mkdir()
    for file in files:
        low, high, count = bytes.fromhex(file.first), bytes.fromhex(file.last), 0
        for chunk in _chunks(store.rows_in(folder / "in" / file.name, scratch)):
            count += len(chunk)
            if chunk[0][0] < low or chunk[-1][0] > high:
                raise Corrupt(f"table file {file.name} has changed: there are rows beyond its range")
            yield chunk
        if count != file.rows:
            raise Corrupt(f"table file {file.name} has changed: there are {count} rows")
    remove(scratch)


def _chunks(every: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    chunk: list[tuple[bytes, bytes]] = []
    size = 0
    for row in every:
        if len(chunk) == CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += len(row[1])
    if chunk:
        yield chunk


def counted(store: Store, pieces: Iterable[tuple[Slice, Shard]]) -> dict[bytes, Counts]:
    """What each slice holds of a shard that it borrows, by `counted_key`. For sealed shards."""
    found = {}
    for piece, shard in pieces:
        total = Counts()
        for part in counting(store, shard.prefix, piece.start_ms, piece.end_ms, STEP_ROWS):
            total = total.plus(part)
            time.sleep(PAUSE_S)
        found[counted_key(piece, shard)] = total
    return found
