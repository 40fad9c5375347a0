"""A session in the server: its read position on the timeline, and its current connection."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from shards.delivery_rows import whose
from shards.fields import Record
from timeline.filters import matches
from timeline.position import Position, at_of, seq_of
from timeline.retained_queue import RetainedQueue
from timeline.session import SETTLED, Flight, Loan, Session, Subscription

from .link import PERHAPS, Closing, Link
from .message import Message, publisher_of
from .place_rows import PlaceRows
from .place_state import CursorState, Presence, WillState
from .run import Run
from .terms import NEXT, OnDead
from .tries import tries_of_flight
from .write_barrier import Secured, WriteBarrier

log = logging.getLogger(__name__)


class Rights(Protocol):
    """What a client may do; it may change at any time."""

    @property
    def name(self) -> str:
        """Whose they are; empty: nobody's in particular."""

    @property
    def key(self) -> str:
        """The name, if a key has proven it; else empty."""

    @property
    def is_live(self) -> bool:
        """False: its key has been revoked."""

    @property
    def may_connect(self) -> bool:
        """False: that, or its key's clients may not have its client id any more."""

    def may_publish(self, topic: bytes) -> bool: ...

    def may_receive(self, topic: bytes) -> bool: ...

    def may_subscribe(self, topic_filter: str) -> bool: ...

    def may_receive_all(self, topic_filter: str) -> bool: ...

    def may_receive_some(self, topic_filter: str) -> bool: ...


class Subscriber:
    """Session and link. `link` is None while the client is away."""

    __slots__ = (
        *("_whose", "barrier", "barrier_bytes", "cursor", "delivered", "dirty", "doubt", "failed"),
        *("groups", "incarnation", "is_ready", "link", "owner", "presence", "reads_next", "redelivered"),
        *("retained_queue", "rights", "rows", "secure", "session", "unanswered", "wills"),
    )

    is_group = False
    is_endpoint = False
    """It gets what says that it is delivered there, whatever the topic."""
    is_inside = False
    """A part of the server, not a client: it is in no table and ends with its link."""

    def __init__(
        self,
        session: Session,
        dirty: "set[Subscriber]",
        secure: "Secure",
        barrier_bytes: int = 1 << 20,
        *,
        owner: str = "",
        rights: Rights | None = None,
        incarnation: int = 0,
    ) -> None:
        self.session = session
        self._whose = -1, b""
        """For which incarnation, and `whose`."""
        self.incarnation = incarnation
        """Number that tells it from earlier places of its name. 0: stored by a version without numbers."""
        self.rows = PlaceRows()
        self.cursor = CursorState()
        self.reads_next = False
        """Behind, with retries that are due: whether unread messages are next, or those."""
        self.dirty = dirty
        """The server's set of dirty sessions: the cursor on disk is behind."""
        self.secure = secure
        self.link: Link | None = None
        self.owner = owner
        """Name of the client's key; empty: none."""
        self.rights = rights
        """Rights of its client, here or away; None: everything, as no keys are needed."""
        self.is_ready = False
        """Waits in `Ready` for its turn to read on."""
        self.retained_queue = RetainedQueue()
        """Subscriptions whose retained messages are still to be sent."""
        self.unanswered = 0
        """Such SUBSCRIBEs whose SUBACK has not left: nothing new is read before."""
        self.barrier: WriteBarrier | None = None
        """Of its connection, once a delivery has had to wait; never of a group."""
        self.barrier_bytes = barrier_bytes
        """Bytes that may wait at the barrier."""
        self.groups: dict[str, Subscriber] = {}
        """Its shared subscriptions, by the filter as it was subscribed to."""
        self.wills = WillState()
        self.presence = Presence()
        self.doubt = Position(0)
        """What the client may have had before the server was killed: due before its ms, placed up to its seq.
        0: nothing. At QoS 1 only; at QoS 2 the cursor tells."""
        self.delivered = 0
        self.redelivered = 0
        """Number of redelivered messages."""
        self.failed = 0
        """Number of failed tries."""

    @property
    def whose(self) -> bytes:
        """What it is called in the rows of its deliveries."""
        if self._whose[0] != self.incarnation:
            self._whose = self.incarnation, whose(self.session.client_id, self.incarnation)
        return self._whose[1]

    def over(self) -> list[Position]:
        """Roots of its rows that have no effect any more. O(flights)."""
        return self.rows.ended(self.flying() if self.rows.out else set())

    def flying(self) -> set[Position]:
        """Roots of its deliveries that are in flight. O(flights)."""
        own = {
            one.position for one in self.session.flights.values() if one.loan is None and one.fate != SETTLED
        }
        return own.union([one.position for one in self.lent_alone()])

    @property
    def name(self) -> str:
        """What people call it: the client id; of a group its name, without the filter."""
        return self.session.client_id

    @property
    def filters(self) -> Iterable[str]:
        """Filters of the topics that it reads in the store. None of an endpoint: its messages stand in
        structure 0, whatever their topics."""
        return () if self.is_endpoint else self.session.subscriptions

    def lent_alone(self) -> Sequence[Flight]:
        """Of a group: QoS 2 deliveries, which only its members have in flight."""
        return ()

    def wants(self, place: Position, record: Record) -> bool:
        """Whether it subscribes to the message at this position."""
        topic = record.topic.decode()
        return any(
            one.since < place and matches(text, topic) for text, one in self.session.subscriptions.items()
        )

    @property
    def owners(self) -> frozenset[str]:
        """Names of its clients' keys."""
        return frozenset((self.owner,))

    def is_of(self, name: str) -> bool:
        """Whether it belongs to the key of that name."""
        return self.owners == {name}

    @property
    def on_dead(self) -> OnDead:
        """Of a group that orders: whether a dead letter holds its key, or lets it go on."""
        return NEXT

    def warn(self, topic: bytes, *, waits: bool = False) -> None:
        """Log that the group keeps back or passes over a message of this topic."""

    @property
    def is_reachable(self) -> bool:
        """Whether the session or a member is connected and has room."""
        return self.link is not None

    @property
    def is_here(self) -> bool:
        """Whether it, or one of the group's members, is connected."""
        return self.link is not None

    def goes_on(self) -> bool:
        """Whether something waits for the group that is not unread: a key that is free, a due retry."""
        return False

    @property
    def is_restricted(self) -> bool:
        """Whether `may_receive` depends on the topic."""
        return self.rights is not None

    @property
    def checks(self) -> int:
        """How many clients `may_receive` may have to ask."""
        return 1

    def may_receive(self, topic: bytes) -> bool:
        """Whether current rules allow it to receive messages of this topic."""
        return self.rights is None or self.rights.may_receive(topic)

    @property
    def has_held(self) -> bool:
        """Whether deliveries wait at the write barrier."""
        return self.barrier is not None and len(self.barrier.waiting) > 0

    @property
    def can_resend(self) -> bool:
        """Whether there is room to resend one more message."""
        link, session = self.link, self.session
        if link is None or not link.has_room:
            return False
        return len(session.flights) - len(session.resends) < session.window

    def offer(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:
        """Send a message that these subscriptions match; False if there is no room for it now.

        Written for speed, as it runs for each delivery. The usual case, one subscription of QoS 0 or 1
        without peculiarities, is inlined: it is `_send` without a write barrier.
        """
        link = self.link
        if link is None or not link.has_room:
            return False
        first = subscriptions[0]
        qos = message.qos
        if first.qos < qos:
            qos = first.qos
        barrier = self.barrier
        has_held = barrier is not None and len(barrier.waiting) > 0
        if qos == 2 or has_held or first.no_local or len(subscriptions) > 1 or self.doubt:
            return self._offer_peculiar(message, subscriptions)
        packet_id = 0
        if qos:
            session = self.session
            if len(session.flights) >= session.window:
                return False
            if not session.max_bytes:
                packet_id = session.take(message.position, message.shard, 1)
            elif session.flight_bytes < session.max_bytes:
                packet_id = session.take(message.position, message.shard, 1, message.body_bytes)
            else:
                return False
        self.delivered += 1
        self.dirty.add(self)
        link.send(message, qos, packet_id, subscriptions, 1)
        return True

    def find_room(self) -> int:
        """How many messages there may be room for. A group lets go of members without room."""
        return self.session.window - len(self.session.flights)

    def offer_run(self, run: Run, subscriptions: tuple[Subscription, ...]) -> int:
        """Send the first messages of a run; returns how many. Offer the rest one by one."""
        first = subscriptions[0]
        qos = min(first.qos, run.qos)
        if not first.is_plain or first.no_local or len(subscriptions) > 1 or not self.takes_run(run, qos):
            return 0
        self.dirty.add(self)
        flights = self.session.launch_run(run.addresses, 1) if qos else ()
        try:
            self.send_run(run, qos, flights)
        except Exception:
            self.close_failed()  # they are in flight, and are sent again on the next connection
        return len(run.addresses)

    def takes_run(self, run: Run, qos: int) -> bool:
        """Whether all of a run can be sent, without peculiarities of this subscriber."""
        link, session = self.link, self.session
        if link is None or qos == 2 or self.has_held or self.doubt or not link.has_room:
            return False
        if qos and (session.max_bytes or len(session.flights) + len(run.addresses) > session.window):
            return False
        return link.takes_run(run, qos)

    def send_run(self, run: Run, qos: int, flights: Sequence[Flight]) -> None:
        """Send a run that it takes. `flights`: its own, none at QoS 0."""
        assert self.link is not None
        self.delivered += len(run.addresses)
        self.link.send_run(run, qos, flights)

    def _offer_peculiar(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:
        if self.barrier is not None and self.barrier.is_full:
            return False
        if self.doubt and at_of(message.at or message.position) >= at_of(self.doubt) and not self.groups:
            self.doubt = Position(0)
        if subscriptions[0].no_local or len(subscriptions) > 1:
            subscriptions = self.theirs(message.record, subscriptions)
            if not subscriptions:
                return True
        return self._send(message, subscriptions, is_retained=False)

    @property
    def can_take_retained(self) -> bool:
        """Whether to load a retained message. A full window shows only then."""
        link = self.link
        is_full = self.barrier is not None and self.barrier.is_full
        return link is not None and link.has_room and not is_full

    def offer_retained(self, message: Message, subscription: Subscription) -> bool:
        """Send a retained message to a new subscription; False if there is no room for it now. The caller has
        checked `can_take_retained`."""
        if subscription.no_local and not self.theirs(message.record, (subscription,)):
            return True
        return self._send(message, (subscription,), is_retained=True)

    def resend(self, message: Message, flight: Flight, subscriptions: tuple[Subscription, ...]) -> bool:
        """Resend a message that was in flight when the last connection ended; False: no room."""
        assert self.link is not None
        flight.begin_again(message.as_of_ms, self.presence.ended_ms)
        self.redelivered += 1
        self.session.weigh(flight, self._weight(message))
        self.dirty.add(self)
        if flight.losses is not None and flight.losses.known and message.asked_ms:
            tries = tries_of_flight(message.tries, flight, self.name)
            message = message.tried(flight.attempts - 1, tries)
        qos, is_retained = flight.qos, flight.is_retained
        self.link.send(message, qos, flight.packet_id, subscriptions, flight.attempts, is_retained)
        return True

    def _send(self, message: Message, subscriptions: tuple[Subscription, ...], *, is_retained: bool) -> bool:
        session = self.session
        qos = min(message.qos, max([one.qos for one in subscriptions]))
        packet_id = 0
        if qos:
            if not session.has_room:
                return False
            packet_id = session.take(message.position, message.shard, qos, self._weight(message))
            if is_retained:
                session.flights[packet_id].is_retained = True
        self.dirty.add(self)
        self.send(message, qos, packet_id, subscriptions, is_retained=is_retained)
        return True

    def send(
        self,
        message: Message,
        qos: int,
        packet_id: int,
        subscriptions: tuple[Subscription, ...],
        attempt: int = 1,
        *,
        is_retained: bool = False,
    ) -> None:
        """Send what is in flight, or at QoS 0 with packet id 0, or hold it at the write barrier. The link has
        room. `attempt`: of all who were sent it; its client may have had it before if that is in doubt."""
        link = self.link
        assert link is not None
        self.delivered += 1
        is_first = not self.doubt or is_retained or not self._is_doubted(message, qos)
        if attempt == 1 and not is_first:
            attempt = PERHAPS
        if self.has_held or (qos == 2 and self.session.is_persistent):
            self._hold(
                message,
                partial(link.send, message, qos, packet_id, subscriptions, attempt, is_retained, is_first),
            )
        else:
            link.send(message, qos, packet_id, subscriptions, attempt, is_retained, is_first)

    def borrow(self, message: Message, qos: int, loan: Loan) -> Flight:
        """Take a message from a group into flight; the window has room."""
        session = self.session
        flight = session.launch(message.position, message.shard, qos)
        if session.max_bytes:
            session.weigh(flight, message.body_bytes)
        flight.loan = loan
        self.dirty.add(self)
        if qos == 2:
            self.cursor.is_entangled = True
        return flight

    def borrow_run(self, run: Run, share: str, lent: Sequence[Flight], since_s: float) -> Sequence[Flight]:
        """`borrow` of a run at QoS 1 that it takes. `lent`: the group's own flights."""
        flights = self.session.launch_run(run.addresses, 1)
        for flight, own in zip(flights, lent, strict=True):
            flight.loan = loan = Loan(share, own)
            loan.since_s = since_s
        self.dirty.add(self)
        return flights

    def _weight(self, message: Message) -> int:
        """Bytes of a message in flight; 0 where they are not bounded."""
        return message.body_bytes if self.session.max_bytes else 0

    def _is_doubted(self, message: Message, qos: int) -> bool:
        """Whether the client may have had the message before the server was killed."""
        doubt, place = self.doubt, message.at or message.position
        return qos == 1 and at_of(place) < at_of(doubt) and seq_of(place) <= seq_of(doubt)

    def close_failed(self) -> None:
        """In an exception handler: sending failed, so the connection ends."""
        log.exception("%r: cannot be sent messages", self.session.client_id)
        if self.link is not None:
            self.link.close(Closing.FAILED)

    def bound(self) -> "Iterable[Subscriber]":
        """Subscribers whose cursors go with this one's: its groups, or a group's members."""
        return self.groups.values()

    def theirs(self, record: Record, subscriptions: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
        """The subscriptions without those that do not want the client's own publishes."""
        if record.publisher != publisher_of(self.session.client_id):
            return subscriptions
        return tuple(s for s in subscriptions if not s.no_local)

    def _hold(self, message: Message, send: Callable[[], None]) -> None:
        """Hold a delivery at the write barrier."""
        if self.barrier is None:
            assert self.link is not None
            self.barrier = WriteBarrier(self.link, self.barrier_bytes, partial(self.secure, self))
        self.barrier.hold(message, send)

    def drop_barrier(self) -> None:
        """The connection has ended."""
        barrier, self.barrier = self.barrier, None
        if barrier is not None:
            barrier.close()


def names_of(place: Subscriber) -> tuple[str, str, int]:
    """Its names in the rows of its deliveries, and its incarnation."""
    return place.session.client_id, place.name, place.incarnation


def keeper_of(place: Subscriber) -> str:
    """The key that all its clients use; empty: none, or several."""
    owners = place.owners
    return min(owners) if len(owners) == 1 else ""


class Inside(Subscriber):
    """A member of a group that is a part of the server and acks for somebody else.

    It is given at once what its link has room for: that is its capacity. It is sent a stored message at QoS 1
    at least, so that whoever takes it can be waited for.
    """

    __slots__ = ("keeps_overdue",)

    is_inside = True

    def __init__(
        self,
        session: Session,
        secure: "Secure",
        *,
        keeps_overdue: bool,
        owner: str = "",
        rights: Rights | None = None,
    ) -> None:
        """`keeps_overdue`: what it has not acked in time stays under its packet id, for a late ack."""
        super().__init__(session, set(), secure, owner=owner, rights=rights)
        self.keeps_overdue = keeps_overdue


Secure = Callable[[Subscriber, Secured], None]
"""Makes a cursor durable, then calls back."""
