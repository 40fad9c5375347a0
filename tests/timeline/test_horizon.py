"""The dispatch cursor: where messages are placed, how far dispatch may go, what may still be cancelled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.horizon import BOUND_MS, HELD, SEQ_GAP, STEP_MS, Horizon
from timeline.position import END, START, Position, at_of, before, position

NOW = 1_000_000


def make(*, at: int = NOW, bound_ms: int = 0, wall_ms: int = NOW, seq: int = 7) -> Horizon:
    return Horizon(position=position(at, 3), bound_ms=bound_ms, seq=seq, wall_ms=wall_ms)


def durable(horizon: Horizon) -> Horizon:
    """With a bound on disk."""
    horizon.open_batch(None)
    horizon.close_group()
    return horizon


def test_it_stays_below_what_is_decided_and_not_written() -> None:
    horizon = durable(make())
    horizon.observe(NOW + 10)
    assert horizon.limit(END) == position(NOW + 10, horizon.seq)
    horizon.hold(position(NOW + 4, 2))
    assert horizon.limit(END) == position(NOW + 4, 1)
    horizon.hold(None)
    assert horizon.limit(END) == position(NOW + 10, horizon.seq)


def test_time_starts_at_the_later_of_wall_and_horizon() -> None:
    assert make(wall_ms=NOW + 5).clock_ms == NOW + 5
    assert make(wall_ms=NOW - 5).clock_ms == NOW


def test_time_never_goes_back() -> None:
    horizon = make()
    horizon.observe(NOW + 10)
    horizon.observe(NOW - 10)
    assert horizon.clock_ms == NOW + 10


def test_seq_goes_on_beyond_what_may_have_been_shown() -> None:
    horizon = make(seq=7)
    assert horizon.issue() == 8 + SEQ_GAP
    assert horizon.issue() == 9 + SEQ_GAP


@pytest.mark.parametrize(
    ("due_ms", "wall_ms", "at"),
    [
        (0, NOW, NOW),
        (NOW - 50, NOW, NOW),
        (NOW, NOW, NOW),
        (NOW + 1, NOW, NOW + 1),
        # The clock was set back by half a second: what is due in between waits for T + 1.
        (0, NOW - 500, NOW),
        (NOW - 500, NOW - 500, NOW),
        (NOW - 499, NOW - 500, NOW + 1),
        (NOW, NOW - 500, NOW + 1),
        (NOW + 1, NOW - 500, NOW + 1),
        (NOW, NOW - STEP_MS, NOW + 1),
        # By more than a second: it is held.
        (NOW, NOW - STEP_MS - 1, HELD),
        (NOW - 1, NOW - 60_000, HELD),
        (NOW - 60_000, NOW - 60_000, NOW),
        (NOW + 1, NOW - 60_000, NOW + 1),
    ],
)
def test_place(due_ms: int, wall_ms: int, at: int) -> None:
    assert make().place(due_ms, wall_ms) == at


@given(st.integers(0, 5_000), st.integers(1, 5_000), st.integers(0, 5_000))
def test_no_place_is_early_or_behind(due_ms: int, wall_ms: int, later_ms: int) -> None:
    """Whoever waits until a clock that has shown `wall_ms` shows the place has seen the due."""
    horizon = make(at=0, wall_ms=wall_ms)
    horizon.observe(later_ms)
    at = horizon.place(due_ms, wall_ms)
    assert at == HELD or (at >= horizon.clock_ms and (at >= due_ms or due_ms <= wall_ms))


def test_the_example_of_the_module() -> None:
    horizon = durable(Horizon(position=START, bound_ms=0, seq=6 - SEQ_GAP, wall_ms=1_000))
    horizon.issue()
    horizon.open_batch(position(1_000, 6))
    assert horizon.limit(END) == position(1_000, 5)
    horizon.close_group()
    assert horizon.limit(END) == position(1_000, 7)
    horizon.observe(1_003)
    assert horizon.limit(END) == position(1_003, 7)
    assert horizon.limit(position(1_002, 1)) == position(1_002, 1)


def test_the_lowest_open_floor_holds_the_horizon() -> None:
    horizon = durable(make())
    horizon.observe(NOW + 100)
    horizon.open_batch(position(NOW + 50, 9))
    horizon.open_batch(position(NOW + 20, 10))
    horizon.open_batch(None)
    assert horizon.limit(END) == position(NOW + 20, 9)
    horizon.close_group()
    assert horizon.limit(END) == position(NOW + 20, 9)
    horizon.close_group()
    assert horizon.limit(END) == Position(before(NOW + 100) | horizon.seq)


def test_the_bound_on_disk_holds_the_horizon() -> None:
    horizon = make(bound_ms=NOW + 10)
    horizon.observe(NOW + 60_000)
    assert horizon.limit(END) == before(NOW + 10)
    assert horizon.open_batch(None) == NOW + 60_000 + BOUND_MS
    assert horizon.limit(END) == before(NOW + 10)
    horizon.close_group()
    assert at_of(horizon.limit(END)) == NOW + 60_000


def test_a_store_that_takes_no_writes_needs_no_bound() -> None:
    horizon = make(bound_ms=NOW + 10)
    horizon.observe(NOW + 60_000)
    horizon.unbounded = True
    assert at_of(horizon.limit(END)) == NOW + 60_000


def test_a_limit_is_never_behind_the_horizon() -> None:
    horizon = make(bound_ms=0)
    assert horizon.limit(START) == horizon.position


def test_the_horizon_only_moves_forward() -> None:
    horizon = make()
    horizon.advance(position(NOW + 5, 0))
    assert horizon.position == position(NOW + 5, 0)
    with pytest.raises(AssertionError):
        horizon.advance(position(NOW, 0))


def test_a_cancel_wins_only_beyond_the_clock_and_the_old_bound() -> None:
    horizon = make(bound_ms=NOW + 100)
    assert not horizon.undecided(position(NOW, 9))
    assert not horizon.undecided(position(NOW + 100, 9))
    assert horizon.undecided(position(NOW + 101, 0))
    horizon.observe(NOW + 200)
    assert not horizon.undecided(position(NOW + 200, 9))
    assert horizon.undecided(position(NOW + 201, 0))


def test_a_heartbeat_is_due_in_the_middle_of_the_bound() -> None:
    horizon = durable(make())
    needs = []
    for wall_ms in (NOW, NOW + BOUND_MS // 2, NOW + BOUND_MS // 2 + 1):
        horizon.observe(wall_ms)
        needs.append(horizon.needs_heartbeat)
    horizon.open_batch(None)
    assert [*needs, horizon.needs_heartbeat] == [False, False, True, False]


def test_a_failed_bound_is_written_again() -> None:
    """What the failed groups promised was never on disk: a heartbeat has to say it again, at once."""
    horizon = make(bound_ms=NOW + 10)
    horizon.observe(NOW + 5_000)
    horizon.open_batch(position(NOW + 1, 1))
    horizon.open_batch(None)
    horizon.drop_groups(NOW + 10)
    assert horizon.limit(END) == before(NOW + 10)
    assert horizon.needs_heartbeat
    durable(horizon)
    assert at_of(horizon.limit(END)) == NOW + 5_000


def test_a_mark_stands_in_for_a_bound_that_cannot_be_written() -> None:
    horizon = make(bound_ms=NOW + 10)
    horizon.unbounded = True
    horizon.observe(NOW + 60_000)
    assert horizon.mark_ms == NOW + 60_000 + BOUND_MS
    horizon.marked(horizon.mark_ms)
    assert not horizon.unbounded
    marks = []
    for wall_ms in (NOW + 60_000 + BOUND_MS // 2, NOW + 60_000 + BOUND_MS // 2 + 1):
        horizon.observe(wall_ms)
        marks.append(horizon.mark_ms)
    assert marks == [None, NOW + 60_000 + BOUND_MS // 2 + 1 + BOUND_MS]
    horizon.observe(NOW + 90_000)
    horizon.marked(NOW + 20)
    assert horizon.limit(END) == before(NOW + 60_000 + BOUND_MS)
