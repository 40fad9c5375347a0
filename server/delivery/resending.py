"""Deliveries that were in flight when their connection ended: sent again, or ended."""

from collections.abc import Callable

from timeline.deliveries import EXPIRED
from timeline.delivery_rows import Event
from timeline.session import Flight, Subscription

from .awaited import Awaited
from .membership import Membership
from .message import Message
from .place import Place
from .ready import Progress
from .router import Router
from .sent import Sent
from .settling.events import Events
from .settling.lives import UNREADABLE
from .shared import Group
from .subscriber import Subscriber

TURN_RESENDS = 250
"""Messages resent in a turn: some 5 ms."""
FORBIDDEN = "its place may not receive the topic any more"
WITHHELD = "its sender may not send there any more"
WAIT_MS = 60_000
"""Delay of a retry whose owner is absent."""


class Resending:
    """Resends for one session or group at a time."""

    def __init__(
        self,
        router: Router,
        groups: Membership,
        events: Events,
        sent: Sent,
        awaited: Awaited,
        wall_ms: Callable[[], int],
    ) -> None:
        self._router = router
        self._groups = groups
        self._events = events
        self._sent = sent
        self._awaited = awaited
        self._wall_ms = wall_ms

    def resend(self, subscriber: Place) -> Progress:
        """Send again what the window takes, TURN_RESENDS at most."""
        resends = subscriber.session.resends
        for _ in range(TURN_RESENDS):
            if not resends:
                return Progress.DONE
            if not subscriber.can_resend:
                return Progress.BLOCKED
            flight = resends.first()
            if not self._send_again(subscriber, flight):
                return Progress.BLOCKED
            resends.discard(flight.packet_id)
            if not resends and isinstance(subscriber, Subscriber):
                self._groups.meet(subscriber)
        return Progress.MORE if resends else Progress.DONE

    def _send_again(self, subscriber: Place, flight: Flight) -> bool:
        """Send a flight again or end it; False: there is no room for this one."""
        subscriber.dirty.add(subscriber)
        if flight.phase:
            if isinstance(subscriber, Subscriber) and subscriber.link is not None:
                subscriber.link.release(flight.packet_id)
            return True
        events, loans = self._events, self._groups.loans
        message = self._sent.message(loans.place_of(subscriber, flight), flight)
        if message is None:
            if flight.is_stored:
                events.lose(subscriber, flight, Event.UNREADABLE, UNREADABLE)
            else:
                loans.give_up(subscriber, flight)
            return True
        # What was begun at QoS 2 is finished: [MQTT-4.3.3-7].
        is_over = flight.qos == 1 and message.is_expired(self._wall_ms())
        may_receive = subscriber.may_receive(message.topic)
        may_have = may_receive and self._awaited.owners.allow(message)
        if subscriber.is_group and is_over:
            events.lose(subscriber, flight, Event.EXPIRE, EXPIRED)
        elif flight.is_stored and not may_receive:
            lender = loans.lender(flight)
            events.fail(subscriber, flight, Event.BAR, FORBIDDEN, place=lender)
        elif flight.is_stored and not may_have and self._awaited.waits(message):
            events.fail(subscriber, flight, Event.PUT_OFF, WITHHELD, delay_ms=WAIT_MS, is_sent=False)
        elif is_over or not may_have:
            loans.give_up(subscriber, flight)
        elif (
            0
            < self._groups.terms_in_force(subscriber, message.topic).max_attempts
            <= message.counted_before + flight.attempts
        ):
            attempts = message.attempts_before + flight.attempts
            events.lose(subscriber, flight, Event.NACK, f"not acked after {attempts} deliveries")
        elif not subscriber.resend(message, flight, self._asked(subscriber, message, flight)):
            if not (isinstance(subscriber, Group) and subscriber.bars(message)):
                return False
            # It becomes a retry and waits for a member that may receive it. Others go on.
            events.fail(subscriber, flight, Event.PUT_OFF, FORBIDDEN, is_sent=False)
        return True

    def _asked(self, subscriber: Place, message: Message, flight: Flight) -> tuple[Subscription, ...]:
        """The subscriptions that a flight comes by: its group's, or the session's own that match."""
        if flight.loan is None:
            return self._router.asked_by(subscriber, message.topic)
        own = subscriber.session.subscriptions.get(flight.loan.share)
        return () if own is None else (own,)
