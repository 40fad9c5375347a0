"""`fasti group ...`: shared subscriptions and their places."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .complete import group_names
from .output import Printer, Row
from .places import Fate, Removing, Skipping, To, remove, shown, skip
from .run import run

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=group_names)]
Filter = Annotated[
    str | None, typer.Option("--filter", help="Only the group of this filter, not all of the name.")
]
COLUMNS = ("name", "filter", "state", "members", "position", "undone")


@app.command()
def ls(context: typer.Context) -> None:
    """List groups."""

    async def work(client: fasti.Client, out: Printer) -> None:
        _show(out, [group async for group in client.groups.list()])

    run(context, work)


@app.command()
def show(context: typer.Context, name: Name) -> None:
    """Show the groups of a name, one for each filter."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = await client.groups.get(name)
        if out.format != "table":
            out.many([group.raw for group in found], COLUMNS)
            return
        for group in found:
            out.one(group.raw)

    run(context, work)


@app.command()
def pause(context: typer.Context, name: Name, topic_filter: Filter = None) -> None:
    """Give out nothing; the place stays, also over a restart."""

    async def work(client: fasti.Client, out: Printer) -> None:
        _show(out, await client.groups.pause(name, topic_filter))

    run(context, work)


@app.command()
def resume(context: typer.Context, name: Name, topic_filter: Filter = None) -> None:
    """Go on where it stood."""

    async def work(client: fasti.Client, out: Printer) -> None:
        _show(out, await client.groups.resume(name, topic_filter))

    run(context, work)


@app.command()
def replay(
    context: typer.Context,
    name: Name,
    since: Annotated[str, typer.Option("--from", help="An instant, or how far back (PT1H).")],
    topic_filter: Filter = None,
) -> None:
    """Set a group back, so that it gets messages again."""

    async def work(client: fasti.Client, out: Printer) -> None:
        _show(out, await client.groups.replay(name, since, topic_filter))

    run(context, work)


@app.command(name="skip")
def skip_(
    context: typer.Context,
    name: Name,
    to: To = "now",
    undone: Skipping = Fate.dead,
    topic_filter: Filter = None,
) -> None:
    """Leave the backlog of a group behind."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await skip(out, client.groups.skip(name, to, undone.value, topic_filter))

    run(context, work)


@app.command()
def rm(context: typer.Context, name: Name, topic_filter: Filter = None, undone: Removing = None) -> None:
    """Forget a group and its place; its members get nothing more."""

    async def work(client: fasti.Client, out: Printer) -> None:
        which = [] if topic_filter is None else ["--filter", topic_filter]
        deletion = client.groups.delete(name, topic_filter, undone=None if undone is None else undone.value)
        await remove(out, name, deletion, ["fasti", "group", "rm", name, *which])

    run(context, work)


def _show(out: Printer, found: list[fasti.Group] | tuple[fasti.Group, ...]) -> None:
    out.many([_row(group) if out.format == "table" else group.raw for group in found], COLUMNS)


def _row(group: fasti.Group) -> Row:
    members = [f"{m.get('client_id')} ({m.get('in_flight')})" for m in group.members]
    return {**shown(group.raw), "members": ", ".join(members)}
