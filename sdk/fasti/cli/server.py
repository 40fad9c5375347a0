"""`fasti server ...`."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .options import with_client
from .output import Printer, progress

app = typer.Typer(no_args_is_help=True)


@app.command()
@with_client()
async def status(client: fasti.Client, out: Printer) -> None:
    """Say version, clock, listeners. Exit code 3 if there is no server."""
    info = await client.info()
    out.one({"url": client.url, **info.raw})


@app.command()
@with_client()
async def backup(
    client: fasti.Client,
    out: Printer,
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR", help="New directory on the server's machine, inside store.backups."),
    ],
) -> None:
    """Have the server write a consistent copy of its data, to start a server on."""
    with progress(out, "backing up", None):
        made = await client.server.backup(directory)
    out.one({"dir": made})
