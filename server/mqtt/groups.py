"""Who is a member of which shared subscription: groups made, joined, left, restored."""

from collections.abc import Callable

from timeline.filters import parse_share
from timeline.session import Session, Subscription

from ..group import KEY_PREFIX, Group
from ..replay import Replay
from ..sessions import Sessions
from ..subscriber import Subscriber
from .router import Router

GROUP_WINDOW = 65_535
SWEEPS = 4
GIVEN_AWAY = -2
"""The shard number of a flight whose message another member has by now: it is not sent again."""


class Groups:
    """Shared subscriptions by the text that was subscribed to, `$share/group/filter`."""

    def __init__(self, sessions: Sessions, router: Router, replay: Callable[[], Replay]) -> None:
        self._sessions = sessions
        self._router = router
        self._replay = replay
        self._by_text: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._by_text)

    def restore(self) -> None:
        """At start: every stored session that holds a shared subscription is a member, away."""
        for member in list(self._sessions):
            for text, subscription in list(member.session.subscriptions.items()):
                if parse_share(text)[0] is not None:
                    self.join(member, text, subscription)

    def join(self, member: Subscriber, text: str, subscription: Subscription) -> bool:
        """Make a session a member; True if it was not one before."""
        group = self._by_text.get(text)
        if group is None:
            group = self._open(text, subscription)
        is_new = member not in group.members
        group.join(member, subscription)
        member.groups[text] = group
        self._replay().wake(group)
        return is_new

    def leave(self, member: Subscriber, text: str) -> None:
        """Give the subscription up; what the member has in flight of it at QoS 1 goes to another."""
        group = member.groups.pop(text, None)
        if not isinstance(group, Group):
            return
        self._give_back(member, group)
        if group.leave(member):
            del self._by_text[text]
            self._router.discard_all(group)
            self._sessions.drop_group(group)
        else:
            self._pause(group)

    def part(self, member: Subscriber) -> None:
        """The member's connection has ended: what it has not acked goes to another."""
        for group in member.groups.values():
            assert isinstance(group, Group)
            self._give_back(member, group)
            self._pause(group)

    def meet(self, member: Subscriber) -> None:
        """The member has a connection (again), or room: its groups may have something for it."""
        for group in member.groups.values():
            self._replay().wake(group)

    def sweep(self) -> None:
        """Called four times in each `sessions.ack_timeout`: what is unacked for longer goes to another."""
        for group in self._by_text.values():
            for member in list(group.members):
                self._take_overdue(member, group)
            if group.resends:
                self._pause(group)

    def _take_overdue(self, member: Subscriber, group: Group) -> None:
        """The packet id stays taken until the slow member acks it or leaves."""
        for flight in member.session.flights.values():
            if isinstance(flight.group, tuple) and flight.group[0] is group and flight.qos == 1:
                flight.age += 1
                if flight.age > SWEEPS:
                    group.give_back(flight.group[1])
                    flight.group, flight.shard = None, GIVEN_AWAY

    def _open(self, text: str, subscription: Subscription) -> Group:
        _, topic_filter = parse_share(text)
        session = Session(KEY_PREFIX + text, read=subscription.since, expiry_s=0, window=GROUP_WINDOW)
        group = Group(session, self._sessions.dirty, self._sessions.secure)
        session.subscribe(Subscription(topic_filter, 2, subscription.since), subscription.since)
        self._sessions.restore_cursor(group)
        group.resends.extend(session.flights.values())
        self._by_text[text] = group
        self._router.add(group, session.subscriptions[topic_filter])
        return group

    def _give_back(self, member: Subscriber, group: Group) -> None:
        for flight in list(member.session.flights.values()):
            if isinstance(flight.group, tuple) and flight.group[0] is group and flight.qos == 1:
                member.session.ack(flight.packet_id)
                group.give_back(flight.group[1])

    def _pause(self, group: Group) -> None:
        """When nobody is there the group's read position stands still; else somebody else goes on."""
        if not group.is_reachable or group.resends:
            group.session.fall_behind(self._sessions.horizon_position)
        self._replay().wake(group)
