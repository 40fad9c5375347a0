"""The life of a place: it begins, is set back, skips, and ends.

When a place is set back, a message that is in flight stays there and comes once. All else is to be read
again, and until it is, what it was before (`former`: a retry, a dead letter) stands beside it.
"""

from .known import Fates, Known
from .stakes import Place, Stake
from .words import DEAD, DROPPED, FLIGHT, UNDONE, UNTOLD, WAITING, fits


class Lives:
    def __init__(self, known: Known, fates: Fates) -> None:
        self._known = known
        self._fates = fates

    def opened(self, kind: str, name: str, text: str, *, max_tries: int, expiry: int | None = None) -> Place:
        number = 1 + sum((place.kind, place.name) == (kind, name) for place in self._known.places)
        messages, clock = self._known.messages, self._known.clock
        out = frozenset(one.id for one in messages.by_id.values() if messages.is_out(one))
        place = Place(kind, name, text, number, clock.top, max_tries, expiry, left_at=clock.ran, behind=out)
        self._known.places.append(place)
        return place

    def closed(self, place: Place, undone: str) -> None:
        """Deleted. `undone`: dead or dropped, what its undone messages become."""
        place.is_open = False
        for stake in place.stakes.values():
            if stake.since and self._known.clock.mono - stake.since < self._known.sure:
                stake.may |= {undone}  # the server may not have noted it yet
            stake.failures.append((stake.by, UNTOLD))
            if stake.may & UNDONE:
                self._known.note(stake, f"place closed, {undone}")
                is_sure = stake.may <= UNDONE and not self._fates.may_die(place, stake)
                stake.reason = f"{place.kind} deleted" if is_sure and undone == DEAD else ""
                stake.may = (stake.may - UNDONE) | self._fates.ends(place, stake, undone)
                stake.lapses = None

    def subscribed(self, place: Place, text: str, replay_from: int | None = None) -> None:
        """A session has a further filter, which begins now or there. Only what this one matches is read
        again from there: what others match was read, or is still to be."""
        self._known.advance(self._known.clock.high)
        messages = self._known.messages
        out = {one.id for one in messages.by_id.values() if messages.is_out(one)}
        place.behind |= out - place.stakes.keys()
        place.others.append(text)
        if replay_from is not None:
            self.set_back(place, replay_from, is_sure=True, text=text)

    def set_back(self, place: Place, to: int, *, is_sure: bool = False, text: str = "") -> None:
        """:replay. What is in flight stays there and comes once; all else is read again, and its retry or
        dead letter ends then. What was before its time is read again if it is asked for, so it may come.

        `is_sure`: the very time is known. `text`: what this filter does not match stays.
        """
        self._known.advance(self._known.clock.high)
        for message in self._known.messages.by_id.values():
            if message.is_cancelled or not place.is_for(message) or not self._known.messages.is_out(message):
                continue
            if text and not fits(text, message.topic):
                continue
            stake = place.stakes.get(message.id)
            if is_sure and max(message.at, message.latest) < to:
                continue
            if stake is None:
                place.stakes[message.id] = Stake(
                    message, frozenset({WAITING} if text else {WAITING, DROPPED})
                )
            elif message.at < to and message.latest < to:
                if stake.tries.most:  # it may be read again where its retry was
                    self._known.note(stake, "perhaps set back")
                    stake.may |= {WAITING}
            else:
                self._known.note(stake, "set back")
                self._set_back(stake, is_sure=message.at > to)

    def _set_back(self, stake: Stake, *, is_sure: bool) -> None:
        if FLIGHT in stake.may or stake.is_returned:
            stake.is_in_line = False
        else:
            stake.passed = ""
        if FLIGHT not in stake.may:
            stake.enders = [one._replace(is_former=True) for one in stake.enders]
        stake.may_run = False  # who asks for it again has it from the beginning
        if stake.may <= {FLIGHT} or stake.was_finished:
            return
        if stake.is_returned:  # in flight, and in nobody's hands
            stake.may, stake.is_exact, stake.not_before = stake.may | {WAITING}, False, 0
            stake.stays, stake.tries.least, stake.total.least = False, 0, 0
            return
        stake.passed = ""  # its key begins anew too
        was, is_retry = stake.may - {FLIGHT}, stake.is_read
        stake.former = was & {DEAD} | (was & {WAITING} if is_retry else frozenset())
        stake.former_due, stake.read_again = stake.not_before, 0.0
        is_sure = is_sure and stake.message.expires is None and not stake.requeued_at
        is_sure = is_sure and not self._known.messages.is_old(stake.message)
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
            self._known.note(stake, f"skipped, {undone}")
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
        stake.may = (stake.may & {FLIGHT}) | self._fates.ends(place, stake, undone)
        stake.reason = "skipped" if stake.may == {DEAD} and not self._fates.may_die(place, stake) else ""
        stake.former = frozenset()

    def missing(self, place: Place) -> None:
        """The server does not know an open place any more."""
        place.is_open = False
        undone = [stake for stake in place.stakes.values() if stake.may & UNDONE]
        if not self._fates.has_ended(place):
            self._known.fault(1, "a place is gone", f"{place}, with {len(undone)} undone")
        for stake in undone:
            must_tell = (
                place.kind != "session"
                and self._fates.has_ended(place)
                and self._fates.came_before(place, stake)
            )
            self._known.note(stake, "place gone")
            ends = self._fates.ends(place, stake, DEAD) if must_tell else {DROPPED, DEAD}
            stake.may = (stake.may - UNDONE) | ends
