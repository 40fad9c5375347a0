"""Which slices are sealed and which may go."""

from timeline.position import before, position
from timeline.slices import Directory, Slice


def directory(*passed_s: int | None) -> Directory:
    """Slices of 1,000 ms, one after the other, passed at these seconds of running time."""
    made = Directory(max_slices=100)
    for index, passed in enumerate(passed_s):
        piece = Slice(index * 1_000, index * 1_000 + 1_000, 0)
        piece.passed_s = passed
        made.adopt(piece)
    return made


def starts(pieces: list[Slice]) -> list[int]:
    return [piece.start_ms for piece in pieces]


def test_a_slice_is_passed_when_the_horizon_is_at_its_end() -> None:
    made = directory(None, None, None)
    assert made.passed(before(0)) == []
    assert made.passed(position(999, 77)) == []
    assert starts(made.passed(before(1_000))) == [0]
    assert starts(made.passed(position(2_500, 1))) == [0, 1_000]
    assert starts(made.passed(before(9_000))) == [0, 1_000, 2_000]


def test_a_slice_is_passed_once() -> None:
    assert starts(directory(4, None, None).passed(before(2_000))) == [1_000]


def test_slices_go_oldest_first_and_without_gaps() -> None:
    made = directory(0, 50, 10, None)
    assert made.expired(59, 60) == []
    assert starts(made.expired(60, 60)) == [0]
    assert starts(made.expired(100, 60)) == [0]
    assert starts(made.expired(110, 60)) == [0, 1_000, 2_000]
    assert starts(made.expired(10_000, 60)) == [0, 1_000, 2_000]


def test_nothing_goes_before_it_was_passed() -> None:
    assert directory(None, 0).expired(10_000, 0) == []
    assert directory().expired(10_000, 0) == []
