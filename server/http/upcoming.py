"""What a schedule will send: the pending occurrence, wherever it was moved, then the fires behind it.

A rule can be made that takes a while to be counted out, so that is done in a thread.
"""

import asyncio
from itertools import islice, takewhile

from shards.errors import Corrupt
from shards.record import decode, is_stub
from shards.schedules import ScheduleRow
from timeline.fires import Fire, Plan, fires, local_of
from timeline.position import id_text

from ..clock import Clock
from ..schedules.recurring import plan_of
from .timeline import Timeline
from .values import shapes
from .values.schedule_views import fire_view

AHEAD_MS = 100 * 366 * 86_400_000
"""How far is looked."""


class Upcoming:
    """The fires of one server's schedules."""

    def __init__(self, clock: Clock, timeline: Timeline) -> None:
        self._clock = clock
        self._timeline = timeline

    async def of(
        self, name: str, row: ScheduleRow, count: int, ahead_ms: int = AHEAD_MS
    ) -> list[shapes.Fire]:
        """The next `count` at most. `ahead_ms`: how far behind what is dealt with by now they may be.

        Raises ValueError, KeyError, OSError for a zone or rule that this server knows no more.
        """
        plan = plan_of(row.timing, name, row.anchor_ms)
        views: list[shapes.Fire] = []
        through_ms = max(row.through_ms, self._clock.wall_ms())
        left = row.timing.limit - row.count if row.timing.limit else count
        pending = self.pending(row)
        if pending is not None:
            views.append(pending)
            through_ms = row.through_ms
        if not row.paused:
            wanted = max(0, min(count - len(views), left))
            views += await asyncio.to_thread(fire_views, plan, through_ms, wanted, ahead_ms)
        return views

    def pending(self, row: ScheduleRow) -> shapes.Fire | None:
        """The occurrence that is written and not yet dispatched."""
        if row.occurrence is None:
            return None
        message = row.occurrence.message
        try:
            found = self._timeline.reader.find(message)
        except Corrupt:
            return None  # one must not hide the others
        if found is None or is_stub(found.value) or self._timeline.has_passed(found):
            return None
        try:
            plan = plan_of(row.timing, "", row.anchor_ms)
        except (ValueError, KeyError, OSError):
            return None  # a zone or rule that this server knows no more
        occurrence = row.occurrence
        if found.row_id != message:
            due_ms = decode(found.value).due_ms
            fire = Fire(due_ms, due_ms, local_of(due_ms, plan.zone), "moved by itself")
        else:
            again = next(fires(plan, occurrence.base_ms - 1), None)
            note = again.note if again is not None and again.base_ms == occurrence.base_ms else ""
            fire = Fire(occurrence.base_ms, occurrence.at_ms, local_of(occurrence.at_ms, plan.zone), note)
        return {**fire_view(fire, plan), "id": id_text(message)}


def fire_views(plan: Plan, after_ms: int, count: int, ahead_ms: int = AHEAD_MS) -> list[shapes.Fire]:
    """The fires behind `after_ms`, `count` at most and not further ahead than `ahead_ms`."""
    last_ms = after_ms + ahead_ms
    found = takewhile(lambda fire: fire.base_ms <= last_ms, fires(plan, after_ms))
    return [fire_view(fire, plan) for fire in islice(found, count)]
