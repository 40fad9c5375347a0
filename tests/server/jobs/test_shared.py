"""The pipeline on a store that other nodes share: who reads the log has the same rows, one by one.

The log is in RAM, and so is the store of who follows; who leads has its rows on disk, with files to take.
"""

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.clock import SimulatedClock
from server.engine.writer import Busy, Decide
from server.jobs import jobfolder, splitting
from server.offline import leave
from server.rounds.app import App
from server.settings.config import Config
from shards import handover, keys
from shards.commit import Commit
from shards.errors import SharedData
from shards.log.chained import open_engine
from shards.log.memory import MemoryEngine, Shelf
from shards.memory import MemoryStore
from shards.recover import check_own, read_directory
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.store import Store, Table
from shards.verify import verify_counts
from tests.support.mover import moved
from tests.support.stores import FailingStore

from ..conftest import Fronted, Running, TestClient, running
from ..http.test_jobs import COUNT, CUTS, EVERYTHING, SLICE, Work

CHUNK = 4
LAST = b"\xff" * 64


@pytest.fixture
def config() -> Config:
    return replace(Config(), shards=replace(Config().shards, cap_messages=7, structure_above=10))


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobfolder, "CHUNK_ROWS", CHUNK)


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
        begun = await work.begin(job, CUTS)
        await server.call("DELETE", f"/v1/messages/{work.ids['m2']}", status=204)
        files = await asyncio.to_thread(moved, begun)
        await server.call("DELETE", f"/v1/messages/{work.ids['m3']}", status=204)
        await server.call("DELETE", f"/v1/messages/{work.ids['m15']}", status=204)
        records = shelf.last
        assert (await work.commit(job, files))["state"] == "done"
        assert shelf.last - records >= COUNT // CHUNK, "a group for each chunk"
        expected = [text for text in EVERYTHING if text not in ("m2", "m3", "m15")]
        assert await work.listed() == expected
        assert not any(piece.borrowed for piece in server.app.core.directory)
        assert not list((tmp_path / "data" / "jobs").iterdir())
    follower, leader = on_log(MemoryStore(), shelf), on_log(RocksStore(tmp_path / "data"), shelf)
    assert rows_of(follower) == rows_of(leader)
    check_rows(leader)
    leader.close()
    assert any(start[:6] == SLICE.to_bytes(6, "big") for start, _ in follower.take_emptied())
    assert follower.take_emptied() == []


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
        await server.app.leavings.sweep()
        assert not list(server.app.core.opened.store.scan(Table.MESSAGES, b"", LAST))
    follower.follow()
    leader = on_log(RocksStore(tmp_path / "data"), shelf)
    assert rows_of(follower) == rows_of(leader)
    leader.close()
    assert {keys.slice_range(home) for home in homes} <= set(follower.take_emptied())


async def test_who_leads_next_deletes_what_a_cut_off_commit_has_left(
    tmp_path: Path, config: Config, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, then = Shelf(), []

    def copied(commit: Commit, rows: list[tuple[bytes, bytes]]) -> None:
        if shelf.last and len(then) < 3:
            then.append(copy.deepcopy(shelf))
        whole(commit, rows)

    whole = handover.copy
    monkeypatch.setattr(handover, "copy", copied)
    async with leading(tmp_path / "data", shelf, config, clock) as server:
        work = Work(server)
        await work.fill()
        await work.split(CUTS)
    # As if that node had ended when it came to its third chunk.
    below = MemoryStore()
    assert len(list(on_log(below, then[2]).scan(Table.MESSAGES, b"", LAST))) == COUNT + 2 * CHUNK
    async with leading(tmp_path / "other", then[2], config, clock, below) as server:
        other = Work(server)
        assert await other.listed() == EVERYTHING
        (job,) = (await server.call("GET", "/v1/jobs")).body["jobs"]
        assert (job["state"], job["detail"]) == ("aborted", "the server was started again")
    check_rows(below)
    assert len(list(below.scan(Table.MESSAGES, b"", LAST))) == COUNT
    assert rows_of(on_log(MemoryStore(), then[2])) == rows_of(on_log(below, then[2]))


@pytest.mark.parametrize("tries", [3, 2])
async def test_a_writer_that_is_full_is_waited_for(
    tmp_path: Path,
    config: Config,
    clock: SimulatedClock,
    monkeypatch: pytest.MonkeyPatch,
    tries: int,
) -> None:
    monkeypatch.setattr(splitting, "BUSY_S", 0.0)
    monkeypatch.setattr(splitting, "TRIES", tries)
    shelf, offered = Shelf(), 0
    async with leading(tmp_path / "data", shelf, config, clock) as server:
        work, pipeline = Work(server), server.app.pipeline
        await work.fill()
        job = await work.create()
        files = await asyncio.to_thread(moved, await work.begin(job, CUTS))
        ask = pipeline._ask

        async def full(decide: Decide, *, cost: int = 1, size: int = 0) -> object:
            nonlocal offered
            if getattr(decide, "func", None) is handover.copy:
                offered += 1
                assert size >= len(decide.keywords["rows"])
                if offered in (3, 4):
                    raise Busy("told to be")
            return await ask(decide, cost=cost, size=size)

        monkeypatch.setattr(pipeline, "_ask", full)
        if tries == 2:
            await work.commit(job, files, 429)
            assert (await work.look(job))["state"] == "moving"
        assert (await work.commit(job, files))["state"] == "done"
        assert await work.listed() == EVERYTHING
    follower = on_log(MemoryStore(), shelf)
    check_rows(follower)
    assert len(list(follower.scan(Table.MESSAGES, b"", LAST))) == COUNT


async def test_a_file_that_changes_after_the_check_is_refused_and_may_be_brought_again(
    tmp_path: Path, config: Config, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_spoilt = False
    shelf, check = Shelf(), jobfolder.check

    def checked(store: Store, folder: Path, files: list[splitting.MovedFile]) -> object:
        nonlocal is_spoilt
        found = check(store, folder, files)
        if not is_spoilt:
            is_spoilt = True
            link = folder / "in" / files[1].name
            content = link.read_bytes()
            link.unlink()
            link.write_bytes(content[:-1])
        return found

    monkeypatch.setattr(jobfolder, "check", checked)
    async with leading(tmp_path / "data", shelf, config, clock) as server:
        work = Work(server)
        await work.fill()
        job = await work.create()
        files = await asyncio.to_thread(moved, await work.begin(job, CUTS))
        refused = await work.commit(job, files, 422)
        assert refused["type"] == "/problems/bad-manifest"
        assert "cannot be read" in refused["detail"]
        assert (await work.commit(job, files))["state"] == "done"
        assert await work.listed() == EVERYTHING
    follower = on_log(MemoryStore(), shelf)
    check_rows(follower)


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
