"""Turns."""

import pytest

from server.fair import Turns


def test_owners_take_turns() -> None:
    turns: Turns[str] = Turns()
    assert not turns
    for one in ("a1", "a2", "a3", "b1", "c1", "c2"):
        turns.add(one[0], one)
    taken = [turns.take() for _ in range(3)]
    turns.add("d", "d1")
    turns.add("b", "b2")
    assert "b" in turns
    assert "e" not in turns
    assert len(turns) == 5
    while turns:
        taken.append(turns.take())
    assert all(owner == one[0] for owner, one in taken)
    order = "a1 b1 c1 d1 a2 b2 c2 a3"
    assert [one for _, one in taken] == order.split(), "who comes goes first, who comes again waits"
    with pytest.raises(KeyError):
        turns.take()
