"""A leader whose loop is busy for longer than its lease, and one whose loop turns no more."""

import threading

import pytest

from server.cluster.beats import TURNED_S, Beats
from server.engine.lease import Lease
from shards.errors import StoreFailed
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore
from tests.support.clock import HandClock
from tests.support.logs import Elapsing
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf

LEASE_S = 4.0


def led() -> ReplicatedStore:
    store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(Shelf()), Elapsing(), 1.0))
    store.lead("a", "http://a")
    return store


async def test_a_busy_loop_keeps_its_lease_and_one_that_hangs_loses_it() -> None:
    clock, store = HandClock(1_000_000), led()
    lease = Lease(clock, LEASE_S)
    with Beats(lease, store.beat, clock) as beats:
        claimed = store.applied.seq
        clock.mono_s += 1.5
        beats.step()
        assert store.applied.seq == claimed, "the loop's own heartbeat comes first"
        for _ in range(5):
            clock.mono_s += TURNED_S / 5 - 0.01
            beats.step()
            assert lease.is_fresh
        beats.turned()
        clock.mono_s += TURNED_S - 0.1
        beats.step()
        assert lease.is_fresh, "it has turned again"
        clock.mono_s += LEASE_S - 0.1
        beats.step()
        beats.step()
        clock.mono_s += 0.2
        assert not lease.is_fresh


async def test_the_thread_beats_while_nothing_else_does() -> None:
    store = led()
    clock = HandClock(1_000_000)
    lease = Lease(clock, 0.1)
    came = threading.Event()

    def beat() -> None:
        store.beat()
        came.set()

    with Beats(lease, beat, clock):
        clock.mono_s += 0.06
        assert came.wait(60), "the loop is blocked meanwhile"
    assert lease.is_fresh


def test_who_leads_no_more_beats_no_more() -> None:
    store = led()
    store.close()
    with pytest.raises(StoreFailed, match="does not lead"):
        store.beat()


def test_a_heartbeat_changes_nothing_and_stands_between_batches() -> None:
    store = led()
    batch = store.batch()
    batch.put_message(b"k" * 22, b"v")
    store.write(batch)
    store.beat()
    assert store.applied.seq == 2
    store.flush()
    assert store.applied.seq == 3
