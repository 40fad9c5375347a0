"""A local time that was named by the rules of its zone as they were, and what is next by those of now."""

from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.cron import parse_cron
from timeline.fires import Gap, Overlap, Plan, fires, just_before, next_fire, note_of

START_MS = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp() * 1_000)
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@given(
    st.integers(-10, 10),
    st.integers(-10, 10),
    st.sampled_from(["0 2 * * *", "*/20 * * * *", "15 1-5 * * 1-5", "0 0 1 * *"]),
    st.integers(0, 400 * 24 * 60),
)
def test_the_same_local_time_is_named(old: int, new: int, text: str, minutes: int) -> None:
    cron = parse_cron(text)
    before = START_MS + minutes * MINUTE_MS
    fire = next_fire(Plan(cron, ZoneInfo(f"Etc/GMT{old:+d}")), before)
    assert fire is not None
    plan = Plan(cron, ZoneInfo(f"Etc/GMT{new:+d}"))
    again = next_fire(plan, just_before(plan, fire.nominal_ms, before))
    assert again is not None
    assert (again.nominal, again.base_ms - fire.base_ms) == (fire.nominal, (new - old) * HOUR_MS)


@pytest.mark.parametrize("overlap", ["first", "second", "both"])
def test_one_of_a_doubled_time_stays_the_one_it_is(overlap: Overlap) -> None:
    plan = Plan(parse_cron("30 3 31 10 *"), ZoneInfo("Europe/Bucharest"), overlap=overlap)
    at_ms = int(datetime(2027, 10, 1, tzinfo=UTC).timestamp() * 1_000)
    for _ in range(2 if overlap == "both" else 1):
        fire = next_fire(plan, at_ms)
        assert fire is not None
        assert just_before(plan, fire.nominal_ms, at_ms) == fire.base_ms - 1
        at_ms = fire.base_ms


def test_a_local_time_that_is_skipped_now() -> None:
    plan = Plan(parse_cron("30 3 * * *"), ZoneInfo("Europe/Bucharest"), gap="skip")
    nominal_ms = int(datetime(2027, 3, 28, 3, 30, tzinfo=UTC).timestamp() * 1_000)
    fire = next_fire(plan, just_before(plan, nominal_ms, nominal_ms - DAY_MS))
    assert fire is not None
    assert fire.nominal == datetime(2027, 3, 29, 3, 30)


@pytest.mark.parametrize("gap", ["skip", "after", "before"])
@pytest.mark.parametrize("overlap", ["first", "second", "both"])
@pytest.mark.parametrize("day", ["28 3", "31 10"])
def test_the_note_of_a_fire_is_found_without_a_search(gap: Gap, overlap: Overlap, day: str) -> None:
    plan = Plan(parse_cron(f"*/30 1-5 {day} *"), ZoneInfo("Europe/Bucharest"), gap=gap, overlap=overlap)
    found = list(islice(fires(plan, START_MS), 12))
    told = [note_of(fire.nominal_ms, fire.base_ms, plan.zone, gap, overlap) for fire in found]
    assert told == [fire.note for fire in found]
    assert note_of(found[0].nominal_ms, found[0].base_ms + 1, plan.zone, gap, overlap) == ""
