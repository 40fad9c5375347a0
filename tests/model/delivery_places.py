"""A place of the walked deliveries (delivery_lives.py): its world, reader, members, cursor, and who applies.

It is what `timeline.deliveries` leaves open, and has no more than that needs: no packets, and no keys, which
walk in ordered_deliveries.py with the same table.
"""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.ledger.ends import Shown
from tests.support.ledger.messages import Message
from tests.support.ledger.stakes import Stake
from tests.support.ledger.words import ANY, DEAD, WAITING, fits
from timeline.deliveries import NEVER, decide
from timeline.delivery_rows import (
    Case,
    DeliveryRow,
    Effect,
    Event,
    Keep,
    Out,
    Seen,
    State,
    Terms,
    Try,
    state_of,
)
from timeline.position import START, Position, at_of, before, position

STEP_MS, LEASE_MS, BACKOFF_MS = 500, 1_500, 1_000
if TYPE_CHECKING:
    from tests.model.delivery_lives import Life

WINDOWS = (3, 8, 100)
ROUNDS_MAX = 1_000
"""In one turn a place gives less."""
NOTES_MAX, BACK_MAX, LETTERS_MAX, KEPT_MAX, EXPIRES_MS, FREE = 3, 2, 12, 6, 4_000, 2
"""Bounds: notes of what is done ahead, flights in nobody's hands, dead letters, what is done and kept by a
place; an expiry; free returns."""
FILTERS = {"w/#": ("jobs/#",), "w/y": ("jobs/y",), "s": ("jobs/x", "jobs/y")}
AGAIN = {Event.NACK, Event.LAPSE, Event.LOST, Event.RETURN, Event.EXPIRE, Event.WITHHOLD, Event.BAR}
AGAIN |= {Event.UNREADABLE, Event.OWNER_BACK, Event.ACK, Event.LATE_ACK, Event.GIVE}
AGAIN |= {Event.PUT_BACK, Event.PUT_OFF}
"""What is tried again when it could not be written. Who asks for other things is told, and asks again."""
UNTRIED = {Event.WITHHOLD, Event.PUT_OFF, Event.OWNER_BACK}
"""It waits, and that is no try."""
FAILURES = {Event.NACK, Event.LAPSE, Event.LOST, Event.RETURN}
OUTCOMES = {Event.NACK: "failed", Event.LAPSE: "lapsed", Event.LOST: "lost", Event.RETURN: "returned"}
Name = tuple[Any, ...]
Batch = dict[Name, Any]
Whose = tuple[str, int]
"""A place, and its incarnation."""


class Unsynced(Exception):
    """The batch has failed; it may be stored."""


class Broken(AssertionError):
    """A promise is broken."""


@dataclass(slots=True)
class Sent:
    """A message of the timeline."""

    root: Position
    message: Message
    owner: str
    qos: int
    is_there: bool = True
    """Its slice is."""
    is_readable: bool = True
    moved_to: Position = START
    """It was withheld, and stands there since its owner is back."""

    @property
    def key(self) -> str:
        return self.message.id


class World:
    """`db`: what can be read. `wal`: batches; those before `synced` survive a kill."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd, self.now_ms, self.seq, self.synced = rnd, STEP_MS, 0, 0
        self.wal: list[Batch] = []
        self.db: Batch = {}
        self.sent: dict[Position, Sent] = {}
        self.is_sound = False
        self.kinds: dict[str, set[Name]] = {}

    def next(self) -> Position:
        self.seq += 1
        return position(self.now_ms, self.seq)

    def write(self, batch: Batch, *, is_synced: bool = True) -> None:
        """Raises Unsynced: it has failed, and may be there all the same."""
        is_lost = not self.is_sound and self.rnd.random() < 0.05
        if is_lost and self.rnd.random() < 0.5:
            raise Unsynced
        self.wal.append(batch)
        self._apply(batch)
        if is_lost:
            self.synced = len(self.wal)  # who writes next finds it there
            raise Unsynced
        self.synced = len(self.wal) if is_synced else self.synced

    def kill(self) -> None:
        self.wal = self.wal[: self.rnd.randint(self.synced, len(self.wal))]
        self.db, self.kinds, self.synced = {}, {}, len(self.wal)
        for batch in self.wal:
            self._apply(batch)

    def _apply(self, batch: Batch) -> None:
        for name, value in batch.items():
            names = self.kinds.setdefault(name[0], set())
            if value is None:
                self.db.pop(name, None)
                names.discard(name)
            else:
                self.db[name] = value
                names.add(name)

    def under(self, *start: Any) -> list[Name]:
        """Names that begin so, in order."""
        return sorted(name for name in self.kinds.get(start[0], ()) if name[: len(start)] == start)


def names_of(whose: Whose, root: Position, row: DeliveryRow) -> list[Name]:
    """The names of a row, as the store has them."""
    if row.state is State.DEAD:
        return [("dead", row.at, root, whose), ("dead of", whose[0], row.at, root, whose)]
    if row.state in (State.WAITING, State.WITHHELD):
        return [("due of", whose, row.at, root), ("due", row.at, root, whose)]
    return []


@dataclass(slots=True)
class Cursor:
    """What a place stores of its own, now and then."""

    read: Position
    since: dict[str, Position]
    replays: dict[str, int]
    """Of each filter the number of its last replay."""
    count: int = 0
    flights: dict[Position, Out] = field(default_factory=dict)
    until: dict[Position, int] = field(default_factory=dict)
    """When leases end, and who has them."""
    holders: dict[Position, str] = field(default_factory=dict)
    notes: dict[Position, int] = field(default_factory=dict)
    """Done ahead of the reader, with the number of the replay."""
    own: dict[tuple[Whose, Position], Out] = field(default_factory=dict)
    """A session's: what groups have handed over to it, or left to it."""

    def end(self, root: Position) -> None:
        of: list[dict[Position, Any]] = [self.flights, self.until, self.holders]
        for one in of:
            one.pop(root, None)

    def copy(self) -> "Cursor":
        return Cursor(
            self.read,
            dict(self.since),
            dict(self.replays),
            self.count,
            dict(self.flights),
            dict(self.until),
            dict(self.holders),
            dict(self.notes),
            dict(self.own),
        )


class Place:
    """One incarnation of a session or a group."""

    def __init__(self, life: "Life", name: str, number: int, cursor: Cursor) -> None:
        self.life, self.world, self.rnd, self.ledger = life, life.world, life.rnd, life.ledger
        self.name, self.whose, self.cursor = name, (name, number), cursor
        self.is_session = name == "s"
        self.hands: dict[Position, str] = {}
        """Who has what is out."""
        self.over: set[Position] = set()
        """Their rows go with the next cursor."""
        self.told: dict[Position, DeliveryRow] = {}
        """Rows of what is done, which come with it."""
        self.pending: dict[Position, tuple[Event, Case, State]] = {}
        """Decided, and not written: tried again."""
        self.unkept: set[Position] = set()
        """Of these the story has gone, by the bound or with its slice."""
        self.evicted: set[Position] = set()
        """Of these notes there was one too many."""
        self.lazily: list[Stake] = []
        """Acked since the last cursor."""
        self.max_tries, self.is_paused, self.window = 0, False, self.rnd.choice(WINDOWS)
        self.is_over = False
        """It has ended, and has letters."""
        drawn = random.Random(f"{life.seed} {self.whose}").choice([*Keep])  # no other draw is another by that
        self.keep = Keep.NONE if self.is_session else drawn
        self.account = life.account(self)
        self.account.keep = self.keep.name.lower()

    # -- where a message stands

    def row(self, root: Position) -> DeliveryRow | None:
        stored = None if root in self.over else self.world.db.get(("row", self.whose, root))
        return self.told.get(root, stored)

    def offers(self, root: Position) -> list[str]:
        """The filters by which the timeline offers it."""
        sent = self.world.sent[root]
        topic = sent.message.topic
        if not sent.is_there or sent.moved_to or sent.key in self.life.noted:
            return []
        return [one for one, since in self.cursor.since.items() if since < root and fits(one, topic)]

    def seen(self, root: Position) -> Seen:
        if self.is_over:
            return Seen()
        cursor, found = self.cursor, self.offers(root)
        replay = max((cursor.replays.get(one, 0) for one in found), default=0)
        is_ahead = bool(found) and root > cursor.read
        return Seen(cursor.flights.get(root), is_ahead, replay, cursor.notes.get(root))

    def state(self, root: Position) -> State:
        return state_of(self.row(root), self.seen(root))

    def roots(self, *states: State) -> list[Position]:
        return [root for root in self.world.sent if self.state(root) in states and root not in self.pending]

    def stake(self, root: Position) -> Stake:
        stake: Stake = self.account.stakes[self.world.sent[root].key]
        return stake

    @property
    def has_room(self) -> bool:
        return len(self.cursor.flights) < self.window

    @property
    def terms(self) -> Terms:
        has_room = self.back < BACK_MAX
        return Terms(self.is_session, self.max_tries, (BACKOFF_MS,), has_room=has_room, keep=self.keep)

    @property
    def back(self) -> int:
        """How many are in nobody's hands."""
        return sum(not out.is_held for out in self.cursor.flights.values())

    def case(self, root: Position, **more: Any) -> Case:
        message = self.world.sent[root].message
        expires_ms = message.expires or 0
        has_slice = self.world.sent[root].is_there
        return Case(
            self.world.next(),
            due_ms=message.due,
            expires_ms=expires_ms,
            has_slice=has_slice,
            keeper="k",
            **{"by": self.by(root), "lost": self.lost(root)} | more,
        )

    def by(self, root: Position) -> str:
        """Who was given it last."""
        stake = self.account.stakes.get(self.world.sent[root].key)
        return "" if stake is None else stake.by

    def lost(self, root: Position, *, is_tried: bool = True) -> tuple[Try, ...]:
        """Tries that only the flight knows of. `is_tried`: its last one ends with this event."""
        out, row = self.cursor.flights.get(root), self.row(root)
        count = 0 if out is None else out.attempts - (row.attempts if row is not None else 0)
        is_tried |= out is not None and out.is_held
        return (Try(0, "", "lost", ""),) * (count - is_tried)

    # -- applying

    def apply(self, event: Event, root: Position, case: Case | None = None, **more: Any) -> bool | None:
        """Decide, write, and do what follows. False: refused. None: it could not be written, and waits."""
        case = case or self.case(root, **more)
        row, seen = self.row(root), self.seen(root)
        fate = decide(row, seen, event, case, self.terms)
        effects, stored = fate.effects, ("row", self.whose, root) in self.world.db
        if Effect.REFUSED in effects:
            return False
        if event is Event.RETURN and Effect.NEXT_MEMBER in effects and not self.terms.has_room:
            raise Broken("more is in nobody's hands than may be")
        is_noted = Effect.NOTE in effects
        if Effect.LATER not in effects and (fate.row != row or Effect.CURSOR in effects):
            batch = self.changes(root, fate.row, has_record=Effect.RECORD in effects)
            if Effect.CURSOR in effects:
                after = self.cursor.copy()
                after.end(root)
                if is_noted:
                    after.notes[root] = seen.replay
                self.cursors(after, batch)
            try:
                self.world.write(batch)
            except Unsynced:
                if event in AGAIN:
                    self.hands.pop(root, None)
                    self.pending[root] = event, case, state_of(row, seen)
                return None
            if Effect.CURSOR in effects:
                self.secured()
            self.over.discard(root)
            self.told.pop(root, None)
        else:
            self.with_next_cursor(root, row, fate.row, is_stored=stored)
        if is_noted:
            self.note(root, seen.replay)
        elif fate.row is not None and fate.row.replay >= seen.replay:
            self.cursor.notes.pop(root, None)
        self.fly(root, fate.out)
        if Effect.NEXT_MEMBER in effects:
            self.hands.pop(root, None)
        return True

    def with_next_cursor(
        self, root: Position, row: DeliveryRow | None, now: DeliveryRow | None, *, is_stored: bool
    ) -> None:
        """What is not written now: the story of what is done, and that there is no row any more."""
        if now is not None and now.state is State.DONE and now != row:
            self.told[root] = now
            self.over.discard(root)
        elif now is None:
            self.told.pop(root, None)
            self.over |= {root} if is_stored else set()

    def changes(
        self, root: Position, row: DeliveryRow | None, *, has_record: bool = False, into: Batch | None = None
    ) -> Batch:
        """A row, its record and its names, behind what is in a batch already."""
        db, name, record = self.world.db, ("row", self.whose, root), ("record", root, self.whose)
        old: DeliveryRow | None = db.get(name)
        batch: Batch = {} if into is None else into
        batch |= dict.fromkeys(names_of(self.whose, root, old) if old else [])
        if row is not None:
            batch |= dict.fromkeys(names_of(self.whose, root, row), True) | {name: row}
            if has_record:
                batch[record] = self.world.sent[root].key
        elif old:
            batch[name] = None
        if (row is None or row.state in (State.DROPPED, State.DONE)) and record in db:
            batch[record] = None
        waits = [one is not None and one.state in (State.WAITING, State.WITHHELD) for one in (old, row)]
        if waits[0] != waits[1]:
            before = batch.get(("waiting", self.whose), db.get(("waiting", self.whose), 0)) or 0
            batch["waiting", self.whose] = before + waits[1] - waits[0] or None
        return batch

    def retry(self) -> None:
        """What could not be written is tried again; the row is read again, as it may be there."""
        for root, (event, case, state) in list(self.pending.items()):
            was = self.cursor.flights.get(root)
            del self.pending[root]
            if self.state(root) is state:
                if self.apply(event, root, case) is None:
                    continue
            else:
                self.fly(root, None)
                if event in (Event.ACK, Event.LATE_ACK) and self.state(root) is State.UNREAD:
                    self.note(root, self.seen(root).replay)  # as the stored cursor does
            self.tell(event, root, was, is_for_good=case.delay_ms == NEVER)

    def note(self, root: Position, replay: int) -> None:
        self.cursor.notes[root] = replay
        self.trim()

    def trim(self) -> None:
        """Have no more notes than may be."""
        notes = self.cursor.notes
        while len(notes) > NOTES_MAX:
            first = min(notes)
            del notes[first]
            self.evicted.add(first)
            self.comes_again(self.stake(first))

    @staticmethod
    def comes_again(stake: Stake) -> None:
        """The answer at the bound of notes."""
        stake.may |= {WAITING}
        stake.tries.least = stake.total.least = 0

    def fly(self, root: Position, out: Out | None) -> None:
        cursor = self.cursor
        if out is None:
            cursor.end(root)
            self.hands.pop(root, None)
        else:
            cursor.flights[root] = out
            if not out.is_leased:
                cursor.until.pop(root, None)
                cursor.holders.pop(root, None)

    # -- the cursor

    def cursors(self, after: Cursor | None = None, into: Batch | None = None) -> Batch:
        """This cursor, and those that are bound to it; with the rows that are over."""
        batch: Batch = into if into is not None else {}
        for place in self.life.bound(self):
            cursor = after if place is self and after is not None else place.cursor
            batch["cursor", place.name] = place.whose, cursor.copy()
            for root in place.over:
                if ("row", place.whose, root) not in batch:
                    place.changes(root, None, into=batch)
            for root, row in place.told.items():
                if ("row", place.whose, root) not in batch:
                    place.changes(root, row, into=batch)
        return batch

    def secured(self) -> None:
        for place in self.life.bound(self):
            place.over.clear()
            place.told.clear()
            for stake in place.lazily:
                stake.since = 0.0
            place.lazily.clear()

    def save(self, *, is_synced: bool = True) -> bool:
        try:
            self.world.write(self.cursors(), is_synced=is_synced)
        except Unsynced:
            return False
        if is_synced:
            self.secured()
        return True

    # -- giving

    def pump(self) -> None:
        rounds = 0
        while not self.is_paused and any(
            way() for way in self.rnd.sample([self.give_back, self.give_due, self.read_on], 3)
        ):
            self.check()
            rounds += 1
            if rounds > ROUNDS_MAX:
                raise Broken(f"{self.name} goes round and round")

    def give(self, root: Position, *, is_retry: bool = False) -> None:
        sent, seen = self.world.sent[root], self.seen(root)
        if not sent.is_there and ("record", root, self.whose) not in self.world.db:
            raise Broken(f"{sent.key} of {self.name} is given, and is not there any more")
        if is_retry and self.world.db.get(("record", root, self.whose)) != sent.key:
            raise Broken(f"{sent.key} of {self.name} has no record")
        is_handed = sent.qos == 2 and not self.is_session and self.rnd.random() < 0.5
        was = seen.out
        told = self.apply(Event.GIVE, root, is_retry=is_retry, is_handed=is_handed)
        if root in self.pending or root not in self.cursor.flights:
            self.tell(Event.GIVE, root, was, is_for_good=False) if told else None
            return
        if was is not None and 0 < self.max_tries < self.cursor.flights[root].counted:
            raise Broken(f"{sent.key} of {self.name} is given again, and its tries are over")
        if is_handed:
            self.handed_over(root)
            return
        member = "s" if self.is_session else self.rnd.choice(("a", "b", "pull"))
        self.hands[root] = member
        out, lapses = self.cursor.flights[root], None
        if member in ("b", "pull"):
            self.cursor.flights[root] = out._replace(is_leased=True)
            until = self.cursor.until[root] = self.world.now_ms + LEASE_MS
            self.cursor.holders[root], lapses = member, until / 1_000
        is_former = is_retry and seen.is_ahead
        self.came(root, member, lapses, None if is_former else out.attempts)
        if is_former:  # as the retry says; what was given since may be lost by a kill
            total, tries = self.stake(root).total, self.stake(root).tries
            total.most, tries.most = max(total.most, out.attempts), max(tries.most, out.counted)
            total.least, tries.least = min(total.least, out.attempts), min(tries.least, out.counted)
        if self.rnd.random() < 0.03 and seen.out is None and member == "a":
            self.ledger.ends.acks(self.stake(root), member)
            self.apply(Event.TOO_LARGE, root)
            self.acked(root)
        elif member in ("b", "pull") and not self.save():
            self.does(Event.PUT_BACK, root)  # it is not answered

    def came(self, root: Position, by: str, lapses: float | None, attempt: int | None) -> None:
        sent = self.world.sent[root]
        if self.ledger.fates.has_expired(self.stake(root)) and attempt == 1:
            raise Broken(f"{sent.key} of {self.name} has expired, and is given")
        is_leased = lapses is not None
        self.ledger.given(self.account, sent.key, by=by, lapses=lapses, is_leased=is_leased, attempt=attempt)

    def handed_over(self, root: Position) -> None:
        """At QoS 2: it is in the session's cursor too, in one batch."""
        session, name = self.life.places["s"], (self.whose, root)
        if name in session.cursor.own:
            raise Broken(f"{self.world.sent[root].key} of {self.name} is handed over twice")
        session.cursor.own[name] = self.cursor.flights[root]
        self.came(root, "q", None, None)

    def give_back(self) -> bool:
        """What is in nobody's hands."""
        for root, out in list(self.cursor.flights.items()):
            if root in self.hands or root in self.pending or out.is_handed:
                continue
            if self.state(root) not in (State.OUT, State.LEASED):
                self.fly(root, None)  # its row has the later try
                return True
            sent = self.world.sent[root]
            self.cursor.flights[root] = out._replace(is_leased=False)
            if not sent.is_readable and ("record", root, self.whose) not in self.world.db:
                self.does(Event.UNREADABLE, root)
            elif self.has_expired(root):
                self.does(Event.EXPIRE, root)
            elif sent.owner in self.life.absent:
                self.waits_for_owner(root)
            elif self.rnd.random() < 0.02:
                self.does(Event.PUT_OFF, root)  # no member that is there may receive it
            else:
                self.give(root)
            return True
        return False

    def waits_for_owner(self, root: Position) -> None:
        """Until the owner is back, or for a while."""
        if self.rnd.random() < 0.5:
            self.does(Event.WITHHOLD, root)
        else:
            self.does(Event.PUT_OFF, root, delay_ms=2 * STEP_MS)

    def has_expired(self, root: Position, by_ms: int = 0) -> bool:
        """By then; 0: by now."""
        row, message = self.row(root), self.world.sent[root].message
        since = (row.due_ms if row is not None else 0) or message.due
        return message.expires is not None and (by_ms or self.world.now_ms) >= since + message.expires

    def does(self, event: Event, root: Position, **more: Any) -> None:
        """Apply what is tried again when it could not be written, and tell the account."""
        was = self.cursor.flights.get(root)
        if event in UNTRIED:
            more |= {"lost": self.lost(root, is_tried=False)}
        if self.apply(event, root, **{"reason": "why"} | more) is None:
            self.stake(root).failures.append((self.stake(root).by, OUTCOMES.get(event, "lost")))
        else:
            self.tell(event, root, was, is_for_good=more.get("delay_ms") == NEVER)

    def unsure(self, root: Position, *then: str) -> None:
        """It could not be written, and may be stored."""
        self.ledger.settling.unsure(self.stake(root), frozenset(then))
        self.stake(root).is_exact = False

    def tell(self, event: Event, root: Position, was: Out | None, *, is_for_good: bool) -> None:
        row, stake = self.row(root), self.stake(root)
        if event in UNTRIED and row is not None and row.state is not State.DEAD:
            if was is not None and row.counted != was.counted:
                raise Broken(f"{stake} is put off, and that is a try: {row}")
            if event is Event.PUT_OFF and self.has_expired(root, at_of(row.at)):
                raise Broken(f"{stake} is put off until it has expired: {row}")
            stake.is_exact = False
            return
        if event is Event.PUT_BACK and (row is None or row.state is not State.DEAD):
            self.was_put_back(root, was)
            return
        if event in (Event.ACK, Event.LATE_ACK):
            self.acked(root, is_answered=True)
        elif event is Event.LOST and self.is_session:
            self.ledger.losses.left(self.account, by="s")
        elif event in FAILURES and not (event is Event.RETURN and _is_no_try(row, was)):
            if event is Event.RETURN and was is not None and was.returns < FREE:
                raise Broken(f"{stake} was returned {was.returns} times before, and that is a try")
            self.failed(root, is_for_good=is_for_good)
            stake.failures[-1] = (stake.by, OUTCOMES[event])
        elif event is Event.RETURN:
            self.ledger.settling.returned(self.account, stake)
        elif row is not None:
            till_ms = self.world.now_ms + (2 * STEP_MS if event is Event.PUT_OFF else 0)
            if event in UNTRIED and not self.ledger.fates.has_expired(stake, till_ms):
                raise Broken(f"{stake} is dead, as its owner was absent")
            if event in (Event.GIVE, Event.KILL) and not self.ledger.fates.may_die(self.account, stake):
                raise Broken(f"{stake} has tries left, and is dead")
            self.ledger.settling.buried(stake)
        elif not self.is_session or event is Event.BAR:
            raise Broken(f"{stake} has ended without a word: {event}")
        else:
            self.ledger.settling.dropped(stake)

    def was_put_back(self, root: Position, was: Out | None) -> None:
        """It is as before it was given, in whoever's hands."""
        now, stake = self.row(root) or self.cursor.flights.get(root), self.stake(root)
        if was is None or now is None or (now.counted, now.returns) != (was.counted - 1, was.returns):
            raise Broken(f"{stake} was put back, and that counts: {now} after {was}")
        self.ledger.settling.returned(self.account, stake)
        stake.returns.down(is_sure=True)
        stake.is_returned, stake.is_exact, stake.not_before = self.row(root) is None, False, 0

    def due(self) -> list[Position]:
        """Retries that are due."""
        names = self.world.under("due of", self.whose)
        now = before(self.world.now_ms + 1)
        roots = [Position(root) for _, _, at, root in names if at < now]
        return [root for root in roots if root not in self.cursor.flights and root not in self.pending]

    def give_due(self) -> bool:
        for root in self.due():
            row, sent = self.row(root), self.world.sent[root]
            if row is not None and row.state is State.WITHHELD and sent.owner not in self.life.absent:
                self.does(Event.OWNER_BACK, root)
                return True
            if row is None or row.state is not State.WAITING or not self.has_room:
                continue
            if self.state(root) is State.WAITING and ("record", root, self.whose) in self.life.damaged:
                self.does(Event.UNREADABLE, root)
                if root not in self.pending and self.state(root) is State.WAITING:
                    raise Broken(f"{sent.key} of {self.name} cannot be read, and waits for ever")
                return True
            if self.state(root) not in (State.WAITING, State.UNREAD):
                raise Broken(f"{sent.key} of {self.name} waits, and is {self.state(root)}")
            topic = sent.message.topic
            if self.is_session and not any(fits(one, topic) for one in self.cursor.since):
                self.does(Event.BAR, root) if self.state(root) is State.WAITING else None
                return self.state(root) is not State.UNREAD
            if self.state(root) is State.WAITING and self.has_expired(root):
                self.does(Event.EXPIRE, root)
            elif self.has_expired(root):
                continue  # it is to be read again, and passed over
            elif sent.owner in self.life.absent:
                if self.state(root) is State.UNREAD:
                    continue
                self.waits_for_owner(root)
            else:
                self.give(root, is_retry=True)
            return True
        return False

    def read_on(self) -> bool:
        """The reader's next row; False: there is none, or it stands before it."""
        root = min((root for root in self.world.sent if root > self.cursor.read), default=None)
        if root is None or root in self.pending:
            return False
        sent, state = self.world.sent[root], self.state(root)
        if state is State.UNREAD and not self.is_passed(root):
            if sent.owner in self.life.absent or not self.has_room:
                return False
            self.give(root)
        self.cursor.read = max(self.cursor.read, root)
        self.cursor.notes = {one: n for one, n in self.cursor.notes.items() if one > self.cursor.read}
        return True

    def is_unfit(self, root: Position) -> bool:
        """Whether the reader passes it, whatever the table says."""
        sent = self.world.sent[root]
        expires = sent.message.expires
        is_expired = expires is not None and self.world.now_ms >= sent.message.due + expires
        return is_expired or not sent.is_readable

    def is_passed(self, root: Position) -> bool:
        """Whether nobody gets it, by no rule of the table. A row that it has from before a replay counts."""
        is_unfit = self.is_unfit(root)
        if is_unfit:
            self.passes(root)
        return is_unfit

    def passes(self, root: Position) -> None:
        """Tell the account that nobody is given it."""
        stake, row = self.account.stakes.get(self.world.sent[root].key), self.row(root)
        if stake is not None and row is None:
            self.ledger.settling.dropped(stake)
        elif stake is not None:
            stake.may, stake.former = ANY, frozenset()

    # -- what members do

    def acked(self, root: Position, *, is_answered: bool = False) -> None:
        stake = self.stake(root)
        self.ledger.settling.finished(stake, 0.0 if is_answered else self.world.now_ms / 1_000)
        if not is_answered:
            self.lazily.append(stake)
        if root in self.evicted:
            self.comes_again(stake)

    def ack(self, root: Position) -> None:
        self.pending.pop(root, None)
        self.ledger.ends.acks(self.stake(root), self.stake(root).by)
        is_answered = self.state(root) not in (State.OUT, State.HANDED)
        if self.apply(Event.ACK, root) is not None:
            self.acked(root, is_answered=is_answered)

    def late_ack(self, root: Position) -> None:
        if self.world.sent[root].key not in self.account.stakes or root in self.pending:
            return
        state, row, stake = self.state(root), self.row(root), self.stake(root)
        if state in (State.DROPPED, State.DONE) or not stake.number:
            return
        if state is State.UNREAD and row is None and not stake.was_given:
            return
        self.ledger.ends.acks(stake, "late")
        if self.apply(Event.LATE_ACK, root, by="late") is not None:
            self.life.places["s"].cursor.own.pop((self.whose, root), None)  # it is of no group any more
            self.acked(root, is_answered=True)

    def failed(self, root: Position, *, is_for_good: bool = False) -> None:
        row, stake = self.row(root), self.stake(root)
        if row is None:
            raise Broken(f"{stake.message.id} of {self.name} has failed, and has no row")
        if row.state is State.DEAD:
            self.ledger.settling.failed(self.account, stake)
            if DEAD not in stake.may and not is_for_good:
                raise Broken(f"{stake} has tries left, and is dead: {row}")
            self.ledger.settling.buried(stake)
        else:
            self.ledger.settling.failed(self.account, stake, not_before=at_of(row.at), is_exact=True)

    def put_back(self, root: Position) -> None:
        """Returned in order."""
        self.does(Event.RETURN, root, outcome="returned")

    def leave(self, member: str) -> None:
        """Its connection is lost. What it leased over HTTP it keeps."""
        for root in [root for root, one in self.hands.items() if one == member]:
            self.does(Event.LOST, root, outcome="lost")

    def lapse(self, *, is_down: bool = False) -> None:
        for root, until in list(self.cursor.until.items()):
            if until <= self.world.now_ms and root in self.hands:
                self.does(Event.LAPSE, root, outcome="lapsed", **({"delay_ms": 0} if is_down else {}))

    # -- what is always true

    def check(self) -> None:
        if len(self.cursor.notes) > NOTES_MAX:
            raise Broken("more is noted than may be")
        if self.back > BACK_MAX and not self.is_session:
            raise Broken("more is in nobody's hands than may be")

    def story(self, root: Position) -> Shown | None:
        """What is kept of it, as it is done."""
        row = self.row(root)
        if row is None or row.state is not State.DONE:
            return None
        if row.tries[-1].outcome != "done":
            raise Broken(f"{row} is done")
        tries = [(one.by, one.outcome) for one in row.tries[:-1]]
        return Shown(row.attempts, tries, row.tries[-1].by)

    def where(self, root: Position) -> list[str]:
        """All that there is of it, as people see it."""
        words = {State.WAITING: "waits", State.WITHHELD: "waits", State.DEAD: "dead", State.OUT: "in flight"}
        words |= {State.LEASED: "in flight", State.HANDED: "in flight", State.UNREAD: "unread"}
        state, row = self.state(root), self.row(root)
        found = [words[state]] if state in words else []
        if state is State.UNREAD and row is not None and row.state in words:
            found.append(words[row.state])
        return found


def _is_no_try(row: DeliveryRow | None, was: Out | None) -> bool:
    """Of a return: it is as if it had not been given."""
    return row is None or was is None or row.counted < was.counted
