"""APScheduler by running time: its jobs keep their intervals, whatever the wall clock does.

APScheduler notes the wall time at which each job runs next. If the clock is set back by two hours, every job
rests for two hours; if it is set ahead by a year, APScheduler counts each run that fell into that year. So
before it looks what is due, this scheduler compares the wall clock with the monotonic one. If the difference
has changed, the wall clock was set, and the next time of every job moves along:

    next run 12:00:30, at 12:00:10 the clock is set back to 10:00:10      next run 10:00:30, 20 s from now

It looks at least each LOOK_S. Steps below STEP_S wait until they have become one.
"""

from collections.abc import Callable
from datetime import UTC, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler

STEP_S = 0.1
LOOK_S = 1.0


class Timetable(AsyncIOScheduler):  # type: ignore[misc]
    """A scheduler on the running loop."""

    def __init__(
        self, wall: Callable[[], float], mono: Callable[[], float], defaults: dict[str, object]
    ) -> None:
        """`wall`: the clock that APScheduler reads, s; `mono`: one that only elapses. `defaults`: of jobs."""
        super().__init__(timezone=UTC, job_defaults=defaults)
        self._wall = wall
        self._mono = mono
        self._ahead_s = wall() - mono()

    def _process_jobs(self) -> float:
        """What every scheduler does when it wakes: run what is due; for how many seconds to sleep."""
        self._follow()
        wait_s: float | None = super()._process_jobs()
        return LOOK_S if wait_s is None else min(wait_s, LOOK_S)

    def _follow(self) -> None:
        """Move what comes next by as much as the wall clock was set."""
        step_s = self._wall() - self._mono() - self._ahead_s
        if abs(step_s) < STEP_S:
            return
        self._ahead_s += step_s
        for job in self.get_jobs():
            if job.next_run_time is not None:
                job.modify(next_run_time=job.next_run_time + timedelta(seconds=step_s))
