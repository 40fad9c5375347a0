"""The pipeline on a store that other nodes share: who reads the log has the same rows, one by one.

The log is in RAM, and so is the store of who follows; who leads has its rows on disk, with files to take.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.clock import SimulatedClock
from server.offline import leave
from server.rounds.app import App
from server.settings.config import Config
from shards import keys
from shards.errors import SharedData
from shards.log.chained import open_engine
from shards.recover import check_own, read_directory
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.store import Store, Table
from shards.verify import verify_counts
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf
from tests.support.stores import FailingStore

from ..conftest import DAY_MS, HOUR_MS, Fronted, Running, TestClient, running
from ..http.test_archive_jobs import Child
from ..http.test_jobs import COUNT, CUTS, EVERYTHING, SLICE, Work

LAST = b"\xff" * 64


@pytest.fixture
def config() -> Config:
    return replace(Config(), shards=replace(Config().shards, cap_messages=7, structure_above=10))


def on_log(store: Store, shelf: Shelf) -> ReplicatedStore:
    made = ReplicatedStore(store, open_engine(MemoryEngine(shelf), time, 5.0))
    made.follow()
    return made


@asynccontextmanager
async def leading(
    path: Path, shelf: Shelf, config: Config, clock: SimulatedClock, below: Store | None = None
) -> AsyncIterator[Running]:
    """A server that leads."""
    config = replace(config, store=replace(config.store, dir=str(path)))
    store = on_log(FailingStore(path) if below is None else below, shelf)
    store.lead("a", "http://a")
    app = App(config, clock, store, fatal=lambda: None)
    await app.start()
    async with TestClient(Fronted(app)) as http:
        yield Running(app, clock, http)
    await app.stop()


def rows_of(store: Store) -> dict[Table, list[tuple[bytes, bytes]]]:
    return {table: list(store.scan(table, b"", LAST)) for table in Table}


def check_rows(store: Store) -> None:
    """Every row of `messages` is of a shard that somebody reads, and all are counted."""
    directory = read_directory(store, 1_000)
    known = {shard.prefix for piece in directory for shard in piece.readable()}
    assert {key[:10] for key, _ in store.scan(Table.MESSAGES, b"", LAST)} <= known
    assert verify_counts(store, directory) == []


async def test_a_split_reaches_who_follows(tmp_path: Path, config: Config, clock: SimulatedClock) -> None:
    shelf = Shelf()
    async with leading(tmp_path / "data", shelf, config, clock) as server:
        work = Work(server)
        await work.fill()
        job = await work.create()
        await server.call("DELETE", f"/v1/messages/{work.ids['m2']}", status=204)
        said = await work.count(job, CUTS)
        await server.call("DELETE", f"/v1/messages/{work.ids['m3']}", status=204)
        await server.call("DELETE", f"/v1/messages/{work.ids['m15']}", status=204)
        await work.put(7, "new7")
        records = shelf.last
        assert (await work.commit(job, said))["state"] == "done"
        assert shelf.last - records <= 2, "one group, and what comes by itself"
        expected = [text for text in EVERYTHING if text not in ("m2", "m3", "m15")]
        expected.insert(expected.index("m7") + 1, "new7")
        assert await work.listed() == expected
        assert [(piece["count"], piece["live"]) for piece in await work.slices()] == [
            (11, 9),
            (10, 9),
            (10, 10),
        ]
        assert not list((tmp_path / "data" / "jobs").iterdir())
    follower, leader = on_log(MemoryStore(), shelf), on_log(RocksStore(tmp_path / "data"), shelf)
    assert rows_of(follower) == rows_of(leader)
    check_rows(leader)
    check_rows(follower)
    leader.close()


@pytest.mark.long
async def test_an_expiry_reaches_who_follows(tmp_path: Path, config: Config, clock: SimulatedClock) -> None:
    shelf = Shelf()
    async with leading(tmp_path / "data", shelf, config, clock) as server:
        work = Work(server)
        await work.fill()
        await work.split(CUTS)
        homes = [piece.home for piece in server.app.core.directory if piece.start_ms >= SLICE]
        follower = on_log(MemoryStore(), shelf)
        assert len(list(follower.scan(Table.MESSAGES, b"", LAST))) == COUNT
        follower.take_emptied()
        await server.call("POST", "/v1/clock:advance", {"by": "P11D"})
        await server.call("POST", "/v1/clock:advance", {"by": "P8D"})
        await server.app.garbage.sweep()
        assert not list(server.app.core.opened.store.scan(Table.MESSAGES, b"", LAST))
    follower.follow()
    leader = on_log(RocksStore(tmp_path / "data"), shelf)
    assert rows_of(follower) == rows_of(leader)
    leader.close()
    assert {keys.under(keys.slice_key(home)) for home in homes} <= set(follower.take_emptied())


async def test_who_leads_next_gives_up_what_was_open(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    shelf = Shelf()
    async with leading(tmp_path / "data", shelf, config, clock) as server:
        work = Work(server)
        await work.fill()
        await work.create()
    below = MemoryStore()
    async with leading(tmp_path / "other", shelf, config, clock, below) as server:
        other = Work(server)
        assert await other.listed() == EVERYTHING
        (job,) = (await server.call("GET", "/v1/jobs")).body["jobs"]
        assert (job["state"], job["detail"]) == ("aborted", "the server restarted")
    check_rows(below)


async def test_a_backup_of_a_node_is_a_store_to_start_on_once_it_has_left(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    path, shelf = tmp_path / "backups" / "copy", Shelf()
    async with leading(tmp_path / "data", shelf, config, clock) as server:
        work = Work(server)
        await work.fill()
        await work.post("/v1/backups", {"dir": str(path)}, 201)
        await work.put(0, "afterwards")
    store = RocksStore(path)
    with pytest.raises(SharedData):
        check_own(store)
    store.close()
    assert leave(path) == 0
    async with running(path, config, clock) as copied:
        assert await Work(copied).listed() == EVERYTHING


@pytest.mark.long
async def test_a_split_of_a_hundred_shards_is_little_in_the_log(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    """As many as ten million messages have; what is in the log does not grow with the messages."""
    shelf, pieces, width_ms = Shelf(), 8, 125_000
    config = replace(config, shards=replace(config.shards, cap_messages=8, structure_above=10_000))
    async with leading(tmp_path / "data", shelf, config, clock) as server:
        work = Work(server)
        dues = [SLICE + n % pieces * width_ms + n for n in range(100 * pieces)]
        items = [{"topic": "t", "payload": "x", "deliver_at": work.text(due)} for due in dues]
        await work.post("/v1/messages:batch", items, 201)
        before = shelf.last
        job = await work.create()
        said = await work.count(job, [SLICE + n * width_ms for n in range(1, pieces)])
        assert (await work.commit(job, said))["state"] == "done"
        sizes = [len(shelf.frames[seq]) for seq in range(before + 1, shelf.last + 1)]
        assert sum(len(one.borrowed) for one in server.app.core.directory) == 100 * pieces
    assert sum(sizes) < 1_024, sizes


async def test_who_leads_next_publishes_what_was_recorded(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    """Between the two steps of an archive job; the program of the former leader comes too late."""
    shelf = Shelf()
    config = replace(
        config, slices=replace(config.slices, archive="s3://bucket/archive", retention_ms=DAY_MS)
    )
    async with leading(tmp_path / "data", shelf, config, clock) as server:
        child = Child(server)
        await child.put(clock.now_ms + 1, 3)
        await child.pass_to(clock.now_ms + HOUR_MS)
        job = await child.create("archive")
        recorded = (await child.commit(job, archived=child.report(job)))["manifest"]
    async with leading(tmp_path / "other", shelf, config, clock) as server:
        child.server = server
        await child.commit(job, 409, published=1)
        await server.call("POST", "/v1/clock:advance", {"by": "P2D"})
        await child.create("expire", 409)
        after = await child.create("archive")
        assert (after["unpublished"], after["number"]) == ([recorded], 2)
        assert (await child.commit(after, published=1))["state"] == "done"
        child.published[1] = recorded
        assert (await child.create("archive", 409))["type"] == "/problems/nothing-to-do"
        assert (await child.expire())["rows"] == 3
    follower = on_log(MemoryStore(), shelf)
    assert follower.get(Table.META, b"archive") is not None
