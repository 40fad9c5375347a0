"""The account of deliveries: one message at one incarnation of a place, and what it may be by now.

It knows the documentation and nothing of the code. A *stake* is one message at one incarnation of a place.
The account does not guess the state of a stake: it keeps the set of states in which it may be. What a client
does moves the set. What the server shows must be in the set, and narrows it; if it is not, that is a fault.

    waiting   due and not in anybody's hands: unread, given back, or until its next try
    flight    leased, sent and not acked, or posted and not answered
    dead      a dead letter
    done      acked, or answered with 2xx
    dropped   ended by somebody who named it, or by the expiry of a session

An example: a worker leases a message {flight}, sends the ack, and the server is killed before it answers. The
set is {flight, done, waiting}. If the message is given again it was not done: {flight}.

The clock is that of the messages (messages.py). When it is stepped, ahead or back:

    retries    None is given before the clock has shown its time since the nack.
    leases     They, and the expiry of places, are counted in running time (`ran`), which walks and real time
               move, and steps do not.

What is counted is known from a least to a most, since a kill may take deliveries with it; an attempt that the
server shows says which it was, and what it has counted since a requeue follows.

When a place is set back, a message that is in flight stays there and comes once. All else is to be read
again, and until it is, what it was before (`former`: a retry, a dead letter) stands beside it.

Of a key with `order` the next message comes when all before it are done or dead, none while one is out, and
none while somebody or a dead letter holds the key. What goes first is what was given (`is_head`), then the
order of the timeline. What nobody demands an order of is not in line: it was requeued, or was in flight when
its place was set back. After a restart what was out goes out again whatever holds its key.

A lease and the sync of an ack take real time (`mono`, seconds).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from .messages import Clock, Message, Messages
from .stakes import Count, Place, Stake
from .words import (
    ANY,
    BACKOFF_MAX,
    DEAD,
    DEAD_MS,
    DONE,
    DROPPED,
    FLIGHT,
    FREE_RETURNS,
    IN_TURNS,
    NEAR_MS,
    SHOWN,
    SLACK_MS,
    SURE_S,
    UNDONE,
    WAITING,
    Book,
    Fault,
)


class Deliveries:
    def __init__(
        self,
        now: int,
        *,
        grace: float | None = None,
        sure: float = SURE_S,
        soon: float = 0.0,
        near: int = NEAR_MS,
    ) -> None:
        """`grace`: seconds after which a lease that is over has ended for certain, if that is known.

        `sure`: so long after it was sent what has no answer is on disk. `soon`: what was on its way when an
        ack was sent is here then. `near`: by which a lease may end early in running time.
        """
        self.grace, self.sure, self.soon, self.near = grace, sure, soon, near
        self.book = Book()
        self.messages = Messages(now, self.book)
        self.places: list[Place] = []
        self.unknown: list[tuple[Place, str, int]] = []
        """Given before the answer to its publish had come here."""
        self.counted_away = 0
        """What the server says to have dropped undone and counted, and nobody has been charged with yet."""
        self.down_until = 0.0
        """When the server was back after it was down (mono). A lease that was over by then goes out again at
        once, without a back-off: it was its holder who could not answer."""

    @property
    def clock(self) -> Clock:
        return self.messages.clock

    @property
    def faults(self) -> list[Fault]:
        return self.book.faults

    @property
    def seen(self) -> Counter[str]:
        return self.book.seen

    def fault(self, rule: int, kind: str, what: str) -> None:
        self.book.fault(rule, kind, what)

    def blame(self, rule: int, kind: str, place: Place, stake: Stake, what: str = "") -> None:
        """A fault of one stake, told once: what follows from it is no further fault."""
        if not stake.is_reported:
            may = "|".join(sorted(stake.may))
            past = ", ".join(stake.past[-8:])
            self.fault(rule, kind, f"{stake.message.id} of {place}, which is {may}{what} [{past}]")
        stake.is_reported = True
        stake.may = ANY

    # -- time

    def advance(self, to: int, among: Iterable[Message] | None = None) -> None:
        """The clock is about to go there, or is set ahead: what is due on the way may come now."""
        self.clock.advance(to)
        for message in self.messages.by_id.values() if among is None else among:
            self._offer(message)

    def walk(self, by: int) -> None:
        """The same for a clock that runs."""
        self.advance(self.clock.high + by)
        self.clock.walked += by

    def arrived(self, now: int, among: Iterable[Message] | None = None) -> None:
        """`among`: all that is not out yet."""
        if now < self.clock.shown_by_epoch[-1]:
            self.fault(1, "clock went back", f"it shows {now}, and has shown {self.clock.high}")
        self.advance(now, among)
        self.clock.low = self.clock.high

    def set_clock_back(self, now: int) -> None:
        """Everything that has been shown stays due; what is accepted from now on waits for the clock."""
        self.clock.set_back(now)

    def _offer(self, message: Message) -> None:
        """Whoever is to get it has it undone, if it is out."""
        if not self.messages.goes_out(message):
            return
        for place in self.open():
            if message.id not in place.stakes and message.id not in place.behind and place.is_for(message):
                place.stakes[message.id] = Stake(message)

    def lapse(self, mono: float, among: Iterable[tuple[Place, Stake]] | None = None) -> None:
        """`among`: all that somebody has, or has acked of late."""
        self.clock.mono = mono
        for place, stake in self.all_stakes() if among is None else among:
            if stake.lapses is not None and (mono >= stake.lapses or self.clock.ran >= stake.until):
                stake.ended = stake.lapses
                # Whether it was the last try is decided in the server's own time.
                keep = {FLIGHT} if self.grace is not None else UNDONE
                not_before = 0 if stake.lapses <= self.down_until else None
                self._fails(place, stake, at=stake.wall_until, not_before=not_before, keep=frozenset(keep))
            if stake.ended is not None and self.grace is not None and mono >= stake.ended + self.grace:
                stake.may, stake.ended = (stake.may - {FLIGHT}) or stake.may, None
            if stake.read_again > 0 and mono - stake.read_again >= self.sure:
                stake.former, stake.read_again = frozenset(), 0.0
            if stake.ack_read and mono >= stake.ack_read + self.soon:
                self.finished(stake, stake.ack_read)

    # -- messages

    def accepted(self, message: Message) -> None:
        if self.messages.accepted(message):
            self._offer(message)
            self._catch_up(message.id)

    def _catch_up(self, key: str) -> None:
        early = [one for one in self.unknown if one[1] == key]
        self.unknown = [one for one in self.unknown if one[1] != key]
        for place, _, high in early:
            self.given(place, key, high=high)

    def accepted_of_schedule(self, message: Message, schedule: str) -> None:
        """Found by listing. If it went out late it may be behind a place that was made after its time."""
        self.messages.accepted_of_schedule(message, schedule)
        self._offer(message)
        for place in self.open() if message.is_now else ():
            if message.id in place.stakes and (message.is_late or message.due <= place.since):
                place.stakes[message.id].may = frozenset({WAITING, DROPPED})
        self._catch_up(message.id)

    def too_late(self, message: Message) -> None:
        """It came late, and says that nobody gets it then."""
        message.is_late = True
        for place, stake in self.stakes_of(message.id):
            if stake.number and not stake.is_reported:
                self.blame(7, "late and given", place, stake)
            stake.may |= {DROPPED}

    def moving(self, message: Message, due: int) -> None:
        """It is about to be moved there; if that is now it may be given before the move is answered."""
        if due <= self.clock.low:
            self.messages.moved(message, due)
            self._offer(message)
            for _, stake in self.stakes_of(message.id):
                stake.may = frozenset({WAITING, DROPPED})

    def moved(self, message: Message, due: int, row: str = "") -> None:
        """200, or as GET shows it if the answer was lost."""
        if due > self.clock.low:
            for place in self.open():
                place.stakes.pop(message.id, None)
        for _, stake in self.stakes_of(message.id):
            stake.may -= {DROPPED} if WAITING in stake.may else set()
        self.messages.moved(message, due, row)
        self._offer(message)

    def cancelled(self, message: Message) -> None:
        """204."""
        self.messages.cancelled(message)
        for place, stake in self.stakes_of(message.id):
            if stake.number and not stake.is_reported:
                self.blame(4, "cancelled after it was given", place, stake)
            stake.may = frozenset({DROPPED})

    def not_cancelled(self, message: Message, left: list[tuple[str, str]] | None) -> None:
        """409: it counts as dispatched. `left`: (place, state) as the problem names them."""
        self.messages.not_cancelled(message)
        named = {name for name, state in left or () if SHOWN[state] & (UNDONE | {DEAD})}
        for name, state in left or ():
            if name not in named:
                self.fault(4, "409 names what is over", f"{message.id} of {name}: {state}")
            for place in self.open():
                if place.name == name and message.id in place.stakes:
                    self.shown(place, message.id, state)
        for place, stake in self.stakes_of(message.id):
            is_told_of = left is not None and place.is_open and place.kind != "session"
            is_sure = stake.may <= UNDONE and not self._may_end(place, stake)
            if is_told_of and is_sure and place.name not in named:
                self.blame(4, "409 does not name it", place, stake)

    # -- keys that are taken while something of their message is undone

    def is_taken(self, key: str) -> bool:
        """For certain."""
        message = self.messages.solo.get(key)
        if message is None or message.is_cancelled or self.messages.is_old(message):
            return False
        return self.messages.is_ahead(message) or any(
            place.is_open and stake.may <= UNDONE and not self._may_end(place, stake)
            for place, stake in self.stakes_of(message.id)
            if not self._may_die(place, stake)
        )

    def is_free(self, key: str) -> bool:
        """For certain."""
        message = self.messages.solo.get(key)
        if message is None or message.is_cancelled:
            return True
        if not self.messages.is_out(message) or self.messages.is_old(message):
            return False
        return not any(
            stake.may & UNDONE
            or stake.is_held_too
            or stake.was_finished
            or stake.is_reported
            or (stake.since and self.clock.mono - stake.since < self.sure)
            for place, stake in self.stakes_of(message.id)
            if place.is_open
        )

    def key_given(self, key: str, message: Message) -> None:
        """A new message has it."""
        self.messages.key_given(key, message, was_taken=self.is_taken(key))

    # -- deliveries

    def given(
        self,
        place: Place,
        key: str,
        *,
        lapses: float | None = None,
        high: int | None = None,
        attempt: int | None = None,
        by: str = "",
        is_leased: bool = True,
        due: int = 0,
    ) -> None:
        """`attempt`: which one the server says that it is. `by`: who got it. `is_leased`: what ends at
        `lapses` is its own, whatever becomes of its connection. `due`: as the delivery says."""
        high = high or self.clock.top
        message = self.messages.by_id.get(key)
        if message is None:
            self.unknown.append((place, key, high))
            return
        self.seen["given"] += 1
        if message.is_cancelled:
            self.fault(4, "given after a cancel", f"{key} to {place}: the cancel was answered 204")
            return
        if message.is_late:
            self.fault(7, "late and given", f"{key} to {place}, due at {message.due}, and it is {high}")
            return
        if due > high or self.messages.is_early(message, 0, high):
            self.fault(1, "early", f"{key} to {place}, due at {message.due}, and it is {high}")
            return
        if message.wishes and place.is_open and place.is_for(message):
            place.stakes.setdefault(key, Stake(message))  # moved, as it seems
        stake = place.stakes.get(key)
        if stake is None or not place.is_open:
            self._strange("given to another incarnation", place, message)
            return
        if WAITING not in stake.may:
            first = next(iter(stake.may)) if len(stake.may) == 1 else "finished"
            rule, kind = {
                DONE: (5, "given again after its ack"),
                FLIGHT: (2, "given twice at a time"),
                DEAD: (2, "given though it is dead"),
                DROPPED: (4, "given after it was dropped"),
            }.get(first, (5, "given after it was finished"))
            self.blame(rule, kind, place, stake)
        elif stake.not_before > high or not self.clock.has_shown(stake.not_before, stake.epoch):
            self.blame(1, "retry early", place, stake, f"; not before {stake.not_before}, it is {high}")
        self._in_turn(place, stake)
        self._note(stake, f"given {by}")
        stake.tries.up()
        stake.total.up()
        stake.was_given, stake.is_read, stake.number, stake.by = True, True, stake.number + 1, by
        stake.is_head, stake.is_returned, stake.is_released = True, False, False
        stake.may = frozenset({FLIGHT, DONE} if self._was_on_its_way(stake) else {FLIGHT})
        stake.not_before, stake.ended, stake.given_at = 0, None, self.clock.mono
        self.leased(stake, lapses, is_leased=is_leased)
        stake.is_held_too = stake.stays = stake.is_exact = stake.may_be_nobodys = False
        stake.reason = ""
        if attempt is not None:
            self._counted(place, stake, attempt)
        if stake.was_finished:
            stake.read_again = self.clock.mono or 1.0

    def _counted(self, place: Place, stake: Stake, attempt: int) -> None:
        """The server says so many deliveries; what it has counted since it was requeued follows."""
        total, tries = stake.total, stake.tries
        if attempt > total.most:
            self.blame(6, "counted too often", place, stake, f"; attempt {attempt} of {total.most}")
        elif attempt < total.least:
            self.blame(6, "counted too seldom", place, stake, f"; attempt {attempt} of {total.least}")
        elif total.most - total.least == tries.most - tries.least:
            tries.least = tries.most = tries.least + attempt - total.least
        elif attempt == 1:
            tries.least = tries.most = 1
        total.least = total.most = attempt

    # -- keys in turn

    def _in_turn(self, place: Place, stake: Stake) -> None:
        """Whether its key lets it go."""
        key = stake.message.key
        is_bound = key and (place.most or place.is_ordered)
        if not is_bound or stake.is_reported or self._was_on_its_way(stake):
            return
        mates = [one for one in self._mates(place, stake) if not one.is_reported]
        out = [one for one in mates if one.may == {FLIGHT}]
        if place.most and len(out) >= place.most:
            self.blame(8, "too many of a key out", place, stake, f"; {self._names(out)} are out")
        elif stake.is_returned:
            return
        elif key in place.held:
            self.blame(8, "given of a key that is held", place, stake, "; by hand")
        elif letters := [one for one in mates if self.holds(place, one)]:
            self.blame(8, "given of a key that is held", place, stake, f"; by {self._names(letters)}")
        elif before := [one for one in mates if self._goes_first(place, one, stake)]:
            self.blame(8, "given out of turn", place, stake, f"; before {self._names(before)}")
        elif stake.passed:
            self.blame(8, "given out of turn", place, stake, f";{stake.passed} went by")
        elif place.is_ordered and not stake.number and any(self._has_passed(one, stake) for one in mates):
            self.blame(8, "given out of turn", place, stake, "; what is behind it has begun")
        for one in mates:
            is_before = self._is_before(place, one, stake)
            if is_before and one.may & UNDONE and not self._was_on_its_way(one):
                one.passed = f"{one.passed} {stake.message.id}"

    def _was_on_its_way(self, stake: Stake) -> bool:
        """Whether it may have been sent before an ack that was sent a moment ago was read."""
        return self.clock.mono < stake.acked_at + self.soon

    @staticmethod
    def _has_passed(one: Stake, stake: Stake) -> bool:
        """Whether what is behind it has begun, as far as positions are known."""
        place, behind = stake.message.place, one.message.place
        is_known = place is not None and behind is not None and one.is_in_line and stake.is_in_line
        return is_known and one.is_head and one.number > 0 and place < behind  # type: ignore[operator]

    @staticmethod
    def _mates(place: Place, stake: Stake) -> list[Stake]:
        """The others of its key."""
        key = stake.message.key
        return [one for one in place.stakes.values() if one.message.key == key and one is not stake]

    def _goes_first(self, place: Place, one: Stake, other: Stake) -> bool:
        """Whether the key's order says so, for certain."""
        return self._is_before(place, one, other) and self.is_surely_undone(place, one)

    def _is_before(self, place: Place, one: Stake, other: Stake) -> bool:
        """What is being moved is somewhere."""
        are_in_line = place.is_ordered and one.is_in_line and other.is_in_line
        is_known = not (one.message.wishes or other.message.wishes)
        return are_in_line and is_known and self._rank(one) < self._rank(other)

    @staticmethod
    def _rank(stake: Stake) -> tuple[bool, int, int]:
        message = stake.message
        return not stake.is_head, *(message.place or (message.at, message.seq))

    @staticmethod
    def holds(place: Place, stake: Stake) -> bool:
        is_one = place.on_dead_hold and stake.is_head and stake.is_in_line and not stake.is_released
        return is_one and stake.may == {DEAD}

    @staticmethod
    def _names(stakes: Iterable[Stake]) -> str:
        return ", ".join(one.message.id for one in stakes)

    def hold(self, place: Place, key: str) -> None:
        place.held.add(key)

    def release(self, place: Place, key: str) -> None:
        """The key goes on, also past a dead letter."""
        place.held.discard(key)
        for stake in place.stakes.values():
            if stake.message.key == key and DEAD in stake.may:
                stake.is_released = True

    def owed(self, place: Place) -> list[Stake]:
        """What may be given now, for certain: with room for it, and when all is quiet, there is none."""
        waiting, found, lines = frozenset({WAITING}), list[Stake](), dict[str, list[Stake]]()
        for stake in place.stakes.values():
            lines.setdefault(stake.message.key, []).append(stake)
        for key, line in lines.items():
            for stake in line if self._has_room(place, key, line) else ():
                is_due = stake.not_before <= self.clock.low and self.messages.is_out(stake.message)
                if stake.may == waiting and is_due and self.is_surely_undone(place, stake):
                    found += [stake] if self._is_next(place, stake, line) else []
        return found

    @staticmethod
    def _has_room(place: Place, key: str, line: list[Stake]) -> bool:
        """Whether one more of that key may go, for certain."""
        is_held = key in place.held or (place.on_dead_hold and any(DEAD in one.may for one in line))
        is_full = place.most and sum(FLIGHT in one.may for one in line) >= place.most
        return not key or not (is_held or is_full)

    def _is_next(self, place: Place, stake: Stake, line: list[Stake]) -> bool:
        """Whether nothing of its key goes before it, for certain."""
        if not stake.message.key or not place.is_ordered:
            return True
        rank = self._rank(stake)
        return stake.is_in_line and not any(one.may & UNDONE and self._rank(one) < rank for one in line)

    # -- what becomes of them

    def acked_unheard(self, place: Place, stake: Stake, mono: float) -> None:
        """Acked by who gets no answer. What retention has taken from a session is dead all the same."""
        self.finished(stake, mono)
        if place.kind == "session" and self.messages.is_old(stake.message):
            stake.may |= {DEAD}

    def finished(self, stake: Stake, mono: float = 0.0, *, number: int | None = None) -> None:
        """Acked. `mono`: when, if nothing says that it is durable. `number`: of which delivery."""
        self.seen["finished"] += 1
        stake.is_held_too = number is not None and number < stake.number and FLIGHT in stake.may
        self._becomes(stake, DONE)
        stake.since = mono

    def unsure(self, stake: Stake, then: frozenset[str] = frozenset({WAITING, DONE, DEAD})) -> None:
        """A step was sent and the server died before it answered; it would have become `then`."""
        self._note(stake, "unsure")
        stake.may, stake.lapses, stake.not_before = stake.may | then, None, 0
        stake.may_be_nobodys = stake.is_leased

    def acking(self, stake: Stake) -> None:
        """An ack was sent; nobody says whether it is read."""
        self._note(stake, "ack sent")
        stake.may |= {DONE}
        stake.acked_at = self.clock.mono

    def is_read(self, stake: Stake, sent: float) -> None:
        """The ack that was sent then was read, for certain."""
        if stake.may != {DONE}:
            stake.ack_read = min(stake.ack_read or sent, sent)

    def nacking(self, place: Place, stake: Stake, number: int, not_before: int | None = None) -> None:
        """A nack was sent by who has that delivery, or had it."""
        if self.has(stake, number):
            self.failed(place, stake, not_before=not_before, mono=self.clock.mono)
        elif number == stake.number:
            self.in_doubt(place, stake)

    def in_doubt(self, place: Place, stake: Stake) -> None:
        """What was sent about it may have been read, or not."""
        if stake.may & UNDONE or stake.since:
            is_last = 0 < place.max_tries <= stake.tries.most
            self.unsure(stake, frozenset({WAITING, DEAD} if is_last else {WAITING}))

    def gone(self, place: Place, stake: Stake) -> None:
        """The server says to an ack that nothing is left to be done."""
        may_be_forgotten = DEAD in stake.may and self.messages.age(stake.message) >= DEAD_MS
        if not (stake.may & {DONE, DROPPED} or may_be_forgotten) and place.is_open:
            self.blame(1, "an ack is gone", place, stake, ", and nobody has finished it")

    def has(self, stake: Stake, number: int) -> bool:
        """Whether the holder of that delivery has it still, for certain."""
        return stake.number == number and stake.may == {FLIGHT} and stake.lapses is not None

    def ack_refused(self, place: Place, stake: Stake, sent: float) -> None:
        """The server says that to the first ack of a lease, which was sent then."""
        if stake.may == {FLIGHT, DONE} and stake.lapses is not None and stake.acked_at == sent:
            self.blame(5, "a lease is gone", place, stake, "; ack")

    def held_no_more(self, place: Place, stake: Stake, number: int, verb: str) -> None:
        """A nack, extend or release is told that the lease is gone."""
        if self.has(stake, number):
            self.blame(5, "a lease is gone", place, stake, f"; {verb}")

    def counts(self, place: Place, stake: Stake, number: int, verb: str) -> bool:
        """A nack, extend or release has done something; whether it may."""
        if number != stake.number and not stake.is_reported:
            self.blame(5, "an earlier try counts", place, stake, f"; {verb} of {number} of {stake.number}")
        return not stake.is_reported

    def acked(self, place: Place, stake: Stake, number: int) -> None:
        """The server says that this ack has finished it."""
        if stake.may == {DONE} and not stake.since:
            self.blame(5, "an ack counts twice", place, stake)
        self.finished(stake, number=number)

    def extended(self, stake: Stake, lapses: float) -> None:
        self._note(stake, "extended")
        self.leased(stake, lapses, is_leased=stake.is_leased)

    def leased(self, stake: Stake, lapses: float | None, *, is_leased: bool = True) -> None:
        stake.lapses, stake.is_leased, stake.wall_until = lapses, is_leased and lapses is not None, 0
        if lapses is not None:
            stake.until = self.clock.walked + round(1_000 * lapses) - self.near * is_leased
            stake.wall_until = self.clock.high + round(1_000 * (lapses - self.clock.mono))

    def returned(self, place: Place, stake: Stake, mono: float = 0.0) -> None:
        """Given back in order: that is not a try, for the first ten times."""
        self._note(stake, "returned")
        self._comes_back(place, stake)
        stake.since = mono

    def _comes_back(self, place: Place, stake: Stake) -> None:
        returns = stake.returns
        returns.up()
        # The tenth may be the eleventh: a kill may hide one.
        is_free = returns.most <= FREE_RETURNS - (returns.least < returns.most) and WAITING not in stake.may
        stake.tries.down(is_sure=is_free)
        stake.total.down(is_sure=is_free)
        self._fails(place, stake, at=self.clock.low, keep=frozenset({WAITING}))
        stake.is_returned = returns.least <= FREE_RETURNS
        stake.not_before *= returns.least > FREE_RETURNS

    def failed(
        self,
        place: Place,
        stake: Stake,
        *,
        not_before: int | None = None,
        mono: float = 0.0,
        is_exact: bool = False,
    ) -> None:
        """Nacked, or answered with an error: it comes again, or that was the last try."""
        self.seen["failed"] += 1
        self._note(stake, "failed")
        self._fails(place, stake, at=self.clock.low, not_before=not_before, may_be_none=True)
        stake.since = mono
        stake.stays = stake.may == {WAITING}
        stake.is_exact = is_exact and stake.stays

    def _fails(
        self,
        place: Place,
        stake: Stake,
        *,
        at: int,
        not_before: int | None = None,
        keep: frozenset[str] = frozenset(),
        may_be_none: bool = False,
    ) -> None:
        """A try is over: it comes again, after the back-off or `not_before`, or that was the last one.

        `keep`: what it may be as well. `may_be_none`: it need not have been in flight, and is not now.
        """
        if FLIGHT not in stake.may and not may_be_none:
            stake.lapses = None
            return
        most, tries = place.max_tries, stake.tries
        ends = {WAITING, DEAD} if most and tries.most >= most else {WAITING}
        ends -= {WAITING} if most and tries.least >= most else set()
        expires = self._expires(stake)
        if expires is not None and expires <= max(not_before or 0, self.clock.high + BACKOFF_MAX):
            ends |= {WAITING, DEAD}
        before = frozenset() if may_be_none else stake.may - {FLIGHT}
        stake.may = before | ends | keep
        stake.lapses, stake.epoch = None, self.clock.epoch
        if not_before is None:
            pauses = place.backoff
            not_before = at + pauses[min(max(tries.least, 1), len(pauses)) - 1] if pauses else 0
        stake.not_before = not_before if before <= {DEAD, DONE, DROPPED} else 0

    def answered(self, place: Place, stake: Stake, status: int, mono: float) -> None:
        """A post is about to be answered. Behind the end of its place no answer counts: the post was cut."""
        if not place.is_open:
            self._note(stake, "answered too late")
        elif status == 200:
            self.finished(stake, mono)
        else:
            self.failed(place, stake, mono=mono)

    def buried(self, stake: Stake, mono: float = 0.0, reason: str = "") -> None:
        self._becomes(stake, DEAD)
        stake.since, stake.reason = mono, reason

    def dropped(self, stake: Stake) -> None:
        """Its letter, or the retry: what is to be read again comes all the same."""
        if stake.was_finished and stake.former == {DEAD}:
            stake.former = frozenset()
        else:
            self._becomes(stake, DROPPED)

    def again(self, stake: Stake, at: int | None = None, *, is_head: bool = False) -> None:
        """Requeued: a retry that is due now, or then. `is_head`: its key waits for it, as it held it."""
        self._becomes(stake, WAITING)
        stake.tries.anew()
        stake.is_read = stake.stays = stake.is_exact = True
        stake.epoch = self.clock.epoch
        stake.not_before = stake.requeued_at = self.clock.low if at is None else at
        stake.is_in_line, stake.is_head = is_head, True

    def tried(self, stake: Stake, at: int) -> None:
        """`:try` has moved its next try there."""
        self._note(stake, "try moved")
        stake.not_before, stake.epoch, stake.is_exact = at, self.clock.epoch, True

    def sending_to(self, place: Place, message: Message, total: int) -> tuple[Stake, frozenset[str]]:
        """A dead letter is about to be requeued to another place. Returns its stake there, as it was.

        It may come before the answer. `total`: as for `sent_to`.
        """
        stake = place.stakes.setdefault(message.id, Stake(message, frozenset({DROPPED})))
        stake.total = Count(0, max(stake.total.most, total))
        before = stake.may
        stake.may, stake.not_before, stake.is_exact, stake.is_read = before | {WAITING}, 0, False, True
        stake.is_in_line = False
        return stake, before

    def sent_to(
        self, stake: Stake, before: frozenset[str], number: int, total: int, *, is_changed: bool
    ) -> None:
        """Answered. What the place has in hand or has not read it does not get a second time.

        `total`: the deliveries to the former place, since attempts go on counting.
        """
        stake.total.most = max(stake.total.most, total + stake.number - number)
        if stake.number != number:
            return
        if not is_changed or before <= {FLIGHT}:
            stake.may = before
        elif before <= UNDONE:
            stake.may = before | {WAITING}
        else:
            self._becomes(stake, WAITING)
            stake.tries.anew()

    def _becomes(self, stake: Stake, state: str) -> None:
        self._note(stake, state)
        stake.may, stake.lapses, stake.not_before, stake.since = frozenset({state}), None, 0, 0.0
        stake.is_exact, stake.stays, stake.reason, stake.ended = False, False, "", None
        stake.ack_read, stake.passed = 0.0, ""
        if stake.read_again <= 0:
            stake.former = frozenset()

    def _note(self, stake: Stake, what: str) -> None:
        stake.past.append(f"{self.book.step} {what}")

    def left(self, place: Place, *, orderly: bool = False, by: str = "") -> None:
        """Who had it over a connection has gone: it goes to whoever comes. Empty: the only one there was."""
        place.left_at = self.clock.ran
        for stake in place.stakes.values():
            is_its = FLIGHT in stake.may and by in ("", stake.by)
            if is_its and by and orderly and stake.may_be_nobodys and not stake.is_leased:
                for count in (stake.tries, stake.total):
                    count.down(is_sure=False)  # its time may not have been over, and another's call was cut
            if not is_its or stake.is_leased or stake.may_be_nobodys:
                continue
            self._note(stake, f"left by {by}")
            if orderly and place.kind != "session":
                self._comes_back(place, stake)
            elif place.kind == "session":
                self._sent_anew(place, stake)
            else:
                self._fails(place, stake, at=min(self.clock.low, stake.wall_until or self.clock.low))

    def _sent_anew(self, place: Place, stake: Stake, *keep: str) -> None:
        """It stays in flight for whoever comes, or that was the last try."""
        if FLIGHT in stake.may:
            most = place.max_tries
            ends = {WAITING, DEAD} if most and stake.tries.most >= most else {WAITING}
            stake.may = (stake.may - {FLIGHT}) | ends | {*keep}
            stake.is_returned, stake.not_before = True, 0
        stake.lapses = stake.ended = None

    def restarted(self, mono: float, *, was_killed: bool) -> None:
        """After a kill the last steps that had no answer may be undone."""
        for place, stake in self.all_stakes():
            stake.passed, stake.acked_at = "", 0.0
            if stake.ack_read:
                self.finished(stake, stake.ack_read)
            if stake.is_leased or stake.may_be_nobodys:
                continue
            if not was_killed and stake.may == {FLIGHT} and place.kind != "session":
                self._comes_back(place, stake)
            if was_killed and FLIGHT in stake.may and stake.tries.most <= 1:
                stake.was_given = False  # the server may have forgotten that: it is unread again
            self._sent_anew(place, stake, *([DONE] if place.kind == "endpoint" else []))
        for place, stake in self.all_stakes():
            if was_killed and stake.since and mono - stake.since < self.sure:
                stake.may, stake.not_before, stake.is_exact = stake.may | {WAITING}, 0, False
                stake.is_returned = True
            if was_killed and stake.former and stake.read_again > 0 and mono - stake.read_again < self.sure:
                stake.may, stake.not_before, stake.read_again = stake.may | {WAITING}, 0, -1.0
            elif stake.read_again > 0:
                stake.former, stake.read_again = frozenset(), 0.0
            stake.since = 0.0
            if was_killed:
                self._forgets(stake, mono)
            is_old = self.messages.is_old(stake.message)
            if was_killed and place.kind == "session" and WAITING in stake.may and is_old:
                stake.may |= {DROPPED}  # counted, and the number died with the server
        self.unknown = []
        if was_killed:
            for place in self.open():
                self.perhaps_taken(place)

    def _forgets(self, stake: Stake, mono: float) -> None:
        """What a kill may take: of the counts (the last delivery may have been returned since), and that a
        lease was over."""
        is_counted = stake.given_at and mono - stake.given_at >= self.sure
        for count in (stake.tries, stake.total):
            count.least = max(0, count.least - 1) if is_counted else 0
        stake.returns.least = 0
        if stake.ended is not None and mono - stake.ended < self.sure:
            stake.not_before = 0

    def is_durable(self) -> None:
        """All that was done is on disk."""
        for _, stake in self.all_stakes():
            stake.since = 0.0
            if stake.read_again > 0:
                stake.former, stake.read_again = frozenset(), 0.0

    def perhaps_taken(self, place: Place, *, is_leased: bool = False) -> None:
        """Deliveries may have been begun of which nobody here has heard. `is_leased`: by a lease."""
        for stake in place.stakes.values():
            if WAITING in stake.may and self._may_have_gone(place, stake):
                for count in (stake.tries, stake.total, stake.returns):
                    count.most += 1
                stake.is_read = True
                stake.read_again = -1.0 if stake.was_finished else stake.read_again
                stake.is_exact &= stake.not_before > self.clock.high  # else it may have failed since
                if is_leased:
                    stake.may, stake.may_be_nobodys = stake.may | {FLIGHT}, True
                if place.max_tries and stake.tries.most >= place.max_tries:
                    stake.may |= {DEAD}

    def _may_have_gone(self, place: Place, stake: Stake) -> bool:
        is_due = stake.not_before <= self.clock.top and self.messages.is_out(stake.message)
        key = place.is_ordered and stake.message.key
        return is_due and not (
            key and any(self._goes_first(place, x, stake) for x in self._mates(place, stake))
        )

    # -- places

    def opened(self, kind: str, name: str, text: str, *, max_tries: int, expiry: int | None = None) -> Place:
        number = 1 + sum((place.kind, place.name) == (kind, name) for place in self.places)
        messages, clock = self.messages, self.clock
        out = frozenset(one.id for one in messages.by_id.values() if messages.is_out(one))
        place = Place(kind, name, text, number, clock.top, max_tries, expiry, left_at=clock.ran, behind=out)
        self.places.append(place)
        return place

    def closed(self, place: Place, undone: str) -> None:
        """Deleted. `undone`: dead or dropped, what its undone messages become."""
        place.is_open = False
        for stake in place.stakes.values():
            if stake.since and self.clock.mono - stake.since < self.sure:
                stake.may |= {undone}  # the server may not have noted it yet
            if stake.may & UNDONE:
                self._note(stake, f"place closed, {undone}")
                is_sure = stake.may <= UNDONE and not self._may_die(place, stake)
                stake.reason = f"{place.kind} deleted" if is_sure and undone == DEAD else ""
                stake.may = (stake.may - UNDONE) | self._ends(place, stake, undone)
                stake.lapses = None

    def _ends(self, place: Place, stake: Stake, undone: str) -> frozenset[str]:
        """What an undone message is now, if it had not ended by itself before that."""
        before = {DROPPED} if self._may_end(place, stake) else set()
        return frozenset({undone, *before, *({DEAD} if self._may_die(place, stake) else ())})

    def is_surely_undone(self, place: Place, stake: Stake) -> bool:
        return stake.may <= UNDONE and not self._may_die(place, stake) and not stake.is_reported

    def set_back(self, place: Place, to: int, *, is_sure: bool = False) -> None:
        """:replay. What is in flight stays there and comes once; all else is read again, and its retry or
        dead letter ends then. What was before its time is read again if it is asked for, so it may come.

        `is_sure`: the very time is known.
        """
        self.advance(self.clock.high)
        for message in self.messages.by_id.values():
            if message.is_cancelled or not place.is_for(message) or not self.messages.is_out(message):
                continue
            stake = place.stakes.get(message.id)
            if is_sure and max(message.at, message.latest) < to:
                continue
            if stake is None:
                place.stakes[message.id] = Stake(message, frozenset({WAITING, DROPPED}))
            elif message.at < to and message.latest < to:
                if stake.tries.most:  # it may be read again where its retry was
                    self._note(stake, "perhaps set back")
                    stake.may |= {WAITING}
            else:
                self._note(stake, "set back")
                self._set_back(stake, is_sure=message.at > to)

    def _set_back(self, stake: Stake, *, is_sure: bool) -> None:
        if FLIGHT in stake.may or stake.is_returned:
            stake.is_in_line = False
        if stake.may <= {FLIGHT} or stake.was_finished:
            return
        if stake.is_returned:  # in flight, and in nobody's hands
            stake.may, stake.is_exact, stake.not_before = stake.may | {WAITING}, False, 0
            stake.stays, stake.tries.least, stake.total.least = False, 0, 0
            return
        was, is_retry = stake.may - {FLIGHT}, stake.is_read
        stake.former = was & {DEAD} | (was & {WAITING} if is_retry else frozenset())
        stake.former_due, stake.read_again = stake.not_before, 0.0
        is_sure = is_sure and stake.message.expires is None and not stake.requeued_at
        is_sure = is_sure and not self.messages.is_old(stake.message)
        stake.may = (stake.may & {FLIGHT}) | {WAITING} if is_sure else stake.may | {WAITING}
        stake.is_exact, stake.stays, stake.not_before, stake.since = False, False, 0, 0.0
        stake.tries.least = stake.total.least = 0
        if not stake.former:
            stake.tries.anew()
        if FLIGHT not in stake.may:
            stake.is_read, stake.is_in_line = bool(stake.former), True
            stake.is_head = stake.is_returned = stake.is_released = stake.was_given = False

    def skipped(self, place: Place, undone: str, to: int, *, is_sure: bool) -> None:
        """:skip. What is unread before that is left behind; what is in flight or a retry stays, but for one
        that its key waits for."""
        for stake in place.stakes.values():
            if stake.message.at > to or stake.may <= {FLIGHT}:
                continue
            self._note(stake, f"skipped, {undone}")
            at = max(stake.message.at, stake.message.latest)
            has_key = place.is_ordered and bool(stake.message.key)
            has_turn = has_key and stake.is_in_line
            is_sure_of_it = is_sure and stake.may <= UNDONE and at < to
            if is_sure_of_it and stake.was_finished and not (has_turn and stake.former == {WAITING}):
                stake.may = stake.former | ({undone} if has_turn or place.waits_for_keys else set())
                stake.not_before, stake.former = stake.former_due, frozenset()
                stake.is_in_line, stake.stays = False, stake.may == {WAITING}
            elif is_sure_of_it and ((has_turn and not stake.is_returned) or not stake.is_read):
                self._left_behind(place, stake, undone)
            elif WAITING in stake.may and not (
                is_sure and stake.stays and (stake.is_returned or not has_key)
            ):
                stake.may, stake.is_released = stake.may | {undone}, True

    def _left_behind(self, place: Place, stake: Stake, undone: str) -> None:
        stake.is_released = True  # no letter of a skip holds its key
        stake.may = (stake.may & {FLIGHT}) | self._ends(place, stake, undone)
        stake.reason = "skipped" if stake.may == {DEAD} and not self._may_die(place, stake) else ""
        stake.former = frozenset()

    # -- what the server shows

    def shown(self, place: Place, key: str, state: str) -> None:
        """GET of a message names the place with this state."""
        stake = place.stakes.get(key)
        others = (s for p, s in self.stakes_of(key) if p.name == place.name and p is not place)
        if (
            state == "dead"
            and (stake is None or DEAD not in stake.may)
            and any(DEAD in s.may for s in others)
        ):
            return  # dead letters of a deleted place are kept
        if stake is None:
            if SHOWN[state] & (UNDONE | {DEAD}):
                self._strange(f"{state} at another incarnation", place, self.messages.by_id[key])
            return
        if state == "leased" and FLIGHT in stake.may:
            return  # it may be over at any moment
        if state == "dead" and stake.was_finished and WAITING in stake.may:
            return  # its letter stands until it is read again
        self._narrow(place, stake, SHOWN[state], f"; the server says {state}")

    def lies(self, place: Place, key: str, where: Sequence[str], attempts: int | None = None) -> None:
        """All that there is of it at the place: unread, in flight, waits, dead. Nothing: it is over.

        `attempts`: as its dead letter counts them.
        """
        stake = place.stakes.get(key)
        if stake is None:
            if where:
                self._strange(f"{'|'.join(where)} at another incarnation", place, self.messages.by_id[key])
            return
        if stake.read_again < 0:
            stake.former = stake.former if "unread" in where else frozenset()
            stake.read_again = 0.0
        if stake.was_finished and "unread" not in where:
            self.blame(1, "lost", place, stake, f"; it is to be read again, and is {where}")
        elif stake.former:
            beside = {"dead": DEAD, "waits": WAITING}
            left = [one for one in where if beside.get(one) not in stake.former]
            if where and not left:
                return  # its end is not on disk yet
            where = left
        if len(where) > 1:
            self.blame(2, "in two places", place, stake, f"; {where}")
            return
        state = where[0] if where else "over"
        flying = {FLIGHT} if FLIGHT in stake.may else UNDONE
        allowed = {"unread": {WAITING}, "in flight": flying, "waits": {WAITING}, "dead": {DEAD}}
        self._narrow(place, stake, frozenset(allowed.get(state, {DONE, DROPPED})), f"; {state}", sure_s=0)
        if state in ("unread", "waits"):
            stake.is_read, stake.is_returned = state == "waits" or stake.was_finished, False
        stake.stays = state in ("waits", "in flight")
        stake.is_returned |= state == "in flight" and FLIGHT not in stake.may
        if state == "unread" and stake.not_before > self.clock.high:
            self.blame(1, "retry early", place, stake, f"; unread, and not before {stake.not_before}")
        if state == "dead" and attempts is not None and not stake.total.least <= attempts <= stake.total.most:
            what = f"; {attempts}, not {stake.total.least} to {stake.total.most}"
            self.blame(6, "counted wrongly", place, stake, what)

    def _strange(self, kind: str, place: Place, message: Message) -> None:
        """The place has nothing to do with it; told once."""
        stake = place.stakes.setdefault(message.id, Stake(message, ANY))
        self.blame(
            3, kind, place, stake, f"; {message.topic} at {message.at}, the place is from {place.since}"
        )

    def not_shown(self, place: Place, key: str) -> None:
        stake = place.stakes[key]
        if stake.may <= UNDONE and not self._may_end(place, stake) and not self._excused(stake):
            self.blame(1, "lost", place, stake, "; GET does not name the place")

    def not_found(self, message: Message) -> None:
        """GET answers 404."""
        for place, stake in self.stakes_of(message.id):
            is_lost = place.is_open and stake.may <= UNDONE and not self._may_end(place, stake)
            if is_lost and not self._excused(stake):
                self.blame(1, "unknown and undone", place, stake, "; GET answers 404")
        self.messages.not_found(message)

    def _narrow(
        self, place: Place, stake: Stake, allowed: frozenset[str], why: str, *, sure_s: float | None = None
    ) -> None:
        """`sure_s`: so long after it was sent, a step may not have been noted yet."""
        may = stake.may & allowed
        if not may and allowed == {DEAD} and stake.may & UNDONE and self._may_die(place, stake):
            may = frozenset({DEAD})
        if not may and DONE in allowed and stake.may & UNDONE and self._may_end(place, stake):
            may = frozenset({DROPPED})
        if may:
            if may != stake.may:
                self._note(stake, f"shown as {'|'.join(sorted(may))}")
            stake.may = may
        elif stake.since and self.clock.mono - stake.since < (self.sure if sure_s is None else sure_s):
            pass  # the server may not have noted it yet: a later look will show
        elif DONE in allowed:
            how = "expired without a word" if self.has_expired(stake) else "done by nobody"
            self.blame(1, how, place, stake, why)
        elif stake.may & UNDONE:
            kind = {DEAD: "dead for no cause", FLIGHT: "leased by nobody"}.get(
                min(allowed), "dropped by nobody"
            )
            self.blame(1, kind, place, stake, why)
        else:
            self.blame(2, "not finished any more", place, stake, why)

    def _may_die(self, place: Place, stake: Stake) -> bool:
        """Whether it may be a dead letter though no client has asked for that."""
        is_old = self.messages.is_old(stake.message)
        is_tried = 0 < place.max_tries <= stake.tries.most
        return is_old or is_tried or self.has_expired(stake) or self._has_ended(place)

    def _may_end(self, place: Place, stake: Stake) -> bool:
        """It has expired. A group or an endpoint that has tried it in vain must tell of it all the same."""
        return self.has_expired(stake) and (not stake.was_given or place.kind == "session")

    def _expires(self, stake: Stake) -> int | None:
        expires = stake.message.expires
        return None if expires is None else max(stake.message.due, stake.requeued_at) + expires

    def has_expired(self, stake: Stake, by: int = 0) -> bool:
        """`by`: whether it has by then."""
        at = self._expires(stake)
        return at is not None and (at <= by or self.clock.has_shown(at, stake.message.epoch))

    def _has_ended(self, place: Place) -> bool:
        return place.expiry is not None and self.clock.ran - place.left_at >= place.expiry - SLACK_MS

    def _came_before(self, place: Place, stake: Stake) -> bool:
        """Whether a message was out when a place that has expired was there, for certain."""
        end = place.left_at + (place.expiry or 0) - SLACK_MS
        return stake.message.out_at is not None and stake.message.out_at < end

    def may_be_gone(self, place: Place) -> bool:
        """It may have expired, and nobody has looked since."""
        return not place.is_open or self._has_ended(place)

    def _excused(self, stake: Stake) -> bool:
        """Whether the server has counted it as dropped; it may, once each."""
        if not self.counted_away:
            return False
        self.counted_away -= 1
        self._note(stake, "counted away")
        stake.may |= {DROPPED}
        return True

    def dead_letters(self, listed: Iterable[tuple[str, str, str]]) -> None:
        """All of /v1/dead: (name of the place, key, reason)."""
        found = Counter[tuple[str, str]]()
        reasons: dict[tuple[str, str], list[str]] = {}
        for name, key, reason in listed:
            found[name, key] += 1
            reasons.setdefault((name, key), []).append(reason)
            if not reason:
                self.fault(1, "no reason", f"the dead letter {key} of {name}")
        for (name, key), count in found.items():
            mine = [(p, p.stakes[key]) for p in self.places if p.name == name and key in p.stakes]
            dead = [one for one in mine if DEAD in one[1].may or one[1].was_finished]
            if not dead and mine:
                self._narrow(*mine[-1], frozenset({DEAD}), "; it is a dead letter")
            elif not mine:
                self.fault(3, "a dead letter of nobody", f"{key} of {name}")
            elif count > len(dead):
                self.blame(2, "two dead letters", *dead[-1], f": {count} of one message and place")
        for place, stake in self.all_stakes():
            is_kept = self.messages.age(stake.message) < DEAD_MS
            is_there = (place.name, stake.message.id) in found
            if is_kept and stake.may == {DEAD} and not is_there and not self._excused(stake):
                kind = "a dead letter is gone" if place.is_open else "ended without a word"
                self.blame(1, kind, place, stake)
            elif is_there and stake.may == {DEAD}:
                said = reasons[place.name, stake.message.id]
                if not any(reason.startswith(stake.reason) for reason in said):
                    self.blame(1, "another reason", place, stake, f"; {stake.reason}, not {said}")

    def retries(self, listed: Sequence[tuple[str, str, int]], dead: Iterable[tuple[str, str]]) -> None:
        """All of /v1/retries: (name of the place, key, when)."""
        when = {(name, key): at for name, key, at in listed}
        found = Counter((name, key) for name, key, _ in listed)
        for name, key in found:
            mine = [
                (p, p.stakes[key]) for p in self.places if p.name == name and p.is_open and key in p.stakes
            ]
            if not mine:
                self.fault(3, "a retry of a former place", f"{key} of {name}")
            elif found[name, key] > 1:
                self.blame(2, "two retries", *mine[-1])
            elif mine[-1][1].may == {FLIGHT} and mine[-1][1].lapses is not None:
                self.blame(2, "a retry in flight", *mine[-1])
            else:
                self._narrow(*mine[-1], frozenset({WAITING}), "; it is a retry")
                self._retry_at(*mine[-1], when[name, key])
        for name, key in set(found) & set(dead):
            here = [p.stakes[key] for p in self.open() if p.name == name and key in p.stakes]
            if not any(stake.was_finished for stake in here):
                self.fault(2, "a retry and a dead letter", f"{key} of {name}")

    def _retry_at(self, place: Place, stake: Stake, at: int) -> None:
        stake.is_read = True
        if stake.is_exact and stake.may == {WAITING} and abs(at - stake.not_before) > NEAR_MS:
            self.blame(1, "retry at another time", place, stake, f"; at {at}, not {stake.not_before}")

    def two_answers(self, place: Place, key: str, what: str) -> None:
        """GET of a message and the lists disagree."""
        self.blame(2, "two answers", place, place.stakes[key], f"; {what}")

    def due_there(self, place: Place) -> list[tuple[Stake, bool]]:
        """What is due at a place for certain, and whether it is a retry."""
        stakes = [s for s in place.stakes.values() if s.may == {WAITING} and not s.is_reported]
        retries = [(s, True) for s in stakes if s.is_exact and s.not_before <= self.clock.low]
        unread = [(s, False) for s in stakes if not s.is_read and self.messages.is_out(s.message)]
        return retries + unread

    def took(self, place: Place, given: Collection[str], waited: Sequence[tuple[Stake, bool]]) -> None:
        """A worker got these. Retries that are due and the backlog come in turns; `waited`: `due_there`.

        A turn is a call at most: what waits is given in this one or in the next one.
        """
        retries, unread = ([s for s, is_one in waited if is_one is sort] for sort in (True, False))
        for kind, mine, others in (
            ("the backlog starves", unread, retries),
            ("a retry starves", retries, unread),
        ):
            count = sum(stake.message.id in given for stake in others)
            has_none = count > 0 and mine and not any(stake.message.id in given for stake in mine)
            place.passed_over[kind] = [*place.passed_over.get(kind, ()), count] if has_none else []
            turns = place.passed_over[kind]
            if len(turns) > 1 and sum(turns) > 2 * IN_TURNS:
                self.blame(10, kind, place, mine[0], f"; {turns} others were given")

    def figures(self, place: Place, undone: int, shown: object, *, without_retries: bool) -> None:
        """How much is undone there, as GET of the place says."""
        sure = [s for s in place.stakes.values() if s.may <= UNDONE and not self._may_die(place, s)]
        least = sum(not (without_retries and stake.tries.most) for stake in sure)
        most = sum(bool(stake.may & UNDONE) or stake.is_held_too for stake in place.stakes.values())
        most += sum(stake.was_finished for stake in place.stakes.values())
        if not least <= undone <= most and not any(s.is_reported for s in place.stakes.values()):
            pasts = [f"{s.message.id} {s.past[-4:]}" for s in sure[:8]]
            what = f"{place} has {least} to {most} undone, and shows {shown}; surely {pasts}"
            self.fault(6, "miscounted", what)

    def missing(self, place: Place) -> None:
        """The server does not know an open place any more."""
        place.is_open = False
        undone = [stake for stake in place.stakes.values() if stake.may & UNDONE]
        if not self._has_ended(place):
            self.fault(1, "a place is gone", f"{place}, with {len(undone)} undone")
        for stake in undone:
            must_tell = place.kind != "session" and self._has_ended(place) and self._came_before(place, stake)
            self._note(stake, "place gone")
            ends = self._ends(place, stake, DEAD) if must_tell else {DROPPED, DEAD}
            stake.may = (stake.may - UNDONE) | ends

    def at_the_end(self, *, is_quiet: bool = False) -> None:
        """Everybody has taken all that there was. `is_quiet`: and no lease goes on, and all
        that is dead was shown."""
        open_ends = UNDONE | {DEAD} if is_quiet else UNDONE
        for place, stake in self.all_stakes():
            if (
                place.is_open
                and stake.may & UNDONE
                and stake.may <= open_ends
                and not self._may_end(place, stake)
                and (is_quiet or not stake.may_be_nobodys)
                and not self._excused(stake)
            ):
                self.blame(1, "lost", place, stake, "; it never came, whoever asked for it")
        for place, key, _ in self.unknown:
            self.fault(1, "nobody sent it", f"{key} to {place}")

    # -- looking up

    def open(self) -> list[Place]:
        return [place for place in self.places if place.is_open]

    def all_stakes(self) -> list[tuple[Place, Stake]]:
        return [(place, stake) for place in self.places for stake in place.stakes.values()]

    def stakes_of(self, key: str) -> list[tuple[Place, Stake]]:
        return [(place, place.stakes[key]) for place in self.places if key in place.stakes]
