"""The fair queue."""

import pytest

from server.fair import FairQueue


def test_owners_take_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    assert not queue
    for one in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.add(one[0], one)
    taken = [queue.take() for _ in range(3)]
    queue.add("d", "d1")
    queue.add("b", "b2")
    assert "b" in queue
    assert "e" not in queue
    assert len(queue) == 5
    while queue:
        taken.append(queue.take())
    assert all(owner == one[0] for owner, one in taken)
    order = "a1 b1 c1 d1 a2 b2 c2 a3"
    assert [one for _, one in taken] == order.split(), "who comes goes first, who comes again waits"
    with pytest.raises(KeyError):
        queue.take()
