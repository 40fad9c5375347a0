"""Cut points of an overfull slice, and counts of each piece, from sketches of its shards. Pure.

A *sketch* has entries at rising milliseconds: the rows from there up to the next entry, how many of them are
live, and their bytes. A millisecond with as many rows as a step has its own entry, so that it can be cut on
both sides; others share one. Sketches of several shards are added up, with rows counted at an entry's start:
a cut is off by less than two steps per shard, two in `POINTS` of all rows.

The counts of the pieces are exact all the same. In each sketch only the entry at a cut has rows on both
sides; those behind the cut (`beyond`) are read again, about one row in `POINTS` for each cut.

    at     0  10  20  30        parts=2: rows before each entry are 0, 30, 40, 90 of 100, the middle is 50:
    rows  30  10  50  10        40 is nearest, so the cut is at 20: 40 rows and 60

A cut is a millisecond, so messages of the same millisecond stay together. The entries nearest to the
quantiles are used if then no child is more than `WITHIN` larger than another. If equal dues prevent that, a
search over all entries looks for children all within 9 % of the mean. If there are none, the nearest entries
are used, with fewer children if two quantiles fall on one millisecond.
"""

from collections.abc import Iterable
from itertools import islice
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shards.keys import AT_BYTES, MESSAGE_KEY_BYTES
from shards.record import is_stub
from timeline.slices import Counts

POINTS = 4_096
"""Number of entries of a sketch, at most twice that."""
MERGED_POINTS = 16_384
WITHIN = 1.2
PARTS_MAX = 256
RUN = 8_192

Numbers = npt.NDArray[np.int64]
Row = tuple[bytes, bytes]
Flags = npt.NDArray[np.bool_]


class Sketch(NamedTuple):
    """`rows[i]` rows have at[i] <= at < at[i + 1]; likewise `live` and `bytes`."""

    at: Numbers
    rows: Numbers
    live: Numbers
    bytes: Numbers

    @property
    def total(self) -> int:
        return int(self.rows.sum())


EMPTY = Sketch(*(np.empty(0, np.int64) for _ in Sketch._fields))


class Beyond(NamedTuple):
    """Rows of a sketch with low <= at < high, in the entry that contains the cut at `low`."""

    low: int
    high: int


def sketch(rows: Iterable[Row], points: int = POINTS) -> Sketch:
    """The sketch of rows, each shard's in order. Memory: its distinct milliseconds, 32 bytes each."""
    source = iter(rows)
    runs = [_counted(run) for run in iter(lambda: list(islice(source, RUN)), [])]
    return coarse(merged(runs), points) if runs else EMPTY


def merged(sketches: Iterable[Sketch]) -> Sketch:
    """The sum of sketches: an entry for each ms that any of them has."""
    some = [one for one in sketches if len(one.at)]
    if not some:
        return EMPTY
    at, where = np.unique(np.concatenate([one.at for one in some]), return_inverse=True)
    sums = [np.zeros(len(at), np.int64) for _ in range(3)]
    for index, into in enumerate(sums, 1):
        np.add.at(into, where, np.concatenate([one[index] for one in some]))
    return Sketch(at, *sums)


def coarse(fine: Sketch, points: int) -> Sketch:
    """The sketch reduced to about `points` entries; one with more than its share stays alone."""
    step = max(1, fine.total // points)
    if step == 1:
        return fine
    before = np.cumsum(fine.rows) - fine.rows
    bucket, is_heavy = before // step, fine.rows >= step
    opens = np.ones(len(fine.at), np.bool_)
    opens[1:] = (bucket[1:] != bucket[:-1]) | is_heavy[1:] | is_heavy[:-1]
    starts = np.flatnonzero(opens)
    return Sketch(fine.at[starts], *(np.add.reduceat(column, starts) for column in fine[1:]))


def parts_for(count: int, split_above: int) -> int:
    """Number of children: half full each, so that they are not soon overfull again."""
    return 1 if count <= split_above else min(PARTS_MAX, max(2, ceil(2 * count / split_above)))


def cut_points(sketches: Iterable[Sketch], parts: int) -> list[int]:
    """The starts of all children except the first, rising, ms. Empty if there is nothing to cut: one
    instant."""
    whole = coarse(merged(sketches), MERGED_POINTS)
    parts = min(parts, len(whole.at))
    if parts < 2:
        return []
    bounds = np.concatenate([[0], np.cumsum(whole.rows)])
    chosen = _nearest(bounds, parts)
    if len(chosen) + 1 < parts or spread(bounds, chosen) > WITHIN:
        chosen = _balanced(bounds, parts) or chosen
    return [int(whole.at[index]) for index in chosen]


def beyond(one: Sketch, cuts: list[int], end_ms: int) -> list[Beyond]:
    """Rows of a sketch to read again: for each cut within an entry, those behind it."""
    ends = np.append(one.at[1:], end_ms)
    found = []
    for cut in cuts:
        index = int(np.searchsorted(one.at, cut, "left")) - 1
        if index >= 0 and cut < ends[index]:
            found.append(Beyond(cut, int(ends[index])))
    return found


def pieces(
    sketches: Iterable[Sketch], again: Iterable[tuple[Beyond, Counts]], cuts: list[int]
) -> list[Counts]:
    """Counts of each piece. `again`: counts of all that is `beyond` a cut."""
    below = np.zeros((len(cuts) + 2, 3), np.int64)
    for one in sketches:
        bounds = np.searchsorted(one.at, [*cuts], "left")
        for column in range(3):
            sums = np.concatenate([[0], np.cumsum(one[column + 1])])
            below[1:-1, column] += sums[bounds]
            below[-1, column] += sums[-1]
    for span, counts in again:
        below[1 + cuts.index(span.low)] -= counts
    return [Counts(*(int(number) for number in row)) for row in np.diff(below, axis=0)]


def spread(bounds: Numbers, chosen: list[int]) -> float:
    """Size of the largest child divided by the smallest. `bounds`: rows before each entry, and all; `chosen`:
    of them."""
    sizes = np.diff(bounds[[0, *chosen, len(bounds) - 1]])
    return float(sizes.max() / sizes.min())


def _nearest(bounds: Numbers, parts: int) -> list[int]:
    """The inner bound closest to each quantile."""
    targets = bounds[-1] * np.arange(1, parts) / parts
    high = np.clip(np.searchsorted(bounds, targets), 1, len(bounds) - 1)
    closest = np.where(targets - bounds[high - 1] <= bounds[high] - targets, high - 1, high)
    return sorted({int(index) for index in np.clip(closest, 1, len(bounds) - 2)})


def _balanced(bounds: Numbers, parts: int) -> list[int] | None:
    """Inner bounds with every child within a factor sqrt(WITHIN) of the mean; None if there are none.

    Forward: the possible ends of the k-th child. Back: a possible start of each.
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


def _counted(run: list[Row]) -> Sketch:
    """The sketch of rows by distinct millisecond."""
    columns = np.frombuffer(b"".join([key for key, _ in run]), np.uint8).reshape(len(run), -1)
    padded = np.zeros((len(run), 8), np.uint8)
    padded[:, 2:] = columns[:, AT_BYTES]
    at, where, rows = np.unique(
        padded.view(">u8").ravel().astype(np.int64), return_inverse=True, return_counts=True
    )
    live = np.bincount(where, [not is_stub(value) for _, value in run], len(at))
    size = np.bincount(where, [len(value) + MESSAGE_KEY_BYTES for _, value in run], len(at))
    return Sketch(at, *(column.astype(np.int64) for column in (rows, live, size)))
