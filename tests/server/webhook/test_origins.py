"""Who among many origins may be posted to."""

from server.webhook.origins import MOST, WAIT_MAX_MS, WAIT_MIN_MS, Origins


def fill(origins: Origins, name: str) -> int:
    """Take as much as there is; how much."""
    count = 0
    while origins.take(name):
        count += 1
    return count


def test_one_origin_has_its_bound() -> None:
    assert fill(Origins(capacity=200, each=10), "a") == 10


def test_however_many_are_slow_something_is_free_again() -> None:
    """Posts to slow origins end too, and then there are fewer of each."""
    origins = Origins(capacity=200, each=10)
    names = [f"slow{number}" for number in range(100)]
    held = {name: fill(origins, name) for name in names}
    for _ in range(20):
        for name in names:
            if held[name]:
                origins.give(name, 15_000.0)
                held[name] -= 1
            held[name] += fill(origins, name)
    assert min(held.values()) >= 1
    assert origins.open < 200
    assert origins.take("fast")


def test_what_ends_makes_room() -> None:
    origins = Origins(capacity=200, each=10)
    fill(origins, "a")
    assert not origins.take("a")
    origins.give("a", 5.0)
    assert origins.take("a")
    assert origins.open == 10


def test_what_is_put_off_comes_one_behind_the_other_at_the_pace_of_the_origin() -> None:
    origins = Origins(capacity=200, each=10)
    for _ in range(100):
        assert origins.take("a")
        origins.give("a", 20.0)
    waits = [origins.put_off_ms("a", 0.0) for _ in range(1_001)]
    assert waits[0] == WAIT_MIN_MS
    assert abs(waits[1_000] - (WAIT_MIN_MS + 2_000)) < 20
    assert waits == sorted(waits)
    assert origins.put_off_ms("b", 0.0) == WAIT_MIN_MS


def test_nothing_waits_for_longer_than_an_hour() -> None:
    origins = Origins(capacity=200, each=1)
    for _ in range(30):
        origins.take("a")
        origins.give("a", 60_000.0)
    waits = [origins.put_off_ms("a", 0.0) for _ in range(200)]
    assert max(waits) == WAIT_MAX_MS
    assert min(waits[60:]) < WAIT_MAX_MS  # the turn begins anew


def test_so_many_are_remembered_and_none_with_something_under_way_is_forgotten() -> None:
    origins = Origins(capacity=200, each=10)
    assert origins.take("first")
    for number in range(MOST + 50):
        origins.take(f"o{number}")
        origins.give(f"o{number}", 1.0)
    assert len(origins) <= MOST
    origins.give("first", 1.0)
    assert origins.open == 0
