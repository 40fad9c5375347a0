"""The columns of rows are what `decode` says of each row, one by one."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shards import keys
from shards.archives import MESSAGES
from shards.errors import Corrupt
from shards.fields import Record
from shards.properties import headers_of, properties_of
from shards.read import Reader, Row
from shards.record import CANCELLED, ENCODINGS, MOVED, decode, due_at, encode, id_at, stub
from shards.state import DISPATCHED, Journal, state_of
from shards.store import Table
from shards.tables import StoredCursor, number_value
from spark.archived import table_schema
from spark.columns import SCHEMA, batches, check, record_batch, table
from spark.snapshot import Snapshot
from tests.support.memory_store import MemoryStore
from timeline.position import AT_MAX, HELD_SHARD, Position, at_of, id_text, position
from timeline.slices import DAY_MS, Directory, Slice
from timeline.structures import Structures

START = 20_000 * DAY_MS
PIECE = Slice(START, START + DAY_MS, 3)
HORIZON = position(START + 5_000, 7)
NODE = 2
ARROW = table_schema(MESSAGES)

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
names = words.map(str.encode)
records = st.builds(
    Record,
    topic=words.filter(bool).map(str.encode),
    payload=st.binary(max_size=40),
    due_ms=st.one_of(st.just(0), st.integers(START, START + 10_000), st.integers(0, (1 << 48) - 1)),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    drop_late=st.booleans(),
    expires_ms=st.sampled_from((0, 0, 1, 50, 5_000, 1 << 47)),
    id=st.one_of(st.just(0), st.integers(0, (1 << 128) - 1)),
    key=st.one_of(st.just(b""), st.binary(min_size=16, max_size=16)),
    publisher=st.one_of(names, st.binary(max_size=20)),
    properties=st.builds(
        lambda headers, kind: properties_of(headers, kind),
        st.lists(st.tuples(st.sampled_from("abc"), words), max_size=4),
        words,
    ),
    encoding=st.integers(0, 2),
    zone=names,
    schedule=names,
    owner=names,
    deliver_to=names,
    ordering_key=names,
)
cancelled = st.builds(
    lambda record, when_ms: Record(
        record.topic, b"", record.due_ms, id=record.id, key=record.key, stub=CANCELLED, when_ms=when_ms
    ),
    records,
    st.integers(0, 1 << 47),
)
rows_of = st.lists(
    st.tuples(
        st.integers(START, START + 10_000),
        st.sampled_from((0, 3, 40)),
        st.one_of(records, records, records, cancelled),
    ),
    max_size=12,
)
turns_of = st.dictionaries(st.integers(START, START + 10_000), st.integers(START, START + 20_000), max_size=5)


def snapshot_of(
    turns: dict[int, int] | None = None, withheld: Sequence[Position] = (), horizon: Position = HORIZON
) -> Snapshot:
    store = MemoryStore()
    batch = store.batch()
    for at, wall_ms in (turns or {}).items():
        batch.put(Table.DISPATCHES, keys.place(position(at, 5)), number_value(wall_ms))
    for place in withheld:
        batch.put(Table.META, keys.withheld(place), b"")
    store.write(batch)
    reader = Reader(store, Directory(max_slices=1), Structures(max_structures=1))
    return Snapshot(store, reader, StoredCursor(horizon, 0, 0, 0, Position(0)))


def rows_from(described: Sequence[tuple[int, int, Record]]) -> list[Row]:
    """In position order."""
    ordered = sorted(enumerate(described), key=lambda one: (one[1][0], one[0]))
    return [(position(at, seq), number, encode(record)) for seq, (at, number, record) in ordered]


def expected(row: Row, snapshot: Snapshot, piece: Slice | None) -> dict[str, Any]:
    """One row by itself, times in ms."""
    place, number, value = row
    record = decode(value)
    is_held = number == HELD_SHARD
    horizon = snapshot.cursor.horizon
    state, passed_ms = state_of(place, record, horizon, Journal(snapshot.store), is_held=is_held)
    headers, content_type = headers_of(record.properties)
    due_ms = due_at(place, record.due_ms)
    return {
        "id": id_text(id_at(place, number, NODE, record.id)),
        "topic": record.topic.decode(),
        "due": due_ms,
        "at": at_of(place) if piece else None,
        "dispatched": passed_ms if state == DISPATCHED else None,
        "state": state,
        "cancelled": record.when_ms if record.stub else None,
        "payload": None if record.stub else record.payload,
        "encoding": ENCODINGS[record.encoding],
        "content_type": content_type,
        "headers": list(headers),
        "qos": record.qos,
        "retain": record.retain,
        "publisher": record.publisher.decode("utf-8", "replace") or None,
        "schedule": record.schedule.decode() or None,
        "slice": piece.start_ms if piece else None,
        "shard": number if piece else None,
        "bytes": len(value) + keys.MESSAGE_KEY_BYTES,
        "ordering_key": record.ordering_key.decode() or None,
        "expires_at": due_ms + record.expires_ms if record.expires_ms else None,
        "key": record.key.hex() or None,
        "local": record.zone.decode() or None,
        "deliver_to": record.deliver_to.decode() or None,
        "date": datetime.fromtimestamp(at_of(place) / 1_000, UTC).date() if piece else None,
    }


def plain(made: pa.RecordBatch | pa.Table, times: pa.DataType) -> list[dict[str, Any]]:
    """Rows with times as numbers of their unit: they may lie beyond what a datetime holds."""
    columns = {
        field.name: (
            made[field.name].cast(pa.int64()) if field.type == times else made[field.name]
        ).to_pylist()
        for field in made.schema
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


MS, US = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
TIMES = [field.name for field in SCHEMA if field.type == MS]


def in_us(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value * 1_000 if name in TIMES and value is not None else value for name, value in row.items()
    }


@given(rows_of, turns_of, st.sets(st.integers(0, 11), max_size=3))
@example([], {}, set())
def test_columns_are_what_decode_says(
    described: list[tuple[int, int, Record]], turns: dict[int, int], withheld: set[int]
) -> None:
    rows = rows_from(described)
    snapshot = snapshot_of(turns, [rows[n][0] for n in withheld if n < len(rows)])
    wanted = [expected(row, snapshot, PIECE) for row in rows]
    made = record_batch(rows, snapshot, Journal(snapshot.store), NODE, PIECE, ARROW)
    assert made.schema == ARROW
    made.validate(full=True)
    assert plain(made, US) == [in_us(row) for row in wanted]
    archived = table(rows, snapshot, Journal(snapshot.store), NODE, PIECE)
    assert archived.schema == SCHEMA
    archived.validate(full=True)
    without = [{name: value for name, value in row.items() if name != "date"} for row in wanted]
    assert plain(archived, MS) == without


@given(st.lists(records, max_size=5))
def test_of_the_table_held_at_slice_and_shard_are_null(found: list[Record]) -> None:
    rows = [(position(START + n, n), HELD_SHARD, encode(record)) for n, record in enumerate(found)]
    snapshot = snapshot_of()
    made = record_batch(rows, snapshot, Journal(snapshot.store), NODE, None, ARROW)
    assert plain(made, US) == [in_us(expected(row, snapshot, None)) for row in rows]
    assert {row["state"] for row in plain(made, US)} <= {"pending"}


FULL = encode(
    Record(
        *(b"a/b", b"pay", START, 2),
        retain=True,
        expires_ms=5_000,
        id=7 << 80,
        key=bytes(range(16)),
        publisher=b"p",
        properties=b"\x03\x00\x01t\x26\x00\x01a\x00\x011\x01\x01\x26\x00\x01a\x00\x012\x08\x00\x01r",
        zone=b"z",
        schedule=b"s",
        owner=b"o",
        deliver_to=b"d",
        ordering_key=b"k",
    )
)
STUB = encode(Record(b"a", b"", START, id=5, stub=CANCELLED, when_ms=9))


def whole(value: bytes) -> dict[str, Any] | None:
    """What the columns say of one value between two others; None: it is corrupt."""
    places = [position(START, n) for n in range(3)]
    other = encode(Record(b"other", b"payload"))
    rows = [(places[0], 0, other), (places[1], 0, value), (places[2], 0, other)]
    snapshot = snapshot_of()
    try:
        made = plain(table(rows, snapshot, Journal(snapshot.store), NODE, PIECE), MS)
    except Corrupt as error:
        made, why = [], str(error)
    if not made:
        assert f"{places[1]:024x}" in why
        return None
    if len(made) == 3:
        assert [row["payload"] for row in made[::2]] == [b"payload"] * 2
    return made[1]


@pytest.mark.parametrize("value", [FULL, STUB, encode(Record(b"a/b", b"pay", 5))])
def test_a_value_that_is_cut_or_spoiled_is_corrupt_where_decode_says_so(value: bytes) -> None:
    spoiled = [value[:size] for size in range(len(value))]
    for at in range(len(value)):
        spoiled += [
            value[:at] + bytes([value[at] ^ bits]) + value[at + 1 :] for bits in (1, 2, 0x10, 0x80, 255)
        ]
    refused = 0
    for each in spoiled:
        found = whole(each)
        try:
            record = decode(each)
            headers_of(record.properties)
            is_moved = record.stub & MOVED
        except Corrupt:
            refused += found is None
            continue
        if found is None:
            with pytest.raises(Corrupt):
                check((position(START, 1), 0, each))
            assert max(record.due_ms, record.expires_ms, record.when_ms) > AT_MAX
        elif not is_moved:
            assert (found["qos"], found["due"]) == (record.qos, record.due_ms or START)
            assert found["payload"] == (None if record.stub else record.payload)
            assert found["topic"] == record.topic.decode("utf-8", "replace")
            assert found["ordering_key"] == (record.ordering_key.decode("utf-8", "replace") or None)
    assert refused > len(value)


def test_stubs_of_moves_are_left_out() -> None:
    rows = rows_from([(START, 0, Record(b"a", b"1")), (START, 0, Record(b"b", b"2"))])
    moved = (position(START, 9), 0, stub(Record(b"c", b"3"), MOVED, 5))
    snapshot = snapshot_of()
    made = table([rows[0], moved, rows[1]], snapshot, Journal(snapshot.store), NODE, PIECE)
    assert made == table(rows, snapshot, Journal(snapshot.store), NODE, PIECE)
    assert table([moved], snapshot, Journal(snapshot.store), NODE, PIECE).num_rows == 0


@pytest.mark.parametrize(
    "names", [["id"], ["due", "topic"], ["date"], ["state", "at"], ["headers"], ARROW.names]
)
def test_only_the_columns_of_these_names_are_made(names: list[str]) -> None:
    rows = rows_from([(START, 0, Record(b"a/b", b"x")), (START + 6_000, 0, Record(b"c", b"y", expires_ms=5))])
    snapshot = snapshot_of()
    whole = record_batch(rows, snapshot, Journal(snapshot.store), NODE, PIECE, ARROW)
    made = record_batch(rows, snapshot, Journal(snapshot.store), NODE, PIECE, table_schema(MESSAGES, names))
    assert made.schema.names == names
    assert made == whole.select(names)


def test_both_schemas_have_the_same_columns_in_the_same_order() -> None:
    assert ARROW.names == [*SCHEMA.names, "date"]
    assert [field.name for field in SCHEMA if not field.nullable] == [
        *("id", "topic", "due", "state", "encoding", "qos", "retain")
    ]
    for mine, others in zip(SCHEMA, ARROW, strict=False):
        assert others.type == (US if mine.type == MS else mine.type)
        assert mine.nullable == others.nullable or not mine.nullable


@pytest.mark.parametrize(("size", "most"), [(10, 6_000), (400_000, 25), (3_000_000, 3)])
def test_batches_are_bounded_in_bytes_whatever_a_row_has(size: int, most: int) -> None:
    rows = [(Position(n), 0, bytes(size)) for n in range(20_000 if size == 10 else 60)]
    found = [*batches(iter(rows), 5_950, 8 << 20)]
    assert [row for one in found for row in one] == rows
    assert max(map(len, found)) <= most
    assert len(found) > 2
