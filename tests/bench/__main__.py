"""`python -m tests.bench [name ...] [--quick]`: measure, one JSON line a result, a table at the end.

Without names everything, which takes half an hour or so; with `--quick` what has a peer, in smaller sizes, in
under three minutes. Ratios are compared with the recorded ones of the same form and build (recorded.json); a
benchmark of which one has fallen is measured once more, and what has fallen both times makes the exit code 1.
The clients run here; each server is a process of its own.
"""

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvloop

from . import recorded
from .budget import budget
from .catching_up import replay, structures
from .due import drain, lateness
from .failover import failover, standby
from .growth import growth, plot
from .holding import holds
from .jobs import jobs
from .keeping import keeping
from .log import log
from .ordering import ordering
from .plain import plain
from .pulling import pulling
from .ram import ram
from .replicated import cluster, rows, waits
from .results import FULL, QUICK, Env, Result, Seen, Sizes, table
from .scheduling import batch, single
from .spark import columns, spark
from .splitting import splitting
from .webhooks import webhook

Benchmark = Callable[[Env], Awaitable[list[Result]]]
BENCHMARKS: dict[str, Benchmark] = {
    "batch": batch,
    "single": single,
    "lateness": lateness,
    "drain": drain,
    "webhook": webhook,
    "replay": replay,
    "ram": ram,
    "plain": plain,
    "pull": pulling,
    "keep": keeping,
    "order": ordering,
    "jobs": jobs,
    "structures": structures,
    "spark": spark,
    "columns": columns,
    "splitting": splitting,
    "cluster": cluster,
    "rows": rows,
    "waits": waits,
    "failover": failover,
    "standby": standby,
    "budget": budget,
    "growth": growth,
    "holds": holds,
    "log": log,
}
ROWS = ("batch", "single", "lateness", "drain", "plain", "replay", "ram", "pull", "webhook")
"""What `--quick` measures: what is recorded, and has a peer or a floor."""


ALONE = {"budget", "growth", "holds", "log"}
"""What is measured only if it is asked for."""


def main(arguments: list[str]) -> int:
    wanted = _read(arguments)
    sizes = QUICK if wanted.quick else FULL
    if wanted.pending:
        sizes = replace(sizes, pending=tuple(wanted.pending))
    names = wanted.names or (ROWS if wanted.quick else [name for name in BENCHMARKS if name not in ALONE])
    seen = Seen()
    measure = partial(_told, sizes=sizes, parent=wanted.dir, before=wanted.before, seen=seen)
    results = {name: measure(name) for name in names}
    form = recorded.form(wanted.quick, seen.build)
    falls = []
    for name, found in results.items():
        if not wanted.record and recorded.fallen(found, form):
            print(f"{name} has fallen: once more", flush=True)
            falls += recorded.fallen(measure(name), form)
    every = [result for found in results.values() for result in found]
    print(f"\n{table(every)}\nbuild: {seen.build}")
    if seen.missing:
        print(f"not installed, so no ratio: {', '.join(sorted(seen.missing))}")
    if wanted.record:
        recorded.record([one for name in names if name not in ALONE for one in results[name]], form)
    if wanted.record and "growth" in results:
        plot(results["growth"], sizes.pending)
    for fall in falls:
        print(f"FELL by more than {recorded.FALL:.0%}, twice: {fall}")
    return 1 if falls else 0


def _read(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="benchmarks of the fasti server beside its peers"
    )
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="under three minutes; figures of recorded rows")
    parser.add_argument("--record", action="store_true", help="keep the ratios as those to compare with")
    parser.add_argument("--before", type=Path, help="another checkout, measured beside this one")
    parser.add_argument(
        "--dir", type=Path, help="where to put the data (a directory below the system's for files in passing)"
    )
    parser.add_argument(
        "--pending", type=int, nargs="+", metavar="N", help="messages that `ram` and `growth` store"
    )
    wanted = parser.parse_args(arguments)
    unknown = set(wanted.names) - BENCHMARKS.keys()
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    return wanted


def _told(name: str, *, sizes: Sizes, parent: Path | None, before: Path | None, seen: Seen) -> list[Result]:
    found = run(name, sizes, parent, before, seen)
    for result in found:
        print(result.line(), flush=True)
    return found


def run(
    name: str,
    sizes: Sizes,
    parent: Path | None = None,
    before: Path | None = None,
    seen: Seen | None = None,
) -> list[Result]:
    """One benchmark in a directory of its own, which is removed."""
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=parent) as folder:
        env = Env(Path(folder), sizes, before, seen or Seen())
        return uvloop.run(_measured(BENCHMARKS[name], env))


async def _measured(benchmark: Benchmark, env: Env) -> list[Result]:
    return await benchmark(env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
