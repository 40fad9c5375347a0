"""The next fires of a schedule: the pending occurrence, wherever it was moved, then the fires behind it.

Some rules take long to parse and compute, so that is done in a thread. The pending occurrence, of which a
page has up to 1,000, does not need the rule.
"""

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import cast
from zoneinfo import ZoneInfo

from shards.errors import Corrupt
from shards.record import decode, is_stub
from shards.schedules import ScheduleRow
from timeline.fires import Fire, Gap, Overlap, Plan, due_by, local_of, note_of, unsent
from timeline.position import id_text
from timeline.recurrence import RuleError
from timeline.sent import Ranges

from ..engine.clock import Clock
from ..schedules.recurring import plan_of
from .timeline import Timeline
from .turns import OneThread, Turn
from .values import shapes
from .values.schedule_views import fire_view, start_note

AHEAD_MS = 100 * 366 * 86_400_000
"""How far ahead to look."""


@dataclass(frozen=True, slots=True, eq=False)
class Upcoming:
    """The next fires of one server's schedules."""

    clock: Clock
    timeline: Timeline
    thread: OneThread

    async def of(
        self, turn: Turn, name: str, row: ScheduleRow, count: int, ahead_ms: int = AHEAD_MS
    ) -> list[shapes.Fire]:
        """At most the next `count` fires, within `ahead_ms` behind the handled ones.

        Only the pending one, if this server does not know the zone or cannot search the rule.
        """
        views: list[shapes.Fire] = []
        now_ms = self.clock.wall_ms()
        left = row.timing.limit - row.count if row.timing.limit else count
        pending = self.pending(row)
        if pending is not None:
            views.append(pending)
        wanted = 0 if row.paused else max(0, min(count - len(views), left))

        def beyond() -> list[shapes.Fire]:
            plan = plan_of(row.timing, name, row.anchor_ms)
            after_ms = row.through_ms if pending else max(row.through_ms, due_by(plan, now_ms))
            return fire_views(plan, after_ms, wanted, ahead_ms, row.sent)

        with suppress(ValueError, KeyError, OSError):
            views += await turn.in_thread(self.thread, beyond)
        return views

    def pending(self, row: ScheduleRow) -> shapes.Fire | None:
        """The occurrence that is written and not yet dispatched."""
        if row.occurrence is None:
            return None
        message = row.occurrence.message
        try:
            found = self.timeline.reader.find(message)
        except Corrupt:
            return None  # one bad row must not hide the others
        if found is None or is_stub(found.value) or self.timeline.has_passed(found):
            return None
        occurrence, timing = row.occurrence, row.timing
        try:
            zone = ZoneInfo(timing.zone)
        except (ValueError, KeyError, OSError):
            return None  # a zone or rule that this server no longer knows
        if found.row_id != message:
            due_ms = decode(found.value).due_ms
            fire = Fire(due_ms, due_ms, local_of(due_ms, zone), "moved by itself")
        else:
            note, nominal_ms = "", occurrence.nominal_ms
            if timing.kind != "every" and nominal_ms >= 0:
                gap, overlap = cast("Gap", timing.gap), cast("Overlap", timing.overlap)
                note = note_of(nominal_ms, occurrence.base_ms, zone, gap, overlap)
            note = start_note(timing, note)
            fire = Fire(occurrence.base_ms, occurrence.at_ms, local_of(occurrence.at_ms, zone), note)
        view = fire_view(fire, zone)
        view.id = id_text(message)
        return view


def fire_views(
    plan: Plan, after_ms: int, count: int, ahead_ms: int = AHEAD_MS, sent: Ranges = ()
) -> list[shapes.Fire]:
    """Fires behind `after_ms` that are not in `sent`: at most `count`, up to `ahead_ms` ahead.

    Fewer, if finding the others would take too long.
    """
    last_ms = after_ms + ahead_ms
    found = takewhile(lambda fire: fire.base_ms <= last_ms, unsent(plan, after_ms, sent))
    views: list[shapes.Fire] = []
    with suppress(RuleError):
        views.extend(fire_view(fire, plan.zone) for fire in islice(found, count))
    return views
