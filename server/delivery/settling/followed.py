"""Acks with follow-ups: a message is done, and messages that follow from it are placed, in one batch or not
at all.

In the writer the lease is looked at, the follow-ups are placed, and the group's flight becomes SETTLED. So
the cursor that goes into the same batch no longer has it, nor a row of its retry. In RAM the flight stays
until the batch is durable:

    durable      the member's delivery ends, as with any ack
    failed       it is in flight again; if its lease is over by then, it has failed a try

Only the lease itself counts, not that of an earlier try: two workers that both do a message, since the first
was too slow, must not both have their follow-ups.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from shards.commit import Commit
from timeline.session import IN_FLIGHT, SETTLED, Flight

from ...engine.commit_hook import CommitHook, Done
from ..cursors import Cursors
from ..membership import Membership
from ..shared import Group
from ..subscriber import Subscriber
from ..tries import LOST
from .settling import Settling
from .undone import Undone

T = TypeVar("T")
NOT_STORED = "acked with messages, which could not be stored"


@dataclass(slots=True, eq=False)
class Followed:
    """An ack that is decided and not durable yet."""

    group: Group
    flight: Flight
    """The group's."""
    member: Subscriber
    lent: Flight
    """The member's."""


class FollowUps(CommitHook):
    """Decides acks with follow-ups."""

    def __init__(self, groups: Membership, cursors: Cursors, settling: Settling, undone: Undone) -> None:
        self._groups = groups
        self._cursors = cursors
        self._settling = settling
        self._undone = undone
        self._decided: list[Followed] = []
        """In the open group."""
        self._written: list[Followed] = []
        """In groups that are not durable yet."""

    def follow(
        self,
        commit: Commit,
        text: str,
        number: int,
        is_it: Callable[[Flight], bool],
        place: Callable[[], T],
    ) -> T | None:
        """In the writer: ack the message that is leased under this number, and `place` its follow-ups. None:
        the lease is over, and nothing is done. Raises what `place` raises, with nothing done."""
        group, found = self._groups.get(text), self._settling.leased(text, number)
        if group is None or found is None or not is_it(found[1]) or not group.is_held(found[1]):
            return None
        member, lent = found
        loan = lent.loan
        if loan is None or loan.flight is None:
            return None
        placed = place()
        loan.flight.fate = SETTLED
        self._cursors.store(commit, group)
        self._decided.append(Followed(group, loan.flight, member, lent))
        return placed

    def write(self, _: Commit) -> Done | None:
        acks, self._decided = self._decided, []
        self._written += acks
        return partial(self._ended, acks) if acks else None

    def recover(self) -> None:
        self._ended([*self._decided, *self._written], ConnectionError())

    def _ended(self, acks: list[Followed], answer: object) -> None:
        for ack in acks:
            if ack in self._decided:
                self._decided.remove(ack)
            elif ack in self._written:
                self._written.remove(ack)
            else:
                continue
            ack.flight.fate = IN_FLIGHT
            if isinstance(answer, Exception):
                self._failed(ack)
            else:
                self._done(ack)

    def _done(self, ack: Followed) -> None:
        """Its batch is durable."""
        if ack.member.session.flights.get(ack.lent.packet_id) is ack.lent:
            self._settling.ack_run(ack.member, (ack.lent.packet_id,))
        elif _is_in_flight(ack):
            ack.group.session.ack(ack.flight.packet_id)
            ack.group.dirty.add(ack.group)
            self._groups.read_on(ack.group)

    def _failed(self, ack: Followed) -> None:
        """Nothing of it was written: its message is in flight as before, unless its lease has ended."""
        if _is_in_flight(ack) and not ack.group.is_held(ack.lent):
            self._undone.fail(ack.group, ack.flight, NOT_STORED, by=ack.member.name, outcome=LOST)


def _is_in_flight(ack: Followed) -> bool:
    return ack.group.session.flights.get(ack.flight.packet_id) is ack.flight
