"""APScheduler by running time: jobs keep their intervals, whatever the wall clock does.

APScheduler notes the wall time at which each job runs next. If the clock is set back by two hours, every job
pauses for two hours; if it is set ahead by a year, APScheduler counts each run that fell into that year. So
before it checks what is due, this scheduler compares the wall clock with the monotonic one. If the difference
has changed, the wall clock was set, and the next time of every job is shifted:

    next run 12:00:30, at 12:00:10 the clock is set back to 10:00:10      next run 10:00:30, 20 s from now

It checks at least every LOOK_S. Steps below STEP_S are ignored until they add up to one.
"""

from asyncio import CancelledError
from collections.abc import Callable
from datetime import UTC, timedelta
from types import TracebackType

from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler

STEP_S = 0.1
LOOK_S = 1.0
LATE_IS_FINE = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
"""A job that could not run in time, while a simulated clock moved over a month, runs once, later."""


class _OnTheLoop(AsyncIOExecutor):  # type: ignore[misc]
    """Runs jobs on the loop. One that the shutdown cancels, before it began or later, is no error."""

    def _run_job_error(self, job_id: str, exc: BaseException, traceback: TracebackType | None = None) -> None:
        if not isinstance(exc, CancelledError):
            super()._run_job_error(job_id, exc, traceback)


class Timetable(AsyncIOScheduler):  # type: ignore[misc]
    """A scheduler on the running loop."""

    def __init__(self, wall: Callable[[], float], mono: Callable[[], float]) -> None:
        """`wall`: the clock that APScheduler reads, s; `mono`: a monotonic one."""
        super().__init__(timezone=UTC, job_defaults=LATE_IS_FINE)
        self._wall = wall
        self._mono = mono
        self._ahead_s = wall() - mono()

    def _create_default_executor(self) -> AsyncIOExecutor:
        return _OnTheLoop()

    def _process_jobs(self) -> float:
        """Run due jobs on waking; returns the seconds to sleep."""
        self._follow()
        wait_s: float | None = super()._process_jobs()
        return LOOK_S if wait_s is None else min(wait_s, LOOK_S)

    def _start_timer(self, wait_seconds: float | None) -> None:
        """A wake-up that was under way at shutdown comes after it: there is no loop to wait on any more."""
        if self.running:
            super()._start_timer(wait_seconds)

    def _follow(self) -> None:
        """Shift all next times by the step of the wall clock."""
        step_s = self._wall() - self._mono() - self._ahead_s
        if abs(step_s) < STEP_S:
            return
        self._ahead_s += step_s
        for job in self.get_jobs():
            if job.next_run_time is not None:
                job.modify(next_run_time=job.next_run_time + timedelta(seconds=step_s))
