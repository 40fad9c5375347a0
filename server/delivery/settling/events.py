"""What happens to deliveries that are out, on the way to the writer: nacks, lapses, lost connections, late
acks, retries that go to another filter of their group's name.

    in flight ──> FAILED: waits for the writer ──> SETTLED: decided (lives.py) ──> a retry, or a dead letter
                     ^                                  |
                     +------- could not be written -----+

Each is decided and written in one batch with the cursor without the flight. So after a kill the message is
exactly one of in flight, waiting or dead. The flight stays until that batch is durable; an ack that comes
before the decision wins.

Thousands of flights may fail at once, with a connection. At most UNDER_WAY of them are in the writer at a
time (engine/errand.py), and places take turns, so that a single one does not wait for thousands of another. A
turn is a few of them, since the cursor is written whole with them. If the writer refuses one, or has no place
for it, it is tried again a second later; its place continues meanwhile. What has failed is in flight, and
bounded as such.

A *late ack*: a member did not ack in time, and does now. It ends the message, whatever has become of it: it
waits for its next try, is in flight with another, is a dead letter (whose copy has gone out already). Beyond
LATE_MAX one is dropped, and its message is redelivered. After a reconnect a member names the message by its
id, since its packet id has no meaning on the new connection: then the message must belong to the group.
Whoever names one by its id, or by a lease that it does not hold, must be allowed to receive it.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from shards.commit import Commit
from shards.delivery_rows import of_message_in
from shards.errors import Corrupt, StoreFailed
from shards.read import Found
from shards.record import decode, is_stub, topic_of
from timeline.delivery_rows import Case, Event, Try
from timeline.filters import matches, parse_share
from timeline.position import START, MessageId, Position, at_of
from timeline.session import FAILED, SETTLED, Flight

from ...auth.rights import Rights
from ...engine.clock import Clock
from ...engine.commit_hook import ignore
from ...engine.errand import RETRY_S, Errand
from ...engine.writer import Busy as Busy
from ...engine.writer import Decide, Writer
from ...observe.logs import by, clean
from ..cursors import Cursors, cursor_cost
from ..membership import Membership
from ..place import Place
from ..sent import Sent
from ..shared import Group
from ..subscriber import Subscriber
from ..tries import LAPSED_LEASE, LOST, RETURNED, SAID_NO, tries_of_flight
from .lives import Answered, Happening, Lives, MayMove, Outcome

log = logging.getLogger(__name__)

UNDER_WAY = 200
"""Maximum events in the writer at a time, ..."""
CURSORS_COST = 8_192
"""... and maximum cost of the cursors written with them, except the last one (cursors.py): 5 to 10 ms."""
TURNS = 12
"""Places in one request, if each has its maximum: 16, with one write of its cursor."""
LATE_MAX = 10_000
"""Late acks that wait."""


NOT_WRITTEN = {
    Event.LATE_ACK: "late ack cannot be written",
    Event.MOVE: "a retry waits in a filter without members",
}
OUTCOMES = {Event.LAPSE: LAPSED_LEASE, Event.LOST: LOST, Event.BAR: LOST, Event.RETURN: RETURNED}
"""Of the try that ends; else SAID_NO."""
NO_CASE = Case(START)


class Events:
    """Takes events to the writer. `retried`, `finished`, `moved`: retries placed, late acks that have ended
    something, and retries moved, since the start."""

    def __init__(
        self,
        lives: Lives,
        groups: Membership,
        cursors: Cursors,
        sent: Sent,
        writer: Writer,
        clock: Clock,
    ) -> None:
        self._lives = lives
        self._groups = groups
        self._cursors = cursors
        self._sent = sent
        self._writer = writer
        self._clock = clock
        self.errand: Errand[Happening, Outcome] = Errand(
            writer,
            clock,
            self._decide,
            self._decided,
            self._not_decided,
            most=UNDER_WAY,
            turn=max(1, UNDER_WAY // TURNS),
            owner=lambda what: what.owner,
            cost=lambda what: cursor_cost(what.owner),
            cost_max=CURSORS_COST,
            begin=self._look_through,
        )
        self._flights: dict[Place, dict[Position, Flight]] = {}
        """Flights of the groups with late acks in the running request, by position."""
        self._late = 0
        self.retried = self.finished = self.moved = 0

    # -- what is in flight

    def fail(
        self,
        holder: Place,
        flight: Flight,
        event: Event,
        reason: str = "",
        *,
        place: Place | None = None,
        delay_ms: int | None = None,
        by: str = "",
        outcome: str = "",
        since_s: float = 0.0,
        is_sent: bool = True,
        is_ended: bool = False,
        ended_ms: int = 0,
        answered: Answered = ignore,
    ) -> None:
        """A delivery comes to nothing for now; `answered` is called once the outcome is durable, or cannot be
        now.

        `place`: whose delivery it is, if not its holder's. `delay_ms`: of the next try; None: back-off;
        NEVER: dead. `by` whom it was tried, since when (s of monotonic time, 0: unknown). `is_ended`: its
        client has ended the exchange. `ended_ms`: end of its connection, wall ms; 0: now, or unknown.
        """
        if flight.fate:
            answered(Outcome.GONE)
            return
        flight.fate = FAILED
        self._groups.returned.failing += holder.is_group
        holder.session.resends.discard(flight.packet_id)
        held_ms = (
            max(1, round((self._clock.mono() - since_s) * 1_000)) if since_s else flight.held_ms(ended_ms)
        )
        case = Case(
            START,
            delay_ms=delay_ms,
            reason=reason,
            by=by,
            outcome=outcome or OUTCOMES.get(event, SAID_NO),
            held_ms=held_ms,
            ended_ms=ended_ms,
            lost=_lost(flight, holder),
        )
        what = Happening(
            place or holder, holder, event, flight.position, flight.shard, case, answered, flight
        )
        what.is_sent, what.is_ended = is_sent, is_ended
        self.errand.add(what)

    def lose(self, holder: Place, flight: Flight, event: Event, reason: str) -> None:
        """Fail a flight that is not resent: its last delivery ended with its connection, or with the
        server."""
        by = holder.name if holder.presence.ended_ms else ""
        self.fail(holder, flight, event, reason, by=by, outcome=LOST, ended_ms=holder.presence.ended_ms)

    def ask(self, decide: Decide, answered: Callable[[object], None], size: int) -> None:
        """Have a request of so many bytes decided; `answered` also with the error if it cannot be."""
        try:
            self._writer.submit(decide, answered, size=size)
        except (Busy, StoreFailed) as error:
            answered(error)

    # -- late acks, and retries that move

    @property
    def room(self) -> int:
        """Number of late acks that may still be queued."""
        return LATE_MAX - self._late

    def finish(
        self,
        group: Group,
        root: Position,
        shard: int,
        answered: Answered,
        rights: Rights | None = None,
        *,
        by: str = "",
    ) -> None:
        """A late ack by whom, of a message of the group at that position, if `rights` allow to receive it."""
        case = NO_CASE._replace(by=by)
        self._finish(Happening(group, group, Event.LATE_ACK, root, shard, case, answered, rights=rights))

    def finish_named(self, group: Group, member: Subscriber, message: MessageId, answered: Answered) -> None:
        """A late ack of a message of the group by its id, for a member."""
        case = NO_CASE._replace(by=member.name)
        what = Happening(group, group, Event.LATE_ACK, START, -1, case, answered)
        what.message, what.member = message, member
        self._finish(what)

    def may_finish(self, place: Place, flight: Flight, rights: Rights | None) -> bool:
        """Whether these rights allow to receive a message that a place has in flight."""
        message = None if rights is None else self._sent.message(place, flight)
        return rights is None or (message is not None and rights.may_receive(message.topic))

    def _finish(self, what: Happening) -> None:
        if self.room <= 0:
            name = clean(what.place.name)
            log.warning("%s: too many late acks wait, a message is redelivered", name, extra=by(name))
            what.answered(Outcome.GONE)
            return
        self._late += 1
        self.errand.add(what)

    def move(self, group: Group, root: Position, to: Group, may: MayMove, answered: Answered) -> None:
        """A retry of the group goes to another one, if it `may` still."""
        what = Happening(group, group, Event.MOVE, root, -1, NO_CASE, answered)
        what.to, what.may = to, may
        self.errand.add(what)

    # -- in the writer, and back

    def _look_through(self, events: Iterable[Happening]) -> None:
        late = {what.place for what in events if what.event is Event.LATE_ACK}
        self._flights = {
            one: {flight.position: flight for flight in one.session.flights.values()} for one in late
        }

    def _decide(self, commit: Commit, what: Happening) -> Outcome:
        """Raises Refused, Corrupt, before anything is changed."""
        if what.event is Event.LATE_ACK:
            return self._end_late(commit, what)
        if what.event is Event.MOVE:
            return Outcome.AGAIN if self._lives.move(commit, what) else Outcome.GONE
        flight, holder = what.flight, what.owner
        assert flight is not None, "it is out"
        if not holder.session.has(flight):
            return Outcome.GONE
        outcome = self._lives.of_flight(commit, what)
        flight.fate = SETTLED
        if flight.qos == 2 and not what.is_ended:
            holder.session.retire([flight.packet_id])
        self._cursors.store(commit, holder)
        return outcome

    def _end_late(self, commit: Commit, what: Happening) -> Outcome:
        """End a message that is acked late, if there is something to end."""
        group, message = what.place, what.message
        if not isinstance(group, Group) or self._groups.get(group.text) is not group:
            return Outcome.GONE
        if what.member is None:
            message = self._sent.name_at(what.root, what.shard)
        elif message is not None:
            root = _root_of(commit, message, group, what.member)
            if root is None:
                return Outcome.GONE
            what.root = root
        if not _may_end(commit, message, group, what.rights):
            return Outcome.GONE
        flight = self._flights[group].get(what.root)
        is_out = flight is not None and flight.fate != SETTLED and group.session.has(flight)
        what.flight = flight if is_out else None
        if flight is not None and is_out:
            what.case = what.case._replace(lost=_lost(flight, group))
        is_ended = self._lives.late_ack(commit, what, partial(_ordering_key_of, commit, message))
        if flight is not None and is_out:
            group.session.ack(flight.packet_id)
        self._cursors.store(commit, group)
        return Outcome.DONE if is_ended else Outcome.GONE

    def _decided(self, what: Happening, outcome: Outcome) -> None:
        """The outcome is durable."""
        owner = what.owner
        if what.event is Event.LATE_ACK:
            self._late -= 1
            self.finished += outcome is Outcome.DONE
            if isinstance(what.place, Group):
                what.place.rows.ends["done"] += outcome is Outcome.DONE
                what.place.rows.noted += outcome is Outcome.DONE
        elif what.event is Event.MOVE:
            self.moved += outcome is Outcome.AGAIN
        else:
            self._groups.returned.failing -= owner.is_group
            self._end(what, outcome)
        what.answered(outcome)
        self._groups.read_on(owner)

    def _end(self, what: Happening, outcome: Outcome) -> None:
        """End the flight: its holder has room."""
        flight, holder = what.flight, what.owner
        if flight is not None and flight.fate == SETTLED and holder.session.has(flight):
            holder.session.ack(flight.packet_id)
            if flight.loan is not None:
                self._groups.loans.over(holder, flight)
        if outcome in (Outcome.AGAIN, Outcome.DEAD):
            what.place.failed += what.is_try
        if outcome is Outcome.AGAIN:
            self.retried += 1
            holder.redelivered += 1

    def _not_decided(self, what: Happening, why: Exception) -> float | None:
        """The write failed; it is tried again, a late ack only if the writer is at fault."""
        flight, owner = what.flight, what.owner
        if flight is not None and flight.fate == SETTLED:
            flight.fate = FAILED
            owner.session.retired.pop(flight.packet_id, None)
        name = clean(owner.name)
        log.warning(
            "%s: %s: %s", name, NOT_WRITTEN.get(what.event, "an unacked message stays"), why, extra=by(name)
        )
        answered, what.answered = what.answered, ignore
        answered(Outcome.FAILED)
        is_late, is_ours = what.event is Event.LATE_ACK, isinstance(why, Busy | StoreFailed)
        if what.event is Event.MOVE or (is_late and not is_ours):
            self._late -= is_late
            return None
        return RETRY_S


def _lost(flight: Flight, holder: Place) -> tuple[Try, ...]:
    """Its tries whose connection, or the server, was lost: the flight alone knows them."""
    known = tries_of_flight((), flight, holder.name) if flight.attempts > 1 else ()
    return tuple([Try(one.at_ms, one.by, one.outcome, one.reason, one.ms) for one in known])


# -- which message a late ack names


def _root_of(commit: Commit, message: MessageId, group: Group, member: Subscriber) -> Position | None:
    """The position of a due message that the group may have given the member; else None."""
    if member.groups.get(group.text) is not group:
        return None
    found = _found(commit, message)
    if found is None or found.shard is None or at_of(found.position) > commit.open_batch.wall_ms:
        return None
    topic = topic_of(found.value)
    is_theirs = matches(parse_share(group.text)[1], topic.decode()) and member.may_receive(topic)
    return found.position if is_theirs else None


def _may_end(commit: Commit, message: MessageId | None, group: Group, rights: Rights | None) -> bool:
    """Whether these rights allow to receive a message, as its row says, or its retries and dead letters.
    Raises Corrupt."""
    if rights is None or rights.may_receive_all(group.filter):
        return True
    if message is None:
        return False
    found = commit.find(message)
    topics = [] if found is None or is_stub(found.value) else [topic_of(found.value)]
    rows = of_message_in(commit.open_batch, message)
    topics += [topic_of(row.record) for row in rows if not row.is_dropped]
    return bool(topics) and all(map(rights.may_receive, topics))


def _ordering_key_of(commit: Commit, message: MessageId | None) -> bytes:
    """The ordering key of a message; empty: none, or it cannot be read."""
    found = None if message is None else _found(commit, message)
    return b"" if found is None else decode(found.value).ordering_key


def _found(commit: Commit, message: MessageId) -> Found | None:
    """None: it is gone, or unreadable."""
    try:
        found = commit.find(message)
        if found is None or is_stub(found.value):
            return None
        decode(found.value)
    except Corrupt as error:
        log.error("late ack: message unreadable: %s", error)
        return None
    return found
