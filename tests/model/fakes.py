"""A client's connection that takes as much as it is told to."""

from collections.abc import Callable
from typing import Protocol

from server.codec import wire
from server.codec.packets import Ack, Packet
from server.codec.reasons import Reason
from server.delivery.message import Message
from server.delivery.subscriber import Closing, Subscriber
from timeline.session import Subscription


class Receiver(Protocol):
    """Who is told of each delivery."""

    def delivered(
        self, link: "FakeLink", message: Message, qos: int, packet_id: int, attempt: int
    ) -> None: ...


class FakeLink:
    """One connection of a client, as server/mqtt/outbox.py behaves to the rest of the server.

    What was sent lies in `unread` until the client comes to it: (kind of packet, packet id). With the
    connection it is gone, and the client has not seen it.
    """

    level = 5
    is_limited = False

    def __init__(self, client_id: str, receiver: Receiver, closed: Callable[["FakeLink"], None]) -> None:
        self.client_id = client_id
        self.subscriber: Subscriber | None = None
        self.room: int | None = None
        """How many more messages the socket takes; None: any number."""
        self.is_closed = False
        self.unread: list[tuple[int, int]] = []
        self.unresent: list[int] = []
        """Packet ids that have to be sent again before anything new, in order."""
        self._receiver = receiver
        self._closed = closed

    @property
    def is_open(self) -> bool:
        return self.subscriber is not None and not self.is_closed

    @property
    def has_room(self) -> bool:
        return self.is_open and self.room != 0

    def close(self, why: Closing) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._closed(self)

    def send(
        self,
        message: Message,
        qos: int,
        packet_id: int,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
        is_retained: bool = False,
        is_first: bool = False,
    ) -> None:
        if self.room:
            self.room -= 1
        if qos:
            self.unread.append((wire.PUBLISH, packet_id))
        self._receiver.delivered(self, message, qos, packet_id, attempt)

    def release(self, packet_id: int) -> None:
        if packet_id in self.unresent:
            del self.unresent[: self.unresent.index(packet_id) + 1]
        self.unread.append((wire.PUBREL, packet_id))

    # -- what acks are answered with

    def put(self, packet: Packet) -> None:
        assert isinstance(packet, Ack)
        assert packet.kind == wire.PUBREL
        self.unread.append((wire.PUBREL, packet.packet_id))

    def refuse(self, reason: Reason, why: str) -> None:
        raise AssertionError(f"the server refuses a correct client: {why}")
