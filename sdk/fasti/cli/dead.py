"""`fasti dead ...`."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import typer

import fasti
from fasti.options import DeadSelection

from .options import takes
from .output import Format, Printer
from .ranges import DryRun
from .run import run

app = typer.Typer(no_args_is_help=True)
COLUMNS = ("id", "died_at", "group", "attempts", "reason", "topic", "payload")
Delay = Annotated[str | None, typer.Option("--in", help="Not at once, but after 15m, 90s, PT15M.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...")]


@app.command()
@takes(DeadSelection)
def ls(
    context: typer.Context,
    reason: Annotated[str | None, typer.Option(help="Part of the reason.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
    **chosen: Unpack[DeadSelection],
) -> None:
    """List what was delivered too often, in the order of dying."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = client.dead.list(reason=reason, limit=limit, **chosen)
        if out.format is Format.ndjson:
            async for letter in found:
                out.line(letter.raw)
        else:
            out.many([letter.raw async for letter in found], COLUMNS)

    run(context, work)


@app.command()
def show(context: typer.Context, message_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Show a dead letter; one for each session or group that has given the message up."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = await client.dead.get(message_id)
        if not found:
            out.complain(f"there is no dead letter {message_id}")
            raise typer.Exit(1)
        for letter in found:
            out.one(letter.raw)

    run(context, work)


@app.command()
@takes(DeadSelection)
def requeue(
    context: typer.Context,
    ids: Ids = None,
    delay: Delay = None,
    dry_run: DryRun = False,
    **chosen: Unpack[DeadSelection],
) -> None:
    """Send dead letters again, to those alone who gave them up: by id, or all that the options select."""

    async def work(client: fasti.Client, out: Printer) -> None:
        _check(ids, chosen)
        done = await client.dead.requeue(ids or None, delay=delay, dry_run=dry_run, **chosen)
        out.one({"matched": done.matched, "changed": done.changed})

    run(context, work)


@app.command()
@takes(DeadSelection)
def drop(
    context: typer.Context,
    ids: Ids = None,
    dry_run: DryRun = False,
    **chosen: Unpack[DeadSelection],
) -> None:
    """Forget dead letters: by id, or all that the options select."""

    async def work(client: fasti.Client, out: Printer) -> None:
        _check(ids, chosen)
        done = await client.dead.drop(ids or None, dry_run=dry_run, **chosen)
        out.one({"matched": done.matched, "changed": done.changed})

    run(context, work)


def _check(ids: list[str] | None, chosen: Any) -> None:
    """Raises ValueError, which is wrong usage."""
    if not ids and not any(chosen.values()):
        raise ValueError("give ids, or --group, --topic, --from and --to")
