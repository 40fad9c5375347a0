"""`fasti retry ...`: messages that wait for their next try."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

import fasti
from fasti.options import RetrySelection

from .entries import Count, Ids, Limit, change, print_all, print_each
from .options import with_client
from .output import Printer
from .ranges import DryRun

app = typer.Typer(no_args_is_help=True)
In = Annotated[str | None, typer.Option("--in", help="Try after a delay: 15m, 90s, PT15M.")]
At = Annotated[str | None, typer.Option("--at", help="Try at this instant.")]


@app.command()
@with_client(RetrySelection)
async def ls(
    client: fasti.Client,
    out: Printer,
    limit: Limit = 100,
    count: Count = False,
    **chosen: Unpack[RetrySelection],
) -> None:
    """List messages that wait for their next try, ordered by its time."""
    if count:
        out.count(await client.retries.count(**chosen))
    else:
        await print_all(out, client.retries.list(limit=limit, **chosen), "retry_at")


@app.command()
@with_client()
async def show(
    client: fasti.Client, out: Printer, message_id: Annotated[str, typer.Argument(metavar="ID")]
) -> None:
    """Show what waits of a message; one for each session or group that will try it again."""
    print_each(out, await client.retries.get(message_id), f"no retry of message {message_id}")


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


@app.command()
@with_client(RetrySelection)
async def bury(
    client: fasti.Client,
    out: Printer,
    ids: Ids = None,
    dry_run: DryRun = False,
    **chosen: Unpack[RetrySelection],
) -> None:
    """Make dead letters of messages that wait for their next try: by id, or all that the options select."""
    await change(out, client.retries.bury, ids, chosen, dry_run=dry_run)


@app.command()
@with_client(RetrySelection)
async def drop(
    client: fasti.Client,
    out: Printer,
    ids: Ids = None,
    dry_run: DryRun = False,
    **chosen: Unpack[RetrySelection],
) -> None:
    """Forget messages that wait for their next try: by id, or all that the options select."""
    await change(out, client.retries.drop, ids, chosen, dry_run=dry_run)
