"""Views of schedules: the definition with its defaults, and the state; and views of single fires.

If the clock was ahead and was set back, some future fires have already been sent. Until they are over the
schedule sends nothing, and its view says so.
"""

from typing import Literal, cast
from zoneinfo import ZoneInfo

from msgspec import UNSET, to_builtins

from shards.schedules import ScheduleRow, TimingRow
from timeline.fires import GRACE_MS, Fire, local_text
from timeline.recurrence import implied_times

from ...settings.times import format_ms
from . import shapes
from .message_body import MEMBERS


def schedule_view(
    name: str, row: ScheduleRow, pending: shapes.Fire | None, now_ms: int, clock_ms: int
) -> shapes.Schedule:
    """With all members of its definition. `pending`: the occurrence on the timeline;
    `clock_ms`: the highest time of the clock so far."""
    timing = row.timing
    state = shapes.ScheduleState(
        timezone=timing.zone,
        dst=shapes.DstPolicy(timing.gap, timing.overlap),
        misfire=timing.misfire,
        state=_state(row),
        created_at=format_ms(row.created_ms),
        changed_at=format_ms(row.changed_ms or row.anchor_ms),
        count=row.count,
        next=pending,
        last=_last(row),
        silent=_silence(row, now_ms, clock_ms),
        reason=row.stopped or UNSET,
    )
    # The definition may have members that its description leaves out.
    return cast("shapes.Schedule", {"name": name, **MEMBERS.decode(row.body), **to_builtins(state)})


def _state(row: ScheduleRow) -> Literal["active", "paused", "stopped", "finished"]:
    if row.paused:
        return "paused"
    if row.occurrence is not None:
        return "active"
    return "stopped" if row.stopped else "finished"


def _silence(row: ScheduleRow, now_ms: int, clock_ms: int) -> shapes.Silence | None:
    """When the schedule sends nothing, and why; None: steps of the clock that are waited out cause no
    silence."""
    occurrence, timing = row.occurrence, row.timing
    if occurrence is None or clock_ms - now_ms <= GRACE_MS:
        return None
    base_ms = occurrence.base_ms
    sent_ms = max((last for first, last in row.sent if first <= clock_ms and last < base_ms), default=0)
    if sent_ms - now_ms > GRACE_MS:
        why = f"the clock was ahead, up to {format_ms(clock_ms)}: fires up to {format_ms(sent_ms)} were sent"
    elif timing.kind == "rrule" and not timing.start_ms and row.anchor_ms - now_ms > GRACE_MS:
        why = f"the clock was ahead when the rule was saved: it starts at {format_ms(row.anchor_ms)}"
    else:
        return None
    return shapes.Silence(format_ms(occurrence.at_ms), why)


def start_note(timing: TimingRow, note: str = "") -> str:
    """The note of a schedule's next fire. Also names the parts of its time that the rule does not give."""
    names = implied_times(timing.expression) if timing.kind == "rrule" and not timing.start_ms else []
    hint = f"without start, {', '.join(names)} come from the time when the rule was sent: give them, or start"
    return "; ".join(filter(None, (note, hint if names else "")))


def _last(row: ScheduleRow) -> shapes.Fire | None:
    if not row.last_ms:
        return None
    try:
        zone = ZoneInfo(row.timing.zone)
    except (ValueError, KeyError, OSError):  # a zone or rule that this server no longer knows
        zone = ZoneInfo("UTC")
    return shapes.Fire(format_ms(row.last_ms), local_text(row.last_ms, zone))


def fire_view(fire: Fire, zone: ZoneInfo) -> shapes.Fire:
    """One fire, also in its zone."""
    return shapes.Fire(format_ms(fire.at_ms), local_text(fire.at_ms, zone), fire.note or UNSET)
