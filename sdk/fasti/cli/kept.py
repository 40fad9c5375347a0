"""`fasti dead` and `fasti retry`: messages that were given up, or that wait for their next try."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

import fasti
from fasti.options import DeadSelection, RetrySelection

from .entries import Ids, add_change, add_ls, add_show, change
from .options import with_client
from .output import Printer
from .ranges import DryRun

dead, retry = typer.Typer(no_args_is_help=True), typer.Typer(no_args_is_help=True)
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
In = Annotated[str | None, typer.Option("--in", help="Try after a delay: 15m, 90s, PT15M.")]
At = Annotated[str | None, typer.Option("--at", help="Try at this instant.")]
COLUMNS = ("group", "attempts", "reason", "topic", "payload")
add_ls(
    dead,
    "dead",
    DeadSelection,
    ("id", "died_at", *COLUMNS),
    "List dead letters, ordered by the time at which they died.",
    key=Key,
)
add_show(
    dead,
    "dead",
    "dead letter {} not found",
    "Show a dead letter; one for each session or group that has given the message up.",
)
add_ls(
    retry,
    "retries",
    RetrySelection,
    ("id", "retry_at", *COLUMNS),
    "List messages that wait for their next try, ordered by its time.",
)
add_show(
    retry,
    "retries",
    "no retry of message {}",
    "Show what waits of a message; one for each session or group that will try it again.",
)


@dead.command()
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


@retry.command("try")
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


add_change(dead, "dead", "drop", DeadSelection, "Forget dead letters: by id, or all that the options select.")
for _word, _done in (("bury", "Make dead letters of"), ("drop", "Forget")):
    _meaning = f"{_done} messages that wait for their next try: by id, or all that the options select."
    add_change(retry, "retries", _word, RetrySelection, _meaning)
