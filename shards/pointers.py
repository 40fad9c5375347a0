"""Checks rows that point at others: `moved` and `dedupe` at messages, `retained` by position and by topic,
and those that name retries and dead letters.

A row that points nowhere has no effect: a reader that follows it finds the same as without it (read.py,
commit.py). So repair deletes it. A message that cannot be read counts as there. A retained message, retry or
dead letter without its index rows gets them, and their totals are checked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from timeline.position import HELD_SHARD, START, MessageId, id_position, id_shard
from timeline.slices import Directory

from . import keys
from .dead import DEAD
from .errors import Corrupt
from .kept import Kept, size_of
from .read import find, row_at
from .retries import RETRIES
from .store import Store, Table
from .tables import (
    FORMAT,
    META_FORMAT,
    META_RETAINED,
    BatchRow,
    KeptTotals,
    count_value,
    kept_row_of,
    kept_totals_value,
    key_row_of,
)
from .unreadable import readable

_ROWS_END = b"\xff" * 64
_TOPIC_END = b"\xff"
"""Above every topic, below the rows by position."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A row that points nowhere, or a missing one. `value`: the right value; None: no row."""

    table: Table
    key: bytes
    why: str
    value: bytes | None = None

    def __str__(self) -> str:
        return f"table {self.table.value}: the row at {self.key!r} {self.why}"


def pointers(store: Store, directory: Directory) -> Iterator[Pointer]:
    """All wrong rows. Reads these tables, and a row for each of theirs."""
    for key, value in readable(store, Table.MOVED, b"", _ROWS_END):
        if _points_nowhere(partial(_moved_to, store, directory, key, value)):
            yield Pointer(Table.MOVED, key, "names a row that is not there")
    for key, value in readable(store, Table.DEDUPE, b"", _ROWS_END):
        if _points_nowhere(partial(_known_as, store, directory, value)):
            yield Pointer(Table.DEDUPE, key, "names a message that is not there")
    if store.get(Table.META, META_RETAINED) is not None:
        yield from _retained(store)
    if store.get(Table.META, META_FORMAT) == b"%d" % FORMAT:
        yield from _kept(store, RETRIES)
    yield from _kept(store, DEAD)


def repair_pointers(store: Store, found: list[Pointer]) -> None:
    """Write the repairs; durable on return."""
    batch = store.batch()
    for pointer in found:
        if pointer.value is None:
            batch.delete(pointer.table, pointer.key)
        else:
            batch.put(pointer.table, pointer.key, pointer.value)
    store.write(batch)
    store.flush()


def _points_nowhere(look: Callable[[], bool]) -> bool:
    try:
        return not look()
    except Corrupt:
        return False


def _moved_to(store: Store, directory: Directory, key: bytes, value: bytes) -> bool:
    wanted, row = keys.message_of(key), keys.message_of(value)
    return _has_expired(directory, row) or row_at(store.get, directory, wanted, row) is not None


def _known_as(store: Store, directory: Directory, value: bytes) -> bool:
    """Whether the row is right. A batch may outlive its messages: it is decided again for those."""
    row = key_row_of(value)
    if isinstance(row, BatchRow) or row.position < directory.floor or not row.id:
        return True
    return find(store.get, directory, row.id) is not None


def _has_expired(directory: Directory, row: MessageId) -> bool:
    """Whether the message has expired: the rows are deleted later anyway."""
    return id_position(row) < directory.floor and id_shard(row) != HELD_SHARD


def _kept(store: Store, kept: Kept) -> Iterator[Pointer]:
    """Wrong rows that name retries or dead letters, and wrong totals."""
    table, count, size = kept.table, 0, 0
    has: dict[bytes, int] = {}
    for key, value in readable(store, table, b"\0", b"\1"):
        try:
            row = kept_row_of(value)
        except Corrupt:
            continue  # a fault of the row itself
        _, *names = kept.keys(keys.place_of(key), row)
        count += 1
        size += size_of(value)
        if kept.is_counted:
            whose = kept.whose(row)
            has[whose] = has.get(whose, 0) + 1
        for name in names:
            if store.get(table, name) is None:
                yield Pointer(table, name, "is missing, which names what is kept", b"")
    for key, _ in readable(store, table, b"\1", b"\3"):
        if _points_nowhere(partial(_is_named, store, kept, key)):
            yield Pointer(table, key, "names what is not kept")
    yield from _counts(store, kept, has)
    said = kept.stored_totals(store)
    if (said.count, said.bytes) != (count, size):
        right = kept_totals_value(KeptTotals(count, size, START))
        why = f"says that {said.count} are kept in {table.value}, {count} are"
        yield Pointer(Table.META, kept.meta, why, right)


def _counts(store: Store, kept: Kept, has: dict[bytes, int]) -> Iterator[Pointer]:
    """Wrong counts by place."""
    said = {key for key, _ in readable(store, kept.table, b"\3", b"\4")}
    wanted = {keys.kept_count(whose): count for whose, count in has.items()}
    for key in sorted(said | wanted.keys()):
        count = wanted.get(key, 0)
        if store.get(kept.table, key) != (count_value(count) if count else None):
            right = count_value(count) if count else None
            yield Pointer(kept.table, key, f"says another number than {count}, which a place has", right)


def _is_named(store: Store, kept: Kept, name: bytes) -> bool:
    place = keys.place_of(name)
    row = kept.stored_at(store, place)
    return row is not None and name in kept.keys(place, row)


def _retained(store: Store) -> Iterator[Pointer]:
    for key, topic in readable(store, Table.RETAINED, _TOPIC_END, _ROWS_END):
        if _points_nowhere(partial(_stands_at, store, topic, key)):
            yield Pointer(Table.RETAINED, key, "names a topic whose message is another one, or none")
    for topic, value in readable(store, Table.RETAINED, b"", _TOPIC_END):
        key = keys.retained_at(keys.place_of(value[:12]))
        if _points_nowhere(partial(_has_row, store, key)):
            yield Pointer(Table.RETAINED, key, f"is missing, which names the topic {topic!r}", topic)


def _stands_at(store: Store, topic: bytes, key: bytes) -> bool:
    value = store.get(Table.RETAINED, topic)
    return value is not None and keys.retained_at(keys.place_of(value[:12])) == key


def _has_row(store: Store, key: bytes) -> bool:
    return store.get(Table.RETAINED, key) is not None
