"""Messages kept for one place: retries, which wait for their next try, and dead letters.

A *place* is a session or a group. A message that it received and could not finish leaves the timeline: it now
belongs to the place. Both tables have the same rows, one message each under a position. The writer assigns
the position as for any message; its meaning differs:

    retries    when the next try is due          dead    when it died

More rows name each message: by its place, and by its id. A message kept for two places is stored twice.

    0 · position            KeptRow: the message, its place, its tries and the last failure
    1 · whose · position    empty
    2 · id · position       empty; also by `KeptRow.stood_as`
    3 · whose               how many (8); in `retries` only
    4 · id · whose          KeptRow without the message: the place has dropped it; in `retries` only

*Whose* of a dead letter is the group's name as users know it. Of a retry it is the place and its
*incarnation*: a place that was deleted and created again under the same name finds nothing of the old one.

The counts and bytes are in `meta` and change in the same batch. So nothing is counted at start, and a group
commit that is not written leaves no trace.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from timeline.position import END, START, MessageId, Position

from . import keys
from .errors import Corrupt
from .open_batch import OpenBatch
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
"""Bytes of one besides its value: the keys of its three rows."""
NONE = KeptTotals(0, 0, START)

Letter = tuple[Position, KeptRow]
"""Its position, and its row."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One of the two tables. Methods that take an `OpenBatch` are for the writer and see its changes."""

    table: Table
    meta: bytes
    """The key of the totals."""
    whose: Callable[[KeptRow], bytes]
    """Prefix of the rows that name one by its place."""
    is_counted: bool
    """Whether a row counts those of each place."""

    # -- in the writer

    def put(self, group: OpenBatch, place: Position, row: KeptRow) -> None:
        """Add a message."""
        value = encode_row(row)
        for key in self.keys(place, row):
            group.row(self.table, key, value if key[0] == 0 else b"")
        self._count(group, row, 1, size_of(value))

    def at(self, group: OpenBatch, place: Position) -> KeptRow | None:
        """The row at that position, if it is still there. Raises Corrupt."""
        value = group.get(self.table, keys.kept(place))
        return None if value is None else kept_row_of(value)

    def remove(self, group: OpenBatch, place: Position, row: KeptRow) -> bool:
        """Remove a message; False if it was gone already."""
        value = group.get(self.table, keys.kept(place))
        if value is None:
            return False
        for key in self.keys(place, row):
            group.row(self.table, key, None)
        self._count(group, row, -1, -size_of(value))
        return True

    def of_message_in(self, group: OpenBatch, message: MessageId) -> list[Letter]:
        """Rows of a message, including those that this group commit has put. Unreadable rows are skipped."""
        return [*self.each_of_message_in(group, message)]

    def each_of_message_in(self, group: OpenBatch, message: MessageId) -> Iterator[Letter]:
        """The same one by one, for callers that change nothing meanwhile."""
        name = keys.kept_of_message(message)
        stored = [key for key, _ in readable(group.store, self.table, name, name + keys.LAST)]
        for key in dict.fromkeys([*stored, *group.fresh(self.table, name)]):
            place = keys.place_of(key)
            value = group.get(self.table, keys.kept(place))
            row = None if value is None else _readable(key, value)
            if row is not None:
                yield place, row

    def totals(self, group: OpenBatch) -> KeptTotals:
        """Totals as the open group leaves them."""
        return _totals(group.get(Table.META, self.meta))

    def set_totals(self, group: OpenBatch, now: KeptTotals) -> None:
        group.row(Table.META, self.meta, kept_totals_value(now))

    def _count(self, group: OpenBatch, row: KeptRow, count: int, size: int) -> None:
        before = self.totals(group)
        after = KeptTotals(max(0, before.count + count), max(0, before.bytes + size), before.oldest)
        self.set_totals(group, after)
        if self.is_counted:
            key = keys.kept_count(self.whose(row))
            left = max(0, _count(group.get(self.table, key)) + count)
            group.row(self.table, key, count_value(left) if left else None)

    # -- as stored

    def stored_totals(self, store: Store) -> KeptTotals:
        """Number of messages, and their bytes."""
        return _totals(store.get(Table.META, self.meta))

    def count_of(self, store: Store, whose: bytes) -> int:
        """Number of one place's messages, where they are counted."""
        return _count(store.get(self.table, keys.kept_count(whose)))

    def count_upto(self, store: Store, whose: bytes, most: int) -> int:
        """Number of one place's messages, at most `most`; two places may share the name's hash. Reads keys
        only."""
        found = readable(store, self.table, whose + keys.place(START), whose + keys.place(END))
        return sum(1 for _ in islice(found, most))

    def stored_at(self, store: Store, place: Position) -> KeptRow | None:
        """The row at that position. Raises Corrupt."""
        value = store.get(self.table, keys.kept(place))
        return None if value is None else kept_row_of(value)

    def is_there(self, store: Store, place: Position) -> bool:
        """Whether there is a row at that position."""
        return store.get(self.table, keys.kept(place)) is not None

    def all(self, store: Store, start: Position = START, end: Position = END) -> Iterator[Letter]:
        """Rows with start <= position < end, in order. Unreadable rows are skipped."""
        for key, value in readable(store, self.table, keys.kept(start), keys.kept(end)):
            row = _readable(key, value)
            if row is not None:
                yield keys.place_of(key), row

    def of(
        self, store: Store, whose: bytes, start: Position = START, end: Position = END
    ) -> Iterator[tuple[Position, KeptRow | None]]:
        """Rows of one place; two places may share the name's hash. None for an unreadable row."""
        for key, _ in readable(store, self.table, whose + keys.place(start), whose + keys.place(end)):
            place = keys.place_of(key)
            value = store.get(self.table, keys.kept(place))
            if value is not None:
                yield place, _readable(key, value)

    def first_of(self, store: Store, whose: bytes, start: Position = START) -> Position | None:
        """Position of the first row of one place, from `start` on."""
        for key, _ in readable(store, self.table, whose + keys.place(start), whose + keys.place(END)):
            return keys.place_of(key)
        return None

    def of_message(self, store: Store, message: MessageId) -> Iterator[Letter]:
        """Rows of one message."""
        name = keys.kept_of_message(message)
        for place, row in self.of(store, name):
            if row is not None:
                yield place, row

    def keys(self, place: Position, row: KeptRow) -> tuple[bytes, ...]:
        """Keys of its row, and of the rows that name it."""
        at = keys.place(place)
        ids = (row.id, row.stood_as) if row.stood_as else (row.id,)
        named = [keys.kept_of_message(keys.message_of(one)) + at for one in ids]
        return keys.kept(place), self.whose(row) + at, *named


def is_to_be_tried(group: OpenBatch, message: MessageId) -> bool:
    """In the writer: whether some place has the message among its retries. Looks at keys only."""
    name = keys.kept_of_message(message)
    stored = (key for key, _ in readable(group.store, Table.RETRIES, name, name + keys.LAST))
    return any(group.get(Table.RETRIES, key) is not None for key in stored)


def size_of(value: bytes) -> int:
    """Bytes of one, from its value."""
    return len(value) + ROW_BYTES


def _totals(value: bytes | None) -> KeptTotals:
    """The totals; zero if they cannot be read, until `verify --repair` counts again."""
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
