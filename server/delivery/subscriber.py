"""A session in the server, and its current connection."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b

from timeline.position import at_of
from timeline.retained_queue import RetainedQueue
from timeline.session import Flight, Loan, Session, Subscription

from ..auth.rights import Rights
from .link import PERHAPS, Closing, Link
from .message import Message
from .place import Persist, Place
from .place_state import WillState
from .run import Run
from .tries import tries_of_flight
from .write_barrier import WriteBarrier


def holder_of(owner: str, token: str) -> int:
    """What stands for a client in the cursors of groups, above 0: the name of its key, and the token that it
    showed, or its client id."""
    return 1 | int.from_bytes(blake2b(f"{owner}\0{token}".encode(), digest_size=8).digest(), "big")


class Subscriber(Place):
    """Session and link. `link` is None while the client is away."""

    __slots__ = (
        *("barrier", "barrier_bytes", "groups", "holder", "link", "retained_queue", "persist"),
        *("unanswered", "wills"),
    )

    is_inside = False
    """A part of the server, not a client: it is in no table and ends with its link."""

    def __init__(
        self,
        session: Session,
        dirty: set[Place],
        persist: Persist,
        barrier_bytes: int = 1 << 20,
        owner: str = "",
        rights: Rights | None = None,
        incarnation: int = 0,
    ) -> None:
        super().__init__(session, dirty, owner, rights, incarnation)
        self.persist = persist
        self.link: Link | None = None
        self.retained_queue = RetainedQueue()
        """Subscriptions whose retained messages are still to be sent."""
        self.unanswered = 0
        """Such SUBSCRIBEs whose SUBACK has not left: nothing new is read before."""
        self.barrier: WriteBarrier | None = None
        """Write barrier of its connection; None until a delivery had to wait."""
        self.barrier_bytes = barrier_bytes
        """Bytes that may wait at the barrier."""
        self.groups: dict[str, Place] = {}
        """Its shared subscriptions, by the filter as it was subscribed to."""
        self.holder = 0
        """Messages of groups stay leased to its client under it while the server is away (`holder_of`). 0:
        none do."""
        self.wills = WillState()

    @property
    def is_reachable(self) -> bool:
        return self.link is not None

    @property
    def has_held(self) -> bool:
        """Whether deliveries wait at the write barrier."""
        return self.barrier is not None and len(self.barrier.waiting) > 0

    @property
    def can_resend(self) -> bool:
        link, session = self.link, self.session
        if link is None or not link.has_room:
            return False
        return len(session.flights) - len(session.resends) < session.window

    def offer(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:
        """Written for speed, as it runs for each delivery. The usual case, one subscription of QoS 0 or 1
        without peculiarities, is inlined: it is `_send` without a write barrier."""
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
            packet_id = session.launch(message.position, message.shard, 1).packet_id
        self.delivered += 1
        self.dirty.add(self)
        link.send(message, qos, packet_id, subscriptions, 1)
        return True

    def find_room(self) -> int:
        return self.session.window - len(self.session.flights)

    def offer_run(self, run: Run, subscriptions: tuple[Subscription, ...]) -> int:
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
        if qos and len(session.flights) + len(run.addresses) > session.window:
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
            self.end_doubt()
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
        assert self.link is not None
        flight.begin_again(message.as_of_ms, self.presence.ended_ms)
        self.redelivered += 1
        self.dirty.add(self)
        if flight.losses is not None and flight.losses.known and message.requested_ms:
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
            flight = session.launch(message.position, message.shard, qos)
            flight.is_retained, packet_id = is_retained, flight.packet_id
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
        is_first = attempt != PERHAPS and (
            not self.doubt or is_retained or not (qos == 1 and self.doubts(message))
        )
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
        flight = self.session.launch(message.position, message.shard, qos)
        flight.loan = loan
        if loan.flight is not None:
            loan.flight.holder = self.holder
        self.dirty.add(self)
        if qos == 2:
            self.cursor.is_entangled = True
        return flight

    def borrow_run(self, run: Run, share: str, lent: Sequence[Flight], since_s: float) -> Sequence[Flight]:
        """`borrow` of a run at QoS 1 that it takes. `lent`: the group's own flights."""
        flights = self.session.launch_run(run.addresses, 1)
        holder = self.holder
        for flight, own in zip(flights, lent, strict=True):
            flight.loan = loan = Loan(share, own)
            loan.since_s, own.holder = since_s, holder
        self.dirty.add(self)
        return flights

    def close_failed(self) -> None:
        super().close_failed()
        if self.link is not None:
            self.link.close(Closing.FAILED)

    def bound(self) -> Iterable[Place]:
        return self.groups.values()

    def _hold(self, message: Message, send: Callable[[], None]) -> None:
        """Hold a delivery at the write barrier."""
        if self.barrier is None:
            assert self.link is not None
            self.barrier = WriteBarrier(self.link, self.barrier_bytes, partial(self.persist, self))
        self.barrier.hold(message, send)

    def drop_barrier(self) -> None:
        """The connection has ended."""
        barrier, self.barrier = self.barrier, None
        if barrier is not None:
            barrier.close()


class Inside(Subscriber):
    """A member of a group that is a part of the server and acks for somebody else.

    It is given at once what its link has room for: that is its capacity. It is sent a stored message at QoS 1
    at least, so that whoever takes it can be waited for.
    """

    __slots__ = ("keeps_overdue",)

    is_inside = True

    def __init__(
        self, session: Session, persist: Persist, keeps_overdue: bool, rights: Rights | None = None
    ) -> None:
        """`keeps_overdue`: what it has not acked in time stays under its packet id, for a late ack."""
        super().__init__(session, set(), persist, owner="" if rights is None else rights.name, rights=rights)
        self.keeps_overdue = keeps_overdue
