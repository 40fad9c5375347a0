"""The verbs of pull: lease messages of groups, ack, return and extend them.

A call for messages waits in a consumer (consumer.py) of each of its groups, and gets the messages that they
give. It is answered when it is full; or when it has messages and there are no more at once, at the end of the
round, unless its groups continue reading in the next one; or empty when its wait is over. Before that the
groups' cursors are made durable, so that a lease can be acked even after a kill.

    call arrives    waits in its consumers; their groups read on                 (a round)
    gets messages   end of the round: leases begin, cursors are written      (a sync)
    is durable      answered; if the client is gone, its messages go back

An ack ends the message at once, and is answered when the groups' cursors are durable; all calls share a
batch. The same holds for releases and extensions. An ack counts whoever has the message then, also if it
waits for a retry or is a dead letter: a message whose lease is over is found by its position
(server/delivery/settling/events.py). All other verbs need the lease itself: one of an earlier try is gone.

The lease of another key counts for a caller only if it may receive the message (`rights`, None: it may).

A lease survives a restart, a kill or a takeover (`Settling.restore_leases`).

Bounds, parts of `limits.memory`: the number of waiting calls, of which one group name and one key have as
many as they leave free for others; the bytes given and not answered yet, beyond which messages stay in the
group; and the number of leases, of which one key and group has as many as it leaves free for others. A call
ends early if its client is gone, or its key may no longer subscribe to the filter.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush

from timeline.session import SETTLED, Flight

from ..auth.rights import Rights
from ..delivery.cursors import Cursors
from ..delivery.membership import Membership
from ..delivery.settling.events import Events
from ..delivery.settling.lives import Outcome
from ..delivery.settling.settling import FORMER, Settling
from ..delivery.shared import Group
from ..delivery.subscriber import Subscriber
from ..engine.clock import Clock
from ..engine.writer import Busy
from ..settings.config import Config
from .call import Call, Given, LeaseAnswer, Leased, LeaseRequest
from .consumer import Consumer
from .lease_id import LeaseId

LEASE_MS = 30_000
"""Default lease time of a group without `ack_timeout`."""
LOOK_S = 0.25
"""How often calls are checked for clients that are gone."""
IDLE_S = 5.0
"""How long a consumer stays without waiting calls and leases."""
ANSWERED = 100
"""Answered calls that may remain in the heap of ends."""
MORE_S = 0.02
"""How long a call with messages waits for groups that read on at once, ..."""
LATE_S = 1.0
"""... and a call without any, beyond its end."""


class Settled:
    """Result of settling leases, gathered while their outcomes are awaited."""

    def __init__(self, cursors: Cursors, answered: "Done", *, until_ms: int = 0) -> None:
        """`answered`: called with it when all outcomes are durable."""
        self._cursors = cursors
        self._answered = answered
        self.left = 1
        """Outstanding results, plus one until all were requested."""
        self.done = self.dead = 0
        """Leases that were settled; messages that became dead letters."""
        self.gone: list[LeaseId] = []
        """Nothing to do: finished before, or another key's."""
        self.until_ms = until_ms
        self.error: Exception | None = None

    def end(self) -> None:
        """Count a result."""
        self.left -= 1
        if not self.left:
            self._answered(self)

    def stored(self, waiting: int) -> None:
        """Callback of `Cursors.persist`: -1 if it is not durable."""
        if waiting < 0:
            self.error = self._cursors.failure
        self.end()

    def decided(self, lease: LeaseId, outcome: Outcome) -> None:
        """What has become of it, after a nack or a late ack."""
        match outcome:
            case Outcome.AGAIN | Outcome.DONE:
                self.done += 1
            case Outcome.DEAD:
                self.dead += 1
            case Outcome.GONE:
                self.gone.append(lease)
            case Outcome.FAILED:
                self.error = self._cursors.failure
        self.end()


Done = Callable[[Settled], None]


class Pull:
    """All calls of a server. `leased`: messages given since the start."""

    def __init__(
        self,
        groups: Membership,
        cursors: Cursors,
        settling: Settling,
        events: Events,
        clock: Clock,
        config: Config,
        wake: Callable[[], None],
    ) -> None:
        """`wake`: plans a round."""
        self._groups = groups
        self._cursors = cursors
        self._settling = settling
        self._events = events
        self._clock = clock
        self._waiting_max = config.limits.waiting_pulls
        self._max_bytes = config.http.buffered_bytes
        self._most = config.limits.leases
        self._out = 0
        """Upper bound of leases: those of the last count, plus messages given since."""
        self._is_missed = False
        """A consumer was refused a message because of that bound."""
        self._wake = wake
        self._consumers: dict[tuple[str, Rights | None], Consumer] = {}
        """One for each group, by its text, and key."""
        self._waiting: dict[Call, tuple[Consumer, ...]] = {}
        self._of: Counter[str] = Counter()
        """Number of waiting calls by group name, and by key (`_whose`); none is 0."""
        self._begun: dict[Call, float] = {}
        """Waiting calls that have messages, and since when, monotonic."""
        self._ends: list[tuple[float, int, Call]] = []
        """A heap of the calls' ends. It may contain as many answered ones as half of it plus ANSWERED."""
        self._count = 0
        self._look_at = 0.0
        self._is_stopping = False
        self.held_bytes = 0
        """Bytes of messages given to calls and not answered."""
        self.leased = 0

    @property
    def waiting(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    @property
    def out(self) -> int:
        """Number of leases, including those from before the start."""
        every = self._consumers.values()
        return sum(len(consumer.member.session.flights) for consumer in every) + self._settling.former

    # -- leasing

    def lease(
        self,
        name: str,
        texts: Sequence[str],
        rights: Rights | None,
        request: LeaseRequest,
        is_gone: Callable[[], bool],
        answered: Callable[[Call, LeaseAnswer], None],
    ) -> Call:
        """Lease messages of these groups, which all have this name. Raises Busy.

        The bytes of its answer count as held until `release`.
        """
        for whose in _whose(name, rights):
            waiting = self._of[whose]
            if waiting and waiting >= self._waiting_max - len(self._waiting):
                raise Busy(
                    f"{waiting} calls wait for messages of {whose[:64]}, as many as are left for others"
                )
        if len(self._waiting) >= self._waiting_max:
            raise Busy(f"{self._waiting_max} calls wait for messages, as many as limits.memory has room for")
        wait_s = 0 if self._is_stopping else request.wait_ms / 1_000
        call = Call(request, self._clock.mono() + wait_s, is_gone, answered)
        consumers = tuple(self._consumer(text, rights) for text in texts)
        self._waiting[call] = consumers
        self._of.update(_whose(name, rights))
        self._count += 1
        heappush(self._ends, (call.until_s, self._count, call))
        if len(self._ends) > 2 * len(self._waiting) + ANSWERED:
            self._ends = [end for end in self._ends if end[2] in self._waiting]
            heapify(self._ends)
        for consumer in consumers:
            consumer.admit(call)
        self._wake()
        return call

    def release(self, call: Call) -> None:
        """The answer is written: its bytes no longer count as held."""
        was_full = self.held_bytes >= self._max_bytes
        self.held_bytes -= call.bytes
        call.bytes = 0
        call.given = []
        if was_full:
            self._wake_consumers()

    def abandon(self, call: Call) -> None:
        """The client is gone: its messages go to others, as if they had never been given."""
        if call in self._waiting:
            self._remove(call)
        for given in call.given:
            if given.packet_id:
                self._settling.put_back(given.member, given.packet_id)
        self.release(call)

    def step(self) -> None:
        """At the end of a round: answer calls that are ready."""
        now_s = self._clock.mono()
        for call, since_s in list(self._begun.items()):
            if call.is_full or now_s >= since_s + MORE_S or not self._may_come(call):
                self._answer(call)
        while self._ends and (self._ends[0][2] not in self._waiting or self._ends[0][0] <= now_s):
            until_s, _, call = self._ends[0]
            if call in self._waiting:
                if now_s < until_s + LATE_S and self._may_come(call):
                    break
                self._answer(call)
            heappop(self._ends)
        if now_s >= self._look_at:
            self._look_at = now_s + LOOK_S
            self._look(now_s)

    def wait_s(self) -> float:
        """Time until the next call's end."""
        return max(0.001, self._ends[0][0] - self._clock.mono()) if self._ends else LOOK_S

    def stop(self) -> None:
        """The server stops: answer all calls, and accept no more."""
        self._is_stopping = True
        for call in list(self._waiting):
            self._answer(call)

    def _consumer(self, text: str, rights: Rights | None) -> Consumer:
        consumer = self._consumers.get((text, rights))
        if consumer is None or consumer.is_closed:
            if consumer is not None:
                self._close(consumer)
            consumer = Consumer(self._groups, text, rights, has_room=self._has_room, took=self._took)
            self._consumers[text, rights] = consumer
        return consumer

    def _close(self, consumer: Consumer) -> None:
        """Remove a consumer; answers its calls."""
        for call in list(consumer.waiting):
            self._answer(call)
        del self._consumers[consumer.text, consumer.rights]
        self._settling.leave(consumer.member, is_clean=True)

    def _has_room(self, own: int, more_bytes: int) -> bool:
        """Whether a consumer with `own` leases may be given another message, after so many bytes."""
        if own + self._out >= self._most:
            self._is_missed = True
            return False
        return self.held_bytes + more_bytes < self._max_bytes

    def _took(self, call: Call, given: Sequence[Given], size: int) -> None:
        call.given += given
        call.bytes += size
        self._out += len(given)
        self.held_bytes += size
        if call not in self._begun:
            self._begun[call] = self._clock.mono()
        if call.is_full:
            for consumer in self._waiting[call]:
                consumer.remove(call)

    def _wake_consumers(self) -> None:
        """Wake the groups of waiting calls: there may be room again."""
        for consumer in self._consumers.values():
            if consumer.waiting:
                self._groups.read_on(consumer.member)

    def _may_come(self, call: Call) -> bool:
        """Whether one of its groups waits for its turn to read on."""
        return any(group.is_ready for consumer in self._waiting[call] for group in consumer.member.bound())

    def _remove(self, call: Call) -> None:
        """Remove a call from its consumers."""
        consumers = self._waiting.pop(call)
        self._begun.pop(call, None)
        for whose in _whose(consumers[0].name, consumers[0].rights):
            self._of[whose] -= 1
            if not self._of[whose]:
                del self._of[whose]
        for consumer in consumers:
            consumer.remove(call)

    def _answer(self, call: Call) -> None:
        """Answer a call with its messages, once that is durable."""
        self._remove(call)
        if not call.given:
            call.answered(call, ())
            return
        found = {given.text: self._groups.get(given.text) for given in call.given}
        groups = {group for group in found.values() if group is not None}
        leased = self._leased(call, found)
        is_failed = False
        open_groups = len(groups)

        def stored(waiting: int) -> None:
            nonlocal open_groups, is_failed
            open_groups -= 1
            is_failed = is_failed or waiting < 0
            if open_groups > 0:
                return
            if is_failed or call.is_gone():
                self.abandon(call)
                call.answered(call, self._cursors.failure if is_failed else ())
                return
            self.leased += len(leased)
            call.answered(call, leased)

        if not groups:
            open_groups = 1
            stored(0)
        for group in groups:
            self._cursors.persist(group, stored)

    def _leased(self, call: Call, groups: Mapping[str, Group | None]) -> list[Leased]:
        """Begin the leases of a call's messages."""
        now_ms = self._clock.wall_ms()
        terms = {text: call.request.lease_ms or _term_ms(group) for text, group in groups.items()}
        held: dict[tuple[Subscriber, str], list[int]] = {}
        for given in call.given:
            if given.packet_id:
                held.setdefault((given.member, given.text), []).append(given.packet_id)
        numbers = {
            member: iter(self._settling.lease(member, text, packet_ids, terms[text]))
            for (member, text), packet_ids in held.items()
        }
        return [
            Leased(
                given,
                now_ms + terms[given.text],
                given.packet_id and (next(numbers[given.member]) or given.packet_id),
            )
            for given in call.given
        ]

    def _look(self, now_s: float) -> None:
        """End calls whose client or right is gone; remove consumers that stay empty."""
        every = list(self._consumers.values())
        closed = {consumer for consumer in every if not self._is_open(consumer)}
        for call, consumers in list(self._waiting.items()):
            if call.is_gone() or (closed and not closed.isdisjoint(consumers)):
                self._answer(call)
        for consumer in every:
            if consumer.is_closed:
                self._close(consumer)
            elif not consumer.is_idle:
                consumer.idle_s = None
            elif consumer.idle_s is None:
                consumer.idle_s = now_s
            elif now_s - consumer.idle_s >= IDLE_S:
                self._close(consumer)
        self._out = self.out
        if self._is_missed:
            self._is_missed = False
            self._wake_consumers()

    def _is_open(self, consumer: Consumer) -> bool:
        """Whether the consumer may still get messages."""
        rights = consumer.rights
        if consumer.is_closed or self._groups.get(consumer.text) is None:
            return False
        return rights is None or (rights.is_live and rights.may_subscribe(consumer.filter))

    # -- settling leases

    def ack(self, leases: Iterable[LeaseId], done: Done, rights: Rights | None = None) -> None:
        """Ack the messages; calls `done` when that is durable.

        Raises Busy, before anything is done, if too many late acks wait.
        """
        settled, touched = Settled(self._cursors, done), set()
        held: dict[Subscriber, list[int]] = {}
        named = [(lease, self._flight(lease, rights)) for lease in leases]
        if sum(found is None for _, found in named) > self._events.room:
            raise Busy("too many acks wait of what is not leased any more")
        groups = {text: self._groups.get(text) for text in {lease.text for lease, _ in named}}
        for lease, found in named:
            group = groups[lease.text]
            if group is None:
                settled.gone.append(lease)
            elif found is not None and _is_open(group, found[1]):
                held.setdefault(found[0], []).append(found[1].packet_id)
                touched.add(group)
                settled.done += 1
            elif not lease.number and (rights is None or rights.may_receive_some(group.filter)):
                settled.done += 1
            else:
                if found is not None:
                    # Another client has decided otherwise: there is room for another message.
                    self._groups.loans.take_back(*found)
                settled.left += 1
                decided = partial(settled.decided, lease)
                self._events.finish(group, lease.position, lease.shard, decided, rights, by=FORMER)
        for member, packet_ids in held.items():
            self._settling.ack_run(member, packet_ids)
        self._persist(touched, settled)

    def nack(
        self,
        leases: Iterable[LeaseId],
        delay_ms: int | None,
        reason: str,
        done: Done,
        rights: Rights | None = None,
    ) -> None:
        """Redeliver after `delay_ms` (None: the group's back-off); calls `done` when that is durable."""
        settled = Settled(self._cursors, done)
        for lease in leases:
            found = self._flight(lease, rights)
            if found is None:
                settled.gone.append(lease)
                continue
            settled.left += 1
            decided = partial(settled.decided, lease)
            member, flight = found
            self._settling.nack(member, flight.packet_id, delay_ms=delay_ms, reason=reason, done=decided)
        settled.end()

    def extend(
        self,
        leases: Iterable[LeaseId],
        lease_ms: int,
        done: Done,
        rights: Rights | None = None,
        progress: bytes = b"",
    ) -> None:
        """Extend the leases from now on; calls `done` when that is durable. `progress`: of the one lease, if
        any; raises Busy, with nothing done, if there is no room for it."""
        extend = partial(self._settling.extend, for_ms=lease_ms, progress=progress)
        until_ms = self._clock.wall_ms() + lease_ms
        self._change(leases, extend, Settled(self._cursors, done, until_ms=until_ms), rights)

    def release_leases(self, leases: Iterable[LeaseId], done: Done, rights: Rights | None = None) -> None:
        """Return the messages in order: another member gets them at once, and it counts as no try. Calls
        `done` when that is durable."""
        self._change(leases, self._settling.release, Settled(self._cursors, done), rights)

    def _change(
        self,
        leases: Iterable[LeaseId],
        change: Callable[[Subscriber, int], bool],
        settled: Settled,
        rights: Rights | None,
    ) -> None:
        touched = set()
        for lease in leases:
            found, group = self._flight(lease, rights), self._groups.get(lease.text)
            if found is not None and group is not None and change(found[0], found[1].packet_id):
                settled.done += 1
                touched.add(group)
            else:
                settled.gone.append(lease)
        self._persist(touched, settled)

    def _persist(self, groups: Iterable[Group], settled: Settled) -> None:
        for group in groups:
            settled.left += 1
            self._cursors.persist(group, settled.stored)
        settled.end()

    def _flight(self, lease: LeaseId, rights: Rights | None) -> tuple[Subscriber, Flight] | None:
        """The member that has the message by this very lease, and the flight."""
        found = self._settling.leased(lease.text, lease.number, rights)
        is_it = found is not None and found[1].origin == (lease.position, lease.shard)
        return found if is_it else None


def _is_open(group: Group, lent: Flight) -> bool:
    """Whether the group still waits for a message that a member has in flight."""
    own = None if lent.loan is None else lent.loan.flight
    if own is None:
        return True
    return group.session.has(own) and own.fate != SETTLED


def _term_ms(group: Group | None) -> int:
    """The group's default lease time."""
    return LEASE_MS if group is None else group.in_force.ack_timeout_ms or LEASE_MS


def _whose(name: str, rights: Rights | None) -> tuple[str, ...]:
    """What a call counts toward: the group's name, and the key."""
    return (f"group {name}",) if rights is None else (f"group {name}", f"key {rights.name}")
