"""Expiry and what it leaves: chosen and counted outside of the writer, decided in it."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.engine.clock import SimulatedClock
from server.jobs.pipeline import Job, JobRefused
from server.rounds.app import App
from server.settings.config import Config, Slices
from shards import garbage, keys
from shards.archives import DroppedSlice
from shards.commit import Draft, Known
from shards.errors import Corrupt, StoreFailed
from shards.expiry import expire
from shards.fields import Record
from shards.record import encode, names_of
from shards.recover import read_directory
from shards.store import Table
from shards.verify import verify_counts
from tests.support.keys import KeysFile, with_keys
from tests.support.stores import rewrite
from timeline.position import MessageId
from timeline.slices import Counts

from ..conftest import HOUR_MS, START_MS, Running, running

RETENTION_MS = 60_000
FAR = START_MS - START_MS % (6 * HOUR_MS) + 72 * HOUR_MS
"""Where a slice of 6 h starts."""


@pytest.fixture
def ram() -> None:
    """Jobs read checkpoints."""


@pytest.fixture
def config() -> Config:
    return replace(Config(), slices=replace(Slices(), retention_ms=RETENTION_MS))


def draft(text: str, due_ms: int, key: int = 0) -> Draft:
    hashed = key.to_bytes(16, "big") if key else b""
    record = Record(b"a/b", text.encode(), due_ms, key=hashed)
    return Draft(due_ms, record.topic, encode(record), hashed, hashed)


async def put(app: App, *drafts: Draft) -> list[Any]:
    found: list[Any] = await app.ask(lambda commit: commit.put(drafts), cost=len(drafts))
    return found


async def pass_by(server: Running, to_ms: int) -> None:
    """To `to_ms`, all that is due by then dispatched and its slices behind retention, but not dropped."""
    app, clock = server.app, server.clock
    app.core.horizon.ahead_ms = to_ms - clock.now_ms + 2_000
    await app.ask(lambda commit: None)
    app.core.horizon.ahead_ms = 2_000
    await server.pass_time(to_ms - clock.now_ms)
    await server.pass_time(1)
    await app.housekeeping._seal()
    app.core.opened.open_batch.ran(2 * RETENTION_MS)
    await app.ask(lambda commit: None)


def count(app: App, table: Table) -> int:
    return sum(1 for _ in app.core.opened.store.scan(table, b"", keys.LAST))


async def two_children(server: Running) -> tuple[MessageId, MessageId]:
    """A message in each of two slices that borrow one shard; the first is behind retention."""
    app = server.app
    early, late = await put(app, draft("early", FAR + 60_000), draft("late", FAR + 3 * HOUR_MS))
    job = await app.splits.create(FAR, 0, "caller")
    await app.splits.commit(job.row.id, job.token, [FAR + HOUR_MS], [Counts(1, 1, 100)] * 2)
    await pass_by(server, FAR + HOUR_MS + 1_000)
    return early, late


async def begun(app: App) -> tuple[Job, list[DroppedSlice]]:
    """A caller's job, and what it says at its end."""
    job = await app.expiries.create("caller")
    return job, [DroppedSlice(piece.start_ms, piece.generation, piece.rows) for piece in job.row.slices]


async def lose_a_group(server: Running) -> None:
    server.store.loses_next = True
    with pytest.raises(StoreFailed):
        await put(server.app, draft("lost", FAR + 240 * HOUR_MS))
    await server.app.quiet()
    assert server.app.core.writer.broken is None


async def test_an_expiry_leaves_what_others_borrow(server: Running) -> None:
    app = server.app
    early, late = await two_children(server)
    await lose_a_group(server)
    assert app.core.reader.find(late) is not None
    await app.housekeeping.run_due()
    assert app.core.reader.find(early) is None
    assert app.core.reader.find(late) is not None
    assert verify_counts(server.store, app.core.directory) == []
    assert app.core.opened.waiting.pending == 1
    await server.pass_time(3 * HOUR_MS)
    assert app.core.dispatch.counts.dispatched == 2


async def test_two_expiries_of_one_slice(server: Running) -> None:
    app = server.app
    await two_children(server)
    job, said = await begun(app)
    dropped = [piece.home for piece in job.row.slices]
    chosen = [app.core.directory.get(home.start_ms) for home in dropped]
    await app.expiries.commit(job.row.id, job.token, said)
    # What the server's own had chosen before that.
    gone = await app.ask(lambda commit: expire(commit, chosen))
    assert (gone, app.core.opened.waiting.pending) == ([], 1)


async def test_a_job_settles_what_sessions_have_not_read_before_housekeeping_has_looked(
    server: Running,
) -> None:
    subscriber, _ = await server.connect("c", "#")
    server.app.core.clients.leave(subscriber, is_clean=False)
    await two_children(server)
    job = await server.app.expiries.create("caller")
    assert job.row.slices
    assert server.app.core.burials.dropped["kept too long"] == 1


async def test_a_job_whose_slices_the_server_has_dropped_is_refused(server: Running) -> None:
    app = server.app
    await two_children(server)
    job, said = await begun(app)
    await app.housekeeping.run_due()
    with pytest.raises(JobRefused, match="no longer the oldest"):
        await app.expiries.commit(job.row.id, job.token, said)


async def test_a_job_goes_on_when_the_directory_was_read_anew(server: Running) -> None:
    app = server.app
    _, late = await two_children(server)
    job, said = await begun(app)
    await lose_a_group(server)
    row = await app.expiries.commit(job.row.id, job.token, said)
    assert (row.state, row.rows) == ("done", 1)
    assert app.core.reader.find(late) is not None
    assert verify_counts(server.store, app.core.directory) == []


async def test_a_seal_decides_about_the_slices_that_are_there(server: Running) -> None:
    app = server.app
    await put(app, draft("x", START_MS + 1_000))
    await server.pass_time(HOUR_MS)
    seal = asyncio.ensure_future(app.housekeeping._seal())
    await asyncio.sleep(0)
    app.core.directory.replace(read_directory(app.core.opened.store, 1_000))
    await seal
    assert all(piece.passed_s is not None for piece in app.core.directory)


# -- what is left


async def test_a_key_that_is_taken_anew_is_not_forgotten(server: Running) -> None:
    app = server.app
    await put(app, draft("x", START_MS, 7))
    await pass_by(server, START_MS + HOUR_MS)
    await app.housekeeping._expire()
    # The same key again waits in the writer's queue when the sweep looks.
    found = garbage.look(server.store, *next(garbage.left(server.store)), 1_000, 1 << 20)
    assert found.names == [(Table.DEDUPE, (7).to_bytes(16, "big"))]
    (one,) = await put(app, draft("x", server.clock.now_ms, 7))
    assert not isinstance(one, Known)
    await app.garbage._forget(found.names)
    await app.garbage.sweep()
    assert await put(app, draft("x", server.clock.now_ms, 7)) == [Known(one, server.clock.now_ms)]


@pytest.mark.long
async def test_all_that_has_expired_is_forgotten_in_one_round(server: Running) -> None:
    app = server.app
    many = 12_000
    for first in range(1, many, 1_000):
        await put(app, *(draft("x", START_MS + 1_000, key) for key in range(first, first + 1_000)))
    ids = await put(app, *(draft(f"m{n}", START_MS + 90 * HOUR_MS) for n in range(1_500)))
    await app.ask(lambda commit: [commit.move(name, START_MS + 2_000) for name in ids])
    (kept,) = await put(app, draft("kept", START_MS + 90 * HOUR_MS, 99_999))
    await pass_by(server, START_MS + HOUR_MS)
    assert (count(app, Table.DEDUPE), count(app, Table.MOVED)) == (many + 1, 1_500)
    await app.housekeeping.run_due()
    assert (count(app, Table.DEDUPE), count(app, Table.MOVED)) == (1, 0)
    assert list(garbage.left(server.store)) == []
    assert all(app.core.reader.find(name) is None for name in ids)
    assert await put(app, draft("kept", START_MS + 90 * HOUR_MS, 99_999)) == [
        Known(kept, START_MS + 90 * HOUR_MS)
    ]


async def test_what_moved_on_or_out_is_not_forgotten(server: Running) -> None:
    """Its old row, which has its names too, expires long before it."""
    app = server.app
    (name,) = await put(app, draft("x", START_MS + 90 * HOUR_MS, 5))
    for due_ms in (START_MS + 10_000, START_MS + 50 * HOUR_MS):
        await app.ask(lambda commit, due_ms=due_ms: commit.move(name, due_ms))
    await pass_by(server, START_MS + HOUR_MS)
    await app.housekeeping.run_due()
    assert len(app.core.directory) == 2
    assert app.core.reader.find(name) is not None
    assert isinstance((await put(app, draft("x", START_MS + 90 * HOUR_MS, 5)))[0], Known)


async def test_a_start_goes_on_forgetting(tmp_path: Path, config: Config, clock: SimulatedClock) -> None:
    async with running(tmp_path / "data", config, clock) as server:
        await put(server.app, draft("x", START_MS, 7))
        await pass_by(server, START_MS + HOUR_MS)
        await server.app.housekeeping._expire()
        assert count(server.app, Table.DEDUPE) == 1
    async with running(tmp_path / "data", config, clock) as server:
        await asyncio.gather(*server.app.workers._tasks)
        assert count(server.app, Table.DEDUPE) == count(server.app, Table.MESSAGES) == 0


async def test_what_cannot_be_read_goes_and_its_keys_by_and_by(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = server.app
    await put(app, *(draft("x", START_MS, key) for key in range(1, 31)))
    await pass_by(server, START_MS + HOUR_MS)
    work = app.housekeeping

    def torn(*args: object) -> garbage.Look:
        raise Corrupt("told to be unreadable")

    monkeypatch.setattr("server.engine.garbage.look", torn)
    caplog.set_level(logging.WARNING)
    await work._expire()
    await app.garbage.sweep()
    assert "unreadable" in caplog.text
    assert (count(app, Table.MESSAGES), count(app, Table.DEDUPE)) == (0, 30)
    monkeypatch.setattr("server.engine.garbage.LOOK_ROWS", 10)
    await app.garbage.walk()
    assert count(app, Table.DEDUPE) == 0


async def test_a_name_that_cannot_be_read_holds_up_no_other(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the sweep nor in the walk; and no group is given up for it."""
    app = server.app
    await put(app, *(draft("x", START_MS, key) for key in range(1, 6)))
    torn = (4).to_bytes(16, "big")
    rewrite(server.store, (Table.DEDUPE, torn, b"torn"))
    real, rotten = server.store.get, (2).to_bytes(16, "big")

    def get(table: Table, key: bytes) -> bytes | None:
        if (table, key) == (Table.DEDUPE, rotten):
            raise Corrupt("block checksum mismatch")
        return real(table, key)

    monkeypatch.setattr(server.store, "get", get)
    await pass_by(server, START_MS + HOUR_MS)
    await app.housekeeping.run_due()
    await app.garbage.walk()
    assert [key for key, _ in server.store.scan(Table.DEDUPE, b"", keys.LAST)] == [rotten, torn]
    assert count(app, Table.MESSAGES) == len(list(garbage.left(server.store))) == 0
    assert app.core.writer.given_up == 0


async def test_it_waits_for_a_store_that_takes_no_writes(server: Running) -> None:
    app = server.app
    await put(app, draft("x", START_MS, 7))
    await pass_by(server, START_MS + HOUR_MS)
    await app.housekeeping._expire()
    server.store.loses_next = True
    await app.garbage.sweep()
    await app.quiet()
    assert count(app, Table.DEDUPE) == 1
    await app.garbage.sweep()
    assert count(app, Table.DEDUPE) == 0


def test_names_of_what_is_stored() -> None:
    name, key = 77, (8).to_bytes(16, "big")
    bare = Record(b"a", b"x" * 40, 5)
    assert names_of(encode(bare)) == (b"", b"")
    for expires_ms in (0, 9):
        record = replace_struct(bare, expires_ms=expires_ms, id=name, key=key)
        assert names_of(encode(record)) == (name.to_bytes(16, "big"), key)
        assert names_of(encode(replace_struct(record, id=0))) == (b"", key)
        assert names_of(encode(replace_struct(record, key=b""))) == (name.to_bytes(16, "big"), b"")


def replace_struct(record: Record, **changes: object) -> Record:
    changed: Record = msgspec.structs.replace(record, **changes)
    return changed


@pytest.mark.long
async def test_the_server_does_not_drop_what_a_caller_archives(server: Running) -> None:
    app = server.app
    early, _ = await two_children(server)
    job = await app.expiries.archiving.create("caller", "/archive")
    await app.housekeeping.run_due()
    assert app.core.reader.find(early) is not None
    await app.pipeline.abort(job.row.id, job.token, "")
    await app.housekeeping.run_due()
    assert app.core.reader.find(early) is None


async def test_what_is_withheld_keeps_its_slice_until_the_disk_is_nearly_full(
    tmp_path: Path, config: Config, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    file.add("shop", "schedule", publish=["x"])
    async with running(tmp_path / "keyed", with_keys(config, file.path), clock) as server:
        app = server.app
        core = app.core
        record = Record(b"a/b", b"", FAR + 60_000, owner=b"shop")
        await put(app, Draft(FAR + 60_000, record.topic, encode(record)))
        await pass_by(server, FAR + 7 * HOUR_MS)
        assert core.opened.withheld.count == 1
        await app.housekeeping.run_due()
        assert core.opened.withheld.count == 1
        assert not app.expiries.retention.due()

        async def is_full() -> bool:
            return True

        monkeypatch.setattr(app.housekeeping, "_is_nearly_full", is_full)
        await app.housekeeping._look_behind()
        await app.quiet()
        assert core.opened.withheld.count == 0
        assert core.burials.dropped["kept too long"] == 1
        assert app.expiries.retention.due()
