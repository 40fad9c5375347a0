"""Opening: what is on disk makes the same server again."""

import pytest

from shards.borrow import part_of
from shards.errors import WrongFormat
from shards.expiry import expire
from shards.recover import Opened, count_pending, format_of, read_timeline_again, reopen_store, stored_cursor
from shards.store import Table
from shards.tables import FORMAT, META_FORMAT
from shards.verify import verify_counts
from tests.support.memory_store import MemoryStore
from tests.support.stores import rewrite
from timeline.position import at_of, before, id_position, position
from timeline.slices import DAY_MS, Counts, Slice

from .timelines import NOW, QUARTER, draft, group, open_at, piece_at, put, sync, texts, written


def test_a_new_timeline_begins_now(opened: Opened) -> None:
    assert opened.horizon.position == before(NOW)
    assert (opened.waiting.pending, opened.waiting.held, len(opened.directory)) == (0, 0, 0)


def test_everything_is_there_again() -> None:
    store = MemoryStore()
    opened = open_at(store)
    ids = put(opened, *(draft(NOW + n * QUARTER, str(n)) for n in range(5)))
    put(opened, draft(NOW - 10_000, "held"), wall_ms=NOW - 60_000)
    opened.horizon.advance(id_position(ids[0]))
    with written(opened) as commit:
        commit.cancel(ids[3])
        commit.open_batch.ran(4_000)
    again = open_at(store, NOW + 5)
    assert texts(again) == texts(opened) == ["0", "1", "2", "-", "4"]
    assert again.horizon.position == id_position(ids[0])
    assert again.horizon.seq > opened.horizon.seq
    assert again.horizon.refuse_ms == opened.horizon.bound_ms
    assert (
        again.waiting.pending,
        again.waiting.held,
        again.open_batch.running_ms,
        again.waiting.pending,
    ) == (
        4,
        1,
        4_000,
        opened.waiting.pending - 1,
    )
    assert not verify_counts(store, again.directory)


def test_new_messages_go_on_in_the_shards_there_are() -> None:
    store = MemoryStore()
    put(open_at(store), *(draft(NOW + 5) for _ in range(4)))
    again = open_at(store)
    put(again, draft(NOW + 5))
    piece = piece_at(again, NOW + 5)
    assert ([shard.count for shard in piece.shards.values()], piece.count) == ([3, 2], 5)


@pytest.mark.parametrize("wall_ms", [NOW - DAY_MS, NOW, NOW + DAY_MS])
def test_time_goes_on_from_the_horizon_or_the_wall(wall_ms: int) -> None:
    store = MemoryStore()
    opened = open_at(store)
    opened.horizon.observe(NOW + 500)
    opened.horizon.advance(position(NOW + 500, 1))
    sync(opened, group(opened).open_batch.seal())
    assert open_at(store, wall_ms).horizon.clock_ms == max(wall_ms, NOW + 500)


def test_another_format_is_refused() -> None:
    store = MemoryStore()
    open_at(store)
    open_at(store)
    rewrite(store, (Table.META, b"format", b"11"))
    with pytest.raises(WrongFormat, match="format 11"):
        open_at(store)


def test_after_a_failed_sync_only_what_survived_counts() -> None:
    store = MemoryStore()
    opened = open_at(store)
    put(opened, draft(NOW + 5, "durable"))
    directory, horizon = opened.directory, opened.horizon
    for text in ("survives", "lost"):
        commit = group(opened)
        commit.put([draft(NOW + DAY_MS + len(text) * QUARTER, text)])
        commit.open_batch.seal()
    assert opened.waiting.pending == 3
    store.survivors = 1
    assert reopen_store(opened) is None
    read_timeline_again(opened)
    assert opened.directory is directory
    assert opened.horizon is horizon
    assert texts(opened) == ["durable", "survives"]
    assert opened.waiting.pending == 2
    assert len(directory) == 2
    assert horizon.limit(before(NOW + 9)) >= horizon.position
    put(opened, draft(NOW + DAY_MS + 4 * QUARTER, "again"))
    assert texts(opened) == ["durable", "again", "survives"]
    assert not verify_counts(store, directory)
    assert texts(open_at(store)) == texts(opened)


@pytest.mark.parametrize("older", [None, b"1"])
def test_the_format_is_there_though_the_first_sync_failed(older: bytes | None) -> None:
    store = MemoryStore()
    if older is not None:
        open_at(store)
        rewrite(store, (Table.META, META_FORMAT, older))
        store.flush()
    opened = open_at(store)
    assert reopen_store(opened) is None, "what was not synced is lost"
    read_timeline_again(opened)
    put(opened, draft(NOW + 5, "kept"))
    assert format_of(store) == FORMAT
    assert texts(open_at(store)) == ["kept"]


def test_after_a_failed_expiry_the_floor_is_where_it_was() -> None:
    """The slices are back: nothing may be passed over as dropped."""
    store = MemoryStore()
    opened = open_at(store)
    (message,) = put(opened, draft(NOW + 5, key=b"k" * 16))
    piece = piece_at(opened, NOW + 5)
    commit = group(opened)
    expire(commit, [piece])
    commit.open_batch.seal()
    assert opened.directory.floor == before(piece.end_ms)
    assert reopen_store(opened) is None
    read_timeline_again(opened)
    assert opened.directory.floor == 0
    assert opened.reader.find(message) is not None


def test_pending_is_counted_from_within_a_slice(opened: Opened) -> None:
    ids = put(opened, *(draft(NOW + n, str(n)) for n in (1, 2, 3)), draft(NOW + QUARTER, "next"))
    for index, place in enumerate(map(id_position, ids)):
        assert count_pending(opened.reader, place) == 3 - index
    assert count_pending(opened.reader, before(NOW)) == 4


def test_pending_is_counted_once_over_borrowed_shards(opened: Opened) -> None:
    put(opened, *(draft(NOW + DAY_MS + n, str(n)) for n in (1_000, 2_000, 3_000)))
    parent = piece_at(opened, NOW + DAY_MS + 1_000)
    opened.directory.drop(parent)
    cut = NOW + DAY_MS + 2_000
    for start, end in ((parent.start_ms, cut), (cut, parent.end_ms)):
        child = Slice(start, end, 1)
        shards = parent.shards.values()
        child.borrow(shards, part_of(opened.store, child, shards))
        opened.directory.adopt(child)
    assert count_pending(opened.reader, before(NOW)) == 3


def test_borrowed_shards_come_back() -> None:
    store = MemoryStore()
    opened = open_at(store)
    put(opened, *(draft(NOW + n, str(n)) for n in (1_000, 2_000)))
    parent = piece_at(opened, NOW + 1_000)
    child = Slice(parent.start_ms, parent.end_ms, 1)
    child.borrow(parent.shards.values(), Counts(2, 2, 50))
    opened.directory.drop(parent)
    opened.directory.adopt(child)
    with written(opened) as commit:
        commit.open_batch.passed(child)
    rewrite(store, (Table.SLICES, parent.start_ms.to_bytes(6, "big") + bytes(2), None))
    again = open_at(store)
    assert texts(again) == ["1000", "2000"]
    assert at_of(before(NOW)) == NOW


def test_the_stored_cursor_of_nothing_is_now() -> None:
    assert stored_cursor(MemoryStore(), 77).horizon == before(77)
