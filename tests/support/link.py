"""A connection to nobody, as server/delivery/ sees one: it keeps what it is sent."""

from collections.abc import Callable, Sequence

from server.delivery.link import Closing
from server.delivery.message import Message
from server.delivery.run import Run
from timeline.session import Flight, Subscription

Taken = Callable[[Message, int, int, int], None]
"""Told of each delivery: message, QoS, packet id (0 at QoS 0), attempt."""


def _unseen(message: Message, qos: int, packet_id: int, attempt: int) -> None:
    """Nobody looks at deliveries as they come."""


def _unexpected(packet_id: int) -> None:
    raise AssertionError(f"packet id {packet_id} is released, nothing here is QoS 2")


def _unheeded() -> None:
    """Nobody waits for the end."""


class FakeLink:
    """Implements `Link`. Acks are left to whoever has it."""

    is_limited = False

    def __init__(
        self,
        taken: Taken = _unseen,
        released: Callable[[int], None] = _unexpected,
        ended: Callable[[], None] = _unheeded,
    ) -> None:
        """`released`: told of each PUBREL; `ended`: called when it is closed for the first time."""
        self.sent: list[Message] = []
        self.packet_ids: list[int] = []
        self.closed: list[Closing] = []
        self.room: int | None = None
        """How many more messages the socket takes; None: any number."""
        self._taken = taken
        self._released = released
        self._ended = ended

    @property
    def topics(self) -> list[str]:
        return [message.record.topic.decode() for message in self.sent]

    @property
    def has_room(self) -> bool:
        return self.room != 0

    def takes(
        self,
        message: Message,
        qos: int,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
    ) -> bool:
        return True

    def close(self, why: Closing) -> None:
        self.closed.append(why)
        if len(self.closed) == 1:
            self._ended()

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
        self.sent.append(message)
        self.packet_ids.append(packet_id)
        self._taken(message, qos, packet_id, attempt)

    def takes_run(self, run: Run, qos: int) -> bool:
        return self.room is None

    def send_run(self, run: Run, qos: int, flights: Sequence[Flight]) -> None:
        ids = [flight.packet_id for flight in flights] or [0] * len(run)
        for message, packet_id in zip(run.messages, ids, strict=True):
            self.send(message, qos, packet_id, (), 1)

    def release(self, packet_id: int) -> None:
        self._released(packet_id)
