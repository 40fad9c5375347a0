"""Messages that are kept for one place alone: retries, which wait for their next try, and dead letters.

A *place* is a session or a group. What it has been sent and could not do is no message of the timeline any
more: it is the place's own. Both tables have the same rows, a message each under a position, which the writer
gives as to any message; what the position says differs:

    retries    when the next try is due          dead    when it died

More rows name each: by whose it is, and by its message. A message that two places keep is kept twice.

    0 · position            KeptRow: the message, whose it is, its tries and why the last one failed
    1 · whose · position    empty
    2 · id · position       empty; also by `KeptRow.stood_as`
    3 · whose               how many (8); in `retries` only
    4 · id · whose          KeptRow without the message: the place has dropped it; in `retries` only

*Whose* a dead letter is, is the group as people call it. Of a retry it is the place and its *incarnation*: a
place that is ended and made anew under the same name finds nothing of the one before.

How many there are and their bytes stand in `meta` and go with each change, so that nothing is counted at
start and a group commit that is not written leaves no trace.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from timeline.position import END, START, MessageId, Position

from . import keys
from .errors import Corrupt
from .open_group import OpenGroup
from .store import Store, Table
from .tables import (
    KeptRow,
    KeptTotals,
    count_from,
    count_value,
    encode_row,
    kept_row_of,
    kept_totals_from,
    kept_totals_value,
)
from .unreadable import readable

log = logging.getLogger(__name__)

ROW_BYTES = 80
"""What one takes besides its value: the keys of its three rows."""
NONE = KeptTotals(0, 0, START)

Letter = tuple[Position, KeptRow]
"""Where it stands, and what it is."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One of the two tables. Methods that take an `OpenGroup` are for the writer, and see what it has put."""

    table: Table
    meta: bytes
    """The key of its totals."""
    whose: Callable[[KeptRow], bytes]
    """What the rows that name one by whose it is begin with."""
    is_counted: bool
    """How many somebody has stands in a row."""

    # -- in the writer

    def put(self, group: OpenGroup, place: Position, row: KeptRow) -> None:
        """Keep one more."""
        value = encode_row(row)
        for key in self.keys(place, row):
            group.row(self.table, key, value if key[0] == 0 else b"")
        self._count(group, row, 1, size_of(value))

    def at(self, group: OpenGroup, place: Position) -> KeptRow | None:
        """The one of that position, if it is there still. Raises Corrupt."""
        value = group.get(self.table, keys.kept(place))
        return None if value is None else kept_row_of(value)

    def remove(self, group: OpenGroup, place: Position, row: KeptRow) -> bool:
        """It is kept no more; False if it was not any more."""
        value = group.get(self.table, keys.kept(place))
        if value is None:
            return False
        for key in self.keys(place, row):
            group.row(self.table, key, None)
        self._count(group, row, -1, -size_of(value))
        return True

    def of_message_in(self, group: OpenGroup, message: MessageId) -> list[Letter]:
        """Those of a message, also those that this group commit has put. One that cannot be read is passed
        over."""
        return [*self.each_of_message_in(group, message)]

    def each_of_message_in(self, group: OpenGroup, message: MessageId) -> Iterator[Letter]:
        """The same one by one, for who changes nothing meanwhile."""
        name = keys.kept_of_message(message)
        stored = [key for key, _ in readable(group.store, self.table, name, name + keys.LAST)]
        for key in dict.fromkeys([*stored, *group.fresh(self.table, name)]):
            place = keys.place_of(key)
            value = group.get(self.table, keys.kept(place))
            row = None if value is None else _readable(key, value)
            if row is not None:
                yield place, row

    def totals(self, group: OpenGroup) -> KeptTotals:
        """As the open group leaves them."""
        return _totals(group.get(Table.META, self.meta))

    def set_totals(self, group: OpenGroup, now: KeptTotals) -> None:
        group.row(Table.META, self.meta, kept_totals_value(now))

    def _count(self, group: OpenGroup, row: KeptRow, count: int, size: int) -> None:
        before = self.totals(group)
        after = KeptTotals(max(0, before.count + count), max(0, before.bytes + size), before.oldest)
        self.set_totals(group, after)
        if self.is_counted:
            key = keys.kept_count(self.whose(row))
            left = max(0, _count(group.get(self.table, key)) + count)
            group.row(self.table, key, count_value(left) if left else None)

    # -- as it is stored

    def stored_totals(self, store: Store) -> KeptTotals:
        """How many there are, and their bytes."""
        return _totals(store.get(Table.META, self.meta))

    def count_of(self, store: Store, whose: bytes) -> int:
        """How many somebody has, where that is counted."""
        return _count(store.get(self.table, keys.kept_count(whose)))

    def stored_at(self, store: Store, place: Position) -> KeptRow | None:
        """The one of that position. Raises Corrupt."""
        value = store.get(self.table, keys.kept(place))
        return None if value is None else kept_row_of(value)

    def all(self, store: Store, start: Position = START, end: Position = END) -> Iterator[Letter]:
        """Those of start <= position < end, in this order. One that cannot be read is passed over."""
        for key, value in readable(store, self.table, keys.kept(start), keys.kept(end)):
            row = _readable(key, value)
            if row is not None:
                yield keys.place_of(key), row

    def of(
        self, store: Store, whose: bytes, start: Position = START, end: Position = END
    ) -> Iterator[tuple[Position, KeptRow | None]]:
        """The same of somebody, whose name two may have; None for one that cannot be read."""
        for key, _ in readable(store, self.table, whose + keys.place(start), whose + keys.place(end)):
            place = keys.place_of(key)
            value = store.get(self.table, keys.kept(place))
            if value is not None:
                yield place, _readable(key, value)

    def first_of(self, store: Store, whose: bytes, start: Position = START) -> Position | None:
        """Where the first one of somebody stands, from `start` on."""
        for key, _ in readable(store, self.table, whose + keys.place(start), whose + keys.place(END)):
            return keys.place_of(key)
        return None

    def of_message(self, store: Store, message: MessageId) -> Iterator[Letter]:
        """The same of one message."""
        name = keys.kept_of_message(message)
        for place, row in self.of(store, name):
            if row is not None:
                yield place, row

    def keys(self, place: Position, row: KeptRow) -> tuple[bytes, ...]:
        """Those of its row, and of the rows that name it."""
        at = keys.place(place)
        ids = (row.id, row.stood_as) if row.stood_as else (row.id,)
        named = [keys.kept_of_message(keys.message_of(one)) + at for one in ids]
        return keys.kept(place), self.whose(row) + at, *named


def is_to_be_tried(group: OpenGroup, message: MessageId) -> bool:
    """In the writer: whether some place has the message among its retries; names are looked at alone."""
    name = keys.kept_of_message(message)
    stored = (key for key, _ in readable(group.store, Table.RETRIES, name, name + keys.LAST))
    return any(group.get(Table.RETRIES, key) is not None for key in stored)


def size_of(value: bytes) -> int:
    """What one takes, by its value."""
    return len(value) + ROW_BYTES


def _totals(value: bytes | None) -> KeptTotals:
    """What cannot be read begins anew: `verify --repair` counts."""
    try:
        return NONE if value is None else kept_totals_from(value)
    except Corrupt as error:
        log.error("dead letters and retries: the count is unreadable, counting again: %s", error)
        return NONE


def _count(value: bytes | None) -> int:
    try:
        return 0 if value is None else count_from(value)
    except Corrupt as error:
        log.error("retries: the count of one place is unreadable, counting again: %s", error)
        return 0


def _readable(key: bytes, value: bytes) -> KeptRow | None:
    try:
        return kept_row_of(value)
    except Corrupt as error:
        log.error("row %s: unreadable, skipped: %s", key.hex(), error)
        return None
