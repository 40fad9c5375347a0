"""The start of a schedule, also if it is a local time that the clocks skip.

    "2027-03-28T03:30[Europe/Bucharest]", 03:00 becomes 04:00:    after 04:30, before 02:30, skip none

A rule counts from the local time that was written, 03:30. Its instant is another local time, 04:30: a rule
that counted from there would be an hour late for ever.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from timeline.fires import local_of

from ..settings.times import parse_deliver_at, wall_time

_EPOCH = datetime(1970, 1, 1)


def start_of(text: str | None, zone: str, gap: str) -> tuple[int, int]:
    """The start in UTC ms, 0: none; and its local time as if it were UTC, if the clocks of `zone` skip it,
    else -1. Raises TimeError; KeyError, ValueError or OSError for the zone."""
    at_ms = 0 if text is None else parse_deliver_at(text)
    if text is None or not wall_time(text).endswith(f"[{zone}]".encode()):
        return at_ms, -1
    there = ZoneInfo(zone)
    try:
        nominal = datetime.fromisoformat(text.partition("[")[0])
    except ValueError:  # a leap second
        return at_ms, -1
    nominal = nominal.replace(microsecond=0)
    if abs(nominal - local_of(at_ms, there)) < timedelta(seconds=1):
        return at_ms, -1
    if gap == "before":
        at_ms = int(nominal.replace(tzinfo=there, fold=1).astimezone(UTC).timestamp()) * 1_000
    return at_ms, (nominal - _EPOCH) // timedelta(milliseconds=1)
