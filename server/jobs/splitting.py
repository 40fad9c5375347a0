"""Split jobs: cut a slice at once, copy its rows later (shards/handover.py has the why).

    create    the slice, far enough; a checkpoint to plan from
    begin     the cuts: one batch; then the checkpoint that the job copies from
    commit    the files: checked and ingested in a thread, what changed meanwhile put over, then one batch

A store that other nodes share takes no files: there the rows of the files that were checked go through the
writer, 500 to a group, between everybody's requests, and so into the log that the others read. What
that leaves behind if it is cut off is what an ingestion leaves, rows of no shard, and goes with the job.

A refused commit leaves the job as it was, so that it may correct and commit again, unless it cannot win
any more because its slice has come too near or more rows changed than are noted: then it is aborted.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from shards import handover, keys
from shards.borrow import Counts, counted_key
from shards.commit import Commit
from shards.cuts import Cut
from shards.dedupe import Refused
from shards.errors import Corrupt
from shards.jobs import COMMITTING, MOVING, PLANNING, SPLIT, JobRow
from shards.manifest import MovedFile, manifest_faults
from shards.recover import Opened
from timeline.position import Position, before
from timeline.wheel import Wheel

from ..engine.writer import Busy, Entry
from . import jobfolder
from .pipeline import Job, JobRefused, Pipeline, homes, write_row
from .workers import Workers

log = logging.getLogger(__name__)

MARGIN_MS = 5_000
"""A slice that starts within this of T is too near to be cut, loaded or not."""
OVERWRITE_ROWS = 1_000
"""Stubs that are put over ingested rows in one group."""
BUSY_S = 0.1
TRIES = 600
"""A chunk of rows is offered so often to a writer that is full, a minute long."""


class Splits:
    """The splits of one server; `Pipeline` has what they share with other jobs."""

    def __init__(self, pipeline: Pipeline, workers: Workers, opened: Opened, wheel: Wheel[Entry]) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self._opened = opened
        self._wheel = wheel

    def nearest(self) -> Position:
        """Only slices that start behind this can be cut."""
        return max(self._wheel.loaded, before(self._opened.horizon.clock_ms + MARGIN_MS))

    async def create(self, start_ms: int, parts: int, run: str) -> Job:
        """A job on the slice that starts there. Raises JobRefused, StoreFailed, Busy."""
        piece = self._opened.directory.get(start_ms)
        if piece is None:
            raise JobRefused("not-found", f"no slice starts at {start_ms}")
        if before(piece.start_ms) <= self.nearest():
            raise JobRefused("too-near", "the slice is in memory, or will soon be")
        if next(piece.readable(), None) is None:
            raise JobRefused("wrong-state", "the slice holds nothing")
        shared = handover.shared_sources(self._opened.directory, piece)
        job = self._pipeline.create(SPLIT, run, PLANNING, [piece])
        job.row.parts = parts

        def prepare() -> None:
            found = jobfolder.counted(self._opened.store, [(piece, shard) for shard in shared])
            parts = {shard.number: found[counted_key(piece, shard)] for shard in shared}
            job.known |= {number: part.rows for number, part in parts.items()}
            job.row = with_parts(job.row, parts)

        return await self._pipeline.created(job, prepare)

    async def begin(self, job_id: str, token: str, cuts: Sequence[int]) -> Job:
        """Cut the slice at these instants, ms. Raises JobRefused, StoreFailed, Busy."""
        async with self._pipeline.step(job_id, token, SPLIT, PLANNING) as job:

            def decide(commit: Commit) -> JobRow:
                cut = handover.begin(commit, job.row.slices[0].home, cuts, self.nearest(), job.known)
                # From now on, not from when it is durable: the next cancel may be in this group.
                job.cut = cut
                self._opened.notes.add(cut)
                row = replace(job.row, state=MOVING, children=cut.children, sources=[cut.sources])
                write_row(commit, row)
                return row

            job.row = await self._pipeline.ask(job, decide)
            log.info("job %s cut its slice into %d", job.row.id, len(job.row.children))
            await self._pipeline.prepared(job, partial(jobfolder.begin, self._opened.store, job.folder))
        return job

    async def commit(self, job_id: str, token: str, files: Sequence[MovedFile]) -> JobRow:
        """Take what was copied. Raises JobRefused, StoreFailed, Busy."""
        async with self._pipeline.step(job_id, token, SPLIT, MOVING) as job:
            cut = job.cut
            assert cut is not None, "it has begun"
            faults = manifest_faults(files, cut.children, cut.sources, cut.rows)
            if faults:
                raise JobRefused("bad-manifest", "the manifest does not fit", faults)
            job.row.state = COMMITTING
            try:
                row = await self._take(job, cut, files)
            except (JobRefused, Busy):
                await self._put_back(job, cut)
                raise
            except Exception:
                # What came of it is seen from its row; the job cannot go on.
                job.is_unsettled = True
                raise
            await self._pipeline.closed(job, row)
            self._workers.later(self._workers.compact([keys.slice_range(home) for home in homes(row)]))
        return row

    async def _take(self, job: Job, cut: Cut, files: Sequence[MovedFile]) -> JobRow:
        self._check_near(cut)
        store = self._opened.store
        try:
            faults = await self._workers.in_thread(partial(jobfolder.check, store, job.folder, files))
            if faults:
                raise JobRefused("bad-manifest", "a file does not fit", faults)
            if job.is_ingested:
                # By a commit that was refused then: its rows, and what was put over them, go first.
                await self._pipeline.ask(
                    job, partial(handover.discard, children=cut.children, sources=cut.sources)
                )
                handover.undo_overwrite(cut)
            job.is_ingested = True
            if store.is_shared:
                await self._copy(job, files)
            else:
                await self._workers.in_thread(partial(jobfolder.ingest, store, job.folder, files))
        except OSError as error:
            raise JobRefused("bad-manifest", f"the files cannot be taken: {error}") from error
        left = 1
        while left:
            step = partial(handover.overwrite, cut=cut, limit=OVERWRITE_ROWS)
            left = await self._pipeline.ask(job, step, cost=min(OVERWRITE_ROWS, max(1, len(cut.noted))))

        def decide(commit: Commit) -> JobRow:
            if cut.is_overrun:
                raise Refused("wrong-state", "more rows changed during the job than are noted")
            handover.switch(commit, cut, files, self.nearest())
            return self._pipeline.done_row(commit, job, sum(file.rows for file in files))

        row: JobRow = await self._pipeline.ask(job, decide)
        return row

    async def _copy(self, job: Job, files: Sequence[MovedFile]) -> None:
        """The rows of the files, as groups like all others. Raises JobRefused, StoreFailed, Busy."""
        chunks = jobfolder.rows(self._opened.store, job.folder, files)
        try:
            while chunk := await self._workers.in_thread(partial(next, chunks, None)):
                await self._put(job, chunk)
        except Corrupt as error:
            raise JobRefused("bad-manifest", f"a file cannot be read: {error}") from error
        except Exception:
            await self._workers.in_thread(chunks.close)
            raise

    async def _put(self, job: Job, chunk: list[tuple[bytes, bytes]]) -> None:
        """One group's worth, when there is room: a busy moment is no reason to begin again."""
        size = sum(len(value) for _, value in chunk)
        for left in reversed(range(TRIES)):
            try:
                await self._pipeline.ask(job, partial(handover.copy, rows=chunk), cost=len(chunk), size=size)
            except Busy:
                if not left:
                    raise
                await asyncio.sleep(BUSY_S)
            else:
                return

    def _check_near(self, cut: Cut) -> None:
        if before(cut.start_ms) <= self.nearest():
            raise JobRefused("too-near", "the slice is in memory by now, or will soon be")

    async def _put_back(self, job: Job, cut: Cut) -> None:
        """A commit was refused. What was ingested goes with the next one, or with the job."""
        job.row.state = MOVING
        if cut.is_overrun:
            await self._pipeline.end(job, "more rows changed during the job than are noted")
        elif before(cut.start_ms) <= self.nearest():
            await self._pipeline.end(job, "the slice has come too near")


def with_parts(row: JobRow, parts: Mapping[int, Counts]) -> JobRow:
    """The row with what its slice holds, borrowed shards included; of shared ones only its own part."""
    sources = [
        replace(source, count=parts[source.shard].rows, live=parts[source.shard].live)
        if source.shard in parts
        else source
        for source in row.sources[0]
    ]
    rows, live = sum(source.count for source in sources), sum(source.live for source in sources)
    return replace(row, slices=[replace(row.slices[0], rows=rows, live=live)], sources=[sources])
