"""How schedules are shown: what was sent, the defaults said, and how it stands; and single fires."""

from typing import cast
from zoneinfo import ZoneInfo

from shards.schedules import ScheduleRow
from timeline.fires import Fire, local_text

from ...settings.times import format_ms
from . import shapes
from .names import MEMBERS


def schedule_view(name: str, row: ScheduleRow, pending: shapes.Fire | None) -> shapes.Schedule:
    """`pending`: the occurrence that is on the timeline."""
    timing = row.timing
    standing: shapes.Standing = {
        "timezone": timing.zone,
        "dst": {"gap": timing.gap, "overlap": timing.overlap},
        "misfire": timing.misfire,
        "state": "paused" if row.paused else "active" if row.occurrence is not None else "finished",
        "created_at": format_ms(row.created_ms),
        "changed_at": format_ms(row.anchor_ms),
        "count": row.count,
        "next": pending,
        "last": _last(row),
    }
    return cast("shapes.Schedule", {"name": name, **MEMBERS.decode(row.body), **standing})


def _last(row: ScheduleRow) -> shapes.Fire | None:
    if not row.last_ms:
        return None
    try:
        zone = ZoneInfo(row.timing.zone)
    except (ValueError, KeyError, OSError):  # one that this server knows no more
        zone = ZoneInfo("UTC")
    return {"at": format_ms(row.last_ms), "local": local_text(row.last_ms, zone)}


def fire_view(fire: Fire, zone: ZoneInfo) -> shapes.Fire:
    """One time at which it fires, in its zone too."""
    view: shapes.Fire = {"at": format_ms(fire.at_ms), "local": local_text(fire.at_ms, zone)}
    return {**view, "note": fire.note} if fire.note else view
