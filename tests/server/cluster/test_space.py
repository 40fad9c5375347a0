"""What a leader has deleted is compacted by who follows too, beside the following."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest

from server.cluster.space import give_back
from shards.errors import StoreFailed
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore
from shards.store import Table
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf


class Compacted(MemoryStore):
    """Says what is compacted, and takes as long for it as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[bytes, bytes]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_closed = False
        self.is_failing = False

    def compact(self, table: Table, start: bytes, end: bytes) -> None:
        assert table is Table.MESSAGES
        self.ranges.append((start, end))
        assert self.gate.wait(60)
        assert not self.is_closed, "closed while it is compacted"
        if self.is_failing:
            raise StoreFailed("told to fail")

    def close(self) -> None:
        self.is_closed = True


def on_log(shelf: Shelf, below: MemoryStore) -> ReplicatedStore:
    return ReplicatedStore(below, open_engine(MemoryEngine(shelf), time, 60.0))


def wiped(shelf: Shelf, *ranges: tuple[bytes, bytes]) -> None:
    """A leader deletes them."""
    leader = on_log(shelf, MemoryStore())
    leader.follow()
    leader.lead("a", "http://a")
    batch = leader.batch()
    for start, end in ranges:
        batch.delete_range(Table.MESSAGES, start, end)
    leader.write(batch)
    leader.flush()


async def until(said: list[tuple[bytes, bytes]], count: int) -> None:
    async with asyncio.timeout(60):
        while len(said) < count:
            await asyncio.sleep(0.001)


async def test_each_range_is_compacted_once_and_a_failure_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shelf, below = Shelf(), Compacted()
    store = on_log(shelf, below)
    opened: list[ReplicatedStore] = []
    below.is_failing = True
    wiped(shelf, (b"a", b"b"), (b"c", b"d"))
    store.follow()
    task = asyncio.ensure_future(give_back(lambda: opened[0] if opened else None, 0.001))
    await asyncio.sleep(0.01)
    assert below.ranges == [], "no store is open"
    opened.append(store)
    await until(below.ranges, 2)
    below.is_failing = False
    wiped(shelf, (b"e", b"f"))
    store.follow()
    await until(below.ranges, 3)
    assert below.ranges == [(b"a", b"b"), (b"c", b"d"), (b"e", b"f")]
    assert "compaction: failed: told to fail" in caplog.text
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_store_is_read_on_meanwhile_and_closed_afterwards() -> None:
    shelf, below = Shelf(), Compacted()
    store = on_log(shelf, below)
    wiped(shelf, (b"a", b"b"))
    store.follow()
    below.gate.clear()
    task = asyncio.ensure_future(give_back(lambda: store, 0.001))
    await until(below.ranges, 1)
    wiped(shelf, (b"c", b"d"))
    assert store.follow() == 2
    closing = asyncio.ensure_future(asyncio.to_thread(store.close))
    task.cancel()
    await asyncio.sleep(0.01)
    assert not closing.done()
    below.gate.set()
    await closing
    assert below.is_closed
