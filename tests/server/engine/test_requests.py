"""What waits for the writer: owners take turns, each one's in order."""

from typing import Any, cast

from server.engine.requests import Requests, over_http

ANY = float("inf")


def add(requests: Requests, owner: str, name: str, *, cost: int = 1, writes: bool = True) -> None:
    requests.add(owner, (cost, 0, writes, lambda _: name, lambda _: None))


def names(requests: Requests, *, may_write: bool = True, most: float = ANY) -> list[str]:
    """All that may be taken, in order."""
    found = []
    while (one := requests.take(may_write=may_write, most=most)) is not None:
        found.append(one[3](cast("Any", None)))
    return found


def test_owners_take_turns() -> None:
    requests = Requests()
    for name in ("a1", "a2", "a3", "b1", "c1", "c2"):
        add(requests, name[0], name)
    assert len(requests.all) == 6
    assert names(requests) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert not requests
    assert requests.take(may_write=True, most=ANY) is None


def test_one_that_has_to_wait_holds_up_its_own_owner_alone() -> None:
    requests = Requests()
    for owner, name, writes in (("a", "a1", True), ("a", "a2", False), ("b", "b1", False), ("b", "b2", True)):
        add(requests, owner, name, writes=writes)
    assert not requests.writes_all
    assert names(requests, may_write=False) == ["b1"]
    assert requests.writes_all
    assert names(requests) == ["a1", "b2", "a2"]


def test_what_a_key_publishes_does_not_wait_behind_its_calls() -> None:
    requests = Requests()
    add(requests, over_http("a"), "call")
    add(requests, "a", "publish", writes=False)
    assert names(requests, may_write=False) == ["publish"]
    assert names(requests) == ["call"]


def test_a_large_one_waits_and_is_the_next_one_when_it_may() -> None:
    requests = Requests()
    add(requests, "a", "large", cost=10_000)
    add(requests, "a", "behind")
    add(requests, "b", "b1")
    add(requests, "b", "b2")
    assert names(requests, most=250) == ["b1", "b2"]
    add(requests, "b", "b3")
    assert names(requests) == ["large", "b3", "behind"]
