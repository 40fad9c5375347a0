"""Housekeeping: what has to be done now and then, each a bounded step, driven by APScheduler.

  - seal: note the running time at which the horizon passed a slice, from which its retention counts;
  - expire: drop slices whose retention is over, oldest first, and give their space back;
  - sessions: drop those whose expiry has come; write the cursors of idle ones;
  - sweep: forget what dropped slices had given away (server/jobs/leavings.py), and retained messages that
    have expired;
  - jobs: end those whose lease has lapsed, start the server's own where there is work for one.

Retention and session expiry count server running time, so a server that was down for a month drops nothing
that it has not had the time to deliver, and nobody for whom it has not been there.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC
from types import MappingProxyType

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from shards.commit import Commit
from shards.errors import ShardsError
from timeline.retention import passed_slices

from .app import App
from .delivery.shared import SWEEPS
from .figures import sys_records
from .jobs.expiring import expire
from .jobs.overfull import Overfull
from .version import server_version
from .writer import Busy

log = logging.getLogger(__name__)

INTERVAL_S = 30
SYS_INTERVAL_S = 10
SWEEP_ROWS = 5_000
EXPIRE_SESSIONS = 500
LEASES_INTERVAL_S = 5
LAUNCH_INTERVAL_S = 60


LATE_IS_FINE = MappingProxyType({"coalesce": True, "max_instances": 1, "misfire_grace_time": None})
"""What could not run in time, while a simulated clock stepped through a month, runs once, later."""


class Housekeeping:
    """The jobs of one server."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._scheduler = AsyncIOScheduler(timezone=UTC, job_defaults=LATE_IS_FINE)
        self._sweep_topic = b""
        self._running = asyncio.Lock()
        self._started_s = app.core.clock.mono()
        self.expired_slices = 0
        self.overfull = Overfull(app.pipeline)

    def start(self) -> None:
        every: list[tuple[Callable[[], object], float]] = [
            (self._run_logged, INTERVAL_S),
            (self._forget_logged, INTERVAL_S),
            (self.tell_figures, SYS_INTERVAL_S),
            (self._app.pipeline.sweep, LEASES_INTERVAL_S),
            (self.overfull.look, LAUNCH_INTERVAL_S),
        ]
        ack_timeout_ms = self._app.core.config.sessions.ack_timeout_ms
        if ack_timeout_ms:
            every.append((self._app.core.broker.groups.sweep, ack_timeout_ms / 1000 / SWEEPS))
        for work, seconds in every:
            self._scheduler.add_job(work, "interval", seconds=seconds)
        self._scheduler.start()
        self.tell_figures()

    def stop(self) -> None:
        self._scheduler.shutdown(wait=False)

    def tell_figures(self) -> None:
        """Publish `$SYS/#`."""
        app = self._app
        uptime_s = int(app.core.clock.mono() - self._started_s)
        app.core.broker.publish_system(
            sys_records(app.core, server_version(), uptime_s), app.core.retained.note_volatile
        )

    async def run_due(self) -> None:
        """Everything once, never twice at a time. Raises what the store raises."""
        async with self._running:
            await self._run_all()
        await self._forget()

    async def _run_all(self) -> None:
        await self._seal()
        if not self._app.jobs_expire:
            await self._expire()
        await self._expire_sessions()
        self._app.core.sessions.mark_idle()
        await self._sweep_retained()

    async def _run_logged(self) -> None:
        try:
            async with self._running:
                await self._run_all()
        except (ShardsError, Busy) as error:
            log.warning("housekeeping put off: %s", error)

    async def _forget(self) -> None:
        leavings = self._app.pipeline.leavings
        await leavings.sweep()
        await leavings.walk()

    async def _forget_logged(self) -> None:
        """By itself: what expires under a great load takes minutes."""
        try:
            await self._forget()
        except (ShardsError, Busy) as error:
            log.warning("what has expired is forgotten later: %s", error)

    async def _seal(self) -> None:
        app = self._app

        def seal(commit: Commit) -> None:
            for piece in passed_slices(app.core.directory, app.core.horizon.position):
                commit.passed(piece)

        if passed_slices(app.core.directory, app.core.horizon.position):
            await app.ask(seal)

    async def _expire(self) -> None:
        plan = await expire(self._app.pipeline)
        if plan:
            self.expired_slices += len(plan)
            log.info("expired %d slices up to %d", len(plan), plan[-1].end_ms)

    async def _expire_sessions(self) -> None:
        """End sessions a step at a time; the writer looks again at each, as its client may be back."""
        broker, sessions = self._app.core.broker, self._app.core.sessions
        over = [subscriber for subscriber in sessions if sessions.is_over(subscriber)]
        for start in range(0, len(over), EXPIRE_SESSIONS):
            step = over[start : start + EXPIRE_SESSIONS]
            await self._app.ask(lambda _, step=step: broker.end_expired(step), cost=len(step))  # type: ignore[misc]

    async def _sweep_retained(self) -> None:
        """Delete a step's worth of retained messages that have expired, so that they count no more."""
        retained = self._app.core.retained
        topics, self._sweep_topic = retained.sweep(self._sweep_topic, SWEEP_ROWS)
        if topics:
            await self._app.ask(lambda commit: retained.drop_expired(commit, topics))
