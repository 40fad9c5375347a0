"""Which slices are sealed and which may go."""

from timeline.position import before, position
from timeline.retention import expired_slices, passed_slices
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
    assert passed_slices(made, before(0)) == []
    assert passed_slices(made, position(999, 77)) == []
    assert starts(passed_slices(made, before(1_000))) == [0]
    assert starts(passed_slices(made, position(2_500, 1))) == [0, 1_000]
    assert starts(passed_slices(made, before(9_000))) == [0, 1_000, 2_000]


def test_a_slice_is_passed_once() -> None:
    assert starts(passed_slices(directory(4, None, None), before(2_000))) == [1_000]


def test_slices_go_oldest_first_and_without_gaps() -> None:
    made = directory(0, 50, 10, None)
    assert expired_slices(made, 59, 60) == []
    assert starts(expired_slices(made, 60, 60)) == [0]
    assert starts(expired_slices(made, 100, 60)) == [0]
    assert starts(expired_slices(made, 110, 60)) == [0, 1_000, 2_000]
    assert starts(expired_slices(made, 10_000, 60)) == [0, 1_000, 2_000]


def test_nothing_goes_before_it_was_passed() -> None:
    assert expired_slices(directory(None, 0), 10_000, 0) == []
    assert expired_slices(directory(), 10_000, 0) == []
