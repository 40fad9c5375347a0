"""`fasti job ...`, and following one to its end."""

from __future__ import annotations

from typing import Annotated

import typer

import fasti

from .complete import job_ids
from .nouns import Noun, Verb
from .options import with_client
from .output import Printer, Row, progress
from .run import REFUSED

Id = Annotated[str, typer.Argument(metavar="ID", autocompletion=job_ids)]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end, with a progress bar.")]
COLUMNS = ("id", "kind", "state", "slice", "progress", "created_at", "ended_at", "detail")


def _row(job: Row) -> Row:
    piece, progress_ = job.get("slice"), job.get("progress") or {}
    total = progress_.get("total")
    return {
        **job,
        "slice": piece.get("start") if isinstance(piece, dict) else piece,
        "progress": f"{progress_.get('done') or 0:,} of {total:,}" if total else None,
    }


app = Noun("job", "job_id", Id, COLUMNS, _row).app(
    Verb("ls", "List the jobs of the pipeline, the last ones that ended among them.")
)


@app.command()
@with_client()
async def show(client: fasti.Client, out: Printer, job_id: Id) -> None:
    """Show one job."""
    _show(out, await client.jobs.get(job_id))


async def follow(client: fasti.Client, out: Printer, job: fasti.Job, *, wait: bool) -> None:
    """Print the job, when it has ended if `wait`; exit code 1 if it was aborted."""
    if wait and not job.is_over:
        with progress(out, job.kind, job.total) as told:
            job = await client.jobs.wait(job.id, on_progress=lambda now: told(now.done or 0, now.total))
    _show(out, job)
    if job.state == "aborted":
        out.complain(f"the job was aborted: {job.detail or 'no reason given'}")
        raise typer.Exit(REFUSED)


def _show(out: Printer, job: fasti.Job) -> None:
    """Print a job; a table shows only what fits."""
    pieces = [piece.get("start") for piece in job.raw.get("slices") or ()]
    more = {"slices": f"{len(pieces)}, from {pieces[0]}"} if pieces else {}
    row = {name: value for name, value in _row(job.raw).items() if name != "children"}
    out.one(job.raw, row | more)
