"""Where to cut an overfull slice: quantiles of `at`, from a sketch of each of its shards. Pure.

A *sketch* is two rising columns: milliseconds, and how many rows lie from there up to the next one. A
millisecond that alone holds as much as a step has an entry of its own, so that it can be cut off on both
sides; others share one. Sketches of several shards are added up, its rows counted where an entry starts: a
cut is off by less than two steps a shard, two in `POINTS` of all rows.

    at     0  10  20  30        parts=2: rows before each entry are 0, 30, 40, 90 of 100, the middle is 50:
    rows  30  10  50  10        40 is nearest, so the cut is at 20: 40 rows and 60

A cut is a millisecond, so messages with the same one stay together. The nearest entries to the quantiles are
the answer if no child is then more than `WITHIN` larger than another. Where equal dues make that miss, a
search over all entries looks for children that all lie within 9 % of the mean; if there are none, nearest it
is, with fewer children where two quantiles fall on one millisecond.
"""

from collections.abc import Iterable, Iterator
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shards.keys import AT_BYTES

POINTS = 4_096
"""Entries of a sketch, at most twice that."""
MERGED_POINTS = 16_384
WITHIN = 1.2
PARTS_MAX = 256
RUN = 8_192

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Sketch(NamedTuple):
    """`rows[i]` rows have at[i] <= at < at[i + 1]."""

    at: Numbers
    rows: Numbers

    @property
    def total(self) -> int:
        return int(self.rows.sum())


EMPTY = Sketch(np.empty(0, np.int64), np.empty(0, np.int64))


def sketch(keys: Iterable[bytes], points: int = POINTS) -> Sketch:
    """Of the keys of one shard, in order. Memory: its distinct milliseconds, 16 bytes each."""
    runs = [_counted(run) for run in _runs(keys)]
    return coarse(merged(runs), points) if runs else EMPTY


def merged(sketches: Iterable[Sketch]) -> Sketch:
    """Added up: an entry for each ms that any of them has."""
    some = [one for one in sketches if len(one.at)]
    if not some:
        return EMPTY
    at, where = np.unique(np.concatenate([one.at for one in some]), return_inverse=True)
    rows = np.zeros(len(at), np.int64)
    np.add.at(rows, where, np.concatenate([one.rows for one in some]))
    return Sketch(at, rows)


def coarse(fine: Sketch, points: int) -> Sketch:
    """With about `points` entries; one that holds more than its share stays alone."""
    step = max(1, fine.total // points)
    if step == 1:
        return fine
    before = np.cumsum(fine.rows) - fine.rows
    bucket, is_heavy = before // step, fine.rows >= step
    opens = np.ones(len(fine.at), np.bool_)
    opens[1:] = (bucket[1:] != bucket[:-1]) | is_heavy[1:] | is_heavy[:-1]
    starts = np.flatnonzero(opens)
    return Sketch(fine.at[starts], np.add.reduceat(fine.rows, starts))


def parts_for(count: int, split_above: int) -> int:
    """How many children: half full each, so that they are not soon overfull again."""
    return 1 if count <= split_above else min(PARTS_MAX, max(2, ceil(2 * count / split_above)))


def cut_points(sketches: Iterable[Sketch], parts: int) -> list[int]:
    """The starts of all children but the first, rising, ms. None if there is nothing to cut: one instant."""
    whole = coarse(merged(sketches), MERGED_POINTS)
    parts = min(parts, len(whole.at))
    if parts < 2:
        return []
    bounds = np.concatenate([[0], np.cumsum(whole.rows)])
    chosen = _nearest(bounds, parts)
    if len(chosen) + 1 < parts or spread(bounds, chosen) > WITHIN:
        chosen = _balanced(bounds, parts) or chosen
    return [int(whole.at[index]) for index in chosen]


def spread(bounds: Numbers, chosen: list[int]) -> float:
    """The largest child by the smallest. `bounds`: rows before each entry, and all; `chosen`: of them."""
    sizes = np.diff(bounds[[0, *chosen, len(bounds) - 1]])
    return float(sizes.max() / sizes.min())


def _nearest(bounds: Numbers, parts: int) -> list[int]:
    """The inner bound that is closest to each quantile."""
    targets = bounds[-1] * np.arange(1, parts) / parts
    high = np.clip(np.searchsorted(bounds, targets), 1, len(bounds) - 1)
    closest = np.where(targets - bounds[high - 1] <= bounds[high] - targets, high - 1, high)
    return sorted({int(index) for index in np.clip(closest, 1, len(bounds) - 2)})


def _balanced(bounds: Numbers, parts: int) -> list[int] | None:
    """Inner bounds with every child within a factor sqrt(WITHIN) of the mean; None if there are none.

    Forward: which bounds can end the k-th child. Back: one that could be the start of it.
    """
    mean = bounds[-1] / parts
    least, most = mean / sqrt(WITHIN), mean * sqrt(WITHIN)
    low = np.searchsorted(bounds, bounds - most, "left")
    high = np.searchsorted(bounds, bounds - least, "right")
    reached = np.zeros(len(bounds), np.bool_)
    reached[0] = True
    steps: list[Flags] = [reached]
    for _ in range(parts):
        sums = np.concatenate([[0], np.cumsum(steps[-1])])
        steps.append(sums[high] > sums[np.minimum(low, high)])
    at = len(bounds) - 1
    if not steps[-1][at]:
        return None
    chosen: list[int] = []
    for reached in reversed(steps[1:-1]):
        at = int(low[at] + np.flatnonzero(reached[low[at] : high[at]])[-1])
        chosen.append(at)
    return chosen[::-1]


def _runs(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    run: list[bytes] = []
    for key in keys:
        run.append(key)
        if len(run) == RUN:
            yield run
            run = []
    if run:
        yield run


def _counted(run: list[bytes]) -> Sketch:
    """The distinct milliseconds of some keys."""
    columns = np.frombuffer(b"".join(run), np.uint8).reshape(len(run), -1)
    padded = np.zeros((len(run), 8), np.uint8)
    padded[:, 2:] = columns[:, AT_BYTES]
    at, rows = np.unique(padded.view(">u8").ravel().astype(np.int64), return_counts=True)
    return Sketch(at, rows.astype(np.int64))
