"""Housekeeping's timetable; what it does is tested where that is done."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, JobExecutionEvent

from server.engine.clock import SystemClock
from server.reports.status import measured
from server.rounds.app import App
from server.serving import Server
from server.settings.config import Config
from server.settings.kinds import Address
from shards.fields import Record
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

    app.housekeeping.start((chore, 86_400))
    app.housekeeping._scheduler.get_jobs()[-1].modify(next_run_time=datetime.now(UTC))
    async with asyncio.timeout(60):
        await begun.wait()
        app.housekeeping.stop()
        await app.stop()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("apscheduler")] == []


class Noting(ThreadPoolExecutor):
    """Notes what the loop has run in a thread."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ran: list[object] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        self.ran.append(work.args[0] if isinstance(work, partial) else work)
        return super().submit(work, *args, **more)


async def test_every_chore_runs_on_the_loop(tmp_path: Path) -> None:
    """A plain function would run in a thread, beside what changes the figures that it reads."""
    at = Address("127.0.0.1", 0)
    config = Config(http=replace(Config().http, listen=at), mqtt=replace(Config().mqtt, listen=(at,)))
    server = Server(config, SystemClock(), RocksStore(tmp_path / "data"), None, None)
    threads = Noting()
    asyncio.get_running_loop().set_default_executor(threads)
    await server.start()
    figures, housekeeping = server.app.housekeeping._figures, server.app.housekeeping
    inner, told_by = figures.records, []

    def records() -> Iterable[Record]:
        told_by.append(get_ident())
        return inner()

    figures.records = records  # type: ignore[assignment, method-assign]
    scheduler = housekeeping._scheduler
    left = {job.id for job in scheduler.get_jobs()}
    ended: asyncio.Queue[JobExecutionEvent] = asyncio.Queue()
    scheduler.add_listener(ended.put_nowait, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
    assert len(left) == 10
    threads.ran.clear()
    for job in scheduler.get_jobs():
        job.modify(next_run_time=datetime.now(UTC))
    async with asyncio.timeout(60):
        while left:
            event = await ended.get()
            assert event.exception is None
            left.discard(event.job_id)
    await server.stop()
    assert threads.ran == [measured]  # the disk may not answer: it is asked in a thread
    assert set(told_by) == {get_ident()}
