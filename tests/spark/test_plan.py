"""Cut points: never through one instant, and as even as equal dues allow."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.borrow import count
from shards.keys import AT_BYTES
from shards.record import STUB_BYTE
from spark.plan import (
    POINTS,
    WITHIN,
    Sketch,
    beyond,
    coarse,
    cut_points,
    merged,
    parts_for,
    pieces,
    sketch,
)
from timeline.position import position
from timeline.slices import Home, Shard

COUNTS = st.lists(st.integers(1, 30), min_size=1, max_size=9)


def of(counts: dict[int, int]) -> Sketch:
    """Every other row is a stub, each has 30 bytes."""
    at = np.array(sorted(counts), np.int64)
    rows = np.array([counts[one] for one in sorted(counts)], np.int64)
    return Sketch(at, rows, (rows + 1) // 2, 30 * rows)


def sizes(counts: dict[int, int], cuts: list[int]) -> list[int]:
    edges = [min(counts), *cuts, max(counts) + 1]
    return [sum(rows for at, rows in counts.items() if low <= at < high) for low, high in pairwise(edges)]


def stored(counts: dict[int, int]) -> list[tuple[bytes, bytes]]:
    """The rows of a shard, as `of` says."""
    prefix = Shard(Home(7, 1), 3).prefix
    return [
        (prefix + position(int(at), seq).to_bytes(12, "big"), bytes([1, STUB_BYTE * (seq % 2)]) + bytes(6))
        for at, rows in sorted(counts.items())
        for seq in range(rows)
    ]


@given(COUNTS, st.integers(2, 6))
def test_children_are_even_where_equal_dues_allow_it(rows: list[int], parts: int) -> None:
    counts = {10 * n: count for n, count in enumerate(rows)}
    cuts = cut_points([of(counts)], parts)
    assert cuts == sorted(set(cuts))
    assert set(cuts) <= set(counts) - {0}
    found = sizes(counts, cuts)
    assert all(found)
    mean = sum(rows) / parts
    low, high = mean / WITHIN**0.5, mean * WITHIN**0.5
    possible = any(
        all(low <= size <= high for size in sizes(counts, list(some)))
        for some in combinations(sorted(counts)[1:], parts - 1)
    )
    if possible:
        assert len(found) == parts
        assert max(found) <= WITHIN * min(found)


@given(st.dictionaries(st.integers(0, 40), st.integers(1, 200), min_size=1), st.integers(1, 5))
def test_a_sketch_counts_every_row(counts: dict[int, int], shards: int) -> None:
    made = sketch(stored(counts))
    assert all((one == other).all() for one, other in zip(made, of(counts), strict=True))
    whole = merged([made] * shards)
    assert whole.total == shards * sum(counts.values())


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 40))
def test_a_coarse_sketch_keeps_the_sum_and_isolates_what_is_heavy(rows: list[int], points: int) -> None:
    fine = of(dict(enumerate(rows)))
    few = coarse(fine, points)
    assert few.total == fine.total
    step = max(1, fine.total // points)
    ends = [*few.at.tolist()[1:], len(rows)]
    for at, end, held in zip(few.at.tolist(), ends, few.rows.tolist(), strict=True):
        assert held == sum(rows[at:end])
        assert held < 2 * step or end == at + 1
    assert len(few.at) <= 3 * points + 2


def test_many_shards_of_an_even_load_are_cut_evenly() -> None:
    rng = np.random.default_rng(5)
    shards = [np.sort(rng.integers(0, 900_000, 30_000)) for _ in range(12)]
    made = [sketch(stored(dict(zip(*np.unique(one, return_counts=True), strict=True)))) for one in shards]
    cuts = cut_points(made, 7)
    counted = np.histogram(np.concatenate(shards), [0, *cuts, 900_000])[0]
    assert len(counted) == 7
    assert counted.max() <= 1.02 * counted.min()


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(0, 60), st.integers(1, 9)), max_size=4),
    st.sets(st.integers(1, 69), min_size=1),
    st.integers(1, 8),
)
def test_the_counts_of_the_pieces_are_exact(
    shards: list[dict[int, int]], cuts_at: set[int], points: int
) -> None:
    """However coarse the sketches are."""
    cuts = sorted(cuts_at)
    made = [sketch(stored(counts), points) for counts in shards]
    again = [
        (span, count(row for row in stored(counts) if span.low <= at_of_row(row) < span.high))
        for one, counts in zip(made, shards, strict=True)
        for span in beyond(one, cuts, 70)
    ]
    edges = [0, *cuts, 70]
    assert pieces(made, again, cuts) == [
        count(row for counts in shards for row in stored(counts) if low <= at_of_row(row) < high)
        for low, high in pairwise(edges)
    ]


def test_little_is_read_again() -> None:
    counts = dict.fromkeys(range(100_000), 2)
    one = coarse(of(counts), POINTS)
    cuts = [n * 12_345 + 3 for n in range(1, 8)]
    assert sum(span.high - span.low for span in beyond(one, cuts, 100_000)) <= 7 * 2 * 100_000 / POINTS


def at_of_row(row: tuple[bytes, bytes]) -> int:
    return int.from_bytes(row[0][AT_BYTES], "big")


def test_one_instant_is_not_cut() -> None:
    assert cut_points([of({5: 1_000_000})], 4) == []
    assert cut_points([], 4) == []
    assert cut_points([of({5: 1_000_000, 6: 1})], 4) == [6]


def test_a_heavy_millisecond_is_cut_off_on_both_sides() -> None:
    counts = dict.fromkeys(range(1_000), 1) | {500: 20_000}
    assert cut_points([sketch(stored(counts))], 3) == [500, 501]


@pytest.mark.parametrize(
    ("count", "parts"), [(0, 1), (1_000, 1), (1_001, 3), (1_500, 3), (2_001, 5), (10**9, 256)]
)
def test_parts_follow_from_the_count(count: int, parts: int) -> None:
    assert parts_for(count, 1_000) == parts
