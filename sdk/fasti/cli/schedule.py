"""`fasti schedule ...`."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

import fasti
from fasti.options import ScheduleOptions, Timing

from .complete import schedule_names
from .message import AsJson, File, Payload, Topic, sent_of
from .nouns import Noun, Verb, text
from .options import command_of
from .output import Format, Printer, Row

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name: A-Z, a-z, 0-9, '.', '_', '-'.", autocompletion=schedule_names),
]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1_000)]


FROM = text("from_", "--from", "now: also send again what went out while the clock was ahead.", words="now")
COLUMNS = ("name", "state", "when", "timezone", "topic", "last", "next", "count")
FIRE_COLUMNS = ("at", "local", "note")


def _row(schedule: Row) -> Row:
    when = next((str(schedule[kind]) for kind in ("cron", "every", "rrule") if kind in schedule), "")
    return {**schedule, "when": when}


app = Noun("schedule", "name", Name, COLUMNS, _row).app(
    Verb("ls", "List schedules by name."),
    Verb("pause", "Fire no more; the pending occurrence is taken back."),
    Verb("resume", "Go on with the first fire after now that was not sent.", (FROM,)),
    Verb("skip", "Leave the next fire out; its message is cancelled."),
    Verb("rm", "Forget a schedule and cancel its pending occurrence."),
)


@command_of(app, kind=ScheduleOptions)
async def put(
    client: fasti.Client,
    out: Printer,
    name: Name,
    topic: Topic = None,
    payload: Payload = None,
    file: File = None,
    as_json: AsJson = False,
    **options: Unpack[ScheduleOptions],
) -> None:
    """Make a schedule, or change it in place."""
    topic, content = sent_of(topic, payload, file, as_json, options.get("deliver_to"))
    made = await client.schedules.put(name, topic=topic, payload=content, **options)
    out.one(made.raw)


@command_of(app)
async def show(client: fasti.Client, out: Printer, name: Name, count: Count = 5) -> None:
    """Show one schedule and its next fires."""
    found = await client.schedules.get(name)
    upcoming = [dict(fire.raw) for fire in await client.schedules.upcoming(name, count)]
    if out.format is not Format.table:
        out.one({**found.raw, "upcoming": upcoming})
        return
    out.one(found.raw)
    if upcoming:
        out.text("")
        out.many(upcoming, FIRE_COLUMNS)


@command_of(app, kind=Timing)
async def preview(
    client: fasti.Client,
    out: Printer,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a saved schedule; without it, use options.", autocompletion=schedule_names
        ),
    ] = None,
    count: Count = 10,
    **when: Unpack[Timing],
) -> None:
    """The next fires of a schedule, saved or not."""
    if name is not None:
        if any(value is not None for value in when.values()):
            raise ValueError("give the name of a saved schedule, or options, not both")
        fires = await client.schedules.upcoming(name, count)
    else:
        fires = await client.schedules.preview(count=count, **when)
    out.many([fire.raw for fire in fires], FIRE_COLUMNS)


@command_of(app)
async def trigger(client: fasti.Client, out: Printer, name: Name) -> None:
    """Send its message now, beside the plan."""
    out.one({"name": name, "id": await client.schedules.trigger(name)})
