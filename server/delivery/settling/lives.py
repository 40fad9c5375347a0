"""Applies the table of a delivery's life (timeline/deliveries.py), in the writer.

An event comes with what is known of its delivery: its row, its flight, or both. The table says what becomes
of it. That is written in one batch, and RAM follows as the batch does:

    waits       its place gives it when it is due
    dead        with a copy at `$dead`, which must have room, so before all else
    no row      a key that waited for it goes on
    a flight    ends: the cursor without it is in the batch

So after a kill a message is exactly one of in flight, waiting or dead. A batch that has failed may be stored
all the same: an event that is tried again knows its row by the position that it wrote (`Happening.wrote`).

Where the server's words differ from the table's: a flight counts since its row, and a row whose root
the reader has still to come to is from before a replay, unless the root is noted as finished.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

import msgspec

from shards.commit import Commit
from shards.deliveries import drop, end, finish, wait
from shards.delivery_rows import DeliveryRow, Name, at, life_of, new_row, with_life
from shards.fields import Record
from shards.record import decode
from timeline.deliveries import NEVER, decide
from timeline.delivery_rows import Case, Effect, Event, Fate, Keep, Out, Seen, State, Terms
from timeline.delivery_rows import DeliveryRow as Life
from timeline.horizon import Horizon
from timeline.key_rows import NO_KEY
from timeline.position import START, MessageId, Position, at_of, message_id, position
from timeline.session import Flight

from ...auth.rights import Rights
from ...engine.commit_hook import ignore
from ...engine.decisions import Decisions
from ..burials import KEPT_TOO_LONG
from ..cursors import Cursors
from ..membership import Membership
from ..place import Place
from ..retries import Retries
from ..sent import Sent
from ..shared import Group
from ..subscriber import Subscriber
from .dead_letter_queue import DeadLetterQueue
from .ends import note_end, note_late_ack
from .holds import Holds

UNREADABLE = "unreadable"
"""Reason of a message of which only the id is known: its slice is gone, or it cannot be read."""
GONE = Record(b"", b"")
"""Stands for the record of such a message."""
UNSEEN = Seen()
WAITS = (State.WAITING, State.WITHHELD)
ASKED_FOR = (Event.REQUEUE, Event.COME)
"""Retries that wait because of these events count toward the bound on pending messages."""


class Outcome(Enum):
    """Outcome of a delivery."""

    AGAIN = auto()
    """It is tried again later: durable."""
    DEAD = auto()
    """It is a dead letter: durable."""
    DONE = auto()
    """It is done, late: durable."""
    GONE = auto()
    """Nothing to end: the delivery was no longer in flight, already done, or has no receiver any more."""
    FAILED = auto()
    """It cannot be written now. What is in flight stays, and is tried again each second."""


Answered = Callable[[Outcome], None]
"""Called when the outcome is durable, or cannot be for now."""


MayMove = Callable[[bytes], bool]
"""Whether a message of that topic may move."""


@dataclass(slots=True, eq=False)
class Happening:
    """Something happens to a delivery, for which the writer is asked."""

    place: Place
    """The place of the delivery."""
    owner: Place
    """The place whose cursor is written with it: the session or group that has the flight, if there is one.
    At QoS 2 it is the group's member."""
    event: Event
    root: Position
    shard: int
    case: Case
    answered: Answered = ignore
    flight: Flight | None = None
    """It ends with that."""
    is_sent: bool = True
    """Whether its last delivery has begun."""
    is_ended: bool = False
    """The client has ended the exchange: the packet id becomes free with the flight."""
    wrote: Position = START
    """Where its row stands in its list, by a batch that has failed. It may be stored."""
    is_try: bool = False
    """A failed try is counted with it."""
    message: MessageId | None = None
    """A late ack that names it so, ..."""
    member: Subscriber | None = None
    """... of this member; ..."""
    rights: Rights | None = None
    """... or of somebody with these rights; None: they allow it."""
    to: Place | None = None
    """Where a retry moves, ..."""
    may: MayMove | None = None
    """... if it may."""

    @property
    def is_head(self) -> bool:
        """Whether the message is the head of its key, and nothing of that is given before it."""
        key = b"" if self.flight is None else self.flight.key
        is_of_key = key not in (b"", NO_KEY) and self.owner is self.place
        return is_of_key and self.place.session.order.rule.is_ordered


class Lives:
    """Decides and writes what becomes of deliveries."""

    def __init__(
        self,
        horizon: Horizon,
        groups: Membership,
        cursors: Cursors,
        sent: Sent,
        dead_letter_queue: DeadLetterQueue,
        retries: Retries,
        holds: Holds,
        decisions: Decisions,
        *,
        why_not: Callable[[Record], str],
        chance: Callable[[], float],
        node: int,
    ) -> None:
        """`why_not`: why its sender may not send a message now; empty: it may. `chance`: a new random number
        in [0, 1) each time."""
        self._horizon = horizon
        self._groups = groups
        self._cursors = cursors
        self._sent = sent
        self._dead_letter_queue = dead_letter_queue
        self._retries = retries
        self._holds = holds
        self._decisions = decisions
        self._why_not = why_not
        self._chance = chance
        self._node = node

    # -- what is in flight

    def of_flight(self, commit: Commit, what: Happening) -> Outcome:
        """What becomes of a message in flight. GONE: it is nowhere any more, or its place is not. The caller
        ends the flight, and writes the cursor. Raises Refused before anything is changed.

        Its row is the one that it was tried from (`is_again`); that of a batch which has failed, and is there
        (`is_stored`); or from before a replay, and counts as none."""
        place, root = what.place, what.root
        if not self._is_there(place):
            return Outcome.GONE
        row, record = at(commit.open_batch, Name(place.whose, root)), None
        is_stored = row is not None and START != what.wrote == row.at
        is_again = row is not None and row.is_waiting and root in place.rows.out
        event, case = what.event, what.case
        if is_stored:
            event = Event.NACK  # whatever it was, it has failed
            if row is not None and row.is_withheld and not self._why_not(decode(row.record)):
                event, case = Event.OWNER_BACK, case._replace(delay_ms=0)  # who released others has passed it
        elif not is_again:
            row, record, missing = self._first(what)
            if missing:
                event, case = Event.NACK, case._replace(delay_ms=NEVER, reason=missing)
        if row is None or (is_stored and row.is_dropped):
            return Outcome.GONE
        is_out = not is_stored and (what.is_sent or not is_again)
        seen = Seen(_out(what, row)) if is_out else UNSEEN
        life = life_of(row) if is_stored or is_again else None
        fate = self._apply(commit, place, row, life, event, case, seen, what, record)
        if not is_stored:
            what.is_try = fate.row is not None and fate.row.counted > row.counted
        elif row.is_dead:
            self._decisions.note(ignore, partial(self._dead_letter_queue.note_buried, row))
        if fate.row is None:
            return Outcome.GONE
        return Outcome.DEAD if fate.row.state is State.DEAD else Outcome.AGAIN

    def late_ack(self, commit: Commit, what: Happening, key: Callable[[], bytes]) -> bool:
        """A member acks it late; False: there is nothing to end. Its flight: another has it, or had. `key`:
        its ordering key."""
        place, root, horizon = what.place, what.root, self._horizon.position
        name = Name(place.whose, root)
        row = at(commit.open_batch, name)
        # A kill or a replay has removed it from the group's cursor, which would give it again. Nothing later
        # than now was ever sent.
        is_sent = root <= horizon or at_of(root) <= commit.open_batch.wall_ms
        is_ahead = is_sent and place.session.finish_ahead(root, horizon, key())
        if root in place.rows.ended and not is_ahead:
            return row is not None  # its story goes with the cursor that is written now
        mine = None if root in place.rows.over else row  # else it is from before a replay
        seen = Seen(_out(what, mine) if what.flight else None, is_ahead=is_ahead, replay=int(is_ahead))
        terms = Terms(keep=place.keeping.keep if isinstance(place, Group) else Keep.NONE)
        life, now = None if mine is None else life_of(mine), position(commit.open_batch.wall_ms, 0)
        fate = decide(life, seen, what.event, what.case._replace(now=now), terms)
        is_ended = Effect.CURSOR in fate.effects
        if is_ahead and row is None:
            end(commit, name)  # what was kept of it before it was to be read again
        if is_ended or fate.row is None:
            is_ended = finish(commit, name, fate.row, place.keeper) or is_ended
        if is_ended:
            self._retries.changes(place, root, START if row is None else row.at, None)
        named = what.message or (row.id if row is not None else None)
        note_late_ack(commit, place, root, None if row is None else life_of(row), fate, named, what.shard)
        return is_ended

    def move(self, commit: Commit, what: Happening) -> bool:
        """A retry moves to another filter of its group's name. Raises Refused, Corrupt, before anything is
        changed."""
        place, to, row = what.place, what.to, self._retries.waiting_in(commit, what.place, what.root)
        if (
            row is None
            or row.is_withheld
            or to is None
            or what.may is None
            or not (self._is_there(place) and self._is_there(to))
        ):
            return False
        if not what.may(decode(row.record).topic):
            return False
        is_moved = self.come(commit, row, Event.JOIN, what.case, to)
        return is_moved and self.of_row(commit, row, Event.MOVE, what.case, place)

    def _is_there(self, place: Place) -> bool:
        return self._cursors.named(place.session.client_id) is place

    def _first(self, what: Happening) -> tuple[DeliveryRow | None, Record, str]:
        """The row that a message would have that has none, and its record; None: it was not stored, and is
        gone. And why it cannot be read: then its id alone is known."""
        place, flight = what.place, what.flight
        assert flight is not None, "it is out"
        message = self._sent.message(place, flight)
        if message is not None:
            record, name, missing = message.record, message.id(self._node), ""
        elif not flight.is_stored:
            return None, GONE, ""
        else:
            record, name = GONE, message_id(flight.position, flight.shard, self._node)
            missing = KEPT_TOO_LONG if self._sent.note_missing(place, flight) else UNREADABLE
        row = new_row(place.whose, place.names, flight.position, name, flight.shard, record)
        return row, record, missing

    # -- what has a row, and is not out

    def of_row(self, commit: Commit, row: DeliveryRow, event: Event, case: Case, place: Place | None) -> bool:
        """Something happens to it; False: that cannot be. `place`: its own, if it is there. Raises Refused,
        Corrupt, before anything is changed."""
        fate = self._apply(commit, place, row, life_of(row), event, case, UNSEEN)
        return Effect.REFUSED not in fate.effects

    def come(
        self,
        commit: Commit,
        row: DeliveryRow,
        event: Event,
        case: Case,
        to: Place,
        *,
        is_to_come: bool = False,
    ) -> bool:
        """It is requeued, or moved, to another place, or to its own; False: that cannot be. `is_to_come`:
        that place has still to read it. Raises Refused, Corrupt, before anything is changed."""
        theirs = row if to.whose == row.whose else at(commit.open_batch, Name(to.whose, row.root))
        addressee, group, incarnation = to.names
        moved = msgspec.structs.replace(
            row, whose=to.whose, addressee=addressee, group=group, incarnation=incarnation
        )
        out = _out_over(theirs) if row.root in to.rows.out else None
        seen = Seen(out, is_ahead=is_to_come, replay=int(is_to_come))
        case = case._replace(row=life_of(row))
        life = None if theirs is None else life_of(theirs)
        return Effect.REFUSED not in self._apply(commit, to, moved, life, event, case, seen).effects

    def give_up(self, commit: Commit, row: DeliveryRow, event: Event, case: Case, seen: Seen) -> Fate:
        """A burial gives it up. `row`: its own, or that which it would have. The place, if it is still there,
        may have been given it again."""
        place, known = self._groups.place_of(row), at(commit.open_batch, row.name)
        life = None if known is None else life_of(known)
        if place is not None and known is not None and row.root in place.rows.out:
            seen = Seen(_out_over(known))
        return self._apply(commit, place, row, life, event, case, seen)

    # -- decided and written

    def _apply(
        self,
        commit: Commit,
        place: Place | None,
        row: DeliveryRow,
        life: Life | None,
        event: Event,
        case: Case,
        seen: Seen,
        what: Happening | None = None,
        record: Record | None = None,
    ) -> Fate:
        """Ask the table and write its answer. `row`: the names and the message, `life`: its state; None: it
        has no row. `record`: the message, if it is read."""
        record, batch = record or decode(row.record), commit.open_batch
        if event is Event.WITHHOLD and not self._why_not(record):
            event, case = Event.PUT_OFF, case._replace(delay_ms=0)  # the right is back since it was judged
        case = case._replace(
            now=position(batch.wall_ms, 0),
            running_ms=batch.running_ms,
            due_ms=record.due_ms or at_of(row.root),
            expires_ms=record.expires_ms,
            has_slice=row.root >= commit.directory.floor,
            keeper=case.keeper if place is None else place.keeper,
            chance=self._chance(),
        )
        terms = Terms()
        if place is not None:
            in_force, order = self._groups.terms_in_force(place, record.topic), place.session.order
            is_head = what.is_head if what else order.head_of(row.root) is not None
            terms = Terms(
                not place.is_group,
                in_force.max_attempts,
                in_force.backoff_ms,
                is_ordered=order.rule.is_ordered and bool(record.ordering_key),
                is_head=is_head,
                dead_holds=isinstance(place, Group) and place.on_dead == "hold",
                has_room=False,
            )
        fate = decide(life, seen, event, case, terms)
        after, stands = fate.row, row.at
        end = _end_of(life, fate)
        if Effect.REFUSED in fate.effects or (after == life and (what is None or life is None)):
            note_end(commit, row, life, fate, event, seen, case.reason)
            return fate
        if after != life:
            is_owed, is_logged = event not in ASKED_FOR, what is not None
            stands = self._put(commit, row, record, fate, is_owed=is_owed, is_logged=is_logged)
            if place is not None and after is not None and end in ("dead", "withheld"):
                died = (after.reason or "unknown") if end == "dead" else ""
                alerts = self._dead_letter_queue.alerts
                alerts.note((place,), record, row.id, batch.wall_ms, after.attempts, died)
        note_end(commit, row, life, fate, event, seen, case.reason)
        if end and isinstance(place, Group):
            self._decisions.note(ignore, partial(place.rows.ends.update, (end,)))
        if place is not None:
            done = stands if after is not None and after.state in WAITS else None
            undone = min(row.at, stands) if life is not None and life.state in WAITS else stands
            self._retries.changes(place, row.root, undone, done, is_out=what is not None)
            self._update_ordering_key(commit, place, row.root, fate, what)
            if Effect.CURSOR in fate.effects:
                self._cursors.store(commit, place)
        if what is not None:
            what.wrote = stands
        return fate

    def _put(
        self, commit: Commit, row: DeliveryRow, record: Record, fate: Fate, *, is_owed: bool, is_logged: bool
    ) -> Position:
        """Write its new state; returns where it stands. Raises Refused before anything is changed."""
        if fate.row is None:
            end(commit, row.name)
            return row.at
        after = with_life(row, fate.row)
        if after.is_waiting:
            return wait(commit, after, at_of(after.at), is_owed=is_owed)
        if after.is_dead:
            has_copy = Effect.OBITUARY in fate.effects
            return self._dead_letter_queue.keep(commit, after, record, has_copy=has_copy, is_logged=is_logged)
        drop(commit, after)
        return row.at

    # -- keys

    def _update_ordering_key(
        self, commit: Commit, place: Place, root: Position, fate: Fate, what: Happening | None
    ) -> None:
        """The key whose head it is waits for it, or is held by it. That a head with a row goes on waiting, or
        goes, each batch says (holds.py)."""
        is_held = Effect.KEY_HELD in fate.effects
        if what is None and fate.row is not None and fate.row.state is State.DEAD:
            self._holds.buried(commit, place, root, is_held=is_held)
        elif what is not None and what.is_head and (is_held or Effect.KEY_WAITS in fate.effects):
            self._rests(what, is_dead=is_held)

    def _rests(self, what: Happening, *, is_dead: bool) -> None:
        """The head of a key is in flight no more."""
        flight, order = what.flight, what.place.session.order
        assert flight is not None, "it is out"
        key, flight.key = flight.key, b""
        order.set_head(key, what.root, is_dead=is_dead)
        order.land(key)
        self._decisions.note(partial(_is_out_again, what.place, flight, key))


def _end_of(life: Life | None, fate: Fate) -> str:
    """As what a delivery counts from now on; empty: as before."""
    if Effect.COUNT_DEAD in fate.effects:
        return "dead"
    if Effect.COUNT_DROPPED in fate.effects:
        return "dropped"
    is_news = fate.row is not None and (life is None or life.state is not fate.row.state)
    return "withheld" if is_news and fate.row is not None and fate.row.state is State.WITHHELD else ""


def _is_out_again(place: Place, flight: Flight, key: bytes) -> None:
    """Nothing was written: the head of the key is in flight, unless its client has acked it since."""
    order = place.session.order
    if order.head_of(flight.position) == key:
        order.end_head(key)
    if place.session.has(flight):
        place.session.lead(flight, key)


def _out_over(row: DeliveryRow | None) -> Out:
    """A flight over its row, or over none."""
    return Out() if row is None else Out(row.attempts + 1, row.counted + 1, row.returns)


def _out(what: Happening, row: DeliveryRow | None) -> Out:
    """The flight, with the counts of its row."""
    flight = what.flight
    assert flight is not None, "it is out"
    attempts = flight.attempts if what.is_sent else max(0, flight.attempts - 1)
    if row is None:
        return Out(attempts, attempts, flight.returns)
    return Out(row.attempts + attempts, row.counted + attempts, max(row.returns, flight.returns))
