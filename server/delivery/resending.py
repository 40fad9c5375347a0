"""Deliveries that were in flight when their connection ended: sent again, or ended."""

from collections.abc import Callable

from timeline.session import Flight, Subscription

from .awaited import Awaited
from .membership import Membership
from .message import Message
from .ready import Progress
from .router import Router
from .sent import Sent
from .settling.undone import EXPIRED, NEVER, UNREADABLE, Undone
from .subscriber import Subscriber
from .tries import LOST

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
        undone: Undone,
        sent: Sent,
        awaited: Awaited,
        wall_ms: Callable[[], int],
    ) -> None:
        self._router = router
        self._groups = groups
        self._undone = undone
        self._sent = sent
        self._awaited = awaited
        self._wall_ms = wall_ms

    def resend(self, subscriber: Subscriber) -> Progress:
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
            if not resends and subscriber.groups:
                self._groups.meet(subscriber)
        return Progress.MORE if resends else Progress.DONE

    def _send_again(self, subscriber: Subscriber, flight: Flight) -> bool:
        """Send a flight again or end it; False: there is no room for this one."""
        subscriber.dirty.add(subscriber)
        if flight.phase:
            if subscriber.link is not None:
                subscriber.link.release(flight.packet_id)
            return True
        undone, loans = self._undone, self._groups.loans
        message = self._sent.message(loans.place_of(subscriber, flight), flight)
        if message is None:
            if flight.is_stored:
                undone.lose(subscriber, flight, UNREADABLE, delay_ms=NEVER)
            else:
                loans.give_up(subscriber, flight)
            return True
        # What was begun at QoS 2 is finished: [MQTT-4.3.3-7].
        is_over = flight.qos == 1 and message.is_expired(self._wall_ms())
        may_receive = subscriber.may_receive(message.topic)
        may_have = may_receive and self._awaited.owners.allow(message)
        if subscriber.is_group and is_over:
            undone.lose(subscriber, flight, EXPIRED, delay_ms=NEVER)
        elif flight.is_stored and not may_receive:
            lender = loans.lender(flight)
            undone.fail(subscriber, flight, FORBIDDEN, delay_ms=NEVER, addressee=lender, outcome=LOST)
        elif flight.is_stored and not may_have and self._awaited.waits(message):
            undone.fail(subscriber, flight, WITHHELD, delay_ms=WAIT_MS, is_attempt=False)
        elif is_over or not may_have:
            loans.give_up(subscriber, flight)
        elif 0 < undone.terms(subscriber, message).max_attempts <= message.counted_before + flight.attempts:
            attempts = message.attempts_before + flight.attempts
            undone.lose(subscriber, flight, f"not acked after {attempts} deliveries")
        elif not subscriber.resend(message, flight, self._asked(subscriber, message, flight)):
            if not subscriber.bars(message):
                return False
            # It becomes a retry and waits for a member that may receive it. Others go on.
            undone.fail(subscriber, flight, FORBIDDEN, delay_ms=0, is_attempt=False)
        return True

    def _asked(self, subscriber: Subscriber, message: Message, flight: Flight) -> tuple[Subscription, ...]:
        """The subscriptions that a flight comes by: its group's, or the session's own that match."""
        if flight.loan is not None:
            own = subscriber.session.subscriptions.get(flight.loan.share)
            return () if own is None else (own,)
        return self._router.route(message.topic).get(subscriber, ())
