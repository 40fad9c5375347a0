"""Reading: by id wherever a message has gone, and ranges of the timeline in position order."""

import random

import pytest

from shards import keys
from shards.errors import Corrupt
from shards.expiry import expire
from shards.read import Reader
from shards.recover import Opened
from shards.store import Table
from shards.tables import number_value
from tests.support.stores import rewrite
from timeline.position import (
    END,
    HELD_SHARD,
    START,
    MessageId,
    Position,
    at_of,
    before,
    id_position,
    message_id,
    position,
)
from timeline.slices import Counts, Slice

from .timelines import NOW, QUARTER, draft, found_in, group, piece_at, put, sync, texts, written


def test_rows_come_in_position_order_over_shards_and_slices(opened: Opened) -> None:
    dues = [NOW + 1_000 * n for n in range(2_000)]
    random.Random(3).shuffle(dues)
    for at in range(0, 2_000, 50):
        put(opened, *(draft(due, str(due)) for due in dues[at : at + 2]))
    rows = list(opened.reader.read(START, END))
    assert [place for place, _, _ in rows] == sorted(place for place, _, _ in rows)
    assert len(rows) == 80
    assert len(opened.directory) > 1
    assert any(len(piece.shards) > 1 for piece in opened.directory)
    assert len({(place >> 48 >> 20, shard) for place, shard, _ in rows}) > 3


def test_bounds_are_half_open_and_whole_positions(opened: Opened) -> None:
    put(opened, *(draft(NOW + 5, str(n)) for n in range(3)))
    places = [place for place, _, _ in opened.reader.read(START, END)]
    assert texts(opened, places[1]) == ["1", "2"]
    assert texts(opened, places[0], places[2]) == ["0", "1"]
    assert texts(opened, Position(places[0] + 1), places[1]) == []
    assert texts(opened, before(NOW + 5), before(NOW + 6)) == ["0", "1", "2"]
    assert texts(opened, before(NOW + 6)) == []


def test_shards_of_other_structures_are_skipped(opened: Opened) -> None:
    put(opened, draft(NOW + 5, "zero"))
    piece = piece_at(opened, NOW + 5)
    shard = piece.open_shard(4)
    batch = opened.store.batch()
    place = position(NOW + 6, 1 << 40)
    batch.put(Table.MESSAGES, shard.prefix + keys.place(place), draft(NOW + 6, "four").value)
    opened.store.write(batch)
    shard.grow(place, 1)

    def read(structures: set[int] | None) -> int:
        return sum(1 for _ in opened.reader.read(START, END, structures))

    assert (read(None), read({0}), read({0, 4}), read({0, 5})) == (2, 1, 2, 1)


def test_a_borrowed_shard_is_read_within_the_childs_span_only(opened: Opened) -> None:
    ids = put(opened, *(draft(NOW + n, str(n)) for n in (1_000, 2_000, 3_000)))
    parent = piece_at(opened, NOW + 1_000)
    opened.directory.drop(parent)
    cut = NOW + 2_000
    for start, end in ((parent.start_ms, cut), (cut, parent.end_ms)):
        child = Slice(start, end, 1)
        child.borrow(parent.shards.values(), Counts())
        opened.directory.adopt(child)
    opened.open_batch.forget()
    assert texts(opened) == ["1000", "2000", "3000"]
    assert texts(opened, before(cut)) == ["2000", "3000"]
    for message, text in zip(ids, ("1000", "2000", "3000"), strict=True):
        found = found_in(opened, message)
        assert found.value.endswith(text.encode())
    put(opened, draft(NOW + 2_500, "own"))
    assert texts(opened) == ["1000", "2000", "own", "3000"]


def test_a_message_is_found_by_its_id(opened: Opened) -> None:
    (message,) = put(opened, draft(NOW + 5, "x"))
    found = found_in(opened, message)
    assert (found.id, found.row_id, found.position) == (message, message, id_position(message))
    assert found.shard is not None
    assert message >> 48 & 0xFFFF == 5
    assert opened.reader.find(MessageId(message + 1)) is None
    assert opened.reader.find(MessageId(0)) is None
    assert opened.reader.value_at(found.position, found.shard.number) == found.value
    assert opened.reader.value_at(found.position, 77) is None
    assert opened.reader.value_at(position(1, 1), 0) is None


def test_a_moved_message_is_found_where_it_went_last(opened: Opened) -> None:
    (message,) = put(opened, draft(NOW + 5, "x"))
    for due in (NOW + QUARTER, NOW + 3 * QUARTER, NOW + 2 * QUARTER):
        sync(opened, _moved(opened, message, due))
        found = found_in(opened, message)
        assert (at_of(found.position), found.id) == (due, message)
        assert found.row_id != message
    assert texts(opened) == ["-", "-", "x", "-"]


def _moved(opened: Opened, message: MessageId, due_ms: int):  # type: ignore[no-untyped-def]
    commit = group(opened)
    commit.move(message, due_ms)
    return commit.open_batch.seal()


def test_a_moved_message_survives_the_slice_it_came_from(opened: Opened) -> None:
    (message,) = put(opened, draft(NOW + 5, "x"))
    sync(opened, _moved(opened, message, NOW + 3 * QUARTER))
    first = piece_at(opened, NOW + 5)
    with written(opened) as commit:
        expire(commit, [first])
    assert opened.reader.find(message) is not None
    last = piece_at(opened, NOW + 3 * QUARTER)
    with written(opened) as commit:
        expire(commit, [last])
    assert opened.reader.find(message) is None


def test_a_moved_row_that_names_a_moved_row_is_corrupt(opened: Opened) -> None:
    (message,) = put(opened, draft(NOW + 5, "x"))
    sync(opened, _moved(opened, message, NOW + QUARTER))
    rewrite(opened.store, (Table.MOVED, keys.message(message), keys.message(message)))
    with pytest.raises(Corrupt, match="moved"):
        opened.reader.find(message)


def test_held_messages_are_found_and_listed(opened: Opened) -> None:
    early, later = put(opened, draft(NOW - 30_000, "a"), draft(NOW - 20_000, "b"), wall_ms=NOW - 60_000)
    found = found_in(opened, early)
    assert found.shard is None
    assert found.row_id == early == message_id(found.position, HELD_SHARD, 5)
    held = [(at_of(place), shard) for place, shard, _ in opened.reader.held()]
    assert held == [(NOW - 30_000, HELD_SHARD), (NOW - 20_000, HELD_SHARD)]
    assert later != early
    assert texts(opened) == []


def test_a_moved_message_that_is_held_is_found_behind_the_floor(opened: Opened) -> None:
    """The floor says what was dropped of the timeline; what is held is not on it."""
    (message,) = put(opened, draft(NOW + 10 * QUARTER, "x"))
    with written(opened, NOW - 90_000) as commit:
        commit.move(message, NOW - 60_000)
    opened.directory.floor = before(NOW)
    found = found_in(opened, message)
    assert found.shard is None


def test_the_journal_tells_when_a_message_was_dispatched(opened: Opened) -> None:
    batch = opened.store.batch()
    for place, wall_ms in ((position(100, 5), 130), (position(200, 1), 230)):
        batch.put(Table.DISPATCHES, keys.place(place), number_value(wall_ms))
    opened.store.write(batch)
    reader: Reader = opened.reader
    assert reader.dispatched_ms(position(50, 1)) == 130
    assert reader.dispatched_ms(position(100, 5)) == 130
    assert reader.dispatched_ms(position(100, 6)) == 230
    assert reader.dispatched_ms(position(200, 2)) is None
    assert reader.get(Table.DISPATCHES, keys.place(position(100, 5))) == number_value(130)
