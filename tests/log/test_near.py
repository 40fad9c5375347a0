"""Reading from who is near, and may be behind or have a damaged copy."""

from collections.abc import Sequence

import pytest

from shards.log.chained import open_engine
from shards.log.errors import Damaged
from tests.support.logs import Elapsing, Faulty
from tests.support.shelf import MemoryEngine, Shelf

pytestmark = pytest.mark.short


class Near(Faulty):
    """Its near copies lack some records, and have a flipped bit in others."""

    def __init__(self, shelf: Shelf, *, lacks: Sequence[int] = (), flipped: Sequence[int] = ()) -> None:
        super().__init__(MemoryEngine(shelf))
        self.lacks, self.flipped = lacks, flipped
        self.sure: list[int] = []

    def fetch(self, seq: int, count: int, timeout_s: float, *, is_sure: bool = True) -> Sequence[bytes]:
        frames = super().fetch(seq, count, timeout_s, is_sure=is_sure)
        if is_sure:
            self.sure.append(seq)
            return frames
        near = []
        for at, frame in enumerate(frames, seq):
            if at in self.lacks:
                break
            near.append(frame[:-1] + bytes([frame[-1] ^ 1]) if at in self.flipped else frame)
        return near


@pytest.fixture
def shelf() -> Shelf:
    shelf = Shelf()
    log = open_engine(MemoryEngine(shelf), Elapsing(), 2.0)
    log.claim(1, "a", "")
    for seq in range(2, 11):
        log.append(seq, 1, b"record %d" % seq)
    return shelf


@pytest.mark.parametrize(
    ("lacks", "flipped", "asked"),
    [
        *(((4,), (), [4]), ((1,), (), [1]), ((10,), (), [10]), ((), (4,), [4]), ((), (1, 10), [1])),
        *(((), (2, 10), [2]), ((3, 4), (5, 6), [3])),
    ],
)
def test_what_is_wrong_near_is_had_from_who_is_sure(
    shelf: Shelf, lacks: Sequence[int], flipped: Sequence[int], asked: list[int]
) -> None:
    """The rest of a batch, too."""
    near = Near(shelf, lacks=lacks, flipped=flipped)
    log = open_engine(near, Elapsing(), 2.0)
    assert [seq for seq, _, _ in log.read(0)] == list(range(1, 11))
    assert near.sure == asked


def test_many_strays_are_read_many_at_a_time(shelf: Shelf) -> None:
    for _ in range(1_000):
        shelf.last += 1
        shelf.frames[shelf.last] = b"hello"
    near = Near(shelf)
    log = open_engine(near, Elapsing(), 2.0)
    assert [seq for seq, _, _ in log.read(0)] == list(range(1, 11))
    assert log.strays == (1_000, 11, 1_010)
    assert len(near.sure) < 100


def test_what_is_wrong_everywhere_is_damage(shelf: Shelf) -> None:
    shelf.frames[5] = shelf.frames[5][:-1] + bytes([shelf.frames[5][-1] ^ 1])
    log = open_engine(Near(shelf), Elapsing(), 2.0)
    found = []
    with pytest.raises(Damaged, match="record 5"):
        found.extend(seq for seq, _, _ in log.read(0))
    del shelf.frames[5]
    log = open_engine(Near(shelf), Elapsing(), 2.0)
    with pytest.raises(Damaged, match="missing"):
        list(log.read(0))
