"""Failed deliveries: the message is retried later, or becomes a dead letter.

A client nacks, a member of a group does not ack in time (its lease lapses) or loses its connection, or a
message has been sent too often: all are failures, handled alike. The message waits as a *retry* for that
session or group alone (shards/delivery_rows.py), as long as requested or as its subscription's back-off says.
After `max_attempts` deliveries, or when its client can never do it, it is *buried*: it becomes a dead letter
(dead_letters.py), with a copy at `$dead/...`.

    in flight ──> FAILED: to be decided ──> SETTLED: decided in the writer ──> a retry, or a dead letter
                     ^                            |
                     +---- could not be written --+

Both are decided in the writer and written in one batch with the cursor without the flight. So after a kill
the message is exactly one of in flight, waiting or dead. The flight stays until that batch is durable; an ack
that comes before the decision wins. A message that has expired, or would before its next try, becomes a dead
letter, and so does an unreadable one: nothing ends silently.

Thousands of flights may fail at once, with a connection. At most UNDER_WAY of them are in the writer at a
time (engine/errand.py), and sessions and groups take turns, so that a single one does not wait for thousands
of another. A turn is a few of them, since the cursor is written whole with them. If the writer refuses one,
or has no place for it, it is tried again a second later, when the store can be written; its session continues
meanwhile. Waiting failures are in flight, and bounded as such.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from shards import delivery_rows
from shards.commit import Commit
from shards.delivery_rows import DeliveryRow, Name
from shards.fate import is_over
from shards.fields import Record, Retry, TryRow
from shards.record import decode
from timeline.key_order import KeyOrder
from timeline.key_rows import NO_KEY
from timeline.position import START, Position, message_id
from timeline.session import FAILED, SETTLED, USUAL, Flight

from ...engine.clock import Clock
from ...engine.commit_hook import ignore
from ...engine.decisions import Decisions
from ...engine.errand import RETRY_S, Errand
from ...engine.writer import Writer
from ...observe.logs import by, shown
from ...settings.config import Sessions
from ..cursors import Cursors, cursor_cost
from ..membership import Membership
from ..message import Message
from ..retries import Retries
from ..router import Router
from ..sent import Sent
from ..shared import Group
from ..subscriber import Inside, Subscriber
from ..terms import HOLD, InForce, in_force
from ..tries import LAPSED_LEASE, LOST, SAID_NO, TRIES_MAX, tries_of_flight
from .dead_letters import DeadLetters, Tried
from .leases import Leases
from .obituaries import Obituaries

log = logging.getLogger(__name__)

UNDER_WAY = 200
"""Maximum failed deliveries in the writer at a time, ..."""
CURSORS_COST = 8_192
"""... and maximum cost of the cursors written with them, except the last one (cursors.py): 5 to 10 ms."""
TURNS = 12
"""Sessions and groups in one request, if each has its maximum: 16, with one write of its cursor."""
LOOK_S = 0.25
"""How often leases are checked, ..."""
LAPSED = 1_000
"""... and maximum lapsed ones taken in one look: some 2 ms."""
REJECTED = "rejected"
"""Default reason of a message that its client rejected for good."""
EXPIRED = "expired"
"""Reason of a tried message that expired before its next try."""
KEPT_TOO_LONG = "kept too long"
UNREADABLE = "unreadable"
"""Reason of a message of which only the id is known: its slice is gone, or it cannot be read."""
PATIENT = 10
LEAST_MS = 1_000
"""Minimum interval of tries of a message that always fails, after many attempts."""
NEVER = -1
"""In place of a delay: no retry, dead at once."""
JITTER = 0.2
"""Maximum part by which a back-off is randomly longer or shorter, so that joint failures spread."""


class Nacked(Enum):
    """Outcome of a failed delivery."""

    AGAIN = auto()
    """It is retried: durable."""
    DEAD = auto()
    """It is a dead letter: durable."""
    GONE = auto()
    """It was no longer in flight; or it has expired, and nobody gets it."""
    FAILED = auto()
    """It cannot be written now: it is still in flight, and tried again each second."""


Answered = Callable[[Nacked], None]


@dataclass(slots=True, eq=False)
class Failure:
    """A failed delivery."""

    holder: Subscriber
    """The session that has it in flight: at QoS 1 the group itself, not its member."""
    flight: Flight
    addressee: Subscriber
    """The session or group to retry it for."""
    reason: str
    delay_ms: int | None
    """None: back-off. NEVER: no retry."""
    is_ended: bool
    """The client has ended the exchange: the packet id becomes free with the flight."""
    answered: Answered
    is_attempt: bool
    """It was tried. If not, its tries are unchanged, and it is never dead."""
    by: str
    """Who had it; empty: unknown."""
    outcome: str
    ms: int
    """How long it was held; 0: unknown."""
    attempts: int
    """Tries from the row that is in flight. A flight that was given back has none."""
    at_ms: int = 0
    """End of the try, wall ms; 0: the time of the decision."""
    crowded_out: int = 0
    """Dead letters evicted for this one."""
    buried: tuple[str, str] = ("", "")
    """The message's id and where it is buried, for the log."""
    placed: Position = START
    """When its retry is due, or it died, in that order; it may be stored even if the batch has failed."""

    @property
    def name(self) -> Name:
        return Name(self.addressee.whose, self.flight.position)

    @property
    def order(self) -> KeyOrder | None:
        """The order that the message is the head of its key in."""
        order = self.holder.session.order
        is_head = self.flight.key not in (b"", NO_KEY) and self.holder is self.addressee
        return order if is_head and order is not None and order.rule.is_ordered else None

    def tried(self, wall_ms: int, message: Message) -> Tried:
        """All known tries, including this one."""
        retry = Retry(b"") if message.is_usual else message.record.retry or Retry(b"")
        attempts, counted = message.attempts_before + self.attempts, message.counted_before + self.attempts
        returns = max(self.flight.returns, retry.returns)
        reason, tries = self.reason, [*tries_of_flight(retry.tries, self.flight, self.holder.name)]
        if self.is_attempt and self.attempts:
            made = TryRow(self.at_ms or wall_ms, self.by, self.outcome, self.reason, self.ms)
            tries = [*tries, made][-TRIES_MAX:]
        elif self.delay_ms != NEVER:
            reason = retry.reason.decode(errors="replace")
        return Tried(attempts, counted, reason, tries, returns)


class Undone:
    """Processes failed deliveries."""

    def __init__(
        self,
        settings: Sessions,
        cursors: Cursors,
        router: Router,
        groups: Membership,
        leases: Leases,
        sent: Sent,
        obituaries: Obituaries,
        dead_letters: DeadLetters,
        retries: Retries,
        decisions: Decisions,
        writer: Writer,
        clock: Clock,
        *,
        chance: Callable[[], float],
        node: int,
    ) -> None:
        """`chance`: a new random number in [0, 1) each time."""
        self._settings = settings
        self._cursors = cursors
        self._router = router
        self._groups = groups
        self._leases = leases
        self._sent = sent
        self._obituaries = obituaries
        self._dead_letters = dead_letters
        self._retries = retries
        self._decisions = decisions
        self._clock = clock
        self._chance = chance
        self._node = node
        self.errand: Errand[Failure, Nacked] = Errand(
            writer,
            clock,
            self._decide,
            self._decided,
            self._not_decided,
            most=UNDER_WAY,
            turn=max(1, UNDER_WAY // TURNS),
            owner=lambda failure: failure.holder,
            cost=lambda failure: cursor_cost(failure.holder),
            cost_max=CURSORS_COST,
        )
        self._look_at = 0.0
        self.retried = 0
        """Retries placed since the start."""

    def step(self) -> None:
        """Handle lapsed leases."""
        now_s = self._clock.mono()
        if now_s < self._look_at:
            return
        self._look_at = now_s + LOOK_S
        for group, member, lent in self._leases.take_lapsed(LAPSED):
            loan = lent.loan
            assert loan is not None, "a lease is a loan"
            loan.is_overdue = True
            if loan.flight is not None and group.session.has(loan.flight):
                cause = by(group.name)
                log.info("%s: ack timeout of %s", shown(group.name), shown(member.name), extra=cause)
                why = f"not acked within {loan.term_ms / 1_000:g} s"
                self.fail(group, loan.flight, why, by=member.name, outcome=LAPSED_LEASE, since_s=loan.since_s)
            if isinstance(member, Inside) and not member.keeps_overdue:
                self._groups.loans.take_back(member, lent)

    def fail(
        self,
        holder: Subscriber,
        flight: Flight,
        reason: str,
        *,
        delay_ms: int | None = None,
        addressee: Subscriber | None = None,
        is_ended: bool = False,
        answered: Answered = ignore,
        is_attempt: bool = True,
        by: str = "",
        outcome: str = SAID_NO,
        since_s: float = 0.0,
        ended_ms: int = 0,
    ) -> None:
        """A delivery failed; `answered` is called once the outcome is durable, or cannot be now.

        `delay_ms`: delay of the retry; None: back-off; NEVER: dead. `addressee`: receiver of the retry, if
        not the holder. `is_ended`: its client has ended the exchange. `is_attempt`: it was tried, `by` whom,
        since when (s of monotonic time, 0: unknown). `ended_ms`: end of its connection, wall ms; 0: now, or
        unknown.
        """
        if flight.fate:
            answered(Nacked.GONE)
            return
        flight.fate = FAILED
        self._groups.returned.failing += holder.is_group
        holder.session.resends.discard(flight.packet_id)
        whose = addressee or holder
        ms = max(1, round((self._clock.mono() - since_s) * 1_000)) if since_s else 0
        ms = flight.held_ms(ended_ms) if ended_ms else ms
        self.errand.add(
            Failure(
                holder,
                flight,
                whose,
                reason,
                delay_ms,
                is_ended,
                answered,
                is_attempt,
                by,
                outcome,
                ms,
                flight.attempts if is_attempt else max(0, flight.attempts - 1),
                ended_ms,
            )
        )

    def give_up(self, commit: Commit, one: Subscriber, root: Position, reason: str, *, is_dead: bool) -> bool:
        """In the writer: a message that waits for its next try becomes a dead letter, or is dropped. False:
        it waits no more. Raises Refused, Corrupt, before anything is changed."""
        row = self._retries.waiting_in(commit, one, root)
        if row is None:
            return False
        if is_dead:
            self._obituaries.tell(commit, row.group, decode(row.record), reason)
            self._retries.take(one, row)
            self._dead_letters.keep_buried(commit, one, row, reason)
        else:
            self._retries.drop(commit, one, row)
        return True

    def lose(self, holder: Subscriber, flight: Flight, reason: str, *, delay_ms: int | None = None) -> None:
        """Fail a flight that is not resent: its last delivery ended with its connection, or with the
        server."""
        ended_ms = holder.presence.ended_ms
        by = holder.name if ended_ms else ""
        self.fail(holder, flight, reason, delay_ms=delay_ms, by=by, outcome=LOST, ended_ms=ended_ms)

    # -- in the writer, and back

    def _decide(self, commit: Commit, failure: Failure) -> Nacked:
        """In the writer: decide the outcome. Raises Refused before anything is changed."""
        flight = failure.flight
        holder, addressee = failure.holder, failure.addressee
        if not holder.session.has(flight):
            return Nacked.GONE
        message = self._sent.message(addressee, flight)
        if (message is None and not flight.is_stored) or not self._is_there(addressee):
            return self._settle(commit, failure, Nacked.GONE)
        if failure.placed != START:  # its batch has failed, and may be stored all the same
            stored = delivery_rows.at(commit.open_batch, failure.name)
            if stored is not None and stored.at == failure.placed:
                return self._stored(commit, failure, stored)
        if message is None:
            failure.reason = KEPT_TOO_LONG if self._sent.note_missing(addressee, flight) else UNREADABLE
            return self._buried(commit, failure, self._nameless(flight))
        terms = self.terms(addressee, message)
        counted = message.counted_before + failure.attempts
        is_spent = failure.is_attempt and 0 < terms.max_attempts <= counted
        if failure.delay_ms == NEVER or is_spent:
            return self._buried(commit, failure, message)
        due_ms = commit.open_batch.wall_ms + self._delay_ms(failure, terms, counted)
        if is_over(message.due_ms, message.record.expires_ms, due_ms):
            failure.reason = f"{EXPIRED}; {failure.reason}" if failure.is_attempt else EXPIRED
            return self._buried(commit, failure, message)
        tried = failure.tried(commit.open_batch.wall_ms, message)
        row = self._dead_letters.row(commit, addressee, message, tried)
        failure.placed = self._retries.put(commit, addressee, row, due_ms, is_owed=True, is_out=True)
        return self._waits(commit, failure)

    def _stored(self, commit: Commit, failure: Failure, row: DeliveryRow) -> Nacked:
        """What was decided is there, though the batch has failed."""
        one, root = failure.addressee, row.root
        self._retries.changes(one, root, row.at, row.at if row.is_waiting else None, is_out=True)
        if row.is_dropped:  # somebody was quicker
            return self._settle(commit, failure, Nacked.GONE)
        if row.is_dead:
            return self._is_dead(commit, failure)
        return self._waits(commit, failure)

    def _waits(self, commit: Commit, failure: Failure) -> Nacked:
        """The message waits for its retry, and its key with it."""
        order = failure.order
        if order is not None:
            self._rests(order, failure)
        return self._settle(commit, failure, Nacked.AGAIN)

    def _buried(self, commit: Commit, failure: Failure, message: Message) -> Nacked:
        """Bury it. Raises Refused before anything is changed."""
        failure.reason = failure.reason or REJECTED
        failure.placed = self._bury(commit, failure, message)
        return self._is_dead(commit, failure)

    def _is_dead(self, commit: Commit, failure: Failure) -> Nacked:
        """After the message became a dead letter: hold its key if the group says so."""
        order, holder = failure.order, failure.holder
        if order is not None and isinstance(holder, Group) and holder.on_dead == HOLD:
            self._rests(order, failure, is_dead=True)
        return self._settle(commit, failure, Nacked.DEAD)

    def _rests(self, order: KeyOrder, failure: Failure, *, is_dead: bool = False) -> None:
        """The head of a key is a retry or a dead letter, no longer in flight."""
        key, failure.flight.key = failure.flight.key, b""
        order.set_head(key, failure.flight.position, is_dead=is_dead)
        order.land(key)
        self._decisions.note(partial(_is_out_again, order, failure, key))

    def _nameless(self, flight: Flight) -> Message:
        """Stands for a message that is gone: only its id."""
        name = message_id(flight.position, flight.shard, self._node)
        return Message(flight.position, flight.shard, Record(b"", b"", id=name), self._clock.wall_ms())

    def _settle(self, commit: Commit, failure: Failure, fate: Nacked) -> Nacked:
        """Remove the flight from the stored cursor."""
        flight, holder = failure.flight, failure.holder
        flight.fate = SETTLED
        if flight.qos == 2 and not failure.is_ended:
            holder.session.retire([flight.packet_id])
        self._cursors.store(commit, holder)
        return fate

    def _decided(self, failure: Failure, fate: Nacked) -> None:
        """The outcome is durable."""
        self._groups.returned.failing -= failure.holder.is_group
        if failure.flight.fate == SETTLED:
            self._end(failure, fate)
        failure.answered(fate)

    def _not_decided(self, failure: Failure, why: Exception) -> float:
        """The write failed; it is tried again."""
        holder, flight = failure.holder, failure.flight
        if flight.fate == SETTLED:
            flight.fate = FAILED
            holder.session.retired.pop(flight.packet_id, None)
        name = shown(holder.name)
        log.warning("%s: an unacked message stays: %s", name, why, extra=by(name))
        answered, failure.answered = failure.answered, ignore
        answered(Nacked.FAILED)
        return RETRY_S

    def _end(self, failure: Failure, fate: Nacked) -> None:
        """End the flight, and wake its holder, which has room."""
        holder, flight = failure.holder, failure.flight
        if holder.session.has(flight):
            holder.session.ack(flight.packet_id)
            if flight.loan is not None:
                self._groups.loans.over(holder, flight)
        if fate in (Nacked.AGAIN, Nacked.DEAD):
            failure.addressee.failed += failure.is_attempt
        if fate is Nacked.AGAIN:
            self.retried += 1
            holder.redelivered += 1
        elif fate is Nacked.DEAD:
            self._dead_letters.note_buried(failure.crowded_out)
            name = shown(holder.name)
            text = "%s: message %s moved to %s: %s"
            log.warning(text, name, *failure.buried, failure.reason, extra=by(name))
        self._groups.read_on(holder)

    # -- helpers

    def terms(self, subscriber: Subscriber, message: Message) -> InForce:
        """The terms of a message for a session or group."""
        if isinstance(subscriber, Group):
            return subscriber.in_force
        own = self._router.route(message.record.topic).get(subscriber, ())
        said = next((one.terms for one in own if one.terms != USUAL), USUAL)
        return in_force(said, self._settings, is_group=False)

    def _is_there(self, subscriber: Subscriber) -> bool:
        return self._groups.named(subscriber.session.client_id) is subscriber

    def _delay_ms(self, failure: Failure, terms: InForce, failed: int) -> int:
        """Delay of the retry after the delivery number `failed`, from 1 on."""
        if failure.delay_ms is not None:
            return failure.delay_ms
        steps = terms.backoff_ms
        delay_ms = round(steps[min(failed, len(steps)) - 1] * (1 - JITTER + 2 * JITTER * self._chance()))
        is_endless = not terms.max_attempts and failed >= PATIENT
        return max(delay_ms, LEAST_MS) if is_endless else delay_ms

    def _bury(self, commit: Commit, failure: Failure, message: Message) -> Position:
        """Write the dead letter; returns its place. Raises Refused before anything is changed."""
        addressee = failure.addressee
        topic = self._obituaries.tell(commit, addressee.name, message.record, failure.reason)
        tried = failure.tried(commit.open_batch.wall_ms, message)
        row = self._dead_letters.row(commit, addressee, message, tried)
        letter, failure.crowded_out = self._dead_letters.keep(commit, row)
        self._retries.changes(addressee, row.root, letter, None, is_out=True)
        failure.buried = message.id_text(self._node), shown(topic)
        return letter


def _is_out_again(order: KeyOrder, failure: Failure, key: bytes) -> None:
    """Nothing was written: the head of the key is in flight, unless its client has acked it since."""
    if order.head_of(failure.flight.position) == key:
        order.end_head(key)
    if failure.holder.session.has(failure.flight):
        failure.holder.session.lead(failure.flight, key)
