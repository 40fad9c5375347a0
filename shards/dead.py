"""Dead letters: messages that a session or group was sent too often, kept until somebody decides.

A row each in the table `dead`, in the order of dying: under a position, which the writer gives as to any
message. The order in which rows stand is that of the list; two more rows, without a value, name each by its
group and by its message. A message that two groups have given up is two dead letters.

    0 · place              DeadRow: the message, who gave it up, after how many deliveries and why
    1 · group · place      empty
    2 · id · place         empty

How many there are and their bytes stand in `meta` and go with each change, so that nothing is counted at
start and a group that is not written leaves no trace. At a bound in number or bytes the oldest ones go.
"""

import logging
from collections.abc import Iterator

from timeline.position import START, MessageId, Position, position

from . import keys
from .commit import Commit
from .errors import Corrupt
from .store import Store, Table
from .tables import (
    META_DEAD,
    DeadRow,
    DeadTotals,
    dead_row_of,
    dead_totals_from,
    dead_totals_value,
    encode_row,
)
from .unreadable import readable

log = logging.getLogger(__name__)

ROW_BYTES = 80
"""What a dead letter takes besides its value: the keys of its three rows."""
NONE = DeadTotals(0, 0, START)

Letter = tuple[Position, DeadRow]
"""Where it died, and what it is."""


def bury(commit: Commit, row: DeadRow, *, max_messages: int, max_bytes: int) -> int:
    """In the writer: keep a dead letter, and drop the oldest ones beyond the bounds; how many went."""
    place = position(commit.horizon.clock_ms, commit.horizon.issue())
    value = encode_row(row)
    for key in _keys(place, row):
        commit.row(Table.DEAD, key, value if key[0] == 0 else b"")
    before = totals(commit)
    _set_totals(commit, DeadTotals(before.count + 1, before.bytes + size_of(value), before.oldest))
    return _drop_oldest(commit, max_messages, max_bytes)


def letter_at(commit: Commit, place: Position) -> DeadRow | None:
    """In the writer: the dead letter of that place, if it is there still. Raises Corrupt."""
    value = commit.get(Table.DEAD, keys.dead(keys.place(place)))
    return None if value is None else dead_row_of(value)


def remove(commit: Commit, place: Position, row: DeadRow) -> None:
    """In the writer: it is no dead letter any more."""
    for key in _keys(place, row):
        commit.row(Table.DEAD, key, None)
    before = totals(commit)
    size = before.bytes - size_of(encode_row(row))
    _set_totals(commit, DeadTotals(max(0, before.count - 1), max(0, size), before.oldest))


def remove_of(commit: Commit, message: MessageId, addressee: str) -> int:
    """In the writer: that session or group, by the name that its rows have, has done the message after all;
    how many dead letters went.

    Also those that this group has buried. One that cannot be read stays.
    """
    name = keys.dead_of_message(keys.message(message))
    stored = [key for key, _ in readable(commit.open_group.store, Table.DEAD, name, name + keys.LAST)]
    gone = 0
    for key in dict.fromkeys([*stored, *commit.open_group.fresh(Table.DEAD, name)]):
        value = commit.get(Table.DEAD, keys.dead(key[len(name) :]))
        row = None if value is None else _readable(key, value)
        if row is not None and row.addressee == addressee:
            remove(commit, keys.place_of(key), row)
            gone += 1
    return gone


def drop_older(commit: Commit, running_ms: int, limit: int) -> int:
    """In the writer: drop those that died before that running time, the oldest ones, `limit` at most; how
    many."""
    gone = 0
    for place, row in _oldest(commit):
        if gone == limit or row.running_ms >= running_ms:
            break
        _drop(commit, place, row)
        gone += 1
    return gone


def names(place: Position, row: DeadRow) -> tuple[bytes, bytes]:
    """The keys of the rows that name a dead letter: by its group, by its message."""
    at = keys.place(place)
    return keys.dead_of_group(row.group) + at, keys.dead_of_message(row.id) + at


def size_of(value: bytes) -> int:
    """What a dead letter takes, by its value."""
    return len(value) + ROW_BYTES


def totals(commit: Commit) -> DeadTotals:
    """As the open group leaves them."""
    return _totals(commit.get(Table.META, META_DEAD))


def stored_totals(store: Store) -> DeadTotals:
    """As they are stored."""
    return _totals(store.get(Table.META, META_DEAD))


def oldest_letter(store: Store) -> Letter | None:
    """The first one that can be read."""
    start = stored_totals(store).oldest
    return next(letters(store, start), None)


def letters(store: Store, start: Position = START) -> Iterator[Letter]:
    """Those that died at or behind `start`, in the order of dying. One that cannot be read is passed over."""
    for key, value in readable(store, Table.DEAD, keys.dead(keys.place(start)), b"\1"):
        row = _readable(key, value)
        if row is not None:
            yield keys.place_of(key), row


def letters_of_group(store: Store, group: str, start: Position = START) -> Iterator[Letter]:
    """The same of one group or session, by the name that people call it."""
    for place, row in _named(store, keys.dead_of_group(group), start):
        if row.group == group:
            yield place, row


def letters_of_message(store: Store, message: MessageId) -> Iterator[Letter]:
    """The same of one message: of each group that has given it up."""
    return _named(store, keys.dead_of_message(keys.message(message)), START)


def _named(store: Store, name: bytes, start: Position) -> Iterator[Letter]:
    end = name + b"\xff" * 13
    for key, _ in readable(store, Table.DEAD, name + keys.place(start), end):
        value = store.get(Table.DEAD, keys.dead(key[len(name) :]))
        row = None if value is None else _readable(key, value)
        if row is not None:
            yield keys.place_of(key), row


def _drop_oldest(commit: Commit, max_messages: int, max_bytes: int) -> int:
    """Until the rest is within the bounds; the one that came last stays, however large."""
    now, gone = totals(commit), 0
    if now.count <= max_messages and now.bytes <= max_bytes:
        return 0
    for place, row in _oldest(commit):
        _drop(commit, place, row)
        gone += 1
        now = totals(commit)
        if now.count <= max_messages and now.bytes <= max_bytes:
            break
    return gone


def _drop(commit: Commit, place: Position, row: DeadRow) -> None:
    """The oldest one goes: the next look begins behind it, not among what is left of those before."""
    remove(commit, place, row)
    now = totals(commit)
    _set_totals(commit, DeadTotals(now.count, now.bytes, Position(place + 1)))


def _oldest(commit: Commit) -> Iterator[Letter]:
    """Those that are stored and that this group has not taken away, the oldest first."""
    for place, row in letters(commit.open_group.store, totals(commit).oldest):
        if commit.get(Table.DEAD, keys.dead(keys.place(place))) is not None:
            yield place, row


def _set_totals(commit: Commit, now: DeadTotals) -> None:
    commit.row(Table.META, META_DEAD, dead_totals_value(now))


def _totals(value: bytes | None) -> DeadTotals:
    """What cannot be read begins anew: `verify --repair` counts."""
    try:
        return NONE if value is None else dead_totals_from(value)
    except Corrupt as error:
        log.error("how many dead letters there are cannot be read, it is counted anew: %s", error)
        return NONE


def _keys(place: Position, row: DeadRow) -> tuple[bytes, bytes, bytes]:
    return keys.dead(keys.place(place)), *names(place, row)


def _readable(key: bytes, value: bytes) -> DeadRow | None:
    try:
        return dead_row_of(value)
    except Corrupt as error:
        log.error("the dead letter at %s is passed over: %s", key.hex(), error)
        return None
