"""`fasti server` and `fasti cluster`."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .options import command_of
from .output import Format, Printer, progress
from .run import REFUSED

app, cluster = typer.Typer(no_args_is_help=True), typer.Typer(no_args_is_help=True)
COLUMNS = ("node", "state", "epoch", "applied", "lag", "heard")
_DIFFERS = (
    "{}: tzdata differs from the one that due times were computed with; it recomputes them when it leads"
)
_ALONE = "this server is not part of a cluster"


@command_of(app)
async def status(client: fasti.Client, out: Printer) -> None:
    """Say version, clock, listeners. Exit code 3 if there is no server."""
    info = await client.info()
    out.one({"url": client.url, **info.raw})


@command_of(app)
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


@command_of(app)
async def drain(
    client: fasti.Client,
    out: Printer,
    cancel: Annotated[bool, typer.Option("--cancel", help="Let groups and endpoints go on.")] = False,
) -> None:
    """Give groups and endpoints nothing new, for maintenance, and say how much is still out."""
    out.one(await client.server.drain(cancel=cancel))


@command_of(cluster, "status")
async def status_of_nodes(client: fasti.Client, out: Printer) -> None:
    """Show the leader and the lag of the others, as seen by the node that answers."""
    try:
        found = await client.cluster.status()
    except fasti.NotFound as error:
        out.failed(_ALONE, {**(error.problem.raw or {}), "detail": _ALONE})
        raise typer.Exit(REFUSED) from error
    if out.format is not Format.table:
        out.one(found.raw)
        return
    heard = ["-" if node.heard_ms is None else f"{node.heard_ms:,} ms ago" for node in found.nodes]
    out.many([{**node.raw, "heard": ago} for node, ago in zip(found.nodes, heard, strict=True)], COLUMNS)
    if found.leader is None:
        out.complain(f"{found.node} knows of no leader{f': {found.why}' if found.why else ''}")
    elif found.why:
        out.complain(f"{found.node}: {found.why}")
    if found.wants_retime:
        out.complain(_DIFFERS.format(found.node))
