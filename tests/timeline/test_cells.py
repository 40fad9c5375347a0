"""Cells against a plain list of the messages that a slice has."""

import itertools
import random

import pytest

from timeline.cells import MINUTE_MS, WIDE_MS, Cells, divided
from timeline.position import END, Position, at_of, before, position
from timeline.slices import DAY_MS, Counts, Directory, Shard, Slice

START = 20_000 * DAY_MS
QUARTER = 15 * MINUTE_MS


def filled(cells: Cells, chance: random.Random, count: int = 200) -> list[Position]:
    places = [position(chance.randrange(cells.start_ms, cells.end_ms), seq) for seq in range(1, count + 1)]
    for place in places:
        cells.count_in(place)
    return sorted(places)


@pytest.mark.parametrize(
    ("start", "length"), [(0, QUARTER), (12_345, 77_777), (1, 3 * MINUTE_MS), (0, 8 * DAY_MS)]
)
def test_whole_cells_and_what_is_cut_make_each_span(start: int, length: int) -> None:
    chance = random.Random(start)
    cells = Cells(START + start, START + start + length)
    places = filled(cells, chance)
    for _ in range(300):
        low, high = sorted(chance.sample(range(cells.start_ms, cells.end_ms + 1), 2))
        if chance.random() < 0.3:
            low = max(cells.start_ms, low - low % cells.width_ms)
        if chance.random() < 0.3:
            high = max(low, high - high % cells.width_ms)
        bound = Position(before(low) + chance.choice((0, 1, 77)))
        count, cut = cells.within(bound, high)
        read = sum(1 for place in places for one, two in cut if one <= place < two)
        assert count + read == sum(1 for place in places if bound <= place < before(high))
        assert all(at_of(two) - at_of(one) <= cells.width_ms for one, two in cut)
        assert len(cut) <= 2


def test_spans_of_whole_cells_are_not_read() -> None:
    cells = Cells(START, START + QUARTER)
    filled(cells, random.Random(1))
    assert cells.within(before(START), START + QUARTER) == (200, [])
    assert cells.within(before(START + MINUTE_MS), START + 7 * MINUTE_MS)[1] == []


def test_a_wide_slice_has_wide_cells() -> None:
    assert Cells(START, START + QUARTER).width_ms == MINUTE_MS
    assert Cells(START, START + 8 * DAY_MS).width_ms == WIDE_MS
    assert len(Cells(START + 1, START + 8 * DAY_MS + 1).counts) == 193


def test_what_is_retired_during_the_count_is_counted_neither_twice_nor_never() -> None:
    chance = random.Random(2)
    for _ in range(100):
        piece = Slice(START, START + QUARTER, 0)
        piece.borrow((), Counts(100, 100, 0))
        rows = {position(chance.randrange(START, START + QUARTER), seq): True for seq in range(1, 41)}
        cells = piece.cells = Cells(START, START + QUARTER)
        cells.begin(40)
        seq = 40
        while cells.upto < before(piece.end_ms):
            upto = Position(cells.upto + (chance.randrange(3 * MINUTE_MS) << 48))
            for place in sorted(rows):
                if cells.upto <= place < upto and rows[place]:
                    cells.add(place)
            cells.upto = upto
            for _ in range(chance.randrange(3)):
                seq += 1
                rows[position(chance.randrange(START, START + QUARTER), seq)] = True
                cells.count_in(max(rows, key=lambda place: place & 0xFFFF))
            for place in chance.sample([place for place, is_live in rows.items() if is_live], 2):
                rows[place] = False
                piece.retire(Shard(piece.home, 0), place)
        cells.upto = END
        wanted = Cells(START, START + QUARTER)
        for place, is_live in rows.items():
            if is_live:
                wanted.count_in(place)
        assert cells.counts == wanted.counts


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_divides_them_without_a_look_at_rows(seed: int) -> None:
    chance = random.Random(seed)
    cells = Cells(START, START + QUARTER)
    places = filled(cells, chance)
    cuts = sorted(chance.sample(range(START + 1, START + QUARTER), chance.randrange(1, 40)))
    if seed % 2:
        cuts = sorted({cut - cut % MINUTE_MS for cut in cuts} - {START})
    bounds = [START, *cuts, START + QUARTER]
    wanted = []
    for low, high in itertools.pairwise(bounds):
        piece = Cells(low, high)
        for place in places:
            piece.count_in(place)
        wanted.append(piece.counts)
    lives = [sum(counts) for counts in wanted]
    found = divided(cells, cuts, lives)
    assert found is not None
    assert [piece.counts for piece in found] == wanted


def test_numbers_that_do_not_fit_divide_nothing() -> None:
    cells = Cells(START, START + QUARTER)
    cells.counts[0] = 5
    assert divided(cells, [START + 2 * MINUTE_MS], [5, 1]) is None
    assert divided(cells, [START + 2 * MINUTE_MS], [4, 1]) is None
    cells.begin(1)
    assert divided(cells, [START + 2 * MINUTE_MS], [5, 0]) is None


def test_a_directory_that_is_read_again_keeps_what_has_not_changed() -> None:
    old, new = Directory(max_slices=5), Directory(max_slices=5)
    for at in (START, START + QUARTER):
        piece = old.open(at, at)
        assert piece.cells is not None
        piece.cells.counts[0] = 7
        piece.borrow((), Counts(7, 7, 0))
        again = Slice(piece.start_ms, piece.end_ms, 0)
        again.borrow((), Counts(7, 7, 0) if at == START else Counts(6, 6, 0))
        new.adopt(again)
    old.replace(new)
    kept, gone = old
    assert kept.cells is not None
    assert kept.cells.counts[0] == 7
    assert gone.cells is None
