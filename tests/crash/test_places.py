"""kill -9 before, after and halfway through every call in the code that changes the disk.

The places are found by reading the code (places.py), the passages by watching it run (passing.py), what it is
doing meanwhile are the plots (plots.py), each played by children of one process (nursery.py). A new sync,
rename or write that no plot comes by fails the test. FASTI_SOAK=1 kills at all of them, otherwise at a few of
each plot (FASTI_TRIES=n: n of each plot); FASTI_SEED=n repeats a choice. What was done at which point is
printed.
"""

import asyncio
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.build import OPENED
from tests.support.server import run
from tests.support.soak import SOAK

from .passing import AFTER, BEFORE, HALF, Line
from .places import Place, places, why_free
from .plots import HAS_ARROW, PLOTS

TRIES = {"worked": 200, "undone": 120, "marked": 60, "repaired": 200}
TRIES |= {"retimed": 40, "keyed": 90, "copied": 120, "served": 400}
INSIDE = {"worked": 20, "repaired": 40, "copied": 40, "served": 80}
FEW = 1
"""Tries for each plot, if not in the soak."""
CARELESS = 12
AT_ONCE = 2


@dataclass
class Report:
    """What came of one plot, or of all."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By point and when."""
    passed: set[Line] = field(default_factory=set)
    at: dict[str, set[Line]] = field(default_factory=lambda: {when: set() for when in (BEFORE, HALF, AFTER)})
    """Lines of the code at which a child ended."""
    points: set[str] = field(default_factory=set)
    missed: int = 0
    faults: list[str] = field(default_factory=list)

    def take(self, line: str, plot: str) -> None:
        word, *rest = json.loads(line)
        if word == "passed":
            points, _, lines = rest
            self.points |= set(points)
            self.passed |= {Line(*one) for one in lines}
        elif word == "missed":
            self.missed += 1
        else:
            point, nth, when, lines, faults = rest
            self.kills[point, when] += 1
            self.points.add(point)
            self.at[when] |= {Line(*one) for one in lines}
            self.faults += [f"{plot}, {when} passage {nth} of {point}: {fault}" for fault in faults]

    def table(self) -> str:
        rows = [f"{'point':74} {BEFORE:>7} {HALF:>5} {AFTER:>6}"]
        for point in sorted(self.points):
            counts = [self.kills[point, when] for when in (BEFORE, HALF, AFTER)]
            rows.append(f"{point:74} {counts[0]:7} {counts[1]:5} {counts[2]:6}")
        return "\n".join(rows)

    def summary(self) -> str:
        tried = len({point for point, _ in self.kills})
        kills = ", ".join(f"{sum(self.kills[p, when] for p in self.points)} {when}" for when in self.at)
        return (
            f"{len(self.points)} named points passed, {tried} of them killed at, {self.kills.total()} kills "
            f"({kills}), {len(self.faults)} faults"
        )


async def _play(
    plot: str, folder: Path, most: int, seed: int, report: Report, gate: asyncio.Semaphore, inside: int = 0
) -> None:
    await asyncio.to_thread(folder.mkdir)
    async with gate:
        given = (plot, str(folder), str(most), str(seed), str(inside))
        nursery = await asyncio.to_thread(run, *given, module="tests.crash.nursery", within_s=None)
    for line in nursery.stdout.splitlines():
        report.take(line, plot)
    assert nursery.returncode == 0, f"{plot}: {nursery.stderr[-3_000:]}"


def _unmet(found: list[Place], lines: set[Line]) -> list[str]:
    """Places with none of these lines."""
    return [
        f"{place.name} ({place.first})"
        for place in found
        if not any(
            Line(place.function.partition(":")[0], number) in lines
            for number in range(place.first, place.last + 1)
        )
    ]


@OPENED
async def test_killed_at_every_place(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}", flush=True)
    report, gate = Report(), asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as group:
        for plot, tries in TRIES.items():
            most = int(os.environ.get("FASTI_TRIES") or (tries if SOAK else FEW))
            group.create_task(_play(plot, tmp_path / plot, most, seed, report, gate))
    print(report.table(), flush=True)
    known = [place for place in places() if HAS_ARROW or not place.name.startswith("spark.")]
    bound = [place for place in known if why_free(place) is None]
    counted = f"{len(bound)} places in the code ({len(known) - len(bound)} more are free); {report.summary()}"
    record_property("counted", counted)
    print(counted, flush=True)
    assert not report.faults, f"{len(report.faults)} faults, FASTI_SEED={seed}: {report.faults[:5]}"
    unmet = _unmet(bound, report.passed)
    assert not unmet, f"no plot comes by {unmet}"
    assert report.kills
    if SOAK:
        for when in (BEFORE, AFTER):
            unmet = _unmet(bound, report.at[when])
            assert not unmet, f"nobody was killed {when} {unmet}"


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1")
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on this machine")
async def test_killed_inside_the_engine(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """At system calls of any thread: in the midst of a flush, a compaction or a checkpoint."""
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}", flush=True)
    report, gate = Report(), asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as group:
        for plot, inside in INSIDE.items():
            tries = int(os.environ.get("FASTI_TRIES") or inside)
            group.create_task(_play(plot, tmp_path / plot, 0, seed, report, gate, tries))
    kills = Counter({point: count for (point, _), count in report.kills.items()})
    counted = f"{kills.total()} kills: {dict(kills)}, {report.missed} missed, {len(report.faults)} faults"
    record_property("counted", counted)
    print(counted, flush=True)
    assert not report.faults, f"FASTI_SEED={seed}: {report.faults[:5]}"
    assert kills


@pytest.mark.short
async def test_a_file_that_is_written_in_place_is_found(tmp_path: Path) -> None:
    """The proof that the test above can fail."""
    report = Report()
    await _play("careless", tmp_path / "careless", CARELESS, 1, report, asyncio.Semaphore(1))
    assert any("half passage" in fault for fault in report.faults), report.table()


@pytest.mark.short
def test_every_reason_is_of_a_place() -> None:
    from .places import FREE

    names = [place.name for place in places()]
    assert [start for start in FREE if not any(name.startswith(start) for name in names)] == []
    assert set(TRIES) | {"careless"} == set(PLOTS)
