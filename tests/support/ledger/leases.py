"""Calls that name leases: each lease counts by itself, whichever call has given it.

A call takes any part of what `:lease` gave, in one call or in several. The answer says of each lease that it
names whether that is gone. What it does not name stays leased, until its own end.

An ack with messages that follow from it (`then`) names one lease, and counts only while that runs. The
message is done and what follows is there, or neither.
"""

from collections.abc import Collection, Sequence
from typing import Any

from .known import Known
from .settling import Settling
from .stakes import Lease
from .words import ANY, DONE, FLIGHT

THEN = "ack with what follows"


class Leases:
    def __init__(self, known: Known, settling: Settling) -> None:
        self._known = known
        self._settling = settling

    def answered(self, verb: str, named: Sequence[Lease], done: int, gone: Collection[Any]) -> list[Lease]:
        """Of the leases that a call names, those with which it has done something. `done`: how many, as the
        answer says; `gone`: the names of the others."""
        over = [one for one in named if one.name in gone]
        if (done, len(gone)) != (len(named) - len(over), len(over)):
            what = f"{verb} of {len(named)} leases: {done} are done, {len(gone)} gone, {len(over)} of these"
            self._known.fault(6, "a call is miscounted", what)
        left = [one for one in named if one not in over]
        if verb == "ack":
            self._acked(left, over)
            return left
        for one in over:
            self._settling.held_no_more(one.place, one.stake, one.number, verb)
        return [one for one in left if self._settling.counts(one.place, one.stake, one.number, verb)]

    def _acked(self, left: Sequence[Lease], over: Sequence[Lease]) -> None:
        """Two leases of one message may both count, as it was not finished before."""
        for one in {id(one.stake): one for one in left}.values():
            self._settling.acked(one.place, one.stake, one.number)
        for one in over:
            self._settling.gone(one.place, one.stake)

    def followed(self, lease: Lease, *, is_gone: bool) -> None:
        """An ack with what follows was answered."""
        if is_gone:
            self._settling.held_no_more(lease.place, lease.stake, lease.number, THEN)
        elif FLIGHT not in lease.stake.may and not lease.stake.is_reported:
            self._known.blame(5, "a lease that is over counts", lease.place, lease.stake, f"; {THEN}")
        elif self._settling.counts(lease.place, lease.stake, lease.number, THEN):
            self._settling.finished(lease.stake)

    def found(self, lease: Lease, *, is_there: bool) -> None:
        """After a kill in the middle of that: whether what follows is there."""
        left = lease.stake.may & (frozenset({DONE}) if is_there else ANY - {DONE})
        if not left:
            what = f"; what follows is {'' if is_there else 'not '}there"
            self._known.blame(5, "half an ack", lease.place, lease.stake, what)
        else:
            lease.stake.may = left
