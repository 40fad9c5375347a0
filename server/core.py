"""The server's parts, built and connected, without a loop, a thread or a socket.

All decisions are below here and run to the end without waiting, so that a test can drive all of it step by
step. `server/rounds/app.py` runs it on an event loop.
"""

from collections.abc import Callable
from typing import Any

from shards.commit import Caps, IsUndone, always
from shards.recover import Opened, open_timeline
from shards.store import Store
from timeline.tail import Tail
from timeline.wheel import Wheel

from .delivery.beside import Beside
from .delivery.burials import Burials
from .delivery.clients import Clients
from .delivery.deliveries import Deliveries
from .delivery.dispatch import Dispatch
from .delivery.floor import Floor
from .delivery.giving import Giving
from .delivery.membership import Membership
from .delivery.message import Message
from .delivery.owners import OPEN, Auth, Owners
from .delivery.publishing import Publishing
from .delivery.ready import Ready
from .delivery.replay import Replay
from .delivery.retained import Retained
from .delivery.retries import Retries
from .delivery.sent import Sent
from .delivery.sessions import Sessions
from .delivery.settling.burying import Burying
from .delivery.settling.dead_letter_queue import DeadLetterQueue
from .delivery.settling.events import Events
from .delivery.settling.holds import Holds
from .delivery.settling.kept import DeadLetters, KeptRetries
from .delivery.settling.leases import Leases
from .delivery.settling.lives import Lives
from .delivery.settling.releasing import Releasing
from .delivery.settling.settling import Settling
from .delivery.settling.siblings import Siblings
from .delivery.spill_buffer import SpillBuffer
from .delivery.stored_sessions import StoredSessions
from .delivery.subscriptions import Subscriptions
from .delivery.unread import Unread
from .delivery.url_groups import UrlGroups
from .delivery.wills import Wills
from .engine.clock import Clock
from .engine.commit_hook import ignore
from .engine.decisions import Decisions
from .engine.errand import Errand
from .engine.held import Held
from .engine.loader import Loader
from .engine.quarantine import Quarantine
from .engine.writer import OPEN_GROUPS, Busy, Entry, Writer
from .fair import Part, Share
from .mqtt.parts import Parts
from .observe.tracing import Traces
from .pull.pull import Pull
from .schedules.recurring import Schedules
from .settings.config import Config

UNLIMITED = 1 << 62


class Core:
    """All parts of one server."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        store: Store,
        *,
        wake: Callable[[], None],
        failing: Callable[[], None] = ignore,
        auth: Auth = OPEN,
        chance: Callable[[], float],
        gather: int = 1,
        groups: int = OPEN_GROUPS,
        traces: Traces | None = None,
        stored: StoredSessions | None = None,
    ) -> None:
        """`wake`: called when there is work. `auth`: rights. `chance`: a random number in [0, 1). `failing`,
        `gather`, `groups`: of the writer. `traces`: makes spans; None: none. `stored`: sessions that have
        been read from the store; None: they are read now.

        Raises WrongFormat, Corrupt, StoreFailed.
        """
        self.config = config
        self.clock = clock
        self.node = config.store.number
        self.traces = traces
        self.part = Part()
        """Set by the measurement of turns, read by each piece of a turn."""
        self._build_engine(store, wake, failing, auth, gather, groups)
        self._build_places(wake, auth, stored or StoredSessions(config, store))
        self._build_dispatch()
        self._build_settling(chance)
        self._build_replay()
        self.errands: tuple[Errand[Any, Any], ...] = (
            self.events.errand,
            self.burying.errand,
            self.held.errand,
            self.schedules.errand,
            self.quarantine.errand,
            self.releasing.errand,
        )
        """Requests to the writer in steps."""
        self._build_protocols(wake, auth)
        self._is_beating = False
        self.sessions.load()
        self.settling.restore()
        self.unread.restore_endpoints()
        self.clients.restore()
        self.retries.restore((*self.sessions, *self.groups))
        self.holds.restore(self.sent)
        self.settling.restore_leases()

    def _build_engine(
        self,
        store: Store,
        wake: Callable[[], None],
        failing: Callable[[], None],
        auth: Auth,
        gather: int,
        groups: int,
    ) -> None:
        """The timeline with its wheel and tail, the writer, and their feeders."""
        config, clock = self.config, self.clock
        # Called only by requests, when all parts exist.
        self.opened = timeline_of(
            config, clock, store, auth, lambda group, found: self.deliveries.is_undone(group, found)
        )
        self.horizon = self.opened.horizon
        self.directory, self.reader = self.opened.directory, self.opened.reader
        start, wheel, tail = self.horizon.position, config.wheel, config.tail
        self.wheel: Wheel[Entry] = Wheel(start, max_entries=wheel.max_entries, max_bytes=wheel.max_bytes)
        self.tail: Tail[Message] = Tail(start, max_entries=tail.max_entries, max_bytes=tail.max_bytes)
        self.writer = Writer(
            self.opened,
            self.wheel,
            clock,
            max_queued=config.limits.queued,
            max_bytes=config.limits.queued_bytes,
            wake=wake,
            failing=failing,
            gather=gather,
            groups=groups,
        )
        self.schedules = Schedules(
            store,
            self.horizon,
            self.writer,
            clock,
            share=Share("schedules", config.limits.schedules, "schedules", auth, "limits.memory"),
        )
        self.quarantine = Quarantine(self.opened, self.wheel, self.writer, clock)
        self.held = Held(self.opened, self.writer, clock)
        self.loader = Loader(self.reader, self.wheel, self.horizon)

    def _build_places(self, wake: Callable[[], None], auth: Auth, stored: StoredSessions) -> None:
        """Receivers: sessions and groups, their queues, and the router of topics."""
        config, clock = self.config, self.clock
        limits = config.limits
        stored.bind(auth)
        self.router = stored.router
        self.spill = SpillBuffer(max_bytes=config.tail.max_bytes)
        share = Share("retained", limits.retained, "topics with a retained message", auth, "the server")
        self.retained = Retained(self.opened.store, clock.wall_ms, self.writer, share=share)
        self.owners = Owners(auth, self.opened.withheld)
        self.ready = Ready(self.horizon, wake)
        self.leases = Leases(clock, lambda: self.sessions.running_ms)
        store, writer = self.opened.store, self.writer
        self.decisions = Decisions(writer)
        self.retries = Retries(store, self.horizon, self.ready, self.decisions, clock)
        self.burials = Burials(store, self.horizon, self.retries, writer)
        self.sessions = Sessions(store, self.horizon, self.spill, clock, writer, stored, auth.rights_of)
        self.cursors = self.sessions.cursors
        self.groups = Membership(
            self.sessions,
            self.horizon,
            self.router,
            self.ready,
            self.leases,
            self.burials,
            self.decisions,
            config,
            clock.mono,
            auth,
        )
        self.url_groups = UrlGroups(self.groups, self.cursors, self.burials, self.horizon)

    def _build_dispatch(self) -> None:
        """Delivery to places when messages are due, or at once."""
        config, clock, writer = self.config, self.clock, self.writer
        giving = Giving(
            self.tail, self.router, self.ready, self.spill, self.retained, self.url_groups, self.owners
        )
        self.dispatch = Dispatch(
            self.opened, self.wheel, giving, writer, clock, self.traces, self.part, node=self.node
        )
        self.publishing = Publishing(config, giving, self.dispatch, writer, self.part)
        self.sent = Sent(self.opened, self.tail, self.retained, clock)

    def _build_settling(self, chance: Callable[[], float]) -> None:
        """What becomes of deliveries, and wills."""
        config, clock, writer = self.config, self.clock, self.writer
        store = self.opened.store
        self.holds = Holds(store, self.groups, self.retries, self.cursors, self.decisions, writer)
        self.dead_letter_queue = DeadLetterQueue(
            store, config.dead, self.owners, self.publishing, self.decisions
        )
        self.lives = Lives(
            self.horizon,
            self.groups,
            self.cursors,
            self.sent,
            self.dead_letter_queue,
            self.retries,
            self.holds,
            self.decisions,
            why_not=self.owners.why_not,
            chance=chance,
            node=self.node,
        )
        self.events = Events(self.lives, self.groups, self.cursors, self.sent, writer, clock)
        self.kept_retries = KeptRetries(store, self.groups, self.retries, self.lives)
        self.dead_letters = DeadLetters(store, self.groups, self.url_groups, self.retries, self.lives)
        self.wills = Wills(self.sessions, self.publishing, writer, clock, config.limits)
        self.burying = Burying(
            self.opened, self.burials, self.dead_letter_queue, self.lives, self.router, writer, clock
        )
        self.siblings = Siblings(self.groups, self.retries, self.events, clock)
        self.settling = Settling(
            self.cursors,
            self.groups,
            self.events,
            self.decisions,
            self.reader,
            clock,
            lambda: self.sessions.running_ms,
        )
        self.deliveries = Deliveries(
            self.opened.store, self.horizon, self.router, self.groups, self.dead_letters, self.owners, clock
        )

    def _build_replay(self) -> None:
        """Reading on for places that are behind, and how far they hold old slices back."""
        self.unread = Unread(
            self.reader,
            self.horizon,
            self.tail,
            self.router,
            self.spill,
            self.owners,
            self.groups,
            wall_ms=self.clock.wall_ms,
            dispatched_ms=self.writer.dispatched_ms,
            kept_ms=self.config.slices.kept_behind_ms,
        )
        beside = Beside(
            self.horizon, self.router, self.groups, self.events, self.sent, self.retries, self.unread
        )
        self.replay = Replay(
            self.horizon,
            self.router,
            self.retained,
            self.ready,
            self.cursors,
            self.burials,
            self.lives,
            self.retries,
            self.unread,
            beside,
        )
        self.floor = Floor(
            self.reader,
            self.horizon,
            self.router,
            self.sessions,
            self.groups,
            self.burials,
            self.events,
            self.replay,
            self.opened.withheld,
        )
        self.releasing = Releasing(
            self.opened,
            self.lives,
            self.retries,
            self.groups,
            self.router,
            self.burials,
            self.dead_letter_queue,
            self.unread,
            self.ready,
            self.writer,
            self.clock,
        )

    def _build_protocols(self, wake: Callable[[], None], auth: Auth) -> None:
        """Clients' requests, whatever the protocol."""
        config, clock = self.config, self.clock
        self.subscriptions = Subscriptions(
            config,
            self.sessions,
            self.groups,
            self.router,
            self.horizon,
            self.directory,
            self.burials,
            self.retries,
        )
        self.clients = Clients(
            clock,
            self.sessions,
            self.groups,
            self.burials,
            self.subscriptions,
            self.settling,
            self.replay,
            self.wills,
            expiry_max_ms=config.sessions.expiry_max_ms,
            connections=Share("connections", 0, "connections", auth),
        )
        self.pull = Pull(self.groups, self.cursors, self.settling, self.events, clock, config, wake)
        self.mqtt = Parts(
            config,
            clock,
            self.clients,
            self.subscriptions,
            self.groups,
            self.cursors,
            self.publishing,
            self.settling,
            self.traces,
            node=self.node,
        )

    def heartbeat(self, *, is_due: bool = False) -> None:
        """Keep the durable bound ahead of the clock.

        `is_due`: write a group whatever the wall clock shows.
        """
        self.horizon.observe(self.clock.wall_ms())
        self.leases.begin_turn()
        self.retries.step()
        is_due = is_due or self.horizon.needs_heartbeat
        if self._is_beating or not is_due or self.writer.broken is not None:
            return

        def beaten(_: object) -> None:
            self._is_beating = False

        # Also if the writer is never idle: plain publishes pass without a group that would renew the bound.
        self._is_beating = True
        try:
            self.writer.submit(lambda commit: None, beaten, cost=0)
        except Busy:
            self._is_beating = False

    def step(self) -> None:
        """Do work whose time has come, and ask the writer for what is to be done."""
        if self.leases.is_unwritten:
            self.leases.is_unwritten = False
            self.cursors.soon()
        self.cursors.step()
        self.groups.step()
        self.wills.step()
        self.settling.step()
        self.siblings.step()
        self.quarantine.step()
        self.releasing.step()
        for errand in self.errands:
            errand.step()

    def wait_s(self) -> float:
        """Seconds until `step`, the writer or a call for messages has work, as far as is known."""
        timed = self.cursors.wait_s(), self.groups.wait_s(), self.pull.wait_s(), self.writer.wait_s()
        return min(*timed, *(errand.wait_s() for errand in self.errands))

    def review(self) -> None:
        """Keys or rules have changed: apply them to all further deliveries."""
        self.sessions.review()
        self.groups.review()
        self.owners.forget()
        self.releasing.review()

    def can_advance(self) -> bool:
        horizon = self.horizon
        return horizon.limit(self.wheel.loaded) > horizon.position and not self.dispatch.is_full

    def is_settled(self) -> bool:
        horizon = self.horizon
        return (
            self.writer.is_idle
            and self.replay.is_idle
            and all(errand.is_settled for errand in self.errands)
            and not self.retries.is_due_at(self.clock.wall_ms())
            and not self.dispatch.live
            and horizon.position >= horizon.clock_ms << 48
        )


def timeline_of(
    config: Config, clock: Clock, store: Store, auth: Auth = OPEN, is_undone: IsUndone = always
) -> Opened:
    """Open the store's timeline as configured. Raises WrongFormat, Corrupt, StoreFailed."""
    caps = Caps(
        messages=config.shards.cap_messages,
        bytes=config.shards.cap_bytes,
        pending=config.limits.pending or UNLIMITED,
        structure_above=config.shards.structure_above,
        is_shared=bool(config.limits.pending) and not auth.is_open,
    )
    return open_timeline(
        store,
        wall_ms=clock.wall_ms(),
        node=config.store.number,
        max_slices=config.slices.max,
        max_structures=config.shards.max_structures,
        caps=caps,
        quota_of=auth.quota_of,
        is_undone=is_undone,
        notes_ends=bool(config.slices.archive),
    )
