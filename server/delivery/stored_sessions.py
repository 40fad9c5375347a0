"""Sessions as their rows say: all are read once, then those whose rows have changed.

A server reads them at its start. A node of a cluster that follows keeps them in RAM, as its leader has stored
them, so that it takes the lead without reading them: 100,000 sessions with ten filters each take 25 s to
read, and a lease lasts 3 s.

    step, step, ...      rows in the order of their keys, a stretch each time
    changed              a row has changed: it is read again in one of the next steps, if it was read before
    Sessions.load        the rest at once; then they have a writer, a horizon and rights, and rows follow them

A session that changes often is read once in a while, however often its rows change.

Nothing here depends on a clock, on rights or on the horizon: `Sessions.load` adds what does. It is also
called only once.
"""

import logging
from collections.abc import Callable
from itertools import islice

from shards import keys
from shards.errors import Corrupt
from shards.record import decode
from shards.store import Store, Table
from shards.tables import CursorRow, SessionRow, cursor_row_of, encode_row, session_of
from shards.unreadable import readable
from timeline.filters import SHARE_PREFIX
from timeline.position import START, Position
from timeline.retained_queue import RetainedQueue
from timeline.session import Session, Subscription

from ..fair import Bounds, Share
from ..settings.config import Config
from .owners import OPEN
from .place import Place
from .publish_request import Will
from .quota import Quota
from .router import Router
from .session_rows import doubt_of, resume, subscription_of
from .subscriber import Subscriber
from .write_barrier import Persisted

log = logging.getLogger(__name__)

STRETCH = 64
"""Rows between two looks at the clock."""
_BITS = {Table.SESSIONS: 1, Table.CURSORS: 2, Table.RECEIVED: 4}
_AFTER = b"\0"
"""Appended to a key: the next one."""


class StoredSessions:
    """Every stored session, away, where its cursor says. Bounds of owners: none, until `bind`."""

    def __init__(self, config: Config, store: Store) -> None:
        self._store = store
        limits, settings = config.limits, config.sessions
        self.barrier_bytes = limits.out_bytes
        self._window = settings.max_in_flight
        self._bounds: Bounds = OPEN
        self.by_id: dict[str, Subscriber] = {}
        self.router = Router(config.mqtt.deny_subscribe, max_bytes=limits.route_cache_bytes)
        self.quota = Quota(limits, self)
        self.share = Share("sessions", limits.sessions, "sessions", self)
        self.sharing: dict[Subscriber, None] = {}
        """Sessions with shared subscriptions."""
        self.cursorless: set[Subscriber] = set()
        """Sessions and groups without a readable cursor: they start from now."""
        self.strays: set[str] = set()
        """Client ids with rows in `received`, placed when the session had ended."""
        self.unreadable: set[bytes] = set()
        """Names of sessions and cursors that were passed over."""
        self._marks: dict[str, int] = {}
        """Hash of the stored subscriptions, which change seldom, by client id."""
        self._sessions_from: bytes | None = b""
        self._received_from: bytes | None = b""
        """The next rows that have never been read; None: all have been."""
        self._touched: dict[bytes, int] = {}
        """By name, bits of the tables: sets would be the garbage collector's, all 100,000 of them."""

    # -- bounds of owners, as those who count here ask for them

    def bind(self, bounds: Bounds) -> None:
        """From now on these are the bounds of owners."""
        self._bounds = bounds

    @property
    def is_open(self) -> bool:
        return self._bounds.is_open

    def bound_of(self, owner: str, name: str) -> int:
        return self._bounds.bound_of(owner, name)

    def is_proven(self, owner: str) -> bool:
        return self._bounds.is_proven(owner)

    # -- rows

    @property
    def is_read(self) -> bool:
        """Whether each row has been read once."""
        return self._received_from is None

    @property
    def is_current(self) -> bool:
        """Whether all is as the rows are."""
        return self.is_read and not self._touched

    def changed(self, table: Table, key: bytes) -> None:
        """A row of sessions, cursors or received, or a range that begins there, has changed."""
        name = key.partition(_AFTER)[0] if table is Table.RECEIVED else key
        is_read = self._sessions_from is None or name < self._sessions_from
        if is_read and not keys.is_of_group(key):
            self._touched[name] = self._touched.get(name, 0) | _BITS[table]

    def step(self, mono: Callable[[], float], until: float) -> None:
        """Read rows until that time, or until all is current; at least a stretch. Raises StoreFailed."""
        while not self.is_current:
            if self._sessions_from is not None:
                self._sessions_from = self._read_sessions(self._sessions_from)
            elif self._received_from is not None:
                self._received_from = self._read_received(self._received_from)
            else:
                for name in list(islice(self._touched, STRETCH)):
                    self._read_again(name, self._touched.pop(name))
            if mono() >= until:
                return

    def _read_sessions(self, start: bytes) -> bytes | None:
        """A stretch of sessions. Returns where the next begins; None: there is none."""
        rows = list(islice(readable(self._store, Table.SESSIONS, start, keys.LAST), STRETCH))
        for key, value in rows:
            if not keys.is_of_group(key):
                self._take(key, value)
        return rows[-1][0] + _AFTER if len(rows) == STRETCH else None

    def _read_received(self, start: bytes) -> bytes | None:
        rows = list(islice(readable(self._store, Table.RECEIVED, start, b"\xff" * 4), STRETCH))
        for key, _ in rows:
            name = key[:-3].decode()
            subscriber = self.by_id.get(name)
            if subscriber is None:
                self.strays.add(name)
            else:
                subscriber.session.received[int.from_bytes(key[-2:], "big")] = True
        return rows[-1][0] + _AFTER if len(rows) == STRETCH else None

    def _read_again(self, key: bytes, tables: int) -> None:
        name = key.decode()
        before = self.by_id.get(name)
        if tables & _BITS[Table.SESSIONS]:
            try:
                value = self._store.get(Table.SESSIONS, key)
            except Corrupt as error:
                value = None
                self._skipped(key, error)
            if value is None:
                self._drop(name)
            else:
                self._take(key, value)
        elif before is not None:
            self._take_cursor(before)
        if tables & _BITS[Table.RECEIVED] or self.by_id.get(name) is not before:
            self._take_received(name)

    def _take(self, key: bytes, value: bytes) -> None:
        """A session is as this row says, and its cursor."""
        name = key.decode()
        try:
            row = session_of(value)
            will = Will(decode(row.will), row.will_delay_s) if row.will else None
            mark = hash(encode_row(row.subscriptions))
            is_same = self._marks.get(name) == mark
            subscriptions = [] if is_same else [subscription_of(stored) for stored in row.subscriptions]
        except Corrupt as error:
            self._skipped(key, error)
            self._drop(name)
            return
        subscriber = self.by_id.get(name)
        if subscriber is not None and subscriber.owner != row.owner:
            self._drop(name)
            self._take(key, value)
            return
        is_new = subscriber is None
        if subscriber is None:
            subscriber = self._new(name, row)
        subscriber.session.expiry_s = row.expiry_s
        subscriber.incarnation = row.incarnation
        subscriber.wills.current = will
        subscriber.wills.delayed_id = keys.message_of(row.will_id) if row.will_id else 0
        subscriber.presence.left_ms = subscriber.presence.ended_ms = row.left_ms
        subscriber.presence.left_running_ms = row.left_running_ms
        subscriber.doubt = doubt_of(row)
        if not is_same:
            self._marks[name] = mark
            self._subscribe(subscriber, subscriptions)
        self._take_cursor(subscriber, is_new=is_new)

    def _new(self, name: str, row: SessionRow) -> Subscriber:
        session = self.session(name, row.expiry_s, self._window)
        subscriber = Subscriber(session, set(), _nobody, self.barrier_bytes, owner=row.owner)
        self.by_id[name] = subscriber
        self.share.add(row.owner)
        return subscriber

    def session(self, name: str, expiry_s: int, window: int, read: Position = START) -> Session:
        return Session(name, read=read, expiry_s=expiry_s, window=window)

    def _subscribe(self, subscriber: Subscriber, wanted: list[Subscription]) -> None:
        """It has these subscriptions, in this order, and no other."""
        session, owner = subscriber.session, subscriber.owner
        before, session.subscriptions = session.subscriptions, {}
        session.filter_bytes = 0
        is_sharing = False
        for subscription in wanted:
            text = subscription.filter
            is_shared = text.startswith(SHARE_PREFIX)
            is_sharing = is_sharing or is_shared
            known = before.pop(text, None)
            if known is None:
                self.quota.add(text, owner)
            session.filter_bytes += len(text.encode())
            session.subscriptions[text] = subscription if known != subscription else known
            if known != subscription and not is_shared:
                self.router.add(subscriber, subscription)
        self.quota.discard(before, owner)
        for text in before:
            if not text.startswith(SHARE_PREFIX):
                self.router.discard(subscriber, text)
        if is_sharing:
            self.sharing[subscriber] = None
        else:
            self.sharing.pop(subscriber, None)

    def _take_cursor(self, subscriber: Subscriber, *, is_new: bool = False) -> None:
        """Where it stands, as stored; nothing is left of where it stood. `is_new`: it stood nowhere."""
        if not is_new:
            old = subscriber.session
            session = subscriber.session = self.session(old.client_id, old.expiry_s, self._window)
            session.subscriptions, session.filter_bytes = old.subscriptions, old.filter_bytes
            session.received = old.received
            subscriber.retained_queue = RetainedQueue()
            subscriber.rows.ahead = True
        row = self.cursor(subscriber.session.client_id)
        if row is None:
            self.cursorless.add(subscriber)
        else:
            self.cursorless.discard(subscriber)
            subscriptions = subscriber.session.subscriptions.values()
            subscriber.retained_queue.restore(subscriptions, row.retained_done, row.topic)
            resume(subscriber, row)

    def cursor(self, name: str) -> CursorRow | None:
        """The cursor of a session or group; None: it has none that can be read."""
        key = name.encode()
        try:
            value = self._store.get(Table.CURSORS, key)
            return None if value is None else cursor_row_of(value)
        except Corrupt as error:
            self.unreadable.add(key)
            log.error("%r: cursor unreadable, starting from now: %s", name, error)
            return None

    def _take_received(self, name: str) -> None:
        rows = readable(self._store, Table.RECEIVED, *keys.received_range(name))
        ids = {int.from_bytes(key[-2:], "big"): True for key, _ in rows}
        subscriber = self.by_id.get(name)
        self.strays.discard(name)
        if subscriber is not None:
            subscriber.session.received = ids
        elif ids:
            self.strays.add(name)

    def _drop(self, name: str) -> None:
        subscriber = self.by_id.pop(name, None)
        if subscriber is None:
            return
        del self._marks[name]
        self.router.discard_all(subscriber)
        self.quota.discard(subscriber.session.subscriptions, subscriber.owner)
        self.share.add(subscriber.owner, -1)
        self.sharing.pop(subscriber, None)
        self.cursorless.discard(subscriber)

    def _skipped(self, key: bytes, error: Corrupt) -> None:
        self.unreadable.add(key)
        log.error("session %r: unreadable, skipped: %s", key, error)


def _nobody(_: Place, done: Persisted) -> None:
    """Before `Sessions.load` nothing is made durable."""
    done(-1)
