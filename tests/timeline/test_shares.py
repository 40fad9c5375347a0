"""Shares of a bound."""

import pytest

from timeline.shares import may_take


@pytest.mark.parametrize(
    ("taken", "mine", "owners", "expected"),
    [
        (69, 69, 1, True),
        (70, 70, 1, False),  # the last eighth is for who comes next
        (70, 0, 2, True),
        (79, 9, 2, True),
        (79, 40, 2, False),
        (79, 39, 2, True),
        (79, 20, 4, False),
        (79, 19, 4, True),
        (80, 0, 4, False),
    ],
)
def test_the_last_eighth_is_for_those_below_an_equal_share(
    taken: int, mine: int, owners: int, expected: bool
) -> None:
    assert may_take(taken, 80, mine, owners) is expected


def test_a_small_bound_has_no_reserve() -> None:
    assert may_take(6, 7, 6, 1)
    assert not may_take(7, 7, 0, 2)
    assert not may_take(0, 0, 0, 1)


def test_many_are_taken_whole_or_not_at_all() -> None:
    assert may_take(60, 80, 60, 1, 10)
    assert not may_take(60, 80, 60, 1, 11)
    assert may_take(70, 80, 0, 2, 10)
    assert not may_take(70, 80, 0, 2, 11)
    assert may_take(72, 80, 16, 3, 4), "the equal share is 26"
    assert not may_take(72, 80, 24, 3, 4)
