"""Order by key, walked at random: `timeline.key_order` in a dull world, against a dull oracle.

The world is one timeline of rows, a clock, and a log of batches. A kill keeps some prefix of the log that has
all that was answered. One group with `order` reads the timeline. The oracle knows of each key what has not
ended, its head, and what is out. It demands

    1 order       only the first message of a key is given, through retries and kills
    2 one out     of a key one message is out
    3 progress    while the window has room, whatever may go has gone; only BOUND keys in trouble stop
                  the reader
    4 bounds      on key rows and on the followers that are known
    5 exact       what had ended in the last durable batch never comes again; all else does

Without order (`RULES`) it demands of 1 that a retry is not early, of 2 the limit and the rate, and

    6 turns       the reader of a fair group stops only before a key that has nothing out, or at the bound

The walks find each rule that is left out (tests/support/faults/).
"""

import random
from bisect import bisect_right, insort
from typing import Any, NamedTuple

from timeline import key_order, key_tokens
from timeline.finished import Finished
from timeline.key_firsts import Key
from timeline.key_order import KeyOrder, Meeting
from timeline.key_rows import NO_KEY, NOWHERE, ORDERED, Address, KeyBound, KeyRow, Rule
from timeline.position import END, START, Position, at_of, position

WINDOW, BOUND, TRIES, KNOWN, LOOKED = 3, 4, 3, 2, 2
"""In flight; key rows; deliveries before it is dead; followers that are known; keys that are looked at with a
cursor after a replay."""
BURST_MS = 6.0
NEVER = 1 << 40
LAST = position(NEVER, 0)
SHARD = 7


class Broken(AssertionError):
    """A promise is broken; its number comes first."""


class Row(NamedTuple):
    """A message; or with a `root` the retry of the one there."""

    key: int | None
    expires: int = NEVER
    root: Position = START
    tries: int = 0
    is_stub: bool = False


class Flight(NamedTuple):
    """`is_out` False: a kill has taken who had it."""

    key: int | None
    tries: int
    is_out: bool = True
    retry: Position = START


Name = tuple[Any, ...]
Batch = dict[Name, Any]


class World:
    """`db`: what can be read. `wal`: batches; those before `synced` survive a kill."""

    def __init__(self) -> None:
        self.now, self.seq, self.synced = 1, 0, 0
        self.wal: list[Batch] = []
        self.db: Batch = {}
        self.places: list[Position] = []

    @property
    def horizon(self) -> Position:
        return position(self.now, self.seq)

    def place(self, due: int) -> Position:
        self.seq += 1
        return position(max(due, self.now), self.seq)

    def write(self, batch: Batch, *, is_synced: bool = False) -> None:
        self.wal.append(batch)
        self.synced = len(self.wal) if is_synced else self.synced
        for name, value in batch.items():
            if name[0] == "row" and name not in self.db:
                insort(self.places, name[1])
            self.db[name] = value
            if value is None:
                del self.db[name]

    def kill(self, rnd: random.Random) -> None:
        wal = self.wal[: rnd.randint(self.synced, len(self.wal))]
        self.wal, self.db, self.places = [], {}, []
        for batch in wal:
            self.write(batch, is_synced=True)

    def row(self, place: Position) -> Row:
        found: Row = self.db["row", place]
        return found

    def all(self, kind: str) -> list[Any]:
        return [name[1] for name in self.db if name[0] == kind]


class Oracle:
    """`head`: of each key what must end before the next goes, and from when on it may be given (None: it is
    out). `held`: keys that somebody holds. `snaps`: as of each batch with a cursor."""

    def __init__(self, world: World, rule: Rule) -> None:
        self.world, self.rule = world, rule
        self.ended: set[Position] = set()
        self.head: dict[int, tuple[Position, Position | None]] = {}
        self.again: dict[Position, Position] = {}
        """Without order: from when on what has failed may be given."""
        self.held: set[int] = set()
        self.out: dict[Position, int | None] = {}
        self.given: dict[int | None, list[int]] = {}
        """When messages of each key were given since the last start."""
        self.snaps: dict[int, tuple[Any, ...]] = {0: (set(), {}, {}, set())}

    def snap(self) -> None:
        state = set(self.ended), dict(self.head), dict(self.again), set(self.held)
        self.snaps[len(self.world.wal)] = state

    def kill(self) -> None:
        last = max(n for n in self.snaps if n <= len(self.world.wal))
        self.snaps, self.out, self.given = {last: self.snaps[last]}, {}, {}
        ended, head, again, held = self.snaps[last]
        self.ended, self.head, self.again, self.held = set(ended), dict(head), dict(again), set(held)

    def todo(self) -> dict[int | None, list[Position]]:
        """What is to be given and is not out, by key, in order."""
        found: dict[int | None, list[Position]] = {}
        for place in self.world.places[: bisect_right(self.world.places, self.world.horizon)]:
            row = self.world.row(place)
            is_live = not row.is_stub and row.expires > self.world.now
            is_early = self.again.get(place, START) > self.world.horizon
            if is_live and place not in self.ended and place not in self.out and not is_early:
                found.setdefault(row.key, []).append(place)
        return found

    def may_give(self, key: int | None) -> bool:
        rule = self.rule
        if key is None:
            return True
        if rule.most and list(self.out.values()).count(key) >= rule.most:
            return False
        now, given = self.world.now, self.given.get(key, [])
        burst_ms = max(0.0, BURST_MS - 1 / rule.per_ms) if rule.per_ms else 0.0
        return not rule.per_ms or all(
            count <= (now - at + burst_ms) * rule.per_ms + 1e-9 for count, at in enumerate(reversed(given), 1)
        )

    def give(self, key: int | None, root: Position, *, is_returned: bool = False) -> None:
        """`is_returned`: it was in flight at the kill, and counts for no rate."""
        if root in self.ended or root in self.out:
            raise Broken(f"5: {root} of key {key} has ended or is out, and is given")
        if not is_returned and not self.may_give(key):
            raise Broken(f"2: {root} of key {key} is given, and it may have no more")
        if key in self.held and not is_returned:
            raise Broken(f"1: {root} of key {key} is given, and somebody holds the key")
        if self.again.get(root, START) > self.world.horizon:
            raise Broken(f"1: {root} of key {key} is given early")
        if not is_returned:
            self.given.setdefault(key, []).append(self.world.now)
        if key is not None and self.rule.is_ordered:
            first = self.head[key][0] if key in self.head else self.todo().get(key, [START])[0]
            if root != first:
                raise Broken(f"1: {root} of key {key} is given before {first}")
            self.head[key] = (root, None)
        self.out[root] = key

    def end(self, key: int | None, root: Position, *, again: bool = False) -> None:
        """Done, dead, given up. `again`: it is to be read once more."""
        self.out.pop(root, None)
        self.ended |= set() if again else {root}
        self.again.pop(root, None)
        if key is not None and key in self.head and self.head[key][0] == root:
            del self.head[key]

    def rest(self, key: int, root: Position, until: Position) -> None:
        self.out.pop(root, None)
        if self.rule.is_ordered:
            self.head[key] = (root, until)
        else:
            self.again[root] = until

    def check(self, group: "Group") -> None:
        """Progress, when the group says that it can do no more now."""
        todo, order = self.todo(), group.order
        behind = {_key(name) for name, row in rows_of(order) if row.next}
        if self.rule.is_ordered:
            troubled = len(behind | set(self.head) | (set(self.out.values()) - {None}) | self.held)
        else:
            troubled = order.room.rows
        if self.rule.is_fair and troubled < BOUND and group.is_standing_before_busy():
            raise Broken("6: the reader stands before a key that has something out")
        for key in {*todo, *self.head} - self.held if len(group.flights) < WINDOW else ():
            head = self.head.get(key) if key is not None else None
            is_due = (LAST if head is None or head[1] is None else head[1]) <= self.world.horizon
            is_read = head is not None or todo[key][0] <= group.read or troubled < BOUND
            is_read = is_read or any(place in self.again for place in todo[key])
            if self.may_give(key) and is_read and (head is None or is_due):
                raise Broken(f"3: key {key} can go on and does not; {troubled} keys are in trouble")


def rows_of(order: KeyOrder) -> list[tuple[bytes, KeyRow]]:
    """All key rows, some of them as they were before a replay."""
    return [(key, found.row) for key, found in order._keys.items()]


def give(order: KeyOrder, key: bytes) -> Address:
    """The first follower of the key is in flight."""
    address = order.drop(key)
    order.launch(key)
    return address


def check(order: KeyOrder) -> None:
    """Assert what is true of each key."""
    every, lines = order._keys, order.lines.keys
    heads = {found.root: key for key, found in every.items() if found.root != NOWHERE}
    assert heads == order.heads, "each head is known by its root"
    for key, found in every.items():
        assert found.next != NOWHERE or found.root != NOWHERE or found.is_held, "a key row says something"
        assert found.root != NOWHERE or not found.is_dead, "what is dead has a root"
        is_out = order.rule.is_ordered and key in order.out
        assert found.root == NOWHERE or not is_out, "a key has one head"
        assert not found.known or found.known[0][0] == found.next, "the first one stands at next"
        assert found.known == sorted(found.known), "followers are in order"
        assert len(found.known) <= key_order.KNOWN_MAX, "RAM is bounded"
        assert found.is_held == (key in order.held), "who is held is counted"
    for key in [*every, *lines]:
        found = every.get(key, Key())
        is_free = (found.next != NOWHERE or key in lines) and found.root == NOWHERE
        assert (is_free and not found.is_held and order._may_go(key)) == (key in order.free), "may go: free"
    assert order.free.keys() <= every.keys() | {*lines}, "only who is behind is free"
    assert order.held <= every.keys(), "only who has a row is held"
    first = min((found.next for found in every.values() if found.next != NOWHERE), default=END)
    assert order.firsts.needed == first or order.past, "nothing before is to be given"
    assert order.firsts.needed <= first, "what is needed is kept"
    assert order.past.keys() <= every.keys(), "only a key with a row is looked at"
    unwritten = order.unwritten
    assert unwritten._count == sum(map(len, unwritten._followers.values())), "what is not written is counted"
    assert order.room.rows == len(every) + len(order.tokens), "each row has its place"


def _name(key: int) -> bytes:
    return b"%d" % key


def _key(name: bytes) -> int | None:
    return None if name == NO_KEY else int(name)


class Group:
    """What stands around `KeyOrder` in a server: reader, flights, retries, cursor."""

    def __init__(
        self,
        world: World,
        rnd: random.Random,
        rule: Rule = ORDERED,
        *,
        hold: bool = False,
    ) -> None:
        self.world, self.rnd, self.hold = world, rnd, hold
        self.oracle, self.read, self.reread = Oracle(world, rule), START, START
        self.flights: dict[Position, Flight] = {}
        self.order = KeyOrder(KeyBound(2 * BOUND), rule)
        self.looked = START
        """Due retries up to here have been given, or stand in line."""
        self.over: set[Position] = set()
        """Retries that have ended, and go with the next cursor."""

    def name(self, key: int | None) -> bytes:
        return self.order.key_of(b"" if key is None else b"%d" % key)

    @property
    def room(self) -> int:
        return WINDOW - len(self.flights)

    def save(self, batch: Batch | None = None) -> None:
        changes = self.order.take()
        rows: Batch = dict(batch or {})
        for name, row in changes.keys.items():
            rows["key", name] = row
        for name, places in changes.index.items():
            rows |= {("index", (name, place)): shard for place, shard in places}
        rows |= {("retry", place): None for place in self.over}
        rows = {at: value for at, value in rows.items() if value is not None or at in self.world.db}
        cursor: Batch = {("cursor",): (self.read, dict(self.flights), self.reread)}
        if self.rnd.random() < 0.1 and not batch:
            self.order.unwritten.lost()
            return
        self.world.write(rows | cursor)
        self.order.unwritten.wrote()
        self.over.clear()
        self.oracle.snap()

    def recover(self) -> None:
        self.read, flights, self.reread = self.world.db.get(("cursor",), (START, {}, START))
        self.flights = {root: flight._replace(is_out=False) for root, flight in flights.items()}
        self.order = KeyOrder(KeyBound(2 * BOUND), self.oracle.rule)
        self.looked = START
        self.over.clear()
        self.order.tokens.advance(self.world.now)
        self.order.restore([(name, self.world.db["key", name]) for name in self.world.all("key")])
        if self.reread > self.read:
            self.order.rewind(self.read, Finished())
        for root in list(self.order.heads):
            self.look(root)
        for flight in self.flights.values():
            if self.name(flight.key):
                self.order.launch(self.name(flight.key))  # it is out, whoever had it

    def look(self, root: Position) -> None:
        """After a start: a head that rests is what its delivery is."""
        name, waits, is_dead = self.order.head_of(root), self.waits(root), ("dead", root) in self.world.db
        if name is not None and (waits != NOWHERE or is_dead):
            self.order.set_head(name, root, is_dead=waits == NOWHERE)
        elif name is not None:
            self.order.end_head(name)

    def waits(self, root: Position) -> Position:
        """When its next try is; NOWHERE: it waits for none."""
        found = {place for place in self.world.all("retry") if self.world.db["retry", place].root == root}
        return min(found - self.over, default=NOWHERE)

    def pump(self) -> None:
        """Give out what can be, whoever's turn it is."""
        self.order.tokens.advance(self.world.now)
        ways = [self.give_returned, self.give_head, self.give_due, self.give_behind, self.read_on]
        while any(way() for way in self.rnd.sample(ways, len(ways))):
            check(self.order)
        check(self.order)
        self.oracle.check(self)
        if len(rows_of(self.order)) > BOUND + WINDOW:
            raise Broken(f"4: {len(rows_of(self.order))} key rows")

    def give(self, root: Position, tries: int = 0, retry: Position = START) -> bool:
        key = self.world.row(root).key
        self.oracle.give(key, root)
        self.flights[root] = Flight(key, tries + 1, retry=retry)
        if self.order.rule.per_ms and self.name(key):
            self.order.tokens.spend(self.name(key), self.world.now)
        return True

    def give_returned(self) -> bool:
        """What was in flight at the kill, the first one first."""
        root = min((root for root, flight in self.flights.items() if not flight.is_out), default=None)
        if root is None:
            return False
        flight = self.flights[root]
        self.oracle.give(flight.key, root, is_returned=True)
        self.flights[root] = Flight(flight.key, flight.tries + 1, retry=flight.retry)
        return True

    def give_head(self) -> bool:
        """A retry that is due."""
        for name, _ in rows_of(self.order):
            row, wait = self.order.row(name), self.waits(self.order.row(name).root)
            if wait and wait <= self.world.horizon and not row.by_hand and len(self.flights) < WINDOW:
                self.order.launch(name)
                self.order.end_head(name)
                return self.give(row.root, self.world.db["retry", wait].tries)
        return False

    def give_due(self) -> bool:
        """A retry that no key waits for: it is given, or stands in line."""
        if self.room <= 0 or self.order.rule.is_ordered:
            return False
        missed = self.order.lines.take_missed()
        if missed != NOWHERE:
            self.looked = min(self.looked, Position(missed - 1))
        for place in sorted(self.world.all("retry")):
            if place > self.world.horizon or place <= self.looked:
                continue
            self.looked = place
            row, name = self.retry(place), b""
            if row is not None:
                name = self.name(row.key)
            if row is not None and (not name or self.order.meet_retry(name, place, self.room)):
                if name:
                    self.order.launch(name)
                return self.give(row.root, row.tries, place)
            return True
        return False

    def retry(self, place: Position) -> Row | None:
        """A retry that is to be given."""
        row = self.world.db.get(("retry", place))
        if row is None or place in self.over or place in {one.retry for one in self.flights.values()}:
            return None
        if row.expires <= self.world.now:
            self.oracle.end(row.key, row.root)
            self.over.add(place)
            return None
        found: Row = row
        return found

    def give_behind(self) -> bool:
        """The next one of a key that is behind."""
        if self.order.free and len(self.flights) < WINDOW:
            name = next(iter(self.order.free))
            behind = self.order.find(name)
            if name not in self.order.free:
                return True
            place = self.order.next_retry(name)
            if place is not None:
                row = self.retry(place)
                self.order.leave_line(name, place)
                if row is not None:
                    self.order.launch(name)
                    self.give(row.root, row.tries, place)
                return True
            assert behind is not None, "it is behind"
            found = behind.first
            if found is None:
                self.learn(name)
            elif self.is_wanted(found[0]):
                give(self.order, name)
                return self.give(found[0])
            else:
                self.order.drop(name)
            return True
        return False

    def learn(self, name: bytes) -> None:
        start = self.order.row(name).next
        places: list[Address] = sorted(
            (place, self.world.db["index", (whose, place)])
            for whose, place in self.world.all("index")
            if whose == name and start <= place <= self.read
        )
        is_all = len(places) <= KNOWN
        self.order.learn(name, places[:KNOWN], self.read, is_all=is_all)

    def is_wanted(self, place: Position) -> bool:
        row = self.world.row(place)
        if row.expires <= self.world.now and place not in self.flights:
            self.oracle.end(row.key, place)
        return not row.is_stub and place not in self.flights and row.expires > self.world.now

    def read_on(self) -> bool:
        """The reader's next row; False: there is none, or it has to stand still."""
        at = bisect_right(self.world.places, self.read)
        place = self.world.places[at] if at < len(self.world.places) else LAST
        if place > self.world.horizon:
            return False
        row, meeting = self.world.row(place), Meeting.GIVE
        if self.name(row.key) and not row.is_stub:
            meeting = self.order.meet(self.name(row.key), place, SHARD, self.room)
        if meeting is Meeting.STOP:
            return False
        if meeting is Meeting.GIVE and self.is_wanted(place):
            if len(self.flights) >= WINDOW:
                return False
            if self.name(row.key):
                self.order.launch(self.name(row.key))
            self.give(place)
        self.read = place
        return True

    def is_standing_before_busy(self) -> bool:
        """Whether the next message is of a key that has as much out as there is room, or is behind."""
        at = bisect_right(self.world.places, self.read)
        if at == len(self.world.places) or self.world.places[at] > self.world.horizon:
            return False
        row = self.world.row(self.world.places[at])
        out = [flight.key for flight in self.flights.values()].count(row.key)
        is_behind = self.order.row(self.name(row.key)).next != NOWHERE
        return not row.is_stub and (is_behind or out >= max(1, self.room))

    def ack(self, root: Position) -> None:
        flight = self.flights.pop(root)
        self.oracle.end(flight.key, root, again=self.is_read_again(root, flight.key))
        self.over.add(flight.retry)
        if self.name(flight.key):
            self.order.land(self.name(flight.key))

    def is_read_again(self, root: Position, key: int | None) -> bool:
        following = self.order.row(self.name(key)).next
        return root > self.read or START < following <= root

    def fail(self, root: Position, delay: int) -> None:
        """Nack, lapse, lost connection. Decided in the writer."""
        row, flight = self.world.row(root), self.flights.pop(root)
        place, again = self.world.place(self.world.now + delay), self.is_read_again(root, row.key)
        is_over, is_spent = again or at_of(place) >= row.expires, flight.tries >= TRIES
        batch: Batch = {}
        self.over.add(flight.retry)
        name = self.name(row.key)
        if row.key is not None and not self.order.rule.is_ordered and not is_over and not is_spent:
            batch["retry", place] = row._replace(root=root, tries=flight.tries)
            self.order.land(name)
            self.oracle.rest(row.key, root, place)
            self.looked = min(self.looked, Position(place - 1))
        elif row.key is None or is_over or (is_spent and not self.hold):
            batch = {} if is_over else {("dead", root): row}
            self.oracle.end(row.key, root, again=again)
            if name:
                self.order.land(name)
        elif is_spent:
            batch["dead", root] = row
            self.order.set_head(_name(row.key), root, is_dead=True)
            self.order.land(_name(row.key))
            self.oracle.rest(row.key, root, LAST)
        else:
            batch["retry", place] = row._replace(root=root, tries=flight.tries)
            self.order.set_head(_name(row.key), root)
            self.order.land(_name(row.key))
            self.oracle.rest(row.key, root, place)
        self.save(batch)

    def bury(self, name: bytes) -> None:
        """What waits for its retry is made a dead letter by somebody; it holds its key."""
        root = self.order.row(name).root
        self.order.set_head(name, root, is_dead=True)
        self.over.add(self.waits(root))
        self.oracle.rest(_key(name), root, LAST)
        self.save({("dead", root): self.world.row(root)})

    def hold_by_hand(self, name: bytes) -> None:
        self.order.hold(name, by_hand=True)
        self.oracle.held.add(_key(name))
        self.save()

    def let_go(self, name: bytes) -> None:
        found = self.order.find(name)
        self.order.stop(name)
        self.order.hold(name, by_hand=False)
        if found is not None and found.is_dead:
            self.oracle.end(_key(name), found.root)
            self.order.end_head(name)
        self.oracle.held.discard(_key(name))
        self.save()
        self.order.go_on(name)

    def finish(self, name: bytes) -> None:
        """The head that waits or is held ends: a late ack, a drop."""
        root = self.order.row(name).root
        self.oracle.end(_key(name), root)
        self.over.add(self.waits(root))
        self.order.end_head(name)

    def requeue(self, root: Position) -> None:
        """A dead letter: if it holds its key, the head that waits; else it stands in line from now on."""
        place, row = self.world.place(self.world.now), self.world.db["dead", root]
        if row.key is not None and self.order.head_of(root) is not None:
            self.order.set_head(_name(row.key), root)
            self.oracle.rest(row.key, root, place)
            again = {("retry", place): row._replace(root=root, tries=0)}
            self.world.db["row", root] = self.world.row(root)._replace(expires=NEVER)
        else:
            again = {("row", place): row._replace(tries=0, expires=NEVER)}
        self.save({("dead", root): None, **again})

    def replay(self, to: Position) -> None:
        self.read, self.reread = to, max(self.reread, self.read)
        for name, row in rows_of(self.order):
            if row.root > to:
                self.oracle.end(_key(name), row.root, again=True)
                self.over.add(self.waits(row.root))
        self.order.rewind(to, Finished())
        flying = {one.retry for one in self.flights.values()}
        for place in self.world.all("retry"):
            root = self.world.db["retry", place].root
            if root > to and place not in flying and root in self.oracle.again:
                self.over.add(place)
                self.oracle.end(None, root, again=True)
        self.oracle.ended = {place for place in self.oracle.ended if place <= to}
        self.save({("dead", root): None for root in self.world.all("dead") if root > to})

    def skip(self, to: Position) -> None:
        if self.order.look_on():
            self.save()
            return
        self.read = max(self.read, to)
        while self.order.skip(to, 2):
            pass
        for root in self.order.resting(to, 1_000):
            self.finish(self.order.heads[root])
            assert root <= to
        heads = {*self.flights, *self.order.heads, *self.oracle.again}
        self.oracle.ended |= {place for place in self.world.places if place <= to and place not in heads}
        self.save()


RULES = {
    "order": ORDERED,
    "order, fair": Rule(is_ordered=True, most=1, is_fair=True),
    "limit 1": Rule(most=1),
    "limit 2": Rule(most=2),
    "rate": Rule(per_ms=0.4),
    "limit and rate": Rule(most=2, per_ms=0.7),
    "fair": Rule(is_fair=True),
    "fair, limit 2": Rule(is_fair=True, most=2),
    "fair, rate": Rule(is_fair=True, per_ms=0.4),
}


def walk(seed: int, rule: Rule = ORDERED, kind: type[Group] = Group) -> None:
    """One life of a group, at random, and its end. Raises Broken, or AssertionError of the room itself."""
    rnd, world = random.Random(seed), World()
    group = kind(world, rnd, rule, hold=rule.is_ordered and rnd.random() < 0.3)
    keys, calm = rnd.choice((2, 4, 20)), rnd.choice((0.2, 0.5, 0.8))
    known, key_order.KNOWN_MAX = key_order.KNOWN_MAX, KNOWN
    looked, key_order.LOOKED_MAX = key_order.LOOKED_MAX, LOOKED
    burst_ms, key_tokens.BURST_MS = key_tokens.BURST_MS, BURST_MS
    try:
        for _ in range(120):
            act(group, world, rnd, keys, calm)
        for _ in range(1_000):
            world.now += 5
            group.pump()
            for root in list(group.flights):
                group.ack(root)
            for name in sorted(group.order.held):
                group.let_go(name)
            group.save()
            is_idle = not (rows_of(group.order) or group.order.lines)
            if not group.flights and is_idle and not group.oracle.todo():
                return
    finally:
        key_order.KNOWN_MAX, key_order.LOOKED_MAX = known, looked
        key_tokens.BURST_MS = burst_ms
    raise Broken(f"5: not drained: {group.oracle.todo()}")


def act(group: Group, world: World, rnd: random.Random, keys: int, calm: float) -> None:
    """Something that a publisher, a worker, an operator, the clock or a fault does."""
    op, roll = rnd.random(), rnd.random()
    out = [root for root, flight in group.flights.items() if flight.is_out]
    ahead = [p for p in world.places if p > world.horizon and not world.row(p).is_stub]
    resting = list(group.order.heads.values())
    if op < 0.30:
        for _ in range(rnd.choice((1, 1, 3))):
            due = world.now + rnd.choice((-3, 0, 0, 1, 4))
            expires = due + rnd.randint(1, 12) if roll < 0.1 else NEVER
            row = Row(rnd.choice((None, *range(keys), 0, 0, 0)), expires)
            world.write({("row", world.place(due)): row}, is_synced=True)
    elif op < 0.42:
        world.now += rnd.choice((1, 1, 2, 5))
    elif op < 0.66 and out:
        root = rnd.choice(out)
        is_done = roll < calm
        group.ack(root) if is_done else group.fail(root, rnd.choice((0, 1, 3, 9)))
    elif op < 0.78:
        group.save()
        world.synced = len(world.wal) if roll < 0.5 else world.synced
    elif op < 0.82:
        world.kill(rnd)
        group.oracle.kill()
        group.recover()
    elif op < 0.85 and ahead:
        place = rnd.choice(ahead)
        moved = {}
        if roll < 0.5:
            moved = {("row", world.place(world.now + rnd.choice((0, 2, 6)))): world.row(place)}
        stub = {("row", place): world.row(place)._replace(is_stub=True)}
        world.write(stub | moved, is_synced=True)
    elif op < 0.88 and world.all("dead"):
        group.requeue(rnd.choice(world.all("dead")))
    elif op < 0.92:
        steer(group, rnd, keys, resting)
    elif op < 0.93 and world.places:
        set_back(group, rnd.choice(world.places), rnd, roll)
    else:
        group.pump()


def set_back(group: Group, to: Position, rnd: random.Random, roll: float) -> None:
    """The group is set back, or forward."""
    world = group.world
    if to < group.read and roll < 0.5:
        group.replay(to)
        if roll < 0.25:  # some of what it would read again is given up
            group.skip(rnd.choice([place for place in world.places if to <= place < world.horizon]))
    elif to < world.horizon and roll < 0.3:
        group.skip(to)


def rest(group: Group, name: bytes, roll: float) -> None:
    """Something becomes of a message that waits, or holds its key as a dead letter."""
    row = group.order.row(name)
    if not row.root:
        return
    if group.hold and group.waits(row.root) and roll < 0.5:
        group.bury(name)
    elif ("dead", row.root) in group.world.db and roll < 0.5:
        group.let_go(name)
    else:
        group.finish(name)
        group.save({("dead", row.root): None})


def steer(group: Group, rnd: random.Random, keys: int, resting: list[bytes]) -> None:
    """Something becomes of a key that rests, or somebody holds a key, or lets one go."""
    if resting and rnd.random() < 0.5:
        rest(group, rnd.choice(resting), rnd.random())
    elif rnd.random() < 0.3 and len(rows_of(group.order)) < BOUND:
        group.hold_by_hand(_name(rnd.randrange(keys)))
    elif group.order.held:
        group.let_go(rnd.choice(sorted(group.order.held)))
