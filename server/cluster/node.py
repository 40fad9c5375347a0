"""A node of a cluster: its states in one process.

    resync ──copy of another node's data──> follower ──claim──> leader
       ^                                     |    ^                |
       +── does not fit the log, trimmed, ───+    +── a record did not come into the log
           damaged

A *follower* reads the log and writes it into its store (follower.py). A *leader* is a whole server
(server/serving.py) on that store during its *term*: until an append fails, its lease runs out or it is told
to stop. Then its clients are told, the server is closed, the store is opened again, and the node follows: it
reads later records of the log like any other.

A node listens from start to stop, always at the same sockets: when it does not lead it tells clients where to
go (redirecting.py). Between the two states clients wait in the backlog.

Blocking calls (the store, the log) run in threads. A term begins in the follower's thread, which has claimed
the log and hands the store over.
"""

import asyncio
import gc
import logging
import random
from asyncio import to_thread
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from aiohttp import web

from shards.errors import Corrupt, ShardsError, StoreFailed, UnreleasedFormat, WrongFormat
from shards.log.errors import Damaged, LogDown, NoLog, Trimmed, Unfit
from shards.log.record import VERSION
from shards.replicated import ReplicatedStore
from shards.store import Table
from shards.tables import META_ZONES

from ..core import timeline_of
from ..delivery.stored_sessions import StoredSessions
from ..engine.lease import Lease
from ..http.routes.backups import Backups
from ..net.tls import Certificates
from ..observe.tracing import Traces
from ..observe.version import server_version
from ..schedules.retime import retime_if_changed, zones_version
from ..serving import Server, Term
from ..settings.config import Config
from ..settings.kinds import without_password
from ..settings.times import format_ms
from .beats import Beats
from .beginning import Beginning
from .clock_judge import UNASKED, ClockJudge
from .clocks import NodeClock
from .copy_in import CopyFailed, Rounds, fetch
from .copy_out import CopyRoutes
from .damage import LAG_RECORDS, Damage
from .digests import api_keys_digest, differing, settings_digest
from .engine_side import LogSide
from .figures import ClusterFigures
from .follower import Follower
from .key import ClusterKey
from .members import Member, Members
from .opening import open_hand, open_store
from .redirecting import RedirectingListeners
from .reports import Reports
from .routes import ClusterRoutes
from .scrub import Scrub
from .space import give_back
from .standby import Standby
from .standing import HEAL
from .swap import recover_swap
from .trimming import Trimming
from .view import Leader, NodeRow, Places, View

log = logging.getLogger(__name__)

FOLLOW_S = 0.05
"""Pause after a read of the log: what is pushed meanwhile is read at once."""
SYNC_S = 1.0
"""How often a node makes durable what it has applied."""
LOOK_S = 1.0
AGAIN_S = 1.0
"""Pause after a store or log could not be opened, or no copy made."""


class Node:
    """A node, from start to stop. `exit_code` counts once `stopping` is set."""

    def __init__(
        self,
        config: Config,
        http_tls: Certificates | None,
        mqtt_tls: Certificates | None,
        traces: Traces | None = None,
    ) -> None:
        """`traces`: where spans are made while it leads. Raises KeysFileError."""
        self._traces = traces
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self._config = config
        self._tls = http_tls, mqtt_tls
        self._data = Path(config.store.dir)
        self._clock = NodeClock()
        self._judge = ClockJudge(config.cluster.node, self._clock)
        self._keys_digest, self._settings_digest = "", settings_digest(config)
        self._lease: Lease
        """Lease of the open store."""
        self._state = "follower"
        self._process = f"{random.getrandbits(64):x}"
        self._why = ""
        self._takeovers = 0
        self._zones, self._stored_zones = zones_version(), ""
        self._durable = 0
        self._last = -1
        """The last record of this node, if no node has more and the log is trimmed behind it."""
        self._store: ReplicatedStore | None = None
        self._follower: Follower | None = None
        self._server: Server | None = None
        self._halt = Event()
        """Set to end the follower."""
        self._over = asyncio.Event()
        """Set to end the term."""
        cluster = config.cluster
        self._members = Members(self._clock.mono, lambda: self._beginning.timeline)
        self._damage = Damage(cluster.node, self._members, self._clock.mono)
        self._key = ClusterKey(cluster.keys, self._clock.mono)
        system_ms = self._clock.system_ms
        self._reports = Reports(
            self._members,
            cluster.node,
            self._key,
            cluster.peers,
            self._judge.clocks,
            system_ms,
            self._clock.mono,
        )
        self._side = LogSide(partial(open_hand, config))
        self._trimming = Trimming(self._side, self._members, cluster.node, cluster.keep, self._clock.mono)
        self._figures = ClusterFigures(self.view)
        self._routes = ClusterRoutes(self.view, self._members, self._key, cluster.node, system_ms)
        self._beginning = Beginning(
            config, self._key, self._members, lambda: self._store, lambda: self._server is not None
        )
        self._listeners = RedirectingListeners(
            config, http_tls, mqtt_tls, self._figures, self._other_leader, self._why_text
        )
        self._copies = CopyRoutes(lambda: self._store, self._data, self._key, self._damage.met)
        self._scrub = Scrub(self._data, cluster.scrub_every_ms, lambda: self._store, system_ms)
        self._rounds = Rounds(self._clock.mono)
        self._tasks: list[asyncio.Task[None]] = []

    # -- a process (server/run.py)

    async def start(self) -> None:
        """Start to follow. Raises ConfigError, StoreLocked, WrongFormat, Unfit, OSError."""
        await to_thread(recover_swap, self._data)
        first = await self._opened()
        await self._listeners.open(self._of_followers())
        self._config = self._listeners.config
        emptied, scrub = give_back(lambda: self._store), self._scrub.run()
        works = (self._live(first), self._report(), self._look(), emptied, scrub)
        self._tasks = [asyncio.ensure_future(self._guarded(work)) for work in works]

    async def stop(self) -> None:
        """End the term, if there is one, and everything else."""
        self.stopping.set()
        self._over.set()
        self._halt.set()
        if self._store is not None:
            self._store.nudge()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listeners.stop()
        await self._side.close()
        await self._reports.close()

    def reload(self) -> None:
        """SIGHUP: reread files."""
        self._listeners.reload()
        if self._server is not None:
            self._server.reload()

    # -- states

    async def _live(self, store: ReplicatedStore | None) -> None:
        """Run the states until the node stops. `store`: if it is already open."""
        while not self.stopping.is_set():
            if store is None:
                try:
                    store = await self._opened() or await self._anew()
                except Unfit as error:  # refused at the start; later the log may become fit again
                    self._fault(error)
            if store is None:
                await self._pause()
                continue
            try:
                await self._follow(store)
            except (Trimmed, Damaged, Corrupt) as error:
                await self._resync(error, store.applied.seq)
            except UnreleasedFormat:
                raise
            except ShardsError as error:
                self._fault(error)
                await self._pause()
            store = None

    async def _opened(self) -> ReplicatedStore | None:
        """The store on the log; None: the log does not answer or is lost, or another node's data is needed
        first."""
        beginning, may_begin = self._beginning, self._beginning.may_begin
        beginning.may_begin, lost = False, None
        self._lease = Lease(self._clock, self._config.cluster.takeover_after_ms / 1000)
        try:
            return await to_thread(
                open_store,
                self._config,
                self._lease.renewed_by,
                beginning.keep,
                may_begin=may_begin,
                damage=self._damage.found,
            )
        except (LogDown, StoreFailed) as error:
            self._fault(error)
        except NoLog as error:
            lost = error
        except (Damaged, Corrupt) as error:
            await self._resync(error, 0)
        finally:
            beginning.lost = lost
        return None

    async def _anew(self) -> ReplicatedStore | None:
        """The store on a log that this node has begun, if it was lost and that is agreed; else None."""
        lost = self._beginning.lost
        if lost is None:
            return None
        why = await self._beginning.attempt(self._reports.session, self._listeners.places.http, lost.last)
        if not why:
            return await self._opened()
        self._fault(NoLog(f"{lost}: {why}"))
        return None

    async def _follow(self, store: ReplicatedStore) -> None:
        """Follow, and lead when elected; closes the store at the end."""
        self._state = "follower"
        standby = Standby(self._config, store, self._clock.mono)
        self._why, self._store = standby.unfit(), store
        store.has_heir = bool(self._damage.heirs)
        store.passes_doubt_at, self._last = self._last, -1
        self._trimming.begin()
        self._durable = min(self._durable, store.applied.seq)
        follower = self._follower = Follower(
            self._config.cluster,
            store,
            str(self._listeners.places),
            self._clock,
            self._judge,
            lambda: self._judge.fault or self._damage.fault or self._lost_end(store) or standby.unfit(),
        )
        begun = None
        try:
            begun = await to_thread(self._follow_on, follower, store, standby)
            self._follower = None
            if begun is not None and not self.stopping.is_set():
                await self._lead(store, *begun)
                store = None  # type: ignore[assignment]  # the server has closed it
        finally:
            self._damage.met("" if self._store is None else self._store.damage)
            self._beginning.keep(self._beginning.standing)
            self._store = self._follower = None
            standby.forget()
            if store is not None:
                await to_thread(store.close)
            if self._damage.found:
                gc.collect()  # of errors in circles: they keep iterators, and these the database open

    def _lost_end(self, store: ReplicatedStore) -> str:
        """Why this store, which has all of the log, must not go on with it; empty: it may."""
        beyond = self._members.beyond(store.applied.seq)
        return beyond and f"{beyond}: it has lost its end; {HEAL}"

    def _follow_on(
        self, follower: Follower, store: ReplicatedStore, standby: Standby
    ) -> tuple[Lease, StoredSessions] | None:
        """In a thread: follow until this node leads. Returns what `_begun` does; None: it must stop."""
        self._stored_zones = _zones_in(store)
        synced, is_busy = self._clock.mono(), True
        while not self._halt.is_set():
            since, applied = self._clock.mono(), store.applied.seq
            if follower.step(waits=not is_busy):
                return self._begun(store, standby, since)
            is_led = store.applied.seq != applied
            if not is_led and not store.is_behind and not follower.why:
                self._rounds.has_followed()
            is_busy = standby.step(is_led=is_led)
            if since - synced >= SYNC_S:
                self._durable, synced = store.sync().seq, since
                self._stored_zones = _zones_in(store)
            self._why = follower.why or ("" if standby.sessions.is_read else standby.unfit())
            if self._damage.needs_copy:
                raise Corrupt(self._damage.found)
            self._halt.wait(0 if is_busy else FOLLOW_S)
        return None

    def _begun(self, store: ReplicatedStore, standby: Standby, since: float) -> tuple[Lease, StoredSessions]:
        """In a thread: a term has begun. Prepare it before any client is served. Returns its lease, and the
        sessions that it begins with."""
        lease, sessions = self._lease, standby.lead()
        lease.renew(since)
        opened = partial(timeline_of, self._config, self._clock, store)
        retime_if_changed(opened, store, self._clock.wall_ms(), self._zones, lease)
        self._stored_zones = _zones_in(store)
        return lease, sessions

    async def _lead(self, store: ReplicatedStore, lease: Lease, sessions: StoredSessions) -> None:
        """Serve a term: a whole server. Closes the store at the end."""
        self._over.clear()
        if self.stopping.is_set():
            self._over.set()
        self._takeovers += 1
        self._state = "leader"
        log.info("node: leader since record %d of the log", store.applied.epoch)
        term = Term(
            lease,
            self._over.set,
            partial(self._hand_over, store),
            sessions,
            self._listeners.close,
            self._listeners.ports,
            self._more(),
            self._figures,
            lambda: self._trimming.full(store.passed_bytes),
        )
        with Beats(lease, store.beat, self._clock):
            server = await self._serve(store, term)
        log.info("node: no longer leader, at record %d of the log", store.applied.seq)
        if server.exit_code:
            self.exit_code = server.exit_code
            self.stopping.set()
        if not self.stopping.is_set() and not self._listeners.is_open:
            await self._listeners.open(self._of_followers())

    async def _hand_over(self, store: ReplicatedStore) -> None:
        next_leader = self._members.next_leader()

        def ended() -> None:
            with suppress(ShardsError):
                store.flush()  # what was composed behind the last group: a batch that waits keeps the lead
            store.hand_over(next_leader)

        await to_thread(ended)

    async def _serve(self, store: ReplicatedStore, term: Term) -> Server:
        """A server, until the term is over; it has closed the store then."""
        try:
            server = Server(self._config, self._clock, store, *self._tls, term, traces=self._traces)
        except BaseException:
            await to_thread(store.close)
            raise
        self._server = server
        try:
            await server.start()
            if not server.exit_code:
                await _first(server.stopping.wait(), self._over.wait(), self.stopping.wait())
        finally:
            self._state = "follower"
            await server.stop()
            self._server = None
        return server

    async def _resync(self, error: ShardsError, applied: int) -> None:
        """Replace this node's data by another node's."""
        self._state, error = "resync", self._rounds.judged(error)
        self._fault(error)
        self._damage.copying()
        await self._reports.tell(self._member())
        state = await self._side.state()
        if state is None or state.last < applied:
            self._why = (
                f"{error}; the log does not answer"
                if state is None
                else f"the log ends before record {applied}: it has lost records, or is another log; {HEAL}"
            )
            await self._pause()
            return
        sources = self._reports.sources(state.first, self._beginning.timeline)
        if not sources:
            self._why = (
                f"{error}; no node that is heard has the records before: it goes on once all of cluster.peers"
                f" answer that they have no more; else {HEAL}"
            )
            self._last = await self._last_of_all()
        for url in sources:
            self._rounds.begin()
            try:
                copy = fetch(self._reports.session, url, self._key, self._data)
                if not await _ends(copy, before=self.stopping):
                    return
                await to_thread(recover_swap, self._data)
            except CopyFailed as failure:
                log.warning("copy: failed from %s: %s", url, failure)
                self._why = f"{error}; no copy from {url}: {failure}"
            else:
                log.info("copy: data of %s copied", url)
                self._rounds.end()
                self._damage.mended()
                self._scrub.has_been_copied()
                return
        await self._pause()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_S):
                await self.stopping.wait()

    def _fault(self, error: ShardsError) -> None:
        if str(error) != self._why:
            log.warning("node: %s: %s", self._state, error)
        self._why = str(error)

    # -- background tasks

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task; if it fails the process ends."""
        try:
            await work
        except WrongFormat as error:  # of the log, or of a copy: that of its own data is found before
            log.error("node: stops: %s", error)
            self.exit_code = 2
            self.stopping.set()
        except Exception:
            log.exception("node: stops after a failure")
            self.exit_code = 1
            self.stopping.set()

    async def _report(self) -> None:
        """Report to the others now and then, and compare clocks."""
        while True:
            self._keys_digest = await to_thread(api_keys_digest, self._config)
            leader = self._other_leader()
            await self._reports.tell(self._member(), "" if leader is None else leader["url"])
            await self._decide_doubt()
            self._judge_clock()
            self._judge_damage()
            await asyncio.sleep(LOOK_S)

    async def _decide_doubt(self) -> None:
        """A node that would claim behind what may hide a record asks whether any node has it."""
        store, follower = self._store, self._follower
        if store is not None and follower is not None and follower.is_in_doubt:
            store.passes_doubt_at = await self._last_of_all()

    async def _last_of_all(self) -> int:
        return await self._beginning.last(self._reports.session, self._listeners.places.http)

    async def _look(self) -> None:
        """Look at the log, and trim it; a leader also makes its own rows durable."""
        while True:
            before = self._judge.log_clock.now()
            answers = await self._trimming.look(self._store)
            if answers:
                self._judge.log_clock.answered(self._trimming.state.wall_ms, before)
            self._give_up(self._side.unfit)
            server, store = self._server, self._store
            if server is not None and store is not None and server.app.is_ready:
                with suppress(ShardsError):
                    self._durable = (await server.app.workers.in_thread(store.sync)).seq
            store, follower = self._store, self._follower
            if store is not None and answers:
                is_led = follower is not None and follower.hears_leader
                await self._trimming.trim(store, self._durable, is_led=is_led)
            await asyncio.sleep(LOOK_S)

    def _more(self) -> list[web.RouteDef]:
        """The cluster's routes, on every node."""
        return [*self._routes.routes(), *self._copies.routes(), *self._beginning.routes()]

    def _of_followers(self) -> list[web.RouteDef]:
        """Plus backups of this node's own data; a leader's server has its own route."""
        return [*self._more(), *Backups(self._checkpoint, to_thread, self._config.store).routes()]

    def _checkpoint(self, path: Path) -> None:
        store = self._store
        if store is None:
            raise StoreFailed("the store is not open now")
        store.checkpoint(path)

    # -- what others see

    def _leader(self) -> Leader | None:
        """The leader, if this node knows one."""
        store, follower = self._store, self._follower
        if store is None or store.leader is None or not store.leader.node:
            return None
        if self._server is None and (follower is None or not follower.hears_leader):
            return None
        places = Places.of(store.leader.url)
        return {
            "node": store.leader.node,
            "url": places.http,
            "mqtt": places.first_mqtt,
            "mqtt_urls": list(places.mqtt),
        }

    def _other_leader(self) -> Leader | None:
        """Where clients go. While this node begins a term, and does not listen as a leader yet, nowhere."""
        return None if self._server is not None else self._leader()

    def _member(self) -> Member:
        places = self._listeners.places
        epoch = 0 if self._store is None else self._store.applied.epoch
        return Member(
            self._config.cluster.node,
            places.http,
            places.first_mqtt,
            self._state,
            epoch,
            self._durable,
            server_version(),
            VERSION,
            self._judge.clocks.measurements(),
            self._keys_digest,
            self._settings_digest,
            self._beginning.timeline,
            self._is_fit,
            self._process,
            self._config.cluster.takeover_after_ms,
            self._damage.found,
            self._scrub.scrubbed_ms,
        )

    def _judge_clock(self) -> None:
        """After the others were asked: a step counts or not; a node with a wrong clock leads no longer."""
        self._judge.judge(self._members, self._count)
        self._give_up(self._judge.fault)

    def _judge_damage(self) -> None:
        """A node with damaged data does not lead while another one can."""
        store = self._store
        self._damage.look()
        if store is not None:
            self._damage.met(store.damage)
            store.has_heir = bool(self._damage.heirs)
        self._give_up(self._damage.fault)

    def _give_up(self, why: str) -> None:
        """End the term if there is a reason to."""
        if why and self._state == "leader":
            log.error("node: gives up the lead: %s", why)
            self._over.set()

    @property
    def _is_fit(self) -> bool:
        """Whether this node leads, or could."""
        is_open = self._store is not None and self._state != "resync"
        has_fault = self._judge.fault or self._side.unfit or self._damage.fault
        return is_open and not has_fault and (self._server is not None or not self._why)

    @property
    def _count(self) -> int:
        """The number of nodes that the settings name."""
        return len({*self._config.cluster.peers, self._listeners.places.http})

    def _why_text(self) -> str:
        """What keeps this node from following or leading, and what is wrong with the log."""
        lines = [self._why] if self._why and self._server is None else []
        if self._server is not None and not self._server.app.is_ready:
            lines.append("it begins to lead: it serves once it has dispatched what is due")
        store = self._store
        if store is not None:
            first, last = self._trimming.bounds or (0, 0)
            lacking = last - store.applied.seq
            if self._server is None and lacking > LAG_RECORDS:
                lines.append(f"it reads on: the log has {lacking:,} records more than this node's data")
            strays = store.strays
            if strays.last >= first and strays.many:
                lines.append(
                    f"the log has messages of others, {strays.many} from record"
                    f" {strays.first} to {strays.last}: passed over"
                )
        lines += self._trimming.problems()
        judge = self._judge
        faults = judge.waits, judge.fault, self._side.unfit, self._damage.problem, judge.doubts
        lines += [fault for fault in faults if fault not in ("", UNASKED, *lines)]
        if self._members.doubled:
            lines.append(f"two nodes have the name {', '.join(self._members.doubled)} (cluster.node)")
        if strangers := self._members.strangers:
            lines.append(
                f"nodes of another timeline, not counted (check cluster.peers): {', '.join(strangers)}"
            )
        lines += differing(self._member(), self._members.ours)
        return "; ".join(lines)

    def view(self) -> View:
        """The answer of `/v1/cluster`."""
        applied = (0, 0) if self._store is None else self._store.applied
        bounds = self._trimming.bounds
        first, last = bounds or (0, 0)
        newest = max([last, applied[0], *(row.member.applied for row in self._members.ours)])
        rows: list[NodeRow] = [
            {
                "node": row.member.node,
                "url": row.member.url,
                "mqtt": row.member.mqtt,
                "state": row.state,
                "epoch": row.member.epoch,
                "applied": row.member.applied,
                "lag": max(0, newest - row.member.applied),
                "heard_ms": row.heard_ms,
                "version": row.member.version,
                "is_alive": row.is_alive,
            }
            for row in self._members
        ]
        cluster = self._config.cluster
        zones = self._stored_zones
        return {
            "name": cluster.name,
            "timeline": self._beginning.timeline,
            "node": cluster.node,
            "state": self._state,
            "epoch": applied[1],
            "applied": applied[0],
            "leader": self._leader(),
            "log": None
            if bounds is None
            else {"url": without_password(cluster.log), "first": first, "last": last},
            "takeovers": self._takeovers,
            "why": self._why_text(),
            "fit": self._is_fit,
            "clock_offset_ms": self._judge.offset_ms,
            "scrubbed_at": format_ms(self._scrub.scrubbed_ms) if self._scrub.scrubbed_ms else None,
            "keys_digest": self._keys_digest,
            "tzdata": {"node": self._zones, "store": zones, "retime": bool(zones) and zones != self._zones},
            "nodes": rows,
        }


def _zones_in(store: ReplicatedStore) -> str:
    value = store.get(Table.META, META_ZONES)
    return "" if value is None else value.decode(errors="replace")


async def _ends(work: Coroutine[Any, Any, None], before: asyncio.Event) -> bool:
    """Whether it ends before the event is set, which cancels it. Raises what it raises."""
    task, _ = await _first(work, before.wait())
    return not task.cancelled() and task.result() is None


async def _first(*works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run these until one has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return tasks
