"""Who among many origins may be posted to."""

from server.webhook.origins import MOST, WAIT_MAX_MS, WAIT_MIN_MS, Origins, Slot

A, B = b"a", b"b"
"""Owners."""


def fill(origins: Origins, name: str, owner: bytes = A, now_ms: float = 0.0) -> list[Slot]:
    """Take as much as there is."""
    taken = []
    while (slot := origins.take(name, owner, now_ms)) is not None:
        taken.append(slot)
    return taken


def post(origins: Origins, name: str, took_ms: float, owner: bytes = A) -> None:
    slot = origins.take(name, owner, 0.0)
    assert slot is not None
    origins.give(slot, took_ms, took_ms)


def test_one_origin_has_its_bound() -> None:
    assert len(fill(Origins(capacity=200, each=10), "a")) == 10


def test_however_many_are_slow_something_is_free_again() -> None:
    """Posts to slow origins end too, and then there are fewer of each."""
    origins = Origins(capacity=200, each=10)
    names = [f"slow{number}" for number in range(100)]
    held = {name: fill(origins, name) for name in names}
    for _ in range(20):
        for name in names:
            if held[name]:
                origins.give(held[name].pop(), 15_000.0, 0.0)
            held[name] += fill(origins, name)
    assert min(map(len, held.values())) >= 1
    assert origins.open < 200
    assert origins.take("fast", A, 0.0)


def test_what_ends_makes_room() -> None:
    origins = Origins(capacity=200, each=10)
    slots = fill(origins, "a")
    assert not origins.take("a", A, 0.0)
    origins.give(slots.pop(), 5.0, 5.0)
    assert origins.take("a", A, 0.0)
    assert origins.open == 10


def test_a_thousand_that_hang_leave_room_for_those_that_are_quick_and_for_other_owners() -> None:
    origins = Origins(capacity=100, each=10)
    post(origins, "quick", 20.0)
    hanging = [slot for number in range(1_000) for slot in fill(origins, f"hangs{number}")]
    assert 50 <= len(hanging) < 75
    assert origins.take("hangs too", A, 0.0) is None
    assert origins.take("quick", A, 0.0)
    assert origins.take("not known", B, 0.0)
    others = [slot for number in range(1_000) for slot in fill(origins, f"of b{number}", B)]
    assert origins.take("nor this one", b"c", 0.0)
    for slot in [*hanging, *others]:
        origins.give(slot, 15_000.0, 15_000.0)
    assert origins.open == 3


def test_one_that_was_quick_and_hangs_is_not_quick_any_more() -> None:
    origins = Origins(capacity=100, each=10)
    names = [f"o{number}" for number in range(1_000)]
    for name in names:
        post(origins, name, 20.0)
    hung = {name: fill(origins, name) for name in names}
    for slot in [slot for slots in hung.values() for slot in slots]:
        origins.give(slot, 15_000.0, 15_000.0)
    had = [name for name in names if hung[name]]
    assert sum(map(len, hung.values())) == 75
    assert len([slot for name in had for slot in fill(origins, name)]) < 60


def test_what_is_put_off_while_all_hang_does_not_come_again_at_once() -> None:
    """5,000 origins of one owner are looked at a few times each, not ten times a second."""
    origins = Origins(capacity=100, each=10)
    hanging = [slot for number in range(200) for slot in fill(origins, f"hangs{number}")]
    first = [origins.put_off_ms(f"o{number}", A, 1_000.0) for number in range(5_000)]
    assert max(first) > 60_000
    for slot in hanging:
        origins.give(slot, 15_000.0, 15_000.0)
    again = [slot for number in range(200) for slot in fill(origins, f"hangs{number}", A, 15_000.0)]
    waits = [origins.put_off_ms(f"more{number}", A, 15_000.0) for number in range(100)]
    assert len(again) == len(hanging)
    assert max(waits) - min(waits) > 99 * 15_000.0 / len(again) / 2


def test_what_is_put_off_comes_one_behind_the_other_at_the_pace_of_the_origin() -> None:
    origins = Origins(capacity=200, each=10)
    for _ in range(100):
        post(origins, "a", 20.0)
    waits = [origins.put_off_ms("a", A, 0.0) for _ in range(1_001)]
    assert waits[0] == WAIT_MIN_MS
    assert abs(waits[1_000] - (WAIT_MIN_MS + 2_000)) < 20
    assert waits == sorted(waits)
    assert origins.put_off_ms("b", A, 0.0) == WAIT_MIN_MS


def test_nothing_waits_for_longer_than_an_hour() -> None:
    origins = Origins(capacity=200, each=1)
    for _ in range(30):
        post(origins, "a", 60_000.0)
    waits = [origins.put_off_ms("a", A, 0.0) for _ in range(200)]
    assert max(waits) == WAIT_MAX_MS
    assert min(waits[60:]) < WAIT_MAX_MS  # the turn begins anew


def test_so_many_are_remembered_and_none_with_something_under_way_is_forgotten() -> None:
    origins = Origins(capacity=200, each=10)
    first = origins.take("first", A, 0.0)
    assert first is not None
    for number in range(MOST + 50):
        post(origins, f"o{number}", 1.0)
    assert len(origins) <= MOST
    origins.give(first, 1.0, 1.0)
    assert origins.open == 0
