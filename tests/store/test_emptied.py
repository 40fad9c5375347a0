"""What who follows is told of ranges that others have deleted, so that their space can be given back."""

import time

import pytest

from shards import replicated
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore
from shards.store import Table
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf


def node(shelf: Shelf) -> ReplicatedStore:
    return ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(shelf), time, 1.0))


def wipe(store: ReplicatedStore, *ranges: tuple[bytes, bytes], table: Table = Table.MESSAGES) -> None:
    batch = store.batch()
    for start, end in ranges:
        batch.delete_range(table, start, end)
    store.write(batch)
    store.flush()


def test_ranges_of_messages_are_told_once() -> None:
    shelf = Shelf()
    leader, follower = node(shelf), node(shelf)
    leader.lead("a", "http://a")
    wipe(leader, (b"a", b"c"), (b"x", b"y"))
    wipe(leader, (b"d", b"e"), table=Table.SHARDS)
    assert follower.take_emptied() == []
    follower.follow()
    wipe(leader, (b"f", b"g"))
    assert follower.take_emptied() == [(b"a", b"c"), (b"x", b"y")]
    follower.follow()
    assert follower.take_emptied() == [(b"f", b"g")]
    assert follower.take_emptied() == []
    assert leader.take_emptied() == [], "who leads knows what it has deleted"


def test_too_many_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "EMPTIED_MAX", 2)
    shelf = Shelf()
    leader, follower = node(shelf), node(shelf)
    leader.lead("a", "http://a")
    wipe(leader, (b"m", b"n"), (b"a", b"b"))
    follower.follow()
    wipe(leader, (b"c", b"d"))
    follower.follow()
    assert follower.take_emptied() == [(b"a", b"n")]
