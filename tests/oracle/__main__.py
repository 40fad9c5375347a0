"""Random programs, held against the oracle. Exit code 1: there were faults."""

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TextIO

from tests.support.ledger.deliveries import Deliveries
from tests.support.receiver import receiving

from .program import CALM, STEPPED, WILD, Program, Steps
from .world import Tamper, World, honest


async def play(
    home: Path,
    seed: int,
    steps: int,
    weights: Steps,
    tamper: Tamper = honest,
    *,
    journal: TextIO | None = None,
) -> Deliveries:
    """One run in `home`; the ledger says what was wrong."""
    async with receiving() as receiver:
        world = World(home, receiver, seed=seed, tamper=tamper, journal=journal)
        await world.start()
        try:
            await Program(world, random.Random(seed), weights).run(steps)
        finally:
            await world.session.close()
            world.server.kill()
        world.ledger.seen["lives"] = world.lives
        return world.ledger


def report(ledger: Deliveries, most: int = 3) -> str:
    """What was seen, and of each kind of fault the first ones."""
    lines = [", ".join(f"{count} {name}" for name, count in sorted(ledger.seen.items()))]
    kinds = Counter((fault.rule, fault.kind) for fault in ledger.faults)
    for (rule, kind), count in sorted(kinds.items()):
        lines.append(f"rule {rule}: {kind}, {count} times")
        lines += [f"    {f.what} (step {f.step})" for f in ledger.faults if f.kind == kind][:most]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--runs", type=int, default=1, help="so many seeds, one after the other")
    parser.add_argument("--calm", action="store_true", help="without absence, deletion and replay")
    parser.add_argument("--stepped", action="store_true", help="mostly schedules, and steps of the clock")
    parser.add_argument("--journal", type=argparse.FileType("w"), help="write each call and its answer there")
    given = parser.parse_args()
    has_faults = False
    for seed in range(given.seed, given.seed + given.runs):
        with tempfile.TemporaryDirectory(prefix="fasti-oracle-") as home:
            ledger = asyncio.run(
                play(
                    Path(home),
                    seed,
                    given.steps,
                    CALM if given.calm else STEPPED if given.stepped else WILD,
                    journal=given.journal,
                )
            )
        print(f"seed {seed}, {given.steps} steps: {report(ledger)}", flush=True)
        has_faults |= bool(ledger.faults)
    return int(has_faults)


if __name__ == "__main__":
    sys.exit(main())
