"""Leases: how long members of groups may keep messages in flight, and which leases have lapsed.

A loan becomes a *lease* when its group has an `ack_timeout`, or when a client asks for a time (`extend`).
Every delivery may have one, so it must cost almost nothing. Leases of equal length are in one queue in the
order of lending, which is the order of their ends; most are acked long before that. Many different times do
not make a queue each: beyond QUEUES_MAX they share one.

    30 s    lent at 1.0 s · 1.2 s · 1.9 s ...      only the first of each queue is checked
    5 min   lent at 0.3 s ...
    others  ends at 9.4 s · 31.0 s · 86.2 s ...    in the order of their ends

Never early: a lease counts monotonic time from when it was given. It may lapse later by the time between two
looks. If more have lapsed than one look takes, those that ended first come first, whatever their length: a
group whose short leases always lapse does not delay others.

A lease with an id has a *number*, by which it is found while it runs: 64 random bits, which nobody can guess.
So a later lease of the same message has another number, also after a restart, when the server has forgotten
ended leases.

What an MQTT client has is leased to it over the server's absence too, under the client's `holder`.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice

from sortedcontainers import SortedDict

from timeline.session import Flight, Loan

from ...engine.clock import Clock
from ..place import Place
from ..progress import Progress
from ..subscriber import Subscriber

QUEUES_MAX = 100
Lease = tuple[Place, Subscriber, Flight]
"""(group, member, the member's flight)."""
_NONE: dict[int, Lease] = {}
NUMBER_MIN = 1 << 28
"""Minimum number of a lease: the packet ids of 0.1.0 are lower (server/pull/lease_id.py). All are below
2^64."""


class Leases:
    """All running leases. At most as many as loans."""

    def __init__(
        self,
        clock: Clock,
        running_ms: Callable[[], int],
        token: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`running_ms`: running time of the server over all starts. `token`: so many random bytes."""
        self._clock = clock
        self._running_ms = running_ms
        self._token = token
        self.progress = Progress(clock)
        self.turn_s, self._turn_ms = clock.mono(), clock.wall_ms()
        """Start of this turn of the server, s of monotonic time: for inexact uses."""
        self.is_unwritten = False
        """Messages were given to clients, or are done with a story, since somebody looked here: it is to be
        written soon."""
        self.drained_since_ms: int | None = None
        """Since when groups lend nothing (server/delivery/drain.py), wall ms; None: they lend."""
        self._given = 0
        self._queues: dict[int, dict[int, Lease]] = {}
        """Queues by lease time, ms; none is empty."""
        self._others: SortedDict[tuple[float, int], Lease] = SortedDict()
        """Leases beyond QUEUES_MAX, and remaining ones from before the start: by end."""
        self._named: dict[int, Lease] = {}
        """Leases with a number, by that."""

    def begin_turn(self) -> None:
        self.turn_s, self._turn_ms = self._clock.mono(), self._clock.wall_ms()

    def __len__(self) -> int:
        return len(self._others) + sum(map(len, self._queues.values()))

    def give(self, group: Place, member: Subscriber, run: Sequence[Flight], term_ms: int) -> None:
        """Begin leases of the group's usual time; `run`: one flight or more."""
        lease, now_s = self._given, self._clock.mono()
        until_s, queue = now_s + term_ms / 1000, self._queues.setdefault(term_ms, {})
        until_ms = self._running_ms() + term_ms if member.holder else 0
        for lent in run:
            loan = _loan_of(lent)
            if until_ms and loan.flight is not None:
                loan.flight.until_ms = until_ms
            lease += 1
            loan.lease, loan.until_s, loan.term_ms = lease, until_s, term_ms
            loan.since_s = loan.since_s or now_s
            queue[lease] = (group, member, lent)
        self._given = lease

    def extend(self, group: Place, member: Subscriber, run: Sequence[Flight], for_ms: int) -> None:
        """Begin leases of `for_ms` from now, in place of the former ones."""
        self.is_unwritten |= member.holder > 0
        for lent in run:
            if lent.loan is not None and lent.loan.until_s:
                self._take_out(lent.loan)
        if for_ms in self._queues or len(self._queues) < QUEUES_MAX:
            self.give(group, member, run, for_ms)
            return
        for lent in run:
            self.resume(group, member, lent, _loan_of(lent), for_ms)

    def resume(self, group: Place, member: Subscriber, lent: Flight, loan: Loan, for_ms: int) -> None:
        """Resume a lease with its remaining time, which hardly any other lease shares."""
        self._given = loan.lease = self._given + 1
        loan.until_s, loan.term_ms = self._clock.mono() + for_ms / 1000, for_ms
        self._others[loan.until_s, loan.lease] = (group, member, lent)

    def held(self, loan: Loan) -> tuple[int, int]:
        """Wall time of this turn, ms, and how long the member has had the message by then; 0: unknown."""
        since_s, turn_s = loan.since_s, self.turn_s
        return self._turn_ms, max(1, round((turn_s - since_s) * 1_000)) if since_s else 0

    def new_numbers(self, count: int) -> Iterator[int]:
        """`count` new, unused numbers."""
        drawn = self._token(8 * count)
        for at in range(0, len(drawn), 8):
            number = int.from_bytes(drawn[at : at + 8], "big")
            while number < NUMBER_MIN or number in self._named:
                number = int.from_bytes(self._token(8), "big")
            yield number

    def name(self, group: Place, member: Subscriber, lent: Flight, loan: Loan, number: int) -> None:
        """Set the lease's number, in place of a former one."""
        self._named.pop(loan.number, None)
        loan.number = number
        self._named[number] = (group, member, lent)

    def find(self, number: int) -> Lease | None:
        """The running lease with this number, or None."""
        return self._named.get(number)

    def end(self, loan: Loan) -> None:
        """End the lease: the message has come back, or is the member's own from now on."""
        if loan.until_s:
            if loan.number:
                self._named.pop(loan.number, None)
            self._take_out(loan)

    def _take_out(self, loan: Loan) -> None:
        """Remove the lease from its queue. Its number still finds it."""
        queue = self._queues.get(loan.term_ms, _NONE)
        if queue.pop(loan.lease, None) is None:
            del self._others[loan.until_s, loan.lease]
        elif not queue:
            del self._queues[loan.term_ms]
        loan.until_s = 0.0

    def take_lapsed(self, limit: int) -> list[Lease]:
        """Take at most `limit` lapsed leases; the next look takes the rest."""
        now_s = self._clock.mono()
        queued = [_lapsed(queue, now_s) for queue in self._queues.values() if _is_over(queue, now_s)]
        lapsed = list(islice(merge(self._others_lapsed(now_s), *queued, key=_until_s), limit))
        for _, _, lent in lapsed:
            self.end(_loan_of(lent))
        return lapsed

    def _others_lapsed(self, now_s: float) -> Iterator[Lease]:
        for (until_s, _), lease in self._others.items():
            if until_s > now_s:
                return
            yield lease


def _loan_of(lent: Flight) -> Loan:
    loan = lent.loan
    assert loan is not None, "a lease is a loan"
    return loan


def _until_s(lease: Lease) -> float:
    return _loan_of(lease[2]).until_s


def _is_over(queue: dict[int, Lease], now_s: float) -> bool:
    """Whether the first lease of a queue has lapsed."""
    return _until_s(next(iter(queue.values()))) <= now_s


def _lapsed(queue: dict[int, Lease], now_s: float) -> Iterator[Lease]:
    for lease in queue.values():
        if _until_s(lease) > now_s:
            return
        yield lease
