"""Rows that point at others, checked: `moved` and `dedupe` at messages, `retained` by position and by topic,
`retries` at rows of the timeline, by position and by message, and those that name dead letters.

A row that points nowhere says nothing: whoever follows it finds what he would find without it (read.py,
commit.py). So it is deleted; a message that cannot be read counts as there. A retained message without its
row by position is given one, as are a retry without its row and a dead letter without its names; how many of
these there are is counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from timeline.position import (
    END,
    HELD_SHARD,
    START,
    MessageId,
    id_position,
    id_shard,
)
from timeline.slices import Directory
from timeline.structures import Structures

from . import keys
from .dead import names, size_of, stored_totals
from .errors import Corrupt
from .read import Reader, Row, find, row_at
from .record import decode, is_retry, is_stub
from .recover import stored_cursor
from .retry_index import SPOTS_MAX, spots_in, waiting
from .store import Store, Table
from .tables import (
    META_DEAD,
    META_RETAINED,
    DeadTotals,
    Spot,
    dead_row_of,
    dead_totals_value,
    dedupe_from,
    retry_from,
    retry_value,
    spots_value,
)
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
    yield from _retries(store, directory)
    yield from _dead(store)


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


def _retries(store: Store, directory: Directory) -> Iterator[Pointer]:
    """Reads all messages: a retry is known by its row alone."""
    reader = Reader(store, directory, Structures(max_structures=1))
    for key, value in readable(store, Table.RETRIES, b"", keys.RETRIES_END):
        if _points_nowhere(partial(_retry_at, reader, key, value)):
            yield Pointer(Table.RETRIES, key, "names a retry that is not there")
    rows: list[Row] = []
    for place, shard, value in chain(reader.read(START, END), reader.held()):
        if not is_retry(value) or is_stub(value):
            continue
        rows.append((place, shard, value))
        key = keys.place(place)
        if shard != HELD_SHARD and store.get(Table.RETRIES, key) is None:
            message = MessageId(decode(value).id)
            yield Pointer(Table.RETRIES, key, "is missing, of a retry", retry_value(message, shard))
    yield from _by_message(store, reader, rows)


def _retry_at(reader: Reader, key: bytes, value: bytes) -> bool:
    return _is_retry_at(reader, (keys.place_of(key), retry_from(value)[1]))


def _is_retry_at(reader: Reader, spot: Spot) -> bool:
    """Raises Corrupt."""
    value = reader.row(*spot)
    is_there = value is not None and is_retry(value) and not is_stub(value)
    return is_there or (spot[0] < reader.directory.floor and spot[1] != HELD_SHARD)


def _by_message(store: Store, reader: Reader, rows: list[Row]) -> Iterator[Pointer]:
    """The rows of `retries` by message. `rows`: all that are retries."""
    wanted = waiting(rows, stored_cursor(store, 0).horizon)
    for key, value in readable(store, Table.RETRIES, keys.RETRIES_END, _ROWS_END):
        found = spots_in(value)
        left = [spot for spot in found if not _points_nowhere(partial(_is_retry_at, reader, spot))]
        missing = [spot for spot in wanted.pop(key, ()) if spot not in found and len(left) < SPOTS_MAX]
        if missing or left != found:
            right = spots_value([*left, *missing][-SPOTS_MAX:]) if left or missing else None
            yield Pointer(Table.RETRIES, key, "names other retries of a message than there are", right)
    for key, missing in wanted.items():
        why = "is missing, which names retries of a message"
        yield Pointer(Table.RETRIES, key, why, spots_value(missing))


def _dead(store: Store) -> Iterator[Pointer]:
    count = size = 0
    for key, value in readable(store, Table.DEAD, b"\0", b"\1"):
        try:
            named = names(keys.place_of(key), dead_row_of(value))
        except Corrupt:
            continue  # its own fault
        count += 1
        size += size_of(value)
        for name in named:
            if store.get(Table.DEAD, name) is None:
                yield Pointer(Table.DEAD, name, "is missing, which names a dead letter", b"")
    for key, _ in readable(store, Table.DEAD, b"\1", _ROWS_END):
        if _points_nowhere(partial(_dead_letter_of, store, key)):
            yield Pointer(Table.DEAD, key, "names a dead letter that is not there")
    said = stored_totals(store)
    if (said.count, said.bytes) != (count, size):
        right = dead_totals_value(DeadTotals(count, size, START))
        why = f"says that there are {said.count} dead letters, there are {count}"
        yield Pointer(Table.META, META_DEAD, why, right)


def _dead_letter_of(store: Store, name: bytes) -> bool:
    place = keys.place_of(name)
    value = store.get(Table.DEAD, keys.dead(keys.place(place)))
    return value is not None and name in names(place, dead_row_of(value))


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
