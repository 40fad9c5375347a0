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

Here is what becomes due, is given and lapses. What else happens is told to a part:

    known.py      what the parts share: messages, places, faults; and what may have ended by itself (`fates`)
    turns.py      the turns of ordering keys
    settling.py   what becomes of what was given
    leases.py     calls that name leases
    losses.py     connections that end, stops, kills
    lives.py      places that begin, are set back, skip and end
    looks.py      what the server shows
    ends.py       what is kept of what is done

The clock is that of the messages (messages.py). When it is stepped, ahead or back:

    retries    None is given before the clock has shown its time since the nack.
    leases     They, and the expiry of places, are counted in running time (`ran`), which walks and real time
               move, and steps do not.

A lease and the sync of an ack take real time (`mono`, seconds).
"""

from collections import Counter
from collections.abc import Iterable

from .ends import Ends
from .known import Fates, Known
from .leases import Leases
from .lives import Lives
from .looks import Looks
from .losses import Losses
from .messages import Clock, Message, Messages
from .settling import Settling
from .stakes import Place, Stake
from .turns import Turns
from .words import (
    DEAD,
    DONE,
    DROPPED,
    FLIGHT,
    NEAR_MS,
    SHOWN,
    SURE_S,
    UNDONE,
    WAITING,
    WRITTEN_S,
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
        written: float | None = WRITTEN_S,
    ) -> None:
        """`grace`: seconds after which a lease that is over has ended for certain, if that is known.

        `sure`: so long after it was sent what has no answer is on disk. `soon`: what was on its way when an
        ack was sent is here then. `near`: by which a lease may end early in running time. `written`: so long
        after it was given a lease over MQTT outlasts a kill. None: what members have, and did not lease, ends
        with the server.
        """
        self.known = Known(now, grace=grace, sure=sure, soon=soon, near=near, written=written)
        self.fates = Fates(self.known)
        self.turns = Turns(self.known, self.fates)
        self.settling = Settling(self.known, self.fates)
        self.leases = Leases(self.known, self.settling)
        self.losses = Losses(self.known, self.turns, self.settling)
        self.lives = Lives(self.known, self.fates)
        self.looks = Looks(self.known, self.fates)
        self.ends = Ends(self.known, self.fates)
        self.down_until = 0.0
        """When the server was back after it was down (mono). A lease that was over by then goes out again at
        once, without a back-off: it was its holder who could not answer."""

    @property
    def book(self) -> Book:
        return self.known.book

    @property
    def messages(self) -> Messages:
        return self.known.messages

    @property
    def places(self) -> list[Place]:
        return self.known.places

    @property
    def clock(self) -> Clock:
        return self.known.clock

    @property
    def faults(self) -> list[Fault]:
        return self.book.faults

    @property
    def seen(self) -> Counter[str]:
        return self.known.seen

    def fault(self, rule: int, kind: str, what: str) -> None:
        self.known.fault(rule, kind, what)

    def walk(self, by: int) -> None:
        """The same for a clock that runs."""
        self.known.advance(self.clock.high + by)
        self.clock.walked += by

    def arrived(self, now: int, among: Iterable[Message] | None = None) -> None:
        """`among`: all that is not out yet."""
        if now < self.clock.shown_by_epoch[-1]:
            self.fault(1, "clock went back", f"it shows {now}, and has shown {self.clock.high}")
        self.known.advance(now, among)
        self.clock.low = self.clock.high

    def set_clock_back(self, now: int) -> None:
        """Everything that has been shown stays due; what is accepted from now on waits for the clock."""
        self.clock.set_back(now)

    def lapse(self, mono: float, among: Iterable[tuple[Place, Stake]] | None = None) -> None:
        """`among`: all that somebody has, or has acked of late."""
        self.clock.mono = mono
        for place, stake in self.known.all_stakes() if among is None else among:
            if stake.lapses is not None and (mono >= stake.lapses or self.clock.ran >= stake.until):
                stake.ended = stake.lapses
                # Whether it was the last try is decided in the server's own time.
                keep = {FLIGHT} if self.known.grace is not None else UNDONE
                not_before = 0 if stake.lapses <= self.down_until else None
                self.settling.fails(
                    place,
                    stake,
                    at=stake.wall_until,
                    not_before=not_before,
                    keep=frozenset(keep),
                    outcome="lapsed",
                )
            if (
                stake.ended is not None
                and self.known.grace is not None
                and mono >= stake.ended + self.known.grace + stake.late
            ):
                stake.may, stake.ended = (stake.may - {FLIGHT}) or stake.may, None
            if stake.read_again > 0 and mono - stake.read_again >= self.known.sure:
                stake.former, stake.read_again = frozenset(), 0.0
            if stake.ack_read and mono >= stake.ack_read + self.known.soon:
                self.settling.finished(stake, stake.ack_read)

    def accepted(self, message: Message) -> None:
        if self.messages.accepted(message):
            self.known.offer(message)
            self._catch_up(message.id)

    def _catch_up(self, key: str) -> None:
        early = [one for one in self.known.unknown if one[1] == key]
        self.known.unknown = [one for one in self.known.unknown if one[1] != key]
        for place, _, high in early:
            self.given(place, key, high=high)

    def accepted_of_schedule(self, message: Message, schedule: str) -> None:
        """Found by listing. If it went out late it may be behind a place that was made after its time."""
        self.messages.accepted_of_schedule(message, schedule)
        self.known.offer(message)
        for place in self.known.open() if message.is_now else ():
            if message.id in place.stakes and (message.is_late or message.due <= place.since):
                place.stakes[message.id].may = frozenset({WAITING, DROPPED})
        self._catch_up(message.id)

    def too_late(self, message: Message) -> None:
        """It came late, and says that nobody gets it then."""
        message.is_late = True
        for place, stake in self.known.stakes_of(message.id):
            if stake.number and not stake.is_reported:
                self.known.blame(7, "late and given", place, stake)
            stake.may |= {DROPPED}

    def moving(self, message: Message, due: int) -> None:
        """It is about to be moved there; if that is now it may be given before the move is answered."""
        if due <= self.clock.low:
            self.messages.moved(message, due)
            self.known.offer(message)
            for _, stake in self.known.stakes_of(message.id):
                stake.may = frozenset({WAITING, DROPPED})

    def moved(self, message: Message, due: int, row: str = "") -> None:
        """200, or as GET shows it if the answer was lost."""
        if due > self.clock.low:
            for place in self.known.open():
                place.stakes.pop(message.id, None)
        for _, stake in self.known.stakes_of(message.id):
            stake.may -= {DROPPED} if WAITING in stake.may else set()
        self.messages.moved(message, due, row)
        self.known.offer(message)

    def cancelled(self, message: Message) -> None:
        """204."""
        self.messages.cancelled(message)
        for place, stake in self.known.stakes_of(message.id):
            if stake.number and not stake.is_reported:
                self.known.blame(4, "cancelled after it was given", place, stake)
            stake.may = frozenset({DROPPED})

    def not_cancelled(self, message: Message, left: list[tuple[str, str]] | None) -> None:
        """409: it counts as dispatched. `left`: (place, state) as the problem names them."""
        self.messages.not_cancelled(message)
        named = {name for name, state in left or () if SHOWN[state] & (UNDONE | {DEAD})}
        for name, state in left or ():
            if name not in named:
                self.fault(4, "409 names what is over", f"{message.id} of {name}: {state}")
            for place in self.known.open():
                if place.name == name and message.id in place.stakes:
                    self.looks.shown(place, message.id, state)
        for place, stake in self.known.stakes_of(message.id):
            is_told_of = left is not None and place.is_open and place.kind != "session"
            is_sure = stake.may <= UNDONE and not self.fates.may_end(place, stake)
            if is_told_of and is_sure and place.name not in named:
                self.known.blame(4, "409 does not name it", place, stake)

    def is_taken(self, key: str) -> bool:
        """For certain."""
        message = self.messages.solo.get(key)
        if message is None or message.is_cancelled or self.messages.is_old(message):
            return False
        return self.messages.is_ahead(message) or any(
            place.is_open and stake.may <= UNDONE and not self.fates.may_end(place, stake)
            for place, stake in self.known.stakes_of(message.id)
            if not self.fates.may_die(place, stake)
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
            or (stake.since and self.clock.mono - stake.since < self.known.sure)
            for place, stake in self.known.stakes_of(message.id)
            if place.is_open
        )

    def key_given(self, key: str, message: Message) -> None:
        """A new message has it."""
        self.messages.key_given(key, message, was_taken=self.is_taken(key))

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
        is_again: bool | None = None,
        due: int = 0,
    ) -> None:
        """`attempt`: which one the server says that it is. `by`: who got it. `is_leased`: what ends at
        `lapses` is its own, whatever becomes of its connection. `is_again`: whether it says that somebody may
        have had it before, by DUP or `redelivered`, if that is known. `due`: as the delivery says."""
        high = high or self.clock.top
        message = self.messages.by_id.get(key)
        if message is None:
            self.known.unknown.append((place, key, high))
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
            self.known.strange("given to another incarnation", place, message)
            return
        if WAITING not in stake.may:
            first = next(iter(stake.may)) if len(stake.may) == 1 else "finished"
            rule, kind = {
                DONE: (5, "given again after its ack"),
                FLIGHT: (2, "given twice at a time"),
                DEAD: (2, "given though it is dead"),
                DROPPED: (4, "given after it was dropped"),
            }.get(first, (5, "given after it was finished"))
            self.known.blame(rule, kind, place, stake)
        elif stake.not_before > high or not self.clock.has_shown(stake.not_before, stake.epoch):
            self.known.blame(1, "retry early", place, stake, f"; not before {stake.not_before}, it is {high}")
        if stake.may_run and is_again is not None:
            self.seen["given twice by a kill"] += 1
            if not is_again and (attempt or 1) == 1:
                self.known.blame(6, "a second copy says nothing", place, stake)
        stake.may_run = False
        self.turns.in_turn(place, stake)
        self.known.note(stake, f"given {by}")
        stake.tries.up()
        stake.total.up()
        stake.was_given, stake.is_read, stake.number, stake.by = True, True, stake.number + 1, by
        stake.is_head, stake.is_returned, stake.is_released = True, False, False
        stake.may = frozenset({FLIGHT, DONE} if self.turns.was_on_its_way(stake) else {FLIGHT})
        stake.not_before, stake.ended, stake.given_at, stake.former_lapses = 0, None, self.clock.mono, ()
        self.settling.leased(stake, lapses, is_leased=is_leased)
        stake.is_held_too = stake.stays = stake.is_exact = stake.may_be_nobodys = False
        stake.reason = ""
        self.ends.begins(stake, attempt)
        if attempt is not None:
            self._counted(place, stake, attempt)
        if stake.was_finished:
            stake.read_again = self.clock.mono or 1.0

    def _counted(self, place: Place, stake: Stake, attempt: int) -> None:
        """The server says so many deliveries; what it has counted since it was requeued follows."""
        total, tries = stake.total, stake.tries
        if attempt > total.most:
            self.known.blame(6, "counted too often", place, stake, f"; attempt {attempt} of {total.most}")
        elif attempt < total.least:
            self.known.blame(6, "counted too seldom", place, stake, f"; attempt {attempt} of {total.least}")
        elif total.most - total.least == tries.most - tries.least:
            tries.least = tries.most = tries.least + attempt - total.least
        elif attempt == 1:
            tries.least = tries.most = 1
        total.least = total.most = attempt

    def at_the_end(self, *, is_quiet: bool = False) -> None:
        """Everybody has taken all that there was. `is_quiet`: and no lease goes on, and all
        that is dead was shown."""
        open_ends = UNDONE | {DEAD} if is_quiet else UNDONE
        for place, stake in self.known.all_stakes():
            if (
                place.is_open
                and stake.may & UNDONE
                and stake.may <= open_ends
                and not self.fates.may_end(place, stake)
                and (is_quiet or not (stake.may_be_nobodys or (stake.is_leased and FLIGHT in stake.may)))
                and not self.fates.excused(stake)
            ):
                self.known.blame(1, "lost", place, stake, "; it never came, whoever asked for it")
        for place, key, _ in self.known.unknown:
            self.fault(1, "nobody sent it", f"{key} to {place}")
