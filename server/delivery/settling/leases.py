"""Until when a member of a group may keep what it has in flight: leases, and which of them have lapsed.

A loan becomes a *lease* when its group gives members a time to ack in (`ack_timeout`), or when somebody asks
for a time of his own (`extend`). One comes with each delivery, so it must cost next to nothing: all that last
equally long lie in one queue in the order of lending, which is that of their ends, and most are acked long
before that. Whoever asks for ever another time makes no queue for each: beyond QUEUES_MAX they lie together.

    30 s    lent at 1.0 s · 1.2 s · 1.9 s ...      the first of each queue is looked at, no more
    5 min   lent at 0.3 s ...
    others  ends at 9.4 s · 31.0 s · 86.2 s ...    in the order of their ends

Never early: a lease counts monotonic time from when it was given. It may lapse later by as much as
lies between two looks. When more have lapsed than one look takes, those that ended first are first, whatever
their length: a group with short ones that lapse on and on keeps nobody else's from coming back.

A lease that somebody is told of has a *number*, by which it is found for as long as it runs. Numbers rise.
Each start has 2^28 of its own, above those of all starts before it, for seq is then 2^20 higher
(timeline/horizon.py). So a later lease of the same message has another number, also after a restart, when the
server knows nothing of leases that have ended.
"""

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from sortedcontainers import SortedDict

from timeline.horizon import SEQ_GAP
from timeline.session import Flight, Loan

from ...engine.clock import Clock
from ..subscriber import Subscriber

QUEUES_MAX = 100
Lease = tuple[Subscriber, Subscriber, Flight]
"""(group, member, the member's flight)."""
_NONE: dict[int, Lease] = {}
NUMBER_MIN = 1 << 28
"""No lease has a lower number: the packet ids of 0.1.0 are (server/pull/lease_id.py). All are below 2^56."""


class Leases:
    """Every lease that runs. As many as there are loans, at most."""

    def __init__(self, clock: Clock, seq: int = SEQ_GAP) -> None:
        """`seq`: at the start."""
        self._clock = clock
        self.turn_s = clock.mono()
        """When this turn of the server began, s of monotonic time: for what need not be exact."""
        self._given = 0
        self._queues: dict[int, dict[int, Lease]] = {}
        """By how long they last, ms; there is none that is empty."""
        self._others: SortedDict[tuple[float, int], Lease] = SortedDict()
        """Those that were asked for when there were as many queues as may be, and what is left of those from
        before the start: by end."""
        self._number = seq // SEQ_GAP * NUMBER_MIN
        self._named: dict[int, Lease] = {}
        """Those that have a number, by that."""

    def begin_turn(self) -> None:
        self.turn_s = self._clock.mono()

    def __len__(self) -> int:
        return len(self._others) + sum(map(len, self._queues.values()))

    def give(self, group: Subscriber, member: Subscriber, lent: Flight, loan: Loan, term_ms: int) -> None:
        """The member may keep it for so long, as it may everything that the group lends."""
        self._given = loan.lease = self._given + 1
        now_s = self._clock.mono()
        loan.since_s = loan.since_s or now_s
        loan.until_s, loan.term_ms = now_s + term_ms / 1000, term_ms
        queue = self._queues.get(term_ms)
        if queue is None:
            queue = self._queues[term_ms] = {}
        queue[loan.lease] = (group, member, lent)

    def extend(self, group: Subscriber, member: Subscriber, lent: Flight, loan: Loan, for_ms: int) -> None:
        """The member may keep it for so long from now on, whatever it might before."""
        self._take_out(loan)
        if for_ms in self._queues or len(self._queues) < QUEUES_MAX:
            self.give(group, member, lent, loan, for_ms)
        else:
            self.resume(group, member, lent, loan, for_ms)

    def resume(self, group: Subscriber, member: Subscriber, lent: Flight, loan: Loan, for_ms: int) -> None:
        """The member may keep it for so long, which is what is left of a time and hardly anybody else's."""
        self._given = loan.lease = self._given + 1
        loan.until_s, loan.term_ms = self._clock.mono() + for_ms / 1000, for_ms
        self._others[loan.until_s, loan.lease] = (group, member, lent)

    def new_number(self) -> int:
        """One that no lease has or had."""
        self._number += 1
        return self._number

    def name(self, group: Subscriber, member: Subscriber, lent: Flight, loan: Loan, number: int) -> None:
        """It is found by this number, and no other, until it ends."""
        self._named.pop(loan.number, None)
        loan.number = number
        self._named[number] = (group, member, lent)

    def find(self, number: int) -> Lease | None:
        """The one that has this number, if it runs."""
        return self._named.get(number)

    def end(self, loan: Loan) -> None:
        """It has come back, or is the member's own from now on."""
        if loan.until_s and loan.number:
            self._named.pop(loan.number, None)
        self._take_out(loan)

    def _take_out(self, loan: Loan) -> None:
        """It does not wait for its end any more. Its number finds it still."""
        if not loan.until_s:
            return
        queue = self._queues.get(loan.term_ms, _NONE)
        if queue.pop(loan.lease, None) is None:
            del self._others[loan.until_s, loan.lease]
        elif not queue:
            del self._queues[loan.term_ms]
        loan.until_s = 0.0

    def take_lapsed(self, limit: int) -> list[Lease]:
        """Those whose time is over, which are none any more; `limit` at most, the next look finds others."""
        now_s = self._clock.mono()
        queued = [_lapsed(queue, now_s) for queue in self._queues.values() if _is_over(queue, now_s)]
        lapsed = list(islice(merge(self._others_lapsed(now_s), *queued, key=_until_s), limit))
        for _, _, lent in lapsed:
            assert lent.loan is not None, "a lease is a loan"
            self.end(lent.loan)
        return lapsed

    def _others_lapsed(self, now_s: float) -> Iterator[Lease]:
        for (until_s, _), lease in self._others.items():
            if until_s > now_s:
                return
            yield lease


def _until_s(lease: Lease) -> float:
    loan = lease[2].loan
    assert loan is not None, "a lease is a loan"
    return loan.until_s


def _is_over(queue: dict[int, Lease], now_s: float) -> bool:
    """Whether the first of a queue has lapsed."""
    return _until_s(next(iter(queue.values()))) <= now_s


def _lapsed(queue: dict[int, Lease], now_s: float) -> Iterator[Lease]:
    for lease in queue.values():
        if _until_s(lease) > now_s:
            return
        yield lease
