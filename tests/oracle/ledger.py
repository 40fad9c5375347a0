"""The oracle: a ledger of each message at each place, and what it says is wrong.

It knows the documentation and nothing of the code. A *stake* is one message at one incarnation of a place.
The ledger does not guess the state of a stake: it keeps the set of states in which it may be. What a client
does moves the set. What the server shows must be in the set, and narrows it; if it is not, that is a fault.

    waiting   due and not in anybody's hands: unread, given back, or until its next try
    flight    leased, sent and not acked, or posted and not answered
    dead      a dead letter
    done      acked, or answered with 2xx
    dropped   ended by somebody who named it, or by the expiry of a session

An example: a worker leases a message {flight}, sends the ack, and the server is killed before it answers. The
set is {flight, done, waiting}. If the message is given again it was not done: {flight}.

Times are ms of the server's simulated clock. It stands still but for one call, so its bounds are known: `low`
before that call, `high` behind it. A lease and the sync of an ack take real time (`mono`, seconds).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

WAITING, FLIGHT, DEAD, DONE, DROPPED = "waiting", "flight", "dead", "done", "dropped"
UNDONE = frozenset({WAITING, FLIGHT})
ANY = frozenset({WAITING, FLIGHT, DEAD, DONE, DROPPED})
SHOWN = {
    "in_flight": UNDONE,  # also what was given back and has not been sent anew
    "waiting": frozenset({WAITING}),
    "retry": frozenset({WAITING}),
    "dead": frozenset({DEAD}),
    "done": frozenset({DONE, DROPPED}),
    "dropped": frozenset({DROPPED}),
}
"""The state of a delivery, as GET shows it, and what it means here."""
DAY = 86_400_000
KEPT_MS = 7 * DAY
"""Retention. A place that is behind for longer may have its messages buried."""
DEAD_MS = 29 * DAY
"""So long a dead letter is there at least."""
BOUND_MS = 2_000
"""So far ahead a message may count as dispatched after a start."""
SURE_S = 2.5
"""So long after it was sent, an ack without an answer of its own is on disk, also if the server is killed."""


@dataclass(slots=True)
class Message:
    id: str
    topic: str
    due: int
    at: int
    """Its place on the timeline: due, or the time at which it was accepted if that was later."""
    to: str = ""
    expires: int | None = None
    is_cancelled: bool = False


@dataclass(slots=True)
class Stake:
    message: Message
    may: frozenset[str] = frozenset({WAITING})
    tries: int = 0
    """The most deliveries that the server can have counted."""
    was_given: bool = False
    """It has been seen in somebody's hands."""
    not_before: int = 0
    """No delivery before then: a nack has named it."""
    since: float = 0.0
    """When the last step was sent that has no answer (mono); a kill may undo it for `SURE_S`."""
    lapses: float | None = None
    """When its lease is over (mono)."""
    was_finished: bool = False
    """A dead letter may stand beside it until it is read: the place was set back."""
    is_held_too: bool = False
    """Done by a late ack, while another has it in flight; that one's ack changes nothing."""
    is_reported: bool = False
    past: list[str] = field(default_factory=list)
    """What has happened, for who has to understand a fault."""


@dataclass(slots=True, eq=False)
class Place:
    """One incarnation of a session, group or endpoint. No two places of different kinds have one name."""

    kind: str
    name: str
    filter: str
    number: int
    since: int
    max_tries: int
    expiry: int | None
    """ms with nobody there; None: it stays until it is deleted."""
    is_open: bool = True
    left_at: int = 0
    stakes: dict[str, Stake] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}, incarnation {self.number}"

    def is_for(self, message: Message) -> bool:
        return message.to == self.name if self.kind == "endpoint" else fits(self.filter, message.topic)


@dataclass(frozen=True, slots=True)
class Fault:
    rule: int
    kind: str
    what: str
    step: int

    def __str__(self) -> str:
        return f"rule {self.rule}, {self.kind}: {self.what} (step {self.step})"


def fits(text: str, topic: str) -> bool:
    """Whether a topic filter matches, as MQTT says."""
    wanted, levels = text.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        w in ("+", level) for w, level in zip(wanted, levels, strict=True)
    )


class Ledger:
    def __init__(self, now: int) -> None:
        self.low = self.high = now
        self.step = 0
        self.mono = 0.0
        self.messages: dict[str, Message] = {}
        self.places: list[Place] = []
        self.faults: list[Fault] = []
        self.unknown: list[tuple[Place, str, int]] = []
        """Given before the answer to its publish had come here."""
        self.counted_away = 0
        """What the server says to have dropped undone and counted, and nobody has been charged with yet."""
        self.solo: dict[str, Message] = {}
        """By key, the message that has it: one at a time."""
        self.seen = Counter[str]()

    def fault(self, rule: int, kind: str, what: str) -> None:
        self.faults.append(Fault(rule, kind, what, self.step))

    def blame(self, rule: int, kind: str, place: Place, stake: Stake, what: str = "") -> None:
        """A fault of one stake, told once: what follows from it is no further fault."""
        if not stake.is_reported:
            may = "|".join(sorted(stake.may))
            past = ", ".join(stake.past[-8:])
            self.fault(rule, kind, f"{stake.message.id} of {place}, which is {may}{what} [{past}]")
        stake.is_reported = True
        stake.may = ANY

    # -- time

    def advance(self, to: int) -> None:
        """The clock is about to go there: what is due on the way may come now."""
        self.high = max(to, self.high)
        for message in self.messages.values():
            if message.at <= self.high:
                self._place(message)

    def arrived(self, now: int) -> None:
        if now < self.high:
            self.fault(1, "clock went back", f"it shows {now}, and has shown {self.high}")
        self.advance(now)
        self.low = self.high

    def _place(self, message: Message) -> None:
        if message.is_cancelled:
            return
        for place in self.open():
            if message.id not in place.stakes and place.is_for(message) and message.at > place.since:
                place.stakes[message.id] = Stake(message)

    def lapse(self, mono: float) -> None:
        self.mono = mono
        for place, stake in self.all_stakes():
            if stake.lapses is not None and mono >= stake.lapses:
                self._let_go(place, stake, keep=FLIGHT)

    # -- messages

    def accepted(self, message: Message) -> None:
        if message.id in self.messages:
            return
        self.seen["accepted"] += 1
        self.messages[message.id] = message
        if message.at <= self.low:
            message.at = self.low + 1  # behind what has been dispatched, and due now
            message.due = min(message.due, self.low)
            self._place(message)
        self._catch_up(message.id)

    def _catch_up(self, key: str) -> None:
        early = [one for one in self.unknown if one[1] == key]
        self.unknown = [one for one in self.unknown if one[1] != key]
        for place, _, high in early:
            self.given(place, key, high=high)

    def accepted_of_schedule(self, message: Message) -> None:
        """Found by listing. If it went out late it may be behind a place that was made after its time."""
        self.messages[message.id] = message
        for place in self.open():
            if message.due <= min(place.since, self.high) and place.is_for(message):
                place.stakes[message.id] = Stake(message, frozenset({WAITING, DROPPED}))
        self.advance(self.high)
        self._catch_up(message.id)

    def moving(self, message: Message, due: int) -> None:
        """It is about to be moved there; if that is now it may be given before the move is answered."""
        if due <= self.low:
            message.due, message.at = due, self.low + 1
            for place in self.open():
                if place.is_for(message):
                    place.stakes[message.id] = Stake(message, frozenset({WAITING, DROPPED}))

    def moved(self, message: Message, due: int) -> None:
        """200, or as GET shows it if the answer was lost."""
        message.due, message.at = due, due if due > self.low else self.low + 1
        for place in self.open():
            stake = place.stakes.get(message.id)
            if stake is not None and due > self.low:
                del place.stakes[message.id]
            elif stake is not None:
                stake.may -= {DROPPED} if WAITING in stake.may else set()
        if due <= self.low:
            self._place(message)

    def cancelled(self, message: Message) -> None:
        """204."""
        message.is_cancelled = True
        for place, stake in self.stakes_of(message.id):
            if stake.tries and not stake.is_reported:
                self.blame(4, "cancelled after it was given", place, stake)
            stake.may = frozenset({DROPPED})

    def not_cancelled(self, message: Message, left: list[tuple[str, str]] | None) -> None:
        """409: it counts as dispatched. `left`: (place, state) as the problem names them."""
        if message.due > self.high + BOUND_MS:
            self.fault(4, "409 ahead of time", f"{message.id} is due at {message.due}, and it is {self.high}")
        named = {name for name, state in left or () if SHOWN[state] & (UNDONE | {DEAD})}
        for place, stake in self.stakes_of(message.id):
            is_told_of = left is not None and place.is_open and place.kind != "session"
            if is_told_of and stake.may <= UNDONE and place.name not in named:
                self.blame(4, "409 does not name it", place, stake)

    # -- keys that are taken while something of their message is undone

    def is_taken(self, key: str) -> bool:
        """For certain."""
        message = self.solo.get(key)
        if message is None or message.is_cancelled or self._is_forgotten(message):
            return False
        return message.due > self.high or any(
            place.is_open and stake.may <= UNDONE and not self._may_end(place, stake)
            for place, stake in self.stakes_of(message.id)
            if not self._may_die(place, stake)
        )

    def is_free(self, key: str) -> bool:
        """For certain."""
        message = self.solo.get(key)
        if message is None or message.is_cancelled:
            return True
        if message.at > self.low or self._is_forgotten(message):
            return False
        return not any(
            stake.may & UNDONE
            or stake.is_held_too
            or stake.was_finished
            or stake.is_reported
            or (stake.since and self.mono - stake.since < SURE_S)
            for place, stake in self.stakes_of(message.id)
            if place.is_open
        )

    def _is_forgotten(self, message: Message) -> bool:
        """Its slice may have gone."""
        return self.high - message.at > KEPT_MS

    def key_given(self, key: str, message: Message) -> None:
        """A new message has it."""
        self.seen["keys given"] += 1
        if self.is_taken(key):
            self.fault(7, "a key is given away", f"{key} to {message.id}, from {self.solo[key].id}")
        self.solo[key] = message

    def key_kept(self, key: str, name: str, *, was_free: bool) -> None:
        """The message that is there already has it."""
        self.seen["keys kept"] += 1
        former = self.solo.get(key)
        if former is None or former.id != name:
            self.fault(7, "another has the key", f"{key}: {name}, and it was given to {former}")
        elif was_free:
            self.fault(7, "a key is kept", f"{key} by {name}, of which nothing is undone")

    # -- deliveries

    def given(self, place: Place, key: str, *, lapses: float | None = None, high: int | None = None) -> None:
        high = high or self.high
        message = self.messages.get(key)
        if message is None:
            self.unknown.append((place, key, high))
            return
        self.seen["given"] += 1
        if message.is_cancelled:
            self.fault(4, "given after a cancel", f"{key} to {place}: the cancel was answered 204")
            return
        if message.due > high:
            self.fault(1, "early", f"{key} to {place}, due at {message.due}, and it is {high}")
            return
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
        elif stake.not_before > high:
            self.blame(1, "retry early", place, stake, f"; not before {stake.not_before}, it is {high}")
        self._note(stake, "given")
        stake.tries, stake.was_given = stake.tries + 1, True
        stake.may, stake.lapses, stake.not_before = frozenset({FLIGHT}), lapses, 0
        stake.was_finished = stake.is_held_too = False

    def finished(self, stake: Stake, mono: float = 0.0, *, tries: int | None = None) -> None:
        """Acked. `mono`: when, if nothing says that it is durable. `tries`: of which delivery."""
        self.seen["finished"] += 1
        stake.is_held_too = tries is not None and tries < stake.tries
        self._becomes(stake, DONE)
        stake.since = mono

    def unsure(self, stake: Stake) -> None:
        """A step was sent and the server died before it answered."""
        self._note(stake, "unsure")
        stake.may, stake.lapses, stake.not_before = stake.may | {WAITING, DONE, DEAD}, None, 0

    def gone(self, place: Place, stake: Stake) -> None:
        """The server says to an ack that nothing is left to be done."""
        if not stake.may & {DONE, DROPPED} and place.is_open:
            self.blame(1, "an ack is gone", place, stake, ", and nobody has finished it")

    def failed(self, place: Place, stake: Stake, *, not_before: int = 0, mono: float = 0.0) -> None:
        """Nacked, or answered with an error: it comes again, or that was the last try."""
        self.seen["failed"] += 1
        self._note(stake, "failed")
        stake.lapses, stake.since = None, mono
        is_last = place.max_tries and stake.tries >= place.max_tries
        stake.may = frozenset({WAITING, DEAD} if is_last else {WAITING})
        stake.not_before = not_before

    def buried(self, stake: Stake, mono: float = 0.0) -> None:
        self._becomes(stake, DEAD)
        stake.since = mono

    def dropped(self, stake: Stake) -> None:
        self._becomes(stake, DROPPED)

    def again(self, stake: Stake, not_before: int = 0) -> None:
        """Somebody has asked for it: requeue, or the next try moved."""
        self._becomes(stake, WAITING)
        stake.tries, stake.not_before = 0, not_before

    def _becomes(self, stake: Stake, state: str) -> None:
        self._note(stake, state)
        stake.may, stake.lapses, stake.not_before, stake.since = frozenset({state}), None, 0, 0.0

    def _note(self, stake: Stake, what: str) -> None:
        stake.past.append(f"{self.step} {what}")

    def _let_go(self, place: Place, stake: Stake, *keep_too: str, keep: str = WAITING) -> None:
        if FLIGHT in stake.may:
            is_last = place.max_tries and stake.tries >= place.max_tries
            self._note(stake, "let go")
            kept = {*keep_too, keep, WAITING} | ({DEAD} if is_last else set())
            stake.may = (stake.may - {FLIGHT}) | kept
        stake.lapses = None

    def left(self, place: Place) -> None:
        """The only one there has gone: what it had in flight goes to whoever comes."""
        place.left_at = self.low
        for stake in place.stakes.values():
            self._let_go(place, stake)

    def restarted(self, mono: float, *, was_killed: bool) -> None:
        """Leases are over. After a kill the last steps that had no answer may be undone."""
        for place, stake in self.all_stakes():
            self._let_go(place, stake, *([DONE] if place.kind == "endpoint" else []))
            if was_killed and stake.since and mono - stake.since < SURE_S:
                stake.may, stake.not_before = stake.may | {WAITING}, 0
            stake.since = 0.0
        self.unknown = []
        if was_killed:
            for place in self.open():
                self.perhaps_taken(place)

    def perhaps_taken(self, place: Place) -> None:
        """Deliveries may have been begun of which nobody here has heard."""
        for stake in place.stakes.values():
            if WAITING in stake.may:
                stake.tries += 1
                if place.max_tries and stake.tries >= place.max_tries:
                    stake.may |= {DEAD}

    # -- places

    def opened(self, kind: str, name: str, text: str, *, max_tries: int, expiry: int | None) -> Place:
        number = 1 + sum((place.kind, place.name) == (kind, name) for place in self.places)
        place = Place(kind, name, text, number, self.low, max_tries, expiry, left_at=self.low)
        self.places.append(place)
        return place

    def closed(self, place: Place, undone: str) -> None:
        """Deleted. `undone`: dead or dropped, what its undone messages become."""
        place.is_open = False
        for stake in place.stakes.values():
            if stake.may & UNDONE:
                self._note(stake, f"place closed, {undone}")
                stake.may = (stake.may - UNDONE) | {undone}
                stake.lapses = None

    def set_back(self, place: Place, to: int) -> None:
        """:replay. What was before its time is read again if it is asked for, so it may come."""
        self.advance(self.high)
        for message in self.messages.values():
            if message.is_cancelled or not place.is_for(message) or message.at > self.high + 1:
                continue
            stake = place.stakes.get(message.id)
            if stake is None:
                place.stakes[message.id] = Stake(message, frozenset({WAITING, DROPPED}))
            elif message.at < to:
                if stake.tries:  # it may be read again where its retry was
                    self._note(stake, "perhaps set back")
                    stake.may |= {WAITING}
            else:
                self._note(stake, "set back")
                stake.was_finished = DEAD in stake.may or FLIGHT in stake.may or stake.not_before > 0
                is_sure = message.at > to and stake.may <= {DONE}
                stake.may = frozenset({WAITING}) if is_sure else stake.may | {WAITING}
                stake.tries, stake.not_before = 0, 0

    def skipped(self, place: Place, undone: str, *, is_sure: bool) -> None:
        """:skip to now. What waits is left behind; what is in flight or has a later try may stay."""
        for stake in place.stakes.values():
            if stake.may & UNDONE:
                stays = UNDONE if FLIGHT in stake.may or stake.tries or not is_sure else frozenset()
                stake.may = (stake.may - (UNDONE - stays)) | {undone}
                stake.lapses = None

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
                self._strange(f"{state} at another incarnation", place, self.messages[key])
            return
        self._narrow(place, stake, SHOWN[state], f"; the server says {state}")

    def _strange(self, kind: str, place: Place, message: Message) -> None:
        """The place has nothing to do with it; told once."""
        stake = place.stakes.setdefault(message.id, Stake(message, ANY))
        self.blame(
            3, kind, place, stake, f"; {message.topic} at {message.at}, the place is from {place.since}"
        )

    def not_shown(self, place: Place, key: str) -> None:
        stake = place.stakes[key]
        if stake.may <= UNDONE and not self._may_end(place, stake) and not self._excused():
            self.blame(1, "lost", place, stake, "; GET does not name the place")

    def not_found(self, message: Message) -> None:
        """GET answers 404."""
        for place, stake in self.stakes_of(message.id):
            if place.is_open and stake.may <= UNDONE and not self._excused():
                self.blame(1, "unknown and undone", place, stake, "; GET answers 404")
        if message.at > self.low and not message.is_cancelled:
            self.fault(1, "lost before its time", f"{message.id} is due at {message.due}; GET answers 404")

    def _narrow(self, place: Place, stake: Stake, allowed: frozenset[str], why: str) -> None:
        may = stake.may & allowed
        if not may and allowed == {DEAD} and stake.may & UNDONE and self._may_die(place, stake):
            may = frozenset({DEAD})
        if not may and DONE in allowed and stake.may & UNDONE and self._may_end(place, stake):
            may = frozenset({DROPPED})
        if may:
            if may != stake.may:
                self._note(stake, f"shown as {'|'.join(sorted(may))}")
            stake.may = may
        elif stake.since and self.mono - stake.since < SURE_S:
            pass  # the server may not have noted it yet: a later look will show
        elif DONE in allowed:
            how = "expired without a word" if self._has_expired(stake.message) else "done by nobody"
            self.blame(1, how, place, stake, why)
        elif stake.may & UNDONE:
            self.blame(1, "dead for no cause", place, stake, why)
        else:
            self.blame(2, "not finished any more", place, stake, why)

    def _may_die(self, place: Place, stake: Stake) -> bool:
        """Whether it may be a dead letter though no client has asked for that."""
        is_old = self.high - stake.message.at > KEPT_MS
        is_tried = 0 < place.max_tries <= stake.tries
        return is_old or is_tried or self._has_expired(stake.message) or self._has_ended(place)

    def _may_end(self, place: Place, stake: Stake) -> bool:
        """It has expired. A group or an endpoint that has tried it in vain must tell of it all the same."""
        return self._has_expired(stake.message) and (not stake.was_given or place.kind == "session")

    def _has_expired(self, message: Message) -> bool:
        return message.expires is not None and message.due + message.expires <= self.high

    def _has_ended(self, place: Place) -> bool:
        return place.expiry is not None and self.high - place.left_at >= place.expiry

    def _excused(self) -> bool:
        if not self.counted_away:
            return False
        self.counted_away -= 1
        return True

    def dead_letters(self, listed: Iterable[tuple[str, str, str]]) -> None:
        """All of /v1/dead: (name of the place, key, reason)."""
        found = Counter[tuple[str, str]]()
        for name, key, reason in listed:
            found[name, key] += 1
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
            is_kept = self.high - stake.message.at < DEAD_MS
            is_there = (place.name, stake.message.id) in found
            if is_kept and stake.may == {DEAD} and not is_there and not self._excused():
                kind = "a dead letter is gone" if place.is_open else "ended without a word"
                self.blame(1, kind, place, stake)

    def retries(self, listed: Iterable[tuple[str, str]], dead: Iterable[tuple[str, str]]) -> None:
        """All of /v1/retries: (name of the place, key)."""
        found = Counter(listed)
        for name, key in found:
            mine = [
                (p, p.stakes[key]) for p in self.places if p.name == name and p.is_open and key in p.stakes
            ]
            if not mine:
                self.fault(3, "a retry of a former place", f"{key} of {name}")
            elif found[name, key] > 1:
                self.blame(2, "two retries", *mine[-1])
            else:
                self._narrow(*mine[-1], frozenset({WAITING}), "; it is a retry")
        for name, key in set(found) & set(dead):
            self.fault(2, "a retry and a dead letter", f"{key} of {name}")

    def figures(self, place: Place, undone: int, shown: object, *, without_retries: bool) -> None:
        """How much is undone there, as GET of the place says."""
        sure = [s for s in place.stakes.values() if s.may <= UNDONE and not self._may_end(place, s)]
        least = sum(not (without_retries and stake.tries) for stake in sure)
        most = sum(bool(stake.may & UNDONE) or stake.is_held_too for stake in place.stakes.values())
        if not least <= undone <= most and not any(s.is_reported for s in place.stakes.values()):
            self.fault(6, "miscounted", f"{place} has {least} to {most} undone, and shows {shown}")

    def missing(self, place: Place) -> None:
        """The server does not know an open place any more."""
        place.is_open = False
        undone = [stake for stake in place.stakes.values() if stake.may & UNDONE]
        if not self._has_ended(place):
            self.fault(1, "a place is gone", f"{place}, with {len(undone)} undone")
        for stake in undone:
            must_tell = place.kind != "session" and self._has_ended(place)
            self._note(stake, "place gone")
            stake.may = (stake.may - UNDONE) | {DEAD if must_tell else DROPPED}

    def at_the_end(self) -> None:
        """Everybody has taken all that there was."""
        for place, stake in self.all_stakes():
            if (
                place.is_open
                and stake.may <= UNDONE
                and not self._may_end(place, stake)
                and not self._excused()
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
