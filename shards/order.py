"""Rows of groups that order by key (timeline/key_order.py), in the table `order`.

    it orders     \0 · whose (8)                                             -> empty
    key row       \1 · whose (8) · ordering key                              -> KeyRow
    index row     \2 · hour (4) · whose (8) · hash of the key (8) · position -> shard
    burial row    \3 · number of the burial (8) · ordering key               -> KeyRow: to settle

`whose` is the hash that names the place's retries too (keys.py): it has the group's incarnation. Two keys may
share a hash: the message at the position says which one it is of. `hour` is that of the position. Index rows
are derived: what is before `next` of its key is garbage, and goes as one range when the hour has passed the
retention floor.

The first row also is a fence: a node of a version that does not know this table stops before a batch that has
it (changes.py), so it never leads a group that orders.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from struct import Struct

from timeline.key_rows import NO_KEY, NO_SHARD, NOWHERE, Address, Changes, KeyRow
from timeline.position import POSITION_BYTES, START, Position, at_of, before

from . import keys
from .commit import Commit
from .delivery_rows import whose as name_of
from .errors import Corrupt
from .read import Reader
from .record import decode, is_stub
from .store import Store, Table
from .tables import cursor_row_of, group_of, unpacked
from .unreadable import readable

log = logging.getLogger(__name__)

HASH_BYTES = 8
HOUR_MS, _HOUR_BYTES = 3_600_000, 4
HOURS_MAX = 24
"""Hours of the index that are looked through at a time: 0.3 ms."""
REBUILT = 10_000
"""Index rows that a repair writes in one batch, of 37 bytes each."""
_ROW = Struct(f">{POSITION_BYTES}si{POSITION_BYTES}s?")
_SHARD = Struct(">i")


def keys_name(whose: bytes) -> bytes:
    """Prefix of the names of a group's key rows."""
    return b"\1" + whose


def _index_name(whose: bytes, ordering_key: bytes) -> bytes:
    """The part of an index key between the hour and the position."""
    return whose + blake2b(ordering_key, digest_size=HASH_BYTES).digest()


def _hour_name(hour: int) -> bytes:
    return b"\2" + hour.to_bytes(_HOUR_BYTES, "big")


def _placed(name: bytes, place: Position) -> bytes:
    return _hour_name(at_of(place) // HOUR_MS) + name + keys.place(place)


def note_order(commit: Commit, whose: bytes) -> None:
    """In the writer: the group orders."""
    commit.row(Table.ORDER, b"\0" + whose, b"")


def write_changes(commit: Commit, whose: bytes, changes: Changes) -> int:
    """In the writer: put them with the cursor that they belong to. Returns the number of rows."""
    for ordering_key, row in changes.keys.items():
        commit.row(Table.ORDER, keys_name(whose) + ordering_key, None if row is None else value_of(row))
    count = len(changes.keys)
    for ordering_key, places in changes.index.items():
        name = _index_name(whose, ordering_key)
        count += len(places)
        for place, shard in places:
            commit.row(Table.ORDER, _placed(name, place), _SHARD.pack(shard))
    return count


def put_buried(commit: Commit, number: int, rows: Iterable[tuple[bytes, KeyRow]]) -> None:
    """In the writer: followers of these keys, from `next` on, are to be settled by a burial (burials.py)."""
    for ordering_key, row in rows:
        commit.row(Table.ORDER, buried_name(number) + ordering_key, value_of(row))


def buried_name(number: int) -> bytes:
    return b"\3" + number.to_bytes(8, "big")


def clear_keys(commit: Commit, whose: bytes) -> None:
    """In the writer: the place has ended, and its followers are settled, if it ordered."""
    if commit.open_batch.get(Table.ORDER, b"\0" + whose) is None:
        return
    commit.open_batch.clear(Table.ORDER, keys_name(whose), keys_name(whose) + keys.LAST * 6)
    commit.row(Table.ORDER, b"\0" + whose, None)


def clear_index(commit: Commit, floor: Position) -> None:
    """In the writer: the index of hours before the retention floor is garbage."""
    start, end = _hour_name(0), _hour_name(at_of(floor) // HOUR_MS)
    if next(readable(commit.open_batch.store, Table.ORDER, start, end), None) is not None:
        commit.open_batch.clear(Table.ORDER, start, end)


def rows_under(store: Store, name: bytes) -> Iterator[tuple[bytes, KeyRow]]:
    """Key rows whose names begin so: ordering key and row. Unreadable ones are passed over."""
    for key, value in readable(store, Table.ORDER, name, name + keys.LAST * 6):
        try:
            row = row_of(value)
        except Corrupt as error:
            log.error("order of keys: %r: what waits for this key is lost: %s", key[len(name) :], error)
            row = KeyRow()
        yield key[len(name) :], row


def rebuild_index(store: Store, reader: Reader) -> int:
    """Write the index rows of all messages whose keys are behind, by the key rows; durable on return. Returns
    their number. A message that the group does not want is passed over when it is given."""
    behind: dict[bytes, list[tuple[bytes, Position, Position]]] = {}
    groups = keys.GROUP_PREFIX.encode()
    for key, value in readable(store, Table.SESSIONS, groups, groups + keys.LAST * 6):
        with suppress(Corrupt):
            of = name_of(key.decode(), group_of(value).incarnation)
            cursor = store.get(Table.CURSORS, key)
            read = START if cursor is None else keys.place_of(cursor_row_of(cursor).place)
            for ordering_key, row in rows_under(store, keys_name(of)):
                if row.next != NOWHERE:
                    behind.setdefault(ordering_key, []).append((of, row.next, read))
    spans = [(first, read) for waiting in behind.values() for _, first, read in waiting]
    start, end = (
        min([first for first, _ in spans], default=START),
        max([read for _, read in spans], default=START),
    )
    count, batch = 0, store.batch()
    for place, shard, value in reader.read(start, Position(end + 1)):
        if is_stub(value):
            continue
        with suppress(Corrupt):
            ordering_key = decode(value).ordering_key or NO_KEY
            for of, first, read in behind.get(ordering_key, ()):
                if first <= place <= read:
                    batch.put(Table.ORDER, _placed(_index_name(of, ordering_key), place), _SHARD.pack(shard))
                    count += 1
                    if len(batch) >= REBUILT:
                        store.write(batch)
                        batch = store.batch()
    store.write(batch)
    store.flush()
    return count


def followers(
    store: Store, whose: bytes, ordering_key: bytes, start: Position, end: Position, most: int
) -> tuple[list[Address], Position]:
    """At most `most` index rows of a key (or of one with its hash), from `start` up to `end`, in order; and
    up to where these are all, if they are fewer."""
    name, found = _index_name(whose, ordering_key), list[Address]()
    first = hour = at_of(start) // HOUR_MS
    while before(hour * HOUR_MS) <= end and len(found) < most:
        if hour - first == HOURS_MAX:
            return found, Position(before(hour * HOUR_MS) - 1)
        prefix = _hour_name(hour) + name
        rows = readable(
            store, Table.ORDER, prefix + keys.place(start), prefix + keys.place(Position(end + 1))
        )
        found += [(keys.place_of(key), _shard_of(value)) for key, value in islice(rows, most - len(found))]
        hour += 1
    return found, end


def given_up(
    store: Store, whose: bytes, key: bytes, row: KeyRow, upto: Position, most: int
) -> tuple[list[Address], KeyRow]:
    """The first messages up to `upto` that wait for a key, as its row says: some `most`; and what is left of
    its row."""
    if not NOWHERE < row.next <= upto:
        return [], KeyRow()  # all were given, or are read again
    places, end = followers(store, whose, key, row.next, upto, most)
    if len(places) == most:
        end = places[-1][0]
    if row.shard != NO_SHARD and places[:1] != [(row.next, row.shard)]:
        places.insert(0, (row.next, row.shard))
    return places, KeyRow(Position(end + 1)) if end < upto else KeyRow()


def value_of(row: KeyRow) -> bytes:
    return _ROW.pack(keys.place(row.next), row.shard, keys.place(row.root), row.by_hand)


def row_of(value: bytes) -> KeyRow:
    """Raises Corrupt."""
    place, shard, root, by_hand = unpacked(_ROW, value)
    return KeyRow(keys.place_of(place), shard, keys.place_of(root), by_hand)


def _shard_of(value: bytes) -> int:
    return int(unpacked(_SHARD, value)[0])


def check_row(key: bytes, value: bytes) -> None:
    """For `verify`. Raises Corrupt."""
    if key[:1] in b"\1\3":
        row_of(value)
    elif key[:1] == b"\2":
        _shard_of(value)
