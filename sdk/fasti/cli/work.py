"""`fasti work MODULE:WORKER`: run your worker, with logs and a progress line.

Log lines go to stderr (`logs`). On a terminal the progress line stays below them; elsewhere, and with
`--log`, it is a log line each minute. `fasti --help` reads this module too, so what only a worker needs is
imported where it is used.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

import fasti

from .logs import Style, logs
from .options import Expiry
from .output import Printer
from .run import run

TOLD_EACH_S = 60.0
_log = logging.getLogger("fasti.work")


def work(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKER", help="Module with the fasti.Worker; default attribute: `worker`."
        ),
    ],
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="Maximum messages in progress.")
    ] = None,
    expiry: Expiry = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log a line for each finished job.")
    ] = False,
    log: Annotated[
        Style | None, typer.Option("--log", help="Log format. Default: text, on a terminal in colours.")
    ] = None,
) -> None:
    """Run a worker until Ctrl-C or SIGTERM; running jobs then have the worker's `grace` to end.

    A worker without a client gets one made from this command's options.
    """
    worker = _found(name)
    if concurrency is not None:
        worker.concurrency = concurrency
    if expiry is not None:
        worker.expiry = expiry

    import asyncio

    async def go(client: fasti.Client, out: Printer) -> None:
        with logs(out, logging.DEBUG if verbose else logging.INFO, log):
            telling = asyncio.create_task(_tell(worker, out, out.errors.is_terminal and log is None))
            try:
                await worker.run(client)
            finally:
                telling.cancel()
            _log.info("stopped: %s", _line(worker.figures, None))

    run(context, go)


def _found(name: str) -> fasti.Worker:
    """Import it, also from the current directory. Raises BadParameter."""
    module, _, attribute = name.partition(":")
    if module.startswith(".") or module.endswith(".py"):
        path = Path(module).with_suffix("").parts
        meant = f"; is {'.'.join(path)} meant?" if module.endswith(".py") and ".." not in path else ""
        raise typer.BadParameter(f"{module} is not a module name{meant}", param_hint="MODULE:WORKER")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
        worker = getattr(found, attribute or "worker")
    except ImportError as error:
        inner = "" if error.name in (module, module.partition(".")[0]) else f"{module} cannot be imported: "
        raise typer.BadParameter(f"{inner}{error}", param_hint="MODULE:WORKER") from error
    except AttributeError as error:
        names = [one for one, value in vars(found).items() if isinstance(value, fasti.Worker)]
        there = f"; it has {', '.join(f'{module}:{one}' for one in names)}" if names else ""
        raise typer.BadParameter(f"{error}{there}", param_hint="MODULE:WORKER") from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="MODULE:WORKER") from error
    if not isinstance(worker, fasti.Worker):
        raise typer.BadParameter(f"{name} is not a fasti.Worker", param_hint="MODULE:WORKER")
    return worker


async def _tell(worker: fasti.Worker, out: Printer, is_live: bool) -> None:
    """Show the progress, each second on a terminal."""
    import asyncio

    from rich.status import Status

    status = Status("", console=out.errors)
    with status if is_live else contextlib.nullcontext():
        before, at_s = 0, time.monotonic()
        while True:
            await asyncio.sleep(1.0 if is_live else TOLD_EACH_S)
            tried, now_s = worker.figures.done + worker.figures.failed, time.monotonic()
            line = _line(worker.figures, (tried - before) / (now_s - at_s))
            before, at_s = tried, now_s
            if is_live:
                status.update(line)
            else:
                _log.info(line)


def _line(figures: fasti.Figures, rate: float | None) -> str:
    text = f"done {figures.done:,}  failed {figures.failed:,}  retried {figures.again:,}"
    return text if rate is None else f"{text}  in hand {figures.in_hand:,}  {rate:,.1f}/s"
