"""The one writer: requests in, one group commit after another, answers out after the sync.

A request is a function of the open group (`decide`) and a callback for its answer (`done`). Owners take
turns, and each owner's requests keep their order (requests.py). A group takes up to 1,000 messages' worth,
4 MiB or some 5 ms; a request is never divided. The group is written as one batch and synced in a thread,
while the loop goes on and the next group gathers. So concurrent requests share one fsync, and a lone one
waits for nobody.

    submit ──> queue ──> compose: decide each, write batch ──> sync in a thread ──> settle: wheel, answers
                            ^                                                          |
                            +----------------- the next group, if any ----------------+

At most two groups are being synced at a time. The second one is composed only for `gather` messages' worth,
or when many bytes are under way: it would wait for the same disk, and each group costs a sync and a batch.
With 64 clients that wait for their own answers this saves a third of the groups and 0.1 to 0.15 of the
processor time, with 16 clients a third, and answers come sooner. Requests that usually write nothing (plain
publishes that nobody can replay) pass even then, and a group without rows is settled at once.

Where a group waits for a log on other machines, `groups` of them are under way, and a few requests need not
wait for all of an answer that takes long: after a share of the time of the last one, and STEP_S at least, the
next group is composed.

A large request, of up to 10,000 messages, is decided in steps (shards/steps.py) and begins a group of its
own. When its time is over the group stays open: the loop turns, due messages are dispatched, requests gather,
and the next `compose` continues. Meanwhile other owners' requests that write nothing are decided. The horizon
stays below all reserved positions, so what one step has found holds in the next. Such a group is written in a
turn of its own: 10,000 rows take 9 ms, with keys 18. If the store fails meanwhile, the request fails with all
that is open.

When a write or sync fails, all open requests are answered with StoreFailed, the store is reopened, and the
wheel is loaded again from the horizon. While the store is read-only, as on a full disk, requests that write
are refused at once. Dispatch goes on, up to a bound that is marked instead of those in the groups
(`mark_ms`).

One request fails alone. The exception of `decide` is its answer; Refused and Corrupt come before any change.
If a request fails half way, or its result cannot be put into rows, the group that is being composed is *given
up*: nothing of it is written, the directory is read again as earlier groups have left it, and the others in
it are answered with StoreFailed. They are not decided again, as they have told others of their decisions (a
publish that waits for the horizon, a schedule's next place). The failed one is not tried again either. An
exception of a callback is logged.

Bounds: `max_queued` messages' worth waiting, and `max_bytes` of requests from submission to answer. Bytes on
their way here (an HTTP body that is being read) count too. Beyond either, `submit` raises Busy; one request
is let in however large, so that none starves.
"""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from shards.commit import Commit, GroupCommit, Refused
from shards.errors import Corrupt, LogFull, ShardsError, StoreFailed
from shards.recover import Opened, read_timeline_again, undo_group
from shards.state import Journal
from shards.steps import Steps
from timeline.position import Position
from timeline.wheel import Wheel

from .clock import Clock
from .commit_hook import CommitHook, Done, ignore
from .requests import Requests

log = logging.getLogger(__name__)

GROUP_MESSAGES = 1_000
GROUP_BYTES = 4 << 20
"""The engine holds the interpreter while it takes a batch: about 1 ms a MiB."""
DECIDE_S = 0.005
"""Time for deciding requests in one go, s; the last one, or a step of a large one, may take longer."""
BESIDE_S = 0.001
"""Time for requests that write nothing, between the steps of a large one, s."""
END_OF_TIME = float("inf")
LARGE = 250
"""From so many rows on a group is worth a look at what is due before it is written: 1,000 take 3 ms. And a
request that is worth more messages than that, each of which may have a key to be read, waits for its turn."""
OPEN_GROUPS = 2
"""Groups under way on a disk: one is synced, one waits."""
STEP_S = 0.005
"""Time between two small groups, s. A group costs as much as some ten messages."""
GATHER_BYTES = 1 << 20
"""From so many bytes under way the disk must be kept busy while the next group is composed."""
TURNS_MAX = 10_000
"""Maximum number of dispatch turns that wait for the journal."""
ENTRY_PAYLOAD_BYTES = 4_096
"""A wheel entry carries its record up to this; a larger one is read again when it is due."""
ENTRY_OVERHEAD = 250

Entry = tuple[int, bytes | None]
"""(shard number, stored value or None: read it when due)."""
Decide = Callable[[Commit], Any]
Answers = list[tuple[int, Done, Any]]
"""(bytes of the request, its callback, its answer)."""


class Ask(Protocol):
    """Asks the writer to decide a request; returns its answer once it is durable."""

    async def __call__(self, decide: Decide, *, cost: int = 1, size: int = 0, owner: str = "") -> Any:
        """`cost`: messages' worth; `size`: bytes that nobody else counts; `owner`: see `Writer.submit`.
        Raises what `decide` raised, Busy, StoreFailed."""


class Busy(Exception):
    """The writer's queue is full, in requests or in bytes."""


def entry(shard: int, value: bytes | None) -> tuple[Entry, int]:
    """The wheel's entry for a row, and its size. `value`: None if it is to be read when it is due."""
    if value is not None and len(value) <= ENTRY_PAYLOAD_BYTES:
        return (shard, value), len(value) + ENTRY_OVERHEAD
    return (shard, None), ENTRY_OVERHEAD


class Deciding:
    """Decisions in the open group."""

    __slots__ = ("answers", "begun", "filled", "is_cut", "is_whole", "messages", "writes")

    def __init__(self) -> None:
        self.answers: Answers = []
        self.messages = 0
        self.filled = 0
        self.writes = False
        """Whether a request wrote something."""
        self.is_whole = True
        """Whether no request failed half way."""
        self.begun: tuple[int, Done, tuple[int, int, int], Steps] | None = None
        """The half decided request, if any: its size and callback, the group's mark before it, and its
        steps."""
        self.is_cut = False
        """Whether it is decided over several turns of the loop."""

    @property
    def open_answers(self) -> Answers:
        """With that of the request that is half decided, which has none."""
        return self.answers if self.begun is None else [*self.answers, (self.begun[0], self.begun[1], None)]


class Writer:
    """Sans IO: `compose`, then a sync by whoever runs it, then `settle` or `fail`."""

    def __init__(
        self,
        opened: Opened,
        wheel: Wheel[Entry],
        clock: Clock,
        *,
        max_queued: int,
        max_bytes: int,
        wake: Callable[[], None],
        failing: Callable[[], None] = ignore,
        gather: int = 1,
        groups: int = OPEN_GROUPS,
    ) -> None:
        """`wake`: called when something waits for `compose` or may be due. `failing`: called after a failed
        write or sync, before any answer. `gather`: messages that must wait for a group while another is being
        synced. `groups`: how many may be."""
        self._opened = opened
        self._open_batch = opened.open_batch
        self._wheel = wheel
        self._clock = clock
        self._hooks: list[CommitHook] = []
        self._max_queued = max_queued
        self._max_bytes = max_bytes
        self._wake = wake
        self._failing = failing
        self._gather = gather
        self._groups = groups
        self._next_at = END_OF_TIME
        """Monotonic time from which the next small group may be composed while others are synced."""
        self._took_s = 0.0
        """Time from the last group's write to its end."""
        self._queue = Requests()
        self.queued = 0
        """Messages' worth of requests that wait."""
        self.queued_bytes = 0
        """Bytes of requests that wait, are being synced or are on their way here."""
        self._open: deque[tuple[GroupCommit, Answers]] = deque()
        self._deciding: Deciding | None = None
        self._turns: list[tuple[Position, int]] = []
        self._mono = clock.mono()
        self.given_up = 0
        """Number of groups that one request spoiled."""
        self.broken: ShardsError | None = None
        """Reason why the store takes no writes now; None: it does."""
        self.full = ""
        """Why no request with bytes of its own is taken now; empty: all are."""
        self._is_reading = False
        """Whether the store is broken but readable, and the wheel is loaded from it."""

    @property
    def can_compose(self) -> bool:
        """Whether `compose` has work."""
        if self._deciding is not None:
            return True
        if not self._queue or (self.broken is not None and not self._is_reading):
            return False
        return self._takes_writes or not self._queue.writes_all

    @property
    def _takes_writes(self) -> bool:
        """Whether requests that write go into a group now."""
        if not self._open:
            return True
        if len(self._open) >= self._groups:
            return False
        is_worth = self.queued >= self._gather or self.queued_bytes >= GATHER_BYTES
        return is_worth or self._clock.mono() >= self._next_at

    def wait_s(self) -> float:
        """Seconds until a small group may be composed while others are synced."""
        if not self._queue or len(self._open) >= self._groups:
            return END_OF_TIME
        return max(0.0, self._next_at - self._clock.mono())

    @property
    def running_ms(self) -> int:
        """Running time of the server over all starts."""
        return self._opened.open_batch.running_ms + self._passed_ms()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written or synced."""
        return not self._queue and not self._open and self._deciding is None

    @property
    def is_deciding(self) -> bool:
        """Whether a request is half decided, or decided and not written."""
        return self._deciding is not None

    def add_hook(self, hook: CommitHook) -> None:
        """Add a commit hook, called for each group after the earlier ones."""
        self._hooks.append(hook)

    def ran(self, passed_ms: int) -> None:
        """So much running time has passed beside the monotonic clock: a simulated clock was moved."""
        self._open_batch.ran(passed_ms)

    def enter(self, size: int) -> None:
        """Count bytes of a request that is on its way here, until `leave`. Raises Busy at the bound."""
        if size and self.queued_bytes and self.queued_bytes + size > self._max_bytes:
            raise Busy(
                f"{self.queued_bytes} bytes of requests are in progress, the limit is {self._max_bytes}"
            )
        self.queued_bytes += size

    def leave(self, size: int) -> None:
        """They are here no more: answered, or submitted with a size of their own."""
        self.queued_bytes -= size

    def submit(
        self,
        decide: Decide,
        done: Done,
        *,
        cost: int = 1,
        size: int = 0,
        writes: bool = True,
        can_refuse: bool = True,
        owner: str = "",
    ) -> None:
        """Queue a request worth `cost` messages, and `size` bytes that nobody else counts (`enter`).

        `owner`: name of the key that it is for; empty: of none.

        Raises Busy at either bound if it `can_refuse`, for which who asks has a bound of its own else;
        StoreFailed while broken; LogFull.
        """
        if self.full and writes and size:
            raise LogFull(self.full)
        if self.broken is not None and writes:
            raise StoreFailed(str(self.broken))
        if can_refuse and self.queued + cost > self._max_queued and self._queue:
            raise Busy(f"{self.queued} messages wait to be written, the limit is {self._max_queued}")
        if can_refuse:
            self.enter(size)
        else:
            self.queued_bytes += size
        self._queue.add(owner, (cost, size, writes, decide, done))
        self.queued += cost
        is_first = self.queued == cost and self._next_at != END_OF_TIME
        if not self._open or is_first or self.can_compose or self.broken is not None:
            self._wake()  # else the end of what is being synced does

    def note_turn(self, place: Position, wall_ms: int) -> None:
        """A dispatch turn ended at `place`: written to the journal with the next group."""
        if len(self._turns) >= TURNS_MAX:
            # Only while the store takes no writes: what is lost is when, not whether, they were dispatched.
            del self._turns[: TURNS_MAX // 2]
        self._turns.append((place, wall_ms))

    def dispatched_ms(self, place: Position) -> int | None:
        """Wall ms of the dispatch turn that passed `place`, in the journal or not yet; None: unknown."""
        written_ms = self._opened.reader.dispatched_ms(place)
        if written_ms is not None:
            return written_ms
        index = bisect_left(self._turns, (place, 0))
        return self._turns[index][1] if index < len(self._turns) else None

    def journal(self) -> Journal:
        """When messages were dispatched, with the turns that are not written yet. For rising positions."""
        return Journal(self._opened.store, self.dispatched_ms, self._opened.is_withheld)

    def compose(
        self,
        between: Callable[[], object] = ignore,
        *,
        large: int = LARGE,
        decide_s: float = DECIDE_S,
    ) -> GroupCommit | None:
        """Decide what is queued and write it as one group; None when nothing needs a sync (yet).

        While enough groups are being synced, or the store can only be read, only requests that should write
        nothing are let through. None are while not even that is known: what has failed may hold the horizon.

        `between`: called when a group of `large` rows or more has been decided and before it is written,
        which are some milliseconds each. It may dispatch; the horizon stays below what the group touches.
        `decide_s`: a request of more than `large` that takes longer goes on when this is called again.
        """
        if not self.can_compose:
            self._refuse_queue()
            return None
        deciding, self._deciding = self._deciding, None
        if deciding is None:
            deciding = Deciding()
            self._open_batch.begin(self._clock.wall_ms())
        else:
            self._opened.horizon.hold(None)
            self._open_batch.resume(self._clock.wall_ms())
        if not self._decide(self._opened.commit, deciding, large, self._clock.mono() + decide_s):
            self._opened.horizon.hold(self._open_batch.made.floor)
            self._deciding = deciding
            return None
        return self._end(between, deciding, large)

    def _end(self, between: Callable[[], object], deciding: Deciding, large: int) -> GroupCommit | None:
        """All is decided: give it up, answer at once, or write."""
        answers = deciding.open_answers
        if not deciding.is_whole or not self._is_countable():
            self._give_up(answers)
            return None
        if not deciding.writes and self._open_batch.is_empty:
            self._answer(answers)
            self._wake()
            return None
        if self._open_batch.mark[0] >= large and not deciding.is_cut:
            fault = self._pause(between)
            if fault is not None:
                self._open.append((self._spoilt(), answers))
                self.fail(fault)
                return None
        return self._write(self._opened.commit, answers)

    def _pause(self, between: Callable[[], object]) -> ShardsError | None:
        """The failure in the open group, which then cannot be written."""
        self._opened.horizon.hold(self._open_batch.made.floor)
        try:
            between()
        except ShardsError as error:
            return error
        finally:
            self._opened.horizon.hold(None)
        return None

    def settle(self) -> None:
        """The oldest open group is durable: its messages may be sent, its answers leave."""
        group, answers = self._open.popleft()
        self._took_s = self._clock.mono() - group.begun
        self._opened.close_group()
        loaded = self._wheel.loaded
        if group.placed and group.floor is not None and group.floor <= loaded:
            # A moved message is known by its id: this group or a later open one may have retired its new row.
            gone = {place for later in (group, *(g for g, _ in self._open)) for place in later.gone}
            for place, shard, value in group.placed:
                if place <= self._wheel.loaded and place not in gone:
                    item, size = entry(shard, value)
                    self._wheel.add(place, item, size)
        self._answer(answers)
        self._wake()

    def fail(self, error: ShardsError) -> None:
        """A write or sync failed: nothing that is open became durable for certain."""
        log.error("store: failed: %s", error)
        self.end(error)

    def end(self, error: ShardsError) -> None:
        """Take no more: what is open or comes is answered with this error."""
        self._failing()
        if self._deciding is not None:
            self._open.append((self._spoilt(), self._deciding.open_answers))
            self._deciding = None
            self._opened.horizon.hold(None)
        failed = [answer for _, answers in self._open for answer in answers]
        for group, _ in self._open:
            self._retract(group.first_seq, group.last_seq)
        self._open.clear()
        # Kept for longer than the store is open: frames of a read keep iterators, and these the database.
        self.broken = error.with_traceback(None)
        self._is_reading = False
        self._answer([(size, done, error) for size, done, _ in failed])
        self._refuse_queue()

    def reopened(self, failure: ShardsError | None) -> bool:
        """Handle the result of `reopen_store`. Returns whether the store is in use again."""
        try:
            read_timeline_again(self._opened)
            if failure is None:
                self._recover_hooks()
        except ShardsError as error:
            log.warning("store: unreadable: %s", failure or error)
            return False
        if failure is None or not self._is_reading:
            # What the wheel held, or had cancelled, of a group that failed is as the store has it now.
            self._wheel.clear(self._opened.horizon.position)
        self._is_reading = failure is not None
        if failure is not None:
            log.warning("store: still failing: %s", failure)
            return False
        self.broken = None
        self._opened.horizon.unbounded = False
        log.info("store: writable again")
        self._wake()
        return True

    @property
    def mark_ms(self) -> int | None:
        """The bound that the store has to mark for dispatch to go on while no group can be written."""
        return self._opened.horizon.mark_ms if self.broken is not None else None

    def marked(self, bound_ms: int, error: ShardsError | None) -> None:
        """Handle the result of marking the bound."""
        if error is None:
            self._opened.horizon.marked(bound_ms)
        elif self.broken is not None and not self._opened.horizon.unbounded:
            log.error("store: no write at all succeeds, dispatch continues without a stored bound: %s", error)
            self._opened.horizon.unbounded = True
        self._wake()

    def _decide(self, commit: Commit, deciding: Deciding, large: int, until: float) -> bool:
        """Decide what is queued, as long as there is time; whether the group can be written in this turn."""
        if deciding.is_cut:
            if deciding.begun is None:
                return True
            if not self._go_on(deciding, until) and deciding.is_whole:
                self._decide_more(commit, deciding, large, self._clock.mono() + BESIDE_S, is_beside=True)
            return not deciding.is_whole
        return self._decide_more(commit, deciding, large, until, is_beside=False)

    def _decide_more(
        self, commit: Commit, deciding: Deciding, large: int, until: float, *, is_beside: bool
    ) -> bool:
        """`is_beside`: a large request is half decided and fills the group; only requests without rows
        fit."""
        group, may_write = self._open_batch, self._takes_writes and not is_beside
        while self._queue and (is_beside or not self._is_filled(deciding)):
            request = self._queue.take(may_write=may_write, most=large if deciding.answers else END_OF_TIME)
            if request is None:
                break
            cost, size, writes, decide, done = request
            self.queued -= cost
            deciding.messages += cost
            deciding.filled += size
            deciding.writes = deciding.writes or writes
            mark = group.mark
            try:
                answer = decide(commit)
            except Exception as error:
                answer = self._failed(deciding, error, mark)
            if isinstance(answer, Steps):
                deciding.begun = size, done, mark, answer
                if not self._go_on(deciding, until if cost > large else END_OF_TIME):
                    deciding.is_cut = True
                    return False
            else:
                deciding.answers.append((size, done, answer))
            if not deciding.is_whole or self._clock.mono() >= until:
                break
        return True

    def _is_filled(self, deciding: Deciding) -> bool:
        return (
            deciding.messages >= GROUP_MESSAGES
            or deciding.filled >= GROUP_BYTES
            or self._open_batch.size >= GROUP_BYTES  # of requests whose bytes somebody else counts
        )

    def _go_on(self, deciding: Deciding, until: float) -> bool:
        """Take steps of the half decided request while there is time, at least one; returns whether it is
        done."""
        assert deciding.begun is not None
        size, done, mark, steps = deciding.begun
        try:
            while steps.step():
                if self._clock.mono() >= until:
                    return False
            answer = steps.answer
        except Exception as error:
            answer = self._failed(deciding, error, mark)
        deciding.begun = None
        deciding.answers.append((size, done, answer))
        return True

    def _failed(self, deciding: Deciding, error: Exception, mark: tuple[int, int, int]) -> Exception:
        """The answer to a request that raised `error`. `mark`: the state of the batch before the request."""
        if not isinstance(error, Refused):
            deciding.is_whole = isinstance(error, Corrupt) and self._open_batch.mark == mark
            if not isinstance(error, Corrupt):
                log.error("writer: a request failed", exc_info=error)
        return error

    def _is_countable(self) -> bool:
        """Whether what was composed can be counted in rows."""
        try:
            self._open_batch.count()
        except Exception:
            log.exception("writer: a group cannot be written")
            return False
        return True

    def _give_up(self, answers: Answers) -> None:
        """Give up the open group with all its decisions."""
        self.given_up += 1
        self._retract(self._open_batch.made.first_seq, self._opened.horizon.seq)
        try:
            undo_group(self._opened)
            self._recover_hooks()
        except ShardsError as error:
            self._open.append((self._spoilt(), answers))
            self.fail(error)
            return
        fellow = StoreFailed("writer: a commit hook failed")
        log.error("writer: a group of %d requests failed", len(answers))
        self._answer(
            [
                (size, done, answer if isinstance(answer, Exception) else fellow)
                for size, done, answer in answers
            ]
        )
        self._wake()

    def _write(self, commit: Commit, answers: Answers) -> GroupCommit | None:
        passed_ms = self._passed_ms()
        self._open_batch.ran(passed_ms)
        self._mono += passed_ms / 1000  # the rest counts with the next group
        try:
            for hook in self._hooks:
                done = hook.write(commit)
                if done is not None:
                    answers.append((0, done, None))
            self._open_batch.dispatched(self._turns)
            group = self._open_batch.seal()
        except Exception as error:
            if not isinstance(error, ShardsError):
                log.exception("writer: a group cannot be written")
            self._open.append((self._spoilt(), answers))
            self.fail(error if isinstance(error, ShardsError) else StoreFailed(str(error)))
            return None
        self._turns = []
        group.begun = self._clock.mono()
        if self._groups > OPEN_GROUPS:
            self._next_at = group.begun + max(STEP_S, self._took_s / self._groups)
        self._open.append((group, answers))
        for place in group.gone:
            self._wheel.cancel(place)
        return group

    def _retract(self, first_seq: int, last_seq: int) -> None:
        for hook in self._hooks:
            hook.retract(first_seq, last_seq)

    def _recover_hooks(self) -> None:
        for hook in self._hooks:
            hook.recover()

    def _passed_ms(self) -> int:
        """Running time since the last note, ms."""
        return int((self._clock.mono() - self._mono) * 1000)

    def _spoilt(self) -> GroupCommit:
        """The error for an open group that could not be sealed."""
        return GroupCommit(first_seq=self._open_batch.made.first_seq, last_seq=self._opened.horizon.seq)

    def _refuse_queue(self) -> None:
        if self.broken is None:
            return
        queue, self._queue, self.queued = self._queue, Requests(), 0
        self._answer([(size, done, StoreFailed(str(self.broken))) for _, size, _, _, done in queue.all])

    def _answer(self, answers: Answers) -> None:
        """Give each its answer; its bytes are free by then, as an answer may make the client go on."""
        self.queued_bytes -= sum([size for size, _, _ in answers])
        for _, done, answer in answers:
            try:
                done(answer)
            except Exception:
                log.exception("writer: an answer failed")
