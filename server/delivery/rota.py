"""Whose turn it is in a shared subscription: a member is chosen for each message.

The member that has the least in proportion to what it has *shown* it can take: SHOWN_FIRST at first, one more
with each ack, its window at most. More than that nobody is given, so that one that has stalled, however large
its window, keeps that much and no more from the others. Among equals it is the one that waited longest.

Four things decide, in this order: whether a member has *room*, its *share* of what it has shown, whether its
client takes a message of this *size*, and whose *turn* it is. Only members that may have room are looked at
(`ready`), LOOKED_AT of them at a time: a member without room is taken off when it is come to, and put back
when it acks, drains or connects. One whose client does not take a message of its size, or may not have it, is
passed over for it; only when none would, it goes to one nevertheless, where it is dropped.
"""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice

from timeline.session import Flight, Subscription

from .message import Message
from .subscriber import Subscriber

SHOWN_FIRST = 16
LOOKED_AT = 8
UNABLE_MAX = 100
"""Members that are asked for one message whether their clients take its size, where all have a bound."""


class Rota:
    """The members of one group that are connected, and which of them is next."""

    __slots__ = ("_lent", "_members", "_ready", "_shown", "_unlimited", "present")

    def __init__(
        self,
        members: Mapping[Subscriber, Subscription],
        lent: Mapping[Subscriber, Mapping[int, Flight]],
    ) -> None:
        """`members`, `lent`: the group's own, which it goes on changing: who there is, and what each has."""
        self._members = members
        self._lent = lent
        self.present: set[Subscriber] = set()
        """Members that are connected."""
        self._unlimited: set[Subscriber] = set()
        """Of these, whose clients take messages of any size, and may have all."""
        self._shown: dict[Subscriber, int] = {}
        """How much each member has shown that it can take."""
        self._ready: OrderedDict[Subscriber, None] = OrderedDict()
        """Members that may have room, the one that waited longest first."""

    def meet(self, member: Subscriber) -> None:
        """The member may have room."""
        if member.link is not None:
            self.present.add(member)
            if not (member.link.is_limited or member.is_restricted):
                self._unlimited.add(member)
            self._ready.setdefault(member)
            if member.is_inside:
                self._shown[member] = member.session.window

    def part(self, member: Subscriber) -> None:
        """The member's connection has ended: the next one has to show anew what it can take."""
        self.present.discard(member)
        self._unlimited.discard(member)
        self._ready.pop(member, None)
        self._shown.pop(member, None)

    def acked(self, member: Subscriber) -> None:
        """The member has shown that it can take one more."""
        shown, window = self._shown.get(member, SHOWN_FIRST), member.session.window
        self._shown[member] = shown + 1 if shown < window else window

    def next(self, message: Message | None, attempt: int = 1) -> Subscriber | None:
        """Who gets a message, or any; None if nobody has room who would take it."""
        best, least = None, 1.0
        full: list[Subscriber] = []
        unable: list[Subscriber] = []
        unlimited = self._unlimited
        is_any_limited = len(unlimited) < len(self.present)
        looked = 0
        lent, shown = self._lent, self._shown
        for member in self._ready:
            share = (len(lent[member]) if member in lent else 0) / (
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
            del self._ready[member]
        if best is not None:
            # Among equals the one that waited longest is next.
            self._ready.move_to_end(best)
        elif unable and message is not None and not self._is_another_s(message, attempt):
            topic = message.topic
            best = next((member for member in unable if member.may_receive(topic)), unable[0])
        for member in unable:
            self._ready.move_to_end(member)
        return best

    def _takes(self, member: Subscriber, message: Message, attempt: int) -> bool:
        """Whether a member's client may have a message, and takes one of this size."""
        own = self._members[member]
        link, qos = member.link, min(message.qos, own.qos)
        if link is None or not member.may_receive(message.topic):
            return False
        return not link.is_limited or link.takes(message, qos, (own,), attempt)

    def _is_another_s(self, message: Message, attempt: int) -> bool:
        """Whether somebody takes a message who has no room now: it waits for that."""
        if self._unlimited:
            return True
        some = islice(self.present, UNABLE_MAX)
        return any(m not in self._ready and self._takes(m, message, attempt) for m in some)


def _is_free(member: Subscriber) -> bool:
    """Whether a member can be sent one more message: its own unacked ones go first."""
    link, session = member.link, member.session
    if link is None or not link.has_room or session.resends:
        return False
    return not member.is_gate_full and session.has_room
