"""What connections ask of the server: sessions opened and closed, subscriptions stored, publishes placed.

One object for all connections. It holds no state of its own beside who is connected; it knows who does what.
"""

import logging
from collections.abc import Callable, Sequence

import msgspec

from shards import keys
from shards.commit import Commit, Draft, Replayed
from shards.errors import StoreFailed
from shards.record import Record, encode
from shards.store import Table
from timeline.filters import SHARE_PREFIX
from timeline.position import MessageId, Position
from timeline.session import Subscription

from ..clock import Clock
from ..config import Config
from ..dispatch import Dispatch
from ..logs import by
from ..message import Message
from ..replay import Replay
from ..sessions import Sessions, TooManySessions
from ..subscriber import Link, Subscriber
from ..writer import Busy, Writer
from .dead import Dead
from .groups import Groups
from .incoming import Wish
from .placing import LIVE_MAX, Answer, Placing, Traffic
from .reasons import Reason
from .router import Router

log = logging.getLogger(__name__)


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
        self.groups = Groups(sessions, router, lambda: replay)
        self.node = node
        self.horizon = horizon
        self.traffic = Traffic()
        self._placing = Placing(config, router, dispatch, writer, self.traffic)
        self.bury = Dead(sessions, self._placing, writer, node=node, read_on=self.read_on).bury
        self._assigned = 0
        self._second = self._connects = 0
        self._dispatch = dispatch
        self._writer = writer

    @property
    def is_congested(self) -> bool:
        """Publishers should be held back: what they send waits in RAM."""
        return self._dispatch.live > LIVE_MAX // 2 or self._writer.queued * 2 > self.config.limits.queued

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
                self._publish_will(subscriber, at_once=False)
                self.store(subscriber, _ignore)

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
            known is not None and known.session.is_persistent and not clean and not self._is_over(known)
        )
        if known is not None:
            self._displace(known, is_resumed=is_present)
            if is_present:
                known.session.expiry_s, known.session.window = expiry_s, window
                known.link, known.left_ms = link, 0
                return known, True
            self.sessions.drop(known)
        try:
            fresh = self.sessions.open(client_id, expiry_s=expiry_s, window=window)
        except TooManySessions as error:
            log.warning("connect refused: %s", error, extra=by("clients"))
            return None, False
        fresh.link = link
        fresh.is_stored = known is not None and known.is_stored
        return fresh, False

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
            self._publish_will(subscriber, at_once=True)
            self.sessions.drop(subscriber)
            if subscriber.is_stored:
                self.erase(session.client_id, _ignore)
            return
        subscriber.left_ms = self.clock.wall_ms()
        self._publish_will(subscriber, at_once=False)
        self.store(subscriber, _ignore)

    def store(self, subscriber: Subscriber, done: Callable[[bool], None], *, is_new: bool = False) -> None:
        """Make the session durable as it is now; `done` says whether it is.

        `is_new`: nothing stays of an earlier session of that client.
        """
        subscriber.is_stored = True

        def decide(commit: Commit) -> None:
            if is_new:
                self.sessions.erase(commit, subscriber.session.client_id)
            if self.sessions.get(subscriber.session.client_id) is subscriber:
                self.sessions.store(commit, subscriber)

        self.submit(decide, done)

    def erase(self, client_id: str, done: Callable[[bool], None]) -> None:
        """Drop a session's rows."""
        self.submit(lambda commit: self.sessions.erase(commit, client_id), done)

    def read_on(self, subscriber: Subscriber) -> None:
        """The session, or a group that it is a member of, may have room again."""
        self.replay.wake(subscriber)
        if subscriber.groups:
            self.groups.meet(subscriber)

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
        # It may also be a will that is on its way to the timeline: that does not go on (`_publish_will`).
        if known.will is not None and not (is_resumed and known.will.delay_s):
            self._publish_will(known, at_once=True)
        known.will = None
        if known.will_id:
            wanted, known.will_id = MessageId(known.will_id), 0
            if is_resumed:
                self.submit(lambda commit: _drop(commit.cancel(wanted)), _ignore)
            else:
                self.submit(lambda commit: _drop(commit.move(wanted, 0)), _ignore)

    def _part(self, subscriber: Subscriber) -> None:
        """No connection any more: what was on its way is in flight, the read position stands still."""
        subscriber.link = None
        subscriber.resends.clear()
        subscriber.retained.clear()
        subscriber.gate.clear()
        subscriber.session.fall_behind(self.horizon())
        self.groups.part(subscriber)

    def discard(self, subscriber: Subscriber, reason: Reason) -> None:
        """End a session, whatever it is doing; its rows are the caller's."""
        link = subscriber.link
        self._part(subscriber)
        if link is not None:
            link.close(reason)
        self._publish_will(subscriber, at_once=True)
        if subscriber.will_id:
            wanted, subscriber.will_id = MessageId(subscriber.will_id), 0
            self.submit(lambda commit: _drop(commit.move(wanted, 0)), _ignore)
        self.sessions.drop(subscriber)

    def _is_over(self, subscriber: Subscriber) -> bool:
        """Its expiry has come, housekeeping has not."""
        if subscriber.link is not None:
            return False
        return self.clock.wall_ms() >= subscriber.left_ms + subscriber.session.expiry_s * 1000

    def _publish_will(self, subscriber: Subscriber, *, at_once: bool) -> None:
        """The connection ended without a word: publish its will, now or on the timeline."""
        will = subscriber.will
        if will is None:
            return
        delay_s = 0 if at_once else min(will.delay_s, subscriber.session.expiry_s)
        if not delay_s:
            subscriber.will = None
            self.publish([(Wish(will.record, False, b"", b""), None)])
            return
        due_ms = self.clock.wall_ms() + delay_s * 1000
        record = msgspec.structs.replace(will.record, due_ms=due_ms)

        def decide(commit: Commit) -> None:
            if subscriber.will is not will:
                return  # the client has come back
            subscriber.will = None
            (placed,) = commit.put([Draft(due_ms, record.topic, encode(record))])
            subscriber.will_id = placed.id if isinstance(placed, Replayed) else placed
            self.sessions.store(commit, subscriber)

        self.submit(decide, _ignore)

    # -- subscriptions

    def denial(self, text: str, topic_filter: str, subscriber: Subscriber) -> Reason | None:
        """Why a filter, `text` as it was asked for, may not be subscribed to."""
        limits = self.config.limits
        if any(_covers(denied, topic_filter) for denied in self.config.mqtt.deny_subscribe):
            return Reason.NOT_AUTHORIZED
        known = subscriber.session.subscriptions
        if text not in known and len(known) >= limits.subscriptions_per_session:
            return Reason.QUOTA_EXCEEDED
        if (
            topic_filter in ("#", "+/#")
            and subscriber.session.is_persistent
            and not limits.hash_on_persistent
        ):
            return Reason.NOT_AUTHORIZED
        return None

    def subscribe(self, subscriber: Subscriber, wanted: Subscription, replay_from: Position | None) -> bool:
        """Add or replace; takes effect at once. True if the filter is new to the session."""
        if replay_from is not None:
            replay_from = max(replay_from, self.replay.floor)
        if wanted.filter.startswith(SHARE_PREFIX):
            subscriber.session.subscribe(wanted, self.horizon())
            if replay_from is not None and wanted.filter not in self.groups:
                wanted.since = min(wanted.since, replay_from)
            return self.groups.join(subscriber, wanted.filter, wanted)
        known = subscriber.session.subscriptions.get(wanted.filter)
        if known is not None:
            self.router.discard(subscriber, wanted.filter)
        subscriber.session.subscribe(wanted, self.horizon(), replay_from)
        self.router.add(subscriber, wanted)
        if not subscriber.session.tailing:
            self.read_on(subscriber)
        return known is None

    def send_retained(self, subscriber: Subscriber, subscriptions: Sequence[Subscription]) -> None:
        """SUBACK is out: what is retained for these comes next, before anything new."""
        if subscriptions:
            subscriber.session.fall_behind(self.horizon())
            _forget_retained(subscriber, {s.filter for s in subscriptions})
            subscriber.retained.extend((subscription, b"") for subscription in subscriptions)
            self.read_on(subscriber)

    def unsubscribe(self, subscriber: Subscriber, topic_filter: str) -> bool:
        if not subscriber.session.unsubscribe(topic_filter):
            return False
        if topic_filter in subscriber.groups:
            self.groups.leave(subscriber, topic_filter)
            return True
        _forget_retained(subscriber, {topic_filter})
        self.router.discard(subscriber, topic_filter)
        return True

    # -- publishes

    def publish(self, wishes: Sequence[tuple[Wish, Answer | None]]) -> None:
        """Place publishes in order; each answer comes when the message is durable or handed on."""
        self._placing.publish(wishes)

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


def _forget_retained(subscriber: Subscriber, filters: set[str]) -> None:
    """What was retained for these filters is not to be sent (on)."""
    if subscriber.retained:
        left = [pair for pair in subscriber.retained if pair[0].filter not in filters]
        subscriber.retained.clear()
        subscriber.retained.extend(left)


def _drop(_: object) -> None:
    """An answer that nobody waits for."""


def _ignore(_: bool) -> None:
    """The next group, or the next heartbeat, says it again."""
