"""Every session of the server: found, opened, stored, expired.

Sessions of clients that are away stay in RAM with their subscriptions, because a plain publish has to know
whether somebody can replay it; `max_sessions` bounds them. What they have missed is not here: it is the
timeline behind their read position.

Cursors are written with the groups that are written anyway, at most every 100 ms a session, and once more
when its connection ends. A tailing session to which nothing was sent is not written at all: a read
position that is a little old only means a few rows to pass over after a start.
"""

from collections.abc import Iterator

from shards import keys
from shards.commit import Commit
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
from timeline.horizon import Horizon
from timeline.position import Position
from timeline.session import Flight, Session, Subscription

from .clock import Clock
from .mqtt.router import Router
from .subscriber import Subscriber

CURSOR_INTERVAL_S = 0.1
IDLE_CURSOR_S = 60.0
NO_LOCAL, RETAIN_AS_PUBLISHED = 1, 2


class TooManySessions(Exception):
    """`limits.sessions` persistent sessions exist."""


class Sessions:
    """Subscribers by client id."""

    def __init__(
        self, horizon: Horizon, router: Router, clock: Clock, *, max_sessions: int, max_in_flight: int
    ) -> None:
        self._horizon = horizon
        self._router = router
        self._clock = clock
        self._max_sessions = max_sessions
        self._max_in_flight = max_in_flight
        self._by_id: dict[str, Subscriber] = {}
        self._dirty: set[Subscriber] = set()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._by_id.values())

    def get(self, client_id: str) -> Subscriber | None:
        return self._by_id.get(client_id)

    def open(self, client_id: str, *, expiry_s: int, window: int) -> Subscriber:
        """A new session that stands at the horizon. Raises TooManySessions at the bound."""
        if len(self._by_id) >= self._max_sessions:
            raise TooManySessions(f"{self._max_sessions} sessions exist, as many as limits.sessions allows")
        session = Session(client_id, read=self._horizon.position, expiry_s=expiry_s, window=window)
        subscriber = Subscriber(session, self._dirty)
        self._by_id[client_id] = subscriber
        return subscriber

    def drop(self, subscriber: Subscriber) -> None:
        """Forget a session in RAM; its rows go with `rows` and a row of None."""
        client_id = subscriber.session.client_id
        self._router.discard_all(subscriber)
        self._dirty.discard(subscriber)
        if self._by_id.get(client_id) is subscriber:
            del self._by_id[client_id]

    def mark_all(self) -> None:
        for subscriber in self._by_id.values():
            subscriber.stored_at = 0.0
            subscriber.stored_changes = -1
            self._dirty.add(subscriber)

    def mark_idle(self) -> None:
        """Housekeeping: tailing sessions to which nothing was sent for a while, so that they stay near."""
        mono = self._clock.mono()
        self._dirty.update(
            s for s in self._by_id.values() if s.session.tailing and mono - s.stored_at > IDLE_CURSOR_S
        )

    # -- rows

    def store(self, commit: Commit, subscriber: Subscriber) -> None:
        """Write the session and its cursor into the open group."""
        key = subscriber.session.client_id.encode()
        subscriber.is_stored = True
        subscriber.stored_changes = subscriber.session.changes
        commit.row(Table.SESSIONS, key, _session_row(subscriber))
        self._store_cursor(commit, subscriber)

    def erase(self, commit: Commit, client_id: str) -> None:
        commit.row(Table.SESSIONS, client_id.encode(), None)
        commit.row(Table.CURSORS, client_id.encode(), None)

    def write_cursors(self, commit: Commit) -> None:
        """Write the cursors that have changed into the group that is about to be sealed.

        Subscriptions that are not stored as they are go with them: a read position says nothing without them.
        """
        mono = self._clock.mono()
        for subscriber in list(self._dirty):
            session = subscriber.session
            if not session.is_persistent or self._by_id.get(session.client_id) is not subscriber:
                self._dirty.discard(subscriber)
            elif mono - subscriber.stored_at >= CURSOR_INTERVAL_S:
                if subscriber.stored_changes == session.changes:
                    self._store_cursor(commit, subscriber)
                else:
                    self.store(commit, subscriber)

    def load(self, store: Store) -> None:
        """At start: every stored session, away, where its cursor says."""
        for key, value in store.scan(Table.SESSIONS, b"", keys.LAST):
            self._restore(store, key, session_of(value))

    def _store_cursor(self, commit: Commit, subscriber: Subscriber) -> None:
        session = subscriber.session
        key = session.client_id.encode()
        commit.row(Table.CURSORS, key, _cursor_row(session, self._horizon.position))
        subscriber.stored_at = self._clock.mono()
        self._dirty.discard(subscriber)

    def _restore(self, store: Store, key: bytes, row: SessionRow) -> None:
        session = Session(
            key.decode(), read=self._horizon.position, expiry_s=row.expiry_s, window=self._max_in_flight
        )
        cursor = store.get(Table.CURSORS, key)
        if cursor is not None:
            _resume(session, cursor_row_of(cursor))
        subscriber = Subscriber(session, self._dirty)
        subscriber.is_stored = True
        subscriber.stored_changes = session.changes
        subscriber.left_ms = row.left_ms or self._clock.wall_ms()
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
    return encode_row(SessionRow(session.expiry_s, rows, subscriber.left_ms))


def _cursor_row(session: Session, horizon: Position) -> bytes:
    flights = [
        FlightRow(f.packet_id, keys.place(f.position), f.qos, f.phase, f.attempts, f.shard)
        for f in session.flights.values()
    ]
    return encode_row(CursorRow(keys.place(session.read_at(horizon)), flights))


def _resume(session: Session, cursor: CursorRow) -> None:
    session.read = keys.place_of(cursor.place)
    session.restore(
        [
            Flight(f.packet_id, keys.place_of(f.place), f.shard, f.qos, f.attempts, f.phase)
            for f in cursor.flights
        ]
    )
