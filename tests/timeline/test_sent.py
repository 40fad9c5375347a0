"""Ranges of fires that were sent, against a set of them."""

from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from timeline.fires import Every, Plan, next_fire, unsent
from timeline.sent import RANGES_MAX, Ranges, end_of, shifted, with_fire

STEP_MS = 10
PLAN = Plan(Every(STEP_MS, 0), ZoneInfo("UTC"))


def test_a_fire_extends_the_run_before_it() -> None:
    sent = with_fire((), 0, 10)
    assert sent == ((10, 10),)
    assert with_fire(sent, 10, 20) == ((10, 20),)
    assert with_fire(sent, 20, 30) == ((10, 10), (30, 30)), "20 lies between them"
    assert with_fire(((10, 20), (40, 50)), 20, 60) == ((10, 60),), (
        "30 was not one, or the first unsent was 30"
    )


def test_beyond_the_bound_the_smallest_gap_counts_as_sent() -> None:
    sent: Ranges = tuple((at * 100, at * 100 + 10) for at in range(RANGES_MAX))
    more = with_fire(sent, 250, 265)
    assert len(more) == RANGES_MAX
    assert (200, 210) in more
    assert (265, 310) in more, "35 ms between it and the next, 55 and 90 between others"


def test_a_change_of_the_zone_moves_them() -> None:
    assert shifted(((10, 20), (40, 40)), -5) == ((5, 15), (35, 35))


def test_what_was_sent_is_passed_over_at_once() -> None:
    """However many fires a range has."""
    sent = ((10, 10 * 10**9),)
    fire = next_fire(PLAN, 5, sent)
    assert fire is not None
    assert fire.base_ms == 10 * 10**9 + STEP_MS
    assert [
        found.base_ms for found, _ in zip(unsent(PLAN, 0, ((10, 20), (40, 40))), range(3), strict=False)
    ] == [*(30, 50, 60)]


@given(st.lists(st.integers(0, 60), max_size=200))
def test_none_that_was_sent_is_ever_next(clocks: list[int]) -> None:
    """The first fire behind each of these times that was not sent is sent, wherever the clock was before."""
    sent: Ranges = ()
    known: set[int] = set()
    for now in clocks:
        fire = next_fire(PLAN, now * STEP_MS, sent)
        assert fire is not None
        assert fire.base_ms not in known
        if len(sent) < RANGES_MAX:
            first = next(at for at in range(now + 1, 400) if at * STEP_MS not in known)
            assert fire.base_ms == first * STEP_MS
        sent = with_fire(sent, now * STEP_MS, fire.base_ms)
        known.add(fire.base_ms)
        assert len(sent) <= RANGES_MAX
        assert all(end_of(sent, at) is not None for at in known)
        assert list(sent) == sorted(sent)
        assert all(a[1] < b[0] for a, b in pairwise(sent))
