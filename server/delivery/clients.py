"""The life of a client's session: it connects, is resumed, leaves, and ends.

    claim, begin, resume    a client connects: it gets its session, which is stored, and reads on
    farewell, leave         the client says that it goes; its connection has ended
    drop, end_expired       somebody deletes the session; its expiry has come

The rules of a connection call these (server/mqtt/state.py). The will of a client that goes without a word is
the subject of wills.py, and the messages that it had in flight are that of settling/.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from ..auth.rights import Rights
from ..engine.clock import Clock
from ..engine.commit_hook import ignore
from ..fair import Share
from ..observe.logs import by, clean
from .burials import GROUP_EXPIRED, Burials
from .link import Closing, Link
from .membership import Membership
from .place import Place
from .publish_request import Will
from .replay import Replay
from .sessions import Sessions, TooManySessions
from .settling.settling import Settling
from .shared import Group
from .subscriber import Subscriber, holder_of
from .subscriptions import Subscriptions
from .wills import Wills

log = logging.getLogger(__name__)


class Clients:
    """The sessions of clients, from CONNECT to their end."""

    def __init__(
        self,
        clock: Clock,
        sessions: Sessions,
        groups: Membership,
        burials: Burials,
        subscriptions: Subscriptions,
        settling: Settling,
        replay: Replay,
        wills: Wills,
        *,
        expiry_max_ms: int,
        connections: Share,
    ) -> None:
        """`connections`: of how many a key may have; who opens and ends one counts it. `expiry_max_ms`: how
        long a session may stay after its connection, at most."""
        self._clock = clock
        self._sessions = sessions
        self._cursors = sessions.cursors
        self._groups = groups
        self._burials = burials
        self._subscriptions = subscriptions
        self._settling = settling
        self._replay = replay
        self._wills = wills
        self._expiry_max_s = expiry_max_ms // 1000
        self._assigned = 0
        self.connections = connections
        self.present: set[Subscriber] = set()
        """Sessions with a connection."""
        self.most_present = 0
        """The largest number of them since the start."""
        self.expired = 0
        """Sessions that have expired since then."""

    def restore(self) -> None:
        """At start, publish the wills of the clients that were connected when the server died."""
        for subscriber in list(self._sessions):
            if subscriber.wills.current is not None:
                self._wills.publish(subscriber, at_once=False)
                self._cursors.mark_dirty(subscriber)
                self._cursors.persist(subscriber, ignore)

    def take_id(self) -> int:
        """A number for a client id that the server makes, unique over restarts."""
        self._assigned += 1
        return self._clock.wall_ms() << 20 | self._assigned & 0xFFFFF

    def claim(
        self,
        link: Link,
        client_id: str,
        *,
        clean_start: bool,
        expiry_s: int,
        window: int,
        rights: Rights | None = None,
        token: str = "",
    ) -> tuple[Subscriber | None, bool]:
        """The session for a new connection, and whether it existed before; None: too many sessions exist.

        `rights`: what the client may do from now on; None: the server asks nobody for keys. `token`: what it
        shows that it had before; empty: its client id tells.

        Another connection of this session is told, and closed. The caller has the session at once, but the
        session gets no messages before `resume`.
        """
        known = self._sessions.get(client_id)
        holder = holder_of("" if rights is None else rights.name, token or f"\0{client_id}")
        is_present = (
            known is not None
            and known.session.is_persistent
            and not clean_start
            and not self._sessions.is_over(known)
        )
        if known is not None:
            self._displace(known, is_resumed=is_present)
            if is_present:
                known.session.expiry_s = expiry_s
                known.session.resize(window)
                known.link, known.presence.left_ms, known.presence.left_running_ms = link, 0, 0
                known.holder = holder
                if rights is not None:
                    if known.owner != rights.name:
                        self._subscriptions.keep_allowed(known, rights)
                    self._sessions.entrust(known, rights)
                self._meet(known, token)
                return known, True
            self._forget(known)
        try:
            fresh = self._sessions.open(client_id, expiry_s=expiry_s, window=window, rights=rights)
        except TooManySessions as error:
            log.warning("connect refused: %s", error, extra=by("clients"))
            return None, False
        fresh.link, fresh.holder = link, holder
        self._meet(fresh, token)
        return fresh, False

    def admission(self, client_id: str, rights: Rights) -> str:
        """Why a key may not have one more connection; empty: it may. One that is taken over makes room."""
        known = self._sessions.get(client_id)
        is_replaced = known is not None and known.link is not None and known.owner == rights.name
        return "" if is_replaced else self.connections.refusal(rights.name)

    def is_taken(self, client_id: str, rights: Rights | None) -> bool:
        """Whether the session belongs to another, valid key that may have it, so that this client cannot take
        it over."""
        known = self._sessions.get(client_id)
        if rights is None or known is None or known.owner in ("", rights.name):
            return False
        return not self._sessions.is_over(known) and (known.rights is None or known.rights.may_connect)

    def is_known(self, client_id: str) -> bool:
        """Whether that client has a session, or a restart could find one."""
        return self._sessions.get(client_id) is not None or self._cursors.is_stored(client_id)

    def begin(
        self, subscriber: Subscriber, will: Will | None, done: Callable[[bool], None], *, is_new: bool
    ) -> None:
        """Store the session that `claim` gave, with the connection's will. `done` says whether it is durable.

        For a session that ends with its connection, durable means that nothing is stored under its name. If
        the session cannot be stored, it was not opened: the client's new will does not count, the former one
        does. A new session then ends with its link, unless another connection has come for it meanwhile;
        that connection stores it.
        """
        session, will_id, link = subscriber.session, subscriber.wills.delayed_id, subscriber.link
        is_unstored = is_new or not subscriber.cursor.is_stored
        self._wills.accept(subscriber, will)

        def begun(waiting: int) -> None:
            if waiting >= 0:
                self._wills.confirm(subscriber, will_id)
            else:
                is_ours = subscriber.link in (link, None)
                if is_unstored and is_ours:
                    session.expiry_s = 0
                self._wills.refuse(subscriber, is_gone=is_ours)
            done(waiting >= 0)

        if session.is_persistent:
            self._cursors.begin(subscriber, begun, is_new=is_unstored)
        elif self._cursors.is_stored(session.client_id):
            self._cursors.begin(subscriber, begun, is_new=True)
        else:
            done(True)

    def resume(self, subscriber: Subscriber) -> None:
        """After the CONNACK: resend what was in flight, then continue reading."""
        subscriber.presence.connected_ms = self._clock.wall_ms()
        self._replay.begin(subscriber)
        self._groups.meet(subscriber)

    def leave(self, subscriber: Subscriber, *, is_clean: bool, is_stopping: bool = False) -> None:
        """Handle the end of the connection: a persistent session stays, any other ends. `is_clean`: by
        DISCONNECT. `is_stopping`: by the server, which stops."""
        session = subscriber.session
        subscriber.presence.ended_ms = self._clock.wall_ms()
        self.present.discard(subscriber)
        self._settling.disconnected(subscriber, is_clean=is_clean, is_stopping=is_stopping)
        if not session.is_persistent:
            self._wills.publish(subscriber, at_once=True)
            self._forget(subscriber)
            return
        self._sessions.leave(subscriber)
        self._wills.publish(subscriber, at_once=False)
        self._cursors.mark_dirty(subscriber)
        self._cursors.persist(subscriber, ignore)

    def farewell(self, subscriber: Subscriber, expiry_s: int | None, *, keeps_will: bool) -> bool:
        """Handle DISCONNECT with a new session expiry (None: as agreed), and whether the will is kept. False:
        a session without expiry cannot get one now."""
        session = subscriber.session
        if expiry_s is not None:
            if expiry_s and not session.is_persistent:
                return False
            session.expiry_s = min(expiry_s, self._expiry_max_s)
        if not keeps_will:
            self._wills.accept(subscriber, None)
        return True

    def store(self, subscriber: Subscriber, done: Callable[[bool], None]) -> None:
        """Make the session durable as it is when it is written. `done` says whether it is."""
        self._cursors.persist(subscriber, lambda waiting: done(waiting >= 0))

    def store_groups(
        self, subscriber: Subscriber, texts: Iterable[str], done: Callable[[bool], None]
    ) -> None:
        """Make the groups durable that a session without expiry has joined or left; `done` as for `store`."""
        found = [self._groups.get(text) for text in texts]
        waiting: set[Place] = {group for group in found if group is not None}
        waiting.add(subscriber)  # nothing of it is stored, but with a batch goes what has ended
        failed = 0

        def stored(one: Place, is_durable: bool) -> None:
            nonlocal failed
            waiting.discard(one)
            failed += not is_durable
            if not waiting:
                done(not failed)

        for one in list(waiting):
            self._cursors.persist(one, lambda durable, one=one: stored(one, durable >= 0))  # type: ignore[misc]

    def end_expired(self, subscribers: Sequence[Place]) -> int:
        """In the writer: end those of these sessions and groups whose expiry has come. Returns how many."""
        ended = 0
        for subscriber in subscribers:
            client_id = subscriber.session.client_id
            is_there = self._groups.named(client_id) is subscriber
            if isinstance(subscriber, Group) and is_there and self._groups.is_over(subscriber):
                self._groups.end(subscriber, GROUP_EXPIRED)
                log.info("group %s: expired", clean(subscriber.text))
                ended += 1
            elif isinstance(subscriber, Subscriber) and is_there and self._sessions.is_over(subscriber):
                self._forget(subscriber)
                log.info("session %s: expired", client_id)
                self.expired += 1
                ended += 1
        return ended

    def drop(self, name: str) -> None:
        """In the writer: end the session of a client, connected or not. This batch deletes its rows."""
        subscriber = self._sessions.get(name)
        if subscriber is not None:
            link = subscriber.link
            self._settling.disconnected(subscriber, is_clean=False)
            if link is not None:
                link.close(Closing.DROPPED)
            self._wills.publish(subscriber, at_once=True)
            self._wills.recall(subscriber, at_once=True)
            self._forget(subscriber)
        self._cursors.erase(name)

    def _forget(self, subscriber: Subscriber) -> None:
        """End the session in RAM. The next batch deletes its rows."""
        self.present.discard(subscriber)
        self._groups.forget(subscriber)
        self._burials.end_session(subscriber)
        self._sessions.drop(subscriber)

    def _meet(self, subscriber: Subscriber, token: str) -> None:
        """The session has a connection."""
        if token:
            self._settling.is_back(subscriber)
        self.present.add(subscriber)
        self.most_present = max(self.most_present, len(self.present))

    def _displace(self, known: Subscriber, *, is_resumed: bool) -> None:
        """The client connects again: its old connection is closed, and its former will is dealt with."""
        if known.link is not None:
            known.link.close(Closing.TAKEN_OVER)
            known.presence.ended_ms = self._clock.wall_ms()
            self._settling.disconnected(known, is_clean=False)
        self._wills.displace(known, is_resumed=is_resumed)
