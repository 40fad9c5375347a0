"""The one writer: requests in, one group commit after another, answers out after the sync.

A request is a function of the open group (`decide`) and a callback for its answer (`done`). Requests are
decided in the order of their arrival, up to 1,000 messages' worth to a group (one request is never cut);
the group is written as one batch and synced in a thread, while the loop goes on and the next group
gathers. So concurrent requests share one fsync, and a lone one waits for nobody.

    submit ──> queue ──> compose: decide each, write batch ──> sync in a thread ──> settle: wheel, answers
                            ^                                                          |
                            +----------------- the next group, if any ----------------+

Two groups at most are being synced at a time. Requests that usually write nothing (plain publishes that
nobody can replay) are let through even then, and a group in which nothing was written is settled at once.

When a write or sync fails, all that is open is answered with StoreFailed, the store is reopened and the
wheel is loaded again from the horizon. While it can only be read, on a full disk, every request is refused
at once and dispatch goes on.

Bound: `max_queued` messages' worth waiting; beyond it `submit` raises Busy.
"""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from shards.commit import Commit, Group, Refused
from shards.errors import Corrupt, ShardsError, StoreFailed
from shards.recover import Opened, reopen_timeline
from timeline.position import Position
from timeline.wheel import Wheel

from .clock import Clock

log = logging.getLogger(__name__)

GROUP_MESSAGES = 1_000
OPEN_GROUPS = 2
TURNS_MAX = 10_000
"""Dispatch turns that may wait to be written to the journal."""
ENTRY_PAYLOAD_BYTES = 4_096
"""A wheel entry carries its record up to this; a larger one is read again when it is due."""
ENTRY_OVERHEAD = 250

Entry = tuple[int, bytes | None]
"""(shard number, stored value or None: read it when due)."""
Decide = Callable[[Commit], Any]
Done = Callable[[Any], None]
"""Called with the answer, or with the exception that `decide` raised or StoreFailed."""


class Busy(Exception):
    """The writer's queue is full."""


class Cursors(Protocol):
    """Who knows what sessions want stored with the next group."""

    def write_cursors(self, commit: Commit) -> None: ...

    def mark_all(self) -> None:
        """Nothing of what was written may have survived: all of it again."""


def entry(shard: int, value: bytes) -> tuple[Entry, int]:
    """What the wheel holds of a row, and its size."""
    if len(value) <= ENTRY_PAYLOAD_BYTES:
        return (shard, value), len(value) + ENTRY_OVERHEAD
    return (shard, None), ENTRY_OVERHEAD


class Writer:
    """Sans IO: `compose`, then a sync by whoever runs it, then `settle` or `fail`."""

    def __init__(
        self,
        opened: Opened,
        wheel: Wheel[Entry],
        clock: Clock,
        cursors: Cursors,
        *,
        max_queued: int,
        wake: Callable[[], None],
        settled: Callable[[], None],
        recovered: Callable[[], None],
    ) -> None:
        """`wake`: something waits for `compose`; `settled`: something new may be due; `recovered`: the store
        is back, and what RAM keeps of its rows, noted when it was decided, has to be read again."""
        self._opened = opened
        self._wheel = wheel
        self._clock = clock
        self._cursors = cursors
        self._max_queued = max_queued
        self._wake = wake
        self._settled = settled
        self._recovered = recovered
        self._queue: deque[tuple[int, bool, Decide, Done]] = deque()
        self._queued = 0
        self._open: deque[tuple[Group, list[tuple[Done, Any]]]] = deque()
        self._turns: list[tuple[Position, int]] = []
        self._mono = clock.mono()
        self.broken: ShardsError | None = None
        """Why the store takes no writes at the moment; None when it does."""
        self._is_reading = False
        """It is broken but can be read, and the wheel has been loaded from it."""

    @property
    def queued(self) -> int:
        """Messages' worth of requests that wait."""
        return self._queued

    @property
    def can_compose(self) -> bool:
        """Whether `compose` would find something to do."""
        if not self._queue or self.broken is not None:
            return False
        return len(self._open) < OPEN_GROUPS or not self._queue[0][1]

    @property
    def is_idle(self) -> bool:
        """Nothing waits to be written or synced."""
        return not self._queue and not self._open

    def submit(self, decide: Decide, done: Done, *, cost: int = 1, writes: bool = True) -> None:
        """Queue a request worth `cost` messages. Raises Busy at the bound, StoreFailed while broken."""
        if self.broken is not None and writes:
            raise StoreFailed(str(self.broken))
        if self._queued + cost > self._max_queued and self._queue:
            raise Busy(f"{self._queued} messages wait to be written, {self._max_queued} may")
        self._queue.append((cost, writes, decide, done))
        self._queued += cost
        self._wake()

    def note_turn(self, place: Position, wall_ms: int) -> None:
        """A dispatch turn ended at `place`: written to the journal with the next group."""
        if len(self._turns) >= TURNS_MAX:
            # Only while the store takes no writes: what is lost is when, not whether, they were dispatched.
            del self._turns[: TURNS_MAX // 2]
        self._turns.append((place, wall_ms))

    def dispatched_ms(self, place: Position) -> int | None:
        """Wall ms of the dispatch turn that passed `place`, also of one that is not in the journal yet.

        None if nobody knows it (any more).
        """
        written_ms = self._opened.reader.dispatched_ms(place)
        if written_ms is not None:
            return written_ms
        index = bisect_left(self._turns, (place, 0))
        return self._turns[index][1] if index < len(self._turns) else None

    def compose(self) -> Group | None:
        """Decide what is queued and write it as one group; None when nothing needs a sync.

        While enough groups are being synced only requests that should write nothing are let through.
        """
        if not self.can_compose:
            self._refuse_queue()
            return None
        commit = self._opened.commit
        commit.begin(self._clock.wall_ms())
        answers, writes = self._decide(commit)
        if not writes and commit.is_empty:
            for done, answer in answers:
                done(answer)
            self._settled()
            return None
        return self._write(commit, answers)

    def settle(self) -> None:
        """The oldest open group is durable: its messages may be sent, its answers leave."""
        group, answers = self._open.popleft()
        self._opened.horizon.close_group()
        loaded = self._wheel.loaded
        if group.placed and group.floor is not None and group.floor <= loaded:
            # A moved message is known by its id: this group or a later open one may have retired its new row.
            gone = {place for later in (group, *(g for g, _ in self._open)) for place in later.gone}
            for place, shard, value in group.placed:
                if place <= self._wheel.loaded and place not in gone:
                    item, size = entry(shard, value)
                    self._wheel.add(place, item, size)
        for done, answer in answers:
            done(answer)
        self._settled()

    def fail(self, error: ShardsError) -> None:
        """A write or sync failed: nothing that is open became durable for certain."""
        log.error("store failed: %s", error)
        failed = [answer for _, answers in self._open for answer in answers]
        self._open.clear()
        self.broken = error
        self._opened.horizon.unbounded = True
        for done, _ in failed:
            done(error)
        self._refuse_queue()

    def recover(self) -> bool:
        """Try to take the store into use again; False if it still refuses."""
        if self.broken is None:
            return True
        try:
            failure = reopen_timeline(self._opened)
            if failure is None:
                self._recovered()
        except ShardsError as error:
            log.warning("store cannot be read: %s", error)
            return False
        if failure is None or not self._is_reading:
            # What the wheel held, or had cancelled, of a group that failed is as the store has it now.
            self._wheel.clear(self._opened.horizon.position)
        self._is_reading = failure is not None
        if failure is not None:
            log.warning("store is not back: %s", failure)
            return False
        self.broken = None
        self._opened.horizon.unbounded = False
        self._cursors.mark_all()
        log.info("store is back")
        self._settled()
        return True

    def _decide(self, commit: Commit) -> tuple[list[tuple[Done, Any]], bool]:
        answers: list[tuple[Done, Any]] = []
        messages, writes = 0, False
        syncing = len(self._open) >= OPEN_GROUPS
        while self._queue and messages < GROUP_MESSAGES:
            cost, needs_write, decide, done = self._queue[0]
            if needs_write and syncing:
                break
            self._queue.popleft()
            self._queued -= cost
            messages += cost
            writes = writes or needs_write
            try:
                answer = decide(commit)
            except (Refused, Corrupt) as error:
                answer = error
            answers.append((done, answer))
        return answers, writes

    def _write(self, commit: Commit, answers: list[tuple[Done, Any]]) -> Group | None:
        mono = self._clock.mono()
        commit.running_ms += int((mono - self._mono) * 1000)
        self._mono = mono
        self._cursors.write_cursors(commit)
        commit.dispatched(self._turns)
        try:
            group = commit.seal()
        except StoreFailed as error:
            self._open.append((Group(), answers))
            self.fail(error)
            return None
        self._turns = []
        self._open.append((group, answers))
        for place in group.gone:
            self._wheel.cancel(place)
        return group

    def _refuse_queue(self) -> None:
        if self.broken is None:
            return
        queue, self._queue, self._queued = self._queue, deque(), 0
        for _, _, _, done in queue:
            done(StoreFailed(str(self.broken)))
