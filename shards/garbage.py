"""Garbage collection after expiry: rows of expired slices, and the names that `dedupe` and `moved` have for
them.

An expired slice is gone at once: it leaves the directory and the retention floor lies behind it. Its rows
stay for a while without an owner, because they are the only list of the names that it had given out: a record
has the hash of its idempotency key and, if it was moved here, its id. So one read of the slice, in steps,
finds the rows of `dedupe` and `moved` to delete, without scanning those tables. Then the rows go too. Keys of
batches are named by no message: a walk through the table finds them. Another one finds the deliveries of
expired messages that were dropped.

    expire          slices: A goes; floor: the end of A; meta: "left/" + start of A's rows -> their end
    a step          1,000 rows of A read, outside of the writer
                    keys and ids of those whose rows lie before the floor deleted, in the writer
    the last one    messages: A's rows go; meta: the note goes

A step finds candidates only: a key may have been used again since, a message moved on. `forget` decides
against the current row, and skips one that it cannot read. After a crash the same steps run again.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timeline.position import END, HELD_SHARD, Position, id_position, id_shard

from . import keys
from .commit import Commit
from .deliveries import end_dropped
from .delivery_rows import is_waiting_in, name_in
from .errors import Corrupt
from .record import names_of
from .store import Store, Table
from .tables import DedupeRow, dedupe_row_of
from .unreadable import readable

log = logging.getLogger(__name__)

LEFT = b"left/"

Name = tuple[Table, bytes]
"""A row of `dedupe` or `moved`, or of a dropped delivery, by table and key."""


class Look(NamedTuple):
    """Result of a step: names that may be gone, and where to continue (None: at the end)."""

    names: list[Name]
    next: bytes | None
    looked: int
    """Rows read."""


def leave(commit: Commit, start: bytes, end: bytes) -> None:
    """Note that the rows of `messages` in [start, end) have expired."""
    commit.row(Table.META, LEFT + start, end)


def left(store: Store) -> Iterator[tuple[bytes, bytes]]:
    """Expired ranges [start, end) of `messages`, oldest first."""
    for key, end in readable(store, Table.META, *keys.under(LEFT)):
        yield key[len(LEFT) :], end


def clear(commit: Commit, start: bytes, end: bytes) -> None:
    """Delete the rows of a finished range, and its note."""
    commit.open_batch.clear(Table.MESSAGES, start, end)
    commit.row(Table.META, LEFT + start, None)


def look(store: Store, start: bytes, end: bytes, rows: int, size: int) -> Look:
    """Read a step of an expired range: at most `rows` rows or `size` bytes. Blocks; raises Corrupt."""
    names: list[Name] = []
    looked = 0
    for looked, (key, value) in enumerate(store.scan(Table.MESSAGES, start, end), 1):
        name, key_hash = names_of(value)
        if name:
            names.append((Table.MOVED, name))
        if key_hash:
            names.append((Table.DEDUPE, key_hash))
        size -= len(value)
        if looked >= rows or size <= 0:
            return Look(names, key + b"\0", looked)
    return Look(names, None, looked)


def look_through(store: Store, table: Table, start: bytes, rows: int, size: int, floor: Position) -> Look:
    """Read a step of all of `dedupe` or `moved`, for rows that no expired message names, or of the dropped
    deliveries: at most `rows` rows or `size` bytes. Blocks."""
    names: list[Name] = []
    looked, end = 0, keys.LAST
    if table is Table.DELIVERIES:
        start, end = max(start, keys.DROPPED), keys.delivery(keys.DROPPED, floor)
    for looked, (key, value) in enumerate(readable(store, table, start, end), 1):
        if _is_gone(table, key, value, floor):
            names.append((table, key))
        size -= len(value)
        if looked >= rows or size <= 0:
            return Look(names, key + b"\0", looked)
    return Look(names, None, looked)


def forget(commit: Commit, names: Iterable[Name]) -> int:
    """Delete the names whose messages have expired; returns their number. An unreadable row stays."""
    floor, gone = commit.directory.floor, 0
    for table, key in names:
        try:
            value = commit.get(table, key)
        except Corrupt as error:
            log.error("retention: row not deleted: %s", error)
            continue
        if value is None or not _is_gone(table, key, value, floor):
            continue
        if table is Table.DELIVERIES:
            end_dropped(commit, name_in(key))
        row = dedupe_row_of(value) if table is Table.DEDUPE else None
        if isinstance(row, DedupeRow) and is_waiting_in(commit.open_batch, row.id):
            continue  # the walk through the whole table finds it later
        commit.row(table, key, None)
        gone += 1
    return gone


def _is_gone(table: Table, key: bytes, value: bytes, floor: Position) -> bool:
    try:
        return _place(table, key, value) < floor
    except Corrupt as error:
        log.error("table %s: row %s unreadable, skipped: %s", table.value, key.hex(), error)
        return False


def _place(table: Table, key: bytes, value: bytes) -> Position:
    if table is Table.DELIVERIES:
        return keys.root_of(key)
    if table is Table.DEDUPE:
        return dedupe_row_of(value).position
    row = keys.message_of(value)
    return END if id_shard(row) == HELD_SHARD else id_position(row)
