"""`fasti schedule ...`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Unpack

import typer

import fasti
from fasti.options import ScheduleOptions, Timing

from .complete import schedule_names
from .message import payload_of
from .options import takes
from .output import Format, Printer, Row
from .run import run

app = typer.Typer(no_args_is_help=True)
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A-Z, a-z, 0-9, '.', '_', '-'.", autocompletion=schedule_names),
]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1_000)]


class From(StrEnum):
    """Where a schedule goes on."""

    now = "now"


COLUMNS = ("name", "state", "when", "timezone", "topic", "last", "next", "count")
FIRE_COLUMNS = ("at", "local", "note")


@app.command()
@takes(ScheduleOptions)
def put(
    context: typer.Context,
    name: Name,
    topic: Annotated[str, typer.Argument(help="May be left out with --deliver-to.")] = "",
    payload: Annotated[str, typer.Argument(help="Text, or JSON with --json.")] = "",
    file: Annotated[Path | None, typer.Option(help="Take the payload from here, as bytes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The payload is JSON.")] = False,
    **options: Unpack[ScheduleOptions],
) -> None:
    """Make a schedule, or change it in place."""

    async def work(client: fasti.Client, out: Printer) -> None:
        content = payload_of(payload, file, as_json)
        made = await client.schedules.put(name, topic=topic, payload=content, **options)
        out.one(made.raw)

    run(context, work)


@app.command()
def ls(context: typer.Context) -> None:
    """List schedules by name."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = [s.raw async for s in client.schedules.list()]
        out.many([_row(s) for s in found] if out.format == "table" else found, COLUMNS)

    run(context, work)


@app.command()
def show(context: typer.Context, name: Name, count: Count = 5) -> None:
    """Show one schedule and its next fires."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = await client.schedules.get(name)
        upcoming = [dict(fire.raw) for fire in await client.schedules.upcoming(name, count)]
        if out.format is not Format.table:
            out.one({**found.raw, "upcoming": upcoming})
            return
        out.one(found.raw)
        if upcoming:
            out.text("")
            out.many(upcoming, FIRE_COLUMNS)

    run(context, work)


@app.command()
@takes(Timing)
def preview(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="A saved schedule; else say when by options.", autocompletion=schedule_names),
    ] = None,
    count: Count = 10,
    **when: Unpack[Timing],
) -> None:
    """The next fires of a schedule, saved or not."""

    async def work(client: fasti.Client, out: Printer) -> None:
        if name is not None:
            if any(value is not None for value in when.values()):
                raise ValueError("give the name of a saved schedule, or options, not both")
            fires = await client.schedules.upcoming(name, count)
        else:
            fires = await client.schedules.preview(count=count, **when)
        out.many([fire.raw for fire in fires], FIRE_COLUMNS)

    run(context, work)


@app.command()
def pause(context: typer.Context, name: Name) -> None:
    """Fire no more; the pending occurrence is taken back."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.schedules.pause(name)).raw)

    run(context, work)


@app.command()
def resume(
    context: typer.Context,
    name: Name,
    from_: Annotated[
        From | None,
        typer.Option("--from", help="now: also what was sent already while the clock was ahead."),
    ] = None,
) -> None:
    """Go on with the first fire after now that was not sent."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.schedules.resume(name, from_="now" if from_ else None)).raw)

    run(context, work)


@app.command()
def skip(context: typer.Context, name: Name) -> None:
    """Leave the next fire out; its message is cancelled."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.schedules.skip(name)).raw)

    run(context, work)


@app.command()
def trigger(context: typer.Context, name: Name) -> None:
    """Send its message now, beside the plan."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one({"name": name, "id": await client.schedules.trigger(name)})

    run(context, work)


@app.command()
def rm(context: typer.Context, name: Name) -> None:
    """Forget a schedule and cancel its pending occurrence."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await client.schedules.delete(name)
        out.one({"name": name, "state": "removed"})

    run(context, work)


def _row(schedule: Row) -> Row:
    when = next((str(schedule[kind]) for kind in ("cron", "every", "rrule") if kind in schedule), "")
    return {**schedule, "when": when}
