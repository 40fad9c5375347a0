"""The life of deliveries, walked at random: `timeline.deliveries` in a dull world, against the account.

The world is one timeline, a clock, and a log of batches. A kill keeps some prefix of the log that has all
that was answered. A batch may fail, and be stored all the same. Three places read the timeline: two filters
of one name, each a group, and a session with two filters. It is a member of both groups too, and takes from
them what is of QoS 2. Members nack, ack, return, are lost and come back, or lease; people try, bury, drop,
requeue, replay and skip; owners, slices, filters and places go.

A place here is what the table leaves open: a reader, members, a cursor that is written now and then, and who
applies what is decided. It has no more than the table needs: no packets, and no keys, which walk in
ordered_deliveries.py with the same table. What is given, waits, is dead or over must be where the account of
tests/support/ledger says that it may be. `check` has what is always true of the rows.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.model.delivery_places import (
    BACKOFF_MS,
    EXPIRES_MS,
    FAILURES,
    FILTERS,
    FREE,
    KEPT_MAX,
    LEASE_MS,
    LETTERS_MAX,
    STEP_MS,
    WINDOWS,
    Broken,
    Cursor,
    Name,
    Place,
    Sent,
    Whose,
    World,
    names_of,
)
from tests.support.ledger import settling as account
from tests.support.ledger.deliveries import Deliveries
from tests.support.ledger.messages import Message
from tests.support.ledger.words import ANY, DEAD, DONE, DROPPED, FLIGHT, UNDONE, WAITING, Fault
from timeline import deliveries
from timeline.deliveries import NEVER, decide
from timeline.delivery_rows import DeliveryRow, Effect, Event, State
from timeline.position import START, Position, at_of, before


class Life:
    """A server, its places, and all that becomes of messages."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rnd = seed, random.Random(seed)
        self.world = World(self.rnd)
        self.ledger = Deliveries(self.world.now_ms, grace=0.0, near=0, written=None)
        self.ledger.book.tell = _fails
        self.absent: set[str] = set()
        """Owners."""
        self.damaged: set[Name] = set()
        """Records that cannot be read."""
        self.noted: set[str] = set()
        """Messages that dispatch has passed, as their owner was absent."""
        self.numbers = dict.fromkeys(FILTERS, 0)
        self.places: dict[str, Place] = {}
        self.ended: dict[Whose, Place] = {}
        self.saved_ms = 0
        for name in FILTERS:
            self.open(name)

    def open(self, name: str) -> None:
        self.numbers[name] += 1
        read = max(self.world.sent, default=START)
        cursor = Cursor(read, dict.fromkeys(FILTERS[name], read), {})
        place = self.places[name] = Place(self, name, self.numbers[name], cursor)
        while not place.save():
            pass

    def account(self, place: Place) -> Any:
        kind, text = ("session", "jobs/#") if place.is_session else ("group", FILTERS[place.name][0])
        found = self.ledger.lives.opened(kind, place.name, text, max_tries=0)
        found.backoff = () if place.is_session else (BACKOFF_MS,)
        return found

    @property
    def own(self) -> set[tuple[Whose, Position]]:
        """What groups have handed over."""
        return set(self.places["s"].cursor.own) if "s" in self.places else set()

    def bound(self, place: Place) -> list[Place]:
        """Places whose cursors go with this one's: what one hands over, the other has."""
        return [] if place.is_over else list(self.places.values())

    def letters(self) -> list[tuple[Place, Position]]:
        """All dead letters, in the order of death."""
        of = {one.whose: one for one in (*self.ended.values(), *self.places.values())}
        return [(of[whose], root) for _, _, root, whose in self.world.under("dead")]

    # -- messages

    def send(self) -> None:
        rnd = self.rnd
        for _ in range(rnd.choice((1, 2, 4))):
            key, topic = str(len(self.world.sent)), rnd.choice(("jobs/x", "jobs/y"))
            expires = EXPIRES_MS if rnd.random() < 0.1 else None
            message = Message(key, topic, self.world.now_ms, expires=expires)
            sent = Sent(self.world.next(), message, rnd.choice("oop"), rnd.choice((1, 1, 2)))
            self.world.sent[sent.root] = sent
            if sent.owner in self.absent:
                self.noted.add(key)
            else:
                self.accepted(sent)

    def accepted(self, sent: Sent) -> None:
        self.ledger.accepted(sent.message)
        for place in self.places.values():
            if not place.offers(sent.root):
                place.account.stakes.pop(sent.key, None)

    def owners(self) -> None:
        """An owner is gone, or back: what was passed stands at a new position, under the same id."""
        owner = self.rnd.choice("op")
        if owner not in self.absent:
            self.absent.add(owner)
            return
        self.absent.discard(owner)
        for sent in [one for one in self.world.sent.values() if one.owner == owner and one.key in self.noted]:
            self.noted.discard(sent.key)
            again = replace(sent, root=self.world.next())
            sent.moved_to = again.root
            again.message.due = self.world.now_ms
            self.world.sent[again.root] = again
            self.accepted(again)
        for place in self.places.values():
            for root in place.roots(State.WITHHELD, State.UNREAD):
                row = place.row(root)
                if self.world.sent[root].owner == owner and row is not None and row.state is State.WITHHELD:
                    place.does(Event.OWNER_BACK, root)

    def slice_goes(self) -> None:
        """The first few messages go, with all that stands on them alone."""
        there = [one.root for one in self.world.sent.values() if one.is_there and not one.moved_to]
        roots = there[: self.rnd.choice((1, 3))]
        if any(self.world.sent[root].key in self.noted for root in roots):
            return
        if {one for whose, one in self.own if ("record", one, whose) not in self.world.db} & set(roots):
            return
        for place in [*self.places.values()]:
            if place.pending.keys() & set(roots):
                return
        with self.sound():
            for place in [*self.places.values(), *self.ended.values()]:
                for root in roots:
                    state, row = place.state(root), place.row(root)
                    place.apply(Event.SLICE_GOES, root, reason="kept too long")
                    place.unkept.add(root)
                    if row is None and state in (State.OUT, State.LEASED, State.UNREAD):
                        now = place.row(root)
                        self.ledger.settling.buried(
                            place.stake(root)
                        ) if now else self.ledger.settling.dropped(place.stake(root))
                    elif state is State.UNREAD:
                        place.stake(root).may, place.stake(root).former = ANY, frozenset()
                place.save()
            for root in roots:
                self.world.sent[root].is_there = False

    # -- places

    def replay(self, place: Place, to_ms: int) -> None:
        """Of all filters, or of one."""
        found = sorted(place.cursor.since)
        if before(to_ms) < place.cursor.read and found and not place.pending:
            is_of_all = not place.is_session or self.rnd.random() < 0.4
            self.set_back(place, to_ms, found if is_of_all else [self.rnd.choice(found)])

    def set_back(self, place: Place, to_ms: int, mine: list[str]) -> None:
        cursor, to, found = place.cursor, before(to_ms), sorted(place.cursor.since)
        old = cursor.read
        stakes = place.account.stakes.items()
        was = {key: replace(one) for key, one in stakes}
        known = {one: set(one.stakes) for one in self.ledger.places}
        self.lie(place)
        cursor.count += 1
        for one in found:
            if one in mine:
                cursor.replays[one] = cursor.count
                cursor.since[one] = min(cursor.since[one], to) if mine == found else to
            else:
                cursor.since[one] = max(cursor.since[one], old)
        cursor.read = to
        with self.sound():
            place.save()
        for one in mine:
            text = one if place.is_session else ""
            self.ledger.lives.set_back(place.account, to_ms, is_sure=True, text=text)
        for _, stake in stakes:
            stake.returns.least = 0  # of what is read again
        for other, keys in known.items():
            for key in other.stakes.keys() - keys if other is not place.account else ():
                del other.stakes[key]
        for root, again in self.world.sent.items():
            stake = place.account.stakes.get(again.key)
            is_offered = root > to and bool(place.offers(root)) and again.is_readable
            if stake is None or again.moved_to or is_offered:
                continue
            if again.key not in was:
                del place.account.stakes[again.key]
            elif root > to:
                place.account.stakes[again.key] = was[again.key]

    def skip(self, place: Place) -> None:
        sent = [*self.world.sent.values()]
        if not sent or place.pending:
            return
        to_ms, is_dead = self.rnd.choice(sent).message.due + 100, self.rnd.random() < 0.5
        to = before(to_ms)
        self.ledger.lives.skipped(place.account, DEAD if is_dead else DROPPED, to_ms, is_sure=True)
        with self.sound():
            for root in [root for root in self.world.sent if place.cursor.read < root <= to]:
                if place.state(root) is State.UNREAD and place.is_passed(root):
                    continue
                if place.state(root) is State.UNREAD and place.row(root) and place.stake(root).was_finished:
                    place.passes(root)
                place.apply(Event.SKIP, root, is_dead=is_dead, reason="skipped")
            place.cursor.read = max(place.cursor.read, min(to, max(self.world.sent)))
            place.save()
        self.lie(place)

    def delete(self, place: Place) -> None:
        """It ends with all that it has, and begins anew."""
        if place.is_session or place.pending:
            return
        is_dead = self.rnd.random() < 0.7
        self.inherit(place)
        former = [stake for stake in place.account.stakes.values() if stake.was_finished]
        self.ledger.lives.closed(place.account, DEAD if is_dead else DROPPED)
        for stake in former:
            stake.reason, stake.may, stake.former = "", stake.may | stake.former & {DEAD}, frozenset()
        with self.sound():
            for root in list(self.world.sent):
                row = place.row(root)
                is_new = row is None or row.state in (State.DROPPED, State.DONE)
                if place.state(root) is State.UNREAD and is_new and place.is_passed(root):
                    place.over |= {root} if row is not None and row.state is State.DONE else set()
                    continue
                place.apply(Event.END_OF_PLACE, root, is_dead=is_dead, reason="group deleted")
            place.save()
            place.is_over = True
            self.ended[place.whose] = place
            if self.world.under("due of", place.whose) or ("waiting", place.whose) in self.world.db:
                raise Broken(f"{place.whose} has ended, and something waits for it")
            self.open(place.name)

    def inherit(self, place: Place) -> None:
        """What a member has that stays becomes its own, but for what has a row of the group's."""
        own = self.places["s"].cursor.own
        for root in [*place.cursor.flights]:
            if place.hands.get(root) != "a" and place.state(root) is not State.HANDED:
                continue
            name, row, state = (place.whose, root), place.row(root), place.state(root)
            own[name] = place.cursor.flights[root]
            if row is not None:
                del own[name]
            with self.sound():
                place.apply(Event.INHERIT, root)
            if row is None:
                place.acked(root, is_answered=True)
            is_so = place.state(root) is (State.DONE if row is None else State.OUT)
            if not is_so and root not in place.evicted:
                raise Broken(f"{place.stake(root)} was {state} as its group ends, and is {place.state(root)}")

    def sound(self) -> Any:
        return _Sound(self.world)

    # -- letters and retries

    def steer(self, place: Place) -> None:
        roots = place.roots(State.WAITING)
        if not roots:
            return
        root, event = self.rnd.choice(roots), self.rnd.choice((Event.TRY, Event.BURY, Event.DROP))
        if root in place.cursor.flights:
            return
        delay_ms, stake = self.rnd.choice((0, 3_000)), place.stake(root)
        told = place.apply(event, root, delay_ms=delay_ms, reason="buried")
        if told is None:
            place.unsure(root, DEAD, DROPPED)
            self.lie(place)
        elif told and event is Event.TRY:
            self.ledger.settling.tried(stake, self.world.now_ms + delay_ms)
        elif told:
            self.ledger.settling.buried(stake) if event is Event.BURY else self.ledger.settling.dropped(stake)
        elif not self.ledger.fates.has_expired(stake, self.world.now_ms + delay_ms):
            raise Broken(f"{event} of {stake} is refused")

    def letter(self) -> None:
        """A dead letter is dropped, requeued, or sent to another place."""
        letters = self.letters()
        if not letters:
            return
        place, root = self.rnd.choice(letters)
        stake, op = place.stake(root), self.rnd.random()
        if root in place.pending or root in place.over:
            return
        if op < 0.3:
            if (told := place.apply(Event.DROP, root)) is None:
                place.unsure(root, DROPPED)
                row = place.row(root)
                if row is not None and row.state is State.DROPPED:
                    stake.former = frozenset()
                self.lie(place)
            elif told:
                self.ledger.settling.dropped(stake)
        elif op < 0.7 and not place.is_over:
            delay_ms = self.rnd.choice((0, 2_000))
            told = place.apply(Event.REQUEUE, root, delay_ms=delay_ms)
            if place.state(root) is State.WAITING:
                self.ledger.settling.again(stake, self.world.now_ms + delay_ms)
                stake.returns.least = 0
            elif told is not None and place.state(root) is State.DEAD:
                raise Broken(f"{stake} is requeued, and is dead")
        elif op >= 0.7:
            self.send_away(place, root)

    def send_away(self, place: Place, root: Position) -> None:
        to = self.places[self.rnd.choice(("w/#", "w/y", "w/y"))]
        row = place.row(root)
        if to is place or root in to.pending or row is None:
            return
        self.other(place, to, root, (Event.SEND_AWAY, Event.COME), row)
        if not place.is_over and self.rnd.random() < 0.4:  # and both have it
            self.replay(place, at_of(root) - 100)

    def to_sibling(self) -> None:
        """A retry whose filter has nobody goes to another filter of the name, which never asked for it."""
        place, to = self.places["w/#"], self.places["w/y"]
        roots = [root for root in place.roots(State.WAITING) if root not in place.cursor.flights]
        roots = [root for root in roots if self.world.sent[root].message.topic == "jobs/y"]
        roots = [root for root in roots if to.cursor.since["jobs/y"] >= root and root not in to.pending]
        if not roots and self.rnd.random() < 0.2:
            self.delete(to)  # its filter is made anew, so that it has asked for nothing
        elif not roots:
            self.both_have_it(place, to)
        if roots:
            row = place.row(root := self.rnd.choice(roots))
            assert row is not None, "it waits"
            self.other(place, to, root, (Event.MOVE, Event.JOIN), row)

    def both_have_it(self, place: Place, to: Place) -> None:
        """A letter goes to the other filter, and dies there. The first one reads the message again."""
        letters = [root for one, root in self.letters() if one is place and root not in place.over]
        letters = [root for root in letters if self.world.sent[root].message.topic == "jobs/y"]
        letters = [root for root in letters if to.cursor.since["jobs/y"] >= root and root not in to.pending]
        letters = [root for root in letters if to.row(root) is None and root not in place.pending]
        if letters:
            row = place.row(root := self.rnd.choice(letters))
            assert row is not None, "it is a letter"
            self.other(place, to, root, (Event.SEND_AWAY, Event.COME), row)
            with self.sound():
                if to.apply(Event.BURY, root, reason="buried"):
                    self.ledger.settling.buried(to.stake(root))
            self.replay(place, at_of(root) - 100)
            place.pump()
            if root in place.hands and root not in place.pending:
                place.does(Event.NACK, root, delay_ms=0)
            again = place.row(root)
            if place.state(root) is State.WAITING and again is not None and root not in place.pending:
                self.other(place, to, root, (Event.MOVE, Event.JOIN), again)

    def other(
        self, place: Place, to: Place, root: Position, events: tuple[Event, Event], row: DeliveryRow
    ) -> None:
        """It leaves one place and comes to another, in one batch."""
        here, there = events
        case, sent = to.case(root, row=row), self.world.sent[root]
        fate = decide(to.row(root), to.seen(root), there, case, to.terms)
        leaves = decide(place.row(root), place.seen(root), here, place.case(root), place.terms)
        if Effect.REFUSED in fate.effects | leaves.effects:
            return
        stake, before_ = self.ledger.settling.sending_to(to.account, sent.message, row.attempts)
        if there is Event.JOIN and before_ <= {WAITING, FLIGHT, DEAD}:
            raise Broken(f"{stake} gets it from another filter, and has it")
        is_to_come = place.state(root) is State.UNREAD
        batch = to.changes(root, fate.row, has_record=True, into=place.changes(root, leaves.row))
        after = to.cursor.copy()
        after.notes.pop(root, None)
        if Effect.NOTE in leaves.effects:
            place.note(root, place.seen(root).replay)
        with self.sound():
            self.world.write(to.cursors(after, batch))
            to.secured()
        to.cursor.notes.pop(root, None)
        to.over.discard(root)
        to.told.pop(root, None)
        former = place.stake(root)
        if not is_to_come or former.may == {DEAD}:
            self.ledger.settling.dropped(former)
        former.former = frozenset()
        if root in place.evicted:
            place.comes_again(former)
        self.ledger.settling.sent_to(stake, before_, stake.number, row.attempts, is_changed=True)
        now = to.row(root)
        assert now is not None, "it came"
        stake.failures = [*former.former_failures, *former.failures]
        stake.may = frozenset({WAITING if now.state is State.WAITING else DEAD})
        stake.not_before = at_of(now.at) if now.state is State.WAITING else 0
        stake.total.least, stake.former = 0, frozenset()
        if there is Event.COME:
            stake.requeued_at, stake.returns.least = self.world.now_ms, 0
            stake.tries.anew()
        else:
            stake.tries.least, stake.tries.most = 0, max(stake.tries.most, now.counted)
            stake.requeued_at = place.stake(root).requeued_at

    def evict(self) -> None:
        """Beyond the bound the oldest letters go."""
        while len(letters := self.letters()) > LETTERS_MAX:
            place, root = letters[0]
            if root in place.pending:
                break
            oldest = min(row.at for name, row in self.world.db.items() if name[0] == "row" and _is_dead(row))
            row: DeliveryRow = self.world.db["row", place.whose, root]
            if row.at != oldest:
                raise Broken("another letter than the oldest is dropped")
            with self.sound():
                if root in place.over:
                    place.save()
                    continue
                place.apply(Event.EVICT, root)
            stake = place.stake(root)
            if not stake.was_finished or stake.may == {DEAD}:
                stake.may = frozenset({DROPPED})
            stake.former = frozenset()
            if root in place.evicted:
                place.comes_again(stake)

    # -- what members do

    def member(self, place: Place) -> None:
        rnd, op = self.rnd, self.rnd.random()
        out = [root for root in place.hands if root not in place.pending]
        failing = [root for root, (event, *_) in place.pending.items() if event in FAILURES]
        if op < 0.45 and failing:
            place.ack(rnd.choice(failing))  # before its nack is tried again
        elif op < 0.45 and out:
            place.ack(rnd.choice(out))
        elif op < 0.75 and out:
            delay_ms = rnd.choice((None, 0, 1_000, 3_000, NEVER))
            place.does(Event.NACK, rnd.choice(out), **({} if delay_ms is None else {"delay_ms": delay_ms}))
        elif op < 0.78 and out and not place.is_session:
            self.not_given(place, rnd.choice(out))
        elif op < 0.85 and out and not place.is_session:
            place.put_back(rnd.choice(out))
        elif op < 0.9:
            place.leave(rnd.choice(("a", "b")) if not place.is_session else "s")
        elif op < 0.95 and not place.is_session:
            if self.world.sent:
                place.late_ack(rnd.choice([*self.world.sent]))
        else:
            self.extend(place)

    def not_given(self, place: Place, root: Position) -> None:
        """A part of the server could not give it, which the stored cursor does not know. It may be why."""
        place.save()
        if self.rnd.random() < 0.5:
            self.world.sent[root].is_readable = False
        place.does(Event.PUT_BACK, root)
        if self.rnd.random() < 0.3:
            self.kill()

    def extend(self, place: Place) -> None:
        """A part of what a worker has is its own for longer."""
        roots = [root for root, by in place.cursor.holders.items() if by == "pull" and root in place.hands]
        some = self.rnd.sample(roots, len(roots) // 2)
        was = dict(place.cursor.until)
        for root in some:
            place.cursor.until[root] = self.world.now_ms + 2 * LEASE_MS
        if not place.save():
            place.cursor.until = was
            return
        for root in some:
            self.ledger.settling.extended(place.stake(root), place.cursor.until[root] / 1_000)

    def session_ends_own(self, *, all_of_it: bool = False) -> None:
        """The session finishes what a group has handed over, or refuses it."""
        session = self.places["s"]
        own = sorted(session.cursor.own)
        for name in own if all_of_it else self.rnd.sample(own, len(own) // 2):
            whose, root = name
            place = self.places[whose[0]]
            del session.cursor.own[name]
            if place.whose != whose or place.state(root) is not State.HANDED:
                continue  # somebody else had it done, or its group has ended
            if all_of_it or self.rnd.random() < 0.6:
                place.ack(root)
                continue
            with self.sound():
                place.does(Event.NACK, root)

    # -- the server

    def pass_ms(self, by_ms: int) -> None:
        for _ in range(0, by_ms, STEP_MS):
            self.world.now_ms += STEP_MS
            self.ledger.arrived(self.world.now_ms, [])
            for place in self.places.values():
                place.lapse()
            self.ledger.lapse(self.world.now_ms / 1_000)
            for place in self.places.values():
                place.retry()
            if self.world.now_ms - self.saved_ms >= 2_000:
                with self.sound():
                    self.places["s"].save()
                self.saved_ms = self.world.now_ms
            self.pump()

    def pump(self) -> None:
        self.evict()
        for place in self.places.values():
            place.pump()
        self.check()

    def kill(self) -> None:
        """At any point. Leases go on, also of the member over MQTT that has one."""
        self.world.kill()
        down_ms = self.rnd.choice((0, 0, 2_000))
        for place in self.places.values():
            for root in place.pending:
                place.unsure(root, WAITING, DEAD, DROPPED, DONE)
                place.stake(root).tries.down(is_sure=False)
                place.stake(root).total.down(is_sure=False)
        self.ledger.losses.restarted(self.world.now_ms / 1_000, was_killed=True)
        self.ledger.down_until = (self.world.now_ms + down_ms) / 1_000
        for place in self.places.values():
            whose, cursor = self.world.db["cursor", place.name]
            assert whose == place.whose, "places begin and end in batches that are synced"
            place.cursor = cursor.copy()
            place.over, place.told, place.pending = set(), {}, {}
            place.lazily.clear()
            place.hands = dict(cursor.holders)
            place.trim()
            for root, out in list(place.cursor.flights.items()):
                state = place.state(root)
                if state not in (State.LEASED, State.OUT, State.HANDED):
                    place.fly(root, None)
                    continue
                with self.sound():
                    place.apply(Event.KILL, root, outcome="lost")
                if place.state(root) is State.DEAD:
                    place.tell(Event.KILL, root, out, is_for_good=False)
                if out.is_leased:
                    self.holds_on(place, root)
        self.world.now_ms += down_ms
        self.ledger.arrived(self.world.now_ms, [])
        self.ledger.clock.mono = self.world.now_ms / 1_000
        for place in self.places.values():
            place.lapse(is_down=True)
        for (whose, root), _ in self.places["s"].cursor.own.items():
            place = self.places[whose[0]]
            if place.whose == whose and place.state(root) is State.HANDED:
                place.came(root, "q", None, None)
        self.lie()

    def holds_on(self, place: Place, root: Position) -> None:
        stake, until = place.stake(root), place.cursor.until[root]
        if FLIGHT not in stake.may and not stake.may & UNDONE:
            raise Broken(f"{stake} is over, and leased after a kill")
        stake.may = frozenset({FLIGHT})
        self.ledger.settling.leased(stake, until / 1_000)

    def stop(self) -> None:
        """In order: what its client does not have yet is given back, and leases go on."""
        if any(place.pending for place in self.places.values()):
            return
        for place in self.places.values():
            for root in [root for root in place.hands if place.state(root) is State.OUT]:
                if place.is_session:
                    place.apply(Event.LOST, root)
                    self.ledger.losses.left(place.account, by="s")
                else:
                    with self.sound():
                        place.put_back(root)
        with self.sound():
            self.places["s"].save()

    # -- looking

    def lie(self, only: Place | None = None) -> None:
        """Where each message is."""
        for place in self.places.values() if only is None else [only]:
            for root, sent in self.world.sent.items():
                stake = place.account.stakes.get(sent.key)
                is_elsewhere = sent.moved_to or sent.key in self.noted or root in place.pending
                if place.state(root) is State.UNREAD and place.is_unfit(root):
                    continue  # it will be passed
                if is_elsewhere or stake is None or self.ledger.fates.has_expired(stake):
                    continue
                where = place.where(root)
                self.ledger.looks.lies(place.account, sent.key, where)
                stake.is_returned &= "in flight" in where

    def stories(self) -> None:
        """What is kept of what is done; beyond the bound the first go, and all with their slice."""
        for place in self.places.values():
            for root, sent in self.world.sent.items():
                shown, where = place.story(root), place.where(root)
                if where and shown:
                    self.ledger.ends.beside(place.account, sent.key, "|".join(where))
                elif not (where or root in place.pending or sent.moved_to or sent.key in self.noted) and (
                    shown or root not in place.unkept
                ):
                    self.ledger.ends.over(place.account, sent.key, shown)
            kept = [root for root in self.world.sent if place.story(root) and root not in place.pending]
            for root in kept[:-KEPT_MAX]:
                place.apply(Event.EVICT, root)
            for root in kept[-KEPT_MAX:]:
                if not self.world.sent[root].is_there:
                    place.apply(Event.SLICE_GOES, root)
            gone = {root for root in kept if not place.story(root)}
            for root in gone & place.evicted:
                place.comes_again(place.stake(root))  # its story alone said that it is done
            place.unkept |= gone
            left = [root for root in kept if place.story(root)]
            if len(left) > KEPT_MAX or not all(self.world.sent[root].is_there for root in left):
                raise Broken(f"{left} of {place.name} are done, and stay for ever")

    def check(self) -> None:
        """What is always true of rows: one record each, one name in each list, and the counts."""
        db = self.world.db
        names, waiting = set[Name](), dict[Whose, int]()
        for (kind, *name), row in db.items():
            if kind != "row":
                continue
            whose, root = name
            names |= set(names_of(whose, root, row))
            is_kept = ("record", root, whose) in db
            if is_kept is (row.state in (State.DROPPED, State.DONE)):
                raise Broken(f"{root} of {whose} is {row.state}, and has a record: {is_kept}")
            if row.state is State.DONE and whose in self.ended:
                raise Broken(f"{root} of {whose} is done, and its place has ended")
            if row.state is State.DROPPED and not self.world.sent[root].is_there:
                raise Broken(f"{root} of {whose} was dropped, and its slice is gone")
            if row.state in (State.WAITING, State.WITHHELD):
                waiting[whose] = waiting.get(whose, 0) + 1
        listed = {name for name in db if name[0] in ("dead", "dead of", "due of", "due")}
        counts = {name[1]: count for name, count in db.items() if name[0] == "waiting"}
        if listed != names or counts != waiting:
            raise Broken(f"the lists are wrong: {listed ^ names}, {counts} and {waiting}")

    def lists(self) -> None:
        """All retries and dead letters, as people see them."""
        if any(place.pending or place.over or place.told for place in self.places.values()):
            return
        sent, db, retries = self.world.sent, self.world.db, []
        for place in self.places.values():
            for _, _, at, root in self.world.under("due of", place.whose):
                row = db["row", place.whose, root]
                if row.state is State.WAITING and root not in place.cursor.flights:
                    retries.append((place.name, sent[root].key, at_of(at)))
        letters = [(whose, root) for _, _, root, whose in self.world.under("dead")]
        dead = [(whose[0], sent[root].key, db["row", whose, root].reason or "?") for whose, root in letters]
        here = [(whose[0], sent[root].key) for whose, root in letters if whose not in self.ended]
        self.ledger.looks.dead_letters(dead)
        self.ledger.looks.retries(retries, here)

    # -- all of it

    def act(self) -> None:
        place = self.rnd.choice([*self.places.values()])
        self.ledger.book.step += 1
        roll = self.rnd.random()
        step = next(step for upto, step in STEPS if roll < upto)
        step(self, place)
        self.pump()
        self.lists()
        self.stories()

    def put(self, place: Place) -> None:
        """Other terms, or a pause."""
        if self.rnd.random() < 0.4:
            place.is_paused = not place.is_paused
        elif not place.pending:  # the account knows nothing of what those were decided by
            place.max_tries = place.account.max_tries = self.rnd.choice((0, 2, 3))

    def subscribe(self) -> None:
        """The session gives up a filter, or asks for it again."""
        place, text = self.places["s"], "jobs/y"
        if text not in place.cursor.since:
            place.cursor.since[text] = max(self.world.sent, default=START)
            place.cursor.replays.pop(text, None)
        elif not place.pending:
            ends = [root for root in place.roots(State.UNREAD) if place.offers(root) == [text]]
            for root in ends:
                place.passes(root)
            del place.cursor.since[text]
        with self.sound():
            place.save()

    def damage(self) -> None:
        """A message that is out cannot be read any more."""
        out = [root for place in self.places.values() for root in place.cursor.flights]
        if out:
            self.world.sent[self.rnd.choice(out)].is_readable = False
        if records := self.world.under("record"):
            self.damaged.add(self.rnd.choice(records))

    def live(self, steps: int = 150) -> None:
        for _ in range(steps):
            self.act()
        self.end()

    def end(self) -> None:
        """All is acked, each message as soon as it comes."""
        self.world.is_sound = True
        while self.absent:
            self.owners()
        for place in self.places.values():
            place.is_paused, place.window = False, WINDOWS[-1]
        for _ in range(60):
            self.pass_ms(STEP_MS)
            for place in self.places.values():
                for root in [root for root in place.hands if root not in place.pending]:
                    place.ack(root)
            self.session_ends_own(all_of_it=True)
        for place in self.places.values():
            left = place.roots(*[*State][: State.DEAD.value])
            if left:
                raise Broken(f"{[self.world.sent[root].key for root in left]} of {place.name} is left")
        self.ledger.at_the_end()


def _replay(life: Life, place: Place) -> None:
    if life.world.sent:
        place = life.places["s"] if life.rnd.random() < 0.4 else place
        due_ms = life.rnd.choice([*life.world.sent.values()]).message.due
        life.replay(place, max(STEP_MS, due_ms + life.rnd.choice((-100, 100))))
        if life.rnd.random() < 0.2:
            life.skip(place)
        elif place.is_session and life.rnd.random() < 0.5:  # another filter, while this one is behind
            place.pump()
            for root in [root for root in place.hands if root not in place.pending]:
                place.does(Event.NACK, root, delay_ms=NEVER)
            life.replay(place, at_of(place.cursor.read) + 100)
            life.replay(place, max(STEP_MS, due_ms - 100))


STEPS: tuple[tuple[float, Callable[[Life, Place], object]], ...] = (
    (0.15, lambda life, _: life.send()),
    (0.28, lambda life, _: life.pass_ms(life.rnd.choice((500, 500, 2_000)))),
    (0.57, Life.member),
    (0.60, lambda life, _: life.session_ends_own()),
    (0.64, lambda life, place: place.save(is_synced=life.rnd.random() < 0.5)),
    (0.68, lambda life, _: life.kill()),
    (0.69, lambda life, _: life.stop()),
    (0.75, Life.steer),
    (0.82, lambda life, _: life.letter()),
    (0.86, _replay),
    (0.88, Life.skip),
    (0.92, lambda life, _: life.to_sibling()),
    (0.94, lambda life, _: life.owners()),
    (0.95, Life.delete),
    (0.97, Life.put),
    (0.98, lambda life, _: life.slice_goes()),
    (0.99, lambda life, _: life.subscribe()),
    (1.00, lambda life, _: life.damage()),
)
"""What is done up to which number, drawn in [0, 1)."""


class _Sound:
    """Nothing fails meanwhile."""

    def __init__(self, world: World) -> None:
        self.world, self.was = world, world.is_sound

    def __enter__(self) -> None:
        self.world.is_sound = True

    def __exit__(self, *_: object) -> None:
        self.world.is_sound = self.was


def _is_dead(row: Any) -> bool:
    return isinstance(row, DeliveryRow) and row.state is State.DEAD


def _fails(fault: Fault) -> None:
    raise Broken(str(fault))


def walk(seed: int, steps: int = 150) -> Life:
    """One life, with few returns that are free. Raises Broken, or CannotBe of the table."""
    life, free, account_free = Life(seed), deliveries.RETURNS_FREE, account.FREE_RETURNS
    deliveries.RETURNS_FREE = account.FREE_RETURNS = FREE
    try:
        life.live(steps)
    finally:
        deliveries.RETURNS_FREE, account.FREE_RETURNS = free, account_free
    return life
