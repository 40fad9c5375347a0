"""A clock that is set and a link that takes as much as it is told to."""

from collections.abc import Callable
from typing import Protocol

from server.message import Message
from server.subscriber import Subscriber
from timeline.session import Subscription


class FakeClock:
    """Wall and monotonic time, moved by hand."""

    is_simulated = False

    def __init__(self, wall_ms: int) -> None:
        self.now_ms = wall_ms
        self.mono_s = 1_000.0

    def wall_ms(self) -> int:
        return self.now_ms

    def until(self, at_ms: int) -> float:
        return (at_ms - self.now_ms) / 1000

    def mono(self) -> float:
        return self.mono_s

    def step(self, by_ms: int) -> None:
        """The wall clock jumps by `by_ms`; monotonic time only elapses."""
        self.now_ms = max(1, self.now_ms + by_ms)
        self.mono_s += max(0.001, min(by_ms, 60_000) / 1000)


class Receiver(Protocol):
    """Who is told of each delivery."""

    def delivered(self, link: "FakeLink", message: Message, packet_id: int, attempt: int) -> None: ...


class FakeLink:
    """One connection of a client, as server/mqtt/state.py behaves to the rest of the server."""

    def __init__(self, client_id: str, receiver: Receiver, closed: Callable[["FakeLink"], None]) -> None:
        self.client_id = client_id
        self.subscriber: Subscriber | None = None
        self.room: int | None = None
        """How many more messages the socket takes; None: any number."""
        self.is_closed = False
        self.unresent: list[int] = []
        """Packet ids that have to be sent again before anything new, in order."""
        self._receiver = receiver
        self._closed = closed

    @property
    def has_room(self) -> bool:
        return self.subscriber is not None and not self.is_closed and self.room != 0

    def close(self, reason: int) -> None:
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
    ) -> None:
        assert self.has_room, "sent to a link without room"
        if self.room is not None:
            self.room -= 1
        self._receiver.delivered(self, message, packet_id, attempt)
