"""`fasti retry ...`: messages that wait for their next try."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

import fasti
from fasti.options import RetrySelection

from .entries import Ids, Limit, change, print_all
from .options import takes
from .output import Printer
from .ranges import DryRun
from .run import run

app = typer.Typer(no_args_is_help=True)
In = Annotated[str | None, typer.Option("--in", help="Not now, but after 15m, 90s, PT15M.")]
At = Annotated[str | None, typer.Option("--at", help="Not now, but at this instant.")]


@app.command()
@takes(RetrySelection)
def ls(context: typer.Context, limit: Limit = 100, **chosen: Unpack[RetrySelection]) -> None:
    """List what waits for its next try, ordered by the time of that."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await print_all(out, client.retries.list(limit=limit, **chosen), "retry_at")

    run(context, work)


@app.command(name="try")
@takes(RetrySelection)
def try_(
    context: typer.Context,
    ids: Ids = None,
    delay: In = None,
    at: At = None,
    dry_run: DryRun = False,
    **chosen: Unpack[RetrySelection],
) -> None:
    """Try messages now, or at another time: by id, or all that the options select."""

    async def work(client: fasti.Client, out: Printer) -> None:
        when = {"deliver_in": delay, "deliver_at": at}
        await change(out, client.retries.try_, ids, chosen, **when, dry_run=dry_run)

    run(context, work)


@app.command()
@takes(RetrySelection)
def bury(
    context: typer.Context, ids: Ids = None, dry_run: DryRun = False, **chosen: Unpack[RetrySelection]
) -> None:
    """Make dead letters of messages that wait for their next try: by id, or all that the options select."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await change(out, client.retries.bury, ids, chosen, dry_run=dry_run)

    run(context, work)


@app.command()
@takes(RetrySelection)
def drop(
    context: typer.Context, ids: Ids = None, dry_run: DryRun = False, **chosen: Unpack[RetrySelection]
) -> None:
    """Forget messages that wait for their next try: by id, or all that the options select."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await change(out, client.retries.drop, ids, chosen, dry_run=dry_run)

    run(context, work)
