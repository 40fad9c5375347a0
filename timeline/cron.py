"""Cron expressions: text -> fields, and the next local time that they match.

A schedule here works on *local* times without a zone, as the hands of a clock on a wall show them; what a
change of the clocks makes of one is decided in fires.py. So this file is plain counting:

    0 2 * * 1-5      02:00 from Monday to Friday
    */15 * * * *     every quarter of an hour
    30 0 9 L * *     six fields: seconds first. L: the last day of the month
    @daily           0 0 * * *

The rules are those of Vixie cron: 0 and 7 are Sunday; names of months and days in three letters; if both the
day of the month and the day of the week are restricted (do not begin with `*`), a day that fits either is
taken. `?` is read as `*`, and Sunday ends a range of days: `mon-sun`. What else Quartz has (`L-3`, `LW`,
`15W`, `6#3`, `6L`) is refused by that name, with the rrule that says the same, at the same times of day.
Quartz counts its days of the week from 1, Sunday, so beside a `?` a day has to be named: `2-6` would silently
be other days. The numbers of `6#3` and `6L` are Quartz's only beside a `?`; other programs that read these
forms count as cron does. APScheduler's
CronTrigger counts days from Monday, joins the two by "and", and looks for a date that never comes (30
February) up to the year 9999; it is what the tests compare with where the rules are the same.

The rarest date that there is comes after 40 years at most: a 29 February that has to be a certain weekday too
(`0 0 29 2 */7`: every 28 years, more over a turn of the century without one). So the search ends there.
"""

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from math import prod
from types import MappingProxyType

SEARCH_YEARS = 40
CHARS_MAX = 256
MACROS = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)
_NAMES = MappingProxyType(
    {
        "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
        "day of week": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    }
)
_FIELDS = (
    ("second", 0, 59),
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
LAST = 0
"""As a day of the month: the last one."""
_SECOND = timedelta(seconds=1)
_DAY_NUMBER = re.compile(r"(?<![/\d])\d", re.ASCII)
_QUARTZ_DAY = re.compile(r"l-(\d\d?)|lw|wl|(\d\d?)w", re.ASCII)
_QUARTZ_WEEKDAY = re.compile(r"(sun|mon|tue|wed|thu|fri|sat|[0-7])(?:#([1-5])|l)", re.ASCII)
_WEEKDAY_FIELD = re.compile(r"(?:sun|mon|tue|wed|thu|fri|sat|[\d*?,/#lw-])*", re.ASCII)
_WORKDAYS = "BYDAY=MO,TU,WE,TH,FR"
_RRULE_TIMES = 366
"""Most times of day of an rrule in an error: BYSETPOS takes as many positions."""


class CronError(ValueError):
    """Not a cron expression; says which field."""


@dataclass(frozen=True, slots=True)
class Cron:
    """Sorted values of each field; `days` may hold LAST, `weekdays` are 0 (Sunday) to 6."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either_day: bool
    """Both kinds of day are restricted: one of them is enough."""

    def times(self, local: datetime, last: datetime = datetime.max) -> Iterator[datetime]:
        """All matches later than `local`, in order, to `last`."""
        found = self.after(local)
        while found is not None and found <= last:
            yield found
            found = self.after(found)

    def after(self, local: datetime) -> datetime | None:
        """The first match later than `local` (naive); None if there is none within 40 years."""
        first = local + _SECOND
        at = self._time_from(first.time()) if self._has(first.date()) else None
        if at is not None:
            return datetime.combine(first.date(), at)
        day = self._day_after(first.date())
        return None if day is None else datetime.combine(day, self._first_time)

    @property
    def _first_time(self) -> time:
        return time(self.hours[0], self.minutes[0], self.seconds[0])

    def _time_from(self, start: time) -> time | None:
        """The first time of day at or after `start`."""
        for hour in _from(self.hours, start.hour):
            if hour > start.hour:
                return time(hour, self.minutes[0], self.seconds[0])
            for minute in _from(self.minutes, start.minute):
                if minute > start.minute:
                    return time(hour, minute, self.seconds[0])
                if seconds := _from(self.seconds, start.second):
                    return time(hour, minute, seconds[0])
        return None

    def _day_after(self, day: date) -> date | None:
        last_year = min(day.year + SEARCH_YEARS, 9999)
        year, month, first = day.year, day.month, day.day + 1
        while year <= last_year:
            if month in self.months:
                days = range(first, monthrange(year, month)[1] + 1)
                found = next((n for n in days if self._has(date(year, month, n))), None)
                if found is not None:
                    return date(year, month, found)
            year, month, first = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
        return None

    def _has(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_week = day.isoweekday() % 7 in self.weekdays
        by_month = day.day in self.days or (
            LAST in self.days and day.day == monthrange(day.year, day.month)[1]
        )
        return by_week or by_month if self.either_day else by_week and by_month


def parse_cron(text: str) -> Cron:
    """Read five fields, six with seconds first, or a macro. Raises CronError."""
    if len(text) > CHARS_MAX:
        raise CronError(f"has {len(text)} characters, at most {CHARS_MAX} are read")
    fields = MACROS.get(text.strip().lower(), text).lower().split()
    if fields and fields[0] == "@every":
        raise CronError(
            f"{text[:40]!r} is no cron expression; use every: {' '.join(fields[1:])[:40] or '5m'}"
        )
    if len(fields) > 5 and not _WEEKDAY_FIELD.fullmatch(fields[5]):
        command = "if it is the command of a crontab, leave it out: a schedule sends its topic and payload"
        raise CronError(f"{fields[5][:40]!r} is no day of the week; {command}")
    if len(fields) == 7:
        raise CronError(
            f"the year {fields[6]!r} is read by Quartz alone; leave it out, and use start and end"
        )
    if len(fields) not in (5, 6):
        known = "5 fields (minute hour day month weekday), 6 with seconds first, or one of "
        raise CronError(f"{text[:40]!r} is neither {known}{', '.join(MACROS)}")
    if len(fields) == 5:
        fields = ["0", *fields]
    is_quartz = "?" in (fields[3], fields[5])
    for index in (3, 5):
        fields[index] = "*" if fields[index] == "?" else fields[index]
    for index in (3, 5):
        _refuse_quartz(fields, index, is_quartz=is_quartz)
    values = [_values(field, *kind) for field, kind in zip(fields, _FIELDS, strict=True)]
    if is_quartz and _DAY_NUMBER.search(fields[5]):
        raise CronError("day of week: Quartz counts from 1, Sunday; beside ? name the days, as in mon-fri")
    weekdays = tuple(sorted({day % 7 for day in values[5]}))
    either_day = not fields[3].startswith("*") and not fields[5].startswith("*")
    cron = Cron(values[0], values[1], values[2], values[3], values[4], weekdays, either_day)
    if cron.after(datetime(2000, 1, 1)) is None:
        raise CronError("day: no month that is asked for has such a day")
    return cron


def _from(values: tuple[int, ...], start: int) -> tuple[int, ...]:
    return values[bisect_left(values, start) :]


def _values(field: str, name: str, low: int, high: int) -> tuple[int, ...]:
    found: set[int] = set()
    for part in field.split(","):
        if name == "day" and part == "l":
            found.add(LAST)
            continue
        span, slash, step = part.partition("/")
        by = _number(step, name, 1, high) if slash else 1
        first, dash, last = span.partition("-")
        if span == "*":
            start, end = low, high - (name == "day of week")
        else:
            start = _number(first, name, low, high)
            end = _number(last, name, low, high) if dash else high if slash else start
        if start > end == 0 and name == "day of week":
            end = high
        if start > end:
            raise CronError(
                f"{name}: {part!r} runs backwards; write {_wrapped(name, start, end, by, low, high)}"
            )
        found.update(range(start, end + 1, by))
    return tuple(sorted(found))


def _wrapped(name: str, start: int, end: int, by: int, low: int, high: int) -> str:
    """The values of a range that wraps around at the end of a field."""
    if name == "day of week":
        names, high = _NAMES[name], 6
    else:
        names = [str(number) for number in range(high + 1)]
    return ",".join(names[number] for number in [*range(start, high + 1), *range(low, end + 1)][::by])


def _refuse_quartz(fields: Sequence[str], index: int, *, is_quartz: bool) -> None:
    """Raise CronError for forms of Quartz, with the rrule in its place."""
    field, name = fields[index], _FIELDS[index][0]
    for part in field.split(","):
        day, weekday = _QUARTZ_DAY.fullmatch(part), _QUARTZ_WEEKDAY.fullmatch(part)
        if day is None if index == 3 else weekday is None:
            continue
        text = f"{name}: {part.upper()!r} is an unsupported Quartz form; "
        if part != field or fields[8 - index] != "*":
            raise CronError(f"{text}give that day a schedule of its own")
        times = [_values(fields[at], *_FIELDS[at]) for at in (2, 1, 0)]
        count = prod(map(len, times))
        rules = _month_days(day, count) if day else _nth_weekday(weekday, is_quartz=is_quartz)
        if not rules or count > _RRULE_TIMES:
            why = "no rrule says the same in every month: name the day, such as 28"
            if rules:
                why = f"for an rrule, say at most {_RRULE_TIMES} times of day, not {count}"
            raise CronError(f"{text}{why}")
        months = _values(fields[4], *_FIELDS[4])
        at = "".join(
            f";{part}={','.join(map(str, numbers))}"
            for part, numbers in zip(("BYHOUR", "BYMINUTE", "BYSECOND"), times, strict=True)
        )
        at += f";BYMONTH={','.join(map(str, months))}" if len(months) < 12 else ""
        use = "use rrule: " if len(rules) == 1 else f"use {len(rules)} schedules, with rrule: "
        raise CronError(text + use + " and ".join(f"FREQ=MONTHLY;{rule}{at}" for rule in rules))


def _month_days(found: re.Match[str], count: int) -> list[str]:
    """Rules for `L-3`, `LW` and `15W`: the working day nearest to the 15th, in the same month.

    `count`: times of a day. BYSETPOS counts them.
    """
    if found[1]:
        return [f"BYMONTHDAY=-{int(found[1]) + 1}"] if int(found[1]) <= 30 else []
    if found[2] is None:
        return [f"{_WORKDAYS};BYSETPOS={','.join(map(str, range(-count, 0)))}"]
    day = int(found[2])
    if day == 1:
        return [f"{_WORKDAYS};BYSETPOS={','.join(map(str, range(1, count + 1)))}"]
    if not 2 <= day <= 27:
        return []  # some months end before the day behind it
    on, before, after = f"BYMONTHDAY={day};{_WORKDAYS}", day - 1, day + 1
    return [on, f"BYMONTHDAY={before};BYDAY=FR", f"BYMONTHDAY={after};BYDAY=MO"]


def _nth_weekday(found: re.Match[str] | None, *, is_quartz: bool) -> list[str]:
    """The rule for `6#3` and `6L`."""
    assert found is not None
    days = _NAMES["day of week"]
    day = days[(int(found[1]) - is_quartz) % 7] if found[1].isdigit() else found[1]
    return [f"BYDAY={found[2] or -1}{day[:2].upper()}"]


def _number(text: str, name: str, low: int, high: int) -> int:
    names = _NAMES.get(name, ())
    if text in names:
        return names.index(text) + (name == "month")
    if not (text.isascii() and text.isdigit() and len(text) < 4 and low <= int(text) <= high):
        raise CronError(f"{name}: {text[:20]!r} is not a number from {low} to {high}")
    return int(text)
