"""Random work against a real server, held against the ledger of tests/support/ledger/.

FASTI_SOAK=1 makes it 40 wild runs; `python -m tests.oracle --seed n` repeats one.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.soak import SOAK

from .__main__ import play, report
from .planted import PLANTS, RUNS, RUNS_BY_RULE, STEERED_RUNS, STEPPED_RUNS, Planter
from .program import CALM, RULED, SOLO, STEERED, STEPPED, WILD, Steps

SEED = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
PLANTED_SEED = 11
STEERED_STEPS = 4 * len(STEERED)
TRIES = 10
"""Seeds, one after the other, in which a plant may find its occasion."""
RUNS_WILD = 40 if SOAK else 1
Record = Callable[[str, object], None]


@pytest.mark.short
async def test_calm_work_has_no_fault(tmp_path: Path, record_property: Record) -> None:
    print(f"FASTI_SEED={SEED}", flush=True)
    ledger = await play(tmp_path, SEED, 60, SOLO)
    record_property("counted", report(ledger))
    assert not ledger.faults, report(ledger)
    assert ledger.seen["accepted"] > 5


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK is not set")
@pytest.mark.parametrize("number", range(10))
async def test_work_under_a_stepped_clock_has_no_fault(
    number: int, tmp_path: Path, record_property: Record
) -> None:
    print(f"FASTI_SEED={SEED}", flush=True)
    ledger = await play(tmp_path, SEED + number, 200, STEPPED)
    record_property("counted", report(ledger))
    assert not ledger.faults, f"seed {SEED + number}: {report(ledger)}"


@pytest.mark.parametrize("number", range(RUNS_WILD))
async def test_wild_work_has_no_fault(number: int, tmp_path: Path, record_property: Record) -> None:
    print(f"FASTI_SEED={SEED}", flush=True)
    ledger = await play(tmp_path, SEED + number, 300 if SOAK else 60, WILD)
    record_property("counted", report(ledger))
    assert not ledger.faults, f"seed {SEED + number}: {report(ledger)}"


@pytest.mark.parametrize(("seed", "names"), RUNS)
async def test_planted_faults_are_found(seed: int, names: tuple[str, ...], tmp_path: Path) -> None:
    weights = SOLO if any("key" in name for name in names) else CALM
    await plant(names, seed, 70, weights, tmp_path)


@pytest.mark.parametrize(("seed", "names"), STEERED_RUNS if SOAK else STEERED_RUNS[:1])
async def test_planted_faults_of_steering_are_found(
    seed: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    await plant(names, seed, STEERED_STEPS, STEERED, tmp_path)


@pytest.mark.parametrize(("seed", "names"), STEPPED_RUNS if SOAK else STEPPED_RUNS[:1])
async def test_planted_faults_of_a_stepped_clock_are_found(
    seed: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    await plant(names, seed, 100 if SOAK else 60, STEPPED, tmp_path)


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK is not set")
@pytest.mark.parametrize("rule", RUNS_BY_RULE)
async def test_planted_faults_of_a_rule_are_found(rule: str, tmp_path: Path) -> None:
    await plant(RUNS_BY_RULE[rule], PLANTED_SEED, 120, RULED, tmp_path)


async def plant(names: tuple[str, ...], seed: int, steps: int, weights: Steps, home: Path) -> None:
    """Run until each has been found. One that another has hidden is planted again by itself."""
    hidden = await hidden_of(names, seed, steps, weights, home)
    if len(names) > 1:
        alone = home / "alone"
        alone.mkdir()
        hidden = [name for one in hidden for name in await hidden_of((one,), seed, steps, weights, alone)]
    assert not hidden, "struck, and not found: see above"


async def hidden_of(names: tuple[str, ...], seed: int, steps: int, weights: Steps, home: Path) -> list[str]:
    """Run until each has struck: what finds no occasion is planted again, with the next seed. Gives those
    that struck and were not found."""
    left = list(names)
    hidden: list[str] = []
    for number in range(TRIES):
        planter, here = Planter(*left), home / f"{names[0]} {number}"
        here.mkdir()
        ledger = await play(here, seed + number, steps, weights, planter)
        found = {fault.kind for fault in ledger.faults}
        struck = [name for name in left if name not in planter.left]
        hidden += [name for name in struck if not found & PLANTS[name][2]]
        print(report(ledger))
        left = planter.left
        if not left:
            return hidden
    raise AssertionError(f"no occasion for {left}: {report(ledger)}")
