"""Shared subscriptions: `$share/group/filter`, whose members divide the messages among them.

A group is a session of its own: it has the read position and what is in flight, and reads on like any
other. Where a session sends on its link, a group picks the member with the most free window. A member's
delivery is in flight twice: in the member's session, under the packet id that its client acks, and in the
group's, so that it comes back when the member leaves. QoS 2 belongs to the member's session alone from
the moment it is sent (MQTT-4.8.2): it is resent to that client, or to nobody.

It lives as long as a session, present or away, holds the subscription.
"""

from collections.abc import Iterable

from timeline.session import Flight, Session, Subscription

from .message import Message
from .subscriber import Secure, Subscriber

KEY_PREFIX = "\0share/"
"""A group's rows stand among those of the sessions, under a name that no client id can have."""


class Group(Subscriber):
    """A subscriber that sends through its members. `members`: each with its own subscription (QoS)."""

    __slots__ = ("members",)

    is_group = True

    def __init__(self, session: Session, dirty: set[Subscriber], secure: Secure) -> None:
        super().__init__(session, dirty, secure)
        self.members: dict[Subscriber, Subscription] = {}

    @property
    def text(self) -> str:
        """The filter as its members subscribe to it: `$share/group/filter`."""
        return self.session.client_id.removeprefix(KEY_PREFIX)

    def join(self, member: Subscriber, subscription: Subscription) -> None:
        """Add a member, or take over its new options."""
        self.members[member] = subscription
        self._follow()

    def leave(self, member: Subscriber) -> bool:
        """The member gives up the subscription; True if it was the last one."""
        self.members.pop(member, None)
        self._follow()
        return not self.members

    def _follow(self) -> None:
        """As persistent as the most persistent member."""
        self.session.expiry_s = max((m.session.expiry_s for m in self.members), default=0)

    @property
    def is_reachable(self) -> bool:
        return any(member.link is not None for member in self.members)

    @property
    def can_resend(self) -> bool:
        return any(_is_free(member) for member in self.members)

    def offer(self, message: Message, subscriptions: tuple[Subscription, ...]) -> bool:  # noqa: ARG002
        member = self._freest()
        if member is None or not self.session.has_room:
            return False
        own = self.members[member]
        qos = min(message.record.qos, own.qos)
        group_id = 0
        if qos == 1:
            group_id = self.session.take(message.position, message.shard, qos)
        self.delivered += 1
        self.dirty.add(self)
        member.send_shared(message, qos, (own,), (self, group_id), attempt=1)
        return True

    def resend(
        self,
        message: Message,
        flight: Flight,
        subscriptions: tuple[Subscription, ...],  # noqa: ARG002
    ) -> None:
        member = self._freest()
        assert member is not None, "the caller has looked for room"
        flight.attempts += 1
        self.dirty.add(self)
        own = self.members[member]
        qos = min(message.record.qos, own.qos)
        if qos != 1:
            self.session.ack(flight.packet_id)
        member.send_shared(
            message, qos, (own,), (self, flight.packet_id if qos == 1 else 0), attempt=flight.attempts
        )

    def bound(self) -> Iterable[Subscriber]:
        return self.members

    def held_by(self, member: Subscriber) -> int:
        """How many of the group's messages the member has in flight."""
        flights = member.session.flights.values()
        return sum(isinstance(flight.group, tuple) and flight.group[0] is self for flight in flights)

    def acked(self, group_id: int) -> None:
        """A member's client has the message."""
        if group_id:
            self.session.ack(group_id)
            self.dirty.add(self)

    def give_back(self, group_id: int) -> None:
        """A member left without having acked: somebody else gets it, first."""
        flight = self.session.flights.get(group_id)
        if flight is None or flight in self.resends:
            return
        self.resends.append(flight)
        self.resends = type(self.resends)(sorted(self.resends, key=lambda f: f.position))

    def _freest(self) -> Subscriber | None:
        """The member with the most free window; None if nobody has room."""
        best, most = None, 0
        for member in self.members:
            free = member.session.window - len(member.session.flights)
            if free > most and _is_free(member):
                best, most = member, free
        if best is not None and len(self.members) > 1:
            # Among equals the one that waited longest is next.
            self.members[best] = self.members.pop(best)
        return best


def _is_free(member: Subscriber) -> bool:
    """Whether a member can be sent one more message: its own unacked ones go first."""
    link, session = member.link, member.session
    if link is None or not link.has_room or member.resends:
        return False
    return not member.is_gate_full and session.has_room
