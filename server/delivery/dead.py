"""Messages that nobody acks: after `sessions.max_attempts` deliveries they go to `$dead/...`.

There whoever subscribes is told of them, by a copy; the message itself becomes a dead letter, which waits for
somebody to send it again or to drop it (letters.py). Both, and the end of the delivery, are decided in the
writer and written in one batch, so that a crash leaves the message in flight or dead, never both and never
neither. Until then it stays in flight,
and an ack that comes in between wins.

One that the writer does not take, or that has no place there, is tried again a second later, when the store
can be written: its session goes on meanwhile. What waits so is in flight, and bounded with that.
"""

import logging

import msgspec

from shards.commit import Commit
from shards.errors import StoreFailed
from shards.properties import user_property
from shards.record import Record
from timeline.filters import TOPIC_BYTES_MAX
from timeline.horizon import Horizon
from timeline.session import Flight

from ..clock import Clock
from ..logs import by, shown
from ..writer import Busy, Writer
from .cursors import Cursors
from .letters import Letters
from .membership import Membership
from .message import Message
from .publishing import Publishing, Wish
from .ready import Ready
from .subscriber import Subscriber

log = logging.getLogger(__name__)

_NOT_IN_LEVEL = str.maketrans({character: f"%{ord(character):02X}" for character in "%/+#"})
"""A client id may hold what a level of a topic may not."""
RETRY_S = 1.0
RETRIES = 250
"""Burials that are tried again in one step."""


class Dead:
    """Where poison messages go."""

    def __init__(
        self,
        horizon: Horizon,
        cursors: Cursors,
        groups: Membership,
        ready: Ready,
        publishing: Publishing,
        letters: Letters,
        writer: Writer,
        clock: Clock,
        *,
        node: int,
    ) -> None:
        self._horizon = horizon
        self._cursors = cursors
        self._groups = groups
        self._ready = ready
        self._publishing = publishing
        self._letters = letters
        self._writer = writer
        self._clock = clock
        self._node = node
        self._refused: dict[tuple[Subscriber, int], Flight] = {}
        self._retry_at = 0.0

    def __len__(self) -> int:
        """How many messages wait to be tried again."""
        return len(self._refused)

    def step(self) -> None:
        """Try those again that could not be buried."""
        if not self._refused or self._writer.broken is not None or self._clock.mono() < self._retry_at:
            return
        for _ in range(min(RETRIES, len(self._refused))):
            waiting = next(iter(self._refused))
            flight, subscriber = self._refused.pop(waiting), waiting[0]
            if subscriber.session.flights.get(flight.packet_id) is flight:
                self._send_again(subscriber, flight)

    def bury(self, subscriber: Subscriber, message: Message, flight: Flight) -> None:
        """Move a message from a session's or group's flights to `$dead`. Until that is durable it stays."""
        attempts = message.attempts_before + flight.attempts
        reason = f"not acked after {attempts} deliveries"
        wish = Wish(_record(subscriber, message, reason))
        session = subscriber.session
        gone = 0

        def decide(commit: Commit) -> bool | None:
            nonlocal gone
            if session.flights.get(flight.packet_id) is not flight:
                return None  # acked meanwhile
            if self._publishing.place(commit, wish) is None:
                return False
            gone = self._letters.bury(commit, subscriber, message, attempts, reason)
            self._groups.give_up(subscriber, flight)
            self._cursors.store(commit, subscriber)
            return True

        def done(answer: object) -> None:
            if answer is True:
                self._letters.note_buried(gone)
                name = shown(subscriber.name)
                log.warning(
                    "%s: message %s not acked, moved to %s",
                    name,
                    message.id_text(self._node),
                    shown(wish.record.topic),
                    extra=by(name),
                )
                self._groups.read_on(subscriber)
            elif answer is not None and session.flights.setdefault(flight.packet_id, flight) is flight:
                session.retired.pop(flight.packet_id, None)
                self._later(subscriber, flight, answer or "there is no room for it")

        try:
            self._writer.submit(decide, done)
        except (Busy, StoreFailed) as error:
            self._later(subscriber, flight, error)

    def _send_again(self, subscriber: Subscriber, flight: Flight) -> None:
        """It is to be sent again, or buried, before anything new."""
        subscriber.session.fall_behind(self._horizon.position)
        subscriber.session.resends.add(flight, flight.position)
        self._ready.wake(subscriber)

    def _later(self, subscriber: Subscriber, flight: Flight, why: object) -> None:
        name = shown(subscriber.name)
        log.warning("%s: a message that is not acked stays: %s", name, why, extra=by(name))
        self._refused[subscriber, flight.packet_id] = flight
        self._retry_at = self._clock.mono() + RETRY_S


def _record(subscriber: Subscriber, message: Message, reason: str) -> Record:
    """The copy that tells of it."""
    topic = f"$dead/{subscriber.name.translate(_NOT_IN_LEVEL)}/".encode() + message.record.topic
    if len(topic) > TOPIC_BYTES_MAX:
        topic = topic[: TOPIC_BYTES_MAX - 3].decode(errors="ignore").encode()
    told = user_property("fasti-dead-reason", reason)
    return msgspec.structs.replace(
        message.record,
        topic=topic,
        retain=False,
        due_ms=0,
        id=0,
        key=b"",
        owner=b"",  # the server's own, to a topic that nobody else may send to
        retry=None,
        deliver_to=b"",  # it tells of the message, and is not posted
        properties=message.record.properties + told,
    )
