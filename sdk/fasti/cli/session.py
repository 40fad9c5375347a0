"""`fasti session ...`."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .complete import session_names
from .output import Printer, Row
from .places import Fate, Skipping, To, skip
from .run import run

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="CLIENT_ID", autocompletion=session_names)]
COLUMNS = (
    "client_id",
    "connected",
    "subscriptions",
    "read_position",
    "lag_messages",
    "lag_seconds",
    "in_flight",
)


@app.command()
def ls(context: typer.Context) -> None:
    """List sessions, connected and away."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = [s.raw async for s in client.sessions.list()]
        out.many([_row(s) for s in found] if out.format == "table" else found, COLUMNS)

    run(context, work)


@app.command()
def show(context: typer.Context, client_id: Name) -> None:
    """Show one session."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.sessions.get(client_id)).raw)

    run(context, work)


@app.command()
def rm(context: typer.Context, client_id: Name) -> None:
    """Forget a session and its place."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await client.sessions.remove(client_id)
        out.one({"client_id": client_id, "state": "removed"})

    run(context, work)


@app.command()
def replay(
    context: typer.Context,
    client_id: Name,
    since: Annotated[str, typer.Option("--from", help="An instant, or how far back (PT1H).")],
) -> None:
    """Set a session back, so that it gets messages again."""

    async def work(client: fasti.Client, out: Printer) -> None:
        said = await client.sessions.replay(client_id, since)
        out.one(said or {"client_id": client_id, "from": since})

    run(context, work)


@app.command(name="skip")
def skip_(context: typer.Context, client_id: Name, to: To = "now", undone: Skipping = Fate.dead) -> None:
    """Leave the backlog of a session behind."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await skip(out, client.sessions.skip(client_id, to, undone.value))

    run(context, work)


def _row(session: Row) -> Row:
    filters = [s.get("filter", "") for s in session.get("subscriptions") or ()]
    return {**session, "subscriptions": ", ".join(filters)}
