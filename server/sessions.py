"""Every session of the server: found, opened, stored, expired.

Sessions of clients that are away stay in RAM with their subscriptions, because a plain publish has to know
whether somebody can replay it; `max_sessions` bounds them. What they have missed is not here: it is the
timeline behind their read position.

Cursors are written with the groups that are written anyway, at most every 100 ms a session, and once more
when its connection ends. A tailing session to which nothing was sent is not written at all: a read
position that is a little old only means a few rows to pass over after a start.
"""

import logging
from collections.abc import Callable, Iterator

import msgspec

from shards import keys
from shards.commit import Commit
from shards.errors import Corrupt
from shards.record import decode, encode
from shards.store import Store, Table
from shards.tables import (
    CursorRow,
    FlightRow,
    SessionRow,
    SubscriptionRow,
    cursor_row_of,
    encode_row,
    session_of,
)
from shards.unreadable import readable
from timeline.filters import SHARE_PREFIX
from timeline.horizon import Horizon
from timeline.position import MessageId, Position
from timeline.session import Flight, Session, Subscription

from .clock import Clock
from .group import KEY_PREFIX
from .mqtt.router import Router
from .subscriber import Subscriber, Will

log = logging.getLogger(__name__)

CURSOR_INTERVAL_S = 0.1
IDLE_CURSOR_S = 60.0
NO_LOCAL, RETAIN_AS_PUBLISHED = 1, 2


class TooManySessions(Exception):
    """`limits.sessions` persistent sessions exist."""


class Sessions:
    """Subscribers by client id."""

    def __init__(
        self,
        store: Store,
        horizon: Horizon,
        router: Router,
        clock: Clock,
        *,
        max_sessions: int,
        max_in_flight: int,
    ) -> None:
        self._store = store
        self._horizon = horizon
        self._router = router
        self._clock = clock
        self._max_sessions = max_sessions
        self._max_in_flight = max_in_flight
        self._by_id: dict[str, Subscriber] = {}
        self.unreadable = 0
        """Sessions and cursors that were passed over at the start."""
        self.dirty: set[Subscriber] = set()
        self.submit: Callable[[Callable[[Commit], None], Callable[[bool], None]], None] = _not_connected
        """How a request gets to the writer; set by who builds both."""
        self.sealing: Callable[[Commit], None] = _nothing_to_add
        """Called with each group that is about to be sealed."""
        self.dropped: Callable[[Subscriber], None] = _nobody_asks
        """Called with a session that is over; set by who keeps its shared subscriptions."""

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
        session = Session(client_id, read=self._horizon.position, expiry_s=expiry_s, window=window)
        subscriber = Subscriber(session, self.dirty, self.secure)
        self._by_id[client_id] = subscriber
        return subscriber

    def drop(self, subscriber: Subscriber) -> None:
        """Forget a session in RAM; its rows go with `rows` and a row of None."""
        client_id = subscriber.session.client_id
        self.dropped(subscriber)
        self._router.discard_all(subscriber)
        self.dirty.discard(subscriber)
        if self._by_id.get(client_id) is subscriber:
            del self._by_id[client_id]

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
            _resume(subscriber.session, row)

    def drop_group(self, group: Subscriber) -> None:
        """Nobody holds the shared subscription any more."""
        self.dirty.discard(group)
        key = group.session.client_id.encode()
        self.submit(lambda commit: commit.row(Table.CURSORS, key, None), lambda is_durable: None)

    def mark_all(self) -> None:
        for subscriber in self._by_id.values():
            subscriber.stored_at = 0.0
            subscriber.stored_changes = -1
            self.dirty.add(subscriber)

    def mark_idle(self) -> None:
        """Housekeeping: tailing sessions to which nothing was sent for a while, so that they stay near."""
        mono = self._clock.mono()
        self.dirty.update(
            s for s in self._by_id.values() if s.session.tailing and mono - s.stored_at > IDLE_CURSOR_S
        )

    def secure(self, subscriber: Subscriber, opened: Callable[[int], None]) -> None:
        """Make a cursor durable; then say how many deliveries waited at the gate when it was written."""
        waiting = 0

        def decide(commit: Commit) -> None:
            nonlocal waiting
            waiting = len(subscriber.gate)
            self._write_place(commit, subscriber)

        self.submit(decide, lambda is_durable: opened(waiting if is_durable else -1))

    # -- rows

    def store(self, commit: Commit, subscriber: Subscriber) -> None:
        """Write the session and its cursor into the open group."""
        subscriber.stored_changes = -1
        self._write_place(commit, subscriber)

    def erase(self, commit: Commit, client_id: str) -> None:
        commit.row(Table.SESSIONS, client_id.encode(), None)
        commit.row(Table.CURSORS, client_id.encode(), None)
        commit.clear(Table.RECEIVED, *keys.received_range(client_id))

    def write_cursors(self, commit: Commit) -> None:
        """Write the cursors that have changed into the group that is about to be sealed.

        Subscriptions that are not stored as they are go with them: a read position says nothing without them.
        """
        self.sealing(commit)
        mono = self._clock.mono()
        for subscriber in list(self.dirty):
            session = subscriber.session
            is_known = subscriber.is_group or self._by_id.get(session.client_id) is subscriber
            if not session.is_persistent or not is_known:
                self.dirty.discard(subscriber)
            elif mono - subscriber.stored_at >= CURSOR_INTERVAL_S:
                try:
                    self._write_place(commit, subscriber)
                except Exception:
                    log.exception("the cursor of %r cannot be written", session.client_id)
                    self.dirty.discard(subscriber)

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
            subscriber = self._by_id.get(key[:-3].decode())
            if subscriber is not None:
                subscriber.session.received[int.from_bytes(key[-2:], "big")] = True

    def _write_place(self, commit: Commit, subscriber: Subscriber) -> None:
        """The cursor, and the subscriptions too if they are not stored as they are.

        A shared subscription and its members go together: what it has handed on at QoS 2 is behind its read
        position and in flight in theirs, and must not be in both or in neither.
        """
        waiting = [subscriber]
        while waiting:
            one = waiting.pop()
            if not one.is_group and one.stored_changes != one.session.changes:
                one.is_stored = True
                one.stored_changes = one.session.changes
                commit.row(Table.SESSIONS, one.session.client_id.encode(), _session_row(one))
            self._store_cursor(commit, one)
            waiting += [other for other in one.bound() if other in self.dirty and other.session.is_persistent]

    def _store_cursor(self, commit: Commit, subscriber: Subscriber) -> None:
        session = subscriber.session
        key = session.client_id.encode()
        commit.row(Table.CURSORS, key, _cursor_row(session, self._horizon.position))
        subscriber.stored_at = self._clock.mono()
        self.dirty.discard(subscriber)

    def _restore(self, key: bytes, row: SessionRow) -> None:
        session = Session(
            key.decode(), read=self._horizon.position, expiry_s=row.expiry_s, window=self._max_in_flight
        )
        subscriber = Subscriber(session, self.dirty, self.secure)
        self.restore_cursor(subscriber)
        subscriber.is_stored = True
        subscriber.stored_changes = session.changes
        subscriber.left_ms = row.left_ms or self._clock.wall_ms()
        subscriber.will_id = keys.message_of(row.will_id) if row.will_id else 0
        if row.will:
            subscriber.will = Will(decode(row.will), row.will_delay_s)
        self._by_id[session.client_id] = subscriber
        for stored in row.subscriptions:
            subscription = Subscription(
                stored.filter,
                stored.qos,
                keys.place_of(stored.since),
                bool(stored.options & NO_LOCAL),
                bool(stored.options & RETAIN_AS_PUBLISHED),
                stored.identifier,
            )
            session.subscriptions[stored.filter] = subscription
            if not stored.filter.startswith(SHARE_PREFIX):
                self._router.add(subscriber, subscription)


def _session_row(subscriber: Subscriber) -> bytes:
    session = subscriber.session
    rows = [
        SubscriptionRow(
            s.filter,
            s.qos,
            keys.place(s.since),
            NO_LOCAL * s.no_local | RETAIN_AS_PUBLISHED * s.retain_as_published,
            s.identifier,
        )
        for s in session.subscriptions.values()
    ]
    will_id = keys.message(MessageId(subscriber.will_id)) if subscriber.will_id else b""
    row = SessionRow(session.expiry_s, rows, subscriber.left_ms, will_id)
    will = subscriber.will
    if will is not None:
        row = msgspec.structs.replace(row, will=encode(will.record), will_delay_s=will.delay_s)
    return encode_row(row)


def _cursor_row(session: Session, horizon: Position) -> bytes:
    flights = [
        FlightRow(
            f.packet_id,
            keys.place(f.position),
            f.qos,
            f.phase,
            f.attempts,
            f.shard,
            f.is_retained,
            _share_of(f) if f.group is not None else "",
        )
        for f in session.flights.values()
        if not f.is_of_group
    ]
    return encode_row(CursorRow(keys.place(session.read_at(horizon)), flights))


def _share_of(flight: Flight) -> str:
    """What the shared subscription of a flight is called; empty if it has none."""
    group = flight.group[0] if isinstance(flight.group, tuple) else flight.group
    if isinstance(group, Subscriber):
        return group.session.client_id.removeprefix(KEY_PREFIX)
    return group if isinstance(group, str) else ""


def _resume(session: Session, cursor: CursorRow) -> None:
    session.read = keys.place_of(cursor.place)
    session.restore(
        [
            Flight(
                f.packet_id,
                keys.place_of(f.place),
                f.shard,
                f.qos,
                f.attempts,
                f.phase,
                group=f.share or None,
                is_retained=f.is_retained,
            )
            for f in cursor.flights
        ]
    )


def _nobody_asks(_: Subscriber) -> None:
    """There are no shared subscriptions."""


def _nothing_to_add(_: Commit) -> None:
    """There are no side effects of dispatch."""


def _not_connected(_decide: Callable[[Commit], None], _done: Callable[[bool], None]) -> None:
    raise AssertionError("sessions were built without a writer")
