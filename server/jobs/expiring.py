"""Expire jobs: what is behind retention is read by the job, archived if there is an archive, and then
dropped.

The server counts what the job says that it has read against what it holds; what was passed does not change
any more, so the two are equal or the job has missed something. It drops exactly the slices of the job, the
oldest. Without an archive, and if the server is to expire by itself, housekeeping does this alone
(server/rounds/housekeeping.py).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from shards.borrow import Counts, counted_key
from shards.commit import Commit
from shards.dedupe import Refused
from shards.expiry import expire
from shards.jobs import ARCHIVING, EXPIRE, JobRow, PieceRow
from shards.manifest import Fault
from shards.recover import Opened
from timeline.position import before
from timeline.retention import expired_slices
from timeline.slices import Slice

from ..engine.writer import Ask
from ..settings.config import Slices
from . import jobfolder
from .leavings import Leavings
from .pipeline import Job, JobRefused, Pipeline
from .workers import Workers

EXPIRE_SLICES = 100
"""That go at once, in one job or one batch."""


class DroppedSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the job says of a slice: rows that it read, stubs too; rows that it wrote; the files."""

    start_ms: int
    generation: int
    rows: int
    archived: int
    files: list[dict[str, str | int]] = []


class Expiries:
    """What expires on one server, with a job or without; `Pipeline` has what jobs share."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Workers,
        leavings: Leavings,
        ask: Ask,
        opened: Opened,
        slices: Slices,
    ) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self._leavings = leavings
        self._ask = ask
        self._opened = opened
        self._slices = slices
        self.dropped = 0
        """Slices that went without a job."""

    @property
    def need_a_job(self) -> bool:
        """Whether slices behind retention go only with a job."""
        return self._slices.expire_by == "job" or bool(self._slices.archive)

    def due(self) -> list[Slice]:
        """The slices whose retention is over, the oldest first, as many as may go at once."""
        running_s = self._opened.running_ms // 1000
        retention_s = self._slices.retention_ms // 1000
        return expired_slices(self._opened.directory, running_s, retention_s)[:EXPIRE_SLICES]

    async def create(self, run: str) -> Job:
        """A job on what retention lets go. Raises JobRefused, StoreFailed, Busy."""
        pieces = self.due()
        if not pieces:
            raise JobRefused("nothing-to-expire", "no slice is behind retention")
        job = self._pipeline.create(EXPIRE, run, ARCHIVING, pieces)
        count = self._counting(job, pieces)

        def prepare() -> None:
            count()
            job.row.slices = [
                self._whole(row, piece, job.counted)
                for row, piece in zip(job.row.slices, pieces, strict=True)
            ]

        return await self._pipeline.created(job, prepare)

    async def commit(self, job_id: str, token: str, said: Sequence[DroppedSlice]) -> JobRow:
        """Drop what was read. Raises JobRefused, StoreFailed, Busy."""
        async with self._pipeline.step(job_id, token, EXPIRE, ARCHIVING) as job:
            faults = list(_faults(job, said, is_archived=bool(self._slices.archive)))
            if faults:
                raise JobRefused("bad-manifest", "the manifest does not fit", faults)

            def decide(commit: Commit) -> JobRow | None:
                pieces = self.due()[: len(job.row.slices)]
                if [piece.home for piece in pieces] != [piece.home for piece in job.row.slices]:
                    raise Refused("wrong-state", "the slices are not the oldest ones any more")
                if job.epoch != self._opened.directory.epoch:
                    return None
                expire(commit, pieces, job.counted)
                return self._pipeline.done_row(commit, job, sum(one.rows for one in said))

            row: JobRow | None = await self._pipeline.ask(job, decide)
            while row is None:
                # The directory was read anew since it was counted.
                await self._pipeline.prepared(job, self._counting(job, self.due()[: len(said)]))
                row = await self._pipeline.ask(job, decide)
            await self._pipeline.closed(job, row)
            self._workers.later(self._leavings.sweep())
        return row

    async def drop(self) -> list[Slice]:
        """Drop what is behind retention without a job; what was dropped. Raises StoreFailed, Busy.

        It is counted outside of the writer, so it is chosen again in there: what a job has dropped meanwhile
        is not there any more, and of a directory that was read anew nothing has been counted: the next call
        does it.
        """
        directory, chosen = self._opened.directory, self.due()
        if not chosen:
            return []
        epoch = directory.epoch
        counted = await self._workers.in_thread(partial(self._borrowed, chosen))
        gone: list[Slice] = await self._ask(
            lambda commit: expire(commit, chosen, counted) if directory.epoch == epoch else []
        )
        self.dropped += len(gone)
        return gone

    def _counting(self, job: Job, pieces: Sequence[Slice]) -> Callable[[], None]:
        """What finds out, in a thread, what the slices of a job hold of borrowed shards."""
        epoch = self._opened.directory.epoch

        def count() -> None:
            job.counted, job.epoch = self._borrowed(pieces), epoch

        return count

    def _borrowed(self, pieces: Sequence[Slice]) -> dict[bytes, Counts]:
        """What slices behind the horizon hold of borrowed shards. Blocks."""
        borrowed = [(piece, shard) for piece in pieces for shard in piece.borrowed.values()]
        return jobfolder.counted(self._opened.store, borrowed)

    def _whole(self, row: PieceRow, piece: Slice, counted: dict[bytes, Counts]) -> PieceRow:
        """The row of a slice with what it borrows, and without its retries, which are no messages. Blocks."""
        parts = [counted[counted_key(piece, shard)] for shard in piece.borrowed.values()]
        rows, live = row.rows + sum(p.rows for p in parts), row.live + sum(p.live for p in parts)
        retries = self._opened.reader.count_retries(before(piece.start_ms), before(piece.end_ms))
        return msgspec.structs.replace(row, rows=rows, live=live - retries)


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
