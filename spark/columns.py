"""Rows of the timeline as Arrow columns, the same for the archive (`table`) and for SQL (`record_batch`).

A batch of rows (position, shard number, stored value), in position order, becomes one array per column.
records.py decodes the values of a batch together. Stubs of moves are left out: the message is elsewhere.

To add a column, add a line at the end of `_COLUMNS`: readers find columns by their place and name.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shards.fate import AT_ONCE_MS, LATE_MS
from shards.keys import MESSAGE_KEY_BYTES
from shards.read import Row
from shards.record import ENCODINGS, is_moved
from shards.state import CANCELLED, DISPATCHED, EXPIRED, PENDING, STATES, WITHHELD, Journal
from timeline.position import ID_BYTES, POSITION_BYTES
from timeline.slices import Slice

from .records import HEADERS, Bools, Bytes, Ints, Records
from .snapshot import Snapshot

STEP = 64
UNKNOWN = -1


class _Batch:
    """Decoded rows. `piece`: their slice; None: they are of the table `held`. Raises Corrupt."""

    def __init__(
        self, rows: Sequence[Row], snapshot: Snapshot, journal: Journal, node: int, piece: Slice | None
    ) -> None:
        records = Records(rows)
        if records.moved.any():
            rows = [row for row in rows if not is_moved(row[2])]
            records = Records(rows)
        self.records = records
        self.is_placed = piece is not None
        self.start_ms = 0 if piece is None else piece.start_ms
        self._node = node
        self._journal = journal
        self._places = [place for place, _, _ in rows]
        self.numbers = np.array([number for _, number, _ in rows], np.int32)
        places = b"".join([place.to_bytes(POSITION_BYTES, "big") for place in self._places])
        self._keys = np.frombuffer(places, np.uint8).reshape(-1, POSITION_BYTES)
        padded = np.zeros((len(rows), 8), np.uint8)
        padded[:, 2:] = self._keys[:, :6]
        self.at_ms = padded.view(">i8").ravel().astype(np.int64)
        self.due_ms = np.where(records.due_ms == 0, self.at_ms, records.due_ms)
        self._passed = 0 if piece is None else bisect_right(self._places, snapshot.cursor.horizon)

    def placed(self, values: pa.Array) -> pa.Array:
        """Null in the table `held`, where a message has no place yet."""
        return values if self.is_placed else pa.nulls(len(values), values.type)

    def ids(self) -> pa.Array:
        names = np.empty((len(self._places), ID_BYTES), np.uint8)
        names[:, :6], names[:, 10:] = self._keys[:, :6], self._keys[:, 6:]
        names[:, 6:8] = self.numbers.astype(">u2").view(np.uint8).reshape(-1, 2)
        names[:, 8:10] = divmod(self._node, 256)
        own = self.records.id
        names[own.has] = self.records.names(own)
        return _hex(names)

    def idempotency_keys(self) -> pa.Array:
        field = self.records.key
        return _hex(self.records.names(field)).take(pa.array(np.cumsum(field.has) - 1, mask=~field.has))

    @cached_property
    def passed_ms(self) -> Ints:
        """When dispatch passed each row; UNKNOWN also if it did not."""
        times = np.full(len(self._places), UNKNOWN, np.int64)
        done = 0
        for count, wall_ms in self._journal.runs(self._places[: self._passed]):
            times[done : done + count] = UNKNOWN if wall_ms is None else wall_ms
            done += count
        return times

    @cached_property
    def states(self) -> npt.NDArray[np.int8]:
        """The rule of shards/state.py, as indices of STATES: the last that applies."""
        states = np.full(len(self._places), STATES.index(DISPATCHED), np.int8)
        states[self._dropped()] = STATES.index(EXPIRED)
        if withheld := self._journal.withheld(self._places[: self._passed]):
            states[[place in withheld for place in self._places]] = STATES.index(WITHHELD)
        states[self._passed :] = STATES.index(PENDING)
        states[self.records.stub] = STATES.index(CANCELLED)
        return states

    def _dropped(self) -> Bools:
        """`is_dropped` of shards/fate.py, for arrays."""
        expires_ms: Ints = self.records.expires_ms
        drop_late: Bools = self.records.drop_late
        if not (drop_late.any() or expires_ms.any()):
            return drop_late
        passed_ms = np.where(self.passed_ms == UNKNOWN, self.at_ms, self.passed_ms)
        allowed_ms = np.where(expires_ms == AT_ONCE_MS, LATE_MS, expires_ms)
        is_over: Bools = (expires_ms != 0) & (passed_ms >= self.due_ms + allowed_ms)
        is_over |= drop_late & (passed_ms > self.due_ms + LATE_MS)
        return is_over

    def dispatched(self) -> pa.Array:
        is_sent = self.states == STATES.index(DISPATCHED)
        return _times(self.passed_ms, is_sent & (self.passed_ms != UNKNOWN))

    @cached_property
    def headers(self) -> tuple[pa.Array, pa.Array]:
        """(headers, content type)."""
        return self.records.headers()


def _times(values_ms: Ints, has: Bools | None = None) -> pa.Array:
    return pa.array(values_ms, TIME, mask=None if has is None else ~has)


def _one_of(words: Sequence[str], chosen: npt.NDArray[Any]) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(chosen))


def _hex(names: Bytes) -> pa.Array:
    """Each row of bytes as text."""
    count, width = names.shape
    ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * (2 * width))
    return pa.Array.from_buffers(pa.string(), count, [None, ends, pa.py_buffer(_DIGITS[names])])


_DIGITS = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
"""The two digits of each byte."""
TIME = pa.timestamp("ms", "UTC")
STRING = pa.string()
_COLUMNS: Sequence[tuple[str, pa.DataType, Callable[[_Batch], pa.Array]]] = (
    ("id", STRING, _Batch.ids),
    ("topic", STRING, lambda of: of.records.text(of.records.topic)),
    ("due", TIME, lambda of: _times(of.due_ms)),
    ("at", TIME, lambda of: of.placed(_times(of.at_ms))),
    ("dispatched", TIME, _Batch.dispatched),
    ("state", STRING, lambda of: _one_of(STATES, of.states)),
    ("cancelled", TIME, lambda of: _times(of.records.when_ms, of.records.stub)),
    ("payload", pa.binary(), lambda of: of.records.cut(of.records.payload).cast(pa.binary())),
    ("encoding", STRING, lambda of: _one_of(ENCODINGS, of.records.encoding)),
    ("content_type", STRING, lambda of: of.headers[1]),
    ("headers", HEADERS, lambda of: of.headers[0]),
    ("qos", pa.int8(), lambda of: pa.array(of.records.qos.astype(np.int8))),
    ("retain", pa.bool_(), lambda of: pa.array(of.records.retain)),
    ("publisher", STRING, lambda of: of.records.text(of.records.publisher)),
    ("schedule", STRING, lambda of: of.records.text(of.records.schedule)),
    ("slice", TIME, lambda of: of.placed(_times(np.full_like(of.at_ms, of.start_ms)))),
    ("shard", pa.int32(), lambda of: of.placed(pa.array(of.numbers))),
    ("bytes", pa.int32(), lambda of: pa.array((of.records.size + MESSAGE_KEY_BYTES).astype(np.int32))),
    ("ordering_key", STRING, lambda of: of.records.text(of.records.ordering_key)),
    ("expires_at", TIME, lambda of: _times(of.due_ms + of.records.expires_ms, of.records.expires_ms != 0)),
    # The hash of sender and idempotency key: the store has no more of it.
    ("key", STRING, _Batch.idempotency_keys),
    ("local", STRING, lambda of: of.records.text(of.records.zone)),
    ("deliver_to", STRING, lambda of: of.records.text(of.records.deliver_to)),
)
_MADE = {name: make for name, _, make in _COLUMNS}
_ALWAYS = frozenset(("id", "topic", "due", "state", "encoding", "qos", "retain"))
SCHEMA = pa.schema(
    [pa.field(name, kind, name not in _ALWAYS) for name, kind, _ in _COLUMNS], {"fasti.archive": "2"}
)
"""The archive's columns. Its readers find `date` in the name of the directory."""
DICTIONARY = [
    *("topic", "state", "encoding", "content_type", "publisher", "schedule", "slice", "shard"),
    *("ordering_key", "deliver_to", "headers.key_value.key", "headers.key_value.value"),
]
"""Columns in which values repeat. A Parquet dictionary of all columns costs a quarter more time, and room."""


def table(rows: Sequence[Row], snapshot: Snapshot, journal: Journal, node: int, piece: Slice) -> pa.Table:
    """Rows of a slice as the archive has them. Raises Corrupt."""
    batch = _Batch(rows, snapshot, journal, node, piece)
    return pa.Table.from_arrays([make(batch) for _, _, make in _COLUMNS], schema=SCHEMA)


def record_batch(
    rows: Sequence[Row],
    snapshot: Snapshot,
    journal: Journal,
    node: int,
    piece: Slice | None,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Rows of a slice, or of the table `held` (None), with these columns: `date` is the UTC day of `at`.

    Raises Corrupt."""
    batch = _Batch(rows, snapshot, journal, node, piece)
    columns = [_MADE["at" if one.name == "date" else one.name](batch).cast(one.type) for one in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check(row: Row) -> None:
    """Raise Corrupt if no columns can be made of a row."""
    Records([row]).headers()


def batches(rows: Iterator[Row], most_rows: int, most_bytes: int) -> Iterator[list[Row]]:
    """The rows in lists, bounded in number and bytes (plus a few rows, fewer of large ones)."""
    batch: list[Row] = []
    size, step = 0, 1
    while some := list(islice(rows, step)):
        batch += some
        taken = sum([len(value) for _, _, value in some])
        size += taken
        step = min(STEP, 2 * step) if taken * 8 < most_bytes else max(1, step // 2)
        if len(batch) >= most_rows or size >= most_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
