"""The dispatch cursor: the current time, the place of a new message, and the bound of dispatch.

There are three times. *wall* is the machine's clock; it can jump either way. *T* (`clock_ms`) is the highest
wall time seen; it never goes back. The *horizon* is a position: all at or behind it counts as dispatched,
nothing is ever written there.

A new message goes to (T, seq) if its due has come, to (due, seq) if its due is later than T. Between the two
(wall < due <= T, the clock was set back) it may not be sent yet, and can no longer be written at its due: it
waits in the table `held` until the wall clock reaches its due. For a step back of up to one second the
message goes to T + 1 instead, which no clock shows before its due.

The horizon stops below
  - (T, last seq issued): what has not been given a place yet can still come after it;
  - `loaded`, the position up to which the wheel holds everything;
  - every position touched by a group that is written but not yet synced (puts, cancels, moves): such a
    row can be read but may be gone after a crash;
  - the durable *bound*: each group writes T + 2 s, and stored messages are dispatched only below the
    last bound that reached the disk. After a start nobody can know which of the messages below it were
    sent, so cancels and moves there answer "already dispatched" (`refuse_ms`). While groups cannot be
    written the bound is *marked* in a place of its own, which takes no room on a full disk; only where
    that fails too, on a disk that takes nothing at all, is dispatch without a bound.

Example: T = 1,000, seq 7, a group with a put at (1,000, 6) is being synced: the horizon may go to
(1,000, 5). The sync ends: to (1,000, 7). The clock shows 1,003: to (1,003, 7), if the wheel is loaded
so far.

The class reads no clock. The caller says what the wall shows.
"""

from collections import deque

from .position import END, SEQ_BITS, Position, at_of, before, position

BOUND_MS = 2_000
"""Reach of the bound beyond T, ms: a heartbeat must reach the disk within it."""
STEP_MS = 1_000
"""Clock steps back up to this are waited out."""
HELD = -1
"""`place` says: the message has to wait in the table `held`."""
SEQ_GAP = 1 << 20
"""Seq numbers left unused at a start: some may have been shown to users and never stored."""


class Horizon:
    """Dispatch cursor of one node."""

    def __init__(self, *, position: Position, bound_ms: int, seq: int, wall_ms: int) -> None:
        """Resume from stored values. T = max(wall, the stored horizon's ms)."""
        self.position = position
        self.clock_ms = max(wall_ms, at_of(position))
        self.seq = seq + SEQ_GAP
        self.bound_ms = bound_ms
        self.written_bound_ms = bound_ms
        self.refuse_ms = bound_ms
        self.ahead_ms = BOUND_MS
        self.unbounded = False
        """Set while the disk takes nothing, not even a mark. No cancel is accepted then; but if the process
        is killed and the clock set back, a cancel after the start may win against what was sent."""
        self._open: deque[tuple[Position, int]] = deque()
        self._composed = END

    def observe(self, wall_ms: int) -> None:
        """Observe the wall clock."""
        if wall_ms > self.clock_ms:
            self.clock_ms = wall_ms

    def issue(self) -> int:
        """The next seq: grows, never reused."""
        self.seq += 1
        return self.seq

    def place(self, due_ms: int, wall_ms: int) -> int:
        """The `at` of a message due at `due_ms` (0: no due), or HELD."""
        if due_ms <= wall_ms:
            return self.clock_ms
        if due_ms > self.clock_ms:
            return due_ms
        if self.clock_ms - wall_ms <= STEP_MS:
            return self.clock_ms + 1
        return HELD

    def undecided(self, place: Position) -> bool:
        """Whether a cancel or move of a message at `place` still wins."""
        return at_of(place) > max(self.clock_ms, self.refuse_ms)

    def hold(self, floor: Position | None) -> None:
        """Stay below the lowest position that is decided and not written yet; None: all is written."""
        self._composed = END if floor is None else floor

    def open_batch(self, floor: Position | None) -> int:
        """A group is about to be written; `floor` is the lowest position it touches, if any.

        Returns the bound (ms) that it has to write.
        """
        self.written_bound_ms = max(self.written_bound_ms, self.clock_ms + self.ahead_ms)
        self._open.append((END if floor is None else floor, self.written_bound_ms))
        return self.written_bound_ms

    def close_group(self) -> None:
        """Note that the oldest open group is durable."""
        _, self.bound_ms = self._open.popleft()

    @property
    def reach(self) -> Position:
        """How far dispatch may have come: due before its ms, placed up to its seq."""
        return position(self.bound_ms, self.seq)

    def drop_groups(self, stored_bound_ms: int) -> None:
        """No open group will become durable: the store was reopened with `stored_bound_ms`."""
        self._open.clear()
        self.bound_ms = self.written_bound_ms = stored_bound_ms

    def marked(self, bound_ms: int) -> None:
        """Note that the bound was marked durably without a group."""
        self.bound_ms = max(self.bound_ms, bound_ms)
        self.unbounded = False

    @property
    def mark_ms(self) -> int | None:
        """The bound to be marked now if groups cannot be written; None while the last one lasts."""
        return self.clock_ms + self.ahead_ms if self.clock_ms > self.bound_ms - BOUND_MS // 2 else None

    @property
    def needs_heartbeat(self) -> bool:
        """Whether half of the bound's reach is used up, so that a group should be written."""
        return self.clock_ms > self.written_bound_ms - BOUND_MS // 2

    def limit(self, loaded: Position) -> Position:
        """How far the horizon may move now, when the wheel holds everything up to `loaded`."""
        limit = min(self.clock_ms << SEQ_BITS | self.seq, loaded)
        if not self.unbounded:
            limit = min(limit, before(self.bound_ms))
        for floor, _ in self._open:
            limit = min(limit, floor - 1)
        limit = min(limit, self._composed - 1)
        return Position(max(limit, self.position))

    def advance(self, to: Position) -> None:
        """Move to `to`, a position that `limit` allowed."""
        assert to >= self.position, "the horizon only moves forward"
        self.position = to
