"""`fasti slice` and `fasti shard`."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .complete import slice_starts
from .job import Wait, follow
from .nouns import Count, Limit, Noun, Verb
from .options import with_client
from .output import Format, Printer, Row, progress

Start = Annotated[
    str,
    typer.Argument(
        metavar="START", help="First instant of the slice, RFC 3339 or Unix ms.", autocompletion=slice_starts
    ),
]
Number = Annotated[int, typer.Argument(metavar="SHARD", min=0)]
COLUMNS = ("start", "end", "generation", "count", "live", "bytes", "shards")
SHARD_COLUMNS = (
    *("shard", "structure", "count", "live", "bytes", "cap", "first", "last", "borrowed", "sealed"),
)
app = Noun("slice", "start", Start, COLUMNS).app(Verb("ls", "List slices in order of time."))
shard = typer.Typer(no_args_is_help=True)


@app.command()
@with_client()
async def show(client: fasti.Client, out: Printer, start: Start) -> None:
    """Show one slice and its shards."""
    found = await client.slices.get(start)
    out.one(found.raw, {**found.raw, "shards": found.shard_count})
    if out.format is Format.table:
        out.many(_rows(found), SHARD_COLUMNS)


@app.command()
@with_client()
async def split(
    client: fasti.Client,
    out: Printer,
    start: Start,
    parts: Annotated[
        int | None, typer.Option(min=2, help="Number of new slices. Default: the server chooses.")
    ] = None,
    wait: Wait = True,
) -> None:
    """Cut an overfull slice into narrower ones; the server starts a Spark job for it."""
    await follow(client, out, await client.jobs.split(start, parts=parts), wait=wait)


@app.command()
@with_client()
async def expire(client: fasti.Client, out: Printer, wait: Wait = True) -> None:
    """Archive and drop what is behind its retention; the server starts a Spark job for it."""
    await follow(client, out, await client.jobs.expire(), wait=wait)


@shard.command("ls")
@with_client()
async def list_shards(
    client: fasti.Client, out: Printer, start: Start, limit: Limit = 1_000, count: Count = False
) -> None:
    """List the shards of a slice."""
    found = _rows(await client.slices.get(start))
    out.count(len(found)) if count else out.many(found[:limit], SHARD_COLUMNS)


@shard.command("show")
@with_client()
async def show_shard(client: fasti.Client, out: Printer, start: Start, number: Number) -> None:
    """Show one shard."""
    out.one((await client.slices.shard(start, number)).raw)


@shard.command()
@with_client()
async def dump(client: fasti.Client, out: Printer, start: Start, number: Number) -> None:
    """Write the messages of one shard as NDJSON, whatever their state."""
    out.format = Format.ndjson
    found, piece = await client.slices.shard(start, number), await client.slices.get(start)
    count = 0
    with progress(out, "reading", found.count) as told:
        async for message in client.messages.list(due_from=piece.start, due_to=piece.end, state="all"):
            if await _shard_of(client, message) in (number, None):
                out.line(message.raw)
                count += 1
                told(count)


def _rows(piece: fasti.Slice) -> list[Row]:
    """The shards of a slice for a list."""
    return [each.raw for each in piece.shards]


async def _shard_of(client: fasti.Client, message: fasti.Message) -> int | None:
    """The shard that a message is in; None if the server does not say.

    The id names time and shard of the place where the message was first put. A message that is due at another
    time by now was moved or came late; for that one the server is asked.
    """
    if fasti.instant_of_id(message.id) == message.deliver_at:
        return int(message.id[12:16], 16)
    try:
        number = (await client.messages.explain(message.id)).get("shard")
    except fasti.NotFound:
        return None
    return number if isinstance(number, int) else None
