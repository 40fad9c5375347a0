"""Deliveries that have rows: a message at one place that waits for its next try, or is a dead letter.

A *place* is one incarnation of a session or group. A delivery is called by its place and its *root*: the
position of the message when the place was given it. It is called so for its life. One message at one place
has one row, so it never waits and is dead at a time, and comes once after a kill. `whose`, its place, and
`name`, what users call that, are hashes of 8 bytes, `root` and `at` positions of 12, `id` has 16.

    0 · whose · root    StateRow: whether it waits or is dead, since when, its tries. Small, written anew.
                        A withheld one waits too, until it is given up
    1 · root · whose    RecordRow: the message as it first failed, and the names of its place. Written once
    2 · whose · at      root: those of a place that wait, by the time of their next try
    3 · at              whose and root: the same of all places
    4 · at              whose and root: dead letters, by the time of death
    5 · name · at       whose and root: the same of one name, as users know it: they outlive their place
    6 · id · root · whose   empty: of a message that was moved, so that its id says another position
    7 · whose           how many wait
    8 · root · whose    empty: of a message that its place has dropped undone

A delivery that is out keeps its row, and its place has a flight over the root. The row goes in the batch with
the cursor that finishes it. Without a row, what a place has read is done.

What the rows of a delivery cost, in look-ups and in rows that change:

    it fails first     2 looked up, 5 changed       it dies                4 looked up, 7 changed
    it fails again     1 looked up, 5 changed       it is done after all   3 looked up, 5 changed

The number and bytes of dead letters are in `meta` and change in the same batch. So nothing is counted at
start, and a group commit that is not written leaves no trace. A waiting one counts as pending.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from timeline.delivery_rows import DeliveryRow as Life
from timeline.delivery_rows import State, Try
from timeline.position import END, START, MessageId, Position, at_of, id_position

from . import keys
from .errors import Corrupt
from .fields import Record, Retry, TryRow
from .open_batch import OpenBatch
from .record import decode, encode
from .store import Store, Table
from .tables import (
    DEAD,
    DROPPED,
    META_DEAD,
    UNDONE,
    WAITING,
    WITHHELD,
    KeptTotals,
    RecordRow,
    StateRow,
    encode_row,
    kept_totals_from,
    number_from,
    record_row_of,
    state_row_of,
)
from .unreadable import readable

log = logging.getLogger(__name__)

ROW_BYTES = 100
"""Bytes of a dead letter besides the values of its state and its record: the keys of its rows."""
NONE = KeptTotals(0, 0, START)
_STATES = {WAITING: State.WAITING, DEAD: State.DEAD, DROPPED: State.DROPPED, WITHHELD: State.WITHHELD}
_NUMBERS = {state: number for number, state in _STATES.items()}
Row = TypeVar("Row")


class Name(NamedTuple):
    """Identifies a delivery."""

    whose: bytes
    """Its place (`whose`)."""
    root: Position


class DeliveryRow(msgspec.Struct, frozen=True):
    """A delivery as its rows say it: its name, then what is in StateRow, then what is in RecordRow."""

    whose: bytes
    root: Position
    state: int
    at: Position
    attempts: int
    counted: int
    reason: str
    keeper: str
    running_ms: int
    due_ms: int
    tries: list[TryRow]
    returns: int
    addressee: str
    group: str
    incarnation: int
    id: MessageId
    shard: int
    record: bytes

    def is_of(self, addressee: str, incarnation: int) -> bool:
        """Whether it is of this very place, not of a former one of the same name."""
        return self.addressee == addressee and self.incarnation == incarnation

    @property
    def name(self) -> Name:
        return Name(self.whose, self.root)

    @property
    def is_waiting(self) -> bool:
        """Whether it is given again: when it is due, or when its sender may send it."""
        return self.state in UNDONE

    @property
    def is_withheld(self) -> bool:
        return self.state == WITHHELD

    @property
    def is_dead(self) -> bool:
        return self.state == DEAD

    @property
    def is_dropped(self) -> bool:
        """It was dropped undone. What its message was is not known here."""
        return self.state == DROPPED

    def message(self) -> Record:
        """The message as its place gets it again, or would. Raises Corrupt."""
        record = decode(self.record)
        since_ms = self.due_ms or record.due_ms or at_of(self.root)
        if self.is_dead:
            return msgspec.structs.replace(record, due_ms=since_ms) if self.due_ms else record
        due_ms = at_of(self.at)
        left_ms = max(1, since_ms + record.expires_ms - due_ms) if record.expires_ms else 0
        retry = Retry(self.attempts, self.counted, self.reason.encode(), self.tries, self.returns)
        return msgspec.structs.replace(
            record,
            id=self.id,
            due_ms=due_ms,
            expires_ms=left_ms,
            key=b"",
            zone=b"",
            drop_late=False,
            retry=retry,
        )


def whose(addressee: str, incarnation: int) -> bytes:
    """What a place is called in the names of its deliveries. Two places may share it, by a chance of 2^-64:
    then their lists and counts are one, and so are the rows of a message that both have."""
    return keys.hash_of(f"{addressee}\0{incarnation}")


def of_rows(name: Name, state: StateRow, row: RecordRow) -> DeliveryRow:
    kind, at, *tried = astuple(state)
    *place, message, shard, record = astuple(row)
    fields = (*name, kind, keys.place_of(at), *tried, *place, keys.message_of(message), shard, record)
    return DeliveryRow(*fields)


def new_row(
    whose: bytes, names: tuple[str, str, int], root: Position, message: MessageId, shard: int, record: Record
) -> DeliveryRow:
    """The first row of a delivery, which waits. `names`: of its place in rows, as users know it, and its
    incarnation."""
    stored = encode(record if record.retry is None else msgspec.structs.replace(record, retry=None))
    counts = 0, 0, "", "", 0, 0, list[TryRow](), 0
    return DeliveryRow(whose, root, WAITING, START, *counts, *names, message, max(shard, 0), stored)


def life_of(row: DeliveryRow) -> Life:
    """What the table of its life knows of it (timeline/deliveries.py)."""
    state, tries = _STATES[row.state], tuple([Try(*astuple(one)) for one in row.tries])
    counts = row.attempts, row.counted, row.reason, tries, row.returns
    return Life(state, row.at, *counts, row.keeper, row.running_ms, row.due_ms)


def with_life(row: DeliveryRow, life: Life) -> DeliveryRow:
    """The delivery as the table leaves it."""
    fields = life._asdict()
    fields.update(state=_NUMBERS[life.state], tries=[TryRow(*one) for one in life.tries])
    del fields["replay"]  # it is not stored
    return msgspec.structs.replace(row, **fields)


def state_of(row: DeliveryRow) -> StateRow:
    _, _, kind, at, *tried = astuple(row)[:12]
    return StateRow(kind, keys.place(at), *tried)


def record_of(row: DeliveryRow) -> RecordRow:
    return RecordRow(row.addressee, row.group, row.incarnation, keys.message(row.id), row.shard, row.record)


# -- as the open group leaves them


def at(group: OpenBatch, name: Name) -> DeliveryRow | None:
    """The delivery as the open group leaves it; None: it has no row that can be read."""
    value = group.get(Table.DELIVERIES, keys.state(*name))
    return None if value is None else with_state(group, name, value)


def with_state(group: OpenBatch, name: Name, value: bytes) -> DeliveryRow | None:
    """The delivery whose state row is `value`; None: it cannot be read."""
    state = _readable(name, state_row_of, value)
    return None if state is None else _with_record(group, name, state)


def state_at(group: OpenBatch, name: Name) -> StateRow | None:
    """Its state alone, which is a fraction of its bytes."""
    value = group.get(Table.DELIVERIES, keys.state(*name))
    return None if value is None else _readable(name, state_row_of, value)


def of_message_in(group: OpenBatch, message: MessageId) -> Iterator[DeliveryRow]:
    """Deliveries of a message, including those that this group commit has put. Unreadable rows are skipped.
    For callers that change nothing meanwhile."""
    for name in _names_in(group, message):
        row = at(group, name)
        if row is not None and row.id == message:
            yield row


def is_waiting_in(group: OpenBatch, message: MessageId) -> bool:
    """In the writer: whether some place has the message waiting for its next try."""
    for name in _names_in(group, message):
        state = state_at(group, name)
        if state is not None and state.state in UNDONE:
            row = _with_record(group, name, state)
            if row is not None and row.id == message:
                return True
    return False


def _names_in(group: OpenBatch, message: MessageId) -> Iterator[Name]:
    """Names that deliveries of the message have, or that others have which stand where its id says."""
    table, starts = Table.DELIVERIES, _prefixes(message)
    seen = set()
    for start in starts:
        for key, _ in readable(group.store, table, start, start + keys.LAST):
            if group.get(table, key) is not None:
                seen.add(key)
                yield name_in(key)
    yield from (name_in(key) for key in group.fresh(table, starts) if key not in seen)


def _prefixes(message: MessageId) -> tuple[bytes, bytes]:
    """Prefixes of the keys of a message's deliveries: by its position, and by its id if it was moved."""
    return keys.record(id_position(message), b""), keys.MOVED + keys.message(message)


def name_in(key: bytes) -> Name:
    """The name in the key of a record, of a moved message, or of a dropped one."""
    return Name(keys.whose_of(key), keys.root_of(key))


def _with_record(group: OpenBatch, name: Name, state: StateRow) -> DeliveryRow | None:
    value = group.get(Table.DELIVERIES, keys.record(name.root, name.whose))
    record = None if value is None else _readable(name, record_row_of, value)
    return None if record is None else of_rows(name, state, record)


# -- as stored


def stored(store: Store, name: Name) -> DeliveryRow | None:
    """The delivery as it is stored; None: it has no row. Raises Corrupt."""
    state = store.get(Table.DELIVERIES, keys.state(*name))
    record = None if state is None else store.get(Table.DELIVERIES, keys.record(name.root, name.whose))
    if state is None or record is None:
        return None
    return of_rows(name, state_row_of(state), record_row_of(record))


def is_there(store: Store, name: Name, *states: int) -> bool:
    """Whether the delivery has a row of one of these states."""
    with suppress(Corrupt):
        value = store.get(Table.DELIVERIES, keys.state(*name))
        return value is not None and state_row_of(value).state in states
    return False


def roots(store: Store, whose: bytes, start: Position) -> Iterator[Position]:
    """Roots of a place's deliveries that have rows, from `start` on, in order."""
    for key, _ in _between(store, keys.STATE + whose, start):
        yield keys.place_of(key)


def waiting_of(
    store: Store, whose: bytes, start: Position = START, end: Position = END
) -> Iterator[tuple[Position, Position]]:
    """(at, root) of those of a place that wait, start <= at < end, in the order of their tries."""
    for key, value in _between(store, keys.WAITS_OF + whose, start, end):
        yield keys.place_of(key), keys.place_of(value)


def waits_at(store: Store, name: Name, place: Position) -> DeliveryRow | None:
    """A delivery that waits until then; None: it does not, or cannot be read."""
    row = _stored(store, name)
    return row if row is not None and row.is_waiting and row.at == place else None


def first_waiting(store: Store, whose: bytes, start: Position = START) -> Position | None:
    """When the first of a place waits, from `start` on."""
    return next((place for place, _ in waiting_of(store, whose, start)), None)


def waiting(store: Store, start: Position = START) -> Iterator[DeliveryRow]:
    """Waiting deliveries of all places, from `start` on, in the order of their tries."""
    return _listed(store, UNDONE, keys.WAITS, start)


def withheld(store: Store, start: Position) -> Iterator[tuple[Position, Name | None]]:
    """Waiting deliveries of all places, from `start` on, in that order: (at, name; None: it is not withheld).
    Reads no records."""
    for key, value in _between(store, keys.WAITS, start):
        name = Name(value[: keys.WHOSE_BYTES], keys.place_of(value))
        yield keys.place_of(key), name if is_there(store, name, WITHHELD) else None


def dead(store: Store, start: Position = START) -> Iterator[DeliveryRow]:
    """Dead letters of all places, by time of death, from `start` on."""
    return _listed(store, (DEAD,), keys.DEAD, start)


def dead_of(store: Store, name: str, start: Position = START) -> Iterator[DeliveryRow]:
    """Dead letters of the places that users call so."""
    found = _listed(store, (DEAD,), keys.DEAD_OF + keys.hash_of(name), start)
    return (row for row in found if row.group == name)


def count_dead(store: Store, name: str, most: int) -> int:
    """Number of a name's dead letters, at most `most`. Reads keys only."""
    return sum(1 for _ in islice(_between(store, keys.DEAD_OF + keys.hash_of(name)), most))


def oldest_dead(store: Store) -> DeliveryRow | None:
    """The oldest dead letter that can be read."""
    return next(dead(store, totals(store).oldest), None)


def of_message(store: Store, message: MessageId) -> Iterator[DeliveryRow]:
    """Deliveries of one message, of all places."""
    for start in _prefixes(message):
        for key, _ in readable(store, Table.DELIVERIES, start, start + keys.LAST):
            row = _stored(store, name_in(key))
            if row is not None and row.id == message:
                yield row


def recorded(store: Store, start: Position, end: Position) -> Iterator[tuple[Name, RecordRow]]:
    """Deliveries with a record, start <= root < end, in the order of their roots. What cannot be read is
    skipped."""
    for key, value in _between(store, keys.RECORD, start, end):
        name = name_in(key)
        row = _readable(name, record_row_of, value)
        if row is not None:
            yield name, row


def count_waiting(store: Store, whose: bytes) -> int:
    """How many of a place wait."""
    return waiting_number(store.get(Table.DELIVERIES, keys.WAITING_COUNT + whose))


def waiting_counts(store: Store) -> dict[bytes, int]:
    """How many wait, by the place; a count that cannot be read is 0."""
    start, end = keys.WAITING_COUNT, keys.WAITING_COUNT + keys.LAST
    found = readable(store, Table.DELIVERIES, start, end)
    return {keys.whose_of(key): waiting_number(value) for key, value in found}


def _between(
    store: Store, prefix: bytes, start: Position = START, end: Position = END
) -> Iterator[tuple[bytes, bytes]]:
    """The rows under that prefix, start <= position < end."""
    first, last = keys.delivery(prefix, start), keys.delivery(prefix, end)
    return readable(store, Table.DELIVERIES, first, last)


def _listed(store: Store, states: tuple[int, ...], prefix: bytes, start: Position) -> Iterator[DeliveryRow]:
    """Deliveries of an index whose rows still have such a state, since that time."""
    for key, value in _between(store, prefix, start):
        row = _stored(store, Name(value[: keys.WHOSE_BYTES], keys.place_of(value)))
        if row is not None and row.state in states and row.at == keys.place_of(key):
            yield row


def _stored(store: Store, name: Name) -> DeliveryRow | None:
    """The same, without what cannot be read."""
    try:
        return stored(store, name)
    except Corrupt as error:
        _tell(name, error)
        return None


def _readable(name: Name, read: Callable[[bytes], Row], value: bytes) -> Row | None:
    try:
        return read(value)
    except Corrupt as error:
        _tell(name, error)
        return None


def _tell(name: Name, error: Corrupt) -> None:
    log.error("delivery at %024x: unreadable, skipped: %s", name.root, error)


# -- rows


def listed(row: DeliveryRow) -> tuple[bytes, ...]:
    """Keys of the lists that it is in, by its state."""
    if row.is_waiting:
        return waiting_keys(row.whose, row.at)
    if row.state == DEAD:
        of_name = keys.DEAD_OF + keys.hash_of(row.group)
        return keys.delivery(keys.DEAD, row.at), keys.delivery(of_name, row.at)
    return (keys.delivery(keys.DROPPED, row.root, row.whose),)


def waiting_keys(whose: bytes, at: Position) -> tuple[bytes, bytes]:
    """Keys of the lists that a waiting one is in."""
    return keys.delivery(keys.WAITS_OF + whose, at), keys.delivery(keys.WAITS, at)


def moved_key(row: DeliveryRow) -> bytes:
    """The key by which it is found if the id of its message says another position; else empty."""
    if id_position(row.id) == row.root:
        return b""
    return keys.delivery(keys.MOVED + keys.message(row.id), row.root, row.whose)


def names_of(row: DeliveryRow) -> tuple[bytes, ...]:
    """Keys of all rows that name it."""
    moved = moved_key(row)
    return (*listed(row), moved) if moved else listed(row)


def pointer_of(key: bytes, name: Name) -> bytes:
    """The value of an index key."""
    if key[:1] in (keys.MOVED, keys.DROPPED):
        return b""
    root = keys.place(name.root)
    return root if key[:1] == keys.WAITS_OF else name.whose + root


def size_of(row: DeliveryRow) -> int:
    """Bytes of a dead letter."""
    return len(encode_row(state_of(row))) + len(encode_row(record_of(row))) + ROW_BYTES


def totals(rows: OpenBatch | Store) -> KeptTotals:
    """Number and bytes of dead letters, as the open group leaves them or as stored; zero if they cannot be
    read, until `verify --repair` counts again."""
    value = rows.get(Table.META, META_DEAD)
    try:
        return NONE if value is None else kept_totals_from(value)
    except Corrupt as error:
        log.error("dead letters: the count is unreadable, counting again: %s", error)
        return NONE


def waiting_number(value: bytes | None) -> int:
    try:
        return 0 if value is None else number_from(value)
    except Corrupt as error:
        log.error("retries: the count of one place is unreadable, counting again: %s", error)
        return 0


class RowsAhead:
    """Which of a place's deliveries have rows, asked for in the order of their roots."""

    def __init__(self, store: Store, whose: bytes, start: Position) -> None:
        self.whose = whose
        self._roots = roots(store, whose, start)
        self._next = next(self._roots, END)

    @property
    def is_over(self) -> bool:
        """Whether none is left."""
        return self._next == END

    def has(self, root: Position) -> bool:
        while self._next < root:
            self._next = next(self._roots, END)
        return self._next == root
