"""Recurrence rules (RFC 5545) on local times, by dateutil, made safe to ask far from their start.

    FREQ=MONTHLY;BYDAY=-1FR                         the last Friday of each month, at the start's time of day
    RRULE:FREQ=DAILY;INTERVAL=2                     lines as in a calendar file, EXDATE lines
    EXDATE:20261224T090000,20261226T090000          leave these out

The start is the schedule's own, so DTSTART is not taken, nor a TZID: every time here is local. `UNTIL` with
a Z is an instant, and dealt with where zones are known.

dateutil counts from the start of the rule, each time. A rule that began ten years ago would take long to be
asked for its next time, so its start is first moved on by whole intervals, which changes nothing (what the
start lent to the rule, the day of the month say, is written into the rule before). A rule with COUNT cannot
be moved; it is counted once and kept, hence the bound on COUNT.

A rule that has no next time (30 February) would be searched up to the year 9999, for 12 seconds. The months
that it is limited to are asked for each day that dateutil looks at, before anything else, so they are given
as a tuple that counts the questions and ends the search: `_Budget`.

A rule by the second or the minute that is limited to hours or minutes is stepped through one time of day
after the other, on each day that dateutil looks at: `FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=17` took
20 s to its first time. Those questions are counted in the same way (`_Tries`), and such a rule is refused.

For each of its positions (BYSETPOS) a rule goes through the days of a month, say. So positions are distinct
and at most 366, and those of each period count as tries, by their number and its days (`_Positions`).
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from dateutil.rrule import rrulestr

COUNT_MAX = 1_000
TIMES_MAX = 1_440
"""Times of day that BYHOUR, BYMINUTE and BYSECOND may make."""
EXDATES_MAX = 1_000
POSITIONS_MAX = 366
"""Values of BYSETPOS."""
CHARS_MAX = 32_768
DAYS = 20_000
"""Days that a search for the next time looks at."""
COUNT_DAYS = 100_000
"""Days that a rule with COUNT may take to be counted."""

TRIES = 150_000
"""Maximum tries of a search for the next time: times of day of a rule by second or minute, and positions.
0.15 s."""
TRIES_IN_ALL = 10 * TRIES
"""The same for all times requested at once: a preview of 1,000 took two minutes."""
DAYS_A_TRY = 32
"""Days that a position covers in the time of a try."""

_UNITS = ("SECONDLY", "MINUTELY", "HOURLY", "DAILY", "WEEKLY")
_UNIT_S = dict(zip(_UNITS, (1, 60, 3_600, 86_400, 604_800), strict=True))
_PERIOD_DAYS = {"WEEKLY": 7, "MONTHLY": 31, "YEARLY": 366}
_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_BY_DAY = ("BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO")
_KNOWN = {
    *("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYSETPOS", "BYMONTH", "BYHOUR", "BYMINUTE", "BYSECOND"),
    *_BY_DAY,
}
_STAMP = re.compile(r"\d{8}(?:T\d{6}Z?)?", re.ASCII)


class RuleError(ValueError):
    """Not a recurrence rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that starts at `start`. `until`: its last local time; `until_utc`: last instant, naive UTC."""

    parts: Mapping[str, str]
    start: datetime
    exdates: frozenset[datetime]
    until: datetime | None
    until_utc: datetime | None
    counted: tuple[datetime, ...] | None
    """All times of a rule with COUNT."""

    def times(self, local: datetime) -> Iterator[datetime]:
        """The times later than `local` that are not excluded, in order; it ends where none is near."""
        if self.counted is not None:
            times = iter(self.counted[bisect_right(self.counted, local) :])
        else:
            times = _times(self.parts, _moved(self.parts, self.start, local), DAYS)
        for at in times:
            if self.until is not None and at > self.until:
                return
            if at > local and at not in self.exdates:
                yield at


def parse_rule(text: str, start: datetime) -> Rule:
    """Read an RRULE, with or without its name, and EXDATE lines. `start`: local. Raises RuleError."""
    if len(text) > CHARS_MAX:
        raise RuleError(f"has {len(text)} characters, at most {CHARS_MAX} are read")
    rule, exdates = _lines(text)
    parts = _parts(rule)
    start = start.replace(microsecond=0)
    until, until_utc = _until(parts.pop("UNTIL", ""))
    count = _bounded(parts, "COUNT", COUNT_MAX)
    _bounded(parts, "INTERVAL", 100_000)
    _check_times(parts)
    _check_positions(parts.get("BYSETPOS", "1"))
    _lend(parts, start)
    if count and (until or until_utc):
        raise RuleError("COUNT and UNTIL exclude each other")
    try:
        counted = tuple(_times(parts, start, COUNT_DAYS)) if count else None
        made = Rule(parts, start, exdates, until, until_utc, counted)
        first = next(made.times(start - timedelta(seconds=1)), None)
    except RuleError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise RuleError(f"not a rule: {str(error) or type(error).__name__}") from None
    if first is None:
        raise RuleError("gives no time at all from its start on")
    return made


class _Budget(tuple[int, ...]):
    """Months of the year, with a bound on how often they are asked for."""

    left = 0

    def __contains__(self, month: object) -> bool:
        self.left -= 1
        if self.left < 0:
            raise _Exhausted
        return super().__contains__(month)


class _Exhausted(Exception):
    pass


class _Left:
    """Remaining tries, of hours, minutes, seconds and positions together."""

    def __init__(self) -> None:
        self.count = TRIES
        self._in_all = TRIES_IN_ALL

    def renew(self) -> None:
        """A time has been found: search for the next one."""
        self._in_all -= TRIES - self.count
        self.count = min(TRIES, self._in_all)

    def take(self, tries: int, instead: str) -> None:
        """Raises RuleError when none are left."""
        self.count -= tries
        if self.count < 0:
            raise RuleError(f"takes too long to search: {instead}")


class _Tries(tuple[int, ...]):
    """Hours, minutes or seconds, with a bound on how often they are asked for."""

    left: _Left

    def __contains__(self, number: object) -> bool:
        self.left.take(1, "say BYHOUR, BYMINUTE, BYSECOND with FREQ=DAILY")
        return super().__contains__(number)


class _Positions(tuple[int, ...]):
    """Positions, with a bound on how often they are iterated."""

    left: _Left
    tries = 1
    """Cost of each position, in tries."""

    def __iter__(self) -> Iterator[int]:
        self.left.take(len(self) * self.tries, "give fewer positions in BYSETPOS")
        return super().__iter__()


def _count_tries(rule: object, freq: str) -> _Left:
    """Bound a search's tries: per day, by second or minute; per period, by position."""
    left = _Left()
    if getattr(rule, "_bysetpos", None):
        positions = _Positions(getattr(rule, "_bysetpos"))  # noqa: B009 - no public name for it
        positions.left, positions.tries = left, 1 + _PERIOD_DAYS.get(freq, 1) // DAYS_A_TRY
        setattr(rule, "_bysetpos", positions)  # noqa: B010
    for name in ("_byhour", "_byminute", "_bysecond") if freq in ("SECONDLY", "MINUTELY") else ():
        numbers: tuple[int, ...] | None = getattr(rule, name, None)
        if numbers:
            tries = _Tries(numbers)
            tries.left = left
            setattr(rule, name, tries)
    return left


def _times(parts: Mapping[str, str], start: datetime, days: int) -> Iterator[datetime]:
    """The times of the rule from `start` on, within `days` days. Raises what dateutil raises."""
    rule = rrulestr(";".join(f"{name}={value}" for name, value in parts.items()), dtstart=start)
    months: tuple[int, ...] | None = getattr(rule, "_bymonth", None)
    # Without BYMONTH the n-th weekday of a yearly rule is one of the year: then months must stay unset.
    if months or parts["FREQ"] != "YEARLY":
        budget = _Budget(months or range(1, 13))
        budget.left = days
        setattr(rule, "_bymonth", budget)  # noqa: B010 - no public name for it
    else:
        budget = _Budget()
    left = _count_tries(rule, parts["FREQ"])
    with suppress(_Exhausted):
        for at in rule:
            yield at
            if "COUNT" not in parts:
                budget.left = days
                left.renew()


def _lines(text: str) -> tuple[str, frozenset[datetime]]:
    """The rule and the excluded times of the lines."""
    rules: list[str] = []
    exdates: set[datetime] = set()
    for line in text.strip().splitlines():
        name, colon, value = line.strip().partition(":")
        name = name.upper()
        if not colon or name == "RRULE":
            rules.append(value if colon else line.strip())
        elif name == "EXDATE":
            exdates.update(_stamp(stamp, "EXDATE")[0] for stamp in value.split(","))
        else:
            raise RuleError(f"{name[:40]}: only RRULE and EXDATE lines are read, in local time; see start")
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
    if parts.get("FREQ") not in (*_UNITS, "MONTHLY", "YEARLY"):
        raise RuleError("FREQ is required: SECONDLY, MINUTELY, HOURLY, DAILY, WEEKLY, MONTHLY or YEARLY")
    return parts


def _bounded(parts: Mapping[str, str], name: str, most: int) -> int:
    text = parts.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 7 and 1 <= int(text) <= most):
        raise RuleError(f"{name} must be a whole number from 1 to {most}")
    return int(text or 0)


def _check_times(parts: Mapping[str, str]) -> None:
    times = 1
    for name in ("BYHOUR", "BYMINUTE", "BYSECOND"):
        times *= len(parts.get(name, "").split(","))
    if times > TIMES_MAX:
        raise RuleError(f"makes {times} times a day, at most {TIMES_MAX}: take a smaller FREQ")


def _check_positions(text: str) -> None:
    count = 1 + text.count(",")
    if count > POSITIONS_MAX:
        raise RuleError(f"BYSETPOS has {count} positions, at most {POSITIONS_MAX}")
    seen: set[int] = set()
    for position in text.split(","):
        try:
            number = int(position[:9])
        except ValueError:
            number = 0
        if not 0 < abs(number) <= POSITIONS_MAX:
            raise RuleError(f"BYSETPOS: {position[:40]!r} is no position, from 1 to 366 or from -366 to -1")
        if number in seen:
            raise RuleError(f"BYSETPOS: the position {number} is given twice")
        seen.add(number)


def _stamp(text: str, name: str) -> tuple[datetime, bool]:
    """A calendar time, and whether it is UTC."""
    text = text.strip().upper()
    try:
        read = text.rstrip("Z") if _STAMP.fullmatch(text) else ""
        at = datetime.strptime(read, "%Y%m%dT%H%M%S" if "T" in text else "%Y%m%d")
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


def _lend(parts: dict[str, str], start: datetime) -> None:
    """Write into the rule which day it would take from its start: `_moved` keeps the time of day only."""
    freq = parts["FREQ"]
    by_day = [name for name in _BY_DAY if name in parts]
    if freq == "YEARLY" and by_day == ["BYWEEKNO"]:
        # dateutil takes all seven days of the week.
        parts["BYDAY"] = _DAYS[start.weekday()]
    if by_day:
        return
    if freq == "WEEKLY":
        parts["BYDAY"] = _DAYS[start.weekday()]
    elif freq in ("MONTHLY", "YEARLY"):
        parts["BYMONTHDAY"] = str(start.day)
        if freq == "YEARLY":
            parts.setdefault("BYMONTH", str(start.month))


def _moved(parts: Mapping[str, str], start: datetime, local: datetime) -> datetime:
    """A later start, whole intervals on, that gives the same times after `local`."""
    if local <= start:
        return start
    every = int(parts.get("INTERVAL", "1"))
    unit_s = _UNIT_S.get(parts["FREQ"])
    if unit_s:
        step = timedelta(seconds=unit_s * every)
        # A week's rule may count from another weekday than the start's: stay a whole step behind.
        return start + step * max(0, (local - start) // step - 1)
    months = every * (12 if parts["FREQ"] == "YEARLY" else 1)
    steps = ((local.year - start.year) * 12 + local.month - start.month) // months
    if steps < 2:
        return start
    total = start.year * 12 + start.month - 1 + (steps - 1) * months
    return start.replace(year=total // 12, month=1 if parts["FREQ"] == "YEARLY" else total % 12 + 1, day=1)
