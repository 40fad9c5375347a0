"""`fasti slice ...`."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .complete import slice_starts
from .job import Wait, follow
from .output import Printer
from .run import run
from .shard import COLUMNS as SHARD_COLUMNS
from .shard import rows

app = typer.Typer(no_args_is_help=True)
Start = Annotated[
    str,
    typer.Argument(
        metavar="START", help="First instant of the slice, RFC 3339 or Unix ms.", autocompletion=slice_starts
    ),
]
COLUMNS = ("start", "end", "generation", "count", "live", "bytes", "shards")


@app.command()
def ls(context: typer.Context) -> None:
    """List slices in order of time."""

    async def work(client: fasti.Client, out: Printer) -> None:
        out.many([s.raw async for s in client.slices.list()], COLUMNS)

    run(context, work)


@app.command()
def show(context: typer.Context, start: Start) -> None:
    """Show one slice and its shards."""

    async def work(client: fasti.Client, out: Printer) -> None:
        found = await client.slices.get(start)
        if out.format != "table":
            out.one(found.raw)
            return
        out.one({**found.raw, "shards": found.shard_count})
        out.many(rows(found), SHARD_COLUMNS)

    run(context, work)


@app.command()
def split(
    context: typer.Context,
    start: Start,
    parts: Annotated[
        int | None, typer.Option(min=2, help="Into so many; else as the server sees fit.")
    ] = None,
    wait: Wait = True,
) -> None:
    """Cut an overfull slice into narrower ones; the server starts a Spark job for it."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await follow(client, out, await client.jobs.split(start, parts=parts), wait=wait)

    run(context, work)


@app.command()
def expire(context: typer.Context, wait: Wait = True) -> None:
    """Archive and drop what is behind its retention; the server starts a Spark job for it."""

    async def work(client: fasti.Client, out: Printer) -> None:
        await follow(client, out, await client.jobs.expire(), wait=wait)

    run(context, work)
