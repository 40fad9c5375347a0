"""`fasti schedule ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import fasti
from fasti.schedules import timing

from .complete import schedule_names
from .message import headers_of, payload_of
from .output import Printer, Row
from .run import run

app = typer.Typer(no_args_is_help=True)
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A-Z, a-z, 0-9, '.', '_', '-'.", autocompletion=schedule_names),
]
Cron = Annotated[str | None, typer.Option(help="5 fields, 6 with seconds first, or @daily and the like.")]
Every = Annotated[str | None, typer.Option(help="Elapsed time between fires: 90s, PT15M.")]
Rule = Annotated[str | None, typer.Option("--rrule", help="RFC 5545: FREQ=MONTHLY;BYDAY=-1FR.")]
Zone = Annotated[str | None, typer.Option("--timezone", "-z", help="Europe/Bucharest, UTC.")]
Start = Annotated[str | None, typer.Option(help="No fire before this instant.")]
End = Annotated[str | None, typer.Option(help="No fire after this instant.")]
Limit = Annotated[int | None, typer.Option(min=1, help="So many fires in all.")]
Jitter = Annotated[str | None, typer.Option(help="Delay each fire by up to this, always the same for it.")]
Gap = Annotated[str | None, typer.Option(help="A time the clocks skip: skip, after (default), before.")]
Overlap = Annotated[str | None, typer.Option(help="A time shown twice: first (default), second, both.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1_000)]

COLUMNS = ("name", "state", "when", "timezone", "topic", "next", "count")


@app.command()
def put(
    context: typer.Context,
    name: Name,
    topic: Annotated[str, typer.Argument()],
    payload: Annotated[str, typer.Argument(help="Text, or JSON with --json.")] = "",
    cron: Cron = None,
    every: Every = None,
    rrule: Rule = None,
    timezone: Zone = None,
    start: Start = None,
    end: End = None,
    limit: Limit = None,
    jitter: Jitter = None,
    gap: Gap = None,
    overlap: Overlap = None,
    misfire: Annotated[
        str | None, typer.Option(help="Fires while the server was down: fire_all, fire_once (default), skip.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Take the payload from here, as bytes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The payload is JSON.")] = False,
    qos: Annotated[int | None, typer.Option(min=0, max=2)] = None,
    retain: Annotated[bool, typer.Option("--retain")] = False,
    expires_in: Annotated[str | None, typer.Option(help="Drop it if it is that long past due.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE, repeatable.")
    ] = None,
    content_type: str | None = None,
) -> None:
    """Make a schedule, or change it in place."""

    # Whether these are words that it knows is for the server to say.
    policies: dict[str, Any] = {"gap": gap, "overlap": overlap, "misfire": misfire}

    async def work(client: fasti.Client, out: Printer) -> None:
        made = await client.schedules.put(
            name,
            topic=topic,
            payload=payload_of(payload, file, as_json),
            cron=cron,
            every=every,
            rrule=rrule,
            timezone=timezone,
            start=start,
            end=end,
            limit=limit,
            jitter=jitter,
            qos=qos,
            retain=retain or None,
            expires_in=expires_in,
            headers=headers_of(header or []),
            content_type=content_type,
            **policies,
        )
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
        out.one({**found.raw, "upcoming": upcoming})

    run(context, work)


@app.command()
def preview(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="A saved schedule; else say when by options.", autocompletion=schedule_names),
    ] = None,
    cron: Cron = None,
    every: Every = None,
    rrule: Rule = None,
    timezone: Zone = None,
    start: Start = None,
    end: End = None,
    limit: Limit = None,
    jitter: Jitter = None,
    gap: Gap = None,
    overlap: Overlap = None,
    count: Count = 10,
) -> None:
    """The next fires of a schedule, saved or not."""

    async def work(client: fasti.Client, out: Printer) -> None:
        when: dict[str, Any] = {
            "cron": cron,
            "every": every,
            "rrule": rrule,
            "timezone": timezone,
            "start": start,
            "end": end,
            "limit": limit,
            "jitter": jitter,
            "gap": gap,
            "overlap": overlap,
        }
        if name is not None:
            if timing(**when):
                raise ValueError("give the name of a saved schedule, or options, not both")
            fires = await client.schedules.upcoming(name, count)
        else:
            fires = await client.schedules.preview(count=count, **when)
        out.many([fire.raw for fire in fires], ("at", "local", "note"))

    run(context, work)


@app.command()
def pause(context: typer.Context, name: Name) -> None:
    """Fire no more; the pending occurrence is taken back."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.schedules.pause(name)).raw)

    run(context, work)


@app.command()
def resume(context: typer.Context, name: Name) -> None:
    """Go on with the first fire after now."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.one((await client.schedules.resume(name)).raw)

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
    following = schedule.get("next") or {}
    return {**schedule, "when": when, "next": following.get("at")}
