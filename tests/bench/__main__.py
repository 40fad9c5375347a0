"""`python -m tests.bench [name ...] [--quick]`: measure, one JSON line a result, a table at the end.

Without names everything, which takes a quarter of an hour or so, or with `--quick`, which is for trying, all
but `ram`. The clients run here; each server is a process of its own.
"""

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from .catching_up import replay, structures
from .due import drain, lateness
from .idle import idle
from .plain import plain
from .pulling import pulling
from .ram import ram
from .results import FULL, QUICK, Env, Result, Sizes, table
from .scheduling import batch, single
from .spark import spark
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
    "idle": idle,
    "plain": plain,
    "pull": pulling,
    "structures": structures,
    "spark": spark,
    "splitting": splitting,
}
LONG = {"ram"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="benchmarks of the fasti server"
    )
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="small: to see that it works")
    parser.add_argument(
        "--dir", type=Path, help="where to put the data (a directory below the system's for files in passing)"
    )
    wanted = parser.parse_args(arguments)
    unknown = set(wanted.names) - BENCHMARKS.keys()
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    names = wanted.names or [name for name in BENCHMARKS if not (wanted.quick and name in LONG)]
    results: list[Result] = []
    for name in names:
        found = run(name, QUICK if wanted.quick else FULL, wanted.dir)
        for result in found:
            print(result.line(), flush=True)
        results += found
    print(f"\n{table(results)}")
    return 0


def run(name: str, sizes: Sizes, parent: Path | None = None) -> list[Result]:
    """One benchmark in a directory of its own, which is removed."""
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=parent) as folder:
        return uvloop.run(_measured(BENCHMARKS[name], Env(Path(folder), sizes)))


async def _measured(benchmark: Benchmark, env: Env) -> list[Result]:
    return await benchmark(env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
