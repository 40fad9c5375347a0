"""What a place keeps of a delivery that is done: who has acked it, after which tries, and its result.

    keep "none"     nothing, but what was acked with a result, until that has expired
    keep "failed"   what failed before as well
    keep "all"      all

A story is there as soon as the message is over, and goes with a kill if the ack does. What was to be read
again since is no longer done: then its story says nothing, until it is read again and the story is gone.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .known import Fates, Known
from .stakes import Ender, Place, Stake
from .words import DONE, UNTOLD

TRIES_MAX = 20
LOST = "lost"
AWAY = "(away)"
"""Whoever has had it since before a start."""


class Shown(NamedTuple):
    """A story, as the server has it."""

    attempts: int
    tries: Sequence[tuple[str, str]]
    """Of those that failed: who had it, and the outcome."""
    by: str
    result: bytes | None = None


class Ends:
    def __init__(self, known: Known, fates: Fates) -> None:
        self._known = known
        self._fates = fates

    def acks(self, stake: Stake, by: str, result: bytes | None = None, expires: int | None = None) -> None:
        """Somebody acks it, whatever comes of that. `expires`: when its result may go."""
        stake.was_done = True
        stake.enders = [one for one in stake.enders if not one.is_former]
        stake.enders.append(Ender(by, result, expires))

    def begins(self, stake: Stake, attempt: int | None) -> None:
        """It is given, so nobody had it done before, but a kill may undo that it was given."""
        stake.enders = [one._replace(is_former=True) for one in stake.enders]
        if attempt == 1:
            stake.former_failures += stake.failures
            stake.failures.clear()

    def swept(self, place: Place) -> None:
        """Results went whose time was over."""
        now = self._known.clock.low
        for stake in place.stakes.values():
            stake.is_swept |= any(one.expires is not None and one.expires < now for one in stake.enders)

    def over(self, place: Place, key: str, shown: Shown | None) -> None:
        """It is in no place any more. `shown`: its story, if there is one."""
        stake = place.stakes.get(key)
        if stake is None or stake.is_reported:
            return
        if shown is None:
            if stake.may == {DONE} and (why := self._owed(place, stake)):
                self._known.blame(11, "nothing is known of what is done", place, stake, f"; {why}")
            return
        if DONE not in stake.may:
            self._known.blame(11, "done, as its story says", place, stake, f"; {shown}")
            return
        if not all(one.is_former for one in stake.enders):
            stake.may = frozenset({DONE})
        if why := self._contradicts(place, stake, shown):
            self._known.blame(11, "a story says otherwise", place, stake, f"; {why}: {shown}")

    def beside(self, place: Place, key: str, where: str) -> None:
        """It is there, and has a story."""
        stake = place.stakes.get(key)
        if stake is None or (where == "unread" and stake.was_done) or stake.is_reported:
            return
        self._known.blame(11, "a story of what is undone", place, stake, f"; {where}")

    def _owed(self, place: Place, stake: Stake) -> str:
        """Why it must have a story; empty: it need not."""
        if place.keep == "all":
            return "all is kept"
        if place.keep == "failed" and stake.total.least > 1:
            return f"it failed, as this was the {stake.total.least}th"
        now, results = self._known.clock.top, [one for one in stake.enders if one.result is not None]
        is_sure = len(results) == len(stake.enders) > 0
        if is_sure and all(one.expires is None or now < one.expires for one in results):
            return "it has a result"
        return ""

    def _contradicts(self, place: Place, stake: Stake, shown: Shown) -> str:
        """What is wrong with a story; empty: nothing."""
        has_failed, total = shown.attempts > 1 or bool(shown.tries), stake.total
        if shown.result is None and (place.keep == "none" or (place.keep == "failed" and not has_failed)):
            return f"{place.keep} is kept"
        mine = [one for one in stake.enders if one.by == shown.by]
        if not any(one.result == shown.result or (stake.is_swept and not shown.result) for one in mine):
            return f"it was acked by {stake.enders}"
        if not total.least <= shown.attempts <= total.most:
            return f"{total.least} to {total.most} attempts"
        untold = sum(outcome == UNTOLD for _, outcome in stake.failures)
        is_complete = shown.attempts - 1 - untold <= len(shown.tries) <= shown.attempts
        if not is_complete and len(shown.tries) < TRIES_MAX - 1:
            return f"{len(shown.tries)} tries before"
        failures = iter(stake.failures)
        for by, outcome in shown.tries:
            if outcome == LOST:
                continue  # perhaps by nobody, as a kill has taken who it was
            if not any(by in (one[0], AWAY) and one[1] in (outcome, "") for one in failures):
                return f"it failed as {stake.failures}"
        return ""
