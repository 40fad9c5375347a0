"""When schedules fire over changes of the clocks: truth tables, and a dull count of minutes as the oracle."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.soak import SOAK
from timeline.cron import Cron, parse_cron
from timeline.fires import (
    GRACE_MS,
    Every,
    Fire,
    Gap,
    Misfire,
    Overlap,
    Plan,
    Progress,
    due_by,
    fires,
    following,
    just_before,
    local_text,
    next_fire,
)
from timeline.recurrence import parse_rule

ZONES = ("Europe/Bucharest", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")
MINUTE_MS, DAY_MS = 60_000, 86_400_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


def utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%m-%dT%H:%M")


def next_fires(plan: Plan, after_ms: int, count: int) -> list[Fire]:
    return list(islice(fires(plan, after_ms), count))


def fired(
    text: str, zone: str, day: str, gap: Gap = "after", overlap: Overlap = "first", count: int = 1
) -> list[str]:
    """UTC times of the fires from local midnight of a day, and the next `count` - 1."""
    there = ZoneInfo(zone)
    start = datetime.fromisoformat(day).replace(tzinfo=there)
    plan = Plan(parse_cron(text), there, gap=gap, overlap=overlap)
    return [utc(fire.at_ms) for fire in next_fires(plan, int(start.timestamp() * 1_000) - 1, count)]


GAPS = [
    # zone, cron in the middle of the gap, day, after, before (UTC), from the published rules of each zone
    ("Europe/Bucharest", "30 3 * * *", "2026-03-29", "03-29T01:30", "03-29T00:30"),
    ("Europe/Bucharest", "30 3 * * *", "2027-03-28", "03-28T01:30", "03-28T00:30"),
    ("Europe/Bucharest", "30 3 * * *", "2028-03-26", "03-26T01:30", "03-26T00:30"),
    ("America/New_York", "30 2 * * *", "2026-03-08", "03-08T07:30", "03-08T06:30"),
    ("America/New_York", "30 2 * * *", "2027-03-14", "03-14T07:30", "03-14T06:30"),
    ("America/New_York", "30 2 * * *", "2028-03-12", "03-12T07:30", "03-12T06:30"),
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04", "10-03T15:45", "10-03T15:15"),
    ("Australia/Lord_Howe", "15 2 * * *", "2027-10-03", "10-02T15:45", "10-02T15:15"),
    ("Australia/Lord_Howe", "15 2 * * *", "2028-10-01", "09-30T15:45", "09-30T15:15"),
]
OVERLAPS = [
    ("Europe/Bucharest", "30 3 * * *", "2026-10-25", "10-25T00:30", "10-25T01:30"),
    ("Europe/Bucharest", "30 3 * * *", "2027-10-31", "10-31T00:30", "10-31T01:30"),
    ("Europe/Bucharest", "30 3 * * *", "2028-10-29", "10-29T00:30", "10-29T01:30"),
    ("America/New_York", "30 1 * * *", "2026-11-01", "11-01T05:30", "11-01T06:30"),
    ("America/New_York", "30 1 * * *", "2027-11-07", "11-07T05:30", "11-07T06:30"),
    ("America/New_York", "30 1 * * *", "2028-11-05", "11-05T05:30", "11-05T06:30"),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05", "04-04T14:45", "04-04T15:15"),
    ("Australia/Lord_Howe", "45 1 * * *", "2027-04-04", "04-03T14:45", "04-03T15:15"),
    ("Australia/Lord_Howe", "45 1 * * *", "2028-04-02", "04-01T14:45", "04-01T15:15"),
]


@pytest.mark.parametrize(("zone", "text", "day", "after", "before"), GAPS)
def test_gap(zone: str, text: str, day: str, after: str, before: str) -> None:
    assert fired(text, zone, day, gap="after") == [after]
    assert fired(text, zone, day, gap="before") == [before]
    [skipped] = fired(text, zone, day, gap="skip")
    assert skipped > after[:6] + "23:59" or skipped[:5] != after[:5]
    there = ZoneInfo(zone)
    fire = next_fire(Plan(parse_cron(text), there), ms(f"{day}T00:00+14:00"))
    assert fire is not None
    assert "moved after the gap" in fire.note or fire.nominal.date().isoformat() < day


@pytest.mark.parametrize(("zone", "text", "day", "first", "second"), OVERLAPS)
def test_overlap(zone: str, text: str, day: str, first: str, second: str) -> None:
    assert fired(text, zone, day, overlap="first") == [first]
    assert fired(text, zone, day, overlap="second") == [second]
    assert fired(text, zone, day, overlap="both", count=2) == [first, second]


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "UTC"])
def test_a_zone_without_changes(zone: str) -> None:
    start = ms("2026-01-01T00:00Z")
    found = [f.at_ms for f in next_fires(Plan(parse_cron("30 3 * * *"), ZoneInfo(zone)), start, 1_096)]
    first = ms("2026-01-01T22:00Z") if zone == "Asia/Kolkata" else ms("2026-01-01T03:30Z")
    assert found == [first + n * DAY_MS for n in range(1_096)]


def test_a_day_that_was_skipped_whole() -> None:
    """Samoa went from 29 to 31 December 2011."""
    zone = ZoneInfo("Pacific/Apia")
    plan = Plan(parse_cron("0 9 * * *"), zone, gap="skip")
    found = [f.nominal.day for f in next_fires(plan, ms("2011-12-28T00:00Z"), 4)]
    assert found == [28, 29, 31, 1]
    plan = Plan(parse_cron("0 9 30 * *"), zone)
    fire = next_fire(plan, ms("2011-12-28T00:00Z"))
    assert fire is not None
    assert local_text(fire.at_ms, zone) == "2011-12-31T09:00:00+14:00[Pacific/Apia]"


def oracle(cron: Cron, zone: ZoneInfo, start: datetime, days: int, gap: Gap, overlap: Overlap) -> set[int]:
    """Every minute of a few days looked at: which of them are fires, ms."""
    instants = [start + timedelta(minutes=n) for n in range(-240, days * 1_440 + 240)]
    shown: dict[datetime, list[datetime]] = {}
    for at in instants:
        shown.setdefault(at.astimezone(zone).replace(tzinfo=None), []).append(at)
    found: set[datetime] = set()
    local = min(shown)
    while local <= max(shown):
        is_nominal = (
            local.minute in cron.minutes
            and local.hour in cron.hours
            and (local.isoweekday() % 7) in cron.weekdays
        )
        if is_nominal and local in shown:
            there = sorted(shown[local])
            chosen = {"first": there[:1], "second": there[-1:], "both": there}[overlap]
            found.update(chosen)
        elif is_nominal and gap != "skip":
            behind = next(at for at in (local + timedelta(minutes=n) for n in range(1, 200)) if at in shown)
            ahead = next(at for at in (local - timedelta(minutes=n) for n in range(1, 200)) if at in shown)
            if gap == "after":
                found.add(shown[ahead][0] + (local - ahead))
            else:
                found.add(shown[behind][0] - (behind - local))
        local += timedelta(minutes=1)
    end = start + timedelta(days=days)
    return {int(at.timestamp() * 1_000) for at in found if start < at <= end}


CHANGES = {
    zone: tuple(sorted({row[2] for row in (*GAPS, *OVERLAPS) if row[0] == zone}))
    or ("2026-03-29", "2027-10-31")
    for zone in ZONES
}
"""All days of the tables."""


def test_the_tables_have_every_change_of_three_years() -> None:
    """The days on which a zone's offset differs from the day before, from the database itself."""
    for name in ZONES:
        zone = ZoneInfo(name)
        noons = [datetime(2026, 1, 1, 12, tzinfo=zone) + timedelta(days=n) for n in range(1_096)]
        found = {b.date().isoformat() for a, b in pairwise(noons) if a.utcoffset() != b.utcoffset()}
        assert found == {row[2] for row in (*GAPS, *OVERLAPS) if row[0] == name}
        assert len(found) == (6 if name not in ("Asia/Kolkata", "UTC") else 0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, str]:
    zone = draw(st.sampled_from(ZONES))
    day = draw(st.sampled_from(CHANGES[zone]))
    minute = draw(st.sampled_from(["*", "*/7", "0", "30", "0,15,45", "59"]))
    hour = draw(st.sampled_from(["*", "1", "2", "3", "1-4", "*/2", "0,3,23"]))
    weekday = draw(st.sampled_from(["*", "0", "6,0", "1-5"]))
    return zone, day, f"{minute} {hour} * * {weekday}"


@pytest.mark.long
@given(cases(), st.sampled_from(["skip", "after", "before"]), st.sampled_from(["first", "second", "both"]))
@settings(max_examples=200 if SOAK else 20, deadline=None)
def test_no_fire_is_skipped_or_doubled_but_as_the_policy_says(
    case: tuple[str, str, str], gap: Gap, overlap: Overlap
) -> None:
    zone, day, text = case
    there, cron = ZoneInfo(zone), parse_cron(text)
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=14)
    start_ms, end_ms = int(start.timestamp() * 1_000), int(start.timestamp() * 1_000) + DAY_MS
    plan = Plan(cron, there, end_ms=end_ms, gap=gap, overlap=overlap)
    expected = sorted(oracle(cron, there, start, 1, gap, overlap))
    assert [fire.base_ms for fire in fires(plan, start_ms)] == expected
    at_ms, stepwise = start_ms, []
    for _ in range(min(len(expected), 60)):
        fire = next_fire(plan, at_ms)
        assert fire is not None
        stepwise.append(at_ms := fire.base_ms)
    assert stepwise == expected[:60], "asked one by one they are the same"


def test_every_counts_elapsed_time() -> None:
    zone = ZoneInfo("Europe/Bucharest")
    plan = Plan(Every(DAY_MS, ms("2027-03-27T09:00+02:00")), zone)
    found = [local_text(f.at_ms, zone)[11:16] for f in next_fires(plan, 0, 3)]
    assert found == ["09:00", "10:00", "10:00"], "24 hours each"
    assert next_fire(plan, ms("2027-03-27T09:00+02:00")).base_ms == ms("2027-03-28T10:00+03:00")  # type: ignore[union-attr]


def test_rule_in_a_zone_and_until_as_an_instant() -> None:
    zone = ZoneInfo("America/New_York")
    rule = parse_rule("FREQ=DAILY;UNTIL=20270315T063000Z", datetime(2027, 3, 12, 2, 30))
    found = [utc(f.at_ms) for f in fires(Plan(rule, zone), 0)]
    assert found == ["03-12T07:30", "03-13T07:30", "03-14T07:30", "03-15T06:30"]


def test_start_end_and_jitter() -> None:
    zone = ZoneInfo("UTC")
    start, end = ms("2027-01-01T00:00Z"), ms("2027-01-02T00:00Z")
    plan = Plan(
        parse_cron("*/10 * * * *"), zone, start_ms=start, end_ms=end, jitter_ms=15 * MINUTE_MS, seed="a"
    )
    found = next_fires(plan, 0, 1_000)
    assert [f.base_ms for f in found] == list(range(start, end + 1, 10 * MINUTE_MS))
    assert all(f.base_ms <= f.at_ms <= end for f in found)
    assert [f.at_ms for f in found] == sorted(f.at_ms for f in found), "never beyond the next"
    assert len({f.at_ms - f.base_ms for f in found}) > 50
    again = [next_fire(plan, f.base_ms - 1) for f in found]
    assert again == found, "pure"
    other = Plan(parse_cron("*/10 * * * *"), zone, jitter_ms=15 * MINUTE_MS, seed="b")
    assert [f.at_ms for f in next_fires(other, start - 1, 9)] != [f.at_ms for f in found[:9]]


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Pacific/Apia", "2011-12-30"),
        ("Pacific/Kwajalein", "1993-08-21"),
        ("Antarctica/Casey", "2009-10-18"),
        ("Antarctica/Casey", "2010-03-05"),
        ("Atlantic/Azores", "2026-10-25"),
    ],
)
def test_fires_are_in_order_where_a_day_is_skipped_or_many_hours(zone: str, day: str) -> None:
    there = ZoneInfo(zone)
    first = datetime.fromisoformat(day) - timedelta(days=3)
    asked = [first + timedelta(hours=3 * step) for step in range(8 * 8)]
    expected = sorted({int(nominal.replace(tzinfo=there).timestamp() * 1_000) for nominal in asked})
    plan = Plan(parse_cron("0 */3 * * *"), there)
    for number, start in enumerate(expected[:30]):
        found = [fire.base_ms for fire in next_fires(plan, start - 1, 12)]
        assert found == expected[number : number + 12]


def test_jitter_is_anything_from_nothing_to_its_bound() -> None:
    plan = Plan(Every(1_000, 0), ZoneInfo("UTC"), jitter_ms=2, seed="x")
    assert {fire.at_ms - fire.base_ms for fire in next_fires(plan, 0, 100)} == {0, 1, 2}


def test_only_what_counts_elapsed_time_says_so() -> None:
    assert Plan(Every(1_000, 0), ZoneInfo("UTC")).counts_elapsed
    assert not Plan(parse_cron("@daily"), ZoneInfo("UTC")).counts_elapsed


def test_a_rule_with_an_end_fires_to_its_last_time() -> None:
    start = datetime(2027, 3, 27, 3, 30)
    plan = Plan(parse_rule("FREQ=DAILY;COUNT=3", start), ZoneInfo("Europe/Bucharest"))
    found = [(utc(fire.base_ms), fire.note[:17]) for fire in fires(plan, 0)]
    assert found == [("03-27T01:30", ""), ("03-28T01:30", "the clocks skip 2"), ("03-29T00:30", "")]


def test_a_local_time_that_is_skipped_counts_as_if_the_clocks_had_gone_on() -> None:
    plan = Plan(parse_cron("30 3 * * *"), ZoneInfo("Europe/Bucharest"), gap="skip")
    nominal_ms = ms("2026-03-29T03:30+00:00")
    assert utc(just_before(plan, nominal_ms, 0)) == "03-29T01:30"


def test_of_a_time_that_comes_twice_the_last_is_taken_when_both_are_over() -> None:
    plan = Plan(parse_cron("30 3 * * *"), ZoneInfo("Europe/Bucharest"), overlap="both")
    nominal_ms, first = ms("2026-10-25T03:30+00:00"), ms("2026-10-25T00:30+00:00")
    assert just_before(plan, nominal_ms, first - 1) == first - 1
    assert just_before(plan, nominal_ms, first) == first + 60 * MINUTE_MS - 1
    assert just_before(plan, nominal_ms, first + DAY_MS) == first + 60 * MINUTE_MS - 1


@pytest.mark.parametrize("misfire", ["skip", "fire_once", "fire_all"])
def test_a_fire_that_is_late_by_the_grace_is_not_missed(misfire: Misfire) -> None:
    plan = Plan(Every(60_000, 0), ZoneInfo("UTC"))
    for late_ms, at_ms in ((GRACE_MS, 60_000), (GRACE_MS + 1, 120_000 if misfire == "skip" else 60_000)):
        fire, _ = following(plan, misfire, Progress(0), 60_000 + late_ms, was_late=False)
        assert fire is not None
        assert fire.at_ms == at_ms


def test_what_is_moved_before_a_gap_comes_before_what_stands_there() -> None:
    """02:15 is skipped and fires at 01:45, before 01:50, which the expression names first."""
    found = fired("15,50 1,2 * * *", "Australia/Lord_Howe", "2026-10-04", gap="before", count=4)
    assert found == ["10-03T14:45", "10-03T15:15", "10-03T15:20", "10-03T15:50"]


@pytest.mark.long
@given(
    st.integers(0, 40_000),
    st.sampled_from(["*/2 * * * * *", "0 0,1,7 * * * *", "0 0 6 * * *", "30 17 * * * *"]),
    st.integers(1, 9 * 3_600_000),
)
@settings(max_examples=120, deadline=None)
def test_up_to_where_fires_are_due(now_s: int, cron: str, jitter_ms: int) -> None:
    """Against a walk over all fires that jitter could delay beyond now: at most the last is not due."""
    now_ms = 1_800_000_000_000 + now_s * 1_000
    plan = Plan(parse_cron(cron), ZoneInfo("UTC"), jitter_ms=jitter_ms, seed="x")
    begun = list(takewhile(lambda fire: fire.base_ms <= now_ms, fires(plan, now_ms - jitter_ms - 60_000)))
    waiting = [fire for fire in begun if fire.at_ms > now_ms]
    assert waiting == begun[len(begun) - len(waiting) :]
    assert due_by(plan, now_ms) == (waiting[0].base_ms - 1 if waiting else now_ms)
