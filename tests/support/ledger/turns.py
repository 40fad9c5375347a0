"""Keys in turn: which message of an ordering key may be given, and which one is owed.

Of a key with `order` the next message comes when all before it are done or dead, none while one is out, and
none while somebody or a dead letter holds the key. What goes first is what was given (`is_head`), then the
order of the timeline. What nobody demands an order of is not in line: it was requeued, or was in flight when
its place was set back. After a restart what was out goes out again whatever holds its key.
"""

from collections.abc import Iterable

from .known import Fates, Known
from .stakes import Place, Stake
from .words import DEAD, FLIGHT, UNDONE, WAITING


class Turns:
    def __init__(self, known: Known, fates: Fates) -> None:
        self._known = known
        self._fates = fates

    def in_turn(self, place: Place, stake: Stake) -> None:
        """Whether its key lets it go."""
        key = stake.message.key
        is_bound = key and (place.most or place.is_ordered)
        if not is_bound or stake.is_reported or self.was_on_its_way(stake):
            return
        mates = [one for one in self.mates(place, stake) if not one.is_reported]
        out = [one for one in mates if one.may == {FLIGHT}]
        if place.most and len(out) >= place.most:
            self._known.blame(8, "too many of a key out", place, stake, f"; {self._names(out)} are out")
        elif stake.is_returned:
            return
        elif key in place.held:
            self._known.blame(8, "given of a key that is held", place, stake, "; by hand")
        elif letters := [one for one in mates if self.holds(place, one)]:
            self._known.blame(8, "given of a key that is held", place, stake, f"; by {self._names(letters)}")
        elif before := [one for one in mates if self.goes_first(place, one, stake)]:
            self._known.blame(8, "given out of turn", place, stake, f"; before {self._names(before)}")
        elif stake.passed:
            self._known.blame(8, "given out of turn", place, stake, f";{stake.passed} went by")
        elif place.is_ordered and not stake.number and any(self._has_passed(one, stake) for one in mates):
            self._known.blame(8, "given out of turn", place, stake, "; what is behind it has begun")
        for one in mates:
            is_before = self._is_before(place, one, stake)
            if is_before and one.may & UNDONE and not self.was_on_its_way(one):
                one.passed = f"{one.passed} {stake.message.id}"

    def was_on_its_way(self, stake: Stake) -> bool:
        """Whether it may have been sent before an ack that was sent a moment ago was read."""
        return self._known.clock.mono < stake.acked_at + self._known.soon

    @staticmethod
    def _has_passed(one: Stake, stake: Stake) -> bool:
        """Whether what is behind it has begun, as far as positions are known."""
        place, behind = stake.message.place, one.message.place
        is_known = place is not None and behind is not None and one.is_in_line and stake.is_in_line
        return is_known and one.is_head and one.number > 0 and place < behind  # type: ignore[operator]

    @staticmethod
    def mates(place: Place, stake: Stake) -> list[Stake]:
        """The others of its key."""
        key = stake.message.key
        return [one for one in place.stakes.values() if one.message.key == key and one is not stake]

    def goes_first(self, place: Place, one: Stake, other: Stake) -> bool:
        """Whether the key's order says so, for certain."""
        return self._is_before(place, one, other) and self._fates.is_surely_undone(place, one)

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
                is_due = stake.not_before <= self._known.clock.low and self._known.messages.is_out(
                    stake.message
                )
                if stake.may == waiting and is_due and self._fates.is_surely_undone(place, stake):
                    found += [stake] if self._is_next(place, stake, line) else []
        return found

    @staticmethod
    def _has_room(place: Place, key: str, line: list[Stake]) -> bool:
        """Whether one more of that key may go, for certain."""
        is_held = key in place.held or (place.on_dead_hold and any(DEAD in one.may for one in line))
        is_held = is_held or any(one.may_lead and WAITING in one.may for one in line)
        is_full = place.most and sum(FLIGHT in one.may for one in line) >= place.most
        return not key or not (is_held or is_full)

    def _is_next(self, place: Place, stake: Stake, line: list[Stake]) -> bool:
        """Whether nothing of its key goes before it, for certain."""
        if not stake.message.key or not place.is_ordered:
            return True
        rank = self._rank(stake)
        return stake.is_in_line and not any(one.may & UNDONE and self._rank(one) < rank for one in line)
