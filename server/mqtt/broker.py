"""What connections ask of the server: sessions opened and closed, subscriptions stored, publishes placed.

One object for all connections. It holds no state of its own beside who is connected; it knows who does what.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shards.commit import Commit, Draft, Refused, Replayed
from shards.errors import StoreFailed
from shards.record import encode
from timeline.filters import matches
from timeline.position import Position, at_of
from timeline.session import Subscription

from ..clock import Clock
from ..config import Config
from ..dispatch import Dispatch
from ..message import Message
from ..replay import Replay
from ..sessions import Sessions, TooManySessions
from ..subscriber import Link, Subscriber
from ..writer import Busy, Writer
from .incoming import Wish
from .reasons import Reason
from .router import Router

log = logging.getLogger(__name__)

Answer = Callable[[int, int], None]
"""Called with a reason code and, if the message is stored, its id."""
LIVE_MAX = 100_000
"""Plain publishes that may wait for the horizon."""


@dataclass(slots=True)
class Traffic:
    """What connections have done since the start."""

    connects: int = 0
    received: int = 0
    sent: int = 0
    dropped: int = 0
    refused: int = 0


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
        self.node = node
        self.horizon = horizon
        self.traffic = Traffic()
        self._assigned = 0
        self._dispatch = dispatch
        self._writer = writer

    @property
    def is_congested(self) -> bool:
        """Publishers should be held back: what they send waits in RAM."""
        return self._dispatch.live > LIVE_MAX // 2 or self._writer.queued * 2 > self.config.limits.queued

    # -- sessions

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
        if known is not None and known.link is not None:
            known.link.close(Reason.SESSION_TAKEN_OVER)
            known.session.fall_behind(self.horizon())
        is_present = known is not None and known.session.is_persistent and not clean
        if known is not None and is_present:
            known.session.expiry_s, known.session.window = expiry_s, window
            known.link, known.left_ms = link, 0
            return known, True
        if known is not None:
            self.sessions.drop(known)
        try:
            fresh = self.sessions.open(client_id, expiry_s=expiry_s, window=window)
        except TooManySessions as error:
            log.warning("connect refused: %s", error)
            return None, False
        fresh.link = link
        fresh.is_stored = known is not None and known.is_stored
        return fresh, False

    def resume(self, subscriber: Subscriber) -> None:
        """CONNACK is out: send what was in flight, then read on."""
        subscriber.connected_ms = self.clock.wall_ms()
        self.replay.begin(subscriber)

    def store(self, subscriber: Subscriber, done: Callable[[bool], None]) -> None:
        """Make the session durable as it is now; `done` says whether it is."""
        self._submit(lambda commit: self.sessions.store(commit, subscriber), done)

    def erase(self, client_id: str, done: Callable[[bool], None]) -> None:
        """Drop a session's rows."""
        self._submit(lambda commit: self.sessions.erase(commit, client_id), done)

    def leave(self, subscriber: Subscriber) -> None:
        """Its connection has ended: a persistent session stays where it is, any other is gone."""
        session = subscriber.session
        subscriber.link = None
        subscriber.resends.clear()
        session.fall_behind(self.horizon())
        if not session.is_persistent:
            self.sessions.drop(subscriber)
            if subscriber.is_stored:
                self.erase(session.client_id, _ignore)
            return
        subscriber.left_ms = self.clock.wall_ms()
        self.store(subscriber, _ignore)

    def read_on(self, subscriber: Subscriber) -> None:
        """The session may have room again."""
        self.replay.wake(subscriber)

    # -- subscriptions

    def denial(self, topic_filter: str, subscriber: Subscriber) -> Reason | None:
        """Why a filter may not be subscribed to."""
        limits = self.config.limits
        if any(_covers(denied, topic_filter) for denied in self.config.mqtt.deny_subscribe):
            return Reason.NOT_AUTHORIZED
        known = subscriber.session.subscriptions
        if topic_filter not in known and len(known) >= limits.subscriptions_per_session:
            return Reason.QUOTA_EXCEEDED
        if topic_filter == "#" and subscriber.session.is_persistent and not limits.hash_on_persistent:
            return Reason.NOT_AUTHORIZED
        return None

    def subscribe(self, subscriber: Subscriber, wanted: Subscription, replay_from: Position | None) -> None:
        """Add or replace; takes effect at once."""
        known = subscriber.session.subscriptions.get(wanted.filter)
        if known is not None:
            self.router.discard(subscriber, wanted.filter)
        subscriber.session.subscribe(wanted, self.horizon(), replay_from)
        self.router.add(subscriber, wanted)
        if not subscriber.session.tailing:
            self.read_on(subscriber)

    def unsubscribe(self, subscriber: Subscriber, topic_filter: str) -> bool:
        if not subscriber.session.unsubscribe(topic_filter):
            return False
        self.router.discard(subscriber, topic_filter)
        return True

    # -- publishes

    def publish(self, wishes: Sequence[tuple[Wish, Answer | None]]) -> None:
        """Place publishes in order; each answer comes when the message is durable or handed on."""
        self.traffic.received += len(wishes)
        writes = any(self._is_to_store(wish) for wish, _ in wishes)

        def done(placed: object) -> None:
            if isinstance(placed, list):
                for answer, reason, message in placed:
                    answer(reason, message)
            else:
                self._answer_all(wishes, _UNAVAILABLE)

        try:
            self._writer.submit(
                lambda commit: self._place(commit, wishes), done, cost=len(wishes), writes=writes
            )
        except Busy:
            self._answer_all(wishes, Reason.QUOTA_EXCEEDED)
        except StoreFailed:
            self._answer_all(wishes, _UNAVAILABLE)

    def _place(
        self, commit: Commit, wishes: Sequence[tuple[Wish, Answer | None]]
    ) -> list[tuple[Answer, int, int]]:
        """In the writer: give each a position; the answers of those that are stored or refused."""
        answers: list[tuple[Answer, int, int]] = []
        for wish, answer in wishes:
            if not self._is_to_store(wish):
                self._place_live(commit, wish, answer)
                continue
            record = wish.record
            draft = Draft(record.due_ms, record.topic, encode(record), wish.key, wish.fingerprint)
            reason = message = 0
            try:
                (placed,) = commit.put([draft])
                message = placed.id if isinstance(placed, Replayed) else placed
            except Refused as error:
                self.traffic.refused += 1
                log.info("publish refused: %s", error)
                reason = Reason.QUOTA_EXCEEDED
            if answer is not None:
                answers.append((answer, reason, message))
        return answers

    def _place_live(self, commit: Commit, wish: Wish, answer: Answer | None) -> None:
        """Not stored: it takes a position like all and waits for the horizon in RAM."""
        place = Position(commit.horizon.clock_ms << 48 | commit.horizon.issue())
        message = Message(place, -1, wish.record, at_of(place))
        handed = None
        if answer is not None:

            def handed(matched: int) -> None:
                answer(0 if matched else Reason.NO_MATCHING_SUBSCRIBERS, 0)

        self._dispatch.add_live(message, handed)

    def _is_to_store(self, wish: Wish) -> bool:
        """Persist only what somebody can replay; what is delayed or keyed, always."""
        if wish.is_scheduled or wish.key:
            return True
        record = wish.record
        if not record.qos:
            return False
        replay = self.config.replay
        if record.qos >= replay.min_qos and replay.filters:
            topic = record.topic.decode()
            if any(matches(pattern, topic) for pattern in replay.filters):
                return True
        return any(
            any(s.qos for s in subscriptions) and _can_replay(subscriber)
            for subscriber, subscriptions in self.router.route(record.topic).items()
        )

    def _answer_all(self, wishes: Sequence[tuple[Wish, Answer | None]], reason: Reason) -> None:
        self.traffic.refused += len(wishes)
        for _, answer in wishes:
            if answer is not None:
                answer(reason, 0)

    def _submit(self, decide: Callable[[Commit], None], done: Callable[[bool], None]) -> None:
        try:
            self._writer.submit(decide, lambda answer: done(not isinstance(answer, Exception)))
        except (Busy, StoreFailed) as error:
            log.warning("session not stored: %s", error)
            done(False)


_UNAVAILABLE = Reason.IMPLEMENTATION_SPECIFIC_ERROR


def _can_replay(subscriber: Subscriber) -> bool:
    session, link = subscriber.session, subscriber.link
    if session.is_persistent or not session.tailing:
        return True
    return link is None or not link.has_room or not session.has_room


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


def _ignore(_: bool) -> None:
    """The next group, or the next heartbeat, says it again."""
