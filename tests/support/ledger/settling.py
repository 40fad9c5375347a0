"""What becomes of what was given: acks, nacks, leases, returns, posts, and what people do with dead letters.

What is counted is known from a least to a most, since a kill may take deliveries with it; an attempt that the
server shows says which it was, and what it has counted since a requeue follows.
"""

from .known import Fates, Known
from .messages import Message
from .stakes import Count, Place, Stake
from .words import BACKOFF_MAX, DEAD, DEAD_MS, DONE, DROPPED, FLIGHT, FREE_RETURNS, UNDONE, UNTOLD, WAITING


class Settling:
    def __init__(self, known: Known, fates: Fates) -> None:
        self._known = known
        self._fates = fates

    def acked_unheard(self, place: Place, stake: Stake, mono: float) -> None:
        """Acked by who gets no answer. What retention has taken from a session is dead all the same."""
        self.finished(stake, mono)
        if place.kind == "session" and self._known.messages.is_old(stake.message):
            stake.may |= {DEAD}

    def finished(self, stake: Stake, mono: float = 0.0, *, number: int | None = None) -> None:
        """Acked. `mono`: when, if nothing says that it is durable. `number`: of which delivery."""
        self._known.seen["finished"] += 1
        stake.is_held_too = number is not None and number < stake.number and FLIGHT in stake.may
        self._becomes(stake, DONE)
        stake.since = mono

    def unsure(self, stake: Stake, then: frozenset[str] = frozenset({WAITING, DONE, DEAD})) -> None:
        """A step was sent and the server died before it answered; it would have become `then`."""
        self._known.note(stake, "unsure")
        stake.failures.append((stake.by, ""))
        self._may_be_undone(stake, is_sure=stake.is_leased)
        stake.may, stake.lapses, stake.not_before = stake.may | then, None, 0
        stake.may_be_nobodys = stake.is_leased

    def acking(self, stake: Stake) -> None:
        """An ack was sent; nobody says whether it is read."""
        self._known.note(stake, "ack sent")
        stake.may |= {DONE}
        stake.acked_at = self._known.clock.mono

    def is_read(self, stake: Stake, sent: float) -> None:
        """The ack that was sent then was read, for certain."""
        if stake.may != {DONE}:
            stake.ack_read = min(stake.ack_read or sent, sent)

    def nacking(self, place: Place, stake: Stake, number: int, not_before: int | None = None) -> None:
        """A nack was sent by who has that delivery, or had it."""
        if self.has(stake, number):
            self.failed(place, stake, not_before=not_before, mono=self._known.clock.mono)
        elif number == stake.number:
            self.in_doubt(place, stake)

    def in_doubt(self, place: Place, stake: Stake) -> None:
        """What was sent about it may have been read, or not."""
        if stake.may & UNDONE or stake.since:
            is_last = 0 < place.max_tries <= stake.tries.most
            self.unsure(stake, frozenset({WAITING, DEAD} if is_last else {WAITING}))

    def gone(self, place: Place, stake: Stake) -> None:
        """The server says to an ack that nothing is left to be done."""
        may_be_forgotten = DEAD in stake.may and self._known.messages.age(stake.message) >= DEAD_MS
        if not (stake.may & {DONE, DROPPED} or may_be_forgotten) and place.is_open:
            self._known.blame(1, "an ack is gone", place, stake, ", and nobody has finished it")

    def has(self, stake: Stake, number: int) -> bool:
        """Whether the holder of that delivery has it still, for certain."""
        return stake.number == number and stake.may == {FLIGHT} and stake.lapses is not None

    def ack_refused(self, place: Place, stake: Stake, sent: float) -> None:
        """The server says that to the first ack of a lease, which was sent then."""
        if stake.may == {FLIGHT, DONE} and stake.lapses is not None and stake.acked_at == sent:
            self._known.blame(5, "a lease is gone", place, stake, "; ack")

    def held_no_more(self, place: Place, stake: Stake, number: int, verb: str) -> None:
        """A nack, extend or release is told that the lease is gone."""
        if self.has(stake, number):
            self._known.blame(5, "a lease is gone", place, stake, f"; {verb}")

    def counts(self, place: Place, stake: Stake, number: int, verb: str) -> bool:
        """A nack, extend or release has done something; whether it may."""
        if number != stake.number and not stake.is_reported:
            self._known.blame(
                5, "an earlier try counts", place, stake, f"; {verb} of {number} of {stake.number}"
            )
        return not stake.is_reported

    def acked(self, place: Place, stake: Stake, number: int) -> None:
        """The server says that this ack has finished it."""
        if stake.may == {DONE} and not stake.since:
            self._known.blame(5, "an ack counts twice", place, stake)
        self.finished(stake, number=number)

    def extended(self, stake: Stake, lapses: float) -> None:
        self._known.note(stake, "extended")
        self._may_be_undone(stake, is_sure=stake.is_leased)
        self.leased(stake, lapses, is_leased=stake.is_leased)

    def _may_be_undone(self, stake: Stake, *, is_sure: bool = False) -> None:
        """Its lease is about to be another one, which a kill may undo. `is_sure`: it is on disk then."""
        if is_sure:
            return
        mono, lapses = self._known.clock.mono, () if stake.lapses is None else (stake.lapses,)
        is_recent = mono - stake.extended_at < (self._known.written or 0.0)
        stake.former_lapses = (*(stake.former_lapses if is_recent or not lapses else ()), *lapses)
        stake.extended_at = mono

    def held(self, stake: Stake, lapses: float) -> None:
        """Its client has said after a start that it has it still: it is leased for that time, at least."""
        stake.may, stake.is_leased, stake.may_be_nobodys = frozenset({FLIGHT}), True, False
        if stake.lapses is None or stake.lapses < lapses:
            stake.lapses = stake.lapses or self._known.clock.mono  # whenever it would have been over
            self._may_be_undone(stake)
            self.extended(stake, lapses)
        stake.ended = None

    def leased(self, stake: Stake, lapses: float | None, *, is_leased: bool = True) -> None:
        stake.lapses, stake.is_leased, stake.wall_until = lapses, is_leased and lapses is not None, 0
        stake.late = 0.0
        if lapses is not None:
            stake.until = self._known.clock.walked + round(1_000 * lapses) - self._known.near * is_leased
            stake.wall_until = self._known.clock.high + round(1_000 * (lapses - self._known.clock.mono))

    def returned(self, place: Place, stake: Stake, mono: float = 0.0) -> None:
        """Given back in order: that is not a try, for the first ten times."""
        self._known.note(stake, "returned")
        self.comes_back(place, stake)
        stake.since = mono

    def comes_back(self, place: Place, stake: Stake) -> None:
        returns = stake.returns
        returns.up()
        # The tenth may be the eleventh: a kill may hide one.
        is_free = returns.most <= FREE_RETURNS - (returns.least < returns.most) and WAITING not in stake.may
        stake.tries.down(is_sure=is_free)
        stake.total.down(is_sure=is_free)
        low = self._known.clock.low
        self.fails(place, stake, at=low, keep=frozenset({WAITING}), outcome="returned")
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
        """Outcome, or answered with an error: it comes again, or that was the last try."""
        self._known.seen["failed"] += 1
        self._known.note(stake, "failed")
        low = self._known.clock.low
        self.fails(place, stake, at=low, not_before=not_before, may_be_none=True, outcome="failed")
        stake.since = mono
        stake.stays = stake.may == {WAITING}
        stake.is_exact = is_exact and stake.stays

    def fails(
        self,
        place: Place,
        stake: Stake,
        *,
        at: int,
        not_before: int | None = None,
        keep: frozenset[str] = frozenset(),
        may_be_none: bool = False,
        outcome: str = "lost",
    ) -> None:
        """A try is over: it comes again, after the back-off or `not_before`, or that was the last one.

        `keep`: what it may be as well. `may_be_none`: it need not have been in flight, and is not now.
        """
        if FLIGHT not in stake.may and not may_be_none:
            stake.lapses = None
            return
        stake.failures.append((stake.by, outcome))
        most, tries = place.max_tries, stake.tries
        ends = {WAITING, DEAD} if most and tries.most >= most else {WAITING}
        ends -= {WAITING} if most and tries.least >= most else set()
        expires = self._fates.expires(stake)
        if expires is not None and expires <= max(not_before or 0, self._known.clock.high + BACKOFF_MAX):
            ends |= {WAITING, DEAD}
        before = frozenset() if may_be_none else stake.may - {FLIGHT}
        stake.may = before | ends | keep
        stake.lapses, stake.epoch, stake.is_returned = None, self._known.clock.epoch, False
        if not_before is None:
            pauses = place.backoff
            not_before = at + pauses[min(max(tries.least, 1), len(pauses)) - 1] if pauses else 0
        stake.not_before = not_before if before <= {DEAD, DONE, DROPPED} else 0

    def answered(self, place: Place, stake: Stake, status: int, mono: float) -> None:
        """A post is about to be answered. Behind the end of its place no answer counts: the post was cut."""
        if not place.is_open:
            self._known.note(stake, "answered too late")
        elif status == 200:
            self.finished(stake, mono)
        else:
            self.failed(place, stake, mono=mono)

    def buried(self, stake: Stake, mono: float = 0.0, reason: str = "") -> None:
        if FLIGHT in stake.may:
            stake.failures.append((stake.by, UNTOLD))
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
        stake.epoch = self._known.clock.epoch
        stake.not_before = stake.requeued_at = self._known.clock.low if at is None else at
        stake.is_in_line, stake.is_head, stake.may_run = is_head, True, False

    def tried(self, stake: Stake, at: int) -> None:
        """`:try` has moved its next try there."""
        self._known.note(stake, "try moved")
        stake.not_before, stake.epoch, stake.is_exact = at, self._known.clock.epoch, True

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
        self._known.note(stake, state)
        stake.may, stake.lapses, stake.not_before, stake.since = frozenset({state}), None, 0, 0.0
        stake.is_exact, stake.stays, stake.reason, stake.ended = False, False, "", None
        stake.ack_read, stake.passed = 0.0, ""
        stake.was_done |= state == DONE
        if stake.read_again <= 0:
            stake.former = frozenset()
