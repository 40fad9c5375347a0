"""Cron fields, recurrence rules and elapsed time on their own, apart from zones."""

from datetime import datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from timeline.cron import MACROS, CronError, parse_cron
from timeline.recurrence import RuleError, parse_rule

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
        ("0 0 * * 0", ["2027-01-31 00:00:00", "2027-02-07 00:00:00"]),
        ("0 0 * * 7", ["2027-01-31 00:00:00", "2027-02-07 00:00:00"]),
        ("0 0 * * FRI-SUN", None),
        ("0 0 * * 5-7", ["2027-01-31 00:00:00", "2027-02-05 00:00:00"]),
        ("0 0 1 * MON", ["2027-02-01 00:00:00", "2027-02-08 00:00:00"]),
        ("0 0 */2 * MON", ["2027-02-01 00:00:00", "2027-02-15 00:00:00"]),
        ("0 0 1 JAN,jul *", ["2027-07-01 00:00:00", "2028-01-01 00:00:00"]),
        ("5/20 * * * *", ["2027-01-30 09:25:00", "2027-01-30 09:45:00"]),
        ("@hourly", ["2027-01-30 10:00:00", "2027-01-30 11:00:00"]),
        ("@Weekly", ["2027-01-31 00:00:00", "2027-02-07 00:00:00"]),
    ],
)
def test_cron(text: str, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(CronError, match="day of week"):
            parse_cron(text)
    else:
        assert cron_times(text, START, 2) == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        *[("61 * * * *", "minute"), ("* 24 * * *", "hour"), ("* * 0 * *", "day"), ("* * * 13 *", "month")],
        *[("* * * * 8", "day of week"), ("* * * foo *", "month"), ("60 * * * * *", "second")],
        *[("*/0 * * * *", "minute"), ("5-1 * * * *", "minute"), ("1,,2 * * * *", "minute")],
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


RULES = [
    "FREQ=YEARLY",
    "FREQ=YEARLY;INTERVAL=2;BYMONTH=2,7",
    "FREQ=YEARLY;BYDAY=20MO",
    "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO",
    "FREQ=MONTHLY;BYDAY=-1FR",
    "FREQ=MONTHLY;INTERVAL=5",
    "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-1",
    "FREQ=WEEKLY;INTERVAL=3;BYDAY=MO,SU;WKST=SU",
    "FREQ=WEEKLY;INTERVAL=2",
    "FREQ=DAILY;INTERVAL=10",
    "FREQ=DAILY;BYHOUR=3,4;BYMINUTE=0,30;BYSECOND=0",
    "FREQ=HOURLY;INTERVAL=7",
    "FREQ=MINUTELY;INTERVAL=45;BYHOUR=8,9",
    "FREQ=SECONDLY;INTERVAL=3601",
]


@pytest.mark.parametrize("text", RULES)
def test_a_rule_asked_far_from_its_start_says_the_same(text: str) -> None:
    rule = parse_rule(text, START)
    plain = rrulestr(text, dtstart=START)
    for days in (0, 1, 13, 29, 200, 366, 1_500):
        local = START + timedelta(days=days, hours=days % 7)
        ours = list(islice(rule.times(local), 4))
        assert ours == list(islice(plain.xafter(local), 4)), (text, local)


def test_lines_exdates_count_and_until() -> None:
    text = "RRULE:FREQ=DAILY;COUNT=4\nEXDATE:20270131T091505,20270101T000000"
    assert [at.day for at in parse_rule(text, START).times(START - timedelta(1))] == [30, 1, 2]
    rule = parse_rule("FREQ=DAILY;UNTIL=20270201", START)
    assert [at.day for at in rule.times(datetime(2020, 1, 1))] == [30, 31, 1]
    rule = parse_rule("FREQ=DAILY;UNTIL=20270131T091504", START)
    assert [at.day for at in rule.times(datetime(2020, 1, 1))] == [30]
    assert parse_rule("FREQ=DAILY;UNTIL=20270201T000000Z", START).until_utc == datetime(2027, 2, 1)
    yearly = parse_rule("FREQ=YEARLY;COUNT=30", START)
    assert len(list(takewhile(lambda at: at.year < 2057, yearly.times(datetime(2000, 1, 1))))) == 30


@pytest.mark.parametrize(
    "text",
    [
        *["", "FREQ=NEVER", "INTERVAL=2", "FREQ=DAILY;INTERVAL=0", "FREQ=DAILY;COUNT=5000", "FREQ=DAILY;X=1"],
        *["FREQ=DAILY;FREQ=DAILY", "FREQ=DAILY;COUNT=2;UNTIL=20280101", "FREQ=MONTHLY;BYDAY=XX"],
        *["FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"],
        *["FREQ=DAILY;UNTIL=soon", "RRULE:FREQ=DAILY\nRRULE:FREQ=DAILY", "DTSTART:20270101T000000"],
        *["FREQ=DAILY\nEXDATE:20270101", "FREQ=DAILY\nEXDATE:20270101T000000Z", "FREQ=DAILY;BYHOUR=25"],
        *["FREQ=DAILY;UNTIL=20200101", "x" * 40_000, "FREQ=DAILY;BYMONTH=13"],
        "FREQ=DAILY;BYMINUTE=" + ",".join(map(str, range(60))) + ";BYHOUR=" + ",".join(["1"] * 25),
        "FREQ=DAILY\nEXDATE:" + ",".join(["20270101T000000"] * 3) + "\nEXDATE:1",
    ],
)
def test_what_is_no_rule_is_refused_soon(text: str) -> None:
    with pytest.raises(RuleError):
        parse_rule(text, START)


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=28;BYHOUR=17",
        "FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=17",
        "FREQ=SECONDLY;INTERVAL=7;BYMONTH=2;BYMONTHDAY=29;BYHOUR=17;BYMINUTE=3;BYSECOND=5",
    ],
)
def test_a_rule_that_is_searched_time_of_day_by_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(RuleError, match="takes too long to search"):
        parse_rule(text, START)


def test_what_is_found_within_some_days_is_not() -> None:
    for text in (
        "FREQ=SECONDLY;BYHOUR=9;BYDAY=MO,TU,WE,TH,FR",
        "FREQ=MINUTELY;BYHOUR=17;BYMONTHDAY=1",
        "FREQ=MINUTELY;INTERVAL=5;BYHOUR=9,10,11;BYMINUTE=5,10,15;BYDAY=MO",
    ):
        expected = list(islice(rrulestr(text, dtstart=START), 200))
        assert list(islice(parse_rule(text, START).times(START - timedelta(seconds=1)), 200)) == expected
