"""`python -m tests.mutation`: small changes of timeline/ and shards/, and whether a test notices each.

Prints what came of them by module, and fails for a mutant of a judged module that lives and is not in
survivors.toml, or an entry there that has had its day. Without enough time for all, a sample is tried: the
seed says which.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from time import monotonic
from typing import TextIO

from .edits import Mutant
from .survivors import ALIVE, read, unlisted, wrong
from .trial import KILLED, SURVIVED, TIMED_OUT, UNREACHED, Place, Trials, all_mutants, reached

HERE = Path(__file__).parent
TESTS = ["tests/timeline", "tests/shards", "tests/store", "tests/log"]
SERVERS = ["nats", "jetstream", "postgres"]
"""Tests that start processes of others: nobody would end those of a mutant's child."""
OUTCOMES = (KILLED, TIMED_OUT, SURVIVED, UNREACHED)
ENTRY = '[[survivor]]\nmodule = "{}"\nfunction = "{}"\nline = {}\nchange = {}\nreason = ""\n'


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--root", type=Path, default=HERE.parents[1])
    parser.add_argument("--rooms", nargs="+", default=["timeline", "shards"])
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--without", nargs="*", default=SERVERS, help="words in names of tests to leave out")
    parser.add_argument("--survivors", type=Path, default=HERE / "survivors.toml")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="what a mutant's `module function` starts with"
    )
    parser.add_argument("--minutes", default=os.environ.get("FASTI_MUTANTS_MINUTES", "45"), help="or `all`")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("FASTI_MUTANTS_SEED", "0")))
    parser.add_argument("--workers", type=int, default=int(os.environ.get("FASTI_MUTANTS_WORKERS", "1")))
    parser.add_argument("--new", type=Path, help="where to write entries for survivors that are not listed")
    return parser.parse_args()


def table(mutants: Sequence[Mutant], outcomes: Mapping[Mutant, str]) -> list[str]:
    """Counts by module: all mutants, those that were tried, and what came of them."""
    rows = [f"{'':28}{'mutants':>9}{'tried':>9}" + "".join(f"{name:>11}" for name in OUTCOMES)]
    for module in [*sorted({mutant.module for mutant in mutants}), ""]:
        of_it = [mutant for mutant in mutants if module in ("", mutant.module)]
        counts = Counter(outcomes[mutant] for mutant in of_it if mutant in outcomes)
        columns = "".join(f"{counts[name]:>11}" for name in OUTCOMES)
        rows.append(f"{module or 'all':28}{len(of_it):>9}{counts.total():>9}{columns}")
    return rows


def main(out: TextIO) -> int:
    given = arguments()
    limit = float("inf") if given.minutes == "all" else monotonic() + 60 * float(given.minutes)
    root = given.root.resolve()
    build = root / "build" / "mutation"
    place = Place(root, tuple(given.rooms), tuple(given.tests), build, tuple(given.without))
    mutants = all_mutants(place)
    chosen = [one for one in mutants if f"{one.module} {one.function}".startswith(tuple(given.only))]
    Random(given.seed).shuffle(chosen)
    outcomes: dict[Mutant, str] = {}

    def done(mutant: Mutant, outcome: str, test: str) -> None:
        outcomes[mutant] = outcome
        if outcome in ALIVE:
            print(f"{outcome}: {mutant}", file=out)

    Trials(place, reached(place), given.workers, done).run(chosen, limit)
    print(*table(mutants, outcomes), sep="\n", file=out)
    print(f"seed {given.seed}: {len(outcomes)} of {len(mutants)} mutants tried", file=out)
    judged = read(given.survivors)
    new, found = unlisted(judged, outcomes), wrong(judged, mutants, outcomes)
    print(f"{len(new)} of those that live are not judged, {len(found)} faults:", *found, sep="\n", file=out)
    if given.new:
        entries = [ENTRY.format(*one.key[:2], quoted(one.line), quoted(one.change)) for one in new]
        given.new.write_text("\n".join(entries), encoding="utf-8")
    return 1 if found else 0


def quoted(line: str) -> str:
    """As TOML has text: as it is between single quotes, unless it has some."""
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if "'" in line else f"'{line}'"


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w", buffering=1) as output:
        nobody = os.open(os.devnull, os.O_WRONLY)
        os.dup2(2 if "FASTI_MUTANTS_LOUD" in os.environ else nobody, 1)
        sys.exit(main(output))
