"""Acked means durable: the answer waits for the sync, and dispatch does not overtake it.

kill -9 cannot show this, because what was written survives in the kernel's memory. Here the sync is held up.
"""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from server.engine.clock import SystemClock
from server.rounds.app import GATHER, App
from server.settings.config import Config
from shards.commit import Commit, Draft, Known
from shards.errors import StoreFailed
from shards.fields import Record
from shards.record import encode
from tests.support.link import FakeLink
from tests.support.mqtt import wall_ms
from tests.support.planted import Fault, finds
from tests.support.stores import FailingStore
from timeline.position import MessageId, at_of, id_position
from timeline.session import Subscription

pytestmark = pytest.mark.short


def _draft(payload: str, due_ms: int) -> Draft:
    return Draft(due_ms, b"a", encode(Record(b"a", payload.encode(), due_ms)))


def _put(draft: Draft, commit: Commit) -> list[MessageId | Known]:
    return commit.put([draft])


def _subscribed(app: App, got: list[str]) -> None:
    link = FakeLink(lambda message, *_: got.append(message.record.payload.decode()))
    subscriber, _ = app.core.clients.claim(link, "c", clean_start=True, expiry_s=0, window=100)
    assert subscriber is not None
    app.core.clients.resume(subscriber)
    app.core.subscriptions.subscribe(subscriber, Subscription("a", 1, app.core.horizon.position), None)


async def _overtaken(path: Path) -> list[str]:
    """What has come out before the sync that it had to wait for."""
    store = FailingStore(path)
    app = App(Config(), SystemClock(), store, fatal=lambda: None)
    await app.start()
    got: list[str] = []
    _subscribed(app, got)
    soon_ms = wall_ms() + 100
    await app.ask(lambda commit: commit.put([_draft("soon", soon_ms)]))
    store.gate.clear()
    asked = asyncio.create_task(app.ask(lambda commit: commit.put([_draft("now", 0)])))
    await asyncio.sleep(0.3)
    early = (["answer"] if asked.done() else []) + got
    store.gate.set()
    (name,) = await asyncio.wait_for(asked, 60)
    await app.quiet()
    assert got == (["now", "soon"] if at_of(id_position(name)) < soon_ms else ["soon", "now"])
    await app.stop()
    return early


async def test_the_answer_and_dispatch_wait_for_the_sync(tmp_path: Path) -> None:
    assert await _overtaken(tmp_path / "data") == []


@finds("sync")
async def test_an_answer_before_the_sync_is_caught(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the test above can fail."""
    fault.plant(monkeypatch)
    assert "answer" in await _overtaken(tmp_path / "data")


async def test_a_slow_sync_holds_nobody_up_who_does_not_wait_for_it(tmp_path: Path) -> None:
    """A disk that takes a second for a sync: what is due goes out meanwhile."""
    store = FailingStore(tmp_path / "data")
    app = App(Config(), SystemClock(), store, fatal=lambda: None)
    await app.start()
    got: list[str] = []
    _subscribed(app, got)
    await app.ask(lambda commit: commit.put([_draft("soon", wall_ms() + 100)]))
    store.gate.clear()
    asked = asyncio.create_task(app.ask(lambda commit: commit.put([_draft("later", wall_ms() + 3_600_000)])))
    async with asyncio.timeout(30):
        while not got:
            await asyncio.sleep(0.01)
    assert not asked.done()
    store.gate.set()
    await asked
    await app.stop()


async def test_a_store_that_is_long_in_opening_again_does_not_stop_the_loop(tmp_path: Path) -> None:
    """The engine waits for a second when it is closed on a full disk; messages in RAM go out meanwhile."""
    store = FailingStore(tmp_path / "data")
    app = App(Config(), SystemClock(), store, fatal=lambda: None)
    await app.start()
    got: list[str] = []
    _subscribed(app, got)
    await app.ask(lambda commit: commit.put([_draft("soon", wall_ms() + 400)]))
    store.is_failing = True
    store.gate_of_opening.clear()
    with pytest.raises(StoreFailed):
        await app.ask(lambda commit: commit.put([_draft("later", wall_ms() + 3_600_000)]))
    async with asyncio.timeout(30):
        while not store.is_opening or not got:
            await asyncio.sleep(0.01)
    assert app.core.writer.broken is not None
    with pytest.raises(StoreFailed):
        await app.ask(lambda commit: commit.put([_draft("later", wall_ms() + 3_600_000)]))
    store.is_failing = False
    store.gate_of_opening.set()
    async with asyncio.timeout(60):
        while app.core.writer.broken is not None:
            await asyncio.sleep(0.02)
    await app.stop()


async def test_a_failed_sync_is_not_answered_as_done(tmp_path: Path) -> None:
    """Two groups at once; both get the error, none is delivered as if nothing had happened before."""
    store = FailingStore(tmp_path / "data")
    app = App(Config(), SystemClock(), store, fatal=lambda: None)
    await app.start()
    store.gate.clear()
    drafts = [_draft(str(number), wall_ms() + 3_600_000) for number in range(2)]
    asked = []
    async with asyncio.timeout(60):
        for written, draft in enumerate(drafts, 1):
            # Worth as much as a group that is composed beside one that is being synced.
            asked.append(asyncio.create_task(app.ask(partial(_put, draft), cost=GATHER)))
            while len(app.core.writer._open) < written:
                await asyncio.sleep(0.002)
    store.is_failing = True
    store.gate.set()
    answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    assert all(isinstance(answer, StoreFailed) for answer in answers), answers
    store.is_failing = False
    async with asyncio.timeout(60):
        while app.core.writer.broken is not None:
            await asyncio.sleep(0.02)
    (name,) = await app.ask(lambda commit: commit.put([_draft("again", wall_ms() + 3_600_000)]))
    assert app.core.reader.find(name) is not None
    await app.stop()
