"""A client in the model, which comes to what it was sent when the test says so."""

from collections.abc import Callable
from itertools import count
from typing import Protocol

from server.codec import wire
from server.codec.packets import Ack, Packet
from server.codec.reasons import Reason
from server.delivery.link import Closing
from server.delivery.message import Message
from server.delivery.subscriber import Subscriber
from tests.support.link import FakeLink


class Receiver(Protocol):
    """Who is told of each delivery."""

    def delivered(
        self, client: "Client", message: Message, qos: int, packet_id: int, attempt: int
    ) -> None: ...


class Client:
    """A client on one connection, which behaves as server/mqtt/outbox.py does to the rest of the server.

    What was sent lies in `unread` until the client comes to it: (kind of packet, packet id). With the
    connection it is gone, and the client has not seen it.
    """

    level = 5
    _numbers = count(1)

    def __init__(self, client_id: str, receiver: Receiver, closed: Callable[["Client"], None]) -> None:
        self.client_id = client_id
        self.number = next(self._numbers)
        self.subscriber: Subscriber | None = None
        self.link = FakeLink(self._taken, self._released, self._ended)
        self.link.room = 0
        self.unread: list[tuple[int, int]] = []
        self.unresent: list[int] = []
        """Packet ids that have to be sent again before anything new, in order."""
        self._receiver = receiver
        self._closed = closed

    @property
    def is_closed(self) -> bool:
        return bool(self.link.closed)

    @property
    def is_open(self) -> bool:
        return self.subscriber is not None and not self.is_closed

    def open(self, subscriber: Subscriber) -> None:
        """CONNACK has come: from now on there is room for messages."""
        self.subscriber = subscriber
        self.unresent = list(subscriber.session.flights)
        self.link.room = None

    def _taken(self, message: Message, qos: int, packet_id: int, attempt: int) -> None:
        if qos:
            self.unread.append((wire.PUBLISH, packet_id))
        self._receiver.delivered(self, message, qos, packet_id, attempt)

    def _released(self, packet_id: int) -> None:
        if packet_id in self.unresent:
            del self.unresent[: self.unresent.index(packet_id) + 1]
        self.unread.append((wire.PUBREL, packet_id))

    def _ended(self) -> None:
        self.link.room = 0
        self._closed(self)

    # -- what acks are answered with

    def put(self, packet: Packet) -> None:
        assert isinstance(packet, Ack)
        assert packet.kind == wire.PUBREL
        self.unread.append((wire.PUBREL, packet.packet_id))

    def close(self, why: Closing) -> None:
        if not self.is_closed:
            self.link.close(why)

    def refuse(self, reason: Reason, why: str) -> None:
        raise AssertionError(f"the server refuses a correct client: {why}")
