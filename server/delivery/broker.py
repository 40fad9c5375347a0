"""What connections ask of the server: sessions opened and closed, subscriptions stored, publishes placed.

One object for all connections. It holds no state of its own beside who is connected; it knows who does what.
"""

import logging
from collections.abc import Callable, Sequence

from shards import keys
from shards.commit import Commit
from shards.errors import StoreFailed
from shards.record import Record
from shards.store import Table
from timeline.filters import SHARE_PREFIX
from timeline.position import Position, position
from timeline.session import Flight, Subscription

from ..clock import Clock
from ..codec.reasons import Reason
from ..config import Config
from ..logs import by
from ..mqtt.wishes import Wish
from ..writer import Busy, Writer
from .dead import Dead
from .dispatch import Dispatch
from .membership import Groups
from .message import Message
from .owed import Owed
from .publishing import Answer, Placing, Traffic
from .replay import Replay
from .router import Router
from .sessions import Sessions, TooManySessions
from .subscriber import Link, Subscriber
from .wills import Wills

log = logging.getLogger(__name__)

HOLD_MESSAGES = 8_000
HOLD_BYTES = 16 << 20
"""From so much that waits on no publisher is read: what is sent now comes some 30 ms later."""


class Broker:
    """The server as connections see it."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        sessions: Sessions,
        router: Router,
        replay: Replay,
        dispatch: Dispatch,
        owed: Owed,
        writer: Writer,
        *,
        node: int,
        horizon: Callable[[], Position],
    ) -> None:
        self.config = config
        self.clock = clock
        self.sessions = sessions
        self.router = router
        self.replay = replay
        self.groups = Groups(sessions, router, owed, lambda: replay)
        self.node = node
        self.horizon = horizon
        self.traffic = Traffic()
        self._placing = Placing(config, router, dispatch, owed, writer, self.traffic)
        self.dead = Dead(
            sessions,
            self._placing,
            writer,
            clock,
            node=node,
            send_again=self._send_again,
            read_on=self.read_on,
            give_up=self.give_up,
        )
        self.wills = Wills(sessions, self._placing, writer, clock, config.limits)
        self._assigned = 0
        self._second = self._connects = 0
        self._dispatch = dispatch
        self._writer = writer

    @property
    def is_congested(self) -> bool:
        """Publishers should be held back: what they have sent waits in RAM, others' requests behind it."""
        dispatch, placing, limits = self._dispatch, self._placing, self.config.limits
        return dispatch.live + placing.waiting > min(
            HOLD_MESSAGES, limits.queued // 2
        ) or dispatch.live_bytes + placing.waiting_bytes > min(HOLD_BYTES, limits.queued_bytes // 2)

    def admits(self, now_s: float) -> bool:
        """Whether `limits.connect_rate` leaves room for one more connection in this second."""
        rate = self.config.limits.connect_rate
        if int(now_s) != self._second:
            self._second, self._connects = int(now_s), 0
        self._connects += 1
        return not rate or self._connects <= rate

    # -- sessions

    def restore(self) -> None:
        """At start: members of groups, and the wills of those who were connected when the server died."""
        self.groups.restore()
        for subscriber in list(self.sessions):
            if subscriber.will is not None:
                self.wills.publish(subscriber, at_once=False)
                subscriber.stored_changes = -1
                self.sessions.secure(subscriber, _drop)

    def take_id(self) -> int:
        """A number for a client id of the server's own making, unique over restarts."""
        self._assigned += 1
        return self.clock.wall_ms() << 20 | self._assigned & 0xFFFFF

    def claim(
        self, link: Link, client_id: str, *, clean: bool, expiry_s: int, window: int
    ) -> tuple[Subscriber | None, bool]:
        """The session for a new connection and whether it was there before; None: too many exist.

        A connection that has it is told and closed. The session is the caller's at once, but is sent
        nothing before `resume`.
        """
        known = self.sessions.get(client_id)
        is_present = (
            known is not None
            and known.session.is_persistent
            and not clean
            and not self.sessions.is_over(known)
        )
        if known is not None:
            self._displace(known, is_resumed=is_present)
            if is_present:
                known.session.expiry_s = expiry_s
                known.session.resize(window)
                known.link, known.left_ms, known.left_running_ms = link, 0, 0
                return known, True
            self.sessions.drop(known)
        try:
            fresh = self.sessions.open(client_id, expiry_s=expiry_s, window=window)
        except TooManySessions as error:
            log.warning("connect refused: %s", error, extra=by("clients"))
            return None, False
        fresh.link = link
        return fresh, False

    def begin(self, subscriber: Subscriber, done: Callable[[bool], None], *, is_new: bool) -> None:
        """Store what `claim` gave; `done` says whether it is durable, and CONNACK may leave.

        Of a session that ends with its connection it is that nothing is stored under its name. One that
        cannot be stored has not been opened: its client's will does not count, the one before still does, and
        a new session goes with the link.
        """
        session, will_id, link = subscriber.session, subscriber.will_id, subscriber.link

        def begun(waiting: int) -> None:
            if waiting >= 0:  # the client is back, for certain only now
                subscriber.former_will = None
                if will_id == subscriber.will_id and subscriber.link is not None:
                    self.wills.recall(subscriber, at_once=False)
            else:
                if is_new:
                    session.expiry_s = 0
                if subscriber.link is link or subscriber.link is None:
                    subscriber.will, subscriber.former_will = subscriber.former_will, None
                if subscriber.link is None:
                    self.wills.publish(subscriber, at_once=False)
            done(waiting >= 0)

        if session.is_persistent:
            subscriber.stored_changes = -1
            self.sessions.begin(subscriber, begun, is_new=is_new)
        elif self.sessions.is_stored(session.client_id):
            subscriber.is_stored = False
            self.sessions.begin(subscriber, begun, is_new=True)
        else:
            done(True)

    def resume(self, subscriber: Subscriber) -> None:
        """CONNACK is out: send what was in flight, then read on."""
        subscriber.connected_ms = self.clock.wall_ms()
        self.replay.begin(subscriber)
        self.groups.meet(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        """Its connection has ended: a persistent session stays where it is, any other is gone."""
        session = subscriber.session
        self._part(subscriber)
        if not session.is_persistent:
            self.wills.publish(subscriber, at_once=True)
            self.sessions.drop(subscriber)
            return
        self.sessions.leave(subscriber)
        self.wills.publish(subscriber, at_once=False)
        subscriber.stored_changes = -1
        self.sessions.secure(subscriber, _drop)

    def store(self, subscriber: Subscriber, done: Callable[[bool], None]) -> None:
        """Make the session durable as it is by then; `done` says whether it is."""
        self.sessions.secure(subscriber, lambda waiting: done(waiting >= 0))

    def end_expired(self, subscribers: Sequence[Subscriber]) -> int:
        """In the writer: end those of these sessions that are over by now; how many."""
        ended = 0
        for subscriber in subscribers:
            client_id = subscriber.session.client_id
            if self.sessions.get(client_id) is subscriber and self.sessions.is_over(subscriber):
                self.sessions.drop(subscriber)
                log.info("session %s expired", client_id)
                ended += 1
        return ended

    def read_on(self, subscriber: Subscriber) -> None:
        """The session, or a group that it is a member of, may have room again."""
        self.replay.wake(subscriber)
        if subscriber.groups:
            self.groups.meet(subscriber)

    def give_up(self, subscriber: Subscriber, flight: Flight) -> None:
        """End a flight that its client has not acked and will not be sent again."""
        subscriber.session.give_up(flight)
        if flight.loan is not None:
            self.groups.over(subscriber, flight, is_acked=False)

    def _send_again(self, subscriber: Subscriber, flight: Flight) -> None:
        """A flight is to be sent again, or ended, before anything new."""
        subscriber.session.fall_behind(self.horizon())
        subscriber.session.resends.add(flight, flight.position)
        self.replay.wake(subscriber)

    def submit(self, decide: Callable[[Commit], None], done: Callable[[bool], None]) -> None:
        """A request of the server's own; `done` says whether it is durable."""
        try:
            self._writer.submit(decide, lambda answer: done(not isinstance(answer, Exception)))
        except (Busy, StoreFailed) as error:
            log.warning("not stored: %s", error, extra=by("clients"))
            done(False)

    def _displace(self, known: Subscriber, *, is_resumed: bool) -> None:
        """The session's client connects anew: its old connection goes, and its will is settled."""
        if known.link is not None:
            known.link.close(Reason.SESSION_TAKEN_OVER)
            self._part(known)
        # It may also be a will that is on its way to the timeline: that stops (`Wills`), and goes on if the
        # client is refused. The will of one that was not back for certain does not count.
        known.will, known.former_will = known.former_will or known.will, None
        if known.will is not None and not (is_resumed and known.will.delay_s):
            self.wills.publish(known, at_once=True)
        if is_resumed:
            known.former_will = known.will
        known.will = None
        if not is_resumed:
            self.wills.recall(known, at_once=True)

    def _part(self, subscriber: Subscriber) -> None:
        """No connection any more: what was on its way is in flight, the read position stands still."""
        subscriber.link = None
        subscriber.session.resends.clear()
        subscriber.unanswered = 0
        subscriber.shut_gate()
        subscriber.session.fall_behind(self.horizon())
        subscriber.is_entangled = bool(subscriber.groups)
        self.groups.part(subscriber)

    def discard(self, subscriber: Subscriber, reason: Reason) -> None:
        """End a session, whatever it is doing."""
        link = subscriber.link
        self._part(subscriber)
        if link is not None:
            link.close(reason)
        self.wills.publish(subscriber, at_once=True)
        self.wills.recall(subscriber, at_once=True)
        self.sessions.drop(subscriber)

    # -- subscriptions

    def denial(self, text: str, topic_filter: str, subscriber: Subscriber) -> Reason | None:
        """Why a filter, `text` as it was asked for, may not be subscribed to."""
        limits = self.config.limits
        if any(_covers(denied, topic_filter) for denied in self.config.mqtt.deny_subscribe):
            return Reason.NOT_AUTHORIZED
        if (
            topic_filter in ("#", "+/#")
            and subscriber.session.is_persistent
            and not limits.hash_on_persistent
        ):
            return Reason.NOT_AUTHORIZED
        session = subscriber.session
        if text not in session.subscriptions and not self.sessions.quota.admits(session, text):
            return Reason.QUOTA_EXCEEDED
        return None

    def subscribe(self, subscriber: Subscriber, wanted: Subscription, replay_from: Position | None) -> bool:
        """Add or replace; takes effect at once. True if the filter is new to the session."""
        if replay_from is not None:
            replay_from = max(replay_from, self.replay.floor)
        if wanted.filter not in subscriber.session.subscriptions:
            self.sessions.quota.add(wanted.filter)
        if wanted.filter.startswith(SHARE_PREFIX):
            subscriber.session.subscribe(wanted, self.horizon())
            if replay_from is not None and wanted.filter not in self.groups:
                wanted.since = min(wanted.since, replay_from)
            is_new = self.groups.join(subscriber, wanted.filter, wanted)
            subscriber.is_entangled = True
            self.sessions.dirty.add(subscriber.groups[wanted.filter])
            return is_new
        known = subscriber.session.subscriptions.get(wanted.filter)
        if known is not None:
            self.router.discard(subscriber, wanted.filter)
        subscriber.session.subscribe(wanted, self.horizon(), replay_from)
        self.router.add(subscriber, wanted)
        if not subscriber.session.tailing:
            self.read_on(subscriber)
        return known is None

    def hold_retained(self, subscriber: Subscriber) -> None:
        """A SUBSCRIBE has come: what it asks for is sent when its SUBACK is out (`send_retained`)."""
        subscriber.unanswered += 1

    def ask_retained(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """What is retained for a subscription is to come, before anything new."""
        subscriber.session.fall_behind(self.horizon())
        subscriber.asked.add(subscription)

    def send_retained(self, subscriber: Subscriber) -> None:
        """SUBACK is out."""
        subscriber.unanswered -= 1
        if not subscriber.session.tailing:
            self.read_on(subscriber)

    def unsubscribe(self, subscriber: Subscriber, topic_filter: str) -> bool:
        if not subscriber.session.unsubscribe(topic_filter):
            return False
        self.sessions.quota.discard((topic_filter,))
        if topic_filter in subscriber.groups:
            self.groups.leave(subscriber, topic_filter)
            return True
        subscriber.asked.discard(topic_filter)
        self.router.discard(subscriber, topic_filter)
        return True

    # -- publishes

    def publish(self, wishes: Sequence[tuple[Wish, Answer | None]]) -> None:
        """Place publishes in order; each answer comes when the message is durable or handed on."""
        self._placing.publish(wishes)

    def after_publishes(self, then: Callable[[], None]) -> bool:
        """Call `then` once when all that has been published so far has been handed on, or cannot be.

        False: now, as nothing can be waited for; it is not called.
        """
        called = False

        def once() -> None:
            nonlocal called
            if not called:
                called = True
                then()

        def decide(commit: Commit) -> None:
            self._dispatch.add_mark(position(commit.horizon.clock_ms, commit.horizon.seq), once)

        def done(answer: object) -> None:
            if isinstance(answer, Exception):
                once()

        try:
            # Without a cost: it waits behind what this client has in the queue already.
            self._writer.submit(decide, done, cost=0, writes=False)
        except (Busy, StoreFailed):
            return False
        return True

    def publish_system(self, records: Sequence[Record], note: Callable[[Message], None]) -> None:
        """The server's own figures: never stored."""
        self._placing.publish_system(records, note)

    def released(self, subscriber: Subscriber, packet_id: int, done: Callable[[bool], None]) -> None:
        """PUBREL has come: forget the packet id; `done` when that is durable."""
        session = subscriber.session
        session.received.pop(packet_id, None)
        if not session.is_persistent:
            done(True)
            return
        key = keys.received(session.client_id, packet_id)

        def settled(is_durable: bool) -> None:
            if not is_durable:
                session.received[packet_id] = True
            done(is_durable)

        self.submit(lambda commit: commit.row(Table.RECEIVED, key, None), settled)


def _covers(denied: str, topic_filter: str) -> bool:
    """Whether everything that `topic_filter` can match is matched by `denied`, level by level."""
    theirs = topic_filter.split("/")
    for index, level in enumerate(denied.split("/")):
        if level == "#":
            return True
        if index >= len(theirs) or theirs[index] == "#":
            return False
        if level != "+" and level != theirs[index]:
            return False
    return len(theirs) == len(denied.split("/"))


def _drop(_: object) -> None:
    """An answer that nobody waits for."""
