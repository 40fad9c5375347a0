"""Views of pipeline jobs: an open one with its files, an ended one with its end."""

from itertools import pairwise

from msgspec import convert

from shards.jobs import ARCHIVE, COMPACT, ENDED, SPLIT, JobRow, PieceRow, SourceRow

from ...jobs.pipeline import Job, lease_of
from ...settings.config import Slices
from ...settings.times import time_text
from . import shapes


def job_view(job: Job | JobRow, slices: Slices) -> shapes.JobView:
    """A job without its token; `slices`: the settings."""
    row = job.row if isinstance(job, Job) else job
    view = shapes.JobView(
        id=row.id,
        kind=row.kind,
        run=row.run,
        state=row.state,
        node=row.node,
        lease_s=lease_of(row),
        created_at=time_text(row.created_ms),
    )
    sources = job.sources if isinstance(job, Job) and job.sources else [[] for _ in row.slices]
    pieces = [_piece_view(piece, some) for piece, some in zip(row.slices, sources, strict=True)]
    if row.kind == SPLIT:
        view.slice, view.parts = pieces[0], row.parts or None
        view.split_above, view.children = slices.split_above, _children(row)
    else:
        view.slices, view.archive = pieces, row.archive or None
    if row.kind == ARCHIVE:
        view.from_ms, view.to_ms, view.number = row.from_ms, row.to_ms, row.number
    if row.kind == COMPACT:
        view.date, view.number = row.date, row.number
    if isinstance(job, Job):
        for name, value in job.view.items():
            setattr(view, name, value)
        view.checkpoint = (job.folder / "plan").resolve().as_uri()
        view.progress = shapes.JobProgress(*job.progress) if job.progress else None
    if row.state in ENDED:
        view.ended_at, view.detail, view.rows = time_text(row.ended_ms), row.detail or None, row.rows
    return view


def _piece_view(piece: PieceRow, sources: list[SourceRow]) -> shapes.JobSlice:
    return shapes.JobSlice(
        start=time_text(piece.start_ms),
        start_ms=piece.start_ms,
        end_ms=piece.end_ms,
        generation=piece.generation,
        count=piece.rows,
        live=piece.live,
        sources=[convert(source, shapes.Source, from_attributes=True) for source in sources],
    )


def _children(row: JobRow) -> list[shapes.Child]:
    """The slices that its slice was cut into."""
    (piece,) = row.slices
    inner = [piece.start_ms + cut for cut in row.cuts]
    spans = pairwise([piece.start_ms, *inner, piece.end_ms]) if inner else ()
    return [shapes.Child(start_ms, end_ms, piece.generation + 1) for start_ms, end_ms in spans]
