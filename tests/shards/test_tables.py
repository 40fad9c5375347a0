"""Values of the small tables come back as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards import keys, tables
from shards.errors import Corrupt
from timeline.position import END, MessageId, Position
from timeline.slices import Counts, Home, Shard, Slice

u48 = st.integers(0, (1 << 48) - 1)
positions = st.integers(0, (1 << 96) - 1).map(Position)


@given(u48, st.integers(0, 9), st.integers(0, 99), st.integers(0, 99), positions, positions)
def test_shards(
    start_ms: int, generation: int, number: int, count: int, first: Position, last: Position
) -> None:
    shard = Shard(Home(start_ms, generation), number, 7)
    shard.take(count, count // 2, count << 33, first, last)
    value = tables.shard_value(shard)
    assert len(value) == 42
    back = tables.shard_from(shard.prefix, value)
    for name in ("home", "number", "structure", "count", "live", "bytes", "first", "last", "prefix"):
        assert getattr(back, name) == getattr(shard, name)


@given(u48, u48, st.one_of(st.none(), st.integers(0, 1 << 40)), st.lists(st.integers(0, 500), max_size=3))
def test_slices(start_ms: int, end_ms: int, passed_s: int | None, borrowed: list[int]) -> None:
    piece = Slice(start_ms, end_ms, 3)
    piece.passed_s = passed_s
    part = Counts(5, 3, 500) if borrowed else Counts()
    piece.borrow([Shard(Home(5, 1), number, 9) for number in borrowed], part)
    key = keys.slice_key(piece.home)
    back, runs, counted = tables.slice_from(key, tables.slice_value(piece))
    assert (back.start_ms, back.end_ms, back.generation, back.passed_s) == (start_ms, end_ms, 3, passed_s)
    prefixes = list(tables.prefixes_of(runs))
    assert prefixes == sorted(shard.prefix for shard in piece.borrowed.values())
    assert counted == part
    old = tables.slice_value(Slice(start_ms, end_ms, 3)) + b"".join(p + b"\0\7" for p in prefixes)
    back, again, counted = tables.slice_from(key, old)
    assert (back.end_ms, list(tables.prefixes_of(again))) == (end_ms, prefixes)
    assert counted == (None if borrowed else part), "0.1.0 has not counted"


@pytest.mark.parametrize(
    "tail",
    [b"\2" + bytes(16), b"\1" + bytes(15), b"\1" + bytes(24) + b"\xff\xff\0\2", b"\1" + bytes(17), b"\1"],
)
def test_what_is_no_row_of_a_slice(tail: bytes) -> None:
    with pytest.raises(Corrupt):
        tables.slice_from(keys.slice_key(Home(1, 1)), bytes(16) + tail)


@given(positions, u48, u48, u48, positions)
def test_the_cursor(horizon: Position, bound_ms: int, seq: int, running_ms: int, floor: Position) -> None:
    cursor = tables.StoredCursor(horizon, bound_ms, seq, running_ms, floor)
    assert tables.cursor_from(tables.cursor_value(cursor)) == cursor


@given(st.integers(0, (1 << 128) - 1), st.binary(min_size=16, max_size=16), u48, positions)
def test_dedupe(message: int, fingerprint: bytes, due_ms: int, place: Position) -> None:
    row = tables.DedupeRow(MessageId(message), fingerprint, due_ms, place)
    assert tables.dedupe_from(tables.dedupe_value(row)) == row


@given(u48)
def test_dispatches(wall_ms: int) -> None:
    assert tables.number_from(tables.number_value(wall_ms)) == wall_ms


def test_sessions_and_cursors() -> None:
    session = tables.SessionRow(60, [tables.SubscriptionRow("a/#", 1, keys.place(END), 3, 9)], 77)
    assert tables.session_of(tables.encode_row(session)) == session
    flights = [tables.FlightRow(1, keys.place(END), 2, 1, 4, 8)]
    cursor = tables.CursorRow(keys.place(END), flights, 7, b"a/b")
    assert tables.cursor_row_of(tables.encode_row(cursor)) == cursor


def test_a_text_that_is_no_text_is_corrupt() -> None:
    row = tables.encode_row(tables.SessionRow(60, [tables.SubscriptionRow("abcd", 1, b"p" * 12)]))
    with pytest.raises(Corrupt, match="row of"):
        tables.session_of(row.replace(b"abcd", b"ab\xc4d"))
    with pytest.raises(Corrupt, match="row of"):
        tables.session_of(b"\x92\x3c" + b"\x91" * 100_000)
