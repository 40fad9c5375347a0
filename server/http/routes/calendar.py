"""`GET /v1/schedules.ics`: the next fires of schedules, as a calendar to subscribe to.

Each fire is an event of its own, not a recurring rule: calendars know neither jitter nor the schedule's DST
handling, and would show wrong times. An event's UID is its schedule and its time, so a calendar recognises
known events.

    BEGIN:VEVENT
    UID:nightly-1795312800000@fasti
    DTSTART:20261122T013000Z
    SUMMARY:nightly: jobs/nightly

The few rules of the format (lines end with CR LF and are folded at 75 bytes, some characters are escaped) are
written here without a package: a feed needs no more. Calendar programs can send a key only by Basic
(access.py). Source: RFC 5545, 3.1, 3.3.11, 3.6.1.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from aiohttp import web

from shards.record import topic_of
from shards.schedules import ScheduleRow

from ...engine.clock import Clock
from ...schedules.recurring import Schedules
from ...settings.times import parse_deliver_at
from ..access import CALENDAR, sees
from ..calls import READ, Gives, described
from ..requests import number_parameter
from ..timeline import Timeline
from ..turns import OneThread, Turns
from ..upcoming import Upcoming
from ..values import shapes

DAY_MS = 86_400_000
DAYS_DEFAULT, DAYS_MAX = 30, 366
EVENTS_MAX = 2_000
"""Maximum events of a calendar, and maximum schedules read. Those beyond, by name, are left out."""
EVENTS_EACH = 200
"""Maximum events of one schedule: one that fires each minute leaves room for others."""
PAGE = 100
LINE_BYTES = 75
MEDIA = "text/calendar"
Days = Annotated[
    int, msgspec.Meta(extra_json_schema={"minimum": 1, "maximum": DAYS_MAX, "default": DAYS_DEFAULT})
]


@dataclass(frozen=True, slots=True, eq=False)
class Calendar:
    """The route."""

    clock: Clock
    timeline: Timeline
    turns: Turns
    thread: OneThread
    schedules: Schedules

    def routes(self) -> list[web.RouteDef]:
        return [web.get(CALENDAR, self.get)]

    @described(
        "What schedules will send, as a calendar (RFC 5545)",
        READ,
        Gives(200, str, media=MEDIA),
        query={"days": Days},
    )
    async def get(self, request: web.Request) -> web.Response:
        days = number_parameter(request, "days", DAYS_DEFAULT, DAYS_MAX)
        lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//fasti//schedules//EN", "X-WR-CALNAME:fasti"]
        lines += await self._events(request, days * DAY_MS)
        lines += ["END:VCALENDAR", ""]
        return web.Response(body="\r\n".join(lines).encode(), content_type=MEDIA, charset="utf-8")

    async def _events(self, request: web.Request, ahead_ms: int) -> list[str]:
        """Their folded lines, in steps: 2,000 events at once would hold up the loop."""
        now_ms = self.clock.wall_ms()
        turn, stamp = self.turns.of(request), _stamp(now_ms)
        upcoming = Upcoming(self.clock, self.timeline, self.thread)
        lines: list[str] = []
        looked = count = 0
        after = ""
        while max(looked, count) < EVENTS_MAX and (page := self.schedules.after(after, PAGE)):
            for name, row in page:
                after = name
                looked += 1
                if count >= EVENTS_MAX:
                    break
                await turn.begin()
                may_see = sees(request)  # rules may change meanwhile
                if row.paused or not (may_see is None or may_see(topic_of(row.record))):
                    continue
                most = min(EVENTS_EACH, EVENTS_MAX - count)
                fires = await upcoming.of(turn, name, row, most, ahead_ms)
                await turn.begin()
                for number, fire in enumerate(fires, 1):
                    at_ms = parse_deliver_at(fire.at)
                    if at_ms <= now_ms + ahead_ms:
                        lines += map(folded, _event(name, row, fire, at_ms, stamp))
                        count += 1
                    if turn.is_over(number):
                        await turn.begin()
        return lines


def folded(line: str) -> str:
    """A content line, folded; continuations begin with a blank, and no character is cut."""
    if len(line) <= LINE_BYTES and line.isascii():
        return line
    parts, size = [""], 0
    for character in line:
        length = len(character.encode())
        if size + length > LINE_BYTES:
            parts.append(" ")
            size = 1
        parts[-1] += character
        size += length
    return "\r\n".join(parts)


def escaped(text: str) -> str:
    """A value of type TEXT. Characters that it cannot hold are left out."""
    plain = "".join(one for one in text if one in "\n\t" or one.isprintable())
    return plain.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,").replace("\n", "\\n")


def _event(name: str, row: ScheduleRow, fire: shapes.Fire, at_ms: int, stamp: str) -> list[str]:
    timing = row.timing
    every = f"{int(timing.expression) / 1_000:g} s" if timing.kind == "every" else timing.expression
    description = [
        f"{fire.local} ({timing.zone})",
        *([fire.note] if fire.note else []),
        f"{timing.kind}: {every}",
    ]
    return [
        "BEGIN:VEVENT",
        f"UID:{name}-{at_ms}@fasti",
        f"DTSTAMP:{stamp}",
        f"DTSTART:{_stamp(at_ms)}",
        f"SUMMARY:{escaped(name)}: {escaped(topic_of(row.record).decode())}",
        f"DESCRIPTION:{escaped(chr(10).join(description))}",
        "TRANSP:TRANSPARENT",
        "END:VEVENT",
    ]


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
