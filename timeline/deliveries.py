"""The life of a delivery: one table of states and events.

A *delivery* is one message at one incarnation of a place, a session or a group. Its name is (place, root):
the root is the position at which the place was given it, and never changes. `LIFE` is the law:

    (row or none, what the cursor says, event) -> (row or none, flight or none, effects)

What waits, is withheld or has ended badly has a row; what is done, as far as its place keeps it. The rest
stands in the cursor:

    waiting, withheld, dead, dropped   a row
    out, leased, handed                a flight, over a row or none
    unread                             no row, and the reader comes to the root
    done                               a row, or none, and the reader has passed it, or it is noted as done

An example, with two tries at most. Only the nacks and the drop write anything at once:

    GIVE    unread     a flight, attempt 1
    NACK    out        a row that waits until 9:10, and the message beside it: its record
    GIVE    waiting    a flight over the row, attempt 2
    NACK    out        the row is dead, the record stays as it is
    DROP    dead       the row is dropped, its record goes

**A flight over a row.** The one that was given more often decides (`Out.given`). So a nack needs no cursor in
its batch: a flight that an older cursor still has is void. And giving a retry writes nothing: if the server
is killed before the next cursor, the retry waits as before.

**A replay touches no row.** It sets back the reader, and its subscriptions get a number that counts up. While
the reader comes to a root again, a row of a lower number says nothing: the message is unread. The row is a
*former* one, which people see until the message is read again. If the reader passes the message without
giving it, the row counts again: it was requeued from another place, its slice is gone, it has expired, its
owner is absent. A note that it is done, of a lower number, is void in the same way.

A replay is no event of a delivery, then. Nor is a PUT of other terms: they count at the next event. Nor is an
UNSUBSCRIBE: what is to be given is barred when its turn comes.

**What applies a fate** writes row, record, cursor and what is told in one batch, under three rules. A row
goes only in a batch with the cursor, else an older cursor would have the message read again. What changes the
head of a key is in a batch with the cursor, which has the key rows (key_order.py). When a batch has failed,
the row is read again, once, before the event is tried again: the batch may be stored.

An event that cannot be in a state raises `CannotBe`: the caller is wrong. People may ask for anything; they
are answered with REFUSED. Nothing here knows keys, members, filters or time: `Case` and `Terms` say what
counts.

**Who asks.** The server does whatever changes a row, or may: server/delivery/settling/lives.py. It gives and
acks what has no row without asking, as each would cost a call (GIVE, ACK, TOO_LARGE, KILL, INHERIT),
and a dead letter beyond a bound goes with its row (EVICT). There the walks say what the table says. The
effects that the server looks at are CURSOR, REFUSED, OBITUARY and those of the key.

Walked at random, also with each rule left out: tests/timeline/test_delivery_walks.py.
"""

from collections.abc import Callable
from typing import NamedTuple

from .delivery_rows import (
    Case,
    DeliveryRow,
    Effect,
    Event,
    Fate,
    Out,
    Seen,
    State,
    Terms,
    Try,
    keeps,
    state_of,
)
from .position import at_of, position, seq_of

RETURNS_FREE = 10
"""Returns in order that are no tries; each further one is."""
TRIES_MAX = 20
DONE = "done"
"""Outcome of the try that was the last, as its message was acked."""
REJECTED = "rejected"
"""Reason of a message that nobody may try again, if none is said."""
EXPIRED = "expired"
"""Reason of a message whose time was over; the last try's reason follows."""
NEVER = -1
"""In place of a delay: dead at once."""
JITTER = 0.2
LEAST_MS, PATIENT = 1_000, 10
"""The least pause of a message that has failed so often, without `max_attempts`."""


class CannotBe(Exception):
    """An event that cannot be in this state: a mistake of the caller."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.name} of a delivery that is {state.name}")
        self.state, self.event = state, event


class Delivery(NamedTuple):
    """A delivery and its event, to be decided."""

    row: DeliveryRow | None
    seen: Seen
    state: State
    event: Event
    case: Case
    terms: Terms
    is_former: bool = False
    """Its row is from before a replay, and decides all the same."""

    @property
    def old(self) -> DeliveryRow:
        """Its row, which it has in this state."""
        assert self.row is not None, "this state has a row"
        return self.row

    def because(self, reason: str, outcome: str = "") -> "Delivery":
        """The same, for another reason."""
        case = self.case._replace(reason=reason, outcome=outcome or self.case.outcome)
        return self._replace(case=case)

    @property
    def is_out(self) -> bool:
        return self.state in (State.OUT, State.LEASED, State.HANDED)

    @property
    def out(self) -> Out:
        """Its flight, which it has in this state."""
        assert self.seen.out is not None, "this state has a flight"
        return self.seen.out

    def becomes(self, row: DeliveryRow | None, *effects: Effect, out: Out | None = None) -> Fate:
        fate = Fate(row, out, frozenset(effects))
        return _with_cursor(fate) if row is not None and out is None and self._is_older_elsewhere else fate

    @property
    def _is_older_elsewhere(self) -> bool:
        """Whether its row does not void each older flight: one that was put back since was given more often,
        and what was handed over is in the member's cursor."""
        is_idle = self.state is State.OUT and not self.out.is_held
        return is_idle or self.state is State.HANDED

    def key(self, then: Effect = Effect.KEY_GOES_ON) -> tuple[Effect, ...]:
        """What becomes of the key that it is the head of."""
        return (then,) if self.terms.is_head else ()


def decide(row: DeliveryRow | None, seen: Seen, event: Event, case: Case, terms: Terms) -> Fate:
    """What becomes of a delivery. Raises CannotBe."""
    state = state_of(row, seen)
    rule = LIFE[event][state.value]
    is_over = row is not None and row.state in (State.DROPPED, State.DONE)
    is_former = rule in (former, kept) or (rule is unread and not is_over)
    if row is None or not is_former:
        return rule(Delivery(row, seen, state, event, case, terms))
    was = Delivery(row, Seen(replay=row.replay), row.state, event, case, terms, is_former=True)
    return LIFE[event][row.state.value](was)  # as before the replay, whose number it does not get


# -- nothing changes


def never(one: Delivery) -> Fate:
    """It cannot be."""
    raise CannotBe(one.state, one.event)


def stays(one: Delivery) -> Fate:
    """It is as it was. What is unread is passed by its reader."""
    return one.becomes(one.row, out=one.seen.out)


def refused(one: Delivery) -> Fate:
    return one.becomes(one.row, Effect.REFUSED, out=one.seen.out)


def former(one: Delivery) -> Fate:
    """Unread: the row from before a replay, if there is one, is treated as any row."""
    return refused(one)


def kept(one: Delivery) -> Fate:
    """Unread: the same, but what there is no row of stays."""
    return stays(one)


def left(one: Delivery) -> Fate:
    """Its member has left: nobody holds the delivery that is out."""
    return one.becomes(one.row, Effect.NEXT_MEMBER, out=one.out._replace(is_held=False))


def stored(one: Delivery) -> Fate:
    """The batch of its nack had failed, and is there: its flight has ended."""
    key = _dead_key(one) if one.state is State.DEAD else one.key(Effect.KEY_WAITS)
    return one.becomes(one.row, Effect.LATER, *key)


# -- it is given


def goes(one: Delivery) -> Fate:
    """A flight begins: the next try of a retry that is due, or else the first one."""
    row, is_handed = one.row, one.case.is_handed
    if row is None or (one.state is State.UNREAD and not one.case.is_retry):
        return one.becomes(None, Effect.LATER, out=Out(is_handed=is_handed))
    out = Out(row.attempts + 1, row.counted + 1, row.returns, is_handed=is_handed)
    return one.becomes(row, Effect.LATER, out=out)


def again(one: Delivery) -> Fate:
    """It was in nobody's hands, and is dead if all its tries are over: else what kills its server would be
    given for ever. The counts of a return say that it was no try."""
    out = one.out
    if _is_spent(one, out.counted):
        return _dead_idle(one, f"not acked after {out.attempts} deliveries")
    more = out._replace(attempts=out.attempts + 1, counted=out.counted + 1, is_held=True)
    return one.becomes(one.row, Effect.LATER, out=more._replace(is_handed=one.case.is_handed))


# -- it is done


def acked(one: Delivery) -> Fate:
    """Done, and nobody waits for an answer."""
    return _done(one, Effect.LATER)


def acked_late(one: Delivery) -> Fate:
    """The same, and answered when it is durable."""
    return _done(one, Effect.CURSOR)


def _done(one: Delivery, when: Effect) -> Fate:
    return Fate(_story(one), None, frozenset((when, *_noted(one), *one.key())))


def ends(one: Delivery) -> Fate:
    """Over, and answered when it is durable: its row goes, with the record. It is not read again."""
    return one.becomes(None, Effect.CURSOR, *_noted(one), *one.key())


def over(one: Delivery) -> Fate:
    """It is done, and its story goes."""
    return one.becomes(None, Effect.LATER)


def _story(one: Delivery) -> DeliveryRow | None:
    """The row of what is done: its tries, and the good one, if its place keeps it."""
    case, row = one.case, _counted(one, one.seen.out)
    if not keeps(one.terms.keep, failed=row.attempts > 1 or bool(row.tries)):
        return None
    made = Try(case.ended_ms or at_of(case.now), case.by, DONE, case.reason, case.held_ms)
    return row._replace(state=State.DONE, at=case.now, reason="", tries=(*row.tries, made)[-TRIES_MAX:])


def _noted(one: Delivery) -> tuple[Effect, ...]:
    return (Effect.NOTE,) if one.seen.is_ahead else ()


# -- it comes back


def fails(one: Delivery) -> Fate:
    """It is tried later, or was for the last time. What would wait, and is the head of a key that its reader
    comes to again, is read again instead, in the order of its key."""
    case, row = one.case, _tried(one)
    if case.delay_ms == NEVER or _is_spent(one, row.counted):
        return _dead(one, row if case.reason else _tried(one.because(REJECTED)), case.reason or REJECTED)
    late = f"{EXPIRED}; {row.reason}" if row.reason else EXPIRED
    fate = _waiting(one, row, _pause_ms(one, row.counted), late)
    if one.seen.is_ahead and one.terms.is_head and Effect.WHEN_DUE in fate.effects:
        return one.becomes(None, Effect.CURSOR, *one.key())
    return fate


def killed(one: Delivery) -> Fate:
    """Its server was away. It is given again, or is a group's failed try, if there are too many of these."""
    if one.terms.is_session or one.terms.has_room or not one.out.is_held:
        return left(one)
    return fails(one._replace(case=one.case._replace(delay_ms=0)))


def lost(one: Delivery) -> Fate:
    """The connection has ended. A session gets its flights again, of a group it is a try."""
    return left(one) if one.terms.is_session else fails(one)


def returns(one: Delivery) -> Fate:
    """A member has returned it untried: the next one gets it."""
    if one.terms.is_session:
        return left(one)
    if one.out.returns >= RETURNS_FREE:
        return fails(one)
    out = _ungiven(one.out)._replace(returns=one.out.returns + 1)
    if one.terms.has_room:
        return one.becomes(one.row, Effect.NEXT_MEMBER, out=out)
    return _waiting(one, _counted(one, out), 0)


def put_back(one: Delivery) -> Fate:
    """It was not given, which is neither a try nor a return. So an older flight may have been given more
    often. That voids no row: what has one, or no room, waits, with the cursor."""
    out = _ungiven(one.out)
    if one.row is None and one.terms.has_room:
        return one.becomes(None, Effect.NEXT_MEMBER, out=out)
    return _with_cursor(_waiting(one, _counted(one, out), 0))


def put_off(one: Delivery) -> Fate:
    """It waits for `delay_ms`, which is no try: it is never dead by that, unless it will have expired."""
    if _is_readers(one):
        return stays(one)
    return _waiting(one, _counted(one, one.seen.out), one.case.delay_ms or 0)


def withheld(one: Delivery) -> Fate:
    """Its sender may not send it now: it waits, which is no try. The reason stays that of its last try. It is
    looked at again when it has expired, or after `delay_ms`."""
    if _is_readers(one):
        return stays(one)
    row, case, delay_ms = _counted(one, one.seen.out), one.case, one.case.delay_ms or 0
    if case.expires_ms:
        left_ms = (row.due_ms or case.due_ms) + case.expires_ms - at_of(case.now)
        delay_ms = min(delay_ms, max(0, left_ms))
    row = row._replace(state=State.WITHHELD, at=position(at_of(case.now) + delay_ms, seq_of(case.now)))
    return one.becomes(row, Effect.RECORD, *one.key(Effect.KEY_WAITS))


def _is_readers(one: Delivery) -> bool:
    """Whether it is unread, and not the next one of a key: the reader passes it, or stands before it."""
    return one.state is State.UNREAD and not one.terms.is_head


def _ungiven(out: Out) -> Out:
    """A flight as before it was given."""
    return out._replace(attempts=out.attempts - 1, counted=out.counted - 1, is_leased=False, is_held=False)


def inherits(one: Delivery) -> Fate:
    """The member's flight is its own. The row is the group's: then that flight ends."""
    if one.row is None:
        return ends(one)
    return one.becomes(one.row, out=one.out._replace(is_leased=False, is_held=False, is_handed=False))


# -- it ends badly


def alone(one: Delivery) -> Fate:
    """Its slice goes. What is out over a row has a record of its own."""
    return given_up(one) if one.row is None else stays(one)


def dies(one: Delivery) -> Fate:
    return _dead_idle(one, one.case.reason)


def expires(one: Delivery) -> Fate:
    """It has expired before it was sent again. Nobody is told of a session's that has not failed."""
    if one.terms.is_session and one.row is None:
        return one.becomes(None, Effect.LATER, Effect.COUNT_DROPPED, *_noted(one), *one.key())
    return _dead_idle(one, EXPIRED)


def drops(one: Delivery) -> Fate:
    """Its row stays, without a record, until the slice of its root goes: it may be read again before, and
    people see that it was dropped."""
    if not one.case.has_slice:
        return one.becomes(None, Effect.CURSOR, Effect.COUNT_DROPPED, *one.key())
    row = _counted(one, one.seen.out)._replace(state=State.DROPPED)
    return one.becomes(row, Effect.COUNT_DROPPED, *one.key())


def given_up(one: Delivery) -> Fate:
    """By a burial: a dead letter that holds no key, or dropped. There may be thousands, so that none has a
    copy at `$dead`, but for the head of a key that is skipped."""
    if not one.case.is_dead:
        return drops(one)
    row, terms = _counted(one, one.seen.out), one.terms._replace(dead_holds=False)
    fate = _dead(one._replace(terms=terms), row, one.case.reason)
    has_obituary = one.event is Event.SKIP and one.state is State.WAITING and not one.is_former
    return fate if has_obituary else fate._replace(effects=fate.effects - {Effect.OBITUARY})


def unread(one: Delivery) -> Fate:
    """Its reader passes it. A retry or letter from before a replay counts again, else it is given up: a
    session's is lost with its slice, and counted, or ends with the session."""
    if not one.terms.is_session or one.event is Event.SKIP:
        return given_up(one)
    return stays(one) if one.event is Event.END_OF_PLACE else one.becomes(None, Effect.COUNT_DROPPED)


def skipped(one: Delivery) -> Fate:
    """A skip leaves what waits, but for the head of a key, which would wait for it and not go on, and for
    what its key would have read again."""
    is_of_key = one.terms.is_head or (one.is_former and one.terms.is_ordered)
    return given_up(one) if is_of_key else stays(one)


# -- people, and other places


def retimed(one: Delivery) -> Fate:
    """Its next try is after `delay_ms`, unless it will have expired."""
    delay_ms = one.case.delay_ms or 0
    return refused(one) if _is_over(one, one.old, delay_ms) else _waiting(one, one.old, delay_ms)


def anew(one: Delivery) -> Fate:
    """A letter, its own or another place's, has all its tries again. Its expiry counts from its new due; the
    one that the place had ends."""
    case = one.case
    row = case.row or one.old
    due_ms = at_of(case.now) + (case.delay_ms or 0)
    row = row._replace(counted=0, returns=0, due_ms=due_ms, replay=one.seen.replay)
    return _with_cursor(_waiting(one, row, case.delay_ms or 0))  # an older flight was given more often


def joined(one: Delivery) -> Fate:
    """A retry of another filter, at its time and with its tries."""
    assert one.case.row is not None, "it comes from another filter"
    row = one.case.row._replace(replay=one.seen.replay)
    return one.becomes(row, Effect.RECORD, Effect.WHEN_DUE, Effect.CURSOR)  # as with `anew`


def released(one: Delivery) -> Fate:
    """The letter stays, and its key goes on."""
    return one.becomes(one.row, *one.key())


# -- parts of rules


def _counted(one: Delivery, out: Out | None) -> DeliveryRow:
    """Its row, without a new try; of what is out with the counts of the flight."""
    row = one.row
    if row is None or one.state is State.UNREAD:
        row = DeliveryRow(State.WAITING, keeper=one.case.keeper)
    if out is not None and one.is_out:
        tries = (*row.tries, *one.case.lost)[-TRIES_MAX:]
        row = row._replace(attempts=out.attempts, counted=out.counted, returns=out.returns, tries=tries)
        row = row if row.keeper == one.case.keeper else row._replace(keeper=one.case.keeper)
    return row if row.replay == one.seen.replay else row._replace(replay=one.seen.replay)


def _tried(one: Delivery) -> DeliveryRow:
    """Its row, with one more failed try; without, if it was returned and not given since."""
    case, out, old = one.case, one.out, one.row
    row = _counted(one, out)
    if out.attempts <= (old.attempts if old else 0):
        return row
    made = Try(case.ended_ms or at_of(case.now), case.by, case.outcome, case.reason, case.held_ms)
    return row._replace(reason=case.reason, tries=(*row.tries, made)[-TRIES_MAX:])


def _waiting(one: Delivery, row: DeliveryRow, delay_ms: int, late: str = EXPIRED) -> Fate:
    """`late`: the reason, if it will have expired by then."""
    if _is_over(one, row, delay_ms):
        return _dead(one, row, late)
    at = position(at_of(one.case.now) + delay_ms, seq_of(one.case.now))
    row = row._replace(state=State.WAITING, at=at)
    return one.becomes(row, Effect.RECORD, Effect.WHEN_DUE, *one.key(Effect.KEY_WAITS))


def _dead_idle(one: Delivery, reason: str) -> Fate:
    """Dead as it waits, or in nobody's hands: then its last try was lost."""
    row = _tried(one.because(reason, "lost")) if one.is_out else _counted(one, None)
    return _dead(one, row, reason)


def _dead(one: Delivery, row: DeliveryRow, reason: str) -> Fate:
    case = one.case
    row = row._replace(state=State.DEAD, at=case.now, reason=reason, running_ms=case.running_ms)
    return one.becomes(row, Effect.RECORD, Effect.OBITUARY, Effect.COUNT_DEAD, *_dead_key(one))


def _dead_key(one: Delivery) -> tuple[Effect, ...]:
    return one.key(Effect.KEY_HELD if one.terms.dead_holds else Effect.KEY_GOES_ON)


def _is_spent(one: Delivery, counted: int) -> bool:
    return 0 < one.terms.max_attempts <= counted


def _with_cursor(fate: Fate) -> Fate:
    return fate._replace(effects=fate.effects | {Effect.CURSOR})


def _is_over(one: Delivery, row: DeliveryRow, delay_ms: int) -> bool:
    """Whether it will have expired."""
    case, since_ms = one.case, row.due_ms or one.case.due_ms
    return 0 < case.expires_ms <= at_of(case.now) + delay_ms - since_ms


def _pause_ms(one: Delivery, failed: int) -> int:
    if one.case.delay_ms is not None:
        return one.case.delay_ms
    steps = one.terms.backoff_ms
    pause_ms = round(steps[min(max(failed, 1), len(steps)) - 1] * (1 - JITTER + 2 * JITTER * one.case.chance))
    return max(pause_ms, LEAST_MS) if not one.terms.max_attempts and failed >= PATIENT else pause_ms


Rule = Callable[[Delivery], Fate]
_, E, late = never, Event, acked_late
# fmt: off
LIFE: dict[Event, tuple[Rule, ...]] = {
    #                UNREAD    OUT       LEASED    HANDED    WAITING   WITHHELD  DEAD      DROPPED  DONE
    E.GIVE:         (goes,     again,    _,        _,        goes,     _,        _,        _,       _),
    E.ACK:          (_,        acked,    late,     acked,    late,     _,        late,     _,       _),
    E.LATE_ACK:     (late,     late,     late,     late,     late,     late,     late,     stays,   stays),
    E.NACK:         (_,        fails,    fails,    fails,    stored,   stored,   stored,   _,       _),
    E.LAPSE:        (_,        fails,    fails,    _,        stored,   _,        stored,   _,       _),
    E.RETURN:       (_,        returns,  returns,  _,        stored,   _,        stored,   _,       _),
    E.PUT_BACK:     (_,        put_back, put_back, _,        stored,   _,        stored,   _,       _),
    E.LOST:         (_,        lost,     fails,    stays,    stored,   _,        stored,   _,       _),
    E.KILL:         (stays,    killed,   stays,    stays,    stays,    stays,    stays,    stays,   stays),
    E.TOO_LARGE:    (_,        acked,    _,        acked,    _,        _,        _,        _,       _),

    E.TRY:          (former,   refused,  refused,  refused,  retimed,  retimed,  refused,  refused, refused),
    E.BURY:         (former,   refused,  refused,  refused,  dies,     dies,     refused,  refused, refused),
    E.DROP:         (former,   refused,  refused,  refused,  drops,    drops,    drops,    refused, refused),
    E.REQUEUE:      (refused,  refused,  refused,  refused,  refused,  refused,  anew,     refused, refused),
    E.RELEASE:      (former,   stays,    stays,    stays,    stays,    stays,    released, stays,   stays),
    E.SEND_AWAY:    (former,   refused,  refused,  refused,  refused,  refused,  ends,     refused, refused),
    E.COME:         (refused,  refused,  refused,  refused,  anew,     anew,     anew,     anew,    anew),
    E.MOVE:         (refused,  refused,  refused,  refused,  ends,     refused,  refused,  refused, refused),
    E.JOIN:         (refused,  refused,  refused,  refused,  refused,  refused,  refused,  joined,  joined),

    E.SKIP:         (unread,   stays,    stays,    stays,    skipped,  skipped,  stays,    stays,   stays),
    E.INHERIT:      (_,        inherits, inherits, inherits, stays,    _,        stays,    _,       _),
    E.END_OF_PLACE: (unread,   given_up, given_up, given_up, given_up, given_up, stays,    stays,   over),

    E.EXPIRE:       (stays,    expires,  stays,    stays,    expires,  expires,  stays,    stays,   stays),
    E.PUT_OFF:      (put_off,  put_off,  stays,    put_off,  put_off,  stays,    stored,   stays,   stays),
    E.WITHHOLD:     (withheld, withheld, stays,    withheld, withheld, stays,    stays,    stays,   stays),
    E.OWNER_BACK:   (kept,     stays,    stays,    stays,    stays,    put_off,  stays,    stays,   stays),
    E.BAR:          (stays,    dies,     stays,    dies,     dies,     dies,     stays,    stays,   stays),
    E.UNREADABLE:   (stays,    dies,     dies,     dies,     dies,     dies,     stays,    stays,   stays),
    E.SLICE_GOES:   (unread,   alone,    alone,    stays,    stays,    stays,    stays,    ends,    over),
    E.EVICT:        (former,   stays,    stays,    stays,    _,        _,        ends,     _,       over),
}
# fmt: on
"""What becomes of a delivery, by event, and in the order of `State`. `_`: it cannot be."""
