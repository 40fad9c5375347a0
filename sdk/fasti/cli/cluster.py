"""`fasti cluster ...`."""

from __future__ import annotations

import typer

import fasti

from .options import with_client
from .output import Format, Printer, Row
from .run import REFUSED

app = typer.Typer(no_args_is_help=True)
COLUMNS = ("node", "state", "epoch", "applied", "lag", "heard")
_DIFFERS = (
    "{}: tzdata differs from the one that due times were computed with; it recomputes them when it leads"
)
_ALONE = "this server is not part of a cluster"


@app.command()
@with_client()
async def status(client: fasti.Client, out: Printer) -> None:
    """Show the leader and the lag of the others, as seen by the node that answers."""
    try:
        found = await client.cluster.status()
    except fasti.NotFound as error:
        out.failed(_ALONE, {**(error.problem.raw or {}), "detail": _ALONE})
        raise typer.Exit(REFUSED) from error
    if out.format is not Format.table:
        out.one(found.raw)
        return
    out.many([_row(node) for node in found.nodes], COLUMNS)
    if found.leader is None:
        out.complain(f"{found.node} knows of no leader{f': {found.why}' if found.why else ''}")
    elif found.why:
        out.complain(f"{found.node}: {found.why}")
    if found.wants_retime:
        out.complain(_DIFFERS.format(found.node))


def _row(node: fasti.ClusterNode) -> Row:
    heard = "-" if node.heard_ms is None else f"{node.heard_ms:,} ms ago"
    return {**node.raw, "heard": heard}
