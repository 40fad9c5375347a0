"""What all parts of the account of deliveries share, and what may have ended by itself meanwhile.

`Known` holds the messages, the places and the book of faults. `Fates` answers of a stake whether it may be
dead or dropped though nobody has said so: it has expired, was tried often enough, is older than the
retention, or its place has ended.
"""

from collections import Counter
from collections.abc import Iterable

from .messages import Clock, Message, Messages
from .stakes import Place, Stake
from .words import ANY, DEAD, DROPPED, SLACK_MS, UNDONE, Book


class Known:
    def __init__(
        self, now: int, *, grace: float | None, sure: float, soon: float, near: int, written: float | None
    ) -> None:
        """As for `Deliveries`."""
        self.grace, self.sure, self.soon, self.near, self.written = grace, sure, soon, near, written
        self.book = Book()
        self.messages = Messages(now, self.book)
        self.places: list[Place] = []
        self.unknown: list[tuple[Place, str, int]] = []
        """Given before the answer to its publish had come here."""

    @property
    def clock(self) -> Clock:
        return self.messages.clock

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

    def advance(self, to: int, among: Iterable[Message] | None = None) -> None:
        """The clock is about to go there, or is set ahead: what is due on the way may come now."""
        self.clock.advance(to)
        for message in self.messages.by_id.values() if among is None else among:
            self.offer(message)

    def offer(self, message: Message) -> None:
        """Whoever is to get it has it undone, if it is out."""
        if not self.messages.goes_out(message):
            return
        for place in self.open():
            if message.id not in place.stakes and message.id not in place.behind and place.is_for(message):
                place.stakes[message.id] = Stake(message)

    def note(self, stake: Stake, what: str) -> None:
        stake.past.append(f"{self.book.step} {what}")

    def strange(self, kind: str, place: Place, message: Message) -> None:
        """The place has nothing to do with it; told once."""
        stake = place.stakes.setdefault(message.id, Stake(message, ANY))
        self.blame(
            3, kind, place, stake, f"; {message.topic} at {message.at}, the place is from {place.since}"
        )

    def open(self) -> list[Place]:
        return [place for place in self.places if place.is_open]

    def all_stakes(self) -> list[tuple[Place, Stake]]:
        return [(place, stake) for place in self.places for stake in place.stakes.values()]

    def stakes_of(self, key: str) -> list[tuple[Place, Stake]]:
        return [(place, place.stakes[key]) for place in self.places if key in place.stakes]


class Fates:
    def __init__(self, known: Known) -> None:
        self._known = known
        self.counted_away = 0
        """What the server says to have dropped undone and counted, and nobody has been charged with yet."""

    def ends(self, place: Place, stake: Stake, undone: str) -> frozenset[str]:
        """What an undone message is now, if it had not ended by itself before that."""
        before = {DROPPED} if self.may_end(place, stake) else set()
        return frozenset({undone, *before, *({DEAD} if self.may_die(place, stake) else ())})

    def is_surely_undone(self, place: Place, stake: Stake) -> bool:
        return stake.may <= UNDONE and not self.may_die(place, stake) and not stake.is_reported

    def may_die(self, place: Place, stake: Stake) -> bool:
        """Whether it may be a dead letter though no client has asked for that."""
        is_old = self._known.messages.is_old(stake.message)
        is_tried = 0 < place.max_tries <= stake.tries.most
        return is_old or is_tried or self.has_expired(stake) or self.has_ended(place)

    def may_end(self, place: Place, stake: Stake) -> bool:
        """It has expired. A group or an endpoint that has tried it in vain must tell of it all the same."""
        return self.has_expired(stake) and (not stake.was_given or place.kind == "session")

    def expires(self, stake: Stake) -> int | None:
        expires = stake.message.expires
        return None if expires is None else max(stake.message.due, stake.requeued_at) + expires

    def has_expired(self, stake: Stake, by: int = 0) -> bool:
        """`by`: whether it has by then."""
        at = self.expires(stake)
        return at is not None and (at <= by or self._known.clock.has_shown(at, stake.message.epoch))

    def has_ended(self, place: Place) -> bool:
        return place.expiry is not None and self._known.clock.ran - place.left_at >= place.expiry - SLACK_MS

    def came_before(self, place: Place, stake: Stake) -> bool:
        """Whether a message was out when a place that has expired was there, for certain."""
        end = place.left_at + (place.expiry or 0) - SLACK_MS
        return stake.message.out_at is not None and stake.message.out_at < end

    def may_be_gone(self, place: Place) -> bool:
        """It may have expired, and nobody has looked since."""
        return not place.is_open or self.has_ended(place)

    def excused(self, stake: Stake) -> bool:
        """Whether the server has counted it as dropped; it may, once each."""
        if not self.counted_away:
            return False
        self.counted_away -= 1
        self._known.note(stake, "counted away")
        stake.may |= {DROPPED}
        return True
