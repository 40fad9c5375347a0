"""The table of deliveries under the order by key: order.py's group, where `timeline.deliveries` decides.

The group, its world, its oracle and its walks are those of order.py. Here a retry and a dead letter are one
row under the root, a replay touches none of them, and what was done or has failed ahead of the reader is as
the table says. So the oracle demands more: what is out at a replay comes once, or in the order of its key.
What somebody has requeued, while nothing held its key, has no place in that order until it is given.
"""

import random
from typing import Any

from tests.model.order import (
    LAST,
    NEVER,
    TRIES,
    Batch,
    Broken,
    Flight,
    Group,
    Oracle,
    Row,
    World,
    _key,
    _name,
    rows_of,
)
from timeline.deliveries import decide
from timeline.delivery_rows import Case, DeliveryRow, Effect, Event, Fate, Out, Seen, State, Terms, state_of
from timeline.finished import Finished
from timeline.key_rows import NOWHERE, ORDERED, Rule
from timeline.position import START, Position, at_of


class Account(Oracle):
    """`aside`: requeued while nothing held their key, and not given since."""

    def __init__(self, world: World, rule: Rule) -> None:
        super().__init__(world, rule)
        self.aside: set[Position] = set()
        self.asides: dict[int, set[Position]] = {0: set()}

    def snap(self) -> None:
        super().snap()
        self.asides[len(self.world.wal)] = set(self.aside)

    def kill(self) -> None:
        super().kill()
        (last,) = self.snaps
        self.aside = set(self.asides[last])
        self.asides = {last: set(self.aside)}

    def todo(self) -> dict[int | None, list[Position]]:
        found = super().todo()
        left = {key: [root for root in roots if root not in self.aside] for key, roots in found.items()}
        return {key: roots for key, roots in left.items() if roots}

    def give(self, key: int | None, root: Position, *, is_returned: bool = False) -> None:
        if root in self.aside:
            if key in self.head:
                raise Broken(f"1: {root} of key {key} is given, and {self.head[key][0]} is its head")
            self.aside.discard(root)
            if key is not None:
                self.head[key] = (root, None)
        super().give(key, root, is_returned=is_returned)


class Ruled(Group):
    """A group that orders, by the table."""

    oracle: Account

    def __init__(self, world: World, rnd: random.Random, rule: Rule = ORDERED, *, hold: bool = False) -> None:
        super().__init__(world, rnd, rule, hold=hold)
        self.oracle = Account(world, rule)
        self.held = hold
        """Whether letters held their keys when the last decision was made."""
        self.replays: list[tuple[int, Position]] = []
        """Number and position, but of those that a later one has gone back behind."""
        self.notes: dict[Position, int] = {}
        self.gone: set[Position] = set()
        """Their rows go with the next cursor."""

    # -- the table

    def row(self, root: Position) -> DeliveryRow | None:
        return None if root in self.gone else self.world.db.get(("delivery", root))

    def seen(self, root: Position) -> Seen:
        flight, key = self.flights.get(root), self.world.row(root).key
        out = None if flight is None else Out(flight.tries, flight.tries)
        return Seen(out, self.is_read_again(root, key), self.replay_of(root), self.notes.get(root))

    def replay_of(self, root: Position) -> int:
        """The last replay from before it. A later one says nothing of what its key has still to give."""
        return max((number for number, to in self.replays if to < root), default=0)

    def state(self, root: Position) -> State:
        return state_of(self.row(root), self.seen(root))

    def is_head(self, root: Position) -> bool:
        key = self.world.row(root).key
        return key is not None and (root in self.flights or self.order.row(_name(key)).root == root)

    def decided(self, event: Event, root: Position, seen: Seen | None = None, **more: Any) -> Fate:
        seen, sent = seen or self.seen(root), self.world.row(root)
        due_ms, self.hold = at_of(root), self.hold ^ (self.rnd.random() < 0.1)
        case = Case(self.world.place(self.world.now), due_ms=due_ms, expires_ms=sent.expires - due_ms, **more)
        is_ordered, self.held = sent.key is not None, self.hold
        terms = Terms(False, TRIES, (1,), is_ordered, self.is_head(root), self.hold)
        fate = decide(self.row(root), seen, event, case, terms)
        if Effect.NOTE in fate.effects:
            self.notes[root] = seen.replay
        elif fate.row is not None and fate.row.replay >= seen.replay:
            self.notes.pop(root, None)
        return fate

    def changes(self, root: Position, row: DeliveryRow | None) -> Batch:
        """The row, and where order.py looks for it."""
        old, sent = self.world.db.get(("delivery", root)), self.world.row(root)
        batch: Batch = {("delivery", root): row, ("dead", root): None}
        if old is not None and old.state is State.WAITING:
            batch["retry", old.at] = None
        if row is not None and row.state is State.DEAD:
            batch["dead", root] = sent
        elif row is not None and row.state is State.WAITING:
            batch["retry", row.at] = sent._replace(root=root, tries=row.attempts)
        self.gone.discard(root)
        return batch

    def becomes(self, root: Position, fate: Fate, more: Batch | None = None) -> None:
        """What the oracle and the key are told, and the batch."""
        key, row = self.world.row(root).key, fate.row
        was_out = root in self.flights
        self.flights.pop(root, None)
        if row is not None and row.state is State.WAITING:
            if Effect.KEY_WAITS in fate.effects and key is not None:
                self.rests(_name(key), root, was_out=was_out)
                self.oracle.rest(key, root, row.at)
            else:
                self.looked = min(self.looked, Position(row.at - 1))
                self.oracle.end(key, root)
                self.oracle.ended.discard(root)
                self.oracle.aside |= {root} if key is not None else set()
                self.oracle.again[root] = row.at
        elif Effect.KEY_HELD in fate.effects and key is not None:
            if not self.held:
                raise Broken(f"1: the letter {root} holds its key, and none was to")
            self.rests(_name(key), root, was_out=was_out, is_dead=True)
            self.oracle.rest(key, root, LAST)
        else:
            is_unread = state_of(row, self.seen(root)) is State.UNREAD
            self.oracle.end(key, root, again=is_unread)
            if was_out and self.name(key):
                self.order.land(self.name(key))
            elif Effect.KEY_GOES_ON in fate.effects and key is not None:
                self.order.end_head(_name(key))
        self.save(self.changes(root, row) | (more or {}))

    def rests(self, name: bytes, root: Position, *, was_out: bool, is_dead: bool = False) -> None:
        """The message is the head of its key and is not out."""
        self.order.set_head(name, root, is_dead=is_dead)
        if was_out:
            self.order.land(name)

    # -- what order.py's group does otherwise

    def save(self, batch: Batch | None = None) -> None:
        rows: Batch = dict(batch or {})
        for root in list(self.gone):
            rows |= self.changes(root, None)
        self.over.clear()
        before = len(self.world.wal)
        notes = {root: number for root, number in self.notes.items() if self.seen(root).is_ahead}
        super().save(rows | {("notes",): (self.replays, notes)} if rows else None)
        if not rows and len(self.world.wal) > before:
            self.world.wal[-1]["notes",] = self.world.db["notes",] = (self.replays, notes)

    def pump(self) -> None:
        """And be set back now and then, more often than by the walk."""
        earlier = [place for place in self.world.places if place < self.read]
        if earlier and self.rnd.random() < 0.04:
            self.replay(self.rnd.choice(earlier))
        super().pump()

    def recover(self) -> None:
        super().recover()
        self.replays, notes = self.world.db.get(("notes",), ([], {}))
        self.notes, self.gone = dict(notes), set()

    def give(self, root: Position, tries: int = 0, retry: Position = START) -> bool:
        is_retry, seen = retry != START or tries > 0, self.seen(root)
        seen = seen._replace(is_ahead=seen.is_ahead or not is_retry)  # the key has gone on already
        out = self.decided(Event.GIVE, root, seen, is_retry=is_retry)
        given = super().give(root, tries, retry)
        if out.row is None and ("delivery", root) in self.world.db:
            self.gone.add(root)
        assert out.out is not None, "it is given"
        self.flights[root] = self.flights[root]._replace(tries=out.out.attempts)
        return given

    def give_returned(self) -> bool:
        """It is dead if that was its last try, or is put off."""
        root = min((root for root, flight in self.flights.items() if not flight.is_out), default=None)
        event = Event.PUT_OFF if self.rnd.random() < 0.1 else Event.GIVE  # its owner is absent
        fate = None if root is None else self.decided(event, root, delay_ms=self.rnd.choice((0, 3)))
        if root is None or fate is None or fate.out is not None:
            return super().give_returned()
        row, tries = fate.row, self.flights[root].tries
        is_late = row is not None and row.reason == "expired"
        if event is Event.PUT_OFF and (
            row is None or row.attempts != tries or (row.state is not State.WAITING and not is_late)
        ):
            raise Broken(f"8: {root} was put off after {tries} tries, and is {row}")
        self.becomes(root, fate)
        return True

    def give_due(self) -> bool:
        if self.room <= 0:
            return False
        missed = self.order.lines.take_missed()
        if missed != NOWHERE:
            self.looked = min(self.looked, Position(missed - 1))
        for place in sorted(self.world.all("retry")):
            is_met = place <= self.looked or self.order.head_of(self.world.db["retry", place].root)
            if place > self.world.horizon or is_met:
                continue
            row = self.retry(place)
            name = b"" if row is None else self.name(row.key)
            if row is not None and name and not self.order.meet_retry(name, place, self.room):
                self.looked = place
                continue
            self.looked = place
            if row is not None:
                if name:
                    self.order.launch(name)
                return self.give(row.root, row.tries, place)
            return True
        return False

    def retry(self, place: Position) -> Row | None:
        row: Row | None = self.world.db.get(("retry", place))
        if row is None or row.root in self.flights or self.state(row.root) is not State.WAITING:
            return None  # it is over, or is read again
        if row.expires <= self.world.now and self.is_over(row.root):
            self.becomes(row.root, self.decided(Event.EXPIRE, row.root))
            return None
        return row

    def is_over(self, root: Position) -> bool:
        row = self.row(root)
        since = at_of(root) if row is None or not row.due_ms else row.due_ms
        return self.world.now >= since + self.world.row(root).expires - at_of(root)

    def is_wanted(self, place: Position) -> bool:
        return self.state(place) is State.UNREAD and super().is_wanted(place)

    def ack(self, root: Position) -> None:
        key = self.world.row(root).key
        fate = self.decided(Event.ACK, root)
        self.flights.pop(root)
        self.oracle.end(key, root)
        if ("delivery", root) in self.world.db:
            self.gone.add(root)
        if self.name(key):
            self.order.land(self.name(key))
        assert fate.row is None, "it is done"

    def fail(self, root: Position, delay: int) -> None:
        self.becomes(root, self.decided(Event.NACK, root, delay_ms=delay))

    def bury(self, name: bytes) -> None:
        root = self.order.row(name).root
        self.becomes(root, self.decided(Event.BURY, root))

    def let_go(self, name: bytes) -> None:
        found = self.order.find(name)
        if found is not None and found.is_dead:
            root, fate = found.root, self.decided(Event.RELEASE, found.root)
            self.world.write(self.changes(root, fate.row))
            if fate.row is None or fate.row.state is not State.DEAD:
                raise Broken(f"1: the letter {root} has gone with the release of its key")
        super().let_go(name)

    def finish(self, name: bytes) -> None:
        root = self.order.row(name).root
        if self.state(root) in (State.WAITING, State.DEAD):
            self.becomes(root, self.decided(Event.LATE_ACK, root))

    def requeue(self, root: Position) -> None:
        state = self.state(root)
        fate = self.decided(Event.REQUEUE, root)
        if Effect.REFUSED in fate.effects:
            if state is State.DEAD:
                raise Broken(f"1: the letter {root} cannot be requeued")
            return
        self.becomes(root, fate, {("row", root): self.world.row(root)._replace(expires=NEVER)})

    def replay(self, to: Position) -> None:
        self.read, self.reread = to, max(self.reread, self.read)
        number = 1 + max((number for number, _ in self.replays), default=0)
        self.replays = [*((n, at) for n, at in self.replays if at < to), (number, to)]
        for name, row in rows_of(self.order):
            if row.root > to:
                self.oracle.end(_key(name), row.root, again=True)
        self.order.rewind(to, Finished())
        self.oracle.aside = {root for root in self.oracle.aside if root <= to}
        self.oracle.again = {root: at for root, at in self.oracle.again.items() if root <= to}
        self.oracle.ended = {place for place in self.oracle.ended if place <= to}
        self.save({("replay",): number})

    def skip(self, to: Position) -> None:
        if self.order.look_on():
            self.save()
            return
        seen = {root: self.seen(root) for root in self.world.all("delivery")}
        former = {root for root, one in seen.items() if state_of(self.row(root), one) is State.UNREAD}
        self.read = max(self.read, to)
        while self.order.skip(to, 2):
            pass
        heads = {*self.flights, *self.order.heads, *self.oracle.again}
        self.oracle.ended |= {place for place in self.world.places if place <= to and place not in heads}
        for root in self.order.resting(to, 1_000):
            self.becomes(root, self.decided(Event.SKIP, root))
            if self.order.head_of(root) is not None:
                raise Broken(f"3: {root} was skipped, and its key waits for it")
        for root in [one for one in self.world.all("delivery") if one <= to]:
            if self.state(root) is State.WAITING and root not in self.flights:
                fate, is_former = self.decided(Event.SKIP, root, seen[root]), root in former
                if is_former is (fate.row == self.row(root)) and self.world.row(root).key is not None:
                    raise Broken(f"3: {root} was skipped, and is {fate.row}; to be read again: {is_former}")
                self.becomes(root, fate)
        self.save()


__all__ = ["Account", "Flight", "Ruled"]
