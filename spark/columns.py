"""Rows of the timeline as Arrow columns, for the archive and for the table.

A batch of rows (position, shard number, stored value), in position order, becomes one list per column. Python
code per value would be the whole cost, so each column is one comprehension.

shards/state.py decides the state of each message, with the journal of dispatch turns read along.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from shards.fields import Record
from shards.properties import headers_of
from shards.read import Row
from shards.record import ENCODINGS, decode, due_at, id_at
from shards.state import Journal, State, state_of
from timeline.position import HELD_SHARD, Position, at_of, id_text

STEP = 64

TIME = pa.timestamp("ms", "UTC")
HEADERS = pa.map_(pa.string(), pa.string())


class Batch:
    """Decoded rows. Columns are made on request."""

    def __init__(self, rows: Sequence[Row], node: int) -> None:
        self.rows = rows
        self.records = [decode(value) for _, _, value in rows]
        self._node = node

    def column(self, of: Callable[[Record], Any], kind: pa.DataType) -> pa.Array:
        return pa.array([of(record) for record in self.records], kind)

    def text(self, of: Callable[[Record], bytes]) -> pa.Array:
        """A column of UTF-8 stored as bytes."""
        return pa.array([of(record) for record in self.records], pa.binary()).cast(pa.string())

    def id(self) -> pa.Array:
        node = self._node
        numbers = [
            id_at(place, shard, node, record.id)
            for (place, shard, _), record in zip(self.rows, self.records, strict=True)
        ]
        return pa.array([id_text(number) for number in numbers], pa.string())

    def at(self, kind: pa.DataType = TIME) -> pa.Array:
        return times([at_of(place) for place, _, _ in self.rows], kind)

    def due(self, kind: pa.DataType = TIME) -> pa.Array:
        pairs = zip(self.rows, self.records, strict=True)
        return times([due_at(row[0], record.due_ms) for row, record in pairs], kind)

    def encoding(self) -> pa.Array:
        return pa.array([ENCODINGS[record.encoding] for record in self.records], pa.string())

    def headers(self) -> tuple[pa.Array, pa.Array]:
        """(headers, content type)."""
        both = [headers_of(record.properties) for record in self.records]
        return pa.array([one[0] for one in both], HEADERS), pa.array([one[1] for one in both], pa.string())

    def payload(self) -> pa.Array:
        """Null for cancelled messages."""
        return pa.array([None if one.stub else one.payload for one in self.records], pa.binary())

    def states(
        self, horizon: Position, journal: Journal, *, with_time: bool
    ) -> tuple[list[State], list[int | None]]:
        """(states, dispatch times as far as known), from `state_of`."""
        both = [
            state_of(place, record, horizon, journal, is_held=number == HELD_SHARD, with_time=with_time)
            for (place, number, _), record in zip(self.rows, self.records, strict=True)
        ]
        return [state for state, _ in both], [passed_ms for _, passed_ms in both]


def times(values_ms: Sequence[int | None], kind: pa.DataType = TIME) -> pa.Array:
    """A column of instants."""
    return pa.array(values_ms, pa.int64()).cast(TIME).cast(kind)


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
