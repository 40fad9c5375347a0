"""Counts are derived: what the rows say is right."""

import pytest

from shards import keys
from shards.recover import read_directory
from shards.store import Table
from shards.verify import repair, strays, verify_counts
from tests.support.memory_store import MemoryStore
from tests.support.stores import rewrite
from timeline.position import START, before
from timeline.slices import Shard

from .timelines import NOW, QUARTER, draft, open_at, put, written


def filled() -> MemoryStore:
    store = MemoryStore()
    opened = open_at(store)
    ids = put(opened, *(draft(NOW + n * QUARTER // 2, str(n)) for n in range(8)))
    with written(opened) as commit:
        commit.cancel(ids[3])
        commit.move(ids[5], NOW + 9 * QUARTER)
    return store


def test_nothing_is_wrong_with_a_good_store() -> None:
    store = filled()
    assert verify_counts(store, read_directory(store, 100)) == []


@pytest.mark.parametrize("wrong", ["count", "live", "first", "last"])
def test_a_wrong_count_is_found_and_repaired(wrong: str) -> None:
    store = filled()
    directory = read_directory(store, 100)
    piece = list(directory)[1]
    shard = piece.shards[0]
    setattr(shard, wrong, getattr(shard, wrong) + 1)
    (fault,) = verify_counts(store, directory)
    assert fault.shard is shard
    assert str(piece.start_ms) in str(fault)
    repair(store, [fault])
    assert store.durable == len(store.log)
    assert verify_counts(store, read_directory(store, 100)) == []


def test_a_lost_row_is_found() -> None:
    store = filled()
    key, _ = next(store.scan(Table.MESSAGES, b"", keys.LAST))
    rewrite(store, (Table.MESSAGES, key, None))
    (fault,) = verify_counts(store, read_directory(store, 100))
    assert fault.counted.count == fault.shard.count - 1


def test_an_empty_shard_is_in_order() -> None:
    store = filled()
    directory = read_directory(store, 100)
    piece = next(iter(directory))
    piece.adopt(Shard(piece.home, 9))
    assert verify_counts(store, directory) == []


def test_rows_without_a_shard_row_are_found_and_adopted() -> None:
    store = filled()
    directory = read_directory(store, 100)
    shard = list(directory)[1].shards[0]
    rewrite(store, (Table.SHARDS, shard.prefix, None))
    assert verify_counts(store, read_directory(store, 100)) == [], "counts do not tell"
    (stray,) = strays(store, read_directory(store, 100), START)
    assert (stray.counted.count, stray.counted.live) == (shard.count, shard.live)
    assert str(shard.home.start_ms) in str(stray)
    repair(store, [stray])
    assert store.durable == len(store.log)
    again = read_directory(store, 100)
    assert strays(store, again, START) == []
    assert verify_counts(store, again) == []
    assert list(again)[1].shards[0].count == shard.count


def test_rows_of_a_lost_slice_are_named_and_left_alone() -> None:
    store = filled()
    piece = list(read_directory(store, 100))[1]
    rewrite(store, (Table.SLICES, keys.slice_key(piece.home), None))
    (stray,) = strays(store, read_directory(store, 100), START)
    assert not stray.is_known
    repair(store, [stray])
    assert len(strays(store, read_directory(store, 100), START)) == 1


def test_what_an_expired_slice_has_left_is_no_stray() -> None:
    store = filled()
    piece = next(iter(read_directory(store, 100)))
    slice_key, shard_key = keys.slice_key(piece.home), piece.shards[0].prefix
    rewrite(store, (Table.SLICES, slice_key, None), (Table.SHARDS, shard_key, None))
    assert len(strays(store, read_directory(store, 100), START)) == 1
    assert strays(store, read_directory(store, 100), before(piece.end_ms)) == []
