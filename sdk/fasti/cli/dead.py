"""`fasti dead ...`."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

import fasti
from fasti.options import DeadSelection

from .entries import Ids, add_change, add_ls, add_show, change
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
COLUMNS = ("id", "died_at", "group", "attempts", "reason", "topic", "payload")
add_ls(
    app,
    "dead",
    DeadSelection,
    COLUMNS,
    "List dead letters, ordered by the time at which they died.",
    key=Key,
)
add_show(
    app,
    "dead",
    "dead letter {} not found",
    "Show a dead letter; one for each session or group that has given the message up.",
)


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


add_change(app, "dead", "drop", DeadSelection, "Forget dead letters: by id, or all that the options select.")
