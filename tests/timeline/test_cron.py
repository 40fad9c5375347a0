"""Cron fields on local times, against APScheduler's where the rules are the same."""

import re
from calendar import monthrange
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger
from hypothesis import given, settings
from hypothesis import strategies as st

from server.settings.durations import parse_delay
from timeline.cron import MACROS, CronError, parse_cron
from timeline.recurrence import parse_rule

START = datetime(2027, 1, 30, 9, 15, 5)
UTC = ZoneInfo("UTC")


def cron_times(text: str, after: datetime, count: int) -> list[str]:
    return [at.isoformat(sep=" ") for at in islice(parse_cron(text).times(after), count)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 2 * * *", ["2027-01-31 02:00:00", "2027-02-01 02:00:00"]),
        ("*/20 9 * * *", ["2027-01-30 09:20:00", "2027-01-30 09:40:00"]),
        ("30 15 9 * * *", ["2027-01-30 09:15:30", "2027-01-31 09:15:30"]),
        ("0 0 L * *", ["2027-01-31 00:00:00", "2027-02-28 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 29 2 */7", ["2032-02-29 00:00:00", "2060-02-29 00:00:00"]),
        ("0 0 * * 0", ["2027-01-31 00:00:00", "2027-02-07 00:00:00"]),
        ("0 0 * * 7", ["2027-01-31 00:00:00", "2027-02-07 00:00:00"]),
        ("0 0 * * FRI-SUN", ["2027-01-31 00:00:00", "2027-02-05 00:00:00"]),
        ("0 0 * * mon-sun", ["2027-01-31 00:00:00", "2027-02-01 00:00:00"]),
        ("0 0 * * sun-mon", ["2027-01-31 00:00:00", "2027-02-01 00:00:00"]),
        ("0 0 * * mon-sun/2", ["2027-01-31 00:00:00", "2027-02-01 00:00:00"]),
        ("0 0 12 ? * MON-FRI", ["2027-02-01 12:00:00", "2027-02-02 12:00:00"]),
        ("0 0 12 1/5 * ?", ["2027-01-31 12:00:00", "2027-02-01 12:00:00"]),
        ("0 0 1 * ?", ["2027-02-01 00:00:00", "2027-03-01 00:00:00"]),
        ("0 0 12 ? * mon/2", ["2027-01-31 12:00:00", "2027-02-01 12:00:00"]),
        ("0 0 ? * ?", ["2027-01-31 00:00:00", "2027-02-01 00:00:00"]),
        ("0 0 * * 5-7", ["2027-01-31 00:00:00", "2027-02-05 00:00:00"]),
        ("0 0 1 * MON", ["2027-02-01 00:00:00", "2027-02-08 00:00:00"]),
        ("0 0 */2 * MON", ["2027-02-01 00:00:00", "2027-02-15 00:00:00"]),
        ("0 0 1 JAN,jul *", ["2027-07-01 00:00:00", "2028-01-01 00:00:00"]),
        ("5/20 * * * *", ["2027-01-30 09:25:00", "2027-01-30 09:45:00"]),
        ("@hourly", ["2027-01-30 10:00:00", "2027-01-30 11:00:00"]),
        ("@Weekly", ["2027-01-31 00:00:00", "2027-02-07 00:00:00"]),
    ],
)
def test_cron(text: str, expected: list[str]) -> None:
    assert cron_times(text, START, 2) == expected


def test_a_range_that_ends_on_sunday_is_the_whole_week() -> None:
    assert parse_cron("0 0 * * mon-sun").weekdays == tuple(range(7))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 0 12 ? * 2-6", "day of week: Quartz counts from 1"),
        ("0 0 12 * * ? 2027-2030", "the year '2027-2030' is read by Quartz alone"),
        ("0 0 12 ? * mon/2,5", "day of week: Quartz counts from 1"),
        ("0 9 L-31 * *", "day: 'L-31' is an unsupported Quartz form; no rrule"),
        ("0 9 31W * *", "day: '31W' is an unsupported Quartz form; no rrule"),
        ("* * LW * *", "day: 'LW' is an unsupported Quartz form; for an rrule, say at most 366 times"),
        ("0 9 1,15W * *", "day: '15W' is an unsupported Quartz form; give that day a schedule of its own"),
        ("0 9 15W * mon", "day: '15W' is an unsupported Quartz form; give that day a schedule of its own"),
        ("0 9 * * * /usr/bin/x", "'/usr/bin/x' is no day of the week; if it is the command of a crontab"),
        ("*/5 * * * * root run a", "'root' is no day of the week; if it is the command"),
    ],
)
def test_what_others_read_is_refused_by_its_name(text: str, said: str) -> None:
    with pytest.raises(CronError) as refused:
        parse_cron(text)
    assert str(refused.value).startswith(said)


def nth(numbers: list[int], weekday: int) -> Callable[[date], bool]:
    """The n-th of a weekday in its month, from the beginning or the end."""

    def fits(day: date) -> bool:
        left = monthrange(day.year, day.month)[1] - day.day
        return day.weekday() == weekday and bool({(day.day - 1) // 7 + 1, -(left // 7) - 1} & {*numbers})

    return fits


def nearest_working_day(number: int) -> Callable[[date], bool]:
    """Of a day of the month: Friday for Saturday, Monday for Sunday, in the same month."""

    def fits(day: date) -> bool:
        wanted = day.replace(day=number)
        shift = {5: 2 if number == 1 else -1, 6: 1}.get(wanted.weekday(), 0)
        return day == wanted + timedelta(shift)

    return fits


def from_the_end(days: int) -> Callable[[date], bool]:
    return lambda day: monthrange(day.year, day.month)[1] - day.day == days


def last_working_day(day: date) -> bool:
    rest = range(day.day + 1, monthrange(day.year, day.month)[1] + 1)
    return day.weekday() < 5 and all(day.replace(day=number).weekday() > 4 for number in rest)


@pytest.mark.parametrize(
    ("text", "fits", "clock"),
    [
        ("0 9 L-3 * *", from_the_end(3), "09:00:00"),
        ("0 9 L-30 * *", from_the_end(30), "09:00:00"),
        ("0 9 L-0 * *", from_the_end(0), "09:00:00"),
        ("30 0 12 LW * ?", last_working_day, "12:00:30"),
        ("0 9,17 LW * *", last_working_day, "09:00:00 17:00:00"),
        ("0 9 15W * *", nearest_working_day(15), "09:00:00"),
        ("0 9 1W * *", nearest_working_day(1), "09:00:00"),
        ("0,30 9 1W * *", nearest_working_day(1), "09:00:00 09:30:00"),
        ("0 9 27W * *", nearest_working_day(27), "09:00:00"),
        ("0 0 12 ? * 6#3", nth([3], 4), "12:00:00"),
        ("0 0 12 ? * FRI#3", nth([3], 4), "12:00:00"),
        ("0 9 * * 5#3", nth([3], 4), "09:00:00"),
        ("0 9 * * 5L", nth([-1], 4), "09:00:00"),
        ("0 9 * * 1#1", nth([1], 0), "09:00:00"),
        ("0 9 * * 0#1", nth([1], 6), "09:00:00"),
        ("0 9 * * 7L", nth([-1], 6), "09:00:00"),
        ("0 0 9 ? * 7L", nth([-1], 5), "09:00:00"),
        ("0 9 * 3 friL", lambda day: day.month == 3 and nth([-1], 4)(day), "09:00:00"),
    ],
)
def test_the_rrule_in_an_error_says_the_same(text: str, fits: Callable[[date], bool], clock: str) -> None:
    """The advice is followed, and its times are those of a count of days."""
    with pytest.raises(CronError) as refused:
        parse_cron(text)
    rules = re.findall(r"FREQ=\S+", str(refused.value))
    assert rules
    start = datetime(2027, 1, 1)
    made = (islice(parse_rule(rule, start).times(start), 100) for rule in rules)
    found = sorted({at for times in made for at in times})[:40]
    days = (start.date() + timedelta(number) for number in range(20_000))
    times = (datetime.fromisoformat(f"{day} {at}") for day in days if fits(day) for at in clock.split())
    assert found == list(islice(times, 40))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        *(("0 0 * * fri-mon", "fri,sat,sun,mon"), ("0 22-3 * * *", "22,23,0,1,2,3")),
        *(("0 22-4/2 * * *", "22,0,2,4"), ("0 0 1 nov-feb *", "11,12,1,2"), ("0 0 30-2 * *", "30,31,1,2")),
        ("0 0 ? * sat-tue/2", "sat,mon"),
    ],
)
def test_the_values_in_an_error_about_a_range_are_read(text: str, values: str) -> None:
    with pytest.raises(CronError, match=f"runs backwards; write {values}$"):
        parse_cron(text)
    part = next(part for part in text.split() if "-" in part)
    assert parse_cron(text.replace(part, values))


@pytest.mark.parametrize("text", ["@every 5m", "@EVERY  1h30m", "@every"])
def test_every_is_a_field_of_its_own(text: str) -> None:
    with pytest.raises(CronError, match="use every: ") as refused:
        parse_cron(text)
    assert parse_delay(str(refused.value).rpartition("every: ")[2]) >= 300_000


@pytest.mark.parametrize(
    ("text", "field"),
    [
        *[("61 * * * *", "minute"), ("* 24 * * *", "hour"), ("* * 0 * *", "day"), ("* * * 13 *", "month")],
        *[("* * * * 8", "day of week"), ("* * * foo *", "month"), ("60 * * * * *", "second")],
        *[
            *(("*/0 * * * *", "minute"), ("5-1 * * * *", "minute"), ("* * * * fri-mon", "backwards")),
            *(("* * ?/2 * *", "day"), ("* * * ? *", "month"), ("1,,2 * * * *", "minute")),
        ],
        *[("* * * *", "neither"), ("", "neither"), ("@reboot", "neither"), ("* " * 200, "characters")],
        *[("0 0 30 2 *", "no month"), ("0 0 31 4,6 *", "no month"), ("1-2-3 * * * *", "minute")],
    ],
)
def test_a_bad_expression_names_its_field(text: str, field: str) -> None:
    with pytest.raises(CronError, match=field):
        parse_cron(text)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, max(1, (high - low) // 2)).map(lambda by: f"*/{by}")
    part = st.one_of(number.map(str), span)
    return st.one_of(st.just("*"), step, st.lists(part, min_size=1, max_size=3).map(",".join))


@pytest.mark.long
@given(
    st.tuples(field(0, 59), field(0, 59), field(0, 23), field(1, 28), field(1, 12)),
    st.datetimes(datetime(1980, 1, 1), datetime(2090, 1, 1)),
)
@settings(max_examples=150, deadline=None)
def test_cron_agrees_with_apscheduler(fields: tuple[str, str, str, str, str], after: datetime) -> None:
    """Where the rules are the same: no day of the week, a day that every month has, UTC."""
    second, minute, hour, day, month = fields
    trigger = CronTrigger(
        second=second, minute=minute, hour=hour, day=day, month=month, year="*", timezone=UTC
    )
    cron = parse_cron(" ".join((*fields, "*")))
    at = after.replace(microsecond=0)
    for ours in islice(cron.times(at), 5):
        theirs = trigger.get_next_fire_time(None, (at + timedelta(seconds=1)).replace(tzinfo=UTC))
        assert ours == theirs.replace(tzinfo=None)
        at = ours


def test_every_macro_is_read() -> None:
    for name in MACROS:
        assert cron_times(name, START, 1)


def test_nothing_is_looked_for_behind_the_last_year() -> None:
    assert parse_cron("0 0 1 1 *").after(datetime(9999, 6, 1)) is None
    assert parse_cron("0 0 1 1 *").after(datetime(9998, 6, 1)) == datetime(9999, 1, 1)


def test_a_number_has_three_digits_at_most() -> None:
    assert parse_cron("007 * * * *").minutes == (7,)
    with pytest.raises(CronError, match="minute"):
        parse_cron("0007 * * * *")


def test_the_rarest_date_is_found() -> None:
    cron = parse_cron("0 0 29 2 */7")
    assert cron.after(datetime(2088, 2, 29)) == datetime(2128, 2, 29)


NAMES = ["sun", "mon", "tue", "wed", "thu", "fri", "sat", "7"]


def spelled(values: list[int], names: list[str]) -> str:
    """A list, with a range or a name where the numbers allow it."""
    if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{names[values[0]]}-{names[values[-1]]}"
    return ",".join(names[value] for value in values) or "*"


@pytest.mark.long
@given(
    st.lists(st.integers(1, 32), max_size=4, unique=True).map(sorted),
    st.lists(st.integers(0, 7), max_size=4, unique=True).map(sorted),
    st.lists(st.integers(1, 12), max_size=3, unique=True).map(sorted),
    st.sampled_from([1, 2, 3, 7]),
    st.datetimes(datetime(1996, 1, 1), datetime(2090, 1, 1)),
)
@settings(max_examples=300, deadline=None)
def test_days_of_cron_against_a_count_of_all_days(
    days: list[int], weekdays: list[int], months: list[int], step: int, after: datetime
) -> None:
    """32 is L. Either kind of day is enough if both are restricted; one with a star is not."""
    last, plain = 32 in days, [day for day in days if day < 32]
    every = [n for n in range(1, 32) if (n - 1) % step == 0]
    day_field = ",".join([*map(str, plain), *(["l"] if last else [])]) or (f"*/{step}" if step > 1 else "*")
    week_field = spelled(weekdays, NAMES)
    month_field = spelled(months, [str(number) for number in range(13)])

    def fits(day: date) -> bool:
        is_last = (day + timedelta(1)).month != day.month
        by_month = (day.day in plain or (last and is_last)) if days else day.day in every
        by_week = day.isoweekday() % 7 in {number % 7 for number in weekdays} or not weekdays
        both = by_month or by_week if days and weekdays else by_month and by_week
        return both and (not months or day.month in months)

    first = after.date() + timedelta(1)
    span = [first + timedelta(number) for number in range(1_500)]
    expected = [datetime(day.year, day.month, day.day) for day in span if fits(day)][:5]
    try:
        cron = parse_cron(f"0 0 {day_field} {month_field} {week_field}")
    except CronError:
        assert not expected
        return
    found = list(islice(cron.times(datetime.combine(after.date(), time.max)), 5))
    assert found[: len(expected)] == expected
