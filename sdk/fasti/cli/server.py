"""`fasti server ...`."""

from __future__ import annotations

import typer

import fasti

from .output import Printer
from .run import run

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `status` a command of its own while it is the only one."""


@app.command()
def status(context: typer.Context) -> None:
    """Say version, clock, listeners. Exit code 3 if there is no server."""

    async def work(client: fasti.Client, out: Printer) -> None:
        info = await client.info()
        out.one({"url": client.url, **info.raw})

    run(context, work)
