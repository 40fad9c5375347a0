"""`fasti slice`, `fasti shard` and `fasti job`."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .complete import job_ids, slice_starts
from .nouns import Count, Limit, Noun, Verb
from .options import command_of
from .output import Format, Printer, Row, progress
from .run import REFUSED

Start = Annotated[
    str,
    typer.Argument(
        metavar="START", help="First instant of the slice, RFC 3339 or Unix ms.", autocompletion=slice_starts
    ),
]
Number = Annotated[int, typer.Argument(metavar="SHARD", min=0)]
Id = Annotated[str, typer.Argument(metavar="ID", autocompletion=job_ids)]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end, with a progress bar.")]
JOB_COLUMNS = ("id", "kind", "state", "slice", "progress", "created_at", "ended_at", "detail")
COLUMNS = ("start", "end", "generation", "count", "live", "bytes", "shards")
SHARD_COLUMNS = (
    *("shard", "structure", "count", "live", "bytes", "cap", "first", "last", "borrowed", "sealed"),
)


def _job_row(job: Row) -> Row:
    piece, progress_ = job.get("slice"), job.get("progress") or {}
    total = progress_.get("total")
    return {
        **job,
        "slice": piece.get("start") if isinstance(piece, dict) else piece,
        "progress": f"{progress_.get('done') or 0:,} of {total:,}" if total else None,
    }


app = Noun("slice", "start", Start, COLUMNS).app(Verb("ls", "List slices in order of time."))
shard = typer.Typer(no_args_is_help=True)
job = Noun("job", "job_id", Id, JOB_COLUMNS, _job_row).app(
    Verb("ls", "List the jobs of the pipeline, the last ones that ended among them.")
)


@command_of(app)
async def show(client: fasti.Client, out: Printer, start: Start) -> None:
    """Show one slice and its shards."""
    found = await client.slices.get(start)
    out.one(found.raw, {**found.raw, "shards": found.shard_count})
    if out.format is Format.table:
        out.many(_rows(found), SHARD_COLUMNS)


@command_of(app)
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
    await _follow(client, out, await client.jobs.split(start, parts=parts), wait=wait)


@command_of(app)
async def expire(client: fasti.Client, out: Printer, wait: Wait = True) -> None:
    """Drop what is behind its retention, and archived if it is to be; the server starts a job for it."""
    await _follow(client, out, await client.jobs.expire(), wait=wait)


@command_of(app)
async def archive(client: fasti.Client, out: Printer, wait: Wait = True) -> None:
    """Archive what has passed; the server starts a job for it."""
    await _follow(client, out, await client.jobs.archive(), wait=wait)


@command_of(app)
async def compact(
    client: fasti.Client,
    out: Printer,
    date: Annotated[
        str | None, typer.Option(help="A day, as in 2026-12-01. Default: the newest that is worth it.")
    ] = None,
    wait: Wait = True,
) -> None:
    """Compact the archive's files of a day; the server starts a Spark job for it."""
    await _follow(client, out, await client.jobs.compact(date), wait=wait)


@command_of(shard, "ls")
async def list_shards(
    client: fasti.Client, out: Printer, start: Start, limit: Limit = 1_000, count: Count = False
) -> None:
    """List the shards of a slice."""
    found = _rows(await client.slices.get(start))
    out.count(len(found)) if count else out.many(found[:limit], SHARD_COLUMNS)


@command_of(shard, "show")
async def show_shard(client: fasti.Client, out: Printer, start: Start, number: Number) -> None:
    """Show one shard."""
    out.one((await client.slices.shard(start, number)).raw)


@command_of(shard)
async def dump(client: fasti.Client, out: Printer, start: Start, number: Number) -> None:
    """Write the messages of one shard as NDJSON, whatever their state."""
    out.format = Format.ndjson
    found, piece = await client.slices.shard(start, number), await client.slices.get(start)
    count = 0
    with progress(out, "reading", found.count) as advance:
        async for message in client.messages.list(due_from=piece.start, due_to=piece.end, state="all"):
            if await _shard_of(client, message) in (number, None):
                out.line(message.raw)
                count += 1
                advance(count)


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


@command_of(job, "show")
async def show_job(client: fasti.Client, out: Printer, job_id: Id) -> None:
    """Show one job."""
    _show_job(out, await client.jobs.get(job_id))


async def _follow(client: fasti.Client, out: Printer, job: fasti.Job, *, wait: bool) -> None:
    """Print the job, when it has ended if `wait`; exit code 1 if it was aborted."""
    if wait and not job.is_over:
        with progress(out, job.kind, job.total) as advance:
            job = await client.jobs.wait(job.id, on_progress=lambda now: advance(now.done or 0, now.total))
    _show_job(out, job)
    if job.state == "aborted":
        out.complain(f"the job was aborted: {job.detail or 'no reason given'}")
        raise typer.Exit(REFUSED)


def _show_job(out: Printer, job: fasti.Job) -> None:
    """Print a job; a table shows only what fits."""
    pieces = [piece.get("start") for piece in job.raw.get("slices") or ()]
    more = {"slices": f"{len(pieces)}, from {pieces[0]}"} if pieces else {}
    row = {name: value for name, value in _job_row(job.raw).items() if name != "children"}
    out.one(job.raw, row | more)
