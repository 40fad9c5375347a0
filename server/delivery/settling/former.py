"""Leases from before a restart.

A leased message (server/pull) is in flight in the group, and its row has the end of the lease, in running
time of the server. After a restart, a kill or a takeover the worker keeps the lease: a member without a
connection holds the message until it is acked, nacked or released, or until the lease lapses. The group gives
it to no other member meanwhile.

A delivery over MQTT ends with its connection, and is not kept here.
"""

from collections.abc import Callable

from timeline.session import Session

from ..membership import GROUP_WINDOW, Membership
from ..shared import Group
from ..subscriber import Inside

NAME = "(pull)"
"""Display name of members that lease over HTTP."""


class Former:
    """Holds the leases of each group from before the restart."""

    def __init__(self, groups: Membership, running_ms: Callable[[], int]) -> None:
        self._groups = groups
        self._running_ms = running_ms
        self._holders: dict[str, tuple[Group, Inside]] = {}
        """By the group's text; empty holders go with the next `review`."""

    def restore(self) -> None:
        """At start, once groups are loaded: take over the leases."""
        now_ms = self._running_ms()
        for group in self._groups:
            for flight in group.session.flights.values():
                if flight.until_ms and not flight.fate:
                    left_ms = max(1, flight.until_ms - now_ms)
                    self._groups.loans.lend_again(group, self._holder(group), flight, left_ms)

    def review(self) -> int:
        """Drop holders without leases. Returns the number of leases held."""
        held = 0
        for text, (group, member) in list(self._holders.items()):
            theirs = len(member.session.flights)
            if theirs and self._groups.get(text) is group:
                held += theirs
            else:
                del self._holders[text]
        return held

    def _holder(self, group: Group) -> Inside:
        """The holder of the group's former leases."""
        if group.text not in self._holders:
            session = Session(NAME, read=group.session.read, expiry_s=0, window=GROUP_WINDOW)
            self._holders[group.text] = group, Inside(session, group.secure, keeps_overdue=False)
        return self._holders[group.text][1]
