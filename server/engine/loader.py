"""Keeps the wheel filled from the slices on disk.

Each step opens fresh iterators at the wheel's `loaded` position, takes a bounded run of rows and closes them.
An open iterator does not see later rows. But a message written at or before `loaded` enters the wheel by
itself, and the next step finds one beyond it.

It skips a corrupt range, but only after the range has been noted (shards/unreadable.py).
"""

from itertools import islice

from shards.read import Reader
from shards.record import is_stub
from timeline.horizon import Horizon
from timeline.position import Position, before
from timeline.wheel import Wheel

from .writer import Entry, entry

STEP_ROWS = 2_000
URGENT_MS = 5_000
"""The wheel is always loaded this far beyond T, if its bound allows."""
AHEAD_MS = 600_000
"""And this far while it is less than half full."""


class Loader:
    """Moves rows from disk to the wheel. One step is a few milliseconds."""

    def __init__(self, reader: Reader, wheel: Wheel[Entry], horizon: Horizon) -> None:
        self._reader = reader
        self._wheel = wheel
        self._horizon = horizon

    @property
    def is_behind(self) -> bool:
        """Whether a step is worthwhile now."""
        wheel, clock_ms = self._wheel, self._horizon.clock_ms
        if wheel.is_full or wheel.loaded >= wheel.reach:
            return False
        if wheel.loaded < before(clock_ms + URGENT_MS):
            return True
        is_half_empty = len(wheel) * 2 < wheel.max_entries and wheel.bytes * 2 < wheel.max_bytes
        return is_half_empty and wheel.loaded < before(clock_ms + AHEAD_MS // 2)

    def step(self, rows: int = STEP_ROWS) -> int:
        """Load at most `rows` rows; returns the number of rows read."""
        wheel = self._wheel
        if not len(wheel) and wheel.reach < before(self._horizon.clock_ms):
            self._skip()
        room = min(rows, wheel.max_entries - len(wheel))
        end = min(wheel.reach, before(self._horizon.clock_ms + AHEAD_MS))
        if room <= 0 or end <= wheel.loaded:
            return 0
        last, count, left = wheel.loaded, 0, wheel.max_bytes - wheel.bytes
        unreadable = self._reader.unreadable
        for place, shard, value in islice(self._reader.read(Position(last + 1), Position(end + 1)), room):
            if place >= unreadable.barrier:
                break
            count += 1
            last = place
            if not is_stub(value):
                item, size = entry(shard, value)
                wheel.load(place, item, size)
                left -= size
            if left <= 0:
                break
        # `left` may be short of what the wheel has: a run that failed half way is read once more.
        is_complete = count < room and left > 0 and not wheel.is_full
        wheel.loaded_to(min(end, Position(unreadable.barrier - 1)) if is_complete else last)
        return count

    def _skip(self) -> None:
        """Jump to the first row that must be fired, after a downtime or a clock jump."""
        wheel, now = self._wheel, before(self._horizon.clock_ms)
        rows = self._reader.read(Position(wheel.loaded + 1), now)
        first = min(next((place for place, _, _ in rows), now), self._reader.unreadable.barrier)
        wheel.skip(Position(max(wheel.loaded, min(first - 1, now))))
