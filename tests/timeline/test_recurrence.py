"""Recurrence rules on local times, against dateutil asked from the rule's start."""

from datetime import datetime, timedelta
from itertools import islice, takewhile

import pytest
from dateutil.rrule import rrulestr

from timeline.recurrence import RuleError, parse_rule

START = datetime(2027, 1, 30, 9, 15, 5)

RULES = [
    *("FREQ=YEARLY", "FREQ=YEARLY;INTERVAL=2;BYMONTH=2,7", "FREQ=YEARLY;BYDAY=20MO"),
    *("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "FREQ=MONTHLY;BYDAY=-1FR", "FREQ=MONTHLY;INTERVAL=5"),
    *("FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-1", "FREQ=WEEKLY;INTERVAL=3;BYDAY=MO,SU;WKST=SU"),
    *("FREQ=WEEKLY;INTERVAL=2", "FREQ=DAILY;INTERVAL=10", "FREQ=DAILY;BYHOUR=3,4;BYMINUTE=0,30;BYSECOND=0"),
    *("FREQ=HOURLY;INTERVAL=7", "FREQ=MINUTELY;INTERVAL=45;BYHOUR=8,9", "FREQ=SECONDLY;INTERVAL=3601"),
]


@pytest.mark.long
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
        *["FREQ=DAILY\nRDATE:20270131T091505", "FREQ=DAILY;COUNT=0000005"],
        *["FREQ=YEARLY;BYEASTER=0", "FREQ=DAILY;INTERVAL", "FREQ=DAILY;INTERVAL="],
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
    ("text", "expected"),
    [
        ("FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=28;BYHOUR=17", datetime(2027, 2, 28, 17)),
        ("FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=17", datetime(2028, 2, 29, 17, 0, 5)),
    ],
)
def test_seconds_and_minutes_of_rare_days_are_found(text: str, expected: datetime) -> None:
    assert next(parse_rule(text, START).times(START)) == expected


def test_seconds_and_minutes_of_some_days() -> None:
    for text in (
        "FREQ=SECONDLY;BYHOUR=9;BYDAY=MO,TU,WE,TH,FR",
        "FREQ=MINUTELY;BYHOUR=17;BYMONTHDAY=1",
        "FREQ=MINUTELY;INTERVAL=5;BYHOUR=9,10,11;BYMINUTE=5,10,15;BYDAY=MO",
    ):
        expected = list(islice(rrulestr(text, dtstart=START), 200))
        assert list(islice(parse_rule(text, START).times(START - timedelta(seconds=1)), 200)) == expected


def test_a_rule_goes_on_for_as_long_as_it_is_asked() -> None:
    """What a search may look at is counted anew for each time that is found."""
    times = parse_rule("FREQ=DAILY", START).times(START)
    assert next(islice(times, 25_000, None)) == START + timedelta(days=25_001)


def test_a_rule_with_count_ends() -> None:
    leap = parse_rule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;COUNT=1000", START)
    times = list(leap.times(START))
    assert (len(times), times[0].year, times[-1].year) == (1_000, 2028, 6148), "97 of 400 years"
    daily = parse_rule("FREQ=DAILY;COUNT=1000", START)
    assert list(daily.times(START + timedelta(days=998))) == [START + timedelta(days=999)]


def test_a_rule_has_so_many_characters() -> None:
    assert parse_rule("FREQ=DAILY" + " " * (32_768 - 10), START)
    with pytest.raises(RuleError, match="32769 characters"):
        parse_rule("FREQ=DAILY" + " " * (32_768 - 9), START)


def test_an_interval_has_a_bound() -> None:
    assert next(parse_rule("FREQ=SECONDLY;INTERVAL=100000", START).times(START)) == START + timedelta(
        seconds=100_000
    )
    with pytest.raises(RuleError, match="INTERVAL"):
        parse_rule("FREQ=SECONDLY;INTERVAL=100001", START)


@pytest.mark.parametrize("text", ["FREQ=YEARLY;INTERVAL=3", "FREQ=MONTHLY;INTERVAL=5", "FREQ=MONTHLY"])
def test_a_rule_asked_after_a_thousand_years_says_the_same(text: str) -> None:
    local = START.replace(year=3_327, day=1)
    assert next(parse_rule(text, START).times(local)) == next(rrulestr(text, dtstart=START).xafter(local))


def test_so_many_times_may_be_left_out() -> None:
    times = [(START + timedelta(days=day)).strftime("%Y%m%dT%H%M%S") for day in range(1_001)]
    rule = parse_rule(
        "FREQ=DAILY\nEXDATE:" + ",".join(times[:600]) + "\nEXDATE:" + ",".join(times[600:1_000]), START
    )
    assert next(rule.times(START - timedelta(days=1))) == START + timedelta(days=1_000)
    with pytest.raises(RuleError, match="at most 1000"):
        parse_rule("FREQ=DAILY\nEXDATE:" + ",".join(times), START)


def test_a_day_to_be_left_out_is_told_its_form() -> None:
    with pytest.raises(RuleError, match="20261202 must be a local time such as 20261224T090000"):
        parse_rule("RRULE:FREQ=DAILY\nEXDATE;VALUE=DATE:20261202", START)


def test_a_rule_makes_so_many_times_a_day() -> None:
    hours, minutes = (",".join(map(str, range(count))) for count in (24, 60))
    text = f"FREQ=DAILY;BYHOUR={hours};BYMINUTE={minutes};BYSECOND="
    assert next(parse_rule(text + "5", START).times(START)) == START + timedelta(minutes=1)
    with pytest.raises(RuleError, match="2880 times a day"):
        parse_rule(text + "5,6", START)


@pytest.mark.parametrize("unit", ["seconds", "minutes", "hours"])
def test_a_rule_by_the_second_is_not_counted_from_its_start(unit: str) -> None:
    local = START + timedelta(days=100_000)
    rule = parse_rule(f"FREQ={unit.upper().removesuffix('S')}LY", START)
    assert next(rule.times(local)) == local + timedelta(**{unit: 1})


def test_a_day_that_a_rule_lasts_until_is_a_whole_one() -> None:
    last = datetime(2027, 2, 1, 23, 59, 59)
    rule = parse_rule("FREQ=DAILY;UNTIL=20270201;BYHOUR=23;BYMINUTE=59;BYSECOND=59", START)
    assert list(rule.times(START))[-1] == last
    rule = parse_rule("FREQ=DAILY;UNTIL=20270201", START.replace(hour=0, minute=0, second=0))
    assert list(rule.times(START))[-1] == datetime(2027, 2, 1)


ALL_POSITIONS = ",".join(map(str, range(1, 367)))


@pytest.mark.parametrize(
    ("positions", "why"),
    [
        (",".join(["1"] * 15_000), "BYSETPOS has 15000 positions, at most 366"),
        (ALL_POSITIONS + ",-1", "BYSETPOS has 367 positions, at most 366"),
        ("1,2,01", "BYSETPOS: the position 1 is given twice"),
        ("0", "BYSETPOS: '0' is no position"),
        ("-367", "BYSETPOS: '-367' is no position"),
        ("1,", "BYSETPOS: '' is no position"),
        ("9" * 5_000, "BYSETPOS: '9999"),
    ],
)
def test_positions_are_few_and_differ(positions: str, why: str) -> None:
    with pytest.raises(RuleError, match=why):
        parse_rule("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;BYSETPOS=" + positions, START)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("FREQ=DAILY;BYHOUR=1,2;BYSETPOS=" + ALL_POSITIONS.removeprefix("1,2,"), "no time at all"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;BYSETPOS=" + ALL_POSITIONS, "no time at all"),
        (
            "FREQ=MONTHLY;BYDAY=MO;BYSETPOS=" + ALL_POSITIONS.removeprefix("1,2,3,4,5,"),
            "takes too long to search: change BYSETPOS",
        ),
    ],
)
def test_positions_that_no_period_has_are_refused(text: str, why: str) -> None:
    """366 positions of each of 20,000 days took 3 s."""
    with pytest.raises(RuleError, match=why):
        parse_rule(text, START)


def test_as_many_positions_as_there_may_be_give_their_times() -> None:
    rule = parse_rule("FREQ=YEARLY;BYDAY=MO,TU,WE,TH,FR,SA,SU;BYSETPOS=" + ALL_POSITIONS, START)
    assert list(islice(rule.times(START), 800)) == [START + timedelta(days) for days in range(1, 801)]


def test_a_rule_by_weeks_of_the_year_takes_the_weekday_of_its_start() -> None:
    """RFC 5545, 3.3.10. dateutil takes all seven days."""
    text = "FREQ=YEARLY;BYWEEKNO=20"
    expected = list(islice(rrulestr(f"{text};BYDAY=SA", dtstart=START), 3))
    assert START.strftime("%a") == "Sat"
    assert list(islice(parse_rule(text, START).times(START), 3)) == expected
    counted = parse_rule(f"{text};COUNT=2", START)
    assert list(counted.times(START)) == expected[:2]
    days = parse_rule(f"{text};BYDAY=MO,TU", START).times(START)
    assert [at.weekday() for at in islice(days, 3)] == [0, 1, 0]
