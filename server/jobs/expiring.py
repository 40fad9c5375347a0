"""Expire jobs: what is behind retention is read by the job, archived if there is an archive, and then
dropped.

The server counts what the job says that it has read against what it holds; what was passed does not change
any more, so the two are equal or the job has missed something. It drops exactly the slices of the job, the
oldest. Without an archive, and if the server is to expire by itself, housekeeping does this alone
(server/housekeeping.py).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from shards.borrow import Counts, counted_key
from shards.commit import Commit
from shards.dedupe import Refused
from shards.jobs import ARCHIVING, EXPIRE, JobRow, PieceRow
from shards.manifest import Fault
from timeline.slices import Slice

from . import jobfolder
from .pipeline import Job, JobRefused, Pipeline


class DroppedSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the job says of a slice: rows that it read, stubs too; rows that it wrote; the files."""

    start_ms: int
    generation: int
    rows: int
    archived: int
    files: list[dict[str, str | int]] = []


async def create(pipeline: Pipeline, run: str) -> Job:
    """A job on what retention lets go. Raises JobRefused, StoreFailed, Busy."""
    pieces = pipeline.expired()
    if not pieces:
        raise JobRefused("nothing-to-expire", "no slice is behind retention")
    job = pipeline.create(EXPIRE, run, ARCHIVING, pieces)
    count = _counting(pipeline, job, pieces)

    def prepare() -> None:
        count()
        job.row.slices = [
            _whole(row, piece, job.counted) for row, piece in zip(job.row.slices, pieces, strict=True)
        ]

    return await pipeline.created(job, prepare)


async def commit(pipeline: Pipeline, job_id: str, token: str, said: Sequence[DroppedSlice]) -> JobRow:
    """Drop what was read. Raises JobRefused, StoreFailed, Busy."""
    async with pipeline.step(job_id, token, EXPIRE, ARCHIVING) as job:
        faults = list(_faults(job, said, is_archived=bool(pipeline.app.core.config.slices.archive)))
        if faults:
            raise JobRefused("bad-manifest", "the manifest does not fit", faults)

        def decide(commit: Commit) -> JobRow | None:
            pieces = pipeline.expired()[: len(job.row.slices)]
            if [piece.home for piece in pieces] != [piece.home for piece in job.row.slices]:
                raise Refused("wrong-state", "the slices are not the oldest ones any more")
            if job.epoch != pipeline.app.core.directory.epoch:
                return None
            commit.expire(pieces, job.counted)
            return pipeline.done_row(commit, job, sum(one.rows for one in said))

        row: JobRow | None = await pipeline.ask(job, decide)
        while row is None:
            # The directory was read anew since it was counted.
            await pipeline.prepared(job, _counting(pipeline, job, pipeline.expired()[: len(said)]))
            row = await pipeline.ask(job, decide)
        await pipeline.closed(job, row)
        pipeline.later(pipeline.leavings.sweep())
    return row


def _counting(pipeline: Pipeline, job: Job, pieces: Sequence[Slice]) -> Callable[[], None]:
    """What finds out, in a thread, what the slices of a job hold of borrowed shards."""
    epoch = pipeline.app.core.directory.epoch

    def count() -> None:
        job.counted, job.epoch = borrowed_counts(pipeline, pieces), epoch

    return count


def borrowed_counts(pipeline: Pipeline, pieces: Sequence[Slice]) -> dict[bytes, Counts]:
    """What slices behind the horizon hold of borrowed shards. Blocks."""
    borrowed = [(piece, shard) for piece in pieces for shard in piece.borrowed.values()]
    return jobfolder.counted(pipeline.app.core.opened.store, borrowed)


async def expire(pipeline: Pipeline) -> list[Slice]:
    """Drop what is behind retention without a job; what was dropped. Raises StoreFailed, Busy.

    It is counted outside of the writer, so it is chosen again in there: what a job has dropped meanwhile is
    not there any more, and of a directory that was read anew nothing has been counted: the next call does it.
    """
    directory, chosen = pipeline.app.core.directory, pipeline.expired()
    if not chosen:
        return []
    epoch = directory.epoch
    counted = await pipeline.in_thread(partial(borrowed_counts, pipeline, chosen))
    gone: list[Slice] = await pipeline.app.ask(
        lambda commit: commit.expire(chosen, counted) if directory.epoch == epoch else []
    )
    return gone


def _whole(row: PieceRow, piece: Slice, counted: dict[bytes, Counts]) -> PieceRow:
    """With what it borrows."""
    parts = [counted[counted_key(piece, shard)] for shard in piece.borrowed.values()]
    rows, live = row.rows + sum(p.rows for p in parts), row.live + sum(p.live for p in parts)
    return msgspec.structs.replace(row, rows=rows, live=live)


def _faults(job: Job, said: Sequence[DroppedSlice], *, is_archived: bool) -> Iterator[Fault]:
    """Where the job has not read what is stored."""
    if [(one.start_ms, one.generation) for one in said] != [tuple(piece.home) for piece in job.row.slices]:
        yield Fault("", "slices", "are not those of the job, in their order")
        return
    for one, piece in zip(said, job.row.slices, strict=True):
        if one.rows != piece.rows:
            yield Fault(str(one.start_ms), "rows", f"{one.rows} were read, {piece.rows} are stored")
        if is_archived and not piece.live <= one.archived <= piece.rows:
            yield Fault(
                str(one.start_ms), "archived", f"{one.archived} were written, {piece.live} are messages"
            )
