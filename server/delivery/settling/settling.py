"""The verbs of a delivery: outcomes that a client, or a part of the server, reports for a message.

    ack, ack_run          the message is done (QoS 1)
    received, complete    the same at QoS 2, which has two steps
    nack                  the client cannot do it now: the message is retried later, or is dead
    extend, lease         the client needs more time: no other member gets the message meanwhile
    ack_named             a message that came on an earlier connection is done
    pass_over             the client does not take messages of this size
    put_back              the message reached no client: another member gets it
    release               the client returns the message in order: another member gets it
    disconnected          the connection has ended, with all that it had in flight
    leave                 a part of the server leaves its group

Returning a message in order is not a try: `release`, a clean DISCONNECT. This holds for the first
RETURNS_FREE times, so that a message that always stops its worker in order does not loop for ever.

The server's absence ends no lease. As it stops, its clients keep what they have; so they do after a kill, as
far as a cursor was written. After the start a member without a connection, a *former* one, has it until the
lease's end (`restore_leases`). The client says what it still has (`hold`), and acks it by its id.

A message of a group is in flight twice: in the session of the member, and in the group that lent it
(shared.py). Here the member's flight ends. The table then decides about the group's (events.py, lives.py).

An ack with messages that follow from it: they are placed, and the message is done, in one batch or not at
all.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from shards.commit import Commit
from shards.delivery_rows import Name
from shards.draft import Known
from shards.errors import Corrupt
from shards.kept import Kept, check_room, kept_at
from shards.read import Reader
from timeline.deliveries import RETURNS_FREE
from timeline.delivery_rows import Event, keeps
from timeline.position import MessageId, Position, id_position
from timeline.session import IN_FLIGHT, SETTLED, Flight, Session

from ...auth.rights import Rights
from ...engine.clock import Clock
from ...engine.commit_hook import ignore
from ...engine.decisions import Decisions
from ...observe.logs import by, clean
from ..cursors import Cursors
from ..membership import GROUP_WINDOW, Membership
from ..place import Place
from ..shared import Group
from ..subscriber import Inside, Subscriber
from ..tries import UNANSWERED
from .events import Busy as Busy
from .events import Events
from .lives import Answered
from .lives import Outcome as Outcome

log = logging.getLogger(__name__)

TOO_LARGE = "not sent, as it is too large for this client"
NOT_STORED = "acked with messages, which could not be stored"
TOGETHER_MAX = 100
"""Maximum shared subscriptions whose cursors are written with that of a leaving member, some 3 ms. Further
ones are written in their turns."""
LOOK_S = 0.25
"""How often leases are checked, ..."""
LAPSED = 1_000
"""... and maximum lapsed ones taken in one look: some 2 ms."""
FORMER = "(pull)"
"""Display name of members that lease over HTTP, ..."""
AWAY = "(away)"
"""... and of those that had a message over MQTT before the start."""
HELD_MS = 30_000
"""How long a message is leased from the start on to a client that had it without an ack timeout."""
Placed = MessageId | Known


class Receipt(Enum):
    """Result of a client's receipt of a QoS 2 message."""

    UNKNOWN = auto()
    """No message is in flight under this packet id."""
    RETIRED = auto()
    """The server has given up the message. The client must still end the exchange."""
    WRONG = auto()
    """The message under this packet id is not of QoS 2."""
    ENDED = auto()
    """The client does not want the message: the exchange is over."""
    NOTED = auto()
    """The message may be released."""
    LATER = auto()
    """The message may be released when the receipt is durable."""


class Former(NamedTuple):
    """A member that has leases from before the start. `lent`: its flights, by position, and those that were
    its own once."""

    group: Group
    member: Inside
    lent: dict[Position, Flight]


@dataclass(slots=True, eq=False)
class Away:
    """What a client has from before the start counts in its window, also if its packet ids are gone: else it
    is given more than it can begin, and the lease of that runs. `back`: its session, once it is back."""

    formers: list[Former] = field(default_factory=list)
    back: Subscriber | None = None
    window: int = 0

    @property
    def has_any(self) -> bool:
        return any(one.member.session.flights for one in self.formers)

    def fit(self) -> Subscriber | None:
        """Returns its session, if it has more room than before."""
        if self.back is None:
            return None
        session, before = self.back.session, self.back.session.window
        session.resize(max(0, self.window - sum(len(one.member.session.flights) for one in self.formers)))
        return self.back if session.window > before else None


class Settling:
    """Settles deliveries: decides what becomes of each."""

    def __init__(
        self,
        cursors: Cursors,
        groups: Membership,
        events: Events,
        decisions: Decisions,
        reader: Reader,
        clock: Clock,
        running_ms: Callable[[], int],
    ) -> None:
        """`running_ms`: running time of the server over all starts."""
        self._cursors = cursors
        self._groups = groups
        self._leases = groups.loans.leases
        self._events = events
        self._decisions = decisions
        self._reader = reader
        self._clock = clock
        self._running_ms = running_ms
        self._former: dict[tuple[str, int], Former] = {}
        """Members that hold leases from before the start, by the text of the group and the holder."""
        self._away: dict[int, Away] = {}
        """By holder."""
        self._look_at = 0.0
        self.results_dropped = 0
        """Results of MQTT clients."""
        self.awaited: dict[Position, set[Callable[[], None]]] = {}
        """What is called when a message's result is stored; whoever waits adds and removes it."""

    def restore(self) -> None:
        """At start: restore the groups. A flight without room to wait for a member is retried."""
        for group, flight in self._groups.restore():
            self._events.fail(group, flight, Event.LOST, UNANSWERED, delay_ms=0)

    def restore_leases(self) -> None:
        """At start, after that: a worker keeps what it has until the lease's end, in running time. A member
        without a connection holds it."""
        for group in self._groups:
            for flight in group.session.flights.values():
                if flight.is_leased and not flight.fate:
                    left_ms = max(1, flight.until_ms - self._running_ms()) if flight.until_ms else HELD_MS
                    former = self._former_of(group, flight)
                    lent = self._groups.loans.lend_again(group, former.member, flight, left_ms)
                    former.lent[lent.position] = lent

    def ready(self) -> None:
        """The server is ready for clients: leases without an end last HELD_MS from now on."""
        for _, member, flights in self._former.values():
            for lent in flights.values():
                if lent.loan is not None and lent.loan.flight is not None and not lent.loan.flight.until_ms:
                    self.extend(member, lent.packet_id, HELD_MS)

    def _former_of(self, group: Group, flight: Flight) -> Former:
        name = group.text, flight.holder
        if name not in self._former:
            called = AWAY if flight.holder else FORMER
            session = Session(called, read=group.session.read, expiry_s=0, window=GROUP_WINDOW)
            member = Inside(session, self._cursors.persist, keeps_overdue=False)
            member.holder = flight.holder
            self._former[name] = former = Former(group, member, {})
            if flight.holder:
                self._away.setdefault(flight.holder, Away()).formers.append(former)
        return self._former[name]

    def is_back(self, subscriber: Subscriber) -> None:
        """A client that says what it holds has connected: what it has from before the start takes room."""
        away = self._away.get(subscriber.holder)
        if away is not None:
            away.back, away.window = subscriber, subscriber.session.window
            away.fit()

    def hold(self, member: Subscriber, text: str, messages: Iterable[MessageId]) -> list[MessageId]:
        """The client has these messages of its group still, from before the start: their leases begin anew.
        Returns those that are not leased to it (any more)."""
        group, former = self._groups.get(text), self._former.get((text, member.holder))
        if group is None or former is None or text not in member.groups:
            return list(messages)
        term_ms = group.in_force.ack_timeout_ms or HELD_MS
        until_s, lost = self._clock.mono() + term_ms / 1_000, list[MessageId]()
        for message in messages:
            lent = self._lent_to(former, message)
            is_theirs = lent is not None and former.member.session.has(lent) and group.is_held(lent)
            if lent is None or lent.loan is None or not is_theirs:
                lost.append(message)
            elif lent.loan.until_s < until_s:
                self.extend(former.member, lent.packet_id, term_ms)
        return lost

    def _lent_to(self, former: Former, message: MessageId) -> Flight | None:
        """Its flight, also of a message that was moved."""
        lent = former.lent.get(id_position(message))
        with suppress(Corrupt):
            found = None if lent is not None else self._reader.find(message)
            return lent if found is None else former.lent.get(found.position)
        return lent

    @property
    def former(self) -> int:
        """Number of leases from before the start. Forgets who has none any more."""
        held = {name: one for name, one in self._former.items() if one.member.session.flights}
        self._former = {name: one for name, one in held.items() if self._groups.get(name[0]) is one.group}
        return sum(len(one.member.session.flights) for one in self._former.values())

    def step(self) -> None:
        """Handle lapsed leases."""
        now_s = self._clock.mono()
        if now_s < self._look_at:
            return
        self._look_at = now_s + LOOK_S
        for holder, away in list(self._away.items()):
            if (back := away.fit()) is not None:
                self._groups.read_on(back)
            if not away.has_any:
                del self._away[holder]
        for group, member, lent in self._leases.take_lapsed(LAPSED):
            loan = lent.loan
            assert loan is not None, "a lease is a loan"
            loan.is_overdue = True
            if loan.flight is not None and group.session.has(loan.flight):
                log.info("%s: ack timeout of %s", clean(group.name), clean(member.name), extra=by(group.name))
                why = f"not acked within {loan.term_ms / 1_000:g} s"
                since_s = loan.since_s
                self._events.fail(group, loan.flight, Event.LAPSE, why, by=member.name, since_s=since_s)
            if isinstance(member, Inside) and not member.keeps_overdue:
                self._groups.loans.take_back(member, lent)

    def ack(self, subscriber: Subscriber, packet_id: int, answer: str = "") -> bool:
        """The client acks a QoS 1 message. False: this packet id has another QoS. Written for speed, since it
        runs for each delivery: the usual case is inlined. `answer`: what a post was answered."""
        session = subscriber.session
        flights = session.flights
        flight = flights.get(packet_id)
        if flight is None:
            session.retired.pop(packet_id, None)
            return True
        if flight.qos != 1:
            return False
        if flight.loan is not None:
            flight.loan.answer = answer
            return self.ack_run(subscriber, (packet_id,))
        del flights[packet_id]
        if session.resends:
            session.resends.discard(packet_id)
        subscriber.dirty.add(subscriber)
        if not session.tailing or subscriber.groups:
            self._groups.read_on(subscriber)
        return True

    def ack_run(self, subscriber: Subscriber, packet_ids: Iterable[int]) -> bool:
        """Ack several QoS 1 messages, then check once for room. False: one is not of QoS 1; those before it
        are acked."""
        ended, is_sound = subscriber.session.ack_run(packet_ids)
        if ended:
            subscriber.dirty.add(subscriber)
            for group, lent in self._groups.loans.acked(subscriber, ended):
                self._events.finish(group, *lent.origin, ignore, by=subscriber.name)
            if subscriber.groups or not subscriber.session.tailing:
                self._groups.read_on(subscriber)
        return is_sound

    def nack(
        self,
        subscriber: Subscriber,
        packet_id: int,
        *,
        delay_ms: int | None,
        reason: str,
        done: Answered,
        qos: int = 1,
    ) -> bool:
        """The client cannot do a message now: retry it, for the session or for the group that lent it.

        `delay_ms`: delay; None: back-off; NEVER: it is dead at once. The packet id becomes free. `done` is
        called when the outcome is durable, or cannot be for now. False: the message under this packet id has
        another QoS, or its exchange is too far; `done` is not called.
        """
        flight = subscriber.session.flights.get(packet_id)
        if qos == 2:
            subscriber.session.retired.pop(packet_id, None)
        if flight is None or flight.fate:
            done(Outcome.GONE)
            return True
        if flight.qos != qos or flight.phase:
            return False
        is_own, group = not flight.is_of_group, None
        held: tuple[Place, Flight] | None = (subscriber, flight)
        if is_own:
            group = self._groups.get(flight.loan.share) if flight.loan is not None else None
        else:
            held = self._groups.loans.take_back(subscriber, flight)
            self._groups.read_on(subscriber)
        if held is None:
            done(Outcome.GONE)
            return True
        self._events.fail(
            *held,
            Event.NACK,
            reason,
            place=group,
            delay_ms=delay_ms,
            is_ended=is_own,
            answered=done,
            by=subscriber.name,
            since_s=_since_s(flight),
        )
        return True

    def ack_named(self, member: Subscriber, text: str, message: MessageId, done: Answered) -> None:
        """The member acks a message of its group from an earlier connection. `done`: as for a late ack; GONE
        if it is no member of that group."""
        group, former = self._groups.get(text), self._former.get((text, member.holder))
        if group is None or text not in member.groups:
            done(Outcome.GONE)
            return

        def ended(outcome: Outcome) -> None:
            lent = None if former is None else self._lent_to(former, message)
            if former is not None and lent is not None and not group.is_held(lent):
                self._groups.loans.take_back(former.member, lent)
            done(outcome)

        self._events.finish_named(group, member, message, done if former is None else ended)

    def extend(self, subscriber: Subscriber, packet_id: int, for_ms: int, progress: bytes = b"") -> bool:
        """The client keeps the message for `for_ms` from now, if the group has an ack timeout. False: it no
        longer has it, or it says its `progress` (JSON) with what is not a group's at QoS 1. Raises Busy, with
        nothing done, if there is no room for that."""
        flight = subscriber.session.flights.get(packet_id)
        if flight is None or flight.fate:
            return False
        loan = flight.loan
        if loan is None or loan.flight is None:
            return not progress
        group = self._groups.get(loan.share)
        if group is None or not group.is_held(flight):
            return False
        if progress:
            self._leases.progress.note(group, loan.flight, progress)
        if loan.until_s:
            self._leases.extend(group, subscriber, (flight,), for_ms)
        if loan.until_s and (loan.flight.number or loan.flight.holder):  # not a post's
            loan.flight.lease_until(self._running_ms() + for_ms)
            group.dirty.add(group)
        return True

    def lease(self, member: Subscriber, text: str, packet_ids: Iterable[int], for_ms: int) -> list[int]:
        """`extend` for messages of the group with that text, but they come back after that time even if it
        has no ack timeout, and the leases survive the server once its cursor is durable. Returns their
        numbers, for `leased`; 0: the client no longer has the message."""
        group, flights, until_ms = self._groups.get(text), member.session.flights, self._running_ms() + for_ms
        numbers: list[int] = []
        run: list[Flight] = []
        packet_ids = list(packet_ids)
        for packet_id, number in zip(packet_ids, self._leases.new_numbers(len(packet_ids)), strict=True):
            flight = flights.get(packet_id)
            loan = None if flight is None or flight.fate else flight.loan
            if flight is None or loan is None or group is None or not group.is_held(flight):
                numbers.append(0)
                continue
            self._leases.name(group, member, flight, loan, number)
            if loan.flight is not None:
                loan.flight.number, loan.flight.until_ms, loan.flight.stored_as = number, until_ms, -1
            numbers.append(number)
            run.append(flight)
        if group is not None and run:
            self._leases.extend(group, member, run, for_ms)
            group.dirty.add(group)
        return numbers

    def leased(
        self, text: str, number: int, rights: Rights | None = None
    ) -> tuple[Subscriber, Flight] | None:
        """The member that holds the lease of that number, and the flight. `rights`: those of the caller. A
        lease of another client counts only if the caller may receive the message."""
        found, group = self._leases.find(number), self._groups.get(text)
        if found is None or group is None or found[0] is not group:
            return None
        _, member, flight = found
        is_own = rights is None or member.owner == rights.name or rights.may_receive_all(group.filter)
        return (member, flight) if is_own or self._events.may_finish(group, flight, rights) else None

    def received(
        self, subscriber: Subscriber, packet_id: int, done: Callable[[bool], None], *, is_taken: bool
    ) -> Receipt:
        """The client has received a QoS 2 message, or (not `is_taken`) refuses it. After LATER `done` is
        called with whether the receipt is durable."""
        flight = subscriber.session.flights.get(packet_id)
        if flight is None:
            return Receipt.RETIRED if packet_id in subscriber.session.retired else Receipt.UNKNOWN
        if flight.qos != 2:
            return Receipt.WRONG
        if not is_taken:
            self._finish(subscriber, flight)
            return Receipt.ENDED
        if flight.phase == 2 or not subscriber.session.is_persistent:
            flight.phase = 2
            return Receipt.NOTED
        flight.phase = 1

        def stored(waiting: int) -> None:
            if waiting >= 0:
                flight.phase = 2
            done(waiting >= 0)

        self._cursors.persist(subscriber, stored)
        return Receipt.LATER

    def complete(self, subscriber: Subscriber, packet_id: int) -> bool:
        """The client has ended a QoS 2 exchange. False: the exchange under this packet id is not so far."""
        flight = subscriber.session.flights.get(packet_id)
        if flight is None:
            subscriber.session.retired.pop(packet_id, None)
            return True
        if flight.qos != 2 or not flight.phase:
            return False
        self._finish(subscriber, flight)
        return True

    def pass_over(self, subscriber: Subscriber, packet_id: int) -> None:
        """The client does not take messages of this size: count the message as acked."""
        flight = subscriber.session.flights.get(packet_id)
        if flight is not None:
            if flight.loan is not None:
                flight.loan.answer = TOO_LARGE
            self._finish(subscriber, flight)

    def put_back(self, member: Subscriber, packet_id: int) -> None:
        """A part of the server could not deliver the message: another member gets it, as if for the first
        time."""
        held = self._taken_back(member, packet_id)
        if held is None:
            return
        group, flight = held
        if flight.position in group.rows.out or not self._groups.loans.give_back(group, flight):
            self._events.fail(group, flight, Event.PUT_BACK)

    def release(self, member: Subscriber, packet_id: int) -> bool:
        """The client returns the message in order: another member gets it. False: the client no longer has
        it."""
        flight = member.session.flights.get(packet_id)
        since_s = 0.0 if flight is None else _since_s(flight)
        held = self._taken_back(member, packet_id)
        if held is None:
            return False
        self._return(*held, member.name, since_s)
        return True

    def disconnected(self, subscriber: Subscriber, *, is_clean: bool, is_stopping: bool = False) -> None:
        """The connection has ended. Messages on their way stay in flight, and the read position stands still.

        Messages of groups go to other members: at once, as returned in order (`is_clean`), or later, as
        failed deliveries. If the server stops they stay leased to the client.
        """
        subscriber.link = None
        subscriber.session.resends.clear()
        subscriber.unanswered = 0
        subscriber.drop_barrier()
        left = self._groups.disconnected(subscriber, keeps=is_stopping)
        subscriber.cursor.has_given_back = 0 < len(subscriber.groups) <= TOGETHER_MAX
        # It keeps flights of groups as its own.
        flights = subscriber.session.flights.values()
        subscriber.cursor.is_entangled |= any(flight.loan is not None for flight in flights)
        for group, flight, loan in left:
            if is_clean:
                self._return(group, flight, subscriber.name, loan.since_s)
            else:
                why, who = "connection lost", subscriber.name
                self._events.fail(group, flight, Event.LOST, why, by=who, since_s=loan.since_s)

    def leave(self, member: Inside, *, is_clean: bool, is_stopping: bool = False) -> None:
        """A part of the server leaves its group: its unacked messages go to another member (`is_clean`: in
        order), or are retried. If the server stops they stay in flight, as after a kill."""
        self.disconnected(member, is_clean=is_clean, is_stopping=is_stopping)
        self._groups.forget(member)

    def _taken_back(self, member: Subscriber, packet_id: int) -> tuple[Group, Flight] | None:
        """Take back a group's message that a member has in flight."""
        flight = member.session.flights.get(packet_id)
        if flight is None or flight.loan is None:
            return None
        return self._groups.loans.take_back(member, flight)

    def _return(self, group: Group, flight: Flight, by: str, since_s: float) -> None:
        """A member has returned the message in order."""
        flight.end_lease()
        if flight.returns < RETURNS_FREE:
            flight.returns += 1
            if self._groups.loans.give_back(group, flight):
                return
            flight.returns -= 1  # the table counts it
        why = f"returned {RETURNS_FREE + 1} times without an answer"
        self._events.fail(group, flight, Event.RETURN, why, by=by, since_s=since_s)

    # -- acks with messages that follow

    def follow(
        self,
        commit: Commit,
        text: str,
        number: int,
        is_it: Callable[[Flight], bool],
        place: Callable[[], Sequence[Placed]],
        rights: Rights | None = None,
        result: bytes | None = None,
    ) -> Sequence[Placed] | None:
        """In the writer: ack the message that is leased under this number, with its `result` (JSON), and
        `place` what follows from it, in one batch or not at all. None: the lease is over, or `rights` do not
        allow to end it (`leased`), and nothing is done. Raises what `place` raises, and Refused if there is
        no room for the result, with nothing done.

        Only the lease itself counts, not that of an earlier try: of two workers that both do a message, since
        the first was too slow, one has its messages stored. In RAM the flight stays until the batch is
        durable.
        """
        found = self.leased(text, number, rights)
        if found is None or not is_it(found[1]):
            return None
        return self._follow(commit, *found, place, result)

    def answer(self, member: Subscriber, packet_id: int, result: bytes) -> bool:
        """`ack` with a result (JSON; empty: it was none). One that cannot be stored is dropped, and the
        message is done."""
        lent = member.session.flights.get(packet_id)
        group = None if lent is None or lent.qos != 1 or not result else self._groups.loans.lender(lent)

        def answered(placed: object) -> None:
            if placed is not None and not isinstance(placed, Exception):
                return
            self.results_dropped += 1
            why = placed or "it is not JSON, or not that of a group's message which the client has"
            log.warning("%s: a result is dropped: %s", clean(member.name), clean(why), extra=by(member.name))
            if lent is not None and group is not None and not member.session.has(lent):
                self._events.finish(group, *lent.origin, ignore)
            elif group is not None:
                self.ack_run(member, (packet_id,))

        if lent is None or group is None:
            answered(None)
            return self.ack(member, packet_id)
        follow = partial(self._follow, member=member, lent=lent, place=tuple, result=result)
        self._events.ask(follow, answered, len(result))
        return True

    def _follow(
        self,
        commit: Commit,
        member: Subscriber,
        lent: Flight,
        place: Callable[[], Sequence[Placed]],
        result: bytes | None,
    ) -> Sequence[Placed] | None:
        """In the writer: `follow`, of what a member has."""
        group, loan = self._groups.loans.lender(lent), lent.loan
        if group is None or loan is None or loan.flight is None or not group.is_held(lent):
            return None
        if result is not None:
            check_room(commit, group.whose, len(result))
        placed = place()
        former = kept_at(self._reader.store, Name(group.whose, loan.flight.position))
        loan.flight.fate = SETTLED
        if result is not None or keeps(group.keeping.keep, failed=group.rows.had_failed(loan.flight)):
            self._groups.loans.tell(group, member, loan.flight, loan, result)
        self._cursors.store_done(commit, group)
        ack = group, loan.flight, member, lent
        new = [one for one in placed if not isinstance(one, Known)]
        self._decisions.note(
            partial(self._not_followed, *ack),
            partial(self._followed, *ack),
            partial(self._reread, new, former, ack),
        )
        return placed

    def _followed(self, group: Group, flight: Flight, member: Subscriber, lent: Flight) -> None:
        """It is durable. `flight`: the group's, `lent`: the member's."""
        flight.fate, ends = IN_FLIGHT, group.rows.ends
        counted = ends["done"]  # in that batch
        for wake in self.awaited.get(flight.position, ()):
            wake()
        if member.session.has(lent):
            self.ack_run(member, (lent.packet_id,))
        elif group.session.has(flight):
            group.session.ack(flight.packet_id)
            ends["done"] += 1
            group.dirty.add(group)
            self._groups.read_on(group)
        group.rows.noted += ends["done"] - counted

    def _not_followed(self, group: Group, flight: Flight, member: Subscriber, lent: Flight) -> None:
        """Its batch has failed: its message is in flight as before, unless its lease has ended, or its worker
        has said something else since."""
        flight.fate = IN_FLIGHT
        group.rows.ended.pop(flight.position, None)
        if lent.loan is not None:
            lent.loan.is_told = False
        is_held = member.session.has(lent) and group.is_held(lent)
        if group.session.has(flight) and not is_held:
            self._events.fail(group, flight, Event.LOST, NOT_STORED, by=member.name)

    def _reread(
        self,
        new: Sequence[MessageId],
        former: Kept | None,
        ack: tuple[Group, Flight, Subscriber, Flight],
    ) -> None:
        """Its batch may be stored though it has failed. `former`: what was kept of it before."""
        group, flight, _, lent = ack
        if lent.loan is None:
            return
        if new:
            is_there = self._reader.find(new[0]) is not None
        else:
            is_there = kept_at(self._reader.store, Name(group.whose, flight.position)) not in (None, former)
        if is_there:
            lent.loan.is_told = True
            group.rows.forget((flight.position,))  # what there was went with that batch
            self._followed(*ack)

    # --

    def _finish(self, subscriber: Subscriber, flight: Flight) -> None:
        """The client has the message for good, or will never take it."""
        subscriber.session.ack(flight.packet_id)
        subscriber.dirty.add(subscriber)
        for group, lent in self._groups.loans.acked(subscriber, (flight,)):
            self._events.finish(group, *lent.origin, ignore, by=subscriber.name)
        if subscriber.groups or not subscriber.session.tailing:
            self._groups.read_on(subscriber)


def _since_s(flight: Flight) -> float:
    """When a member was given a group's message, s of monotonic time; 0: not a group's."""
    return 0.0 if flight.loan is None else flight.loan.since_s
