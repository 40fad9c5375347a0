"""`fasti retry ...`: messages that wait for their next try."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

import fasti
from fasti.options import RetrySelection

from .entries import Ids, add_change, add_ls, add_show, change
from .options import with_client
from .output import Printer
from .ranges import DryRun

app = typer.Typer(no_args_is_help=True)
In = Annotated[str | None, typer.Option("--in", help="Try after a delay: 15m, 90s, PT15M.")]
At = Annotated[str | None, typer.Option("--at", help="Try at this instant.")]
COLUMNS = ("id", "retry_at", "group", "attempts", "reason", "topic", "payload")
add_ls(
    app,
    "retries",
    RetrySelection,
    COLUMNS,
    "List messages that wait for their next try, ordered by its time.",
)
add_show(
    app,
    "retries",
    "no retry of message {}",
    "Show what waits of a message; one for each session or group that will try it again.",
)


@app.command(name="try")
@with_client(RetrySelection)
async def try_(
    client: fasti.Client,
    out: Printer,
    ids: Ids = None,
    delay: In = None,
    at: At = None,
    dry_run: DryRun = False,
    **chosen: Unpack[RetrySelection],
) -> None:
    """Try messages now, or at another time: by id, or all that the options select."""
    when = {"deliver_in": delay, "deliver_at": at}
    await change(out, client.retries.try_, ids, chosen, **when, dry_run=dry_run)


for _word, _done in (("bury", "Make dead letters of"), ("drop", "Forget")):
    _meaning = f"{_done} messages that wait for their next try: by id, or all that the options select."
    add_change(app, "retries", _word, RetrySelection, _meaning)
