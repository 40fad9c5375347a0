"""The scrub: all rows in its time, on with the pass after a restart, and what damage is for it."""

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path

import pytest

from server.cluster import scrub
from server.cluster.scrub import RATIO, Scrub
from shards.errors import Corrupt, StoreFailed
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.scrub import STEP_BYTES
from shards.store import Store, Table
from tests.support.logs import Elapsing
from tests.support.memory_store import MemoryStore
from tests.support.served import until
from tests.support.shelf import MemoryEngine, Shelf

DAY_MS = 86_400_000
START_MS = 1_795_248_000_000


class World:
    """A store of some steps, and the wall clock."""

    def __init__(self, folder: Path, below: Store, every_ms: int = DAY_MS) -> None:
        self.now_ms = START_MS
        self.folder, self.every_ms = folder, every_ms
        self.store = ReplicatedStore(below, open_engine(MemoryEngine(Shelf()), Elapsing(), 2.0))
        batch = below.batch()
        for number in range(4_000):
            batch.put(Table.MESSAGES, b"%08d" % number, os.urandom(200))
        batch.put(Table.SESSIONS, b"one", b"session")
        below.write(batch)
        below.unload()

    def scrub(self) -> Scrub:
        """As after a start."""
        return Scrub(self.folder, self.every_ms, lambda: self.store, lambda: self.now_ms)


@pytest.fixture
def below(tmp_path: Path) -> RocksStore:
    return RocksStore(tmp_path)


@pytest.fixture
def world(tmp_path: Path, below: RocksStore) -> World:
    return World(tmp_path, below)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    data[at : at + 16] = bytes(byte ^ 0x55 for byte in data[at : at + 16])
    path.write_bytes(data)


def passed(made: Scrub, store: ReplicatedStore) -> list[float]:
    """The pauses of the steps of one pass."""
    pauses = [made.step(store)]
    while made._note.table >= 0:
        pauses.append(made.step(store))
    return pauses


def test_a_pass_takes_its_time_whatever_the_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "monotonic", lambda: 0.0)  # reading itself takes none of it
    made = world.scrub()
    assert (made.scrubbed_ms, made._is_due) == (0, True)
    pauses = passed(made, world.store)
    read = 4_000 * 208 + len(b"onesession")
    assert made._note.last_bytes == read
    assert sum(pauses) == pytest.approx(read / scrub.RATE_MIN, rel=0.2)  # little data: the least pace
    assert (made.scrubbed_ms, made._is_due) == (START_MS, False)
    world.every_ms = 10_000
    first = world.scrub()
    first._note.last_bytes = 0
    estimated = sum(passed(first, world.store))
    assert estimated == pytest.approx(10 / RATIO, rel=0.5)  # these rows do not compress
    assert sum(passed(first, world.store)) == pytest.approx(10 / RATIO, rel=0.5)
    first._note.last_bytes = 8 * read  # and if they had compressed well
    assert first.step(world.store) == pytest.approx(10 * STEP_BYTES / (8 * read), rel=0.2)
    world.store.close()


def test_the_next_pass_begins_so_long_after_the_last(world: World) -> None:
    made = world.scrub()
    passed(made, world.store)
    world.now_ms += DAY_MS - 1
    assert not made._is_due
    world.now_ms += 1
    assert made._is_due
    passed(made, world.store)
    assert made.scrubbed_ms == world.now_ms
    world.now_ms -= 3 * DAY_MS  # the clock was set back
    assert made._is_due
    world.store.close()


def test_a_restart_goes_on_with_the_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world.scrub()
    monkeypatch.setattr(scrub, "NOTE_S", -1.0)
    made.step(world.store)
    assert made._note.key
    again = world.scrub()
    assert again._note == made._note
    assert again._is_due
    while again._note.table >= 0:
        again.step(world.store)
    assert again.scrubbed_ms == START_MS
    assert world.scrub().scrubbed_ms == START_MS
    (world.folder / scrub.NAME).write_text("{")
    assert world.scrub().scrubbed_ms == 0
    (world.folder / scrub.NAME).write_text('{"table": 99}')  # of another version
    passed(world.scrub(), world.store)
    world.store.close()


def test_a_block_on_the_disk_counts_not_what_is_in_ram(world: World, below: RocksStore) -> None:
    """All was read, and is in the engine's cache: of another table only, which the scrub goes past."""
    assert len(list(world.store.scan(Table.SESSIONS, b"", b"\xff"))) == 1
    flip(max(world.folder.glob("*.sst"), key=lambda path: path.stat().st_size))
    with pytest.raises(Corrupt, match="block checksum mismatch"):
        passed(world.scrub(), world.store)
    assert "block checksum mismatch" in below.damage
    assert world.store.damage == below.damage
    world.store.close()


async def test_it_runs_and_says_what_it_finds(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "LOOK_S", 0.01)
    world.every_ms = 1_000
    made = world.scrub()
    running = asyncio.ensure_future(made.run())
    await until(lambda: made.scrubbed_ms)
    flip(max(world.folder.glob("*.sst"), key=lambda path: path.stat().st_size))
    world.now_ms += 1_000
    await until(lambda: world.store.damage)
    world.store.close()
    world.now_ms += 1_000  # it is closed: no error
    await asyncio.sleep(0.05)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert made.scrubbed_ms == START_MS
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len([text for text in told if text.startswith("scrub: damage found: table messages")]) == 1


def test_a_copy_has_been_read(world: World) -> None:
    made = world.scrub()
    made.step(world.store)
    world.now_ms += 5
    made.has_been_copied()
    assert (made.scrubbed_ms, made._is_due) == (START_MS + 5, False)
    assert world.scrub().scrubbed_ms == START_MS + 5
    world.store.close()


def test_in_ram_too(tmp_path: Path) -> None:
    world = World(tmp_path, MemoryStore())
    made = world.scrub()
    passed(made, world.store)
    assert made.scrubbed_ms == START_MS


def test_a_closed_store_is_no_damage(world: World) -> None:
    world.store.close()
    with pytest.raises(StoreFailed):
        world.scrub().step(world.store)
