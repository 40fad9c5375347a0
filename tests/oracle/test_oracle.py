"""Random work against a real server, held against the ledger of tests/support/ledger/.

FASTI_SOAK=1 makes it 40 wild runs; `python -m tests.oracle --seed n` repeats one.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.soak import SOAK, first_seed

from .__main__ import play, report
from .planted import PLANTS, RUNS, Planter
from .program import CALM, RULED, SOLO, STEERED, STEPPED, WILD, Steps

SEED = first_seed()
KINDS: dict[str, tuple[Steps, int, int]] = {
    "calm": (CALM, 70, 4),
    "solo": (SOLO, 70, 2),
    "steered": (STEERED, 4 * len(STEERED), 1),
    "stepped": (STEPPED, 100 if SOAK else 60, 1),
    "ruled": (RULED, 120, 0),
}
"""Of work in which faults are planted: its steps, how many, and how many of RUNS each time."""
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


@pytest.mark.parametrize(
    ("kind", "seed", "names"),
    [(kind, *run) for kind, (*_, many) in KINDS.items() for run in RUNS[kind][: None if SOAK else many]],
)
async def test_planted_faults_are_found(kind: str, seed: int, names: tuple[str, ...], tmp_path: Path) -> None:
    weights, steps, _ = KINDS[kind]
    await plant(names, seed, steps, weights, tmp_path)


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
