"""Memory is given back once after work, when the process has come to rest."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from server.engine.workers import Workers
from server.rounds.idle_trim import IDLE_S, WORK_S, IdleTrim, trim
from shards.errors import StoreFailed
from tests.support.memory_store import MemoryStore


class Counted(MemoryStore):
    """Counts how often it is unloaded."""

    unloads = 0
    fails = False

    def unload(self) -> None:
        self.unloads += 1
        if self.fails:
            raise StoreFailed("no space left")


class Idle:
    """An idle trim with a simulated processor time."""

    def __init__(self) -> None:
        self.store = Counted()
        self.workers = Workers(self.store)
        self.used_s = 5.0
        self.trim = IdleTrim(self.store, self.workers, lambda: self.used_s)

    async def after(self, *worked_s: float) -> int:
        """How often memory has been given back after looks with so much work before each."""
        for seconds in worked_s:
            self.used_s += seconds
            await self.trim.look()
        return self.store.unloads


@pytest.fixture
async def idle() -> AsyncIterator[Idle]:
    made = Idle()
    yield made
    await made.workers.stop()


async def test_once_after_work_and_not_before_it_is_over(idle: Idle) -> None:
    assert await idle.after(0.0, 0.0) == 0, "the start is none"
    assert await idle.after(0.8, 0.6, 0.9) == 0
    assert await idle.after(0.01, 0.0, 0.01) == 1
    assert await idle.after(WORK_S, 0.0) == 2


async def test_never_for_next_to_nothing_nor_under_a_load_that_stays(idle: Idle) -> None:
    assert await idle.after(*[IDLE_S / 2] * 30) == 0
    assert await idle.after(*[2 * IDLE_S] * 30) == 0


async def test_what_fails_is_told_once_and_the_rest_is_given_back(
    idle: Idle, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr("server.rounds.idle_trim.trim", lambda: trimmed.append(1))
    idle.store.fails = True
    assert await idle.after(2.0, 0.0, 0.0) == 1
    assert trimmed == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "memory: cannot be given back: no space left"
    ]


async def test_a_c_library_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    await asyncio.to_thread(trim)
    monkeypatch.setattr("server.rounds.idle_trim.CDLL", lambda _: object())
    trim()
