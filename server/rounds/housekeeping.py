"""Housekeeping: periodic chores in bounded steps, driven by APScheduler.

  - seal: note the running time at which the horizon passed a slice, from which its retention counts;
  - expire: drop slices whose retention is over, oldest first, and give their space back;
  - behind: move groups and endpoints that hold old slices on, or give up their messages; count sessions'
    unfinished messages of the next slices, or make them dead letters;
  - sessions and groups: drop those whose expiry has come; write the cursors of idle ones;
  - sweep: delete the names of dropped slices (server/engine/garbage.py), and expired retained messages;
  - dead: drop dead letters whose retention is over;
  - done: drop what is over of deliveries that are done (server/delivery/done.py);
  - jobs: abort those whose lease is over, start the server's own if there is work.

Retention and session expiry count server running time, so a server that was down for a month drops neither
messages that it had no time to deliver, nor sessions. The chores run by running time too (timetable.py).

Every chore is a coroutine, so it runs on the loop: APScheduler runs a plain function in a thread, where it
would read what the loop changes. Blocking work goes to a thread explicitly (server/engine/workers.py).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial, wraps
from shutil import disk_usage
from time import monotonic, time

from shards import ended
from shards.commit import Commit
from shards.errors import ShardsError
from timeline.position import Position
from timeline.slices import Slice

from ..core import Core
from ..delivery.done import STEP, Done
from ..delivery.retention import Retention
from ..delivery.settling.dead_letter_queue import SWEEP_MAX
from ..delivery.shared import Group
from ..engine.garbage import GarbageCollector
from ..engine.writer import Ask, Busy
from ..jobs.looks import Looks
from ..jobs.pipeline import Pipeline
from ..observe.logs import by, clean
from ..reports.figures import Figures
from ..webhook.webhooks import Webhooks
from .timetable import Timetable

log = logging.getLogger(__name__)

INTERVAL_S = 30
SYS_INTERVAL_S = 10
SWEEP_ROWS = 5_000
GIVE_UP_STEPS = 100
"""Steps in which one group is given up; the rest follows the next time."""
EXPIRE_SESSIONS = 500
LEASES_INTERVAL_S = 5
LAUNCH_INTERVAL_S = 60

Chore = Callable[[], Awaitable[None]]


def _given_up_at_the_stop(work: Chore) -> Chore:
    """Ignore cancellation at the scheduler's end, which it would log as an error."""

    @wraps(work)
    async def run() -> None:
        with suppress(asyncio.CancelledError):
            await work()

    return run


class Housekeeping:
    """The chores of one server; `start` puts them on a timetable."""

    def __init__(
        self,
        core: Core,
        ask: Ask,
        figures: Figures,
        pipeline: Pipeline,
        retention: Retention,
        looks: Looks,
        garbage: GarbageCollector,
        webhooks: Webhooks,
    ) -> None:
        self._core = core
        self._ask = ask
        self._figures = figures
        self._pipeline = pipeline
        self._retention = retention
        self._looks = looks
        self._garbage = garbage
        self._webhooks = webhooks
        self._scheduler = Timetable(time, monotonic)
        self._done = Done(core.opened.store, core.directory, core.groups, core.clock)
        self._sweep_topic = b""
        self._running = asyncio.Lock()

    def start(self, *more: tuple[Chore, float]) -> None:
        """`more`: further chores, each with its interval, s."""
        every: list[tuple[Chore, float]] = [
            *more,
            (self._run_logged, INTERVAL_S),
            (self._forget_logged, INTERVAL_S),
            (self._tell_figures, SYS_INTERVAL_S),
            (self._pipeline.sweep, LEASES_INTERVAL_S),
            (self._looks.look, LAUNCH_INTERVAL_S),
        ]
        for work, seconds in every:
            self._scheduler.add_job(_given_up_at_the_stop(work), "interval", seconds=seconds)
        self._scheduler.start()
        self.tell_figures()

    def stop(self) -> None:
        self._scheduler.shutdown(wait=False)

    def tell_figures(self) -> None:
        """Publish `$SYS/#`."""
        core = self._core
        core.publishing.publish_system(self._figures.records(), core.retained.note_volatile)

    async def _tell_figures(self) -> None:
        self.tell_figures()

    async def run_due(self) -> None:
        """Run everything once, never twice at a time. Raises what the store raises."""
        async with self._running:
            await self._run_all()
        await self._forget()

    async def _run_all(self) -> None:
        await self._seal()
        await self._look_behind()
        await self._retention.settle()
        if not self._retention.need_a_job:
            await self._expire()
        await self._expire_sessions()
        self._core.cursors.mark_idle()
        await self._sweep_retained()
        await self._sweep_dead()
        await self._sweep_done()
        await self._sweep_ends()

    async def _run_logged(self) -> None:
        try:
            async with self._running:
                await self._run_all()
        except (ShardsError, Busy) as error:
            log.warning("housekeeping: postponed: %s", error)

    async def _forget(self) -> None:
        await self._garbage.sweep()
        await self._garbage.walk()

    async def _forget_logged(self) -> None:
        """By itself: expiring under a heavy load takes minutes."""
        try:
            await self._forget()
        except (ShardsError, Busy) as error:
            log.warning("retention: deletion postponed: %s", error)

    async def _seal(self) -> None:
        directory, horizon = self._core.directory, self._core.horizon

        def seal(commit: Commit) -> None:
            for piece in directory.passed(horizon.position):
                commit.open_batch.passed(piece)

        if directory.passed(horizon.position):
            await self._ask(seal)

    async def _look_behind(self) -> None:
        """Move groups and endpoints that hold slices beyond retention over messages that are not theirs.
        Unfinished messages that are too old, or held while the disk is nearly full, become dead letters. What
        the archive has not got yet is held by it, too: then no place is given up for the disk."""
        floor, slices, retention = self._core.floor, self._core.config.slices, self._retention
        end = retention.end_of(slices.retention_ms)
        retention.note_disk(is_short=end is not None and await self._is_nearly_full())
        if end is None:
            return
        for group in floor.holders(end):
            while await self._ask(lambda commit, group=group: floor.advance(commit, group, end)):  # type: ignore[misc]
                pass
        too_long = retention.end_of(max(slices.kept_behind_ms, slices.retention_ms))
        for group in floor.holders(too_long) if too_long is not None else ():
            await self._give_up(group, too_long or end, "behind for longer than slices.kept_behind")
        end = min(end, retention.archived)
        if floor.needed < end and retention.is_short:
            self._core.releasing.give_up(end)
            for group in floor.holders(end)[:1]:
                await self._give_up(group, end, "the disk has less than store.min_free")

    async def _give_up(self, group: Group, end: Position, why: str) -> None:
        steps = 0
        while steps < GIVE_UP_STEPS and await self._ask(
            lambda commit: self._core.floor.give_up(commit, group, end)
        ):
            steps += 1
        if steps:
            log.warning("group %s: given up: %s", clean(group.text), why, extra=by(group.name))

    async def _is_nearly_full(self) -> bool:
        store = self._core.config.store
        if not store.min_free:
            return False
        try:
            free = (await asyncio.to_thread(disk_usage, store.dir)).free
        except OSError:
            return False  # the store reports this itself
        return free < store.min_free

    async def _expire(self) -> None:
        gone = await self._retention.drop(self._is_being_archived)
        if gone:
            log.info("retention: %d slices dropped, up to %d", len(gone), gone[-1].end_ms)

    def _is_being_archived(self, piece: Slice) -> bool:
        job = self._pipeline.job_at(piece.start_ms)
        return job is not None and bool(job.row.archive)

    async def _expire_sessions(self) -> None:
        """Delete expired sessions, groups and endpoints in steps. The writer checks again: a client may be
        back."""
        clients, sessions, groups = self._core.clients, self._core.sessions, self._core.groups
        shared = (group for group in groups if not group.is_endpoint and groups.is_over(group))
        over = [*filter(sessions.is_over, sessions), *shared]
        for start in range(0, len(over), EXPIRE_SESSIONS):
            step = over[start : start + EXPIRE_SESSIONS]
            await self._ask(lambda _, step=step: clients.end_expired(step), cost=len(step))  # type: ignore[misc]
        endpoints = [group for group in groups if group.is_endpoint and groups.is_over(group)]
        if endpoints:
            await self._webhooks.end_expired(endpoints)
        await self._webhooks.forget_idle()

    async def _sweep_retained(self) -> None:
        """Delete a step's worth of expired retained messages, which no longer count then."""
        retained = self._core.retained
        topics, self._sweep_topic = retained.sweep(self._sweep_topic, SWEEP_ROWS)
        if topics:
            await self._ask(lambda commit: retained.drop_expired(commit, topics))

    async def _sweep_dead(self) -> None:
        """Drop expired dead letters, a step at a time."""
        dead_letter_queue, running_ms = self._core.dead_letter_queue, self._core.writer.running_ms
        while dead_letter_queue.are_over(running_ms):
            gone: int = await self._ask(
                lambda commit: dead_letter_queue.drop_expired(commit, running_ms), cost=SWEEP_MAX
            )
            if not gone:
                return
            dead_letter_queue.note_expired(gone)

    async def _sweep_done(self) -> None:
        """Drop what is over of deliveries that are done, a step at a time, until one is not full: more is
        over with each moment."""
        for whose, group in self._done.over():
            while await self._ask(partial(self._done.drop, whose=whose, group=group), cost=SWEEP_MAX) >= STEP:
                pass

    async def _sweep_ends(self) -> None:
        """Drop what was noted for an archive that there is no more."""
        group = self._core.opened.open_batch
        if not group.notes_ends and ended.total(group.store).rows:
            await self._ask(lambda commit: ended.clear_before(commit, group.horizon.clock_ms))
