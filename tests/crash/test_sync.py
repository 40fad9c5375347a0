"""Acked means durable: the answer waits for the sync, and dispatch does not overtake it.

kill -9 cannot show this, because what was written survives in the kernel's memory. Here the sync is held up.
"""

import asyncio
from functools import partial
from pathlib import Path

from server.app import App
from server.clock import SystemClock
from server.config import Config
from shards.commit import Commit, Draft, Known
from shards.errors import StoreFailed
from shards.record import Record, encode
from tests.support.link import FakeLink
from tests.support.mqtt import wall_ms
from tests.support.stores import FailingStore
from timeline.position import MessageId, at_of, id_position
from timeline.session import Subscription


def _draft(payload: str, due_ms: int) -> Draft:
    return Draft(due_ms, b"a", encode(Record(b"a", payload.encode(), due_ms)))


def _put(draft: Draft, commit: Commit) -> list[MessageId | Known]:
    return commit.put([draft])


async def test_the_answer_and_dispatch_wait_for_the_sync(tmp_path: Path) -> None:
    store = FailingStore(tmp_path / "data")
    app = App(Config(), SystemClock(), store, fatal=lambda: None)
    await app.start()
    got: list[str] = []
    link = FakeLink(lambda message, *_: got.append(message.record.payload.decode()))
    subscriber, _ = app.core.broker.claim(link, "c", clean=True, expiry_s=0, window=100)
    assert subscriber is not None
    app.core.broker.resume(subscriber)
    app.core.broker.subscribe(subscriber, Subscription("a", 1, app.core.horizon.position), None)
    soon_ms = wall_ms() + 100
    await app.ask(lambda commit: commit.put([_draft("soon", soon_ms)]))
    store.gate.clear()
    asked = asyncio.create_task(app.ask(lambda commit: commit.put([_draft("now", 0)])))
    await asyncio.sleep(0.3)
    assert not asked.done(), "answered before the sync"
    assert got == [], "dispatch has overtaken what is not durable"
    store.gate.set()
    (name,) = await asyncio.wait_for(asked, 60)
    await app.quiet()
    assert got == (["now", "soon"] if at_of(id_position(name)) < soon_ms else ["soon", "now"])
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
            asked.append(asyncio.create_task(app.ask(partial(_put, draft))))
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
