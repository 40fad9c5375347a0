"""`fasti shard ...`."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .complete import slice_starts
from .entries import Count, Limit
from .options import with_client
from .output import Format, Printer, Row, progress

app = typer.Typer(no_args_is_help=True)
Start = Annotated[
    str,
    typer.Argument(
        metavar="START", help="First instant of the slice, RFC 3339 or Unix ms.", autocompletion=slice_starts
    ),
]
Number = Annotated[int, typer.Argument(metavar="SHARD", min=0)]
COLUMNS = ("shard", "structure", "count", "live", "bytes", "cap", "first", "last", "borrowed", "sealed")


@app.command()
@with_client()
async def ls(
    client: fasti.Client, out: Printer, start: Start, limit: Limit = 1_000, count: Count = False
) -> None:
    """List the shards of a slice."""
    found = rows(await client.slices.get(start))
    out.count(len(found)) if count else out.many(found[:limit], COLUMNS)


@app.command()
@with_client()
async def show(client: fasti.Client, out: Printer, start: Start, number: Number) -> None:
    """Show one shard."""
    out.one((await client.slices.shard(start, number)).raw)


@app.command()
@with_client()
async def dump(client: fasti.Client, out: Printer, start: Start, number: Number) -> None:
    """Write the messages of one shard as NDJSON, whatever their state."""
    out.format = Format.ndjson
    shard, found = await client.slices.shard(start, number), await client.slices.get(start)
    count = 0
    with progress(out, "reading", shard.count) as told:
        async for message in client.messages.list(due_from=found.start, due_to=found.end, state="all"):
            if await _shard_of(client, message) in (number, None):
                out.line(message.raw)
                count += 1
                told(count)


def rows(piece: fasti.Slice) -> list[Row]:
    """The shards of a slice for a list."""
    return [s.raw for s in piece.shards]


async def _shard_of(client: fasti.Client, message: fasti.Message) -> int | None:
    """The shard that a message is in; None if the server does not say.

    The id names time and shard of the place where the message was first put. A message that is due at another
    time by now was moved or came late; for that one the server is asked.
    """
    if fasti.instant_of_id(message.id) == message.deliver_at:
        return int(message.id[12:16], 16)
    try:
        shard = (await client.messages.explain(message.id)).get("shard")
    except fasti.NotFound:
        return None
    return shard if isinstance(shard, int) else None
