"""The local times of a recurrence rule (RFC 5545, 3.3.10), from any point on.

A rule is a test of days, periods that count, and times of day:

    FREQ=MONTHLY;INTERVAL=2;BYDAY=-1FR;BYHOUR=9,17      at 09:00 and 17:00
        days       is it a last Friday of a month?       the same in all years of a kind
        periods    every second month                    from the start's month
        times      09:00, 17:00                          below a day: points at equal distances from the start

Whether a day fits depends on the kind of its year: its first weekday, and which of the three years around it
have 366 days. There are 28 kinds, so a year of a known kind costs a look-up, and a search to the end of the
calendar 10 ms. The search jumps over periods that do not count. Below a day it jumps to the points, also when
a rule began long ago. Whether any point of a day fits depends on the distance from midnight to the first
point, and is cached.

BYSETPOS picks from the times of one period. Up to a day these are the same in each period, so it picks once.

A search that looks at more than LOOKS days, years or positions for one time raises TooLong. Each takes 1 µs.
`timeline/recurrence.py` reads a rule's text; DST is not known here.
"""

from bisect import bisect_left
from calendar import isleap, monthrange
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby, product
from math import gcd

YEAR_LAST = 9_900
LOOKS = 10_000
LOOKS_IN_ALL = 20 * LOOKS
"""Bound on the looks of one call for several times. Each time has LOOKS_FREE that do not count, a year's
days."""
LOOKS_FREE = 366

DAY_S = 86_400
_UNIT_S = {"SECONDLY": 1, "MINUTELY": 60, "HOURLY": 3_600}
_FIXED = {"SECONDLY": 3, "MINUTELY": 2, "HOURLY": 1}
"""How many of hour, minute and second each time has from the beginning of its period."""
_LAST = date(YEAR_LAST, 12, 31).toordinal()
_OF_DAYS = ("WEEKLY", "MONTHLY", "YEARLY")
"""Frequencies whose period has several days."""


class TooLong(ValueError):
    """The search for the next time took too long."""


@dataclass(frozen=True, slots=True)
class Series:
    """A rule in numbers. `start`: a local time in whole seconds. Empty: not given."""

    freq: str
    start: datetime
    interval: int = 1
    week_start: int = 0
    months: frozenset[int] = frozenset()
    week_numbers: frozenset[int] = frozenset()
    year_days: frozenset[int] = frozenset()
    month_days: frozenset[int] = frozenset()
    weekdays: frozenset[tuple[int, int]] = frozenset()
    """(n-th, weekday); 0: each."""
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()

    def times(self, local: datetime, last: datetime = datetime.max) -> Iterator[datetime]:
        """The times later than `local`, from the start on, to the day of `last`. Raises TooLong."""
        first = max(self.start, local.replace(microsecond=0) + timedelta(seconds=1))
        search = _Search(self, min(last.toordinal(), _LAST))
        for day, second in search.found(first):
            at = datetime.fromordinal(day) + timedelta(seconds=second)
            if at >= first:
                search.renew()
                yield at

    def index_of(self, day: int) -> int:
        """The number of the period of several days that a day is in."""
        if self.freq == "WEEKLY":
            return (day - 1 - self.week_start) // 7
        at = date.fromordinal(day)
        return at.year if self.freq == "YEARLY" else at.year * 12 + at.month - 1

    def begin_of(self, index: int) -> int:
        """The first day of a period of several days."""
        if self.freq == "WEEKLY":
            return index * 7 + 1 + self.week_start
        year, month = (index, 0) if self.freq == "YEARLY" else divmod(index, 12)
        return date(min(year, YEAR_LAST + 1), month + 1, 1).toordinal()

    @property
    def limits_days(self) -> bool:
        """Whether some days do not fit."""
        return bool(self.months or self.week_numbers or self.year_days or self.month_days or self.weekdays)

    def fits(self, day: date) -> bool:
        """Whether the parts of the rule about days allow a day."""
        if self.months and day.month not in self.months:
            return False
        month_left = monthrange(day.year, day.month)[1] - day.day
        if self.month_days and not {day.day, -month_left - 1} & self.month_days:
            return False
        year_day = day.timetuple().tm_yday
        year_left = 365 + isleap(day.year) - year_day
        if self.year_days and not {year_day, -year_left - 1} & self.year_days:
            return False
        if self.week_numbers and not {*_week(day, self.week_start)} & self.week_numbers:
            return False
        if not self.weekdays:
            return True
        before, left = year_day - 1, year_left
        if self.freq == "MONTHLY" or self.months:
            before, left = day.day - 1, month_left
        numbers = (0, before // 7 + 1, -(left // 7) - 1)
        return any((number, day.weekday()) in self.weekdays for number in numbers)


class _Search:
    """One search through a series."""

    def __init__(self, series: Series, last: int) -> None:
        self._series, self._last = series, last
        self._kinds: dict[tuple[int, bool, bool, bool], list[int]] = {}
        """Days that fit, counted from 1 January, by kind of year."""
        self._looks, self._in_all = 0, 0
        self._empty: set[int] = set()
        """Days without a time, by the seconds from midnight to their first point."""
        self._unit_s = _UNIT_S.get(series.freq, DAY_S)
        self._step_s = self._unit_s * series.interval
        start_s = series.start.toordinal() * DAY_S + _second_of(series.start)
        self._origin_s = start_s - start_s % self._unit_s
        self._offsets = _offsets(series)
        self._start_index = 0
        if series.freq in _OF_DAYS:
            self._start_index = series.index_of(series.start.toordinal())
        elif series.positions:
            self._offsets = [self._offsets[index] for index in self._picked(len(self._offsets))]

    def renew(self) -> None:
        """Reset the effort once a time is found: the next search gets the same bound."""
        self._in_all += max(0, self._looks - LOOKS_FREE)
        self._looks = 0

    def found(self, first: datetime) -> Iterator[tuple[int, int]]:
        """Days and seconds of the day, in order, from about `first` on."""
        series, day = self._series, first.toordinal()
        if series.freq in _UNIT_S:
            for one in self._days(day):
                yield from ((one, second) for second in self._points(one, first))
                if len(self._empty) == self._step_s // gcd(self._step_s, DAY_S):
                    return  # no point is ever at a time of day that fits
        elif series.positions and series.freq in _OF_DAYS:
            for _, days in groupby(self._days(series.begin_of(series.index_of(day))), series.index_of):
                yield from self._at_positions(list(days))
        else:
            for one in self._days(day):
                yield from ((one, second) for second in self._offsets)

    def _look(self, count: int = 1) -> None:
        self._looks += count
        if self._looks > LOOKS or self._in_all > LOOKS_IN_ALL:
            part = "BYSETPOS" if self._series.positions else "INTERVAL"
            raise TooLong(f"takes too long to search: change {part}")

    def _days(self, day: int) -> Iterator[int]:
        """Days that fit, in periods that count, from `day` on."""
        while self._offsets and day <= self._last:
            year = date.fromordinal(day).year
            begin = date(year, 1, 1).toordinal()
            days = self._days_of(year, begin)
            index = bisect_left(days, day - begin)
            while index < len(days):
                self._look()
                day = begin + days[index]
                wait = self._wait(day)
                if not wait:
                    yield day
                day += wait or 1
                index = bisect_left(days, day - begin, index)
            self._look()
            day = max(day, begin + 365 + isleap(year))

    def _days_of(self, year: int, begin: int) -> Sequence[int]:
        if not self._series.limits_days:
            return range(365 + isleap(year))
        kind = ((begin - 1) % 7, isleap(year - 1), isleap(year), isleap(year + 1))
        days = self._kinds.get(kind)
        if days is None:
            fits, length = self._series.fits, 365 + isleap(year)
            days = [number for number in range(length) if fits(date.fromordinal(begin + number))]
            self._kinds[kind] = days
        return days

    def _wait(self, day: int) -> int:
        """Days from `day` to the next period that counts; 0: it is in one."""
        series = self._series
        if series.freq not in _OF_DAYS:
            return (self._origin_s - day * DAY_S) % self._step_s // DAY_S
        index = series.index_of(day)
        late = (index - self._start_index) % series.interval
        if not late:
            return 0
        return series.begin_of(index + series.interval - late) - day

    def _points(self, day: int, first: datetime) -> Iterator[int]:
        """The times of a day, of a rule below a day."""
        series, point = self._series, (self._origin_s - day * DAY_S) % self._step_s
        if point in self._empty:
            return
        minutes = series.minutes if series.freq != "HOURLY" else ()
        seconds = series.seconds if series.freq == "SECONDLY" else ()
        from_s = _second_of(first) if day == first.toordinal() else 0
        is_empty = not from_s
        for hour in series.hours or range(24):
            begin = max(hour * 3_600, from_s - from_s % self._unit_s)
            for at in range(begin + (point - begin) % self._step_s, hour * 3_600 + 3_600, self._step_s):
                if (not minutes or at // 60 % 60 in minutes) and (not seconds or at % 60 in seconds):
                    is_empty = False
                    yield from (at + offset for offset in self._offsets)
        if is_empty:
            self._empty.add(point)

    def _at_positions(self, days: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The times of a period that BYSETPOS picks."""
        self._look(len(self._series.positions) // 16)
        for index in self._picked(len(days) * len(self._offsets)):
            day, number = divmod(index, len(self._offsets))
            yield days[day], self._offsets[number]

    def _picked(self, count: int) -> list[int]:
        """The indices of BYSETPOS among so many times."""
        indices = {at - 1 if at > 0 else count + at for at in self._series.positions}
        return sorted(index for index in indices if 0 <= index < count)


def _offsets(series: Series) -> list[int]:
    """Times of a period below a day, or of a day, in seconds from its beginning."""
    fixed = _FIXED.get(series.freq, 0)
    start = (series.start.hour, series.start.minute, series.start.second)
    given = (series.hours, series.minutes, series.seconds)
    fields = [(0,) if index < fixed else numbers or (start[index],) for index, numbers in enumerate(given)]
    return [hour * 3_600 + minute * 60 + second for hour, minute, second in product(*fields)]


def _second_of(at: datetime) -> int:
    return at.hour * 3_600 + at.minute * 60 + at.second


def _week(day: date, week_start: int) -> tuple[int, int]:
    """Number of its week from the beginning and from the end of the year that has most of the week."""
    middle = day + timedelta(days=3 - (day.weekday() - week_start) % 7)
    year_day = middle.timetuple().tm_yday
    return (year_day - 1) // 7 + 1, -((365 + isleap(middle.year) - year_day) // 7) - 1
