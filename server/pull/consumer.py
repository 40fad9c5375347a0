# ruff: noqa: ARG002 - a `Link` has more arguments than a consumer needs
"""Consumer for pull: a member of the group without a client, one for each key, in which calls wait.

For the group it is an ordinary member. Its link takes messages while a call waits. Its window is its leases
plus the messages that waiting calls may get, so it has its fair share beside members that subscribe. Messages
go to the call that has waited longest. The member has the rights of the key, so that forbidden messages go to
another member.
"""

from collections.abc import Callable, Sequence

from timeline.filters import parse_share
from timeline.session import Flight, Subscription

from ..auth.rights import Rights
from ..delivery.link import Closing
from ..delivery.membership import GROUP_WINDOW, Membership
from ..delivery.message import Message
from ..delivery.run import Run
from ..delivery.settling.settling import FORMER
from .call import ANSWER_BYTES, Call, Given


class Consumer:
    """A `Link` (server/delivery/link.py)."""

    def __init__(
        self,
        groups: Membership,
        text: str,
        rights: Rights | None,
        *,
        has_room: Callable[[int, int], bool],
        took: Callable[[Call, Sequence[Given], int], None],
    ) -> None:
        """`has_room`: whether a member with so many leases may get another message, after so many bytes.
        `took`: a call gets messages of so many bytes."""
        self.text = text
        group, self.filter = parse_share(text)
        self.name = group or text
        """The group's name."""
        self.rights = rights
        self.waiting: dict[Call, int] = {}
        """How many more messages each may get, longest waiting first. None is full."""
        self._room = 0
        """The sum of these."""
        self.is_closed = False
        """Nothing comes any longer: an error, or the group was deleted."""
        self.idle_s: float | None = None
        """Since when there are no waiting calls and no leases, monotonic."""
        self._has_room = has_room
        self._took = took
        self._groups = groups
        self.member = groups.enlist(self, text, name=FORMER, rights=rights, keeps_overdue=False)

    def admit(self, call: Call) -> None:
        """Add a waiting call."""
        self.waiting[call] = call.request.most
        self._room += call.request.most
        self.idle_s = None
        self._fit()
        self._groups.read_on(self.member)

    def remove(self, call: Call) -> None:
        """Remove a call, if it waits."""
        self._room -= self.waiting.pop(call, 0)

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.member.session.flights

    # -- Link

    @property
    def has_room(self) -> bool:
        if not self.waiting or self.is_closed:
            return False
        self._fit()
        return self._has_room(len(self.member.session.flights), 0)

    @property
    def is_limited(self) -> bool:
        return False

    def takes(
        self, message: Message, qos: int, subscriptions: tuple[Subscription, ...], attempt: int
    ) -> bool:
        return True

    def close(self, why: Closing) -> None:
        self.is_closed = True

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
        number, is_again = message.try_number(attempt), message.is_redelivered(attempt)
        self._give([Given(self.text, self.member, packet_id, message, number, is_again)])

    def takes_run(self, run: Run, qos: int) -> bool:
        """Whether the waiting calls take the whole run, and none of them is full of bytes before."""
        size, left = sum([message.size() for message in run.messages]), len(run)
        # Each message counts twice: as one of this member, and as one of all.
        if not qos or not self._has_room(len(self.member.session.flights) + 2 * (left - 1), size):
            return False
        for call in self.waiting:
            if call.bytes + size >= ANSWER_BYTES:
                return False
            left -= call.left
            if left <= 0:
                return True
        return False

    def send_run(self, run: Run, qos: int, flights: Sequence[Flight]) -> None:
        given = [
            Given(self.text, self.member, flight.packet_id, message, 1)
            for message, flight in zip(run.messages, flights, strict=True)
        ]
        while given:
            count = next(iter(self.waiting)).left
            self._give(given[:count])
            given = given[count:]

    def release(self, packet_id: int) -> None:
        raise AssertionError("nothing is sent at QoS 2")

    def _fit(self) -> None:
        """Set the window, from which the group tells how many messages in a row it may give."""
        session = self.member.session
        session.resize(min(GROUP_WINDOW, len(session.flights) + self._room))

    def _give(self, given: Sequence[Given]) -> None:
        """Give messages to the call that has waited longest."""
        call = next(iter(self.waiting))
        self.waiting[call] -= len(given)
        self._room -= len(given)
        self._took(call, given, sum([one.message.size() for one in given]))
