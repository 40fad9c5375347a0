"""The ring of what was dispatched last, against a list that forgets nothing but its front."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline.position import Position
from timeline.tail import Tail


def make(entries: int = 8, size: int = 100) -> Tail[str]:
    return Tail(Position(10), max_entries=entries, max_bytes=size)


def test_it_covers_what_came_after_its_floor() -> None:
    tail = make()
    assert tail.covers(Position(10))
    assert not tail.covers(Position(9))
    tail.append(Position(11), "a", 1)
    tail.append(Position(15), "b", 1)
    assert tail.after(Position(10), 5) == [(11, "a"), (15, "b")]
    assert tail.after(Position(11), 5) == [(15, "b")]
    assert tail.after(Position(10), 1) == [(11, "a")]
    assert tail.after(Position(15), 5) == []
    assert len(tail) == 2


def test_a_message_larger_than_the_ring_is_not_kept() -> None:
    tail = make(size=10)
    tail.append(Position(11), "small", 2)
    tail.append(Position(12), "large", 11)
    assert not tail.covers(Position(11))
    assert tail.covers(Position(12))
    assert tail.after(Position(12), 5) == []
    assert tail.bytes == 0


@pytest.mark.parametrize(("entries", "size"), [(16, 1_000), (1_000, 16)])
@pytest.mark.parametrize("at_once", [1, 8])
def test_what_fits_exactly_stays_and_beyond_that_seven_eighths_do(
    at_once: int, entries: int, size: int
) -> None:
    tail = make(entries, size)

    def put(*numbers: int) -> None:
        if at_once == 1:
            for number in numbers:
                tail.append(Position(11 + number), "x", 1)
        else:
            tail.extend(
                [Position(11 + number) for number in numbers], ["x"] * len(numbers), [1] * len(numbers)
            )

    for start in range(0, 16, at_once):
        put(*range(start, start + at_once))
    assert (len(tail), tail.bytes, tail.floor) == (16, 16, 10)
    put(16)
    assert (len(tail), tail.bytes, tail.floor) == (14, 14, 13)


@given(
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), max_size=300),
    entries=st.integers(1, 20),
    size=st.integers(1, 200),
)
def test_against_a_list(steps: list[tuple[int, int]], entries: int, size: int) -> None:
    tail = make(entries, size)
    everything: list[tuple[int, int, int]] = []
    place = 10
    for gap, item_size in steps:
        place += gap
        everything.append((place, len(everything), item_size))
        tail.append(Position(place), str(len(everything) - 1), item_size)
        assert len(tail) <= entries
        assert tail.bytes <= size
        kept = everything[len(everything) - len(tail) :]
        assert tail.bytes == sum(row[2] for row in kept)
        assert tail.floor == (
            everything[len(everything) - len(tail) - 1][0] if len(kept) < len(everything) else 10
        )
        for read in (tail.floor, Position(place - 1), Position(place)):
            if tail.covers(read):
                expected = [(p, str(item)) for p, item, _ in everything if p > read]
                assert tail.after(read, 1_000) == expected
                assert tail.after(read, 2) == expected[:2]


def test_it_stays_small_over_a_long_time() -> None:
    tail = make(entries=100, size=1 << 20)
    for number in range(20_000):
        tail.append(Position(11 + number), "x", 10)
    assert 50 <= len(tail) <= 100
    assert len(tail._places) == len(tail._items) == len(tail._sizes) == len(tail)


@pytest.mark.long
@given(st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=12))
def test_several_at_once_are_held_within_the_bounds(runs: list[list[int]]) -> None:
    one, other = make(), make()
    at = 10
    for sizes in runs:
        places = [Position(at + n + 1) for n in range(len(sizes))]
        other.extend(places, [f"{place}" for place in places], sizes)
        for place, size in zip(places, sizes, strict=True):
            one.append(place, f"{place}", size)
        at += len(sizes)
        assert other.bytes <= other.max_bytes
        assert len(other) <= other.max_entries
        held = [place for place, _ in other.after(other.floor, 100)]
        assert held == list(range(other.floor + 1, at + 1))
        last = max(one.floor, other.floor)
        assert one.after(last, 100) == other.after(last, 100)


def test_it_counts_what_it_has_dropped() -> None:
    tail = make(entries=8)
    for number in range(20):
        tail.append(Position(11 + number), str(number), 1)
        assert tail.count == number + 1
        assert tail.since(number, 5) == [str(number)]
        assert len(tail.since(0, 100)) == len(tail)
    assert tail.since(20, 5) == []
    assert tail.since(tail.count - 3, 2) == ["17", "18"]
