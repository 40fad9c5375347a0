"""`fasti slice ...`."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .job import Wait, follow
from .nouns import Noun, Verb
from .options import with_client
from .output import Printer
from .shard import COLUMNS as SHARD_COLUMNS
from .shard import Start, rows

COLUMNS = ("start", "end", "generation", "count", "live", "bytes", "shards")
app = Noun("slice", "start", Start, COLUMNS).app(Verb("ls", "List slices in order of time."))


@app.command()
@with_client()
async def show(client: fasti.Client, out: Printer, start: Start) -> None:
    """Show one slice and its shards."""
    found = await client.slices.get(start)
    if out.format != "table":
        out.one(found.raw)
        return
    out.one({**found.raw, "shards": found.shard_count})
    out.many(rows(found), SHARD_COLUMNS)


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
