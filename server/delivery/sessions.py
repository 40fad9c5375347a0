"""Every session of the server: found, opened, stored, expired.

Sessions of clients that are away stay in RAM with their subscriptions, because a plain publish must know
whether somebody can replay it; `max_sessions` bounds them. What they have missed is not here: it is the
timeline behind their read position. Cursors are written by `cursors`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

from shards import keys
from shards.errors import Corrupt
from shards.record import decode
from shards.store import Store, Table
from shards.tables import GroupRow, SessionRow, cursor_row_of, group_of, session_of
from shards.unreadable import readable
from timeline.filters import SHARE_PREFIX
from timeline.horizon import Horizon
from timeline.position import SEQ_BITS, Position
from timeline.session import Session

from ..engine.clock import Clock
from ..engine.writer import Writer
from ..fair import Share
from .cursors import Cursors
from .publish_request import Will
from .quota import Quota
from .router import Router
from .session_rows import resume, subscription_of
from .shared import Group
from .spill_buffer import SpillBuffer
from .subscriber import Rights, Subscriber

log = logging.getLogger(__name__)


class TooManySessions(Exception):
    """`limits.sessions` are reached, or the bound of a key."""


class Sessions:
    """Subscribers by client id."""

    def __init__(
        self,
        store: Store,
        horizon: Horizon,
        router: Router,
        spill: SpillBuffer,
        clock: Clock,
        writer: Writer,
        groups: Mapping[str, Group],
        *,
        quota: Quota,
        share: Share,
        max_in_flight: int,
        max_inflight_bytes: int,
        barrier_bytes: int,
        rights_of: Callable[[str, str], Rights | None],
    ) -> None:
        """`groups`: by their text; their owner's. `share`: of how many sessions there may be, empty.
        `rights_of`: what a client may, by the name of its key and its id."""
        self._store = store
        self._horizon = horizon
        self._router = router
        self._spill = spill
        self._clock = clock
        self._writer = writer
        self.quota = quota
        self._share = share
        self._max_in_flight = max_in_flight
        self._max_inflight_bytes = max_inflight_bytes
        self._barrier_bytes = barrier_bytes
        self.rights_of = rights_of
        self._by_id: dict[str, Subscriber] = {}
        self.unreadable = 0
        """Sessions and cursors that were passed over at the start."""
        self.cursors = Cursors(self._by_id, groups, horizon, clock, writer)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._by_id.values())

    def get(self, client_id: str) -> Subscriber | None:
        return self._by_id.get(client_id)

    def open(self, client_id: str, *, expiry_s: int, window: int, rights: Rights | None = None) -> Subscriber:
        """A new session that stands at the horizon. Raises TooManySessions at the bound."""
        owner = "" if rights is None else rights.name
        why = self._share.refusal(owner)
        if why:
            raise TooManySessions(why)
        session = self._session(client_id, expiry_s, window)
        subscriber = Subscriber(
            session,
            self.cursors.dirty,
            self.cursors.secure,
            self._barrier_bytes,
            owner=owner,
            rights=rights,
            incarnation=self._horizon.issue(),
        )
        self._by_id[client_id] = subscriber
        self._share.add(owner)
        return subscriber

    def review(self) -> None:
        """The keys file has changed: give sessions of an old key the rights of the new key of that name."""
        for subscriber in self._by_id.values():
            if subscriber.rights is not None and not subscriber.rights.is_live:
                subscriber.rights = self.rights_of(subscriber.owner, subscriber.session.client_id)
        self._router.forget()

    def entrust(self, subscriber: Subscriber, rights: Rights) -> None:
        """The session is of the key with these rights from now on."""
        self._share.move(subscriber.owner, rights.name)
        self.quota.move(subscriber.session, subscriber.owner, rights.name)
        subscriber.owner, subscriber.rights = rights.name, rights
        self._router.forget()

    def leave(self, subscriber: Subscriber) -> None:
        """Its connection has ended, or the last one of a group's members: its expiry begins to count."""
        subscriber.left_ms = self._clock.wall_ms()
        subscriber.left_running_ms = max(1, self._writer.running_ms)

    @property
    def running_ms(self) -> int:
        """Running time of the server over all starts."""
        return self._writer.running_ms

    def is_over(self, subscriber: Subscriber) -> bool:
        """The expiry of a session or group has come, whether it has been dropped or not.

        It counts running time: what came while the server was down, it has had no time to take.
        """
        passed_ms = self._writer.running_ms - subscriber.left_running_ms
        return subscriber.link is None and passed_ms >= subscriber.session.expiry_s * 1000

    def drop(self, subscriber: Subscriber) -> None:
        """Forget a session, that is in no group any more: in RAM at once, its rows with the next batch."""
        client_id = subscriber.session.client_id
        self._router.discard_all(subscriber)
        self._spill.forget(subscriber)
        if self._by_id.get(client_id) is subscriber:
            del self._by_id[client_id]
            self._share.add(subscriber.owner, -1)
            self.quota.discard(subscriber.session.subscriptions, subscriber.owner)
            self.cursors.forget(subscriber)

    def restore_cursor(self, subscriber: Subscriber) -> None:
        """Where a group stood when it was last stored."""
        try:
            cursor = self._store.get(Table.CURSORS, subscriber.session.client_id.encode())
            row = None if cursor is None else cursor_row_of(cursor)
        except Corrupt as error:
            row, name = None, subscriber.session.client_id
            self.unreadable += 1
            log.error("%r: cursor unreadable, starting from now: %s", name, error)
        if row is not None:
            resume(subscriber, row)

    def stored_groups(self) -> Iterator[tuple[str, GroupRow]]:
        """At start: every group that has a row of its own, by its text."""
        start = keys.GROUP_PREFIX.encode()
        for key, value in readable(self._store, Table.SESSIONS, start, start + keys.LAST):
            try:
                yield key.decode().removeprefix(keys.GROUP_PREFIX), group_of(value)
            except Corrupt as error:
                self.unreadable += 1
                log.error("group %r: unreadable, skipped: %s", key, error)

    def load(self) -> None:
        """At start: every stored session, away, where its cursor says."""
        store = self._store
        for key, value in readable(store, Table.SESSIONS, b"", keys.LAST):
            if keys.is_of_group(key):
                continue
            try:
                self._restore(key, session_of(value))
            except Corrupt as error:
                self.unreadable += 1
                log.error("session %r: unreadable, skipped: %s", key, error)
        for key, _ in readable(store, Table.RECEIVED, b"", b"\xff" * 4):
            name = key[:-3].decode()
            subscriber = self._by_id.get(name)
            if subscriber is not None:
                subscriber.session.received[int.from_bytes(key[-2:], "big")] = True
            else:
                # Placed when the session had ended, by what its client had sent before.
                self.cursors.erase(name)

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
            self.cursors.dirty,
            self.cursors.secure,
            self._barrier_bytes,
            will=Will(decode(row.will), row.will_delay_s) if row.will else None,
            will_id=keys.message_of(row.will_id) if row.will_id else 0,
            owner=row.owner,
            rights=self.rights_of(row.owner, session.client_id),
            incarnation=row.incarnation,
        )
        self.leave(subscriber)
        subscriber.left_running_ms = row.left_running_ms or subscriber.left_running_ms
        self.cursors.restored(subscriber, is_whole=row.left_running_ms > 0)
        if row.doubt:
            subscriber.doubt = keys.place_of(row.doubt)
        if not row.left_ms:
            # It was connected when the server was killed: dispatch may have come as far as the bound.
            subscriber.doubt = Position(self._horizon.bound_ms << SEQ_BITS | self._horizon.seq)
        subscriber.left_ms, subscriber.ended_ms = row.left_ms or subscriber.left_ms, row.left_ms
        self._by_id[session.client_id] = subscriber
        self._share.add(subscriber.owner)
        for stored in row.subscriptions:
            subscription = subscription_of(stored)
            session.subscriptions[stored.filter] = subscription
            session.filter_bytes += len(stored.filter.encode())
            self.quota.add(stored.filter, subscriber.owner)
            if not stored.filter.startswith(SHARE_PREFIX):
                self._router.add(subscriber, subscription)
        self.restore_cursor(subscriber)
