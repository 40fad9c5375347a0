"""Expire jobs: a job reads the slices behind retention, and the server drops them.

Without an archive the job counts their rows: passed slices no longer change, so if its counts differ from the
stored ones it has missed rows. With an archive a slice may be dropped when all of its rows are in recorded
and published commits, and the job has read their manifests and files back from the archive in this very job.
If it finds any damaged, nothing is dropped, and the next archive job writes them again.

A job drops exactly its slices, the oldest.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial

from shards import archived
from shards.archived import Archived
from shards.archives import DroppedSlice, FileFault, Manifest
from shards.commit import Commit
from shards.dedupe import Refused
from shards.expiry import expire
from shards.handover import sources_of
from shards.jobs import ARCHIVING, EXPIRE, JobRow
from shards.recover import Opened
from timeline.slices import Home, Slice

from ..delivery.floor import Floor
from ..delivery.retention import SLICES_MAX, Retention
from ..engine.archive import Archive
from ..engine.clock import Clock
from ..engine.garbage import GarbageCollector
from ..engine.workers import Workers
from ..engine.writer import Ask
from ..settings.config import Slices
from .archiving import Archiving
from .pipeline import Fault, Job, JobRefused, Pipeline

log = logging.getLogger(__name__)

DETAIL_MAX = 900
READ_BYTES = 4 << 20
"""Maximum bytes of the commits that a job reads back, unless one slice has more."""
PATIENCE, PATIENCE_S = 28, 21_600
"""The server's own job waits for more slices: an archive's files are read back for each job. It waits for
this part of `slices.retention`, and for 6 h at most."""


class Expiries:
    """Expire jobs of one server; `Pipeline` has what jobs share."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Workers,
        garbage: GarbageCollector,
        ask: Ask,
        opened: Opened,
        slices: Slices,
        floor: Floor,
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self._garbage = garbage
        self._archive = Archive(opened, slices, clock)
        self.retention = Retention(ask, opened, slices, floor, self._archive)
        self.archiving = Archiving(pipeline, workers, self._archive, opened, slices, clock)
        self._patience_s = min(PATIENCE_S, slices.retention_ms // 1_000 // PATIENCE)

    def find(self) -> str:
        """Whether the server's own job has enough to do. Without an archive it never has: a caller may mean
        to archive what it would drop. Raises Corrupt."""
        url, kept = self._archive.url, self.retention.kept
        pieces = self.retention.due(url) if url and kept else []
        is_urgent = self.retention.is_short or len(pieces) == SLICES_MAX
        return EXPIRE if pieces and kept and (is_urgent or kept[1] >= self._patience_s) else ""

    async def create(self, run: str, given: str = "") -> Job:
        """Create a job on the slices behind retention. `given`: the caller's archive, if `slices.archive` is
        empty. Raises JobRefused, StoreFailed, Busy, Corrupt."""
        url = self.archiving.url_for(run, given, is_needed=False)
        is_settled = await self.retention.settle()
        pieces, base = self.retention.due(url), self._archive.row
        if not pieces:
            why = (
                f"no slice behind retention is in the archive {url}"
                if url
                else "no slice is behind retention"
            )
            if not is_settled:
                why = "unfinished messages in the slices are still being settled; try again"
            raise JobRefused("nothing-to-expire", why)
        manifests = list[Manifest]()
        if url:
            look = partial(self._archive.behind, pieces, READ_BYTES)
            manifests, count = await self._workers.in_thread(look)
            pieces = pieces[:count]
        if self._archive.row != base:
            raise JobRefused("job-active", "the archive has just got a commit; try again")
        job = self._pipeline.create(EXPIRE, run, ARCHIVING, pieces, url)
        job.sources = [sources_of(piece) for piece in pieces]
        if url:
            job.base, job.manifests, job.view["manifests"] = base, manifests, manifests
        return await self._pipeline.created(job)

    async def commit(self, job_id: str, token: str, report: Sequence[DroppedSlice]) -> JobRow:
        """Drop the slices that the job has read. Raises JobRefused, StoreFailed, Busy."""
        async with self._pipeline.step(job_id, token, EXPIRE, ARCHIVING) as job:
            found = archived.archived_of(job.manifests)
            faults = list(_faults(job, report, found))
            if faults:
                raise JobRefused("bad-manifest", "the job's counts differ from the stored ones", faults)

            def decide(commit: Commit) -> JobRow:
                pieces = self.retention.due(job.row.archive)[: len(job.row.slices)]
                if [piece.home for piece in pieces] != [piece.home for piece in job.row.slices]:
                    raise Refused("wrong-state", "the slices are no longer the oldest ones")
                if job.row.archive:
                    _check_archive(commit, job, pieces, found)
                expire(commit, pieces)
                return self._pipeline.done_row(commit, job, sum(one.rows for one in report))

            row: JobRow = await self._pipeline.ask(job, decide)
            await self._pipeline.closed(job, row)
            self.retention.full = ""
            self._workers.later(self._garbage.sweep())
        return row

    async def refuse(self, job_id: str, token: str, faults: Sequence[FileFault]) -> JobRow:
        """The job has found files of the archive damaged: nothing is dropped. Raises JobRefused, StoreFailed,
        Busy."""
        async with self._pipeline.step(job_id, token, EXPIRE, ARCHIVING) as job:
            words = "; ".join(f"{fault.path}: {fault.detail}" for fault in faults)[:DETAIL_MAX]
            for path in self._archive.plan_again(job.manifests, [fault.path for fault in faults]):
                log.error("archive: %s cannot be written again: put it back from a copy", path)
            log.error("archive: damaged: %s", words)
            await self._pipeline.abort_job(job, f"the archive is damaged: {words}")
        return job.row


def _check_archive(commit: Commit, job: Job, pieces: Sequence[Slice], found: dict[Home, Archived]) -> None:
    """In the writer: the archive is as the job has read it, and has all of these slices. Raises Refused."""
    if archived.archive_row(commit.get) != job.base:
        raise Refused("wrong-state", "the archive has got another commit")
    for piece in pieces:
        if why := archived.lacks(piece, found.get(piece.home, Archived())):
            raise Refused("bad-manifest", why)


def _faults(job: Job, report: Sequence[DroppedSlice], found: dict[Home, Archived]) -> Iterator[Fault]:
    """Differences between the job's report and what is stored, or recorded of its archive."""
    if [(one.start_ms, one.generation) for one in report] != [tuple(piece.home) for piece in job.row.slices]:
        yield Fault("", "slices", "must be the slices of the job, in order")
        return
    for one, piece in zip(report, job.row.slices, strict=True):
        has = found.get(piece.home, Archived()) if job.row.archive else Archived(piece.rows, one.archived)
        if (one.rows, one.archived) != (has.rows, has.written):
            why = f"{one.rows} rows, {one.archived} archived: not {has.rows}, {has.written}"
            yield Fault(str(one.start_ms), "rows", why)
