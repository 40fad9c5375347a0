"""Instants as text, in requests and answers: to UTC ms and back.

An instant (`deliver_at`) is RFC 3339 with an offset, or a local time with a zone in brackets; without either
it names no instant and is refused. Nothing here reads a clock. How long something takes is in durations.py.

"Never early" decides about fractions: they are rounded up to whole ms.

    2026-11-21T08:00:00.1230001Z          08:00:00.124 UTC
    2027-03-28T03:30[Europe/Bucharest]    01:30 UTC, 04:30 there: the clocks skip 03:00 to 04:00
    2027-10-31T03:30[Europe/Bucharest]    00:30 UTC, the first of the two

A local time in a gap is read with the offset from before the gap, which moves it after the gap by the gap's
length; a doubled one is read with the offset from before too, which makes it the first. Python's `fold=0`
says just that. A leap second (23:59:60 UTC) is the first second of the next day, as clocks here never show
it.

A number may be of another unit than the one that is read: Unix seconds for milliseconds, a time for a
duration. What can only be that is refused, and `other_reading` names what it may be.

Source: RFC 3339, RFC 9557 (the zone in brackets), PEP 495 (fold).
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, NoReturn
from zoneinfo import ZoneInfo

from msgspec import Meta

from .durations import TimeError, parse_delay
from .zones import meant

Instant = Annotated[str, Meta(description="RFC 3339, UTC with ms", extra_json_schema={"format": "date-time"})]
"""An instant in an answer."""

INSTANT_MS_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last instant that RFC 3339 can write."""

MEANT_FROM_MS = 100_000_000_000
"""1973-03-03T09:46:40Z. Unix seconds of today, read as ms, lie before it."""
SECONDS_MAX = 1_000_000_000
"""31 years, or 2001-09-09 in Unix seconds. A number of seconds from now or back is below it."""
_READ_TO_MS = 4_102_444_800_000
"""2100."""

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)

_INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"([Zz]|[+-]\d\d:\d\d)?(?:\[([^\[\]]*)\])?",
    re.ASCII,
)
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,64}(?:/[A-Za-z0-9_+-]{1,64}){0,3}", re.ASCII)
"""Names of zones have at most three parts, after an optional `posix/`. The library goes a folder, or a
package, deeper for each part, without a limit."""


def parse_deliver_at(text: str) -> int:
    """The instant that `text` names, in UTC ms, rounded up; from 1970 (exclusive) to the end of 9999.

    Raises TimeError. On the path of every message with a due time, so the usual shape, `YYYY-MM-DDTHH:MM:SS`
    with or without `.fff` and then `Z` or an offset, goes through `fromisoformat` (0.8 against 5 µs). The
    fixed characters are compared first, because that function takes many other shapes too.
    """
    marks = text[4:20:3]
    tail = text[23:] if marks == "--T::." else text[19:] if marks[:5] == "--T::" else ""
    if tail == "Z" or (len(tail) == 6 and tail[0] in "+-" and tail[3] == ":" and tail[4] < "6"):
        try:
            since = datetime.fromisoformat(text) - _EPOCH_UTC
        except ValueError:
            return _parse_slowly(text)
        # A division of two timedeltas takes twice as long.
        at_ms = (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
        return at_ms if 0 < at_ms <= INSTANT_MS_MAX else _refuse_year()
    return _parse_slowly(text)


def parse_due(text: str) -> int:
    """`parse_deliver_at` for the time of a message. Raises TimeError, also for a time before
    MEANT_FROM_MS."""
    due_ms = parse_deliver_at(text)
    if due_ms < MEANT_FROM_MS:
        raise TimeError(f"{text} is {due_ms} in Unix ms{other_reading(due_ms)}")
    return due_ms


def unix_ms(number: int) -> int:
    """Unix ms; 0 is the beginning. Raises TimeError for a number that is probably in another unit."""
    if 0 < number < MEANT_FROM_MS:
        why = f"{number} in Unix ms is {format_ms(number)}{other_reading(number)}"
        raise TimeError(f"{why}; give ms, or RFC 3339")
    return number


def other_reading(number: int) -> str:
    """The time that a number may mean, as the end of an error; empty: none from 1973 to 2100."""
    for unit, per_s in (("s", 1), ("ms", 1_000), ("µs", 1_000_000)):
        at_ms = number * 1_000 // per_s
        if MEANT_FROM_MS <= at_ms < _READ_TO_MS:
            return f"; {number} in Unix {unit} is {format_ms(at_ms)}"
    return ""


def instant_or_back(text: str, now_ms: int) -> int:
    """An instant, or one that a duration before `now_ms` names, in UTC ms. Raises TimeError."""
    try:
        return parse_deliver_at(text)
    except TimeError:
        if text[4:5] == "-":
            raise
    if _number(text) >= SECONDS_MAX:
        why = f"{text[:20]} s is more than 31 years{other_reading(_number(text))}"
        raise TimeError(f"{why}; give RFC 3339, or a duration back from now")
    try:
        return max(0, now_ms - parse_delay(text))
    except TimeError:
        raise TimeError(
            f"{text[:40]!r} is neither an RFC 3339 time nor a duration back from now such as 1h"
        ) from None


def _number(text: str) -> int:
    """A number in digits; 0: it is none."""
    return int(text[:20]) if text.isascii() and text.isdigit() else 0


def wall_time(text: str) -> bytes:
    """The stored form of `text`, if it is a local wall time with only a zone; else empty.

    Only such a time can mean another instant later. With an offset, or in UTC, the instant is fixed.
    """
    if text[-1:] != "]":
        return b""
    found = _INSTANT.fullmatch(text)
    return text.encode() if found is not None and found[8] is None else b""


def _parse_slowly(text: str) -> int:
    found = _INSTANT.fullmatch(text)
    if found is None:
        raise TimeError(
            "not an RFC 3339 time such as 2026-11-21T08:00:00Z or 2027-03-28T09:00[Europe/Bucharest]"
            + other_reading(_number(text))
        )
    year, month, day, hour, minute, second, fraction, offset, zone = found.groups()
    leap = second == "60"
    try:
        local = datetime(
            int(year), int(month), int(day), int(hour), int(minute), 59 if leap else int(second or 0)
        )
    except ValueError as error:
        raise TimeError(f"no such time: {error}") from None
    away_s = _offset_s(local, offset, zone)
    since = local - _EPOCH
    at_s = since.days * 86_400 + since.seconds - away_s
    if leap:
        if at_s % 86_400 != 86_399:
            raise TimeError("no such time: second 60 is only in 23:59:60 UTC")
        at_s += 1
    at_ms = at_s * 1_000 - (-int((fraction or "").ljust(9, "0")) // 1_000_000)
    return at_ms if 0 < at_ms <= INSTANT_MS_MAX else _refuse_year()


def _refuse_year() -> NoReturn:
    raise TimeError("a time must be after 1970-01-01T00:00:00Z and within the year 9999")


def _offset_s(local: datetime, offset: str | None, zone: str | None) -> int:
    """Offset of `local` from UTC, s."""
    if zone is None:
        if offset is None:
            raise TimeError(
                "a local time needs an offset or a zone: end it with Z, +02:00 or [Europe/Bucharest]"
            )
        return _numeric_s(offset)
    there = local.replace(tzinfo=zone_of(zone)).utcoffset() or timedelta()
    zone_s = there.days * 86_400 + there.seconds
    if offset is None:
        return zone_s
    if offset in "Zz":
        return 0
    given_s = _numeric_s(offset)
    later = local.replace(tzinfo=zone_of(zone), fold=1).utcoffset() or timedelta()
    if given_s not in (zone_s, later.days * 86_400 + later.seconds):
        raise TimeError(f"the offset {offset} differs from the offset of {zone} at that time")
    return given_s


def _numeric_s(offset: str) -> int:
    if offset in "Zz":
        return 0
    hours, minutes = int(offset[1:3]), int(offset[4:6])
    if hours > 23 or minutes > 59:
        raise TimeError(f"no such offset: {offset}")
    return (hours * 3_600 + minutes * 60) * (-1 if offset[0] == "-" else 1)


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this name. Raises TimeError."""
    if _ZONE.fullmatch(name):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    zone = meant(name)
    what = f"is {zone} meant?" if zone else "names are those of the IANA database, such as Europe/Vienna"
    raise TimeError(f"unknown time zone {name[:64]!r}; {what}")


def format_ms(at_ms: int) -> str:
    """UTC ms as RFC 3339 with ms: `2026-11-21T08:00:00.123Z`. For 0 to INSTANT_MS_MAX.

    On the path of every 201. Neighbouring answers share their minute, whose text is cached: 1.1 µs, where
    `datetime.isoformat` and `time.gmtime` took 3.5 in the same run.
    """
    minute, rest_ms = divmod(at_ms, 60_000)
    digits = str(100_000 + rest_ms)
    return f"{_minute_text(minute)}{digits[1:3]}.{digits[3:]}Z"


def time_text(at_ms: int) -> Instant:
    """The same of any time: a later one as the last that can be written."""
    return format_ms(min(at_ms, INSTANT_MS_MAX))


@lru_cache(maxsize=4_096)
def _minute_text(minute: int) -> str:
    """`2026-11-21T08:00:`. Cached: the function is pure, so this is no module state."""
    return (_EPOCH + timedelta(minutes=minute)).isoformat()[:17]
