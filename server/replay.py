"""Sessions behind the horizon read on by themselves, in turns.

Who has been away, is slow, or asked for the past reads from its own position: from the tail while that
reaches back far enough, else from the store. A turn is bounded, so that one session with a million
messages to catch up on delays nobody; a session without room leaves the queue and comes back with its
next ack or when its socket takes data again. When a session's read position equals the horizon it joins
the tail, checked and joined without a pause in between.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from shards.fate import is_too_late
from shards.read import Reader
from shards.record import decode, is_stub, topic_of
from timeline.horizon import Horizon
from timeline.position import Position
from timeline.session import Flight, Subscription
from timeline.tail import Tail

from .group import Group
from .logs import shown
from .message import Message
from .mqtt.router import Router
from .retained import Retained
from .subscriber import Subscriber

log = logging.getLogger(__name__)

TURN_ROWS = 1_000


class Replay:
    """The queue of sessions that have something to read and room for it."""

    def __init__(
        self,
        reader: Reader,
        horizon: Horizon,
        tail: Tail[Message],
        router: Router,
        retained: Retained,
        *,
        max_attempts: int,
        bury: Callable[[Subscriber, Message, Flight], bool],
        wall_ms: Callable[[], int],
        dispatched_ms: Callable[[Position], int | None],
        wake: Callable[[], None],
    ) -> None:
        """`bury`: a message that a session has not acked after `max_attempts` deliveries (0: never); it ends
        its flight, or says False: not now."""
        self._reader = reader
        self._horizon = horizon
        self._tail = tail
        self._router = router
        self._retained = retained
        self._max_attempts = max_attempts
        self._bury = bury
        self._wall_ms = wall_ms
        self._dispatched_ms = dispatched_ms
        self._wake = wake
        self._ready: deque[Subscriber] = deque()
        self.lost = 0
        """Times that a session found its place dropped by retention."""
        self.flights_lost = 0
        """Messages in flight that retention dropped before they were acked."""

    @property
    def is_idle(self) -> bool:
        return not self._ready

    @property
    def floor(self) -> Position:
        """What is before this has been dropped by retention."""
        return self._reader.directory.floor

    def wake(self, subscriber: Subscriber) -> None:
        """The subscriber may have room, and may have something to read."""
        if subscriber.is_ready or not subscriber.is_reachable or subscriber.session.tailing:
            return
        subscriber.is_ready = True
        self._ready.append(subscriber)
        self._wake()

    def turn(self) -> None:
        """Let the next session in the queue read a bounded stretch."""
        if not self._ready:
            return
        subscriber = self._ready.popleft()
        subscriber.is_ready = False
        if not subscriber.is_reachable or subscriber.session.tailing:
            return  # it has joined the tail since it was woken: its own read position is old
        if self._read_on(subscriber):
            self.wake(subscriber)

    def begin(self, subscriber: Subscriber) -> None:
        """The session has a connection again: what was in flight goes first, in order."""
        session = subscriber.session
        session.fall_behind(self._horizon.position)
        subscriber.resends = deque(session.flights.values())
        if subscriber.resends or not session.join(self._horizon.position):
            self.wake(subscriber)

    def _resend(self, subscriber: Subscriber) -> bool:
        """Send again as much as the window takes; True when nothing is left to be sent again."""
        flights = subscriber.session.flights
        # What the client has acked meanwhile it had from its last connection.
        resends = deque(f for f in subscriber.resends if flights.get(f.packet_id) is f)
        subscriber.resends = resends
        while resends:
            if not subscriber.can_resend:
                return False
            flight = resends.popleft()
            subscriber.dirty.add(subscriber)
            if flight.phase:
                subscriber.release(flight)
                continue
            message = self._in_flight(flight)
            if message is None or self._is_over(message, flight):
                self._forget(subscriber, flight, message)
                continue
            if self._max_attempts and flight.attempts >= self._max_attempts:
                if not self._bury(subscriber, message, flight):
                    resends.appendleft(flight)
                    return False
                continue
            subscriber.resend(message, flight, self._asked(subscriber, message, flight))
        return True

    def _is_over(self, message: Message, flight: Flight) -> bool:
        """It has expired meanwhile. What was begun at QoS 2 is finished: [MQTT-4.3.3-7]."""
        return flight.qos == 1 and message.is_expired(self._wall_ms())

    def _forget(self, subscriber: Subscriber, flight: Flight, message: Message | None) -> None:
        """End a flight that cannot be sent again."""
        subscriber.session.ack(flight.packet_id)
        if message is None and flight.shard >= 0 and flight.position < self._reader.directory.floor:
            self.flights_lost += 1

    def _asked(self, subscriber: Subscriber, message: Message, flight: Flight) -> tuple[Subscription, ...]:
        """The subscriptions that a flight is due to: its group's, or the session's own that match."""
        if isinstance(flight.group, tuple) and isinstance(flight.group[0], Group):
            own = flight.group[0].members.get(subscriber)
            return () if own is None else (own,)
        return self._router.route(message.record.topic).get(subscriber, ())

    def _in_flight(self, flight: Flight) -> Message | None:
        """The message of a flight, from the timeline or, if it is there no more, from what is retained."""
        value = self._reader.value_at(flight.position, flight.shard) if flight.shard >= 0 else None
        if value is None:
            return self._retained.find(flight.position) if flight.shard >= 0 else None
        return None if is_stub(value) else self._message(flight.position, flight.shard, value)

    def _send_retained(self, subscriber: Subscriber) -> bool:
        """What was retained for new subscriptions; True when all of it has been sent."""
        while subscriber.retained:
            subscription, last = subscriber.retained[0]
            messages, more = self._retained.after(subscription.filter, last)
            for message in messages:
                if self._router.is_denied(message.record.topic.decode()):
                    continue
                if not subscriber.offer_retained(message, subscription):
                    return False
                subscriber.retained[0] = (subscription, message.record.topic)
            if more is None:
                subscriber.retained.popleft()
            else:
                subscriber.retained[0] = (subscription, more)
        return True

    def _read_on(self, subscriber: Subscriber) -> bool:
        """Read a stretch; True if there is more and room for it."""
        session, horizon = subscriber.session, self._horizon.position
        lost = self.flights_lost
        is_resent = self._resend(subscriber)
        if self.flights_lost > lost:
            gone = self.flights_lost - lost
            log.warning("%s: retention has dropped %d messages in flight", shown(session.client_id), gone)
        if not is_resent or not self._send_retained(subscriber):
            return False
        if session.read < self._reader.directory.floor and not self._tail.covers(session.read):
            session.read = self._reader.directory.floor
            self.lost += 1
            log.warning("%s has lost what expired before it was read", shown(session.client_id))
        subscriber.dirty.add(subscriber)
        count = 0
        for place, message in self._stretch(subscriber, session.read, horizon):
            count += 1
            if message is not None and not subscriber.offer(*message):
                session.read = Position(place - 1)
                return False
            session.read = place
        if count < TURN_ROWS:
            session.read = horizon
        return not session.join(self._horizon.position)

    def _stretch(
        self, subscriber: Subscriber, read: Position, horizon: Position
    ) -> Iterator[tuple[Position, tuple[Message, tuple[Subscription, ...]] | None]]:
        """The next positions behind `read`, each with the message if the subscriber is to get it."""
        wall_ms = self._wall_ms()
        if self._tail.covers(read):
            for place, message in self._tail.after(read, TURN_ROWS):
                found = self._wanted(subscriber, place, message.record.topic)
                is_wanted = (
                    found and not self._is_dropped(message, wall_ms) and not _is_missed(subscriber, message)
                )
                yield place, (message.as_of(wall_ms), found) if is_wanted else None
            return
        structures = self._reader.structures.overlapping(subscriber.session.subscriptions)
        rows = self._reader.read(Position(read + 1), Position(horizon + 1), structures)
        for place, shard, value in islice(rows, TURN_ROWS):
            found = () if is_stub(value) else self._wanted(subscriber, place, topic_of(value))
            if found:
                message = Message(place, shard, decode(value), wall_ms)
                yield place, None if self._is_dropped(message, wall_ms) else (message, found)
            else:
                yield place, None

    def _wanted(self, subscriber: Subscriber, place: Position, topic: bytes) -> tuple[Subscription, ...]:
        """Which of its subscriptions match the topic at this place; written for one, the usual case."""
        found = self._router.route(topic).get(subscriber, ())
        if not found or (len(found) == 1 and found[0].since < place):
            return found
        return tuple(s for s in found if s.since < place)

    def _is_dropped(self, message: Message, wall_ms: int) -> bool:
        """Expired by now, or dispatched so late that it was to be dropped."""
        record = message.record
        if record.expires_ms and message.is_expired(wall_ms):
            return True
        if not record.drop_late:
            return False
        dispatched_ms = self._dispatched_ms(message.position)
        return dispatched_ms is not None and is_too_late(message.due_ms, dispatched_ms)

    def _message(self, place: Position, shard: int, value: bytes) -> Message:
        return Message(place, shard, decode(value), self._wall_ms())


def _is_missed(subscriber: Subscriber, message: Message) -> bool:
    """QoS 0 that was not stored is for who was there, however long it stays in the tail."""
    return not message.is_stored and not message.record.qos and message.due_ms < subscriber.connected_ms
