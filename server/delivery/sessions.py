"""Every session of the server: found, opened, stored, expired.

Sessions of clients that are away stay in RAM with their subscriptions, because a plain publish has to know
whether somebody can replay it; `max_sessions` bounds them. What they have missed is not here: it is the
timeline behind their read position.

Cursors are written with the groups that are written anyway, at most every 100 ms a session, and once more
when its connection ends. A tailing session to which nothing was sent is not written at all: a read
position that is a little old only means a few rows to pass over after a start.

Nothing here is a request of its own that the writer could refuse: what is to be stored is state of this
class, and the writer asks for it (`write`) each time that it closes a group.

    ended    names of sessions that are over: their rows go with the next group
    asked    sessions that somebody waits for (SUBACK, PUBREL, a delivery at the gate): one row each in a
             group, however many ask
    dirty    the rest, in turns: everybody once before anybody twice, within a budget for each group and a
             tenth of the time

A session of 1,000 subscriptions has a row of 50 KB, one of 1,024 deliveries in flight a cursor of 20: a few
bytes of its client would write as much again and again. So each pays for what it has written, 4 MiB a
second after the first 2 MiB, and waits when it owes.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator

from shards import keys
from shards.commit import Commit
from shards.errors import Corrupt, StoreFailed
from shards.record import decode
from shards.store import Store, Table
from shards.tables import SessionRow, cursor_row_of, session_of
from shards.unreadable import readable
from timeline.filters import SHARE_PREFIX
from timeline.horizon import Horizon
from timeline.position import SEQ_BITS, Position
from timeline.session import Session

from ..clock import Clock
from ..writer import Busy, Done, Rider, Writer
from .owed import Owed
from .quota import Quota
from .router import Router
from .session_rows import cursor_row, resume, session_row, subscription_of
from .subscriber import Secured, Subscriber, Will

log = logging.getLogger(__name__)

CURSOR_INTERVAL_S = 0.1
IDLE_CURSOR_S = 60.0
OWN_BYTES_PER_S = 4 << 20
"""What a session may have written of itself, on and on."""
BURST_S = 0.5
"""How long it may be in debt for that."""
ROW_COST = 16
"""What a row costs beside the flights (subscriptions) that it holds, counted in those."""
LAZY_COST = 8_192
ASKED_COST = 32_768
"""Flights and subscriptions that one group takes in, of those whom nobody waits for, and in all. About 1 ms
and 4 ms."""
LAZY_PAUSE = 9
"""After writing those whom nobody waits for, so many times as long as it took is for something else."""
NEVER = float("inf")


class TooManySessions(Exception):
    """`limits.sessions` persistent sessions exist."""


class Sessions(Rider):
    """Subscribers by client id."""

    def __init__(
        self,
        store: Store,
        horizon: Horizon,
        router: Router,
        owed: Owed,
        clock: Clock,
        writer: Writer,
        *,
        quota: Quota,
        max_sessions: int,
        max_in_flight: int,
        max_inflight_bytes: int,
        gate_bytes: int,
    ) -> None:
        self._store = store
        self._horizon = horizon
        self._router = router
        self._owed = owed
        self._clock = clock
        self._writer = writer
        self.quota = quota
        self._max_sessions = max_sessions
        self._max_in_flight = max_in_flight
        self._max_inflight_bytes = max_inflight_bytes
        self._gate_bytes = gate_bytes
        self._by_id: dict[str, Subscriber] = {}
        self.unreadable = 0
        """Sessions and cursors that were passed over at the start."""
        self.dirty: set[Subscriber] = set()
        self._ended: dict[str, bool] = {}
        """Names whose rows are to go; True: they are gone when the groups that are open are durable. No more
        than there were sessions, as only what has been stored has to go."""
        self._heirs: dict[str, list[Subscriber]] = {}
        """Whose cursors go with them, because they own now what was in flight there."""
        self._asked: dict[Subscriber, list[Secured]] = {}
        """Who waits for which sessions to be durable, in the order of asking."""
        self._now: dict[Subscriber, None] = {}
        """Whose cursors have to be in the group that is open."""
        self._wanted_at = NEVER
        """When a group is wanted for somebody who waits, s of monotonic time."""
        self._is_nudged = False
        """The writer has been asked for a group."""
        self._round: deque[Subscriber] = deque()
        """Those who were dirty when the round began and have not had their turn."""
        self._round_at = self._lazy_from = -NEVER
        self._is_last = False
        writer.carry(self)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._by_id.values())

    @property
    def horizon_position(self) -> Position:
        return self._horizon.position

    def get(self, client_id: str) -> Subscriber | None:
        return self._by_id.get(client_id)

    def open(self, client_id: str, *, expiry_s: int, window: int) -> Subscriber:
        """A new session that stands at the horizon. Raises TooManySessions at the bound."""
        if len(self._by_id) >= self._max_sessions:
            raise TooManySessions(f"{self._max_sessions} sessions exist, as many as limits.sessions allows")
        session = self._session(client_id, expiry_s, window)
        subscriber = Subscriber(session, self.dirty, self.secure, self._gate_bytes)
        self._by_id[client_id] = subscriber
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """Its connection has ended: its expiry begins to count."""
        subscriber.left_ms = self._clock.wall_ms()
        subscriber.left_running_ms = max(1, self._writer.running_ms)

    def is_over(self, subscriber: Subscriber) -> bool:
        """Its expiry has come, whether it has been dropped or not.

        It counts running time: what came while the server was down, it has had no time to take.
        """
        passed_ms = self._writer.running_ms - subscriber.left_running_ms
        return subscriber.link is None and passed_ms >= subscriber.session.expiry_s * 1000

    def drop(self, subscriber: Subscriber) -> None:
        """Forget a session, that is in no group any more: in RAM at once, its rows with the next group."""
        client_id = subscriber.session.client_id
        self._router.discard_all(subscriber)
        self._owed.forget(subscriber)
        self.dirty.discard(subscriber)
        if self._by_id.get(client_id) is subscriber:
            del self._by_id[client_id]
            self.quota.discard(subscriber.session.subscriptions)
            if subscriber.is_stored:
                self.erase(client_id)

    def restore_cursor(self, subscriber: Subscriber) -> None:
        """Where a group stood when it was last stored."""
        try:
            cursor = self._store.get(Table.CURSORS, subscriber.session.client_id.encode())
            row = None if cursor is None else cursor_row_of(cursor)
        except Corrupt as error:
            row, name = None, subscriber.session.client_id
            self.unreadable += 1
            log.error("%r goes on from now, what it has read cannot be read: %s", name, error)
        if row is not None:
            resume(subscriber, row)

    def drop_group(self, group: Subscriber, heirs: Iterable[Subscriber]) -> None:
        """Nobody holds the shared subscription any more; what it had in flight is its `heirs`' own.

        Their cursors go with the end of its row, or a kill in between would lose that.
        """
        self.dirty.discard(group)
        name = group.session.client_id
        self._heirs[name] = [heir for heir in heirs if self._is_to_store(heir)]
        self.erase(name)

    def recover(self) -> None:
        """Nothing of what was written may have survived: all of it again, in turns."""
        for subscriber in self._by_id.values():
            subscriber.stored_changes = -1
            subscriber.is_entangled = bool(subscriber.groups)
            self.dirty.add(subscriber)
            self.dirty.update(subscriber.groups.values())
        self._round_at = -NEVER

    def finish(self) -> None:
        """The server stops: everything goes with the next group, whatever it costs."""
        self._is_last = True
        self.recover()

    def mark_idle(self) -> None:
        """Housekeeping: tailing sessions to which nothing was sent for a while, so that they stay near."""
        mono = self._clock.mono()
        self.dirty.update(
            s for s in self._by_id.values() if s.session.tailing and mono - s.stored_at > IDLE_CURSOR_S
        )

    # -- what is asked for

    def secure(self, subscriber: Subscriber, done: Secured) -> None:
        """Have a session made durable as it is by then. Who asks meanwhile shares the group."""
        self._asked.setdefault(subscriber, []).append(done)
        self._want(subscriber.even_at - BURST_S)

    def begin(self, subscriber: Subscriber, done: Secured, *, is_new: bool) -> None:
        """The same for one whose client connects, in its turn: behind all that was asked for before.

        `is_new`: nothing is left then of an earlier session of that client.
        """
        is_decided = False

        def decide(_: Commit) -> None:
            nonlocal is_decided
            is_decided = True
            if is_new:
                self._ended[subscriber.session.client_id] = False
            self._asked.setdefault(subscriber, []).append(done)

        def answered(_: object) -> None:
            if not is_decided:
                done(-1)

        try:
            self._writer.submit(decide, answered)
        except (Busy, StoreFailed):
            done(-1)

    def erase(self, name: str) -> None:
        """Delete the rows of a session or group that is over with the next group, whenever that can be."""
        self._ended[name] = False
        self._want(-NEVER)

    def is_stored(self, name: str) -> bool:
        """Whether a restart could find a session of that client."""
        known = self._by_id.get(name)
        return name in self._ended or (known is not None and known.is_stored)

    def asks(self, subscriber: Subscriber) -> int:
        """How many wait for the session to be durable."""
        return len(self._asked.get(subscriber, ()))

    def step(self) -> None:
        """Have a group written if somebody waits for one who may be written now."""
        if self._is_nudged or self._clock.mono() < self._wanted_at:
            return
        try:
            self._writer.submit(_nothing, self._nudged)
        except Busy:
            return  # the next round asks again
        except StoreFailed:
            self._refuse_asked()
            return
        self._is_nudged = True

    def wait_s(self) -> float:
        """Seconds until `step` has something to do."""
        return NEVER if self._is_nudged else max(0.001, self._wanted_at - self._clock.mono())

    def _want(self, at_s: float) -> None:
        self._wanted_at = min(self._wanted_at, at_s)
        self.step()

    def _nudged(self, answer: object) -> None:
        if isinstance(answer, Exception):
            self._is_nudged = False
            self._refuse_asked()

    def _refuse_asked(self) -> None:
        """The store takes nothing. What has ended goes with the first group that it takes."""
        asked, self._asked, self._wanted_at = self._asked, {}, NEVER
        for waiting in asked.values():
            for done in waiting:
                done(-1)

    # -- rows

    def store(self, _: Commit, subscriber: Subscriber) -> None:
        """In the writer: the cursor goes with this very group, as do subscriptions that have changed."""
        self._now[subscriber] = None

    def write(self, commit: Commit) -> Done:
        """Write what is to be stored into the group that is about to be sealed; called when it is durable.

        Subscriptions that are not stored as they are go with the cursors: a read position says nothing
        without them.
        """
        self._is_nudged = False
        gone, heirs, cost = self._erase_ended(commit)
        cost, answers = self._write_asked(commit, heirs, cost)
        self._write_dirty(commit, cost)

        def done(answer: object) -> None:
            is_durable = not isinstance(answer, Exception)
            for name in gone:
                if not is_durable:
                    self._ended[name] = False
                elif self._ended.get(name):
                    del self._ended[name]
                    self._heirs.pop(name, None)
            for secured, waiting in answers:
                secured(waiting if is_durable else -1)

        return done

    def _erase_ended(self, commit: Commit) -> tuple[list[str], set[Subscriber], int]:
        """Which names are erased, whose cursors went with them, once each, and what these cost."""
        mono = self._clock.mono()
        heirs: set[Subscriber] = set()
        cost = 0
        gone = [name for name, is_written in self._ended.items() if not is_written]
        for name in gone:
            self._ended[name] = True
            for owner in self._heirs.get(name, ()):
                if owner in self.dirty and self._is_to_store(owner):
                    # Whatever it costs; who asks for it waits for the answer to an UNSUBSCRIBE that is paced.
                    heirs.add(owner)
                    cost += self._write_place(commit, owner, mono)
            commit.row(Table.SESSIONS, name.encode(), None)
            commit.row(Table.CURSORS, name.encode(), None)
            commit.clear(Table.RECEIVED, *keys.received_range(name))
            heir = self._by_id.get(name)
            if heir is not None:
                heir.stored_changes = -1
                self.dirty.add(heir)
        return gone, heirs, cost

    def _write_asked(
        self, commit: Commit, written: set[Subscriber], cost: int
    ) -> tuple[int, list[tuple[Secured, int]]]:
        """Those whom somebody waits for, unless they owe: what the group has cost, and whom to tell of it.

        `written`: their rows are in it already, for `cost`.
        """
        mono = self._clock.mono()
        asked, self._asked, self._wanted_at = self._asked, {}, NEVER
        now, self._now = self._now, {}
        for subscriber in now:
            if self._is_to_store(subscriber) and subscriber not in asked and subscriber not in written:
                cost += self._write_place(commit, subscriber, mono)
        answers: list[tuple[Secured, int]] = []
        for subscriber, waiting in asked.items():
            owes = cost >= ASKED_COST or subscriber.even_at > mono + BURST_S
            if owes and not (self._is_last or subscriber in now or subscriber in written):
                self._asked[subscriber] = waiting
                self._wanted_at = min(self._wanted_at, subscriber.even_at - BURST_S)
                continue
            if subscriber not in written and self._is_to_store(subscriber):
                cost += self._write_place(commit, subscriber, mono)
            answers += [(done, len(subscriber.gate)) for done in waiting]
        return cost, answers

    def _write_dirty(self, commit: Commit, cost: int) -> None:
        """Those whom nobody waits for, as many as there is room for; the next groups go on with the rest."""
        started = self._clock.mono()
        if not self._is_last and (started < self._lazy_from or cost >= LAZY_COST):
            return
        if not self._round and (started - self._round_at >= CURSOR_INTERVAL_S or self._is_last):
            self._round, self._round_at = deque(self.dirty), started
        while self._round and (cost < LAZY_COST or self._is_last):
            subscriber = self._round.popleft()
            if subscriber not in self.dirty:
                continue
            if not self._is_to_store(subscriber):
                self.dirty.discard(subscriber)
            elif self._is_last or subscriber.even_at <= started + BURST_S:
                try:
                    cost += self._write_place(commit, subscriber, started)
                except Exception:
                    log.exception("the cursor of %r cannot be written", subscriber.session.client_id)
                    self.dirty.discard(subscriber)
        ended = self._clock.mono()
        self._lazy_from = ended + LAZY_PAUSE * (ended - started)

    def _is_to_store(self, subscriber: Subscriber) -> bool:
        session = subscriber.session
        is_known = subscriber.is_group or self._by_id.get(session.client_id) is subscriber
        return is_known and session.is_persistent

    def load(self) -> None:
        """At start: every stored session, away, where its cursor says."""
        store = self._store
        for key, value in readable(store, Table.SESSIONS, b"", keys.LAST):
            try:
                self._restore(key, session_of(value))
            except Corrupt as error:
                self.unreadable += 1
                log.error("session %r cannot be read, it is not there: %s", key, error)
        for key, _ in readable(store, Table.RECEIVED, b"", b"\xff" * 4):
            name = key[:-3].decode()
            subscriber = self._by_id.get(name)
            if subscriber is not None:
                subscriber.session.received[int.from_bytes(key[-2:], "big")] = True
            else:
                # Placed when the session had ended, by what its client had sent before.
                self._ended[name] = False

    def _write_place(self, commit: Commit, subscriber: Subscriber, mono: float) -> int:
        """The cursor, and the subscriptions too if they are not stored as they are; what it cost.

        A shared subscription goes with the members that it has handed something to at QoS 2: that is behind
        its read position and in flight in theirs, and must not be in both or in neither. It also goes with
        one that joins or leaves.
        """
        size = cost = 0
        waiting = [subscriber]
        while waiting:
            one = waiting.pop()
            if one is not subscriber and one not in self.dirty:
                continue
            waiting += [other for other in one.bound() if self._go_together(one, other)]
            session = one.session
            key = session.client_id.encode()
            if not one.is_group and one.stored_changes != session.changes:
                one.is_stored = True
                one.stored_changes = session.changes
                row = session_row(one)
                commit.row(Table.SESSIONS, key, row)
                size += len(row)
                cost += ROW_COST + len(session.subscriptions)
            row = cursor_row(one, self._horizon.position)
            commit.row(Table.CURSORS, key, row)
            size += len(row)
            cost += ROW_COST + len(session.flights)
            one.stored_at = mono
            one.is_entangled = False
            self.dirty.discard(one)
        subscriber.even_at = max(subscriber.even_at, mono) + size / OWN_BYTES_PER_S
        return cost

    def _go_together(self, one: Subscriber, other: Subscriber) -> bool:
        is_bound = one.is_entangled or other.is_entangled
        return is_bound and other in self.dirty and other.session.is_persistent

    def _session(self, client_id: str, expiry_s: int, window: int) -> Session:
        return Session(
            client_id,
            read=self._horizon.position,
            expiry_s=expiry_s,
            window=window,
            max_bytes=self._max_inflight_bytes,
        )

    def _restore(self, key: bytes, row: SessionRow) -> None:
        session = self._session(key.decode(), row.expiry_s, self._max_in_flight)
        subscriber = Subscriber(
            session,
            self.dirty,
            self.secure,
            self._gate_bytes,
            will=Will(decode(row.will), row.will_delay_s) if row.will else None,
            will_id=keys.message_of(row.will_id) if row.will_id else 0,
        )
        subscriber.is_stored = True
        self.leave(subscriber)
        if row.left_running_ms:
            subscriber.stored_changes = session.changes
            subscriber.left_running_ms = row.left_running_ms
        else:
            self.dirty.add(subscriber)
        if row.doubt:
            subscriber.doubt = keys.place_of(row.doubt)
        if not row.left_ms:
            # It was connected when the server was killed: dispatch may have come as far as the bound.
            subscriber.doubt = Position(self._horizon.bound_ms << SEQ_BITS | self._horizon.seq)
        subscriber.left_ms = row.left_ms or subscriber.left_ms
        self._by_id[session.client_id] = subscriber
        for stored in row.subscriptions:
            subscription = subscription_of(stored)
            session.subscriptions[stored.filter] = subscription
            session.filter_bytes += len(stored.filter.encode())
            self.quota.add(stored.filter)
            if not stored.filter.startswith(SHARE_PREFIX):
                self._router.add(subscriber, subscription)
        self.restore_cursor(subscriber)


def _nothing(_: Commit) -> None:
    """The group is wanted, not the request."""
