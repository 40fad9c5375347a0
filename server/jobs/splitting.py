"""Split jobs: cut a slice into narrower ones, in one batch (shards/handover.py says why).

    create    seals and watches the slice, if it is far enough; takes a checkpoint for counting
    commit    takes the cuts and the job's counts of each piece: one batch, with the changes since

A refused commit leaves the job unchanged, so that it can correct its numbers and commit again. The job is
aborted if no commit can succeed any longer: its slice is too near, or too many rows have changed.
"""

import logging
import time
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from shards import handover
from shards.commit import Commit
from shards.dedupe import Refused
from shards.handover import Tally
from shards.jobs import PLANNING, SPLIT, JobRow
from shards.recover import Opened
from shards.store import Store
from timeline.position import Position, before
from timeline.slices import Counts
from timeline.wheel import Wheel

from ..engine.workers import Workers
from ..engine.writer import Entry
from .pipeline import Job, JobRefused, Pipeline

log = logging.getLogger(__name__)

MARGIN_MS = 5_000
"""A slice that starts within this of T is too near to be cut, loaded or not."""
STEP_ROWS = 1_000
PAUSE_S = 0.001
"""Pause of the thread after each step: it shares the interpreter with the event loop."""
ROUNDS_MAX = 100
"""Maximum rounds of counting new rows. Each round has a small part of the one before."""


class Splits:
    """The splits of one server; `Pipeline` has what they share with other jobs."""

    def __init__(self, pipeline: Pipeline, workers: Workers, opened: Opened, wheel: Wheel[Entry]) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self._opened = opened
        self._wheel = wheel

    def nearest(self) -> Position:
        """Slices that start behind this position can be cut."""
        return max(self._wheel.loaded, before(self._opened.horizon.clock_ms + MARGIN_MS))

    async def create(self, start_ms: int, parts: int, run: str) -> Job:
        """Create a job on the slice that starts there. Raises JobRefused, StoreFailed, Busy."""
        piece = self._opened.directory.get(start_ms)
        if piece is None:
            raise JobRefused("not-found", f"no slice starts at {start_ms}")
        if before(piece.start_ms) <= self.nearest():
            raise JobRefused("too-near", "the slice is in memory or will be soon")
        if next(piece.readable(), None) is None:
            raise JobRefused("wrong-state", "the slice is empty")
        job = self._pipeline.create(SPLIT, run, PLANNING, [piece])
        job.row.parts = parts

        def begin(commit: Commit) -> None:
            job.piece, sources = handover.begin(commit, piece.home, self.nearest())
            job.sources = [sources]
            count, live = job.piece.count, job.piece.live
            job.row.slices = [replace(job.row.slices[0], rows=count, live=live)]

        return await self._pipeline.created(job, begin)

    async def commit(self, job_id: str, token: str, cuts: Sequence[int], report: Sequence[Counts]) -> JobRow:
        """Cut the slice at these instants, ms; `report`: the job's counts for each piece.

        Raises JobRefused, StoreFailed, Busy.
        """
        async with self._pipeline.step(job_id, token, SPLIT, PLANNING) as job:
            assert job.piece is not None, "it has begun"
            if len(report) != len(cuts) + 1:
                text = f"{len(cuts)} cuts make {len(cuts) + 1} pieces, not {len(report)}"
                raise JobRefused("bad-manifest", text)
            try:
                row = await self._cut(job, Tally(job.piece, cuts), report)
            except JobRefused:
                await self._end_if_lost(job)
                raise
            await self._pipeline.closed(job, row)
        return row

    async def _cut(self, job: Job, tally: Tally, report: Sequence[Counts]) -> JobRow:
        def decide(commit: Commit) -> JobRow | None:
            children = handover.cut(commit, tally, report, self.nearest())
            if children is None:
                return None
            rows, start_ms = sum(child.count for child in children), tally.piece.start_ms
            return self._pipeline.done_row(commit, job, rows, [at - start_ms for at in tally.cuts])

        for _ in range(ROUNDS_MAX):
            row: JobRow | None = await self._pipeline.ask(job, decide)
            if row is not None:
                return row
            try:
                await self._workers.in_thread(partial(_count, self._opened.store, tally))
            except Refused as error:
                raise JobRefused(error.why, str(error)) from None
        raise JobRefused("wrong-state", "messages arrive faster than they can be counted")

    async def _end_if_lost(self, job: Job) -> None:
        """A commit was refused: end the job if no other commit can succeed."""
        piece = job.piece
        assert piece is not None, "it has begun"
        assert piece.watch is not None, "the job is open"
        if self._opened.directory.get(piece.start_ms) is not piece:
            await self._pipeline.abort_job(job, "the slice changed after the job began")
        elif piece.watch.is_overrun:
            await self._pipeline.abort_job(job, handover.OVERRUN)
        elif before(piece.start_ms) <= self.nearest():
            await self._pipeline.abort_job(job, "the slice is due too soon")


def _count(store: Store, tally: Tally) -> None:
    """Count the rows written since the job began, in steps. Blocks; raises Refused."""
    for _ in tally.step(store, STEP_ROWS):
        time.sleep(PAUSE_S)
