"""The rings of samples: what is kept, its bounds, and that nothing is counted twice or lost between them."""

from itertools import pairwise

import msgspec
import pytest

from server.observe import history
from server.observe.history import (
    COARSE,
    COARSE_EACH,
    COUNTS,
    FINE,
    OTHERS,
    RING_BYTES,
    GroupSample,
    History,
    Sample,
    SessionSample,
    decode,
    frequent,
    quantile_ms,
)
from server.observe.metrics import LATENESS_MS

EMPTY = Sample(
    at_ms=0,
    counts=[0] * len(COUNTS),
    late=[0] * (len(LATENESS_MS) + 1),
    behind_ms=0,
    pending=0,
    retries=0,
    dead_letters=0,
    memory_bytes=0,
    store_bytes=None,
    disk_free_bytes=None,
    dead_reasons={},
    retry_reasons={},
    groups=[],
    sessions=[],
    failing={},
)


def filled(count: int, **figures: object) -> History:
    """`count` samples, 10 s apart."""
    kept = History()
    for number in range(count):
        kept.add(msgspec.structs.replace(EMPTY, at_ms=number * 10_000, **figures))
    return kept


def test_an_hour_is_fine_and_a_day_is_coarse() -> None:
    kept = filled(3 * 8_640).samples()
    assert kept == sorted(kept)
    end_ms, start_ms = kept[-1].at_ms, kept[0].at_ms
    assert end_ms - start_ms >= 86_400_000
    steps = [after.at_ms - one.at_ms for one, after in pairwise(kept)]
    assert set(steps) == {10_000, 300_000}
    assert sum(step for step in steps if step == 10_000) >= 3_600_000
    assert len(kept) <= FINE + COARSE


def test_each_dead_letter_is_in_one_sample() -> None:
    for count in (1, COARSE_EACH, COARSE_EACH + 1, FINE, FINE + 1, FINE + COARSE_EACH, 1_000, 5_000):
        kept = filled(count, dead_reasons={"broken": 1}).samples()
        assert sum(decode(one.data).dead_reasons["broken"] for one in kept) == count


@pytest.mark.long
def test_it_is_bounded_in_bytes() -> None:
    figures = 1 << 40, True, 1e9, 1 << 30, 1 << 40, *[1 << 30] * 4
    groups = [GroupSample(f"{n}" * 140, "f" * 140, *figures) for n in range(20)]
    sessions = [SessionSample(f"{n}" * 140, 1 << 40, True, 1e9, 1 << 30, 1 << 40) for n in range(20)]
    kept = filled(2 * 8_640, groups=groups, sessions=sessions)
    assert RING_BYTES < kept._fine.bytes + kept._coarse.bytes <= 2 * RING_BYTES
    found = kept.samples()
    assert found == sorted(found)
    assert found[-1].at_ms - found[0].at_ms > 10 * 3_600_000


def test_rare_reasons_are_one() -> None:
    reasons = {f"reason {n}": n for n in range(1, 21)}
    found = frequent(reasons)
    assert (len(found), found["reason 20"]) == (history.REASONS, 20)
    assert sum(found.values()) == sum(reasons.values())
    assert frequent({**found, "new": 1})[OTHERS] > found[OTHERS]


@pytest.mark.parametrize(
    ("late", "part", "ms"),
    [([0, 0], 0.5, None), ([3], 0.99, 1), ([50, 50], 0.5, 1), ([50, 51], 0.5, 2), ([99, 0, 1], 0.99, 1)],
)
def test_quantiles(late: list[int], part: float, ms: int | None) -> None:
    counts = [*late, *[0] * (len(LATENESS_MS) + 1 - len(late))]
    assert quantile_ms(counts, part) == ms


def test_a_quantile_beyond_all_bounds_is_the_last() -> None:
    assert quantile_ms([*[0] * len(LATENESS_MS), 1], 0.5) == LATENESS_MS[-1]
