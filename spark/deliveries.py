"""How deliveries ended, from the journal (shards/ended.py) of a timeline at rest, as Arrow tables.

`number` rises: of one place, incarnation and root the end with the highest one is the last. An end that names
no message is of the one at its root.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

import pyarrow as pa

from shards import keys
from shards.ended import Ended, ended_between, ends_between
from shards.errors import Corrupt
from shards.read import Reader
from shards.record import decode, id_at
from shards.recover import read_directory
from shards.store import Store, Table
from shards.tables import META_NUMBER
from timeline.position import at_of, id_text, seq_of
from timeline.structures import Structures

from .snapshot import ANY_NUMBER

STEP = 20_000
"""Rows of a table."""
TIME, TEXT, WHOLE = pa.timestamp("ms", "UTC"), pa.string(), pa.int64()
PLACE = ("place", TEXT), ("kind", TEXT), ("incarnation", WHOLE)
MAY_BE_NULL = ("id", "reason", "by", "seconds")


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, name in MAY_BE_NULL) for name, kind in (*PLACE, *columns)])


DELIVERIES = _schema(
    *(("id", TEXT), ("root", TEXT), ("number", WHOLE), ("end", TEXT), ("ended_at", TIME)),
    *(("attempts", pa.int32()), ("reason", TEXT), ("by", TEXT), ("seconds", pa.float64())),
)
ENDS = _schema(("minute", TIME), ("end", TEXT), ("count", WHOLE))


def deliveries(store: Store, from_ms: int, to_ms: int) -> Iterator[pa.Table]:
    """Ends with from_ms <= ended_at < to_ms, in their order."""
    id_of, found = _ids(store), ended_between(store, from_ms, to_ms)
    while some := list(islice(found, STEP)):
        yield _table(DELIVERIES, [_values(one, id_of(one)) for one in some])


def ends(store: Store, from_ms: int, to_ms: int) -> Iterator[pa.Table]:
    """Counts with from_ms <= minute < to_ms, in their order."""
    found = (
        (one.row.place, one.row.kind, one.row.incarnation, one.minute_ms, end, number)
        for one in ends_between(store, from_ms, to_ms)
        for end, number in sorted(one.row.counts.items())
    )
    while some := list(islice(found, STEP)):
        yield _table(ENDS, some)


def _table(schema: pa.Schema, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _values(one: Ended, name: str | None) -> tuple[object, ...]:
    row = one.row
    ended = name, f"{one.root:024x}", seq_of(one.at), row.end, at_of(one.at)
    told = row.attempts, row.reason or None, row.by or None, row.held_ms / 1_000 or None
    return row.place, row.kind, row.incarnation, *ended, *told


def _ids(store: Store) -> Callable[[Ended], str | None]:
    """What finds the id of the message of an end."""
    reader = Reader(store, read_directory(store, ANY_NUMBER), Structures(max_structures=ANY_NUMBER))
    node = int(store.get(Table.META, META_NUMBER) or b"0")

    def of(one: Ended) -> str | None:
        row, moved = one.row, 0
        if row.id or row.shard < 0:
            return id_text(keys.message_of(row.id)) if row.id else None
        with suppress(Corrupt):
            value = reader.value_at(one.root, row.shard)
            moved = 0 if value is None else decode(value).id
        return id_text(id_at(one.root, row.shard, node, moved))

    return of
