"""A session in the server: where it stands on the timeline, and the connection it has at the moment.

QoS 2 to a session that outlives its connection must be known to the disk before it is on the wire: the
packet id and the position. Such a delivery waits at the *gate* until a group with the session's cursor is
durable, and what comes after it waits behind it, so that order holds.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from shards.record import Record
from timeline.asked import Asked
from timeline.session import Flight, Session, Subscription

from .message import Message


class Will(msgspec.Struct, frozen=True):
    """A record to publish, and how many seconds after the connection has ended."""

    record: Record
    delay_s: int


STORE_FAILED = 0x83
GATE_MAX = 1_000
"""Deliveries that may wait for a sync; beyond it the session falls behind."""


Waiting = tuple[Message, int, int, tuple[Subscription, ...], bool]
"""(message, QoS, packet id, subscriptions, is retained): a delivery at the gate."""


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
        is_retained: bool = False,
        is_first: bool = False,
    ) -> None:
        """`is_retained`: sent because of a SUBSCRIBE, not because it was just published. `is_first`: to
        this client for the first time, whatever the attempt."""

    def release(self, packet_id: int) -> None:
        """Send PUBREL: the subscriber has said that the message is there."""


class Subscriber:
    """Session and link. `link` is None while the client is away."""

    __slots__ = (
        "asked",
        "connected_ms",
        "delivered",
        "dirty",
        "gate",
        "groups",
        "is_gate_planned",
        "is_ready",
        "is_stored",
        "left_ms",
        "link",
        "resends",
        "secure",
        "session",
        "stored_at",
        "stored_changes",
        "unanswered",
        "will",
        "will_id",
    )

    is_group = False

    def __init__(
        self,
        session: Session,
        dirty: "set[Subscriber]",
        secure: "Secure",
    ) -> None:
        self.session = session
        self.dirty = dirty
        """The server's set of those whose cursor on disk is behind."""
        self.secure = secure
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
        self.asked = Asked()
        """Subscriptions whose retained messages are still to be sent."""
        self.unanswered = 0
        """SUBSCRIBEs whose SUBACK is not out: before that nothing is read on."""
        self.gate: deque[Waiting] = deque()
        self.is_gate_planned = False
        self.groups: dict[str, Subscriber] = {}
        """The shared subscriptions that it is a member of, by the filter as it was subscribed to."""
        self.will: Will | None = None
        """What to publish if the connection ends without a word."""
        self.will_id = 0
        """The delayed will that waits on the timeline, while the client is away."""
        self.left_ms = 0
        self.connected_ms = 0
        self.delivered = 0

    @property
    def is_reachable(self) -> bool:
        """Somebody could be sent something."""
        return self.link is not None

    @property
    def can_resend(self) -> bool:
        """Whether there is room to send one more message again."""
        link, session = self.link, self.session
        if link is None or not link.has_room:
            return False
        return len(session.flights) - len(self.resends) < session.window

    def offer(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:
        """Send a message that these subscriptions match; False if there is no room for it now.

        Written for speed, as it runs for each delivery: the usual case, one subscription of QoS 0 or 1 that
        nothing is peculiar about, is spelled out; it is `_send` without a gate.
        """
        link = self.link
        if link is None or not link.has_room:
            return False
        first = subscriptions[0]
        qos = message.record.qos
        if first.qos < qos:
            qos = first.qos
        if qos == 2 or self.gate or first.no_local or len(subscriptions) > 1:
            return self._offer_peculiar(message, subscriptions)
        packet_id = 0
        if qos:
            session = self.session
            if len(session.flights) >= session.window:
                return False
            packet_id = session.take(message.position, message.shard, 1)
        self.delivered += 1
        self.dirty.add(self)
        link.send(message, qos, packet_id, subscriptions, 1)
        return True

    def _offer_peculiar(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:
        if len(self.gate) >= GATE_MAX:
            return False
        if subscriptions[0].no_local or len(subscriptions) > 1:
            subscriptions = self._theirs(message, subscriptions)
            if not subscriptions:
                return True
        return self._send(message, subscriptions, is_retained=False)

    @property
    def can_take_retained(self) -> bool:
        """Whether it is worth while to load a retained message: a window that is full is seen only then."""
        link = self.link
        return link is not None and link.has_room and len(self.gate) < GATE_MAX

    def offer_retained(self, message: Message, subscription: Subscription) -> bool:
        """Send a retained message to a subscription that asked; False if there is no room for it now.

        The caller has looked whether it `can_take_retained`.
        """
        if subscription.no_local and not self._theirs(message, (subscription,)):
            return True
        return self._send(message, (subscription,), is_retained=True)

    def resend(self, message: Message, flight: Flight, subscriptions: tuple[Subscription, ...]) -> None:
        """Send again what was in flight when the last connection ended."""
        assert self.link is not None
        flight.attempts += 1
        self.dirty.add(self)
        if flight.is_retained:
            self.link.send(message, flight.qos, flight.packet_id, subscriptions, flight.attempts, True)
        else:
            self.link.send(message, flight.qos, flight.packet_id, subscriptions, flight.attempts)

    def release(self, flight: Flight) -> None:
        """Send PUBREL (again): the client has said that the message is there."""
        if self.link is not None:
            self.link.release(flight.packet_id)

    def _send(self, message: Message, subscriptions: tuple[Subscription, ...], *, is_retained: bool) -> bool:
        session = self.session
        qos = message.record.qos
        best = max(s.qos for s in subscriptions) if len(subscriptions) > 1 else subscriptions[0].qos
        qos = min(qos, best)
        packet_id = 0
        if qos:
            if not session.has_room:
                return False
            packet_id = session.take(message.position, message.shard, qos)
            if is_retained:
                session.flights[packet_id].is_retained = True
        self.delivered += 1
        self.dirty.add(self)
        if self.gate or (qos == 2 and session.is_persistent):
            self.gate.append((message, qos, packet_id, subscriptions, is_retained))
            self._plan_gate()
            return True
        assert self.link is not None
        if is_retained:
            self.link.send(message, qos, packet_id, subscriptions, 1, True)
        else:
            self.link.send(message, qos, packet_id, subscriptions, 1)
        return True

    def send_shared(
        self,
        message: Message,
        qos: int,
        subscriptions: tuple[Subscription, ...],
        group: tuple[object, int],
        *,
        attempt: int,
    ) -> None:
        """Send as a member of a group that has chosen this one: its window and link have room."""
        assert self.link is not None
        packet_id = 0
        if qos:
            packet_id = self.session.take(message.position, message.shard, qos)
            self.session.flights[packet_id].group = group
            self.dirty.add(self)
        self.delivered += 1
        if self.gate or (qos == 2 and self.session.is_persistent):
            self.gate.append((message, qos, packet_id, subscriptions, False))
            self._plan_gate()
        elif attempt > 1:
            self.link.send(message, qos, packet_id, subscriptions, attempt, False, True)
        else:
            self.link.send(message, qos, packet_id, subscriptions, 1)

    def bound(self) -> "Iterable[Subscriber]":
        """Whose cursors go with this one's: its groups, or a group's members."""
        return self.groups.values()

    def _theirs(self, message: Message, subscriptions: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
        """Without those that do not want the client's own publishes."""
        if message.record.publisher != self.session.client_id.encode()[:255]:
            return subscriptions
        return tuple(s for s in subscriptions if not s.no_local)

    def _plan_gate(self) -> None:
        """Have the cursor made durable, then open the gate for what waited when it was written."""
        if self.is_gate_planned:
            return
        self.is_gate_planned = True
        link = self.link

        def opened(waiting: int) -> None:
            self.is_gate_planned = False
            if self.link is not link or link is None:
                if self.gate:
                    self._plan_gate()
                return
            if waiting < 0:
                link.close(STORE_FAILED)
                return
            for _ in range(min(waiting, len(self.gate))):
                message, qos, packet_id, subscriptions, is_retained = self.gate.popleft()
                link.send(message, qos, packet_id, subscriptions, 1, is_retained)
            if self.gate:
                self._plan_gate()

        self.secure(self, opened)


Secure = Callable[[Subscriber, Callable[[int], None]], None]
"""Makes a cursor durable, then calls back with how many waited at the gate when it was written (< 0: the
store has failed)."""
