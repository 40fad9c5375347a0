"""What the server shows: a message and its deliveries, lists of retries and dead letters, figures.

Each must be in the set of what a stake may be, and narrows it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from .known import Fates, Known
from .messages import Message
from .stakes import Place, Stake
from .words import (
    DEAD,
    DEAD_MS,
    DONE,
    DROPPED,
    FLIGHT,
    IN_TURNS,
    NEAR_MS,
    SHOWN,
    UNDONE,
    WAITING,
)


class Looks:
    def __init__(self, known: Known, fates: Fates) -> None:
        self._known = known
        self._fates = fates

    def shown(self, place: Place, key: str, state: str) -> None:
        """GET of a message names the place with this state."""
        stake = place.stakes.get(key)
        others = (s for p, s in self._known.stakes_of(key) if p.name == place.name and p is not place)
        if (
            state == "dead"
            and (stake is None or DEAD not in stake.may)
            and any(DEAD in s.may for s in others)
        ):
            return  # dead letters of a deleted place are kept
        if stake is None:
            if SHOWN[state] & (UNDONE | {DEAD}):
                self._known.strange(f"{state} at another incarnation", place, self._known.messages.by_id[key])
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
                self._known.strange(
                    f"{'|'.join(where)} at another incarnation", place, self._known.messages.by_id[key]
                )
            return
        if stake.read_again < 0:
            stake.former = stake.former if "unread" in where else frozenset()
            stake.read_again = 0.0
        is_unread = "unread" in where
        if stake.was_finished and FLIGHT in stake.may and "in flight" in where and not is_unread:
            stake.former = frozenset()  # it was in flight when the place was set back: it stays there
        if stake.was_finished and not is_unread:
            self._known.blame(1, "lost", place, stake, f"; it is to be read again, and is {where}")
        elif stake.former:
            beside = {"dead": DEAD, "waits": WAITING}
            left = [one for one in where if beside.get(one) not in stake.former]
            if where and not left:
                return  # its end is not on disk yet
            where = left
        if len(where) > 1:
            self._known.blame(2, "in two places", place, stake, f"; {where}")
            return
        state = where[0] if where else "over"
        is_held = FLIGHT in stake.may and stake.ended is None and not stake.may_be_nobodys
        flying = {FLIGHT} if is_held else UNDONE
        allowed = {"unread": {WAITING}, "in flight": flying, "waits": {WAITING}, "dead": {DEAD}}
        self._narrow(place, stake, frozenset(allowed.get(state, {DONE, DROPPED})), f"; {state}", sure_s=0)
        if state in ("unread", "waits"):
            stake.is_read, stake.is_returned = state == "waits" or stake.was_finished, False
        stake.stays = state in ("waits", "in flight")
        stake.is_returned |= state == "in flight" and (FLIGHT not in stake.may or stake.may_be_nobodys)
        if state == "unread" and stake.not_before > self._known.clock.high:
            self._known.blame(1, "retry early", place, stake, f"; unread, and not before {stake.not_before}")
        if state == "dead" and attempts is not None and not stake.total.least <= attempts <= stake.total.most:
            what = f"; {attempts}, not {stake.total.least} to {stake.total.most}"
            self._known.blame(6, "counted wrongly", place, stake, what)

    def not_shown(self, place: Place, key: str) -> None:
        stake = place.stakes[key]
        if stake.may <= UNDONE and not self._fates.may_end(place, stake) and not self._fates.excused(stake):
            self._known.blame(1, "lost", place, stake, "; GET does not name the place")

    def not_found(self, message: Message) -> None:
        """GET answers 404."""
        for place, stake in self._known.stakes_of(message.id):
            is_lost = place.is_open and stake.may <= UNDONE and not self._fates.may_end(place, stake)
            if is_lost and not self._fates.excused(stake):
                self._known.blame(1, "unknown and undone", place, stake, "; GET answers 404")
        self._known.messages.not_found(message)

    def _narrow(
        self, place: Place, stake: Stake, allowed: frozenset[str], why: str, *, sure_s: float | None = None
    ) -> None:
        """`sure_s`: so long after it was sent, a step may not have been noted yet."""
        may = stake.may & allowed
        if not may and allowed == {DEAD} and stake.may & UNDONE and self._fates.may_die(place, stake):
            may = frozenset({DEAD})
        if not may and DONE in allowed and stake.may & UNDONE and self._fates.may_end(place, stake):
            may = frozenset({DROPPED})
        if may:
            if may != stake.may:
                self._known.note(stake, f"shown as {'|'.join(sorted(may))}")
            stake.may = may
        elif stake.since and self._known.clock.mono - stake.since < (
            self._known.sure if sure_s is None else sure_s
        ):
            pass  # the server may not have noted it yet: a later look will show
        elif DONE in allowed:
            how = "expired without a word" if self._fates.has_expired(stake) else "done by nobody"
            self._known.blame(1, how, place, stake, why)
        elif stake.may & UNDONE:
            kind = {DEAD: "dead for no cause", FLIGHT: "leased by nobody"}.get(
                min(allowed), "dropped by nobody"
            )
            self._known.blame(1, kind, place, stake, why)
        else:
            self._known.blame(2, "not finished any more", place, stake, why)

    def dead_letters(self, listed: Iterable[tuple[str, str, str]]) -> None:
        """All of /v1/dead: (name of the place, key, reason)."""
        found = Counter[tuple[str, str]]()
        reasons: dict[tuple[str, str], list[str]] = {}
        for name, key, reason in listed:
            found[name, key] += 1
            reasons.setdefault((name, key), []).append(reason)
            if not reason:
                self._known.fault(1, "no reason", f"the dead letter {key} of {name}")
        for (name, key), count in found.items():
            mine = [(p, p.stakes[key]) for p in self._known.places if p.name == name and key in p.stakes]
            dead = [one for one in mine if DEAD in one[1].may or one[1].was_finished]
            if not dead and mine:
                self._narrow(*mine[-1], frozenset({DEAD}), "; it is a dead letter")
            elif not mine:
                self._known.fault(3, "a dead letter of nobody", f"{key} of {name}")
            elif count > len(dead):
                self._known.blame(2, "two dead letters", *dead[-1], f": {count} of one message and place")
        for place, stake in self._known.all_stakes():
            is_kept = self._known.messages.age(stake.message) < DEAD_MS
            is_there = (place.name, stake.message.id) in found
            if is_kept and stake.may == {DEAD} and not is_there and not self._fates.excused(stake):
                kind = "a dead letter is gone" if place.is_open else "ended without a word"
                self._known.blame(1, kind, place, stake)
            elif is_there and stake.may == {DEAD}:
                said = reasons[place.name, stake.message.id]
                if not any(reason.startswith(stake.reason) for reason in said):
                    self._known.blame(1, "another reason", place, stake, f"; {stake.reason}, not {said}")

    def retries(self, listed: Sequence[tuple[str, str, int]], dead: Iterable[tuple[str, str]]) -> None:
        """All of /v1/retries: (name of the place, key, when)."""
        when = {(name, key): at for name, key, at in listed}
        found = Counter((name, key) for name, key, _ in listed)
        for name, key in found:
            mine = [
                (p, p.stakes[key])
                for p in self._known.places
                if p.name == name and p.is_open and key in p.stakes
            ]
            if not mine:
                self._known.fault(3, "a retry of a former place", f"{key} of {name}")
            elif found[name, key] > 1:
                self._known.blame(2, "two retries", *mine[-1])
            elif mine[-1][1].may == {FLIGHT} and mine[-1][1].lapses is not None:
                self._known.blame(2, "a retry in flight", *mine[-1])
            else:
                self._narrow(*mine[-1], frozenset({WAITING}), "; it is a retry")
                self._retry_at(*mine[-1], when[name, key])
        for name, key in set(found) & set(dead):
            here = [p.stakes[key] for p in self._known.open() if p.name == name and key in p.stakes]
            if not any(stake.was_finished for stake in here):
                self._known.fault(2, "a retry and a dead letter", f"{key} of {name}")

    def _retry_at(self, place: Place, stake: Stake, at: int) -> None:
        stake.is_read = True
        if stake.is_exact and stake.may == {WAITING} and abs(at - stake.not_before) > NEAR_MS:
            self._known.blame(1, "retry at another time", place, stake, f"; at {at}, not {stake.not_before}")

    def two_answers(self, place: Place, key: str, what: str) -> None:
        """GET of a message and the lists disagree."""
        self._known.blame(2, "two answers", place, place.stakes[key], f"; {what}")

    def due_there(self, place: Place) -> list[tuple[Stake, bool]]:
        """What is due at a place for certain, and whether it is a retry."""
        stakes = [s for s in place.stakes.values() if s.may == {WAITING} and not s.is_reported]
        retries = [(s, True) for s in stakes if s.is_exact and s.not_before <= self._known.clock.low]
        unread = [(s, False) for s in stakes if not s.is_read and self._known.messages.is_out(s.message)]
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
                self._known.blame(10, kind, place, mine[0], f"; {turns} others were given")

    def figures(self, place: Place, undone: int, shown: object, *, without_retries: bool) -> None:
        """How much is undone there, as GET of the place says."""
        sure = [s for s in place.stakes.values() if s.may <= UNDONE and not self._fates.may_die(place, s)]
        least = sum(not (without_retries and stake.tries.most) for stake in sure)
        most = sum(bool(stake.may & UNDONE) or stake.is_held_too for stake in place.stakes.values())
        most += sum(stake.was_finished for stake in place.stakes.values())
        if not least <= undone <= most and not any(s.is_reported for s in place.stakes.values()):
            pasts = [f"{s.message.id} {s.past[-4:]}" for s in sure[:8]]
            what = f"{place} has {least} to {most} undone, and shows {shown}; surely {pasts}"
            self._known.fault(6, "miscounted", what)
