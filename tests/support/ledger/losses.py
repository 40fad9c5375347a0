"""What ends with a connection, what the end of the server leaves leased, and what a kill may take with it."""

from .known import Known
from .settling import Settling
from .stakes import Place, Stake
from .turns import Turns
from .words import DEAD, DONE, DROPPED, FLIGHT, HELD_S, RUN_S, WAITING


class Losses:
    def __init__(self, known: Known, turns: Turns, settling: Settling) -> None:
        self._known = known
        self._turns = turns
        self._settling = settling

    def left(self, place: Place, *, orderly: bool = False, by: str = "") -> None:
        """Who had it over a connection has gone: it goes to whoever comes. Empty: the only one there was."""
        place.left_at = self._known.clock.ran
        for stake in place.stakes.values():
            is_its = FLIGHT in stake.may and by in ("", stake.by)
            if is_its and by and orderly and stake.may_be_nobodys and not stake.is_leased:
                for count in (stake.tries, stake.total):
                    count.down(is_sure=False)  # its time may not have been over, and another's call was cut
            if not is_its or stake.is_leased or stake.may_be_nobodys:
                continue
            self._known.note(stake, f"left by {by}")
            if orderly and place.kind != "session":
                self._settling.comes_back(place, stake)
            elif place.kind == "session":
                self._sent_anew(place, stake)
            else:
                self._settling.fails(
                    place, stake, at=min(self._known.clock.low, stake.wall_until or self._known.clock.low)
                )

    def _sent_anew(self, place: Place, stake: Stake, *keep: str) -> None:
        """It stays in flight for whoever comes, or that was the last try."""
        if FLIGHT in stake.may:
            most = place.max_tries
            ends = {WAITING, DEAD} if most and stake.tries.most >= most else {WAITING}
            stake.may = (stake.may - {FLIGHT}) | ends | {*keep}
            stake.is_returned, stake.not_before = True, 0
        stake.lapses = stake.ended = None

    def restarted(self, mono: float, *, was_killed: bool, ready: float | None = None) -> None:
        """After a kill the last steps that had no answer may be undone. `mono`: when it was gone; `ready`:
        when it served again, if that is not then."""
        for place, stake in self._known.all_stakes():
            stake.passed, stake.acked_at = "", 0.0
            if stake.ack_read:
                self._settling.finished(stake, stake.ack_read)
            stake.late += RUN_S * was_killed
            if was_killed and place.kind == "group" and FLIGHT in stake.may:
                self._may_lapse_as_before(stake, mono)
            stake.former_lapses = ()
            if stake.is_leased or stake.may_be_nobodys:
                continue
            if place.kind == "group" and FLIGHT in stake.may and self._known.written is not None:
                self._stays_leased(stake, mono, mono if ready is None else ready, was_killed=was_killed)
                continue
            stake.may_lead |= was_killed and FLIGHT in stake.may and not stake.is_in_line
            stake.may_run |= place.kind == "endpoint" and FLIGHT in stake.may
            self._sent_anew(place, stake, *([DONE] if place.kind == "endpoint" else []))
        for place, stake in self._known.all_stakes():
            if was_killed and stake.since and mono - stake.since < self._known.sure:
                stake.may, stake.not_before, stake.is_exact = stake.may | {WAITING}, 0, False
                stake.is_returned = True
            if (
                was_killed
                and stake.former
                and stake.read_again > 0
                and mono - stake.read_again < self._known.sure
            ):
                stake.may, stake.not_before, stake.read_again = stake.may | {WAITING}, 0, -1.0
            elif stake.read_again > 0:
                stake.former, stake.read_again = frozenset(), 0.0
            stake.since = 0.0
            if was_killed:
                self._forgets(stake, mono)
            is_old = self._known.messages.is_old(stake.message)
            if was_killed and place.kind == "session" and WAITING in stake.may and is_old:
                stake.may |= {DROPPED}  # counted, and the number died with the server
        self._known.unknown = []
        if was_killed:
            for place in self._known.open():
                self.perhaps_taken(place, is_leased=place.kind == "group")

    def _stays_leased(self, stake: Stake, mono: float, ready: float, *, was_killed: bool) -> None:
        """Its client has it until the end of the lease, whatever becomes of connections. After a kill that is
        so if the group's cursor had said who has it; else it is unread again, or the retry that it was."""
        written = self._known.written or 0.0
        self._known.note(stake, "leased on")
        if stake.lapses is None and stake.ended is None:
            self._settling.leased(stake, ready + HELD_S)
        stake.is_leased = True
        if was_killed and mono - stake.given_at < written:
            self._known.seen["given right before a kill"] += 1
            stake.may |= {WAITING}
            stake.not_before, stake.is_returned, stake.may_run = 0, True, True
            stake.was_given &= stake.tries.least > 1  # the server may have forgotten that
            stake.may_lead |= not stake.is_in_line

    def _may_lapse_as_before(self, stake: Stake, mono: float) -> None:
        """The last steps that made its lease another one may not have been on disk."""
        if stake.former_lapses and mono - stake.extended_at < (self._known.written or 0.0):
            lapses = (*stake.former_lapses, *(() if stake.lapses is None else (stake.lapses,)))
            late = stake.late + max(lapses) - min(lapses)
            self._settling.leased(stake, min(lapses), is_leased=stake.is_leased)
            stake.late = late  # it is one of them

    def _forgets(self, stake: Stake, mono: float) -> None:
        """What a kill may take: of the counts (the last delivery may have been returned since), and that a
        lease was over."""
        is_counted = stake.given_at and mono - stake.given_at >= self._known.sure
        for count in (stake.tries, stake.total):
            count.least = max(0, count.least - 1) if is_counted else 0
        stake.returns.least = 0
        stake.failures = [*stake.former_failures, *stake.failures, (stake.by, "")]
        stake.former_failures = []
        if stake.ended is not None and mono - stake.ended < self._known.sure:
            stake.not_before = 0

    def is_durable(self) -> None:
        """All that was done is on disk."""
        for _, stake in self._known.all_stakes():
            stake.since, stake.former_failures = 0.0, []
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
                stake.is_exact &= stake.not_before > self._known.clock.high  # else it may have failed since
                if is_leased:
                    stake.may, stake.may_be_nobodys = stake.may | {FLIGHT}, True
                if place.max_tries and stake.tries.most >= place.max_tries:
                    stake.may |= {DEAD}

    def _may_have_gone(self, place: Place, stake: Stake) -> bool:
        is_due = stake.not_before <= self._known.clock.top and self._known.messages.is_out(stake.message)
        key = place.is_ordered and stake.message.key
        return is_due and not (
            key and any(self._turns.goes_first(place, x, stake) for x in self._turns.mates(place, stake))
        )
