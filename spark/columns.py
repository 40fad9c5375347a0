"""Rows of the timeline as Arrow columns: the same for the archive (`table`) and for SQL (`record_batch`).

A batch of rows (position, shard number, stored value), in position order, becomes one array per column. Stubs
of moves are not messages: the caller leaves them out.

shards/state.py decides the state of each message, with the journal of dispatch turns read along.

`key` is the hash of sender and idempotency key, in hex: the store has no more of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from shards.fields import Record
from shards.keys import MESSAGE_KEY_BYTES
from shards.properties import headers_of
from shards.read import Row
from shards.record import ENCODINGS, decode, due_at, id_at, schedule_name
from shards.state import DISPATCHED, Journal, state_of
from timeline.position import HELD_SHARD, at_of, id_text
from timeline.slices import Slice

from .snapshot import Snapshot

STEP = 64

TIME = pa.timestamp("ms", "UTC")
HEADERS = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("due", TIME, nullable=False),
        pa.field("at", TIME),
        pa.field("dispatched", TIME),
        pa.field("state", pa.string(), nullable=False),
        pa.field("cancelled", TIME),
        pa.field("payload", pa.binary()),
        pa.field("encoding", pa.string(), nullable=False),
        pa.field("content_type", pa.string()),
        pa.field("headers", HEADERS),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("publisher", pa.string()),
        pa.field("schedule", pa.string()),
        pa.field("slice", TIME),
        pa.field("shard", pa.int32()),
        pa.field("bytes", pa.int32()),
        pa.field("ordering_key", pa.string()),
        pa.field("expires_at", TIME),
        pa.field("key", pa.string()),
        pa.field("local", pa.string()),
        pa.field("deliver_to", pa.string()),
    ],
    metadata={"fasti.archive": "2"},
)
"""The archive's columns; a reader finds `date` in the name of the directory."""
ARROW = pa.schema(
    [
        *(pa.field(one.name, pa.timestamp("us", "UTC") if one.type == TIME else one.type) for one in SCHEMA),
        pa.field("date", pa.date32()),
    ]
)
"""Spark's: times in us, and `date`, the UTC day of `at`."""


def table(rows: Sequence[Row], snapshot: Snapshot, journal: Journal, node: int, piece: Slice) -> pa.Table:
    """Rows of a slice as the archive has them. Raises Corrupt."""
    made = _Batch(rows, snapshot, journal, node, piece)
    return pa.Table.from_arrays([made.column(name) for name in SCHEMA.names], schema=SCHEMA)


def record_batch(
    rows: Sequence[Row],
    snapshot: Snapshot,
    journal: Journal,
    node: int,
    piece: Slice | None,
    names: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Rows of a slice, or of the table `held` (None), as Spark gets them; only the columns of these names.

    Raises Corrupt."""
    schema = ARROW if names is None else pa.schema([ARROW.field(name) for name in names])
    made = _Batch(rows, snapshot, journal, node, piece)
    columns = [made.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Batch:
    """Decoded rows. A column is made on request."""

    def __init__(
        self, rows: Sequence[Row], snapshot: Snapshot, journal: Journal, node: int, piece: Slice | None
    ) -> None:
        self._rows = rows
        self._records = [decode(value) for _, _, value in rows]
        self._node = node
        self._piece = piece
        self._horizon = snapshot.cursor.horizon
        self._journal = journal

    def column(self, name: str) -> pa.Array:
        """As `SCHEMA` has it; or `date`."""
        if name == "date":
            return self.column("at").cast(pa.date32())
        kind = SCHEMA.field(name).type
        values = self._values(name)
        return pa.array(values, pa.int64()).cast(kind) if kind == TIME else pa.array(values, kind)

    def _values(self, name: str) -> list[Any]:
        if name in _FIELDS:
            return [_FIELDS[name](record) for record in self._records]
        if name in _PLACED:
            return [None if self._piece is None else _PLACED[name](self._piece, row) for row in self._rows]
        pairs = zip(self._rows, self._records, strict=True)
        if name == "id":
            return [id_text(id_at(place, number, self._node, one.id)) for (place, number, _), one in pairs]
        if name == "due":
            return [due_at(place, one.due_ms) for (place, _, _), one in pairs]
        if name == "expires_at":
            return [
                due_at(place, one.due_ms) + one.expires_ms if one.expires_ms else None
                for (place, _, _), one in pairs
            ]
        if name == "bytes":
            return [len(value) + MESSAGE_KEY_BYTES for _, _, value in self._rows]
        is_timed = name == "dispatched"
        both = [
            state_of(
                place, one, self._horizon, self._journal, is_held=number == HELD_SHARD, with_time=is_timed
            )
            for (place, number, _), one in pairs
        ]
        return (
            [passed_ms if state == DISPATCHED else None for state, passed_ms in both]
            if is_timed
            else [state for state, _ in both]
        )


_FIELDS: Mapping[str, Callable[[Record], Any]] = {
    "topic": lambda one: one.topic,
    "cancelled": lambda one: one.when_ms if one.stub else None,
    "payload": lambda one: None if one.stub else one.payload,
    "encoding": lambda one: ENCODINGS[one.encoding],
    "content_type": lambda one: headers_of(one.properties)[1],
    "headers": lambda one: headers_of(one.properties)[0],
    "qos": lambda one: one.qos,
    "retain": lambda one: one.retain,
    "publisher": lambda one: one.publisher.decode("utf-8", "replace") or None,
    "schedule": schedule_name,
    "ordering_key": lambda one: one.ordering_key or None,
    "key": lambda one: one.key.hex() or None,
    "local": lambda one: one.zone or None,
    "deliver_to": lambda one: one.deliver_to or None,
}
_PLACED: Mapping[str, Callable[[Slice, Row], int]] = {
    "at": lambda _, row: at_of(row[0]),
    "slice": lambda piece, _: piece.start_ms,
    "shard": lambda _, row: row[1],
}
"""Null in the table `held`."""


def batches(rows: Iterator[Row], most_rows: int, most_bytes: int) -> Iterator[list[Row]]:
    """The rows in lists, bounded in number and bytes (plus at most `STEP` rows)."""
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
