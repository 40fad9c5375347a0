"""Checks rows that point at others: `moved` and `dedupe` at messages, `retained` by position and by topic,
and those that name deliveries.

A row that points nowhere has no effect: a reader that follows it finds the same as without it (read.py,
commit.py). So repair deletes it. A message that cannot be read counts as there. A retained message or a
delivery without its index rows gets them, and their totals are checked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec

from timeline.position import END, HELD_SHARD, POSITION_BYTES, START, MessageId, id_position, id_shard
from timeline.slices import Directory

from . import ended, kept, keys, tables
from .archives import QUARTER_MS
from .delivery_rows import DeliveryRow, Name, names_of, pointer_of, size_of, stored, totals
from .errors import Corrupt
from .read import find, row_at
from .store import ROWS_END, Batch, Store, Table
from .unreadable import readable

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

    def mend(self, batch: Batch) -> None:
        if self.value is None:
            batch.delete(self.table, self.key)
        else:
            batch.put(self.table, self.key, self.value)


def pointers(store: Store, directory: Directory) -> Iterator[Pointer]:
    """All wrong rows. Reads these tables, and a row for each of theirs."""
    for key, value in readable(store, Table.MOVED):
        if _points_nowhere(partial(_moved_to, store, directory, key, value)):
            yield Pointer(Table.MOVED, key, "names a row that is not there")
    for key, value in readable(store, Table.DEDUPE):
        if _points_nowhere(partial(_known_as, store, directory, value)):
            yield Pointer(Table.DEDUPE, key, "names a message that is not there")
    if store.get(Table.META, tables.META_RETAINED) is not None:
        yield from _retained(store)
    if store.get(Table.META, tables.META_FORMAT) != b"%d" % tables.FORMAT_FIRST:
        yield from _deliveries(store)


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
    row = tables.dedupe_row_of(value)
    if isinstance(row, tables.BatchRow) or row.position < directory.floor or not row.id:
        return True
    return find(store.get, directory, row.id) is not None


def _has_expired(directory: Directory, row: MessageId) -> bool:
    """Whether the message has expired: the rows are deleted later anyway."""
    return id_position(row) < directory.floor and id_shard(row) != HELD_SHARD


def _deliveries(store: Store) -> Iterator[Pointer]:
    """Deliveries without a record, wrong rows that name deliveries, and wrong counts."""
    count, size, oldest = 0, 0, END
    has: Counter[bytes] = Counter()
    mended: set[bytes] = set()
    for name, row in _rows(store):
        if row is None:
            yield Pointer(Table.DELIVERIES, keys.state(*name), "is of a delivery without a record")
            continue
        for key in names_of(row):
            if store.get(Table.DELIVERIES, key) != pointer_of(key, name):
                mended.add(key)
                yield Pointer(Table.DELIVERIES, key, "does not name its delivery", pointer_of(key, name))
        if row.is_waiting:
            has[keys.WAITING_COUNT + name.whose] += 1
        elif row.is_dead:
            count, size, oldest = count + 1, size + size_of(row), min(oldest, row.at)
    for start, end in ((keys.RECORD, keys.WAITING_COUNT), (keys.DROPPED, keys.KEPT)):
        for key, value in readable(store, Table.DELIVERIES, start, end):
            if key not in mended and _points_nowhere(partial(_is_named, store, key, value)):
                yield Pointer(Table.DELIVERIES, key, "names no delivery")
    stored_counts = {key for key, _ in readable(store, Table.DELIVERIES, keys.WAITING_COUNT, keys.DROPPED)}
    for key in sorted(stored_counts | has.keys()):
        right = tables.number_value(has[key]) if has[key] else None
        if store.get(Table.DELIVERIES, key) != right:
            why = f"says another number than {has[key]}, which a place has"
            yield Pointer(Table.DELIVERIES, key, why, right)
    now = totals(store)
    if (now.count, now.bytes) != (count, size) or oldest < now.oldest:
        right = tables.kept_totals_value(tables.KeptTotals(count, size, START))
        why = f"says that there are {now.count} dead letters, there are {count}"
        yield Pointer(Table.META, tables.META_DEAD, why, right)
    yield from _kept(store)
    yield from _ended(store)


def _rows(store: Store) -> Iterator[tuple[Name, DeliveryRow | None]]:
    """Each delivery that is not kept as done. None: it has no record. Those that cannot be read are another
    fault."""
    for key, value in readable(store, Table.DELIVERIES, keys.STATE, keys.RECORD):
        name = Name(*keys.state_in(key))
        with suppress(Corrupt):
            if tables.state_row_of(value).state != tables.DONE:
                yield name, stored(store, name)


def _kept(store: Store) -> Iterator[Pointer]:
    """Results of no delivery that is done, and wrong counts of what is kept."""
    counts = {whose: Counter[str]() for whose, _ in kept.places(store)}
    counts[b""] = every = Counter[str]()
    first, first_result = dict[bytes, bytes](), dict[bytes, bytes]()
    for state_key, value in readable(store, Table.DELIVERIES, keys.STATE, keys.RECORD):
        whose, root = keys.state_in(state_key)
        if kept.kept_at(store, Name(whose, root)) is not None:
            first.setdefault(whose, keys.place(root))
            for one in (every, counts.setdefault(whose, Counter())):
                one["count"] += 1
                one["size"] += len(value) + kept.KEY_BYTES
    for key, value in readable(store, Table.DELIVERIES, keys.RESULT, keys.ENDED):
        whose, at = key[1 : 1 + keys.WHOSE_BYTES], key[1 + keys.WHOSE_BYTES :]
        done = kept.kept_at(store, Name(whose, keys.place_of(value[:POSITION_BYTES])))
        if done is None or done.state.at != at:
            yield Pointer(Table.DELIVERIES, key, "is the result of no delivery that is done")
            continue
        first_result.setdefault(whose, at)
        for one in (every, counts[whose]):
            one["results"] += 1
            one["result_size"] += len(value) - POSITION_BYTES
    for whose, one in sorted(counts.items()):
        table, key, now = Table.DELIVERIES, keys.KEPT + whose, kept.totals_of(store, whose)
        if not whose:
            table, key, now = Table.META, tables.META_KEPT, kept.totals(store)
        right = tables.KeptRow(one["count"], one["size"], one["results"], one["result_size"])
        is_hidden = first.get(whose, now.first) < now.first
        is_hidden |= first_result.get(whose, now.first_result) < now.first_result
        if is_hidden or msgspec.structs.replace(now, first=b"", first_result=b"") != right:
            mended = tables.encode_row(right) if right.count else None
            yield Pointer(table, key, f"says {now.count} done, there are {right.count}", mended)


def _ended(store: Store) -> Iterator[Pointer]:
    """Wrong sizes of the journal of ends."""
    rows, sizes = Counter[int](), Counter[int]()
    for key, value in readable(store, Table.DELIVERIES, keys.ENDED, keys.QUARTERS):
        quarter_ms = keys.time_in(key) // QUARTER_MS * QUARTER_MS
        rows[quarter_ms] += 1
        sizes[quarter_ms] += len(key) + len(value)
    noted = {keys.time_in(key) for key, _ in readable(store, Table.DELIVERIES, keys.QUARTERS, keys.LAST)}
    names = [(Table.DELIVERIES, keys.since(keys.QUARTERS, at_ms)) for at_ms in sorted(noted | rows.keys())]
    for table, key in (*names, (Table.META, tables.META_ENDED)):
        now, at_ms = ended.size_of(store, table, key), keys.time_in(key)
        right = tables.EndedSize(rows[at_ms], sizes[at_ms])
        if table is Table.META:
            right = tables.EndedSize(rows.total(), sizes.total())
        if now != right:
            why = f"says {now.rows} ends of {now.size} bytes, there are {right.rows} of {right.size}"
            yield Pointer(table, key, why, tables.encode_row(right))


def _is_named(store: Store, key: bytes, value: bytes) -> bool:
    """Whether a row of these lists, or a record, belongs to a delivery that is as it says."""
    kind = key[:1]
    if kind in (keys.RECORD, keys.MOVED, keys.DROPPED):
        name = Name(keys.whose_of(key), keys.root_of(key))
    elif kind == keys.WAITS_OF:
        name = Name(key[1 : 1 + keys.WHOSE_BYTES], keys.place_of(value))
    else:
        name = Name(value[: keys.WHOSE_BYTES], keys.place_of(value))
    if kind == keys.RECORD:
        return store.get(Table.DELIVERIES, keys.state(*name)) is not None
    row = stored(store, name)
    return row is not None and key in names_of(row)


def _retained(store: Store) -> Iterator[Pointer]:
    for key, topic in readable(store, Table.RETAINED, _TOPIC_END, ROWS_END):
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
