"""Recurrence rules against the RFC's own examples, and against a count of days that knows no shortcut."""

import calendar
import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from itertools import islice, takewhile
from time import process_time

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.soak import SOAK
from timeline.recurrence import RuleError, parse_rule
from timeline.series import YEAR_LAST

OUT_OF_MONTH = ("0", "-0", "0,15", "15,32", "-32")
BELOW_A_MONTH = ("WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
SEPTEMBER = datetime(1997, 9, 2, 9)
"""The start of the examples in RFC 5545, 3.8.5.3."""


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=TU,TH;COUNT=8", "", "0902 0904 0916 0918 0930 1002 1014 1016"),
        ("FREQ=MONTHLY;COUNT=6;BYDAY=-2MO", "19970922", "0922 1020 1117 1222 0119 0216"),
        ("FREQ=MONTHLY;BYMONTHDAY=-3", "19970928", "0928 1029 1128 1229 0129 0226"),
        ("FREQ=MONTHLY;COUNT=6;BYMONTHDAY=1,-1", "19970930", "0930 1001 1031 1101 1130 1201"),
        ("FREQ=YEARLY;INTERVAL=3;BYYEARDAY=1,100,200", "19970101", "0101 0410 0719 0101 0409 0718 0101"),
        ("FREQ=YEARLY;BYDAY=20MO", "19970519", "0519 0518 0517"),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "19970512", "0512 0511 0517"),
        ("FREQ=YEARLY;BYMONTH=3;BYDAY=TH", "19970313", "0313 0320 0327 0305 0312"),
        ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", "", "0213 0313 1113 0813 1013"),
        ("FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13", "19970913", "0913 1011 1108 1213 0110"),
        ("FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8", "19961105", "1105 1107 1102"),
        ("FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3", "19970904", "0904 1007 1106"),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2", "19970929", "0929 1030 1127 1230 0129 0226 0330"),
        ("FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO", "19970805", "0805 0810 0819 0824"),
        ("FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU", "19970805", "0805 0817 0819 0831"),
        ("FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5", "20070115", "0115 0130 0215 0315 0330"),
    ],
)  # fmt: skip
def test_the_examples_of_the_rfc(text: str, start: str, expected: str) -> None:
    first = datetime.strptime(start, "%Y%m%d").replace(hour=9) if start else SEPTEMBER
    times = list(islice(parse_rule(text, first).times(first - timedelta(1)), len(expected.split())))
    assert " ".join(at.strftime("%m%d") for at in times) == expected
    assert {at.hour for at in times} == {9}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T170000", ["09:00", "12:00", "15:00"]),
        ("FREQ=MINUTELY;INTERVAL=15;COUNT=3", ["09:00", "09:15", "09:30"]),
        ("FREQ=MINUTELY;INTERVAL=90;COUNT=4", ["09:00", "10:30", "12:00", "13:30"]),
        ("FREQ=DAILY;BYHOUR=15,16;BYMINUTE=0,40;COUNT=4", ["15:00", "15:40", "16:00", "16:40"]),
        ("FREQ=HOURLY;BYMINUTE=0,20,40;BYSETPOS=-1,2;COUNT=3", ["09:20", "09:40", "10:20"]),
        ("FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10;COUNT=4", ["09:00", "09:20", "09:40", "10:00"]),
    ],
)
def test_times_of_a_day(text: str, expected: list[str]) -> None:
    times = parse_rule(text, SEPTEMBER).times(SEPTEMBER - timedelta(1))
    assert [f"{at:%H:%M}" for at in times] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # dateutil 2.9 gives nothing for a weekday with a number beside one without.
        ("FREQ=MONTHLY;BYDAY=MO,1TU", "0201 0202 0208 0215 0222"),
        # Week 53 of 2026 ends on 3 January 2027; 2027 has 52 weeks, the last ends on 2 January 2028.
        ("FREQ=YEARLY;BYWEEKNO=-1;BYDAY=FR,SA", "1231 0101 1229 1230 1228"),
        ("FREQ=YEARLY;BYYEARDAY=-1,366", "1231 1231 1231"),
        # The set of a week is the whole week, also of the one that the start is in (a Saturday).
        ("FREQ=WEEKLY;BYDAY=MO,SA,SU;BYSETPOS=2", "0130 0206 0213"),
    ],
)
def test_what_a_library_reads_otherwise(text: str, expected: str) -> None:
    start = datetime(2027, 1, 30, 9)
    times = islice(parse_rule(text, start).times(start - timedelta(1)), len(expected.split()))
    assert " ".join(at.strftime("%m%d") for at in times) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *[(f"FREQ=MONTHLY;BYMONTHDAY={n}", "from 1 to 31 or from -31 to -1") for n in OUT_OF_MONTH],
        *[("FREQ=YEARLY;BYMONTH=1,13", "BYMONTH: 13"), ("FREQ=MONTHLY;BYMONTHDAY=1_5", "'1_5'")],
        *[(f"FREQ=YEARLY;{part}", part[:8]) for part in ("BYYEARDAY=0", "BYYEARDAY=367", "BYWEEKNO=54")],
        *[(f"FREQ=DAILY;{part}", part[:6]) for part in ("BYHOUR=24", "BYHOUR=-1", "BYSECOND=60")],
        *[(f"FREQ={f};BYDAY=1MO", f"1MO cannot be combined with FREQ={f}") for f in BELOW_A_MONTH],
        ("FREQ=YEARLY;BYWEEKNO=1;BYDAY=1MO", "1MO cannot be combined with BYWEEKNO"),
        *[(f"FREQ=MONTHLY;BYDAY={day}", f"no {day} in a month") for day in ("6MO", "0MO", "-6FR")],
        *[("FREQ=YEARLY;BYDAY=54MO", "no 54MO in a year"), ("FREQ=YEARLY;BYMONTH=5;BYDAY=6MO", "no 6MO")],
        ("FREQ=WEEKLY;BYMONTHDAY=13", "BYMONTHDAY cannot be combined with FREQ=WEEKLY"),
        ("FREQ=MONTHLY;BYWEEKNO=20", "BYWEEKNO cannot be combined with FREQ=MONTHLY, only with YEARLY"),
        ("FREQ=DAILY;BYYEARDAY=100", "BYYEARDAY cannot be combined with FREQ=DAILY"),
        ("FREQ=WEEKLY;BYYEARDAY=100", "BYYEARDAY cannot be combined with FREQ=WEEKLY"),
        ("FREQ=MONTHLY;BYYEARDAY=100", "BYYEARDAY cannot be combined with FREQ=MONTHLY"),
        *[("FREQ=MONTHLY;BYSETPOS=1", "BYSETPOS picks"), ("FREQ=DAILY;WKST=1MO", "WKST")],
        ("FREQ=DAILY;BYHOUR=1,2;BYSETPOS=3", "no time at all"),
        ("FREQ=MINUTELY;INTERVAL=2;BYMINUTE=1", "no time at all"),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=MO", "takes too long to search: change INTERVAL"),
        ("FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6", "takes too long to search: change BYSETPOS"),
    ],
)  # fmt: skip
def test_what_the_rfc_forbids_is_refused(text: str, why: str) -> None:
    with pytest.raises(RuleError, match=why):
        parse_rule(text, datetime(2027, 1, 30, 9, 0))  # a Saturday


def test_a_stored_rule_is_read_as_it_was_accepted() -> None:
    start = datetime(2027, 1, 30, 9)
    for text, plain in (
        ("FREQ=WEEKLY;BYDAY=1MO", "FREQ=WEEKLY;BYDAY=MO"),
        ("FREQ=MONTHLY;BYMONTHDAY=0,15", "FREQ=MONTHLY;BYMONTHDAY=15"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "FREQ=DAILY"),
        ("FREQ=DAILY;BYYEARDAY=100", "FREQ=YEARLY;BYYEARDAY=100"),
    ):
        stored = parse_rule(text, start, strict=False).times(start)
        assert list(islice(stored, 20)) == list(islice(parse_rule(plain, start).times(start), 20))


# -- an oracle


class Given:
    """A rule as a test draws it."""

    def __init__(
        self, freq: str, interval: int, week_start: int, by: dict[str, list[int]], days: list[tuple[int, int]]
    ) -> None:
        self.freq, self.interval, self.week_start, self.by, self.days = freq, interval, week_start, by, days

    @property
    def text(self) -> str:
        names = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
        parts = [f"FREQ={self.freq}", f"INTERVAL={self.interval}", f"WKST={names[self.week_start]}"]
        parts += [f"{name}={','.join(map(str, numbers))}" for name, numbers in self.by.items()]
        if self.days:
            parts.append("BYDAY=" + ",".join(f"{n or ''}{names[day]}" for n, day in self.days))
        return ";".join(parts)


def at_number(every: list[date], numbers: list[int]) -> set[date]:
    """The n-th of them, from the beginning or from the end."""
    return {every[n - 1 if n > 0 else n] for n in numbers if 1 <= abs(n) <= len(every)}


def week_days(year: int, week_start: int, numbers: list[int]) -> set[date]:
    """The days of weeks of a year: a week belongs to the year that has most of its days."""
    begins = [date(year, 1, 1) + timedelta(days) for days in range(-3, 370)]
    weeks = [day for day in begins if day.weekday() == week_start and (day + timedelta(3)).year == year]
    return {begin + timedelta(days) for begin in at_number(weeks, numbers) for days in range(7)}


def days_that_fit(rule: Given, start: datetime, year: int) -> set[date]:
    """Set by set, as section 3.3.10 has it."""
    by, freq, nth = rule.by, rule.freq, list(rule.days)
    every = [date(year, 1, 1) + timedelta(days) for days in range(365 + calendar.isleap(year))]
    months = [[day for day in every if day.month == month] for month in range(1, 13)]
    found, month_days = set(every), by.get("BYMONTHDAY", [])
    if not (nth or by.keys() & {"BYMONTHDAY", "BYYEARDAY", "BYWEEKNO"}):
        if freq == "WEEKLY":
            nth = [(0, start.weekday())]
        if freq in ("MONTHLY", "YEARLY"):
            month_days = [start.day]
        if freq == "YEARLY" and "BYMONTH" not in by:
            found &= set(months[start.month - 1])
    if freq == "YEARLY" and "BYWEEKNO" in by and not (nth or by.keys() & {"BYMONTHDAY", "BYYEARDAY"}):
        nth = [(0, start.weekday())]
    if "BYMONTH" in by:
        found &= {day for day in every if day.month in by["BYMONTH"]}
    if "BYWEEKNO" in by:
        found &= set().union(
            *(week_days(y, rule.week_start, by["BYWEEKNO"]) for y in (year - 1, year, year + 1))
        )
    if "BYYEARDAY" in by:
        found &= at_number(every, by["BYYEARDAY"])
    if month_days:
        found &= set().union(*(at_number(month, month_days) for month in months))
    if nth:
        spans = months if freq == "MONTHLY" or "BYMONTH" in by else [every]
        allowed: set[date] = {day for day in every if (0, day.weekday()) in nth}
        for span in spans:
            for number, weekday in nth:
                allowed |= at_number([day for day in span if day.weekday() == weekday], [number])
        found &= allowed
    return found


def oracle(rule: Given, start: datetime, last: datetime) -> Iterator[datetime]:
    """All times up to `last`: each period in turn, with all of its days and times."""
    by = rule.by
    usual = {"BYHOUR": start.hour, "BYMINUTE": start.minute, "BYSECOND": start.second}
    fields = [sorted(set(by.get(name, [value]))) for name, value in usual.items()]
    clock = [
        timedelta(hours=h, minutes=m, seconds=s) for h in fields[0] for m in fields[1] for s in fields[2]
    ]
    fitting = {
        day for year in range(start.year - 1, last.year + 2) for day in days_that_fit(rule, start, year)
    }
    midnight = datetime.combine(start.date(), datetime.min.time())
    periods: list[list[datetime]] = []
    if rule.freq in ("HOURLY", "MINUTELY", "SECONDLY"):
        size = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}[rule.freq]
        unit, index = timedelta(seconds=size), 0
        begin = midnight + (start - midnight) // unit * unit
        while (at := begin + index * rule.interval * unit) <= last:
            shown = {"BYHOUR": at.hour, "BYMINUTE": at.minute, "BYSECOND": at.second}
            limits = list(shown)[: {"HOURLY": 1, "MINUTELY": 2, "SECONDLY": 3}[rule.freq]]
            if at.date() in fitting and all(shown[name] in by.get(name, [shown[name]]) for name in limits):
                rest = {timedelta(seconds=c.seconds % size) for c in clock} if size > 1 else {timedelta()}
                periods.append(sorted(at + r for r in rest))
            index += 1
    else:
        week = midnight - timedelta((start.weekday() - rule.week_start) % 7)
        numbers = {
            "DAILY": lambda d: (d - start.date()).days,
            "WEEKLY": lambda d: (d - week.date()).days // 7,
            "MONTHLY": lambda d: (d.year - start.year) * 12 + d.month - start.month,
            "YEARLY": lambda d: d.year - start.year,
        }
        by_period: dict[int, list[datetime]] = {}
        for day in sorted(fitting):
            number = numbers[rule.freq](day)
            if number % rule.interval == 0:
                by_period.setdefault(number, []).extend(
                    datetime.combine(day, datetime.min.time()) + c for c in clock
                )
        periods = [by_period[number] for number in sorted(by_period) if number >= 0]
    for period in periods:
        if "BYSETPOS" in by:
            period = [
                period[i]
                for i in sorted({n - 1 if n > 0 else len(period) + n for n in by["BYSETPOS"]})
                if 0 <= i < len(period)
            ]
        yield from (at for at in period if start <= at <= last)


SIGNED = {"BYMONTHDAY": 31, "BYYEARDAY": 366, "BYWEEKNO": 53}
PLAIN = {"BYMONTH": (1, 12), "BYHOUR": (0, 23), "BYMINUTE": (0, 59), "BYSECOND": (0, 59)}
FREQS = ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]


@st.composite
def rules(draw: st.DrawFn) -> Given:
    freq = draw(st.sampled_from(FREQS))
    allowed = {"BYMONTH", "BYHOUR", "BYMINUTE", "BYSECOND"}
    allowed |= {"BYMONTHDAY"} if freq != "WEEKLY" else set()
    allowed |= {"BYYEARDAY"} if freq in ("YEARLY", "HOURLY", "MINUTELY", "SECONDLY") else set()
    allowed |= {"BYWEEKNO"} if freq == "YEARLY" else set()
    by: dict[str, list[int]] = {}
    for name in draw(st.lists(st.sampled_from(sorted(allowed)), max_size=3, unique=True)):
        if name in SIGNED:
            numbers = st.integers(-SIGNED[name], SIGNED[name]).filter(bool)
        else:
            numbers = st.integers(*PLAIN[name])
        by[name] = draw(st.lists(numbers, min_size=1, max_size=8, unique=True))
    of_month = freq == "MONTHLY" or "BYMONTH" in by
    number = st.integers(-5, 5) if of_month else st.integers(-53, 53)
    if freq not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in by:
        number = st.just(0)
    days = draw(st.lists(st.tuples(number, st.integers(0, 6)), max_size=3, unique=True))
    if by or days:
        by["BYSETPOS"] = draw(st.lists(st.integers(-9, 9).filter(bool), max_size=3, unique=True))
        if not by["BYSETPOS"]:
            del by["BYSETPOS"]
    return Given(freq, draw(st.integers(1, 9)), draw(st.integers(0, 6)), by, days)


@pytest.mark.long
@given(rules(), st.datetimes(datetime(1999, 1, 1), datetime(2040, 1, 1)), st.integers(0, 1_000))
@settings(max_examples=20_000 if SOAK else 250, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_a_rule_gives_what_a_count_of_all_days_gives(rule: Given, start: datetime, part: int) -> None:
    start = start.replace(microsecond=0)
    days = {"YEARLY": 4_000, "MONTHLY": 900, "WEEKLY": 400, "DAILY": 400, "HOURLY": 60, "MINUTELY": 4}
    last = start + timedelta(days.get(rule.freq, 0), hours=2)
    expected = list(islice(oracle(rule, start, last), 5_000))
    bound = expected[-1] if len(expected) == 5_000 else last
    try:
        made = parse_rule(rule.text, start)
    except RuleError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert not expected
        assert re.search("no time|too long", refused)
        return
    assert list(takewhile(lambda at: at <= bound, made.times(start - timedelta(1)))) == expected
    local = start + (bound - start) * part / 1_000
    later = [at for at in expected if at > local]
    assert list(takewhile(lambda at: at <= bound, made.times(local))) == later


# -- how long it takes

HARD = [
    "FREQ=MINUTELY;INTERVAL=59;BYMINUTE=30;BYHOUR=4;BYDAY=FR;BYMONTHDAY=13",
    "FREQ=SECONDLY;INTERVAL=7;BYHOUR=3;BYMINUTE=3;BYSECOND=3;BYMONTHDAY=29;BYMONTH=2",
    "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=23;BYMINUTE=59;BYSECOND=59",
    "FREQ=SECONDLY;INTERVAL=99991;BYHOUR=3;BYMINUTE=3;BYSECOND=3",
    "FREQ=SECONDLY;INTERVAL=2;BYSECOND=1,3,5",
    "FREQ=SECONDLY;INTERVAL=8639;BYSECOND=1;BYMINUTE=7",
    "FREQ=HOURLY;INTERVAL=99999;BYHOUR=3;BYYEARDAY=366",
    "FREQ=DAILY;INTERVAL=7;BYDAY=MO",
    "FREQ=DAILY;INTERVAL=99991;BYMONTHDAY=31",
    "FREQ=WEEKLY;INTERVAL=53;BYMONTH=2;BYDAY=MO;BYSETPOS=2",
    "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=" + ",".join(map(str, range(6, 367))),
    "FREQ=YEARLY;INTERVAL=100;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=YEARLY;BYDAY=MO,TU,WE,TH,FR,SA,SU;BYSETPOS=366;BYHOUR=" + ",".join(map(str, range(24))),
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
]


@pytest.mark.parametrize("text", HARD)
def test_a_hard_rule_is_found_or_refused_soon(text: str) -> None:
    """The loop computes the next time of a schedule: no search may take 60 ms there. Here with room for a
    busy machine."""
    start = datetime(2027, 1, 1, 9)
    began = process_time()
    try:
        times = list(islice(parse_rule(text, start).times(start), 3))
    except RuleError:
        times = []
    assert process_time() - began < 0.5
    assert all(at.year <= YEAR_LAST for at in times)


def test_values_of_hard_rules() -> None:
    """By hand: 59 and the 1,440 minutes of a day have no common divisor, so 04:30 comes each 59 days."""
    start = datetime(2026, 11, 13, 4, 30)  # Friday the 13th
    rule = parse_rule("FREQ=MINUTELY;INTERVAL=59;BYMINUTE=30;BYHOUR=4;BYDAY=FR;BYMONTHDAY=13", start)
    days = (start.date() + timedelta(59 * n) for n in range(1, 10_000))
    friday = next(day for day in days if (day.day, day.weekday()) == (13, 4))
    assert next(rule.times(start)) == datetime.combine(friday, start.time())
