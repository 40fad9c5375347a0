"""A server on an event loop: runs the core in rounds, and builds the parts that need a loop.

A *round* does everything that is to be done now, in bounded pieces: compose a group, move the horizon, load a
run, let sessions read on. New work plans a round for the next turn of the loop. After a round without more
work a timer waits for the next due message, at most 250 ms, so that a jump of the wall clock is noticed.
Nothing depends on an exact timer: every round reads the clock.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from shards.cells import save
from shards.commit import GroupCommit
from shards.errors import ShardsError, StoreFailed
from shards.recover import reopen_store
from shards.replicated import AHEAD
from shards.store import Store

from ..auth.checking import Threads
from ..auth.keyring import Keyring
from ..core import Core
from ..delivery.stored_sessions import StoredSessions
from ..engine.clock import Clock, SystemClock
from ..engine.commit_hook import ignore
from ..engine.disk_thread import DiskThread
from ..engine.garbage import GarbageCollector
from ..engine.lease import Lease
from ..engine.workers import Workers
from ..engine.writer import DECIDE_S, OPEN_GROUPS, Decide
from ..http.streams import TAILS_MAX, Streams
from ..http.timeline import Timeline
from ..http.turns import Turns
from ..jobs.expiring import Expiries
from ..jobs.launch import Launcher
from ..jobs.looks import Looks
from ..jobs.pipeline import Pipeline
from ..jobs.splitting import Splits
from ..net.loop_time import LoopTime
from ..net.outgoing import Outgoing
from ..net.pool import pool_of
from ..observe.history import History
from ..observe.metrics import Metrics
from ..observe.tracing import Traces
from ..reports.figures import Figures
from ..reports.sampling import Sampling
from ..reports.status import Status
from ..settings.config import Config
from ..webhook.registry import Registry
from ..webhook.webhooks import Webhooks
from .alarm import Alarm
from .counting import Counting
from .housekeeping import Housekeeping
from .simulation import Simulation

log = logging.getLogger(__name__)

WAIT_S = 0.25
ROUND_S = 0.01
"""Time of a round: replay has what is left of it, ..."""
REPLAY_S = 0.003
"""... and this at least."""
ALONE_S = 0.004
"""A group that took longer to compose and write is a round of its own: all else is done in the next one,
whatever that composes."""
RETRY_S = 1.0
STOP_S = 10.0
LEAVE_S = 2.0
"""A leader of a cluster begins no more last groups after this time: another node does not wait for longer.
What is not stored is as after a kill."""
STOP_BYTES = 4 << 20
"""Maximum bytes of cells saved with the last groups."""
GATHER = 250
"""Messages that must wait before a group is written while another is being synced."""


class App:
    """Holds a core and runs it: `start` begins the rounds, `stop` ends them in order.

    It also has jobs, housekeeping and the simulated clock: everything that asks the writer and waits for its
    answer.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        store: Store,
        *,
        fatal: Callable[[], None],
        lease: Lease | None = None,
        lost: Callable[[], None] = ignore,
        full: Callable[[], str] = str,
        traces: Traces | None = None,
        stored: StoredSessions | None = None,
    ) -> None:
        """`fatal`: called when the server cannot continue. `lease`: of a cluster's leader; when it ends, or
        the store fails, nothing more is done, and `lost` is called, perhaps more than once, before running
        requests are answered. `full`: why no messages are taken, if so. `traces`, `stored`: as for the core.

        Raises KeysFileError, WrongFormat, Corrupt, StoreFailed.
        """
        self._checks = Threads()
        self.keyring = Keyring(config, clock, self._checks)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_alone = False
        """Whether the last round was that of a group alone."""
        self._is_planned = False
        self._clock = clock
        self._store = store
        self.core = Core(
            config,
            clock,
            store,
            wake=self.plan,
            failing=ignore if lease is None else lost,
            auth=self.keyring,
            chance=random.random,
            gather=GATHER,
            groups=OPEN_GROUPS if lease is None else AHEAD,
            traces=traces,
            stored=stored,
        )
        self.metrics = Metrics()
        self.time = LoopTime(monotonic, self.core.part, self.metrics.turned)
        self.outgoing = Outgoing(clock.mono, self.core.part)
        self.pool = pool_of(config)
        self.is_ready = False
        self._fatal = fatal
        self._lease = lease
        self._lost = lost
        self._full = full
        self._is_dead = False
        self._is_finished = False
        self._disk = DiskThread()
        self._syncs = 0
        self._sync_s: deque[float] = deque()
        """Times of ended syncs that are not reported yet."""
        self._retry_at = 0.0
        self._is_reopening = False
        self._mark_at = 0.0
        self._is_marking = False
        self._alarm: Alarm | None = None
        """Set to the next time at which there is work."""
        self._quiet = asyncio.Event()
        """Not set while somebody waits for `quiet`."""
        self._quiet.set()

        self._build_jobs(config)
        self._build_reports(config)
        self._build_housekeeping(config)

    def _build_jobs(self, config: Config) -> None:
        """Work besides the rounds: jobs, and posts to endpoints."""
        core, opened = self.core, self.core.opened
        self.workers = Workers(self._store)
        self.garbage = GarbageCollector(self.ask, core.writer, opened, self.workers)
        self.launcher = Launcher(config.spark, key=self.keyring.own_key())
        self.pipeline = Pipeline(
            self.ask,
            self._clock,
            core.writer,
            opened,
            self.workers,
            self.launcher,
            node=core.node,
            folder=Path(config.store.dir) / "jobs",
        )
        self.splits = Splits(self.pipeline, self.workers, opened, core.wheel)
        self.expiries = Expiries(
            self.pipeline,
            self.workers,
            self.garbage,
            self.ask,
            opened,
            config.slices,
            core.floor,
            self._clock,
        )
        registry = Registry(self._store, config.webhook, max_endpoints=config.limits.endpoints)
        self.webhooks = Webhooks(
            registry,
            core.groups,
            core.url_groups,
            core.settling,
            core.writer,
            self.ask,
            config.webhook,
            self._clock,
            SystemClock(),
            node=core.node,
        )

    def _build_reports(self, config: Config) -> None:
        """What is shown of the server."""
        core = self.core
        retention, archive = self.expiries.retention, self.expiries.archiving.archive
        self.figures = Figures(
            core, self.metrics, self.pipeline, retention, archive, self.webhooks, self.pool
        )
        self.metrics.registry.register(self.figures)
        timeline = Timeline(core.opened, core.writer.journal, core.owners.why_not, node=core.node)
        self.status = Status(core, timeline, self.webhooks, Path(config.store.dir))
        self.metrics.registry.register(self.status)
        self.streams = Streams(config.http.event_streams)
        self.tails = Streams(min(TAILS_MAX, config.http.event_streams))
        self.turns = Turns(self._clock, max_bytes=config.http.buffered_bytes)
        self.history = History()
        self.sampling = Sampling(core, self.metrics, self.status, self.webhooks, self.turns, self.history)

    def _build_housekeeping(self, config: Config) -> None:
        """Work by a timetable, and the simulated clock."""
        core, retention = self.core, self.expiries.retention
        looks = Looks(
            self.pipeline,
            self.launcher,
            self.splits,
            self.expiries.archiving,
            self.expiries,
            core.directory,
            self._clock,
            split_above=config.slices.split_above,
        )
        self.counting = Counting(self.ask, core.writer, core.opened)
        self.housekeeping = Housekeeping(
            core, self.ask, self.figures, self.pipeline, retention, looks, self.garbage, self.webhooks
        )
        self.simulation = Simulation(core, self.ask, self.quiet, self.housekeeping)

    # -- life cycle

    async def start(self) -> None:
        """Start the rounds and catch up; ready when the wheel is loaded beyond now."""
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop, self._rung)
        self.plan()
        await self.quiet()
        await self.pipeline.start()
        await self.webhooks.start()
        self.workers.later(self.garbage.sweep())
        self.core.settling.ready()
        self.is_ready = not self._is_dead

    async def finish(self) -> None:
        """Store what of the cursors is not. A leader of a cluster does nothing more after that."""
        if self._is_finished:
            return
        self._is_finished, self.is_ready = True, False
        cursors = self.core.cursors
        cursors.finish()
        has_lost = self._lease is not None and self.core.writer.broken is not None
        until = self._clock.mono() + (STOP_S if self._lease is None else LEAVE_S)
        if not self._is_dead and not has_lost:
            try:
                async with asyncio.timeout(STOP_S):
                    await self.ask(partial(save, most=STOP_BYTES))
                    while cursors.is_behind and self._clock.mono() < until:
                        await self.ask(lambda _: None)
            except (ShardsError, TimeoutError) as error:
                log.error("writer: the last group was not stored: %s", error)
        if self._lease is not None and not has_lost:
            self._lease.end()
            self.core.writer.end(StoreFailed("this node hands over the lead"))

    async def stop(self) -> None:
        """Finish the group commit, store every cursor, close the store."""
        self.is_ready = False
        self.garbage.stop()
        await self.webhooks.stop()
        await self.pipeline.stop()
        await self.workers.stop()
        await self.finish()
        self._loop = None
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None
        self._disk.stop()
        self._checks.stop()
        self._store.close()

    @property
    def has_lease(self) -> bool:
        """Whether no other node can lead yet; always true for a server alone."""
        return self._lease is None or self._lease.is_fresh

    def end_streams(self) -> None:
        """End all endless answers."""
        self.streams.stop()
        self.tails.stop()

    # -- work

    async def ask(self, decide: Decide, *, cost: int = 1, size: int = 0, owner: str = "") -> Any:
        """Have a request decided in the writer; its answer once it is durable.

        Raises what `decide` raised, Busy, StoreFailed.
        """
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(answer: Any) -> None:
            if not future.done():
                future.set_result(answer)

        self.core.writer.submit(decide, done, cost=cost, size=size, owner=owner)
        answer = await future
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def quiet(self) -> None:
        """Wait until every due message has been dispatched and all writes are durable."""
        self._quiet.clear()
        self.plan()
        await self._quiet.wait()

    def plan(self) -> None:
        """Plan a round for the next turn of the loop."""
        if not self._is_planned and self._loop is not None:
            self._is_planned = True
            self._loop.call_soon(self._round)

    def _rung(self) -> None:
        """The timer has rung: due messages go out before any other input is handled."""
        if not self._is_planned:
            self._round()

    def _round(self) -> None:
        self._is_planned = False
        if self._loop is None or self._is_dead:
            return
        self.time.enter()
        try:
            self._turn()
        except ShardsError as error:
            if self.core.writer.broken is None:
                self.core.writer.fail(error)
            self._wait()
        except Exception:
            log.exception("server stops: a turn failed half way")
            self._fail()

    def _fail(self) -> None:
        """The core itself has failed (docs/decisions/0014)."""
        self._is_dead = True
        self.core.writer.fail(StoreFailed("the server stops: a turn failed"))
        self._quiet.set()
        self._fatal()

    def _turn(self) -> None:
        core, began = self.core, self._clock.mono()
        if self._lease is not None and self._has_lost(self._lease):
            return
        core.writer.full = self._full() or self.expiries.retention.full
        core.heartbeat(is_due=self._lease is not None and self._lease.is_due)
        if core.writer.broken is not None:
            self._mark()
            self._retry()
        more = core.writer.can_compose and self._send_due()
        # The sooner a large request is through, the sooner others are decided.
        decide_s = DECIDE_S if core.writer.is_deciding else DECIDE_S * core.part.now
        group = core.writer.compose(self._send_due, decide_s=decide_s)
        if group is not None:
            self._sync(group)
        is_long = group is not None and self._clock.mono() - began >= ALONE_S
        self._is_alone = is_long and not self._is_alone
        if self._is_alone:
            self.plan()
            self.time.measure()
            return
        more = more or core.dispatch.turn()
        self.outgoing.is_filling = more
        more = more or core.writer.can_compose
        counts = core.dispatch.counts
        if counts.late_ms:
            self.metrics.dispatched(counts.take_late())
        if core.loader.is_behind:
            more = core.loader.step() > 0 or more or core.can_advance()
        more = self._read_on(began) or more
        core.pull.step()
        core.step()
        if core.url_groups.fresh:
            more = self.webhooks.open_fresh() or more
        if more or core.can_advance():
            self.plan()
            self.time.measure()
        elif not self._is_planned:
            self._wait()

    def _has_lost(self, lease: Lease) -> bool:
        """Whether another node may lead now: then nothing more is sent or accepted here."""
        writer = self.core.writer
        if writer.broken is None and not lease.is_fresh:
            writer.fail(StoreFailed(f"no record was appended to the log for {lease.for_s:g} s"))
        if writer.broken is None:
            return False
        self.is_ready = False
        self._quiet.set()
        self._lost()
        return True

    def _send_due(self) -> bool:
        """Before work of some milliseconds: dispatch due messages and write them to the sockets.

        True if there is more of it.
        """
        next_ms = self.core.wheel.next_ms()
        if next_ms is None or next_ms > self._clock.wall_ms():
            return False
        more = self.outgoing.is_filling = self.core.dispatch.turn()
        self.outgoing.flush()
        return more

    def _read_on(self, began: float) -> bool:
        """Let sessions that are behind read on, in the rest of the round; True if there is more.

        It takes all that are ready: with one a round, dispatch would outrun sessions that are nearly caught
        up, and they would have to read from disk again.
        """
        replay = self.core.replay
        until = max(began + ROUND_S * self.core.part.now, self._clock.mono() + REPLAY_S * self.core.part.now)
        while not replay.is_idle:
            replay.turn()
            if self._clock.mono() >= until:
                return not replay.is_idle
        return False

    def _wait(self) -> None:
        """No work at once: wait for the next due message."""
        if not self._quiet.is_set() and not self._is_reopening and self.core.is_settled():
            self._quiet.set()
        next_ms, retry_ms = self.core.wheel.next_ms(), self.core.retries.next_ms
        if retry_ms is not None:
            next_ms = retry_ms if next_ms is None else min(next_ms, retry_ms)
        delay = min(WAIT_S, self.core.wait_s())
        if next_ms is not None:
            delay = min(delay, max(0.0, self._clock.until(next_ms)))
        if next_ms is not None and delay == 0.0:
            delay = 0.001  # due, but something holds the horizon: its end plans a round
        if self._alarm is not None:
            self._alarm.set(delay)

    def _sync(self, group: GroupCommit) -> None:
        assert self._loop is not None
        self._syncs += 1
        work = partial(self._flush, self._store.written())
        self._disk.run(self._loop, work, partial(self._synced, group.rows, self._clock.mono()))

    def _flush(self, written: int) -> None:
        """Sync, in the disk's thread, one after the other."""
        began = monotonic()
        try:
            self._store.flush_to(written)
        finally:
            self._sync_s.append(monotonic() - began)

    def _synced(self, rows: int, started: float, failure: Exception | None) -> None:
        writer, error = self.core.writer, _of_the_store(failure)
        self._syncs -= 1
        self.metrics.committed(rows, self._clock.mono() - started, self._sync_s.popleft())
        try:
            if error is None and self._lease is not None:
                self._lease.renew(started)
            if error is None and writer.broken is None:
                writer.settle()
            elif error is not None and writer.broken is None:
                writer.fail(error)
                self.plan()
        except Exception:
            log.exception("server stops: settling after a sync failed")
            self._fail()

    def _mark(self) -> None:
        """No group can be written: write the dispatch bound to the disk by itself."""
        assert self._loop is not None
        bound_ms = self.core.writer.mark_ms
        if bound_ms is None or self._is_marking or self._clock.mono() < self._mark_at:
            return
        self._is_marking = True

        def marked(failure: Exception | None) -> None:
            self._is_marking = False
            if failure is not None:
                self._mark_at = self._clock.mono() + RETRY_S
            self.core.writer.marked(bound_ms, _of_the_store(failure))

        self._disk.run(self._loop, partial(self._store.mark, bound_ms), marked)

    def _retry(self) -> None:
        """The store has failed: reopen it, at once the first time, then now and then.

        A try takes longer with more to recover; tries get at most a quarter of the time. The engine is closed
        and opened in a thread: on a full disk closing alone waits for a second.
        """
        assert self._loop is not None
        started = self._clock.mono()
        if self._is_reopening or self._syncs or started < self._retry_at:
            return
        self._is_reopening = True

        def reopened(failure: Exception | None) -> None:
            self._is_reopening = False
            try:
                self.core.writer.reopened(_of_the_store(failure))
            except Exception:
                log.exception("server stops: the reopened store could not be taken over")
                self._fail()
            now = self._clock.mono()
            self._retry_at = now + max(RETRY_S, 3 * (now - started))
            self.plan()

        self._disk.run(self._loop, partial(reopen_store, self.core.opened), reopened)


def _of_the_store(failure: Exception | None) -> ShardsError | None:
    """The failure as the store's: every failure of the disk is one."""
    return failure if failure is None or isinstance(failure, ShardsError) else StoreFailed(str(failure))
