"""`python -m tests.mutation [MODULE ...]`: small changes of timeline/ and shards/; does a test notice?

mutmut works in a copy of the tree, in build/mutation, and touches no file of the tree. It takes a few modules
at a time, in an order that the seed makes, until the time is over. Prints the mutants that live, as
survivors.toml has them, and what came of the others by module.

survivors.toml says which mutants may live, and why. `judged` are the modules whose mutants were all looked
at. There a mutant that lives and is not listed fails the run.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from time import monotonic

ROOT = Path(__file__).parents[2]
COPY = ROOT / "build" / "mutation"
ROOMS = ("timeline", "shards")
COPIED = (*ROOMS, "server", "sdk", "spark", "tests", "docs", "README.md", "pyproject.toml")
AT_A_TIME = 4
"""Modules of a run of mutmut. It begins with the fastest mutants: one run of all never comes to the rest."""
TIME_IS_OVER = 124
LIVES = ("survived", "no tests")
Change = tuple[str, ...]
"""What a diff removes and adds: `- a line`, `+ another`."""


def main() -> int:
    modules = sys.argv[1:] or all_modules()
    Random(os.environ.get("FASTI_MUTANTS_SEED", "0")).shuffle(modules)
    judged, may_live = listed()
    copy()
    run(modules, monotonic() + 60 * float(os.environ.get("FASTI_MUTANTS_MINUTES", "45")))
    came_of_it = outcomes()
    if not came_of_it:
        raise SystemExit("no mutant was tried")
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    faults = 0
    for mutant, outcome in came_of_it.items():
        module = module_of(mutant)
        counts[module][outcome] += 1
        if outcome in LIVES and (module, change := change_in(mutmut("show", mutant))) not in may_live:
            faults += module in judged
            print(f"{mutant}: {outcome}", *change, sep="\n    ")
    for module, of_it in sorted(counts.items()):
        print(f"{module:28}", ", ".join(f"{outcome} {count}" for outcome, count in of_it.most_common()))
    print(f"{faults} that live are not listed, of modules that are judged")
    return 1 if faults else 0


def all_modules() -> list[str]:
    paths = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return [".".join(path.with_suffix("").parts) for path in paths if path.name != "__init__.py"]


def listed() -> tuple[set[str], dict[tuple[str, Change], str]]:
    """The modules that are judged; why a change of a module may live."""
    stored = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text(encoding="utf-8"))
    entries = stored["survivor"]
    return set(stored["judged"]), {(one["module"], tuple(one["change"])): one["reason"] for one in entries}


def copy() -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    COPY.mkdir(parents=True)
    for name in COPIED:
        subprocess.run(["cp", "-R", str(ROOT / name), str(COPY)], check=True)


def run(modules: list[str], ends_at: float) -> None:
    """Raises SystemExit if the tests fail without a mutant."""
    for start in range(0, len(modules), AT_A_TIME):
        left = int(ends_at - monotonic())
        if left <= 0:
            return
        patterns = [f"{module}.*" for module in modules[start : start + AT_A_TIME]]
        ended = called(["timeout", str(left), sys.executable, "-m", "mutmut", "run", *patterns])
        if ended.returncode == TIME_IS_OVER:
            return
        if "mutations/second" not in ended.stdout:
            raise SystemExit(f"{ended.stdout[-4_000:]}{ended.stderr[-4_000:]}")


def outcomes() -> dict[str, str]:
    """Mutant -> what came of it, of those that were tried."""
    lines = (line.strip().partition(": ") for line in mutmut("results", "--all", "true").splitlines())
    return {name: outcome for name, _, outcome in lines if outcome not in ("", "not checked")}


def module_of(mutant: str) -> str:
    """`timeline.tail.xǁTailǁextend__mutmut_7` is of `timeline.tail`."""
    return mutant.rpartition(".")[0]


def change_in(diff: str) -> Change:
    lines = (line for line in diff.splitlines() if line[:1] in ("+", "-") and line[:3] not in ("+++", "---"))
    return tuple(f"{line[0]} {line[1:].strip()}" for line in lines)


def mutmut(*arguments: str) -> str:
    return called([sys.executable, "-m", "mutmut", *arguments]).stdout


def called(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=COPY, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
