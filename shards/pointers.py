"""Rows that point at others, checked: `moved` and `dedupe` at messages, `retained` by position and by topic.

A row that points nowhere says nothing: whoever follows it finds what he would find without it (read.py,
commit.py). So it is deleted; a message that cannot be read counts as there. A retained message without its
row by position is given one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from timeline.position import HELD_SHARD, MessageId, id_position, id_shard
from timeline.slices import Directory

from . import keys
from .errors import Corrupt
from .read import find, row_at
from .store import Store, Table
from .tables import META_RETAINED, dedupe_from
from .unreadable import readable

_ROWS_END = b"\xff" * 64
_TOPIC_END = b"\xff"
"""Above every topic, below the rows by position."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A row that points nowhere, or one that is missing. `value`: what it has to be, None: nothing."""

    table: Table
    key: bytes
    why: str
    value: bytes | None = None

    def __str__(self) -> str:
        return f"table {self.table.value}: the row at {self.key!r} {self.why}"


def pointers(store: Store, directory: Directory) -> Iterator[Pointer]:
    """All that are wrong. Reads these tables, and a row for each of theirs."""
    for key, value in readable(store, Table.MOVED, b"", _ROWS_END):
        if _points_nowhere(partial(_moved_to, store, directory, key, value)):
            yield Pointer(Table.MOVED, key, "names a row that is not there")
    for key, value in readable(store, Table.DEDUPE, b"", _ROWS_END):
        if _points_nowhere(partial(_known_as, store, directory, value)):
            yield Pointer(Table.DEDUPE, key, "names a message that is not there")
    if store.get(Table.META, META_RETAINED) is not None:
        yield from _retained(store)


def repair_pointers(store: Store, found: list[Pointer]) -> None:
    """Durable on return."""
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
    row = dedupe_from(value)
    return row.position < directory.floor or find(store.get, directory, row.id) is not None


def _has_expired(directory: Directory, row: MessageId) -> bool:
    """What is left of it is forgotten by and by."""
    return id_position(row) < directory.floor and id_shard(row) != HELD_SHARD


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
