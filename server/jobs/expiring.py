"""Expire jobs: a job reads the slices behind retention, archives them if there is an archive, and the server
drops them.

The server compares the job's counts with its own. Passed slices no longer change, so if the counts differ the
job has missed rows. It drops exactly the slices of the job, the oldest. Without an archive, and if configured so, housekeeping does this alone
(server/rounds/housekeeping.py), except for slices that a caller's job is archiving.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Annotated

import msgspec

from shards.archives import FILES_MAX, ArchivedFile, local_path
from shards.commit import Commit
from shards.dedupe import Refused
from shards.expiry import expire
from shards.handover import sources_of
from shards.jobs import ARCHIVING, EXPIRE, JobRow
from shards.recover import Opened
from timeline.position import END, Position, before
from timeline.slices import Slice

from ..delivery.floor import Floor
from ..engine.writer import Ask
from ..settings.config import Slices
from .garbage import GarbageCollector
from .pipeline import Fault, Job, JobRefused, Pipeline
from .workers import Workers

EXPIRE_SLICES = 100
"""Maximum slices dropped at once, in one job or one batch."""


class DroppedSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job's report on a slice: rows read, including stubs; rows written; the files."""

    start_ms: int
    generation: int
    rows: int
    archived: int
    files: Annotated[list[ArchivedFile], msgspec.Meta(max_length=FILES_MAX)] = []


SETTLE_LOOKS, SETTLE_PAUSE_S = 1_000, 0.005
"""A call waits at most some 5 s for sessions' unfinished messages; housekeeping continues after it."""


class Expiries:
    """Expiry on one server, with or without jobs; `Pipeline` has what jobs share."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Workers,
        garbage: GarbageCollector,
        ask: Ask,
        opened: Opened,
        slices: Slices,
        floor: Floor,
    ) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self._garbage = garbage
        self._ask = ask
        self._opened = opened
        self._slices = slices
        self._floor = floor
        self.dropped = 0
        """Slices dropped without a job."""

    @property
    def need_a_job(self) -> bool:
        """Whether slices behind retention are dropped only by a job."""
        return self._slices.expire_by == "job" or self.has_archive

    @property
    def has_archive(self) -> bool:
        """Whether `slices.archive` is set, so that the server's own job may drop archived slices."""
        return bool(self._slices.archive)

    def due(self) -> list[Slice]:
        """Slices whose retention is over and that nothing needs, oldest first, at most EXPIRE_SLICES."""
        return self._over(self._slices.retention_ms, self._floor.free)[:EXPIRE_SLICES]

    async def settle(self) -> bool:
        """Turn sessions' unfinished messages of the next slices into dead letters, or count them. False: not
        finished yet; the slices wait for it. Raises StoreFailed, Busy."""
        end = self.end_of(self._slices.retention_ms, self._floor.needed)
        if end is None or end <= self._floor.settled:
            return True
        for _ in range(SETTLE_LOOKS):
            if not await self._ask(partial(self._floor.settle, before=end)):
                return True
            await asyncio.sleep(SETTLE_PAUSE_S)
        return False

    def end_of(self, kept_ms: int, needed: Position = END) -> Position | None:
        """The end of the slices before `needed` that the horizon passed at least `kept_ms` ago; None: there
        are none."""
        pieces = self._over(kept_ms, needed)
        return before(pieces[-1].end_ms) if pieces else None

    @property
    def kept(self) -> tuple[Position, int] | None:
        """The end of the oldest slice whose retention is over, and for how many seconds; None: there is
        none."""
        pieces = self._over(self._slices.retention_ms, END)
        if not pieces:
            return None
        passed_s = self._opened.open_batch.running_ms // 1000 - (pieces[0].passed_s or 0)
        return before(pieces[0].end_ms), passed_s - self._slices.retention_ms // 1000

    def _over(self, kept_ms: int, needed: Position) -> list[Slice]:
        running_s = self._opened.open_batch.running_ms // 1000
        return self._opened.directory.expired(running_s, kept_ms // 1000, needed)

    async def create(self, run: str, archive: str = "") -> Job:
        """Create a job on the slices behind retention. `archive`: the caller's archive, if `slices.archive`
        is empty. Raises JobRefused, StoreFailed, Busy."""
        archive = self._archive_for(run, archive)
        is_settled = await self.settle()
        pieces = self.due()
        if not pieces:
            why = "no slice is behind retention"
            if not is_settled:
                why = "unfinished messages in the slices are still being settled; try again"
            raise JobRefused("nothing-to-expire", why)
        job = self._pipeline.create(EXPIRE, run, ARCHIVING, pieces)
        job.row.archive = archive
        job.sources = [sources_of(piece) for piece in pieces]
        return await self._pipeline.created(job)

    async def commit(self, job_id: str, token: str, report: Sequence[DroppedSlice]) -> JobRow:
        """Drop the slices that the job has read. Raises JobRefused, StoreFailed, Busy."""
        async with self._pipeline.step(job_id, token, EXPIRE, ARCHIVING) as job:
            faults = list(_faults(job, report))
            if faults:
                raise JobRefused("bad-manifest", "the job's counts differ from the stored ones", faults)
            job.row.files = [file for one in report for file in one.files]

            def decide(commit: Commit) -> JobRow:
                pieces = self.due()[: len(job.row.slices)]
                if [piece.home for piece in pieces] != [piece.home for piece in job.row.slices]:
                    raise Refused("wrong-state", "the slices are no longer the oldest ones")
                expire(commit, pieces)
                return self._pipeline.done_row(commit, job, sum(one.rows for one in report))

            row: JobRow = await self._pipeline.ask(job, decide)
            await self._pipeline.closed(job, row)
            self._workers.later(self._garbage.sweep())
        return row

    async def drop(self) -> list[Slice]:
        """Drop slices behind retention without a job. Returns the dropped ones. Raises StoreFailed, Busy.

        The writer chooses again: a job may have dropped some meanwhile, or begun to archive them.
        """
        if not self._unclaimed():
            return []
        gone: list[Slice] = await self._ask(lambda commit: expire(commit, self._unclaimed()))
        self.dropped += len(gone)
        return gone

    def _unclaimed(self) -> list[Slice]:
        """Slices behind retention, up to the first one that a job is archiving."""
        jobs = ((piece, self._pipeline.job_at(piece.start_ms)) for piece in self.due())
        return [piece for piece, _ in takewhile(lambda one: one[1] is None or not one[1].row.archive, jobs)]

    def _archive_for(self, run: str, given: str) -> str:
        """The archive of a new job; empty: none. Raises JobRefused."""
        ours = self._slices.archive
        if not given:
            return ours
        try:
            path = local_path(given)
        except ValueError:
            path = ""  # a URL that only the caller's machines can read
        if ours and not (path and os.path.realpath(path) == os.path.realpath(ours)):
            raise JobRefused("archive", f"must be slices.archive, {ours}, or be left out, not {given!r}")
        if not ours and run == "server":
            raise JobRefused("archive", "is for run=caller: the server's own job needs slices.archive")
        if not given.startswith(("/", "file:/")) and "://" not in given:
            raise JobRefused("archive", f"must be an absolute path or a URL, not {given!r}")
        if path and self._pipeline.holds(path):
            raise JobRefused("archive", "must not lie in store.dir")
        return ours or given


def _faults(job: Job, report: Sequence[DroppedSlice]) -> Iterator[Fault]:
    """Differences between the job's report and the stored rows."""
    if [(one.start_ms, one.generation) for one in report] != [tuple(piece.home) for piece in job.row.slices]:
        yield Fault("", "slices", "must be the slices of the job, in order")
        return
    for one, piece in zip(report, job.row.slices, strict=True):
        if one.rows != piece.rows:
            yield Fault(str(one.start_ms), "rows", f"{one.rows} rows were read, {piece.rows} are stored")
        if job.row.archive and not piece.live <= one.archived <= piece.rows:
            yield Fault(
                str(one.start_ms),
                "archived",
                f"{one.archived} rows were written, {piece.live} are live messages",
            )
        in_files = sum(file.rows for file in one.files)
        if job.row.archive and in_files != one.archived:
            yield Fault(str(one.start_ms), "files", f"they have {in_files} rows, {one.archived} were written")
