"""Housekeeping's timetable; what it does is tested where that is done."""

import asyncio
from pathlib import Path

import pytest

from server.engine.clock import SystemClock
from server.rounds.app import App
from server.settings.config import Config
from shards.rocks import RocksStore


async def test_a_chore_under_way_at_the_stop_is_given_up_without_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fatal() -> None:
        raise AssertionError

    app = App(Config(), SystemClock(), RocksStore(tmp_path / "data"), fatal=fatal)
    await app.start()
    begun = asyncio.Event()

    async def chore() -> None:
        begun.set()
        await asyncio.Event().wait()

    app.housekeeping.start((chore, 0.01))
    async with asyncio.timeout(60):
        await begun.wait()
        app.housekeeping.stop()
        await app.stop()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("apscheduler")] == []
