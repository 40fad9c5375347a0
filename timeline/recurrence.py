"""Recurrence rules (RFC 5545) on local times: from a text to numbers (timeline/series.py).

    FREQ=MONTHLY;BYDAY=-1FR                         the last Friday of each month, at the start's time of day
    RRULE:FREQ=DAILY;INTERVAL=2                     lines as in a calendar file, EXDATE lines
    EXDATE:20261224T090000,20261226T090000          leave these out

The schedule gives the start, so a rule must not have DTSTART or TZID: every time here is local. `UNTIL` with
a Z is an instant, and is handled where zones are known. A rule takes missing parts from the start: the day of
the month, the time of day.

The tables are those of section 3.3.10: the numbers that a part takes (`_RANGES`), and the values of FREQ that
a part may stand with (`_STANDS_WITH`). An earlier version, which did not check them, may have stored a rule.
Such a rule is read as before (`strict` is false): numbers out of range have no effect.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from math import prod
from types import MappingProxyType

from .series import Series, TooLong

COUNT_MAX = 1_000
TIMES_MAX = 1_440
"""Times of day that BYHOUR, BYMINUTE and BYSECOND may make."""
EXDATES_MAX = 1_000
POSITIONS_MAX = 366
"""Values of BYSETPOS."""
CHARS_MAX = 32_768

_FREQS = ("SECONDLY", "MINUTELY", "HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY")
_RANGES = MappingProxyType(
    {
        "BYMONTH": (1, 12),
        "BYMONTHDAY": (-31, 31),
        "BYYEARDAY": (-366, 366),
        "BYWEEKNO": (-53, 53),
        "BYHOUR": (0, 23),
        "BYMINUTE": (0, 59),
        "BYSECOND": (0, 59),
        "BYSETPOS": (-366, 366),
    }
)
"""Least and greatest number. Where the least is negative, 0 is none."""
_STANDS_WITH = MappingProxyType(
    {
        "BYWEEKNO": ("YEARLY",),
        "BYYEARDAY": ("SECONDLY", "MINUTELY", "HOURLY", "YEARLY"),
        "BYMONTHDAY": ("SECONDLY", "MINUTELY", "HOURLY", "DAILY", "MONTHLY", "YEARLY"),
    }
)
_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_BY_DAY = ("BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO")
_KNOWN = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_RANGES}
_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)Z?)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_WEEKDAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", re.ASCII)
_FOLD = re.compile(r"\r?\n[ \t]")


class RuleError(ValueError):
    """Not a recurrence rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. `until`: its last local time; `until_utc`: last instant, naive UTC; `count`: times in all, 0:
    no bound."""

    series: Series
    exdates: frozenset[datetime]
    until: datetime | None
    until_utc: datetime | None
    count: int

    def times(self, local: datetime, last: datetime = datetime.max) -> Iterator[datetime]:
        """The times later than `local` that are not excluded, in order, to `last`. Raises RuleError."""
        times = self.series.times(local, last)
        if self.count:
            times = islice(self.series.times(self.series.start - timedelta(seconds=1), last), self.count)
        try:
            for at in times:
                if self.until is not None and at > self.until:
                    return
                if at > local and at not in self.exdates:
                    yield at
        except TooLong as error:
            raise RuleError(str(error)) from None


def parse_rule(text: str, start: datetime, *, strict: bool = True) -> Rule:
    """Read an RRULE, with or without its name, and EXDATE lines. `start`: local. Raises RuleError.

    `strict`: a rule that has just been sent.
    """
    if len(text) > CHARS_MAX:
        raise RuleError(f"has {len(text)} characters, at most {CHARS_MAX} are read")
    rule, exdates = _lines(text)
    parts = _parts(rule)
    start = start.replace(microsecond=0)
    until, until_utc = _until(parts.pop("UNTIL", ""))
    count = _bounded(parts, "COUNT", COUNT_MAX)
    if count and (until or until_utc):
        raise RuleError("COUNT and UNTIL exclude each other")
    if strict:
        _check_standing(parts)
    _check_times(parts)
    made = Rule(_series(parts, start, strict=strict), exdates, until, until_utc, count)
    if strict and next(made.times(start - timedelta(seconds=1)), None) is None:
        raise RuleError("gives no time at all from its start on")
    return made


def implied_times(text: str) -> list[str]:
    """The parts about the time of day that a rule does not have, and takes from its start."""
    freq = re.search(r"FREQ=(\w+)", text.upper())
    return [name for name in _time_parts(freq[1] if freq else "") if name not in text.upper()]


def _time_parts(freq: str) -> tuple[str, ...]:
    """The parts about the time of day that make times of a period; the others only limit."""
    fixed = 3 - _FREQS.index(freq) if freq in _FREQS[:3] else 0
    return ("BYHOUR", "BYMINUTE", "BYSECOND")[fixed:]


def _series(parts: Mapping[str, str], start: datetime, *, strict: bool) -> Series:
    """The rule in numbers, with what it takes from its start."""
    _check_positions(parts.get("BYSETPOS", "1"))
    freq, of = parts["FREQ"], {name: _numbers(parts, name, strict=strict) for name in _RANGES}
    week_start = parts.get("WKST", "MO")
    if week_start not in _DAYS:
        raise RuleError(f"WKST: {week_start[:40]!r} is no day such as MO")
    months, month_days = of["BYMONTH"], of["BYMONTHDAY"]
    weekdays = frozenset(_weekdays(parts, strict=strict))
    by_day = [name for name in _BY_DAY if name in parts]
    if (freq == "WEEKLY" and not by_day) or (freq == "YEARLY" and by_day == ["BYWEEKNO"]):
        weekdays = frozenset({(0, start.weekday())})
    elif freq in ("MONTHLY", "YEARLY") and not by_day:
        month_days = frozenset({start.day})
        if freq == "YEARLY" and not months:
            months = frozenset({start.month})
    return Series(
        freq,
        start,
        _bounded(parts, "INTERVAL", 100_000) or 1,
        _DAYS.index(week_start),
        months,
        of["BYWEEKNO"],
        of["BYYEARDAY"],
        month_days,
        weekdays,
        *(tuple(sorted(of[name])) for name in ("BYHOUR", "BYMINUTE", "BYSECOND", "BYSETPOS")),
    )


def _lines(text: str) -> tuple[str, frozenset[datetime]]:
    """The rule and the excluded times of the lines."""
    rules: list[str] = []
    exdates: set[datetime] = set()
    for line in _FOLD.sub("", text.strip()).splitlines():
        head, colon, value = line.strip().partition(":")
        name, *parameters = head.split(";") if colon else ["RRULE"]
        name = name.upper()
        if name == "RRULE":
            rules.append(value if colon else line.strip())
        elif name == "EXDATE":
            exdates.update(_stamp(stamp, "EXDATE")[0] for stamp in value.split(","))
            if parameters:
                remedy = f"leave {';'.join(parameters)[:80]} out"
                raise RuleError(
                    f"EXDATE: {remedy}, as its times are in the schedule's timezone: EXDATE:{value[:15]}"
                )
        elif line.strip():
            raise RuleError(
                f"{name[:40]}: only RRULE and EXDATE lines are read; use the fields start and timezone"
            )
    if len(rules) != 1:
        raise RuleError(f"one RRULE is expected, there are {len(rules)}")
    if len(exdates) > EXDATES_MAX:
        raise RuleError(f"EXDATE: at most {EXDATES_MAX} times can be left out")
    return rules[0], frozenset(exdates)


def _parts(rule: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in rule.upper().rstrip(";").split(";"):
        name, equals, value = part.strip().partition("=")
        if not equals or not value or name not in _KNOWN:
            raise RuleError(f"{part[:40]!r} is no part of a recurrence rule")
        if name in parts:
            raise RuleError(f"{name} is given twice")
        parts[name] = value
    if parts.get("FREQ") not in _FREQS:
        raise RuleError("FREQ is required: SECONDLY, MINUTELY, HOURLY, DAILY, WEEKLY, MONTHLY or YEARLY")
    return parts


def _check_standing(parts: Mapping[str, str]) -> None:
    """Raise RuleError for parts that cannot be combined."""
    freq = parts["FREQ"]
    for name, freqs in _STANDS_WITH.items():
        if name in parts and freq not in freqs:
            raise RuleError(f"{name} cannot be combined with FREQ={freq}, only with {', '.join(freqs)}")
    if "BYSETPOS" in parts and not parts.keys() & {"BYDAY", *_RANGES.keys() - {"BYSETPOS"}}:
        raise RuleError("BYSETPOS picks from the times of another BY part, such as BYDAY: give one")


def _numbers(parts: Mapping[str, str], name: str, *, strict: bool) -> frozenset[int]:
    low, high = _RANGES[name]
    found = set()
    for text in parts[name].split(",") if name in parts else ():
        if not _NUMBER.fullmatch(text.strip()):
            raise RuleError(f"{name}: {text[:40]!r} is not a number")
        number = int(text)
        if strict and not (low <= number <= high and (number or not low)):
            span = f"from {low} to {high}" if low >= 0 else f"from 1 to {high} or from {low} to -1"
            raise RuleError(f"{name}: {text[:40]} is not a number {span}")
        if number or low == 0:
            found.add(number)
    return frozenset(found)


def _weekdays(parts: Mapping[str, str], *, strict: bool) -> Iterator[tuple[int, int]]:
    """(n-th, weekday) of BYDAY; 0: each."""
    freq = parts["FREQ"]
    of_month = freq == "MONTHLY" or "BYMONTH" in parts
    for text in parts["BYDAY"].split(",") if "BYDAY" in parts else ():
        found = _WEEKDAY.fullmatch(text.strip())
        if found is None:
            raise RuleError(f"BYDAY: {text[:40]!r} is no day such as MO or -1FR")
        number, day = int(found[1] or 0), found[2]
        counts = freq in ("MONTHLY", "YEARLY")
        if strict and found[1] and (not counts or "BYWEEKNO" in parts):
            where = "BYWEEKNO" if counts else f"FREQ={freq}"
            raise RuleError(
                f"BYDAY: {found[0]} cannot be combined with {where}; use FREQ=MONTHLY, or BYDAY={day}"
            )
        if strict and found[1] and not 1 <= abs(number) <= (5 if of_month else 53):
            raise RuleError(f"BYDAY: there is no {found[0]} in a {'month' if of_month else 'year'}")
        yield number if counts else 0, _DAYS.index(day)


def _bounded(parts: Mapping[str, str], name: str, most: int) -> int:
    text = parts.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 7 and 1 <= int(text) <= most):
        raise RuleError(f"{name} must be a whole number from 1 to {most}")
    return int(text or 0)


def _check_times(parts: Mapping[str, str]) -> None:
    times = prod(len(parts.get(name, "").split(",")) for name in _time_parts(parts["FREQ"]))
    if times > TIMES_MAX:
        raise RuleError(f"makes {times} times a day or hour, at most {TIMES_MAX}: use FREQ=SECONDLY")


def _check_positions(text: str) -> None:
    count = 1 + text.count(",")
    if count > POSITIONS_MAX:
        raise RuleError(f"BYSETPOS has {count} positions, at most {POSITIONS_MAX}")
    seen: set[int] = set()
    for position in text.split(","):
        number = int(position) if _NUMBER.fullmatch(position.strip()) else 0
        if not 0 < abs(number) <= POSITIONS_MAX:
            raise RuleError(f"BYSETPOS: {position[:40]!r} is no position, from 1 to 366 or from -366 to -1")
        if number in seen:
            raise RuleError(f"BYSETPOS: the position {number} is given twice")
        seen.add(number)


def _stamp(text: str, name: str) -> tuple[datetime, bool]:
    """A calendar time, and whether it is UTC."""
    text = text.strip().upper()
    found = _STAMP.fullmatch(text)
    numbers = [int(number or 0) for number in found.groups()[:6]] if found else [0, 0, 0]
    try:
        at = datetime(*numbers)  # type: ignore[arg-type]
    except ValueError:
        raise RuleError(f"{name}: {text[:40]!r} is no time such as 20261224T090000") from None
    if name == "EXDATE" and (text.endswith("Z") or "T" not in text):
        raise RuleError(f"EXDATE: {text} must be a local time such as 20261224T090000")
    return at, text.endswith("Z")


def _until(text: str) -> tuple[datetime | None, datetime | None]:
    if not text:
        return None, None
    at, is_utc = _stamp(text, "UNTIL")
    if is_utc:
        return None, at
    return at if "T" in text else at + timedelta(days=1, seconds=-1), None
