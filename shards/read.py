"""All reads of messages: by id, or a range of the timeline in position order.

A row is (position, shard number, stored value). `read` merges the shards of each slice, own and borrowed,
slice after slice. It opens iterators when it reaches a slice, and they do not see later writes. So a caller
reads a bounded run, closes it, and trusts it only up to the horizon (or `loaded`) at the beginning of the
run.

Ranges that the engine cannot read are skipped (`unreadable`); a look-up of one message there raises Corrupt.
A shard with such a range takes no more messages.
"""

from collections.abc import Callable, Iterator
from heapq import merge
from operator import itemgetter
from typing import NamedTuple, cast

from timeline.position import (
    END,
    HELD_SHARD,
    MessageId,
    Position,
    id_position,
    id_shard,
    message_id,
)
from timeline.slices import Directory, Shard, Slice
from timeline.structures import Structures

from . import keys
from .errors import Corrupt
from .record import is_moved
from .state import Journal
from .store import Store, Table
from .tables import RowAddress
from .unreadable import Unreadable

Row = tuple[Position, int, bytes]
"""(position, shard number, value)."""

Getter = Callable[[Table, bytes], bytes | None]

_first = itemgetter(0)
_place_of = cast("Callable[[bytes], Position]", int.from_bytes)
"""The position at the end of a key. One call a row; `Position(...)` around it would be a second."""


class Found(NamedTuple):
    """A message looked up by id: the row that holds it now. `shard` is None in the table `held`."""

    id: MessageId
    position: Position
    shard: Shard | None
    value: bytes

    @property
    def address(self) -> RowAddress:
        return self.position, HELD_SHARD if self.shard is None else self.shard.number

    @property
    def row_id(self) -> MessageId:
        return message_id(*self.address, self.id >> 48 & 0xFFFF)


class Reader:
    """Look-ups and ordered reads over one store and its directory."""

    def __init__(self, store: Store, directory: Directory, structures: Structures) -> None:
        self._store = self.store = store
        self.directory = directory
        self.structures = structures
        self.unreadable = Unreadable()

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._store.get(table, key)

    def find(self, wanted: MessageId) -> Found | None:
        """The message with this id, wherever moves have taken it; None if it is not there."""
        return find(self._store.get, self.directory, wanted)

    def value_at(self, place: Position, number: int) -> bytes | None:
        """The stored value of the row at `place` in the shard of that number."""
        shard = _shard_at(self.directory, place, number)
        return self._store.get(Table.MESSAGES, shard.prefix + keys.place(place)) if shard else None

    def read(self, start: Position, end: Position, structures: set[int] | None = None) -> Iterator[Row]:
        """Rows with start <= position < end in position order, stubs included.

        With `structures` (from `structures.overlapping`) only shards of those are read.
        """
        for piece in self.directory.over(start, end):
            runs = [self.run(piece, shard, start, end) for shard in piece.over(start, end, structures)]
            if len(runs) == 1:
                yield from runs[0]
            elif runs:
                yield from merge(*runs, key=_first)

    def held(self) -> Iterator[Row]:
        """Messages that wait because the clock was set back, in (due, seq) order."""
        for key, value in self.unreadable.scan(self._store, Table.HELD, b"", keys.LAST):
            yield keys.place_of(key), HELD_SHARD, value

    def dispatched_ms(self, place: Position) -> int | None:
        """When the message at `place` was dispatched, wall ms; None if the journal does not say."""
        return Journal(self._store, skips_damage=True).dispatched_ms(place)

    def numbered(self, number: int, start: Position, end: Position) -> Iterator[Row]:
        """Rows of the shards with this number, in position order, in whatever slices are there now."""
        for piece in self.directory.over(start, end):
            shard = piece.shard(number)
            if shard is not None:
                yield from self.run(piece, shard, start, end)

    def run(self, piece: Slice, shard: Shard, start: Position, end: Position) -> Iterator[Row]:
        """One shard's rows within its slice and start <= position < end, in position order."""
        low, high = piece.within(start, end)
        prefix, number = shard.prefix, shard.number
        start_key, top = prefix + low.to_bytes(12, "big"), prefix + min(high, END).to_bytes(12, "big")
        if prefix not in self.unreadable:
            key = b""
            try:
                for key, value in self._store.scan(Table.MESSAGES, start_key, top):
                    yield _place_of(key[10:]), number, value
            except Corrupt as error:
                at = key + b"\0" if key else start_key
                start_key = self.unreadable.meet(self._store, Table.MESSAGES, at, top, prefix, error)
                self.seal(piece)
            else:
                return
        for key, value in self.unreadable.scan(self._store, Table.MESSAGES, start_key, top, prefix):
            yield _place_of(key[10:]), number, value
        self.seal(piece)

    def seal(self, piece: Slice) -> None:
        """Take no more messages into shards with unreadable ranges: readers might not find them."""
        for structure, shard in list(piece.newest.items()):
            if shard.prefix in self.unreadable:
                del piece.newest[structure]

    def unreadable_row(self, place: Position, number: int, error: Corrupt) -> None:
        """Note that dispatch has reached a message that it cannot read."""
        shard = _shard_at(self.directory, place, number)
        if shard is not None:
            self.unreadable.row(shard.prefix, place, error)


def find(get: Getter, directory: Directory, wanted: MessageId) -> Found | None:
    """Look up a message through `get`, which may see writes that are still being composed."""
    now = wanted
    for _ in range(2):
        found = row_at(get, directory, wanted, now)
        if found is not None and not is_moved(found.value):
            return found
        target = get(Table.MOVED, keys.message(wanted))
        if target is None:
            return None
        now = keys.message_of(target)
        if id_position(now) < directory.floor and id_shard(now) != HELD_SHARD:
            return None
    raise Corrupt(f"message {wanted:032x} is said to have moved to {now:032x}, which is moved too")


def row_at(get: Getter, directory: Directory, wanted: MessageId, row: MessageId) -> Found | None:
    """The row at an address, if it is the message's; a stub too."""
    place, number = id_position(row), id_shard(row)
    if number == HELD_SHARD:
        value = get(Table.HELD, keys.place(place))
        return None if value is None else Found(wanted, place, None, value)
    shard = _shard_at(directory, place, number)
    if shard is None:
        return None
    value = get(Table.MESSAGES, shard.prefix + keys.place(place))
    return None if value is None else Found(wanted, place, shard, value)


def _shard_at(directory: Directory, place: Position, number: int) -> Shard | None:
    piece = directory.find(place >> 48)
    return piece.shard(number) if piece else None
