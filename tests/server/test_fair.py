"""Turns."""

import pytest

from server.fair import Turns


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
