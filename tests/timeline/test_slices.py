"""Slices, shards and the directory, against the rule that everything covers what it should, once."""

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from timeline.position import AT_MAX, END, HELD_SHARD, START, Position, before, position
from timeline.slices import (
    DAY_MS,
    MINUTE_MS,
    NARROWEST_MS,
    SHARDS_MAX,
    WIDTHS,
    Counts,
    Directory,
    Shard,
    Slice,
    SlicesError,
    TooManyShards,
    TooManySlices,
    Watch,
)

NOW = 20_000 * DAY_MS


def make(limit: int = 1_000) -> Directory:
    return Directory(max_slices=limit)


@pytest.mark.parametrize(
    ("distance_ms", "width_ms"),
    [
        *((0, 15 * MINUTE_MS), (2 * DAY_MS, 15 * MINUTE_MS), (2 * DAY_MS + 1, 360 * MINUTE_MS)),
        *((60 * DAY_MS, 360 * MINUTE_MS), (60 * DAY_MS + 1, 8 * DAY_MS), (4_000 * DAY_MS, 8 * DAY_MS)),
    ],
)
def test_a_slice_is_as_wide_as_it_is_far(distance_ms: int, width_ms: int) -> None:
    piece = make().open(NOW + distance_ms, NOW)
    assert (piece.end_ms - piece.start_ms, piece.start_ms % width_ms) == (width_ms, 0)
    assert piece.start_ms <= NOW + distance_ms < piece.end_ms


def test_each_width_is_a_multiple_of_the_one_before() -> None:
    widths = [width for _, width in WIDTHS]
    assert all(wide % narrow == 0 for narrow, wide in pairwise(widths))
    assert widths[0] == NARROWEST_MS


def test_a_slice_that_would_overlap_is_narrower() -> None:
    directory = make()
    far = NOW + 100 * DAY_MS
    near = directory.open(far, far)
    wide = directory.open(far - 360 * MINUTE_MS, NOW)
    assert near.end_ms - near.start_ms == NARROWEST_MS
    assert wide.end_ms - wide.start_ms in (360 * MINUTE_MS, NARROWEST_MS)
    directory.check()


def test_a_gap_narrower_than_any_width_is_filled_as_it_is() -> None:
    directory = make()
    start = NOW - NOW % NARROWEST_MS
    directory.adopt(Slice(start - 1_000, start + 60_000, 0))
    directory.adopt(Slice(start + 90_000, start + 10 * NARROWEST_MS, 0))
    piece = directory.open(start + 70_000, NOW)
    assert (piece.start_ms, piece.end_ms) == (start + 60_000, start + 90_000)
    directory.check()


def test_the_end_of_time_has_a_slice() -> None:
    directory = make()
    piece = directory.open(AT_MAX, NOW)
    assert piece.start_ms <= AT_MAX < piece.end_ms <= 1 << 48
    assert list(directory.over(START, END)) == [piece]


def test_the_directory_is_bounded() -> None:
    directory = make(2)
    directory.open(NOW, NOW)
    directory.open(NOW + DAY_MS, NOW)
    with pytest.raises(TooManySlices, match="2 slices") as caught:
        directory.open(NOW + 2 * DAY_MS, NOW)
    assert (caught.value.limit, len(directory)) == (2, 2)


def test_over_gives_the_slices_of_a_stretch() -> None:
    directory = make()
    pieces = [Slice(n * 1_000, n * 1_000 + 1_000, 0) for n in (1, 2, 4)]
    for piece in pieces:
        directory.adopt(piece)

    def starts(start: Position, end: Position) -> list[int]:
        found = list(directory.over(start, end))
        assert directory.first_over(start, end) is (found[0] if found else None)
        return [piece.start_ms for piece in found]

    assert starts(START, END) == [1_000, 2_000, 4_000]
    assert starts(before(0), before(1_000)) == []
    assert starts(before(0), position(1_000, 1)) == [1_000]
    assert starts(position(1_999, 5), before(2_000)) == [1_000]
    assert starts(position(1_999, 5), position(2_000, 1)) == [1_000, 2_000]
    assert starts(before(3_000), before(4_000)) == []
    assert starts(before(3_500), END) == [4_000]
    assert starts(before(5_000), END) == []


def test_find_get_and_drop() -> None:
    directory = make()
    piece = Slice(1_000, 2_000, 3)
    directory.adopt(piece)
    assert directory.find(999) is None
    assert directory.find(1_000) is piece
    assert directory.find(1_999) is piece
    assert directory.find(2_000) is None
    assert directory.get(1_000) is piece
    assert directory.get(1_001) is None
    directory.drop(piece)
    assert directory.find(1_500) is None
    assert list(directory) == []


def test_another_directory_is_taken_over_in_place() -> None:
    directory, fresh = make(), make()
    assert (directory.floor, directory.epoch) == (START, 0)
    directory.open(NOW, NOW)
    piece = fresh.open(NOW + DAY_MS, NOW)
    directory.replace(fresh)
    assert (list(directory), directory.epoch, fresh.epoch) == ([piece], 1, 0)


def test_check_sees_an_overlap() -> None:
    directory = make()
    directory.adopt(Slice(0, 1_001, 0))
    directory.adopt(Slice(1_000, 2_000, 0))
    with pytest.raises(SlicesError, match="overlap"):
        directory.check()


# -- shards


def test_a_shard_counts_its_rows() -> None:
    shard = Shard(Slice(1_000, 2_000, 7).home, 3)
    assert shard.prefix == (1_000).to_bytes(6, "big") + (7).to_bytes(2, "big") + (3).to_bytes(2, "big")
    assert (shard.first, shard.last) == (END, START)
    shard.grow(position(1_500, 1), 10)
    shard.grow(position(1_200, 2), 5)
    shard.grow(position(1_300, 3), 5)
    assert (shard.count, shard.live, shard.bytes) == (3, 3, 20)
    assert (shard.first, shard.last) == (position(1_200, 2), position(1_500, 1))


def test_the_newest_shard_of_a_structure_takes_writes() -> None:
    piece = Slice(0, 1_000, 0)
    first, other, second = piece.open_shard(0), piece.open_shard(5), piece.open_shard(0)
    assert ([first.number, other.number, second.number], piece.newest) == ([0, 1, 2], {0: second, 5: other})
    again = Slice(0, 1_000, 0)
    for shard in (second, first, other):
        again.adopt(shard)
    assert again.newest == {0: second, 5: other}


def test_a_number_is_never_used_twice_by_what_was_split() -> None:
    parent = Slice(0, 2_000, 0)
    parent.open_shard(0)
    borrowed = parent.open_shard(0)
    child = Slice(0, 1_000, 1)
    child.borrowed[borrowed.number] = borrowed
    own = child.open_shard(0)
    assert own.number == 2
    assert child.shard(1) is borrowed
    assert child.shard(2) is own
    assert child.shard(0) is None
    assert list(child.readable()) == [own, borrowed]


def test_which_shards_reach_into_a_stretch() -> None:
    """By what they hold, of borrowed ones only within the slice, and by their structure."""
    parent, piece = Slice(0, 3_000, 0), Slice(1_000, 2_000, 1)
    around, behind = parent.open_shard(7), parent.open_shard(0)
    for shard, ats in ((around, (500, 2_500)), (behind, (2_000, 2_900))):
        for at_ms in ats:
            shard.grow(position(at_ms, 1), 10)
        piece.borrowed[shard.number] = shard
    own, empty = piece.open_shard(0), piece.open_shard(5)
    for at_ms in (1_100, 1_200):
        own.grow(position(at_ms, 1), 10)

    def over(start: Position, end: Position, structures: set[int] | None = None) -> list[Shard]:
        found = piece.over(start, end, structures)
        assert empty not in found
        assert behind not in found
        return found

    assert over(START, END) == [own, around]
    assert over(START, END, {0, 5}) == [own]
    assert over(START, END, {7}) == [around]
    assert over(START, END, set()) == []
    assert over(START, position(1_100, 1)) == [around]
    assert over(START, position(1_100, 2)) == [own, around]
    assert over(position(1_200, 1), END) == [own, around]
    assert over(position(1_200, 2), END) == [around]
    assert over(before(2_000), END) == []
    assert over(START, before(1_000)) == []
    assert piece.within(START, END) == (before(1_000), before(2_000))
    assert piece.within(position(1_000, 3), position(1_500, 0)) == (position(1_000, 3), before(1_500))


def test_a_slice_sums_up_its_own_shards() -> None:
    piece = Slice(0, 1_000, 0)
    for number in (0, 0, 1):
        shard = piece.open_shard(number)
        shard.grow(position(5, shard.number), 10)
    piece.shards[0].retire()
    assert (piece.live, piece.bytes) == (2, 30)
    again = Slice(0, 1_000, 0)
    for shard in piece.shards.values():
        again.adopt(shard)
    assert again.count == 3


def test_what_is_counted_elsewhere_is_taken_as_if_it_had_grown() -> None:
    grown, taken = (Shard(Slice(0, 1_000, 0).home, 0) for _ in range(2))
    for at_ms in (7, 3, 5):
        grown.grow(position(at_ms, 1), 10)
    taken.take(2, 2, 20, position(3, 1), position(7, 1))
    taken.take(1, 1, 10, position(5, 1), position(5, 1))
    for shard in (grown, taken):
        assert (shard.count, shard.live, shard.bytes) == (3, 3, 30)
        assert (shard.first, shard.last) == (position(3, 1), position(7, 1))


def test_a_part_counts_as_rows_of_the_slice() -> None:
    parent, child = Slice(0, 1_000, 0), Slice(0, 500, 1)
    shard = parent.open_shard(0)
    shard.take(5, 4, 50, position(3, 1), position(700, 1))
    child.borrow([shard], Counts(3, 2, 30))
    own = child.open_shard(0)
    own.grow(position(4, 9), 10)
    child.count += 1
    assert (child.count, child.live, child.bytes) == (4, 3, 40)
    assert child.retire(own, position(4, 9))
    assert not child.retire(shard, position(3, 1))
    assert (child.count, child.live, child.part.live, own.live, shard.live) == (4, 1, 1, 0, 4)
    child.borrow([shard], Counts(2, 1, 20))
    assert child.count == 3


def test_a_directory_knows_what_is_borrowed() -> None:
    directory, parent = make(), Slice(0, 1_000, 0)
    shard, other = parent.open_shard(0), parent.open_shard(0)
    children = [Slice(0, 500, 1), Slice(500, 1_000, 1)]
    children[0].borrow([shard, other], Counts())
    children[1].borrow([shard], Counts())
    for child in children:
        directory.adopt(child)
    assert directory.is_borrowed(shard)
    assert directory.is_borrowed(other)
    directory.check()
    directory.drop(children[0])
    assert directory.is_borrowed(shard)
    assert not directory.is_borrowed(other)
    fresh = make()
    fresh.replace(directory)
    assert fresh.is_borrowed(shard)
    children[1].borrow([other], Counts())
    with pytest.raises(SlicesError, match="borrow"):
        fresh.check()


def test_a_watch_gives_each_piece_its_losses() -> None:
    piece = Slice(0, 1_000, 0)
    shard = piece.open_shard(0)
    for seq in range(5):
        shard.grow(position(seq * 100, seq), 10)
        piece.count += 1
    watch = Watch(piece)
    assert (watch.rows, watch.live, watch.last, piece.newest) == (5, 5, 0, {})
    piece.watch = watch
    for at_ms in (400, 100, 300):
        piece.retire(shard, position(at_ms, 1))
    later = piece.open_shard(0)
    piece.retire(later, position(250, 9))
    assert watch.noted == 4
    assert watch.lost([200, 300], 0) == [1, 1, 2]
    assert watch.lost([200, 300], 2) == [0, 1, 1], "the first two are in the checkpoint"
    assert watch.lost([200], 3) == [0, 1], "those of later shards never are"
    assert not watch.is_overrun


def test_shards_are_bounded() -> None:
    piece = Slice(0, 1_000, 0)
    piece.borrowed[SHARDS_MAX - 2] = Shard(piece.home, SHARDS_MAX - 2)
    assert piece.open_shard(0).number == SHARDS_MAX - 1
    with pytest.raises(TooManyShards):
        piece.open_shard(0)


# -- the directory as a whole


def test_no_shard_has_the_number_that_means_held() -> None:
    piece = Slice(0, 1_000, 0)
    piece.adopt(Shard(piece.home, HELD_SHARD - 2))
    with pytest.raises(TooManyShards):
        piece.open_shard(0)


def test_the_first_millisecond_has_a_slice() -> None:
    directory = make()
    piece = directory.open(0, 0)
    assert (piece.start_ms, piece.end_ms) == (0, NARROWEST_MS)
    directory.check()


@pytest.mark.long
def test_ten_years_of_a_message_each_quarter_of_an_hour() -> None:
    """The case that widths by distance are for, from the nearest message to the farthest and at random."""
    for order in ("rising", "random"):
        directory = make(2_000)
        ats = list(range(NOW, NOW + 3_650 * DAY_MS, NARROWEST_MS))
        if order == "random":
            random.Random(4).shuffle(ats)
        opened = []
        for at_ms in ats:
            if directory.find(at_ms) is None:
                directory.open(at_ms, NOW)
                opened.append(at_ms)
        directory.check()
        assert len(directory) < 1_500
        tracemalloc.start()
        again = make(2_000)
        for at_ms in opened:
            again.open(at_ms, NOW)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < 3 << 20


class DirectoryMachine(RuleBasedStateMachine):
    """Messages come anywhere, the clock moves on, old slices go, slices are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = make(10_000)
        self.clock_ms = NOW
        self.covered: set[int] = set()

    @rule(distance_ms=st.one_of(st.integers(0, DAY_MS), st.integers(0, 3_650 * DAY_MS)))
    def message(self, distance_ms: int) -> None:
        at_ms = self.clock_ms + distance_ms
        piece = self.directory.find(at_ms)
        if piece is None:
            piece = self.directory.open(at_ms, self.clock_ms)
            width = piece.end_ms - piece.start_ms
            assert width <= next(w for reach, w in WIDTHS if distance_ms <= reach)
        assert piece.start_ms <= at_ms < piece.end_ms
        self.covered.add(at_ms)

    @rule(by_ms=st.one_of(st.integers(0, DAY_MS), st.integers(0, 200 * DAY_MS)))
    def tick(self, by_ms: int) -> None:
        self.clock_ms += by_ms

    @rule()
    def expire(self) -> None:
        for piece in [p for p in self.directory if p.end_ms <= self.clock_ms]:
            self.directory.drop(piece)
            self.covered -= {at for at in self.covered if piece.start_ms <= at < piece.end_ms}

    @rule(index=st.integers(0, 20), part=st.floats(0.01, 0.99))
    def cut(self, index: int, part: float) -> None:
        pieces = list(self.directory)
        if not pieces:
            return
        piece = pieces[index % len(pieces)]
        at_ms = piece.start_ms + int((piece.end_ms - piece.start_ms) * part)
        if piece.start_ms < at_ms:
            self.directory.drop(piece)
            self.directory.adopt(Slice(piece.start_ms, at_ms, piece.generation + 1))
            self.directory.adopt(Slice(at_ms, piece.end_ms, piece.generation + 1))

    @invariant()
    def all_is_covered_once(self) -> None:
        self.directory.check()
        for at_ms in self.covered:
            found = self.directory.find(at_ms)
            assert found is not None
            assert found.start_ms <= at_ms < found.end_ms
            assert list(self.directory.over(before(at_ms), position(at_ms, 1))) == [found]


TestDirectory = pytest.mark.long(DirectoryMachine.TestCase)
TestDirectory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
