"""Shared subscriptions: `$share/group/filter`, whose members divide the messages among them.

A group is a session of its own: it has the read position and what is in flight, and reads on like any
other. Where a session sends on its link, a group picks a member. A member's delivery is a *loan*: in flight
in the member's session, under the packet id that its client acks, and in the group's, so that it comes back
when the member leaves or is overdue. Whoever acks it first has done it. QoS 2 belongs to the member's session
alone from the moment it is sent (MQTT-4.8.2): it is resent to that client, or to nobody.

**Who is next.** The member that has the least in proportion to what it has *shown* it can take: SHOWN_FIRST
at first, one more with each ack, its window at most. More than that nobody is given, so that one that has
stalled, however large its window, keeps that much and no more from the others. Only members that may have
room are looked at (`ready`), LOOKED_AT of them at a time: a member without room is taken off when it is come
to, and put back when it acks, drains or connects. One whose client does not take a message of its size is
passed over for it; only when none would, it goes to one nevertheless, where it is dropped and counted.

A group lives as long as a session, present or away, holds the subscription.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from timeline.session import Flight, Loan, Session, Subscription

from .message import Message
from .subscriber import Secure, Subscriber

KEY_PREFIX = "\0share/"
"""A group's rows stand among those of the sessions, under a name that no client id can have."""
SHOWN_FIRST = 16
LOOKED_AT = 8
UNABLE_MAX = 100
"""Members that are asked for one message whether their clients take its size, where all have a bound."""
SWEEPS = 4
"""Sweeps for overdue messages in each `sessions.ack_timeout`."""


class Group(Subscriber):
    """A subscriber that sends through its members. `members`: each with its own subscription (QoS)."""

    __slots__ = ("held", "members", "present", "ready", "shown", "sweeps", "text", "unlimited")

    is_group = True

    def __init__(self, session: Session, dirty: set[Subscriber], secure: Secure) -> None:
        super().__init__(session, dirty, secure)
        self.text = session.client_id.removeprefix(KEY_PREFIX)
        """The filter as its members subscribe to it: `$share/group/filter`."""
        self.members: dict[Subscriber, Subscription] = {}
        self.present: set[Subscriber] = set()
        """Members that are connected."""
        self.unlimited: set[Subscriber] = set()
        """Of these, whose clients take messages of any size."""
        self.held: dict[Subscriber, dict[int, Flight]] = {}
        """Members' flights that are loans, by who has them and packet id, in the order of lending. Those who
        are no members any more too; nobody with none."""
        self.shown: dict[Subscriber, int] = {}
        """How much each member has shown that it can take."""
        self.ready: OrderedDict[Subscriber, None] = OrderedDict()
        """Members that may have room, the one that waited longest first."""
        self.sweeps = 0

    def join(self, member: Subscriber, subscription: Subscription) -> None:
        """Add a member, or take over its new options."""
        self.members[member] = subscription
        self.meet(member)
        self._follow()

    def leave(self, member: Subscriber) -> bool:
        """The member gives up the subscription; True if it was the last one."""
        self.members.pop(member, None)
        self.part(member)
        self._follow()
        return not self.members

    def meet(self, member: Subscriber) -> None:
        """The member may have room."""
        if member.link is not None:
            self.present.add(member)
            if not member.link.is_limited:
                self.unlimited.add(member)
            self.ready.setdefault(member)

    def part(self, member: Subscriber) -> None:
        """The member's connection has ended: the next one has to show anew what it can take."""
        self.present.discard(member)
        self.unlimited.discard(member)
        self.ready.pop(member, None)
        self.shown.pop(member, None)

    def _follow(self) -> None:
        """As persistent as the most persistent member."""
        self.session.keep_for(max((m.session.expiry_s for m in self.members), default=0))

    @property
    def is_reachable(self) -> bool:
        return bool(self.present)

    @property
    def can_resend(self) -> bool:
        return self._next(None) is not None

    def offer(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:  # noqa: ARG002
        member = self._next(message)
        if member is None or not self.session.has_room:
            return False
        own = self.members[member]
        qos = min(message.record.qos, own.qos)
        flight = None
        if qos == 1:
            flight = self.session.flights[self.session.take(message.position, message.shard, qos)]
        self._lend(message, member, own, qos, flight, attempt=1)
        return True

    def resend(
        self,
        message: Message,
        flight: Flight,
        subscriptions: tuple[Subscription, ...],  # noqa: ARG002
    ) -> bool:
        member = self._next(message, flight.attempts + 1)
        if member is None:
            return False
        flight.attempts += 1
        own = self.members[member]
        qos = min(message.record.qos, own.qos)
        if qos != 1:
            self.session.ack(flight.packet_id)
        self._lend(message, member, own, qos, flight if qos == 1 else None, attempt=flight.attempts)
        return True

    def bound(self) -> Iterable[Subscriber]:
        return self.members

    def held_by(self, member: Subscriber) -> int:
        """How many of the group's messages the member has in flight."""
        return len(self.held.get(member, ()))

    def hold(self, member: Subscriber, lent: Flight) -> None:
        """The member has the message in flight."""
        self.held.setdefault(member, {})[lent.packet_id] = lent

    def bequeath(self, *, is_last: bool) -> list[Subscriber]:
        """The group ends (`is_last`), or its rows: what was lent is theirs who have it, whom it returns.

        To all of them, or to those who outlive their connection: no other would survive a kill. O(loans).
        """
        heirs = [heir for heir in self.held if is_last or heir.session.is_persistent]
        for heir in heirs:
            for lent in self.held.pop(heir).values():
                loan, lent.loan = lent.loan, None
                if loan is not None and loan.flight is not None and not loan.is_overdue:
                    self.session.ack(loan.flight.packet_id)
            heir.dirty.add(heir)
        return heirs

    def returned(self, member: Subscriber, lent: Flight, *, is_acked: bool) -> None:
        """The member has the message no more in flight: it has acked it, or left without."""
        loan = lent.loan
        assert loan is not None, "only what is lent comes back"
        held = self.held.get(member)
        if held is not None:
            held.pop(lent.packet_id, None)
            if not held:
                del self.held[member]
        flight = loan.flight
        is_here = flight is not None and self.session.flights.get(flight.packet_id) is flight
        if is_acked:
            if member in self.members:
                shown, window = self.shown.get(member, SHOWN_FIRST), member.session.window
                self.shown[member] = shown + 1 if shown < window else window
            if is_here and flight is not None:
                self.session.ack(flight.packet_id)
                self.dirty.add(self)
        elif is_here and flight is not None and not loan.is_overdue:
            self.give_back(flight)

    def give_back(self, flight: Flight) -> None:
        """Somebody else gets it, before anything new, in the order of the positions."""
        self.session.resends.add(flight, flight.position)

    def take_overdue(self, member: Subscriber) -> int:
        """Give back what the member has had for longer than SWEEPS sweeps; how many loans that took to see.

        It keeps the packet id, and may still finish the message. While nobody else is there it keeps all.
        """
        looked = 1
        if self.present <= {member}:
            return looked
        for lent in self.held.get(member, {}).values():
            looked += 1
            loan = lent.loan
            if loan is None or loan.flight is None or loan.is_overdue:
                continue
            if self.sweeps - loan.since <= SWEEPS:
                break  # the first one that is not: they are in the order of lending
            loan.is_overdue = True
            if self.session.flights.get(loan.flight.packet_id) is loan.flight:
                self.give_back(loan.flight)
        return looked

    def _lend(
        self,
        message: Message,
        member: Subscriber,
        own: Subscription,
        qos: int,
        flight: Flight | None,
        *,
        attempt: int,
    ) -> None:
        self.delivered += 1
        self.dirty.add(self)
        packet_id = 0
        if qos:
            packet_id = member.borrow(message, qos, Loan(self.text, flight, self.sweeps))
            self.hold(member, member.session.flights[packet_id])
        try:
            member.send_shared(message, qos, packet_id, (own,), attempt=attempt)
        except Exception:
            # It is the member's, and comes back when its connection has ended; the others are sent theirs.
            member.cut_off()

    def _takes(self, member: Subscriber, message: Message, attempt: int) -> bool:
        """Whether a member's client takes a message of this size."""
        own = self.members[member]
        link, qos = member.link, min(message.record.qos, own.qos)
        return link is not None and link.takes(message, qos, (own,), attempt)

    def _next(self, message: Message | None, attempt: int = 1) -> Subscriber | None:
        """Who gets a message, or any; None if nobody has room who would take it."""
        best, least = None, 1.0
        full: list[Subscriber] = []
        unable: list[Subscriber] = []
        unlimited = self.unlimited
        is_any_limited = len(unlimited) < len(self.present)
        looked = 0
        held, shown = self.held, self.shown
        for member in self.ready:
            share = (len(held[member]) if member in held else 0) / (
                shown.get(member) or min(SHOWN_FIRST, member.session.window)
            )
            if share >= 1.0 or not _is_free(member):
                full.append(member)
                continue
            if (
                is_any_limited
                and message is not None
                and member not in unlimited
                and not self._takes(member, message, attempt)
            ):
                unable.append(member)
                looked += best is not None
                if looked >= LOOKED_AT or (not unlimited and len(unable) >= UNABLE_MAX):
                    break
                continue
            looked += 1
            if share < least:
                best, least = member, share
            if looked >= LOOKED_AT or not share:
                break
        for member in full:
            del self.ready[member]
        if best is not None:
            # Among equals the one that waited longest is next.
            self.ready.move_to_end(best)
        elif unable and message is not None and not self._is_another_s(message, attempt):
            best = unable[0]
        for member in unable:
            self.ready.move_to_end(member)
        return best

    def _is_another_s(self, message: Message, attempt: int) -> bool:
        """Whether somebody takes a message who has no room now: it waits for that."""
        if self.unlimited:
            return True
        some = islice(self.present, UNABLE_MAX)
        return any(m not in self.ready and self._takes(m, message, attempt) for m in some)


def _is_free(member: Subscriber) -> bool:
    """Whether a member can be sent one more message: its own unacked ones go first."""
    link, session = member.link, member.session
    if link is None or not link.has_room or session.resends:
        return False
    return not member.is_gate_full and session.has_room
