"""What a place is given beside what it reads: what was in flight as its connection ended, due retries, and
messages by their keys.

What was in flight is sent again, or ended. A retry that is due goes out beside what is read, or stands in
line until its key is free. A message that was passed over, as its key was not free, is read by its address
when it is (timeline/key_order.py). Keys take turns. What may no longer be sent becomes a dead letter.

What its sender may not send now is *withheld*: its row waits untried until the sender may send it
(settling/releasing.py), or for `slices.kept_behind`. So does what a reader comes to and others have had. It
stands still before the next one when its place has WITHHELD_MAX rows.
"""

import logging
from itertools import islice

from shards.delivery_rows import count_waiting
from timeline.deliveries import EXPIRED
from timeline.delivery_rows import Event
from timeline.horizon import Horizon
from timeline.key_order import KeyOrder, Meeting
from timeline.key_rows import NO_KEY, NOWHERE, Address
from timeline.session import Flight, Subscription

from .burials import KEPT_TOO_LONG
from .membership import Membership
from .message import Again, Message
from .place import Place
from .ready import TurnResult
from .retries import Retries
from .router import Router
from .sent import Sent
from .settling.events import Events
from .settling.lives import UNREADABLE
from .shared import Group
from .subscriber import Subscriber
from .unread import Unread

log = logging.getLogger(__name__)

TURN_RESENDS = 250
"""Messages resent in a turn: some 5 ms."""
FORBIDDEN = "its place may not receive the topic any more"
WITHHELD = "its sender may not send it"
WITHHELD_MAX = 10_000
"""Rows of one place that wait, and its messages in flight, beyond which its reader withholds no more."""
NOT_WANTED = "no subscription matches any more"
FOLLOWERS = 12
"""Messages of a key that waited for it, and are looked at in a turn."""
DUE_MAX = 100
"""Due retries that are looked at in a turn: those whose keys are not free stand in line."""
ALTERNATE = 8
"""Retries that are due, and unread messages, that are given in turns."""


class Beside:
    """Gives to one session or group at a time."""

    def __init__(
        self,
        horizon: Horizon,
        router: Router,
        groups: Membership,
        events: Events,
        sent: Sent,
        retries: Retries,
        unread: Unread,
    ) -> None:
        self._horizon = horizon
        self._router = router
        self._groups = groups
        self._events = events
        self._sent = sent
        self._retries = retries
        self._unread = unread
        self._owners = unread.owners

    # -- what was in flight

    def resend(self, subscriber: Place) -> TurnResult:
        """Send again what the window takes, TURN_RESENDS at most."""
        resends = subscriber.session.resends
        for _ in range(TURN_RESENDS):
            if not resends:
                return TurnResult.DONE
            if not subscriber.can_resend:
                return TurnResult.BLOCKED
            flight = resends.first()
            if not self._send_again(subscriber, flight):
                return TurnResult.BLOCKED
            resends.discard(flight.packet_id)
            if not resends and isinstance(subscriber, Subscriber):
                self._groups.meet(subscriber)
        return TurnResult.MORE if resends else TurnResult.DONE

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
        is_over = flight.qos == 1 and message.is_expired(self._unread.wall_ms())
        may_receive = subscriber.may_receive(message.topic)
        may_have = may_receive and self._owners.allow(message)
        if subscriber.is_group and is_over:
            events.lose(subscriber, flight, Event.EXPIRE, EXPIRED)
        elif flight.is_stored and not may_receive:
            lender = loans.lender(flight)
            events.fail(subscriber, flight, Event.BAR, FORBIDDEN, place=lender)
        elif flight.is_stored and not may_have:
            self._fail_withheld(subscriber, flight, loans.lender(flight))
        elif is_over or not may_have:
            loans.give_up(subscriber, flight)
        elif (
            0
            < self._groups.terms_in_force(subscriber, message.topic).max_attempts
            <= message.counted_before + flight.attempts
        ):
            attempts = message.attempts_before + flight.attempts
            events.lose(subscriber, flight, Event.NACK, f"not acked after {attempts} deliveries")
        elif not subscriber.resend(message, flight, self._matching(subscriber, message, flight)):
            if not (isinstance(subscriber, Group) and subscriber.bars(message)):
                return False
            # It becomes a retry and waits for a member that may receive it. Others go on.
            events.fail(subscriber, flight, Event.PUT_OFF, FORBIDDEN, is_sent=False)
        return True

    def _matching(self, subscriber: Place, message: Message, flight: Flight) -> tuple[Subscription, ...]:
        """The subscriptions that a flight comes by: its group's, or the session's own that match."""
        if flight.loan is None:
            return self._router.subscriptions_of(subscriber, message.topic)
        own = subscriber.session.subscriptions.get(flight.loan.share)
        return () if own is None else (own,)

    # -- due retries

    def give_retries(self, subscriber: Place) -> bool:
        """Send some due retries; False if there was no room for one."""
        before = subscriber.delivered
        for message in islice(self._retries.due(subscriber), DUE_MAX):
            if not (self._stands_in_line(subscriber, message) or self._give_retry(subscriber, message)):
                return False
            self._retries.gave(subscriber, message.at)
            if subscriber.delivered - before >= ALTERNATE:
                break
        return True

    def _give_retry(self, subscriber: Place, message: Again) -> bool:
        """Send a due retry, or bury it; False if there was no room for it."""
        root = message.position
        subscriptions = self._router.subscriptions_of(subscriber, message.topic)
        subscriber.rows.note_out(root)
        # A withheld one is looked at in the ms before it has expired.
        why = self._why_not(message, subscriptions, self._unread.wall_ms() + message.is_withheld)
        if not why and not subscriber.may_receive(message.topic):
            why = FORBIDDEN
        if self._is_read_again(subscriber, message):
            subscriber.dirty.add(subscriber)
        elif why or message.is_withheld:
            flight = subscriber.session.launch(root, message.shard, 1)
            subscriber.session.resume(flight)
            if why == WITHHELD and not message.is_withheld:
                self._fail_withheld(subscriber, flight)
                return True
            event = Event.EXPIRE if why == EXPIRED else Event.BAR if why else Event.OWNER_BACK
            if why == WITHHELD:
                why = f"{KEPT_TOO_LONG}: {self._owners.why_not(message.record)}"
            self._events.fail(subscriber, flight, event, why, is_sent=False)
        elif subscriber.offer(message, subscriptions):
            subscriber.dirty.add(subscriber)
            if subscriber.rows.ahead:  # it may have still to be read again: it comes once
                subscriber.session.finish_ahead(root, self._horizon.position)
        else:
            subscriber.rows.forget((root,))
            if not (isinstance(subscriber, Group) and subscriber.bars(message)):
                return False
            subscriber.picker.put_by = min(message.at, subscriber.picker.put_by or message.at)
        return True

    def _stands_in_line(self, subscriber: Place, message: Again) -> bool:
        """Whether a due retry waits for its key. The head of a key does only if the key is held, one that
        ends does not."""
        order, root = subscriber.session.order, message.position
        key = order.key_of(message.ordering_key)
        if not key or not isinstance(subscriber, Group):
            return False
        if order.head_of(root) is not None:
            return order.head_of(root) in order.held
        if message.is_expired(self._unread.wall_ms()):
            return False
        member = subscriber.picker.next(message)
        if member is None or order.meet_retry(key, message.at, subscriber.room_for(order, key, member)):
            return False
        subscriber.rate_limited.await_tokens(subscriber)
        return True

    def _is_read_again(self, subscriber: Place, message: Message) -> bool:
        """Whether a retry ends, as its group was set back, and gives the message in its order: not one that
        was in flight then, which it passes over."""
        order, key, session = subscriber.session.order, message.ordering_key, subscriber.session
        root = message.position
        if not order.is_on or not key or not subscriber.rows.ahead or order.head_of(root) == key:
            return False
        if root in session.finished or not (root > session.read or order.is_behind(key, root)):
            return False
        found = self._follower(subscriber, key, (root, message.shard))
        return found is not None and self._owners.allow(found)

    def _why_not(self, message: Message, subscriptions: tuple[Subscription, ...], wall_ms: int) -> str:
        """Why a due retry becomes a dead letter; empty: it is sent."""
        if not subscriptions:
            return NOT_WANTED
        if message.is_expired(wall_ms):
            return EXPIRED
        return "" if self._owners.allow(message) else WITHHELD

    def withhold(self, subscriber: Place, message: Message) -> bool:
        """The place reads a message that is withheld; False: there is no room for its row."""
        session, returned = subscriber.session, self._groups.returned
        flights, is_full = len(session.flights), returned.failing >= returned.most
        returned.is_missed = returned.is_missed or is_full
        rows = count_waiting(self._unread.store, subscriber.whose)
        if is_full or flights >= session.window or rows + flights >= WITHHELD_MAX:
            return False
        key = session.order.key_of(message.ordering_key)
        if key:
            meeting = session.order.meet(key, message.position, message.shard)
            subscriber.dirty.add(subscriber)
            if meeting is not Meeting.GIVE:
                return meeting is Meeting.PASS
        flight = session.launch(message.position, message.shard, 1)
        session.lead(flight, key)
        self._fail_withheld(subscriber, flight)
        return True

    def _fail_withheld(self, subscriber: Place, flight: Flight, place: Place | None = None) -> None:
        """It waits; its key too, if the group orders."""
        kept, event = self._unread.kept_ms, Event.WITHHOLD
        self._events.fail(subscriber, flight, event, WITHHELD, place=place, delay_ms=kept, is_sent=False)

    # -- by its key

    def give_following(self, subscriber: Place, order: KeyOrder, most: int) -> bool:
        """Send at most `most` messages of keys that are behind and free, which take turns; False: there was
        no room for one."""
        for _ in range(most):
            if not order.free:
                break
            if not subscriber.can_resend:
                return False  # before a message is read
            key, before = next(iter(order.free)), subscriber.delivered
            if not self._give_next(subscriber, order, key):
                return False
            order.turns.gave(subscriber.delivered - before, is_reader=False)
        missed = order.lines.take_missed()
        if missed != NOWHERE:
            self._retries.look_again(subscriber, missed)
        return True

    def _give_next(self, subscriber: Place, order: KeyOrder, key: bytes) -> bool:
        """Send the next message of a key that is free; False: there was no room for it. FOLLOWERS are looked
        at: others go first then."""
        session, before = subscriber.session, subscriber.delivered
        for _ in range(FOLLOWERS):
            behind = order.find(key)
            if key not in order.free or subscriber.delivered > before:
                break
            retry = order.next_retry(key)
            if retry is not None:
                again = self._retries.at(subscriber, retry)
                if again is not None and not self._give_retry(subscriber, again):
                    return False
                order.leave_line(key, retry)
                continue
            assert behind is not None, "a key without a row is free only if a retry is in its line"
            address = behind.first
            if address is None:
                found, upto = self._unread.followers(subscriber, key, behind.next)
                order.learn(key, found, upto, is_all=upto >= session.read)
                continue
            message = self._follower(subscriber, key, address)
            if message is None:
                order.drop(key)
                subscriber.dirty.add(subscriber)
            elif not self._owners.allow(message):
                order.drop(key)
                if self._unread.is_kept_back(subscriber, message):
                    # Like a failed one; if the group orders, its key waits for it.
                    flight = session.launch(*address, 1)
                    session.lead(flight, key)
                    self._fail_withheld(subscriber, flight)
            elif not subscriber.offer(message, tuple(session.subscriptions.values())):
                return False
        return True

    def _follower(self, subscriber: Place, key: bytes, address: Address) -> Message | None:
        """A message that was passed over, if it is still to be given."""
        message = self._unread.at(subscriber, *address)
        return message if message is not None and (message.ordering_key or NO_KEY) == key else None
