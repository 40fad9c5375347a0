"""Every session of the server: found, opened, stored, expired.

Sessions of clients that are away stay in RAM with their subscriptions, because a plain publish must know
whether somebody can replay it; `max_sessions` bounds them. What they have missed is not here: it is the
timeline behind their read position. Cursors are written by `cursors`.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from shards import keys
from shards.errors import Corrupt
from shards.store import Store, Table
from shards.tables import GroupRow, group_of
from shards.unreadable import readable
from timeline.horizon import Horizon

from ..auth.rights import Rights
from ..engine.clock import Clock
from ..engine.writer import Writer
from .cursors import Cursors
from .place import Place
from .session_rows import resume
from .shared import Group
from .spill_buffer import SpillBuffer
from .stored_sessions import StoredSessions
from .subscriber import Subscriber

log = logging.getLogger(__name__)

END_OF_TIME = float("inf")


class TooManySessions(Exception):
    """`limits.sessions` are reached, or the bound of a key."""


class Sessions:
    """Subscribers by client id."""

    def __init__(
        self,
        store: Store,
        horizon: Horizon,
        spill: SpillBuffer,
        clock: Clock,
        writer: Writer,
        stored: StoredSessions,
        rights_of: Callable[[str, str], Rights | None],
    ) -> None:
        """`stored`: `load` takes them over. `rights_of`: what a client may, by the name of its key and its
        id."""
        self._store = store
        self._horizon = horizon
        self._router = stored.router
        self.spill = spill
        self._clock = clock
        self._writer = writer
        self.stored = stored
        self.quota, self._share = stored.quota, stored.share
        self.rights_of = rights_of
        self._by_id = stored.by_id
        self.groups: dict[str, Group] = {}
        """By text; Membership alone changes it."""
        self.cursors = Cursors(self._by_id, self.groups, horizon, clock, writer)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._by_id.values())

    @property
    def unreadable(self) -> int:
        """Number of sessions, groups and cursors that were passed over at the start."""
        return len(self.stored.unreadable)

    def get(self, client_id: str) -> Subscriber | None:
        return self._by_id.get(client_id)

    def open(self, client_id: str, *, expiry_s: int, window: int, rights: Rights | None = None) -> Subscriber:
        """A new session that stands at the horizon. Raises TooManySessions at the bound."""
        owner = "" if rights is None else rights.name
        why = self._share.refusal(owner)
        if why:
            raise TooManySessions(why)
        stored, cursors = self.stored, self.cursors
        session = stored.session(client_id, expiry_s, window, self._horizon.position)
        places = cursors.dirty, cursors.persist, stored.barrier_bytes
        subscriber = Subscriber(session, *places, owner, rights, self._horizon.issue())
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

    def leave(self, subscriber: Place) -> None:
        """Its connection has ended, or the last one of a group's members: its expiry begins to count."""
        subscriber.presence.left_ms = self._clock.wall_ms()
        subscriber.presence.left_running_ms = max(1, self._writer.running_ms)

    @property
    def running_ms(self) -> int:
        """Running time of the server over all starts."""
        return self._writer.running_ms

    def is_over(self, subscriber: Place) -> bool:
        """The expiry of a session or group has come, whether it has been dropped or not.

        It counts running time: what came while the server was down, it has had no time to take.
        """
        passed_ms = self._writer.running_ms - subscriber.presence.left_running_ms
        is_connected = isinstance(subscriber, Subscriber) and subscriber.link is not None
        return not is_connected and passed_ms >= subscriber.session.expiry_s * 1000

    def drop(self, subscriber: Subscriber) -> None:
        """Forget a session, that is in no group any more: in RAM at once, its rows with the next batch."""
        client_id = subscriber.session.client_id
        self._router.discard_all(subscriber)
        self.spill.forget(subscriber)
        if self._by_id.get(client_id) is subscriber:
            del self._by_id[client_id]
            self._share.add(subscriber.owner, -1)
            self.quota.discard(subscriber.session.subscriptions, subscriber.owner)
            self.cursors.forget(subscriber)

    def restore_cursor(self, group: Group) -> None:
        """Where a group stood when it was last stored."""
        row = self.stored.cursor(group.session.client_id)
        if row is not None:
            resume(group, row)

    def stored_groups(self) -> Iterator[tuple[str, GroupRow]]:
        """At start: every group that has a row of its own, by its text."""
        start = keys.GROUP_PREFIX.encode()
        for key, value in readable(self._store, Table.SESSIONS, start, start + keys.LAST):
            try:
                yield key.decode().removeprefix(keys.GROUP_PREFIX), group_of(value)
            except Corrupt as error:
                self.stored.unreadable.add(key)
                log.error("group %r: unreadable, skipped: %s", key, error)

    def stored_group(self, text: str) -> GroupRow | None:
        """The row of a group; None: there is none, or it is unreadable."""
        value = self._store.get(Table.SESSIONS, (keys.GROUP_PREFIX + text).encode())
        with suppress(Corrupt):
            return None if value is None else group_of(value)
        return None

    def load(self) -> None:
        """At start: every stored session, away, where its cursor says. Those that were connected when the
        server was killed leave now."""
        stored, cursors, horizon = self.stored, self.cursors, self._horizon
        stored.step(self._clock.mono, END_OF_TIME)
        now_ms, running_ms = self._clock.wall_ms(), max(1, self._writer.running_ms)
        for subscriber in self._by_id.values():
            subscriber.dirty, subscriber.persist = cursors.dirty, cursors.persist
            cursors.restored(subscriber, is_whole=subscriber.presence.left_running_ms > 0)
            subscriber.rights = self.rights_of(subscriber.owner, subscriber.session.client_id)
            if not subscriber.presence.left_ms:
                subscriber.doubt, subscriber.presence.left_ms = horizon.reach, now_ms
            if not subscriber.presence.left_running_ms:
                subscriber.presence.left_running_ms = running_ms
        for subscriber in stored.cursorless:
            subscriber.session.read = horizon.position
        for client_id in stored.strays:
            cursors.erase(client_id)
