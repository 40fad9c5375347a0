"""`fasti server ...`."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .output import Printer, progress
from .run import run

app = typer.Typer(no_args_is_help=True)


@app.command()
def status(context: typer.Context) -> None:
    """Say version, clock, listeners. Exit code 3 if there is no server."""

    async def work(client: fasti.Client, out: Printer) -> None:
        info = await client.info()
        out.one({"url": client.url, **info.raw})

    run(context, work)


@app.command()
def backup(
    context: typer.Context,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="On the server's machine, in its store.backups; new.")
    ],
) -> None:
    """Have the server write a consistent copy of its data, to start a server on."""

    async def work(client: fasti.Client, out: Printer) -> None:
        with progress(out, "backing up", None):
            made = await client.server.backup(directory)
        out.one({"dir": made})

    run(context, work)
