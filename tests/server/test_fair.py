"""Shares of a bound, and turns."""

import pytest

from server.fair import Turns, may_take


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


def test_owners_take_turns() -> None:
    turns: Turns[str] = Turns()
    assert not turns
    for one in ("a1", "a2", "a3", "b1", "c1", "c2"):
        turns.add(one[0], one)
    taken = [turns.take() for _ in range(2)]
    turns.add("d", "d1")
    while turns:
        taken.append(turns.take())
    assert taken == ["a1", "b1", "c1", "a2", "d1", "c2", "a3"]
    with pytest.raises(KeyError):
        turns.take()
