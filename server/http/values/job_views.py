"""Views of pipeline jobs: an open one with its files, an ended one with its end."""

from itertools import pairwise

from shards.jobs import ENDED, SPLIT, JobRow, PieceRow, SourceRow

from ...jobs.pipeline import Job, lease_of
from ...settings.config import Slices
from . import shapes
from .views import time_text


def job_view(job: Job | JobRow, slices: Slices) -> shapes.JobView:
    """A job without its token; `slices`: the settings."""
    row = job.row if isinstance(job, Job) else job
    view: shapes.JobView = {
        "id": row.id,
        "kind": row.kind,
        "run": row.run,
        "state": row.state,
        "node": row.node,
        "lease_s": lease_of(row),
        "created_at": time_text(row.created_ms),
    }
    sources = job.sources if isinstance(job, Job) else [[] for _ in row.slices]
    pieces = [_piece_view(piece, some) for piece, some in zip(row.slices, sources, strict=True)]
    if row.kind == SPLIT:
        view["slice"] = pieces[0]
        view["parts"] = row.parts or None
        view["split_above"] = slices.split_above
        view["children"] = _children(row)
    else:
        view["slices"] = pieces
        view["archive"] = row.archive or None
    if isinstance(job, Job):
        _add_files(view, job)
    if row.state in ENDED:
        view["ended_at"] = time_text(row.ended_ms)
        view["detail"] = row.detail or None
        view["rows"] = row.rows
    return view


def _add_files(view: shapes.JobView, job: Job) -> None:
    """Add its files, and its progress."""
    view["checkpoint"] = (job.folder / "plan").resolve().as_uri()
    done, total = job.progress or (0, 0)
    view["progress"] = {"done": done, "total": total} if job.progress else None


def _piece_view(piece: PieceRow, sources: list[SourceRow]) -> shapes.JobSlice:
    return {
        "start": time_text(piece.start_ms),
        "start_ms": piece.start_ms,
        "end_ms": piece.end_ms,
        "generation": piece.generation,
        "count": piece.rows,
        "live": piece.live,
        "sources": [
            {
                "start_ms": source.start_ms,
                "generation": source.generation,
                "shard": source.shard,
                "structure": source.structure,
                "count": source.count,
                "live": source.live,
            }
            for source in sources
        ],
    }


def _children(row: JobRow) -> list[shapes.Child]:
    """The slices that its slice was cut into."""
    (piece,) = row.slices
    inner = [piece.start_ms + cut for cut in row.cuts]
    spans = pairwise([piece.start_ms, *inner, piece.end_ms]) if inner else ()
    return [
        {"start_ms": start_ms, "end_ms": end_ms, "generation": piece.generation + 1}
        for start_ms, end_ms in spans
    ]
