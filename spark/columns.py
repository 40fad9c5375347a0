"""Rows of the timeline as Arrow columns, for the archive and for the table.

A batch of rows (position, shard number, stored value), in position order, becomes one list a column; what is
written by the thousand in Python would be the whole cost, so each column is one comprehension.

State, as everywhere, is stored nowhere: a stub that a cancel left is cancelled, what lies beyond the horizon
is pending, the rest is dispatched, or expired if dispatch dropped it (shards/fate.py). When dispatch came
to it stands in the journal of dispatch turns, which is read along with the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from shards import keys
from shards.fate import is_dropped
from shards.read import Row
from shards.record import ENCODINGS, MOVED, Record, decode
from shards.store import Store, Table
from shards.tables import wall_from
from timeline.position import MessageId, Position, at_of, id_text, message_id

from .properties import headers_of

PENDING, DISPATCHED, CANCELLED, EXPIRED = "pending", "dispatched", "cancelled", "expired"
STATES = (PENDING, DISPATCHED, CANCELLED, EXPIRED)

STEP = 64

TIME = pa.timestamp("ms", "UTC")
HEADERS = pa.map_(pa.string(), pa.string())


class Journal:
    """When what lies at a position was dispatched. Cheap for rising positions: one scan for all."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turns: Iterator[tuple[bytes, bytes]] = iter(())
        self._from: Position | None = None
        self._last: Position | None = None
        self._wall_ms: int | None = None

    def dispatched_ms(self, place: Position) -> int | None:
        """Wall ms of the turn that passed `place`; None if the journal does not say."""
        if self._from is None or place < self._from:
            self._turns = self._store.scan(Table.DISPATCHES, keys.place(place), keys.LAST)
            self._next()
        self._from = place
        while self._last is not None and self._last < place:
            self._next()
        return self._wall_ms

    def _next(self) -> None:
        row = next(self._turns, None)
        self._last = None if row is None else keys.place_of(row[0])
        self._wall_ms = None if row is None else wall_from(row[1])


class Batch:
    """Some rows, decoded. Columns are made as they are asked for."""

    def __init__(self, rows: Sequence[Row], node: int) -> None:
        self.rows = rows
        self.records = [decode(value) for _, _, value in rows]
        self._node = node

    def column(self, of: Callable[[Record], Any], kind: pa.DataType) -> pa.Array:
        return pa.array([of(record) for record in self.records], kind)

    def text(self, of: Callable[[Record], bytes]) -> pa.Array:
        """A column of UTF-8 that is stored as bytes."""
        return pa.array([of(record) for record in self.records], pa.binary()).cast(pa.string())

    def id(self) -> pa.Array:
        node = self._node
        numbers = [
            record.id or message_id(place, shard, node)
            for (place, shard, _), record in zip(self.rows, self.records, strict=True)
        ]
        return pa.array([id_text(MessageId(number)) for number in numbers], pa.string())

    def at(self, kind: pa.DataType = TIME) -> pa.Array:
        return times([place >> 48 for place, _, _ in self.rows], kind)

    def due(self, kind: pa.DataType = TIME) -> pa.Array:
        pairs = zip(self.rows, self.records, strict=True)
        return times([record.due_ms or row[0] >> 48 for row, record in pairs], kind)

    def encoding(self) -> pa.Array:
        return pa.array([ENCODINGS[record.encoding] for record in self.records], pa.string())

    def headers(self) -> tuple[pa.Array, pa.Array]:
        """(headers, content type)."""
        both = [headers_of(record.properties) for record in self.records]
        return pa.array([one[0] for one in both], HEADERS), pa.array([one[1] for one in both], pa.string())

    def payload(self) -> pa.Array:
        """Null for what was cancelled."""
        return pa.array([None if one.stub else one.payload for one in self.records], pa.binary())

    def dispatched_ms(self, horizon: Position, journal: Journal, *, every: bool) -> list[int | None]:
        """When dispatch passed each row, as far as that is known; unless `every`, only where it decides."""
        asked = [
            place <= horizon and not record.stub and (every or record.expires_ms != 0 or record.drop_late)
            for (place, _, _), record in zip(self.rows, self.records, strict=True)
        ]
        if not any(asked):
            return [None] * len(asked)
        return [
            journal.dispatched_ms(row[0]) if one else None for row, one in zip(self.rows, asked, strict=True)
        ]

    def states(self, horizon: Position, passed: Sequence[int | None]) -> list[str]:
        """`passed`: from `dispatched_ms`."""
        rows = zip(self.rows, self.records, passed, strict=True)
        return [state_of(row[0], record, horizon, passed_ms) for row, record, passed_ms in rows]


def state_of(place: Position, record: Record, horizon: Position, passed_ms: int | None) -> str:
    """Not for what a move left, which is no message. `passed_ms`: when dispatch came to it, if known."""
    if record.stub:
        return CANCELLED
    if place > horizon:
        return PENDING
    at_ms = at_of(place)
    dropped = is_dropped(record, record.due_ms or at_ms, at_ms if passed_ms is None else passed_ms)
    return EXPIRED if dropped else DISPATCHED


def times(values_ms: Sequence[int | None], kind: pa.DataType = TIME) -> pa.Array:
    """A column of instants."""
    return pa.array(values_ms, pa.int64()).cast(TIME).cast(kind)


def is_message(value: bytes) -> bool:
    """Whether a row is more than the stub of a move: that message stands elsewhere, whole."""
    return not value[1] & MOVED >> 8


def batches(rows: Iterator[Row], most_rows: int, most_bytes: int) -> Iterator[list[Row]]:
    """The rows in lists, bounded in number and bytes (by `STEP` rows more)."""
    batch: list[Row] = []
    size = 0
    while some := list(islice(rows, STEP)):
        batch += some
        size += sum([len(value) for _, _, value in some])
        if len(batch) >= most_rows or size >= most_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
