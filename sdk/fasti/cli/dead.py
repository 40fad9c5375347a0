"""`fasti dead ...`."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

import fasti
from fasti.options import DeadSelection

from .entries import Count, Ids, Limit, change, print_all, print_each
from .options import with_client
from .output import Printer
from .ranges import DryRun

app = typer.Typer(no_args_is_help=True)
Delay = Annotated[str | None, typer.Option("--in", help="Send after a delay: 15m, 90s, PT15M.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", "--idempotency-key", "-k", help="Idempotency key (the API key stands before `dead`)."
    ),
]
Place = Annotated[
    str | None,
    typer.Option("--place", help="Send to another place: $share/GROUP/FILTER, or an endpoint."),
]


@app.command()
@with_client(DeadSelection, key=Key)
async def ls(
    client: fasti.Client,
    out: Printer,
    limit: Limit = 100,
    count: Count = False,
    **chosen: Unpack[DeadSelection],
) -> None:
    """List dead letters, ordered by the time at which they died."""
    if count:
        out.count(await client.dead.count(**chosen))
    else:
        await print_all(out, client.dead.list(limit=limit, **chosen), "died_at")


@app.command()
@with_client()
async def show(
    client: fasti.Client, out: Printer, message_id: Annotated[str, typer.Argument(metavar="ID")]
) -> None:
    """Show a dead letter; one for each session or group that has given the message up."""
    print_each(out, await client.dead.get(message_id), f"dead letter {message_id} not found")


@app.command()
@with_client(DeadSelection)
async def requeue(
    client: fasti.Client,
    out: Printer,
    ids: Ids = None,
    delay: Delay = None,
    place: Place = None,
    dry_run: DryRun = False,
    **chosen: Unpack[DeadSelection],
) -> None:
    """Send dead letters again, only to the group or session that gave them up: by id, or all that the options
    select."""
    await change(out, client.dead.requeue, ids, chosen, delay=delay, to=place, dry_run=dry_run)


@app.command()
@with_client(DeadSelection)
async def drop(
    client: fasti.Client,
    out: Printer,
    ids: Ids = None,
    dry_run: DryRun = False,
    **chosen: Unpack[DeadSelection],
) -> None:
    """Forget dead letters: by id, or all that the options select."""
    await change(out, client.dead.drop, ids, chosen, dry_run=dry_run)
