"""A session in the server: where it stands on the timeline, and the connection it has at the moment."""

from collections import deque
from typing import Protocol

from timeline.session import Flight, Session, Subscription

from .message import Message


class Link(Protocol):
    """A connection that messages can be sent on."""

    @property
    def has_room(self) -> bool:
        """False while the socket takes no more: send nothing, wait for a wake-up."""

    def close(self, reason: int) -> None:
        """End the connection: the session was taken over or dropped."""

    def send(
        self,
        message: Message,
        qos: int,
        packet_id: int,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
    ) -> None: ...


class Subscriber:
    """Session and link. `link` is None while the client is away."""

    __slots__ = (
        "connected_ms",
        "delivered",
        "dirty",
        "is_ready",
        "is_stored",
        "left_ms",
        "link",
        "resends",
        "session",
        "stored_at",
        "stored_changes",
    )

    def __init__(self, session: Session, dirty: "set[Subscriber]") -> None:
        self.session = session
        self.dirty = dirty
        """The server's set of those whose cursor on disk is behind."""
        self.link: Link | None = None
        self.is_ready = False
        """Waits in the replay queue."""
        self.stored_at = 0.0
        """When the cursor was last written, s of monotonic time."""
        self.stored_changes = -1
        """`session.changes` when the subscriptions were last written; -1: not as they are now."""
        self.is_stored = False
        """It has rows on disk."""
        self.resends: deque[Flight] = deque()
        """In flight from the last connection, not yet sent on this one."""
        self.left_ms = 0
        self.connected_ms = 0
        self.delivered = 0

    def offer(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:
        """Send a message that these subscriptions match; False if there is no room for it now."""
        link = self.link
        if link is None or not link.has_room:
            return False
        record, session = message.record, self.session
        qos = record.qos
        best = max(s.qos for s in subscriptions) if len(subscriptions) > 1 else subscriptions[0].qos
        qos = min(qos, best)
        packet_id = 0
        if qos:
            if not session.has_room:
                return False
            packet_id = session.take(message.position, message.shard, qos)
        self.delivered += 1
        self.dirty.add(self)
        link.send(message, qos, packet_id, subscriptions, 1)
        return True

    def resend(self, message: Message, flight: Flight, subscriptions: tuple[Subscription, ...]) -> None:
        """Send again what was in flight when the last connection ended."""
        assert self.link is not None
        flight.attempts += 1
        self.dirty.add(self)
        self.link.send(message, flight.qos, flight.packet_id, subscriptions, flight.attempts)
