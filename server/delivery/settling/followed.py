"""Acks with follow-ups: a message is done, and messages that follow from it are placed, in one batch or not
at all.

In the writer the lease is looked at, the follow-ups are placed, and the group's flight becomes SETTLED. So
the cursor that goes into the same batch no longer has it, nor a row of its retry. In RAM the flight stays
until the batch is durable:

    durable      the member's delivery ends, as with any ack
    failed       it is in flight again; if its lease is over by then, it has failed a try. If the store has
                 the follow-ups after all when it is back, the delivery ends as if durable

Only the lease itself counts, not that of an earlier try: two workers that both do a message, since the first
was too slow, must not both have their follow-ups.
"""

from collections.abc import Callable, Sequence
from functools import partial

from shards.commit import Commit
from shards.draft import Known
from shards.read import Reader
from timeline.position import MessageId
from timeline.session import IN_FLIGHT, SETTLED, Flight

from ...engine.decisions import Decisions
from ..cursors import Cursors
from ..membership import Membership
from ..shared import Group
from ..subscriber import Rights, Subscriber
from ..tries import LOST
from .settling import Settling
from .undone import Undone

Placed = MessageId | Known
Ack = tuple[Group, Flight, Subscriber, Flight]
"""The group's flight, and the member's."""
NOT_STORED = "acked with messages, which could not be stored"


class FollowUps:
    """Decides acks with follow-ups."""

    def __init__(
        self,
        groups: Membership,
        cursors: Cursors,
        settling: Settling,
        undone: Undone,
        decisions: Decisions,
        reader: Reader,
    ) -> None:
        self._groups = groups
        self._cursors = cursors
        self._settling = settling
        self._undone = undone
        self._decisions = decisions
        self._reader = reader

    def follow(
        self,
        commit: Commit,
        text: str,
        number: int,
        is_it: Callable[[Flight], bool],
        place: Callable[[], Sequence[Placed]],
        rights: Rights | None = None,
    ) -> Sequence[Placed] | None:
        """In the writer: ack the message that is leased under this number, and `place` its follow-ups. None:
        the lease is over, or `rights` do not allow to end it (`Settling.leased`), and nothing is done. Raises
        what `place` raises, with nothing done."""
        group, found = self._groups.get(text), self._settling.leased(text, number, rights)
        if group is None or found is None or not is_it(found[1]) or not group.is_held(found[1]):
            return None
        member, lent = found
        loan = lent.loan
        if loan is None or loan.flight is None:
            return None
        placed = place()
        loan.flight.fate = SETTLED
        self._cursors.store(commit, group)
        ack = group, loan.flight, member, lent
        new = [one for one in placed if not isinstance(one, Known)]
        self._decisions.note(
            partial(self._failed, *ack), partial(self._done, *ack), partial(self._reread, new, ack)
        )
        return placed

    def _done(self, group: Group, flight: Flight, member: Subscriber, lent: Flight) -> None:
        """It is durable. `flight`: the group's, `lent`: the member's."""
        flight.fate = IN_FLIGHT
        if member.session.has(lent):
            self._settling.ack_run(member, (lent.packet_id,))
        elif group.session.has(flight):
            group.session.ack(flight.packet_id)
            group.dirty.add(group)
            self._groups.read_on(group)

    def _failed(self, group: Group, flight: Flight, member: Subscriber, lent: Flight) -> None:
        """Its batch has failed: its message is in flight as before, unless its lease has ended, or its worker
        has said something else since."""
        flight.fate = IN_FLIGHT
        is_held = member.session.has(lent) and group.is_held(lent)
        if group.session.has(flight) and not is_held:
            self._undone.fail(group, flight, NOT_STORED, by=member.name, outcome=LOST)

    def _reread(self, new: Sequence[MessageId], ack: Ack) -> None:
        """Its batch may be stored though it has failed."""
        if new and self._reader.find(new[0]) is not None:
            self._done(*ack)
