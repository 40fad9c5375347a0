"""Rows of groups that order by key (timeline/key_order.py), in the table `order`.

    key row      \1 · whose (8) · ordering key                    -> next, shard, wait, root, flags
    index row    \2 · whose (8) · hash of the key (8) · position  -> shard

    burial row    \3 · number of the burial (8) · ordering key     -> as a key row: followers to settle

`whose` is the hash that names the place's retries too (keys.py): it has the group's incarnation. Two keys may
share a hash: the message at the position says which one it is of. Index rows are derived: what is before
`next` of its key is garbage.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from struct import Struct
from struct import error as StructError  # noqa: N812

from timeline.key_order import Address, Changes, KeyRow
from timeline.position import POSITION_BYTES, Position

from . import keys
from .commit import Commit
from .errors import Corrupt
from .store import Store, Table
from .unreadable import readable

HASH_BYTES = 8
_WHOSE_BYTES = 9
"""Of what begins the keys of a place's retries: a byte, and the hash."""
_ROW = Struct(f">{POSITION_BYTES}si{POSITION_BYTES}s{POSITION_BYTES}sB")
_SHARD = Struct(">i")
_HELD = 1


def _key_name(whose: bytes, ordering_key: bytes) -> bytes:
    return b"\1" + whose[1:] + ordering_key


def _index_name(whose: bytes, ordering_key: bytes) -> bytes:
    return b"\2" + whose[1:] + blake2b(ordering_key, digest_size=HASH_BYTES).digest()


def write_changes(commit: Commit, whose: bytes, changes: Changes) -> int:
    """In the writer: put them with the cursor that they belong to. Returns the number of rows."""
    for ordering_key, row in changes.keys.items():
        commit.row(Table.ORDER, _key_name(whose, ordering_key), None if row is None else value_of(row))
    count = len(changes.keys)
    for ordering_key, places in changes.index.items():
        name = _index_name(whose, ordering_key)
        count += len(places)
        for place, shard in places:
            commit.row(Table.ORDER, name + keys.place(place), _SHARD.pack(shard))
    return count


def put_buried(commit: Commit, number: int, rows: Iterable[tuple[bytes, KeyRow]]) -> None:
    """In the writer: followers of these keys, from `next` on, are to be settled by a burial (burials.py)."""
    for ordering_key, row in rows:
        commit.row(Table.ORDER, buried_name(number) + ordering_key, value_of(row))


def buried_name(number: int) -> bytes:
    return b"\3" + number.to_bytes(8, "big")


def first_buried(store: Store, number: int) -> tuple[bytes, KeyRow] | None:
    """The first key of a burial. Raises Corrupt."""
    start = buried_name(number)
    for key, value in readable(store, Table.ORDER, start, start + keys.LAST * 6):
        return key[_WHOSE_BYTES:], row_of(value)
    return None


def clear_keys(commit: Commit, whose: bytes) -> None:
    """In the writer: the group has ended. Its index stays until its followers are settled."""
    commit.clear(Table.ORDER, b"\1" + whose[1:], b"\1" + whose[1:] + keys.LAST * 6)


def clear_index(commit: Commit, whose: bytes) -> None:
    """In the writer: nobody reads the index any more."""
    commit.clear(Table.ORDER, b"\2" + whose[1:], b"\2" + whose[1:] + keys.LAST)


def key_rows(store: Store, whose: bytes) -> Iterator[tuple[bytes, KeyRow]]:
    """Key rows of a group. Raises Corrupt."""
    start = b"\1" + whose[1:]
    for key, value in readable(store, Table.ORDER, start, start + keys.LAST * 6):
        yield key[_WHOSE_BYTES:], row_of(value)


def followers(
    store: Store, whose: bytes, ordering_key: bytes, start: Position, end: Position, most: int
) -> list[Address]:
    """At most `most` index rows of a key (or of one with its hash), from `start` up to `end`, in order."""
    name = _index_name(whose, ordering_key)
    found = readable(store, Table.ORDER, name + keys.place(start), name + keys.place(Position(end + 1)))
    return [(keys.place_of(key), _shard_of(value)) for key, value in islice(found, most)]


def value_of(row: KeyRow) -> bytes:
    return _ROW.pack(
        keys.place(row.next), row.shard, keys.place(row.wait), keys.place(row.root), _HELD * row.is_held
    )


def row_of(value: bytes) -> KeyRow:
    """Raises Corrupt."""
    try:
        place, shard, wait, root, flags = _ROW.unpack(value)
    except StructError as error:
        raise Corrupt(f"key row of {len(value)} bytes: {error}") from error
    return KeyRow(keys.place_of(place), shard, keys.place_of(wait), keys.place_of(root), flags == _HELD)


def _shard_of(value: bytes) -> int:
    try:
        return int(_SHARD.unpack(value)[0])
    except StructError as error:
        raise Corrupt(f"index row of {len(value)} bytes: {error}") from error


def check_row(key: bytes, value: bytes) -> None:
    """For `verify`. Raises Corrupt."""
    if key[:1] == b"\1":
        row_of(value)
    else:
        _shard_of(value)
