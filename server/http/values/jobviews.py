"""How jobs are shown: the types of the answers (as in shapes.py), and the answers."""

from pathlib import Path
from typing import NotRequired, TypedDict

from shards.jobs import COMMITTING, ENDED, MOVING, SPLIT, JobRow, PieceRow, SourceRow

from ...app import App
from ...jobs.pipeline import Job, lease_of
from .scalars import Cursor, Id, Instant
from .views import time_text


class Source(TypedDict):
    """A shard that a job reads."""

    start_ms: int
    generation: int
    shard: int
    structure: int


class CountedSource(Source):
    """With what the slice holds of it."""

    count: int
    live: int


class JobSlice(TypedDict):
    """A slice that a job is about."""

    start: Instant
    start_ms: int
    end_ms: int
    generation: int
    count: int
    live: int
    sources: list[CountedSource]


class Child(TypedDict):
    """A slice that a split has made."""

    start_ms: int
    end_ms: int
    generation: int
    sources: list[Source]


class Progress(TypedDict):
    """In whatever the job counts."""

    done: int
    total: int


class JobView(TypedDict):
    """A job. A split has `slice`, an expiry `slices`; an open one has files, one that has ended an end."""

    id: Id
    kind: str
    run: str
    state: str
    node: int
    lease_s: int
    created_at: Instant
    token: NotRequired[str]
    slice: NotRequired[JobSlice]
    parts: NotRequired[int | None]
    split_above: NotRequired[int]
    children: NotRequired[list[Child]]
    slices: NotRequired[list[JobSlice]]
    archive: NotRequired[str | None]
    checkpoint: NotRequired[str]
    output: NotRequired[str]
    progress: NotRequired[Progress | None]
    ended_at: NotRequired[Instant]
    detail: NotRequired[str | None]
    rows: NotRequired[int]


class JobPage(TypedDict):
    """Jobs, open ones first."""

    jobs: list[JobView]
    next: Cursor | None


class Lease(TypedDict):
    """A job that goes on."""

    id: Id
    state: str
    lease_s: int


def job_view(app: App, job: Job | JobRow) -> JobView:
    """A job as everybody may see it."""
    row = job.row if isinstance(job, Job) else job
    view: JobView = {
        "id": row.id,
        "kind": row.kind,
        "run": row.run,
        "state": row.state,
        "node": row.node,
        "lease_s": lease_of(row),
        "created_at": time_text(row.created_ms),
    }
    pieces = [
        _piece_view(piece, row.sources[index] if index < len(row.sources) else [])
        for index, piece in enumerate(row.slices)
    ]
    if row.kind == SPLIT:
        view["slice"] = pieces[0]
        view["parts"] = row.parts or None
        view["split_above"] = app.core.config.slices.split_above
        view["children"] = [_child_view(child, row.sources[0]) for child in row.children]
    else:
        view["slices"] = pieces
        view["archive"] = app.core.config.slices.archive or None
    if isinstance(job, Job):
        _add_files(view, job)
    if row.state in ENDED:
        view["ended_at"] = time_text(row.ended_ms)
        view["detail"] = row.detail or None
        view["rows"] = row.rows
    return view


def _add_files(view: JobView, job: Job) -> None:
    """Where its files are, and how far it is."""
    is_begun = job.row.kind == SPLIT and job.row.state in (MOVING, COMMITTING)
    view["checkpoint"] = _uri(job.folder / ("checkpoint" if is_begun else "plan"))
    if is_begun:
        view["output"] = _uri(job.folder / "out")
    done, total = job.progress or (0, 0)
    view["progress"] = {"done": done, "total": total} if job.progress else None


def _piece_view(piece: PieceRow, sources: list[SourceRow]) -> JobSlice:
    return {
        "start": time_text(piece.start_ms),
        "start_ms": piece.start_ms,
        "end_ms": piece.end_ms,
        "generation": piece.generation,
        "count": piece.rows,
        "live": piece.live,
        "sources": [
            {**_source_view(source), "count": source.count, "live": source.live} for source in sources
        ],
    }


def _child_view(child: PieceRow, sources: list[SourceRow]) -> Child:
    return {
        "start_ms": child.start_ms,
        "end_ms": child.end_ms,
        "generation": child.generation,
        "sources": [_source_view(source) for source in sources],
    }


def _source_view(source: SourceRow) -> Source:
    return {
        "start_ms": source.start_ms,
        "generation": source.generation,
        "shard": source.shard,
        "structure": source.structure,
    }


def _uri(path: Path) -> str:
    return path.resolve().as_uri()
