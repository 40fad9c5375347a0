"""Values around an MQTT connection: target, messages, end reasons, reason codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypedDict, TypeVar

from .addresses import Broker
from .errors import Error, Problem, Refused
from .tls import Tls

R = TypeVar("R", bound=Refused)
T = TypeVar("T")

NEVER = 0xFFFF_FFFF
"""Session expiry interval that means: keep it as long as the server allows."""
ACK_TIMEOUT = "fasti-ack-timeout"
"""User property of a delivery: the time for which it is ours, ms, before another member gets it."""
MESSAGE_ID = "fasti-id"
RESULT = "result"
"""User property of an ack; those of a refusal begin with another."""
LEASE_MAX = timedelta(days=1)
"""A longer lease is no lease: the server grants 12 h."""

# A CONNACK with one of these may be different next time; all other refusals are final.
TRY_AGAIN = frozenset({0x80, 0x83, 0x88, 0x89, 0x97, 0x9F})
# A DISCONNECT with one of these means that coming back would be wrong: not authorized, session taken over,
# administrative action.
STAY_AWAY = frozenset({0x87, 0x8E, 0x98})
# "Use another server", "server moved": come back, but elsewhere.
ELSEWHERE = frozenset({0x9C, 0x9D})


def readable(text: str | None, read: Callable[[str], T], otherwise: T) -> T:
    """The value of a property from the wire, or `otherwise` if it is missing or unreadable. Other brokers
    pass on whatever a publisher sends."""
    try:
        return otherwise if text is None else read(text)
    except Exception:
        return otherwise


def fits(topic_filter: str, topic: str) -> bool:
    """Whether the filter matches the topic."""
    from paho.mqtt.client import topic_matches_sub  # a client of HTTP alone does not wait for paho

    return topic_matches_sub(topic_filter, topic)


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to connect. `expiry_s` > 0 makes the session outlive the connection. `token`: tells the
    server, on each connection, that it is us; empty: not needed."""

    broker: Broker
    tls: Tls
    client_id: str
    clean: bool
    expiry_s: int
    receive_maximum: int
    password: str | None = None
    token: str = ""
    keep_alive_s: int = 30
    timeout_s: float = 10.0


class OutPacket(TypedDict):
    """A packet on its way out, as paho keeps it."""

    command: int
    mid: int
    qos: int
    pos: int
    to_process: int
    packet: bytes | bytearray
    info: Any


UserProperties = tuple[tuple[str, str], ...]
"""User properties, in order."""


class Origin(Protocol):
    """The connection of a message, for its ack.

    `refusal`: user properties of a nack. None: done.
    """

    async def ack(self, incoming: Incoming, refusal: UserProperties | None = None) -> bool:
        """True: the ack has been written to it."""

    def send_ack(self, incoming: Incoming, refusal: UserProperties | None = None) -> None:
        """Without waiting for it."""

    async def extend(self, incoming: Incoming, span: str, **said: Any) -> bool:
        """True: the server holds it for us that long, an ISO 8601 duration from now on. Raises Refused,
        Ended. `said`: its progress."""


@dataclass(slots=True, eq=False, kw_only=True)
class Came:
    """A message, over MQTT or HTTP."""

    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    properties: UserProperties = ()
    content_type: str | None = None
    dup: bool = False

    def says(self, name: str) -> str | None:
        """The last user property of that name, because the server appends its own."""
        return next((value for own, value in reversed(self.properties) if own == name), None)

    @property
    def lease(self) -> timedelta | None:
        """How long this client holds the message; None: until the connection ends."""
        lease = readable(self.says(ACK_TIMEOUT), lambda text: timedelta(milliseconds=int(text)), None)
        return lease if lease and timedelta() < lease <= LEASE_MAX else None


@dataclass(slots=True, eq=False, kw_only=True, weakref_slot=True)
class Incoming(Came):
    """A received PUBLISH. Its ack must go out on `connection`; `ack` is the one that did or will.

    `arrived_s`: time by the event loop's clock. `numbers`: of the subscriptions that it matched.
    """

    mid: int
    connection: Origin
    ack: OutPacket | None = None
    arrived_s: float = 0.0
    numbers: tuple[int, ...] = ()

    @property
    def id(self) -> str | None:
        """The message's, the same at every delivery; None: it has none, or the server is not ours."""
        return self.says(MESSAGE_ID)

    def adopt(self, again: Incoming) -> None:
        """It was redelivered: an answer on an earlier connection is void."""
        self.connection, self.mid, self.ack = again.connection, again.mid, None
        self.arrived_s = again.arrived_s

    def is_again(self, earlier: Incoming) -> bool:
        """Whether this, under the same packet id, is the message that came earlier.

        The same packet id alone does not say so: another process may have had the session in between. Equal
        content of a plain message does neither ("tick"): there DUP has to say it.
        """
        ids = self.id, earlier.id
        alike = (self.topic, self.payload) == (earlier.topic, earlier.payload) and ids[0] == ids[1]
        return alike and (self.dup or ids[0] is not None)

    def is_overdue(self, now_s: float) -> bool:
        """Whether it has waited here longer than the server held it for us (`fasti-ack-timeout`, ms)."""
        lease = self.lease
        return lease is not None and now_s - self.arrived_s >= lease.total_seconds()


class Ended(Exception):
    """The connection is over. `error` is set when there is no point in coming back."""

    def __init__(self, reason: str, error: Error | None = None) -> None:
        super().__init__(reason)
        self.error = error


class SentOn(Refused):
    """A redirect to `reference` ("host:port"), if given. Final if there is none."""

    reference: str | None = None


def refused_or_sent_on(what: str, code: Any, reference: str | None) -> Refused:
    """A no that is final here."""
    if code.value not in ELSEWHERE:
        return refused(what, code)
    sent_on = refused(what, code, kind=SentOn)
    sent_on.reference = reference
    return sent_on


def refused(what: str, code: Any, why: str = "", kind: type[R] = Refused) -> R:  # type: ignore[assignment]
    """A no with a reason code; `why`: the reason string."""
    name = str(code)
    detail = f"{what}: {why or name} (0x{code.value:02X})"
    slug = "mqtt-" + name.lower().replace(" ", "-")
    return kind(detail, problem=Problem(slug=slug, detail=detail), reason_code=int(code.value))
