"""What runs now and then, while somebody sets the clock: none of it rests for longer than its interval."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import pytest
from apscheduler.schedulers import base

from server.engine.clock import SystemClock
from server.rounds import housekeeping
from server.rounds.timetable import LOOK_S, Timetable
from server.serving import Server
from server.settings.config import Config
from server.settings.kinds import Address
from shards.rocks import RocksStore

HOUR_S = 3_600.0
YEAR_S = 365 * 24 * HOUR_S


class Wall:
    """A wall clock that a test sets; APScheduler reads it too."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    made = Wall()

    class Shown(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(made(), tz)

    monkeypatch.setattr(base, "datetime", Shown)
    monkeypatch.setattr(housekeeping, "time", made)
    return made


class Chore:
    """Counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self._ran = asyncio.Event()

    async def run(self) -> None:
        self.runs += 1
        self._ran.set()

    async def again(self, times: int) -> None:
        for _ in range(times):
            self._ran.clear()
            await self._ran.wait()


@pytest.mark.parametrize(
    "steps", [[-2 * HOUR_S], [24 * HOUR_S, -24 * HOUR_S], [50 * YEAR_S], [-2.0, 3.0, -0.2]]
)
async def test_a_chore_goes_on_after_a_step(wall: Wall, steps: list[float]) -> None:
    """Also when the clock jumps from 1970 to now: the runs of the years between are not counted."""
    timetable, chore = Timetable(wall, time.monotonic), Chore()
    timetable.add_job(chore.run, "interval", seconds=0.05)
    timetable.start()
    async with asyncio.timeout(30):
        await chore.again(2)
        for step_s in steps:
            wall.ahead_s += step_s
            await chore.again(3)
    timetable.shutdown(wait=False)


async def test_a_step_is_seen_within_a_second(wall: Wall) -> None:
    """Whatever the next run is: the clock may be set just when the time to sleep is reckoned."""
    timetable = Timetable(wall, time.monotonic)
    assert timetable._process_jobs() <= LOOK_S
    job = timetable.add_job(Chore().run, "interval", seconds=HOUR_S)
    timetable.start()
    assert timetable._process_jobs() <= LOOK_S
    due = job.next_run_time
    wall.ahead_s = -10 * HOUR_S
    timetable._process_jobs()
    assert abs(job.next_run_time - (due - timedelta(hours=10))) < timedelta(seconds=1)
    timetable.shutdown(wait=False)


async def test_a_wake_up_that_comes_after_shutdown_is_the_last_one(wall: Wall) -> None:
    """Both wait for the next turn of the loop, in this order."""
    loop, faults = asyncio.get_running_loop(), list[dict[str, object]]()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    timetable = Timetable(wall, time.monotonic)
    timetable.start()
    await asyncio.sleep(0)
    timetable.shutdown(wait=False)
    timetable.wakeup()
    await asyncio.sleep(0)
    assert faults == []


@pytest.mark.long
async def test_every_chore_of_a_server_keeps_its_interval(wall: Wall, tmp_path: Path) -> None:
    at = Address("127.0.0.1", 0)
    config = Config(http=replace(Config().http, listen=at), mqtt=replace(Config().mqtt, listen=(at,)))
    server = Server(config, SystemClock(), RocksStore(tmp_path / "data"), None, None)
    await server.start()
    timetable = server.app.housekeeping._scheduler
    for step_s in (-2 * HOUR_S, 26 * HOUR_S, -24 * HOUR_S):
        wall.ahead_s += step_s
        timetable._process_jobs()
        now = datetime.fromtimestamp(wall(), UTC)
        jobs = timetable.get_jobs()
        assert len(jobs) == 10
        assert all(job.next_run_time - now <= job.trigger.interval for job in jobs)
    await server.stop()


async def test_a_chore_that_the_shutdown_catches_is_no_error(
    wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    """Due in the moment of the stop: its task is there, and has not begun."""
    timetable, chore = Timetable(wall, time.monotonic), Chore()
    timetable.start()
    timetable.add_job(chore.run, "interval", seconds=60, next_run_time=datetime.now(UTC))
    timetable.shutdown(wait=False)  # in the next turn of the loop
    timetable._process_jobs()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (chore.runs, [record for record in caplog.records if record.levelname == "ERROR"]) == (0, [])
