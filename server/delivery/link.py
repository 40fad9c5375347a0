"""A connection as delivery sees it: implemented by protocols."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from timeline.session import Flight, Subscription

from .message import Message
from .run import Run

PERHAPS = 0
"""Which attempt a delivery is that the client may have had before the server was killed: sent with DUP."""


class Closing(Enum):
    """Why the server ends a connection."""

    TAKEN_OVER = auto()
    """The client has connected again."""
    DROPPED = auto()
    """The session was deleted."""
    STORE_FAILED = auto()
    """A write that the client waits for cannot be made durable."""
    FAILED = auto()
    """Sending failed: a fault of the server."""
    STOPPING = auto()
    """The server stops."""
    MOVED = auto()
    """This server no longer leads; another one serves the client."""
    TIMED_OUT = auto()
    """Keep alive timeout."""
    REVOKED = auto()
    """The key is no longer valid."""


class Link(Protocol):
    """A connection that messages can be sent on."""

    @property
    def has_room(self) -> bool:
        """False while the socket is full: send nothing and wait for a wake-up."""

    @property
    def is_limited(self) -> bool:
        """Whether the client limits the packet size."""

    def takes(
        self, message: Message, qos: int, subscriptions: tuple[Subscription, ...], attempt: int
    ) -> bool:
        """Whether the client takes a delivery of this size; `send` drops one that it does not."""

    def close(self, why: Closing) -> None:
        """Close the connection, and send the reason if the protocol has a way."""

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
        """`attempt`: counted from 1, or PERHAPS. `is_retained`: sent because of a SUBSCRIBE, not because it
        was just published. `is_first`: to this client for the first time, whatever the attempt."""

    def takes_run(self, run: Run, qos: int) -> bool:
        """Whether all of a run goes out as it is, and there is room behind it. False: send one by one."""

    def send_run(self, run: Run, qos: int, flights: Sequence[Flight]) -> None:
        """All of a run that it takes, for the first time; by no more than one subscription, one that says
        nothing but the run's lease.

        `flights`: one for each message, none at QoS 0.
        """

    def release(self, packet_id: int) -> None:
        """Send PUBREL: the subscriber has said that the message is there."""
