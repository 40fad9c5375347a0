"""The life cycle of pipeline jobs: allowed next steps, and cleaning up after a dead one.

    split      planning ----- commit --> done                             server/jobs/splitting.py
    expire     archiving ---- commit --> done                             server/jobs/expiring.py
    archive    archiving ---- commit --> publishing --- published --> done    server/jobs/archiving.py
    compact    compacting --- commit --> publishing --- published --> done
    any, at any time                 --> aborted, with the reason in words

A job belongs to the holder of its token as long as the lease is renewed: every call renews it, and so does
`renew`. Without renewal it is aborted, also at a restart of the server. Nothing has to be undone then: a job
changes the timeline in one batch, which also marks it as done.

Decisions run in the writer; long work (checkpoints, counting, compaction) in threads. The state may change
between the two, so the writer checks everything again. If the store fails during a call, the job's fate is
read from its row once the store is back: until then it is *unsettled*.

Bounds: 16 open jobs, one per slice, and one that works on the archive; `WATCH_MAX` rows that become stubs
during one split; the last 100 ended jobs are kept.
"""

import logging
import secrets
import shutil
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from shards import handover, keys
from shards.archived import ArchiveRow
from shards.archives import ArchivedFile, Manifest
from shards.commit import Commit
from shards.dedupe import Refused
from shards.errors import ShardsError, StoreFailed
from shards.garbage import leave
from shards.jobs import (
    ABORTED,
    DONE,
    ENDED,
    JobRow,
    PieceRow,
    SourceRow,
    job_key,
    job_value,
    stored_job,
    stored_jobs,
)
from shards.recover import Opened
from shards.store import Store, Table
from timeline.slices import Slice

from ..engine.clock import Clock
from ..engine.commit_hook import ignore
from ..engine.workers import Workers
from ..engine.writer import Ask, Busy, Decide, Writer
from .launch import Launcher

log = logging.getLogger(__name__)

LEASE_S = 60
OWN_LEASE_S = 600
"""Lease of the server's own child. Its exit is noticed at once, so this is only for a child that hangs; at
the lowest priority it may get no processor for minutes while others keep the machine busy."""
OPEN_MAX = 16
NOTHING = "nothing-to-do"
"""The problem of a job that would have no work."""
ENDED_MAX = 100


class Fault(NamedTuple):
    """A wrong value in a job's report on a slice."""

    slice: str
    check: str
    detail: str


class JobRefused(Exception):
    """A call that a job does not allow. `slug`: the problem's name; `faults`: in its report."""

    def __init__(self, slug: str, detail: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail)
        self.slug = slug
        self.faults = faults


@dataclass(slots=True, eq=False)
class Job:
    """An open job."""

    row: JobRow
    token: str
    lease_until: float
    """In monotonic seconds."""
    folder: Path
    sources: list[list[SourceRow]]
    """The shards to read, for each of its slices; empty until the job knows them."""
    piece: Slice | None = None
    """The slice of a split, which is watched."""
    is_busy: bool = False
    is_unsettled: bool = False
    orphaned: str = ""
    """How the server's own program for it has ended; empty: it has not."""
    progress: tuple[int, int] | None = None
    base: ArchiveRow | None = None
    """The archive's state at the begin of a job that works on it: still the same at its commit."""
    again: Manifest | None = None
    """The commit that an archive job repairs."""
    files: list[ArchivedFile] = field(default_factory=list)
    """Of the archive: files that the job may replace."""
    manifests: list[Manifest] = field(default_factory=list)
    """Of the archive: commits that an expiry reads back."""
    view: dict[str, Any] = field(default_factory=dict)
    """What only jobs of its kind are shown with."""

    def covers(self, at_ms: int) -> bool:
        return any(piece.start_ms <= at_ms < piece.end_ms for piece in self.row.slices)


class Pipeline:
    """All jobs of one server: what the kinds share."""

    def __init__(
        self,
        ask: Ask,
        clock: Clock,
        writer: Writer,
        opened: Opened,
        workers: Workers,
        launcher: Launcher,
        *,
        node: int,
        folder: Path,
    ) -> None:
        """`folder`: has a folder for each job. On the store's file system a checkpoint is only links."""
        self._ask = ask
        self._clock = clock
        self._writer = writer
        self._store = opened.store
        self._workers = workers
        self._node = node
        self._folder = folder
        self._launcher = launcher
        self.outcomes: Tally[tuple[str, str]] = Tally()
        """Ended jobs by kind and state."""
        self.rows: Tally[str] = Tally()
        """Rows cut and dropped, by kind of job."""
        self._jobs: dict[str, Job] = {}
        self._ended: dict[str, JobRow] = {}
        self._left: list[JobRow] = []
        """Open jobs from before the restart that must still be aborted."""

    # -- the server's side

    async def start(self) -> None:
        """Abort jobs that were open when the server ended, and delete the files of all jobs."""
        rows = sorted(stored_jobs(self._store), key=lambda row: row.ended_ms)
        self._ended = {row.id: row for row in rows if row.state in ENDED}
        self._left = [row for row in rows if row.state not in ENDED]
        await self._workers.in_thread(partial(_remove, self._folder))
        await self.sweep()

    async def stop(self) -> None:
        """Kill the child. Open jobs are aborted at the next start."""
        await self._launcher.stop()

    async def sweep(self) -> None:
        """Run now and then: end jobs whose lease is over, that were overrun, or that are unsettled."""
        if self._writer.broken is not None:
            return
        try:
            while self._left:
                row = self._left[-1]
                ended = await self._ask(partial(self._write_abort, row=row, detail="the server restarted"))
                self._left.pop()
                self._remember(ended)
                log.info("job %s: aborted: %s", row.id, ended.detail)
            for job_id in list(self._jobs):
                # It may have ended while another was handled: its row would be overwritten.
                job = self._jobs.get(job_id)
                if job is not None and not job.is_busy:
                    await self._look_at(job)
        except (ShardsError, Busy) as error:
            log.warning("jobs: check postponed: %s", error)

    # -- look-ups

    @property
    def open(self) -> int:
        """Number of open jobs."""
        return len(self._jobs)

    def get(self, job_id: str) -> Job | JobRow | None:
        """An open job, the row of an ended one, or None."""
        return self._jobs.get(job_id) or self._ended.get(job_id)

    def log_of(self, job_id: str) -> str | None:
        """The end of the output of the server's own program for it; None if none is kept."""
        return self._launcher.log_of(job_id)

    def __iter__(self) -> Iterator[Job | JobRow]:
        """Open jobs, then ended ones, each newest first."""
        yield from reversed(list(self._jobs.values()))
        yield from reversed(list(self._ended.values()))

    def holds(self, path: str) -> bool:
        """Whether a path lies in the data directory, also by way of a link."""
        return Path(path).resolve().is_relative_to(self._folder.parent.resolve())

    def job_at(self, at_ms: int) -> Job | None:
        """The open job on the slice at `at_ms`."""
        return next((job for job in self._jobs.values() if job.covers(at_ms)), None)

    # -- calls of both kinds

    async def abort(self, job_id: str, token: str, detail: str) -> JobRow:
        """Abort the job. Raises JobRefused, StoreFailed, Busy."""
        async with self.step(job_id, token) as job:
            await self.abort_job(job, detail or "a client aborted it")
        return job.row

    async def renew(self, job_id: str, token: str, progress: tuple[int, int] | None) -> Job:
        """Renew the lease. Raises JobRefused."""
        job = await self._checked(job_id, token)
        job.lease_until = self._clock.mono() + lease_of(job.row)
        job.progress = progress or job.progress
        return job

    # -- for splitting.py, archiving.py and expiring.py

    def create(self, kind: str, run: str, state: str, pieces: Sequence[Slice], archive: str = "") -> Job:
        """A new job, marked as busy, in RAM only. `archive`: what it works on. Raises JobRefused."""
        if len(self._jobs) >= OPEN_MAX:
            raise JobRefused("over-quota", f"the limit of {OPEN_MAX} open jobs is reached")
        for piece in pieces:
            if other := self.job_at(piece.start_ms):
                raise JobRefused("job-active", f"job {other.row.id} has the slice at {piece.start_ms}")
        if other := next((job for job in self._jobs.values() if archive and job.row.archive), None):
            raise JobRefused("job-active", f"job {other.row.id} has the archive")
        if run == "server" and (why := self._launcher.why_not(kind)):
            raise JobRefused(*why)
        job_id = secrets.token_hex(16)
        slices = [PieceRow(p.start_ms, p.end_ms, p.generation, p.count, p.live) for p in pieces]
        row = JobRow(job_id, kind, run, state, self._node, self._clock.wall_ms(), slices, archive=archive)
        until = self._clock.mono() + lease_of(row)
        job = Job(
            row, secrets.token_hex(16), until, self._folder / job_id, [[] for _ in pieces], is_busy=True
        )
        self._jobs[job_id] = job
        if run == "server":
            self._launcher.claim(job_id)
        return job

    async def created(self, job: Job, begin: Callable[[Commit], None] = ignore) -> Job:
        """Store its row and `begin` in the writer; take a checkpoint in a thread; start its child.

        Raises as `ask`.
        """
        try:
            await self._noted(job, begin)
            await self._planned(job)
            first = next((f" of the slice at {piece.start_ms}" for piece in job.row.slices), "")
            log.info("job %s: started, %s%s", job.row.id, job.row.kind, first)
            if job.row.run == "server":
                await self._launcher.start(job.row.id, job.row.kind, job.token, self._child_ended)
        except OSError as error:
            await self.abort_job(job, f"the child cannot be started: {error}")
            raise JobRefused("no-spark", str(error)) from error
        finally:
            self._rest(job)
        return job

    async def _noted(self, job: Job, begin: Callable[[Commit], None]) -> None:
        """Store the row of a new job; forget the job if that fails. Raises as `ask`."""

        def decide(commit: Commit) -> None:
            begin(commit)
            write_row(commit, job.row)

        try:
            await self.ask(job, decide)
        except (JobRefused, Busy):
            del self._jobs[job.row.id]
            self._launcher.end(job.row.id, is_done=False)
            raise

    async def _planned(self, job: Job) -> None:
        """Take the checkpoint in a thread; if it fails the job ends. Raises StoreFailed."""
        try:
            await self._workers.in_thread(partial(_plan, self._store, job.folder))
        except (ShardsError, OSError) as error:
            await self.abort_job(job, f"the server failed to prepare it: {error}")
            raise StoreFailed(str(error)) from error

    @asynccontextmanager
    async def step(self, job_id: str, token: str, kind: str = "", state: str = "") -> AsyncIterator[Job]:
        """Context of a call with the token, one at a time, in this state ("": any). Raises JobRefused."""
        job = await self._checked(job_id, token)
        if job.is_busy:
            raise JobRefused("wrong-state", "another call for this job is in progress")
        if kind and (job.row.kind, job.row.state) != (kind, state):
            raise JobRefused("wrong-state", f"the job is a {job.row.kind} in state {job.row.state}")
        job.is_busy = True
        try:
            yield job
        finally:
            self._rest(job)

    async def ask(self, job: Job, decide: Decide) -> Any:
        """The writer's answer, once it is durable. Raises JobRefused, StoreFailed, Busy."""
        try:
            return await self._ask(decide)
        except Refused as error:
            raise JobRefused(error.why, str(error)) from None
        except Exception as error:
            job.is_unsettled |= not isinstance(error, Busy)
            raise

    def done_row(self, commit: Commit, job: Job, rows: int, cuts: Sequence[int] = ()) -> JobRow:
        """Write that the job is done, in the batch that does its work."""
        return self._write_end(commit, replace(job.row, state=DONE, rows=rows, cuts=list(cuts)))

    async def abort_job(self, job: Job, detail: str) -> None:
        """Abort the job. Raises StoreFailed, Busy: then it is still open."""
        job.is_busy = True
        try:
            row = await self.ask(job, partial(self._write_abort, row=job.row, detail=detail))
        finally:
            self._rest(job)
        await self.closed(job, row)

    async def closed(self, job: Job, row: JobRow) -> None:
        """The job's end is durable: keep only its row."""
        if self._jobs.pop(row.id, None) is None:
            return
        job.row = row
        self._remember(row)
        if job.piece is not None:
            job.piece.watch = None
        self._launcher.end(row.id, is_done=row.state == DONE)
        self.outcomes[row.kind, row.state] += 1
        self.rows[row.kind] += row.rows
        log.info("job %s: %s: %s", row.id, row.state, row.detail or f"{row.rows} rows")
        await self._workers.in_thread(partial(_remove, job.folder))

    # -- helpers

    def _write_abort(self, commit: Commit, row: JobRow, detail: str) -> JobRow:
        for prefix in row.copies:
            if commit.get(Table.SHARDS, prefix) is None:
                leave(commit, *keys.under(prefix))
        return self._write_end(commit, replace(row, state=ABORTED, detail=detail))

    def _write_end(self, commit: Commit, row: JobRow) -> JobRow:
        """Write the row of an ending job, and delete the oldest ones."""
        row = replace(row, ended_ms=self._clock.wall_ms())
        write_row(commit, row)
        for old in list(self._ended)[: max(0, len(self._ended) + 1 - ENDED_MAX)]:
            commit.row(Table.META, job_key(old), None)
        return row

    def _remember(self, row: JobRow) -> None:
        self._ended[row.id] = row
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _rest(self, job: Job) -> None:
        job.is_busy = False
        job.lease_until = self._clock.mono() + lease_of(job.row)

    async def _checked(self, job_id: str, token: str) -> Job:
        found = self._jobs.get(job_id)
        if found is not None and not found.is_busy:
            await self._look_at(found)
        job = self.get(job_id)
        if job is None:
            raise JobRefused("not-found", f"job {job_id[:40]} not found")
        if isinstance(job, JobRow):
            raise JobRefused("wrong-state", f"the job is {job.state}: {job.detail or 'it has ended'}")
        if not secrets.compare_digest(token.encode(), job.token.encode()):
            raise JobRefused("stale-token", "the token does not belong to this job")
        return job

    async def _look_at(self, job: Job) -> None:
        """End the job if it cannot continue."""
        if job.is_unsettled:
            row = stored_job(self._store, job.row.id)
            if row is not None and row.state in ENDED:
                await self.closed(job, row)
            else:
                await self.abort_job(job, "the store failed")
        elif job.piece is not None and job.piece.watch is not None and job.piece.watch.is_overrun:
            await self.abort_job(job, handover.OVERRUN)
        elif job.orphaned:
            await self.abort_job(job, job.orphaned)
        elif self._clock.mono() >= job.lease_until:
            await self.abort_job(job, "the lease lapsed")

    async def _child_ended(self, job_id: str, detail: str) -> None:
        """The server's own program has ended. If its job has not, end that now or soon."""
        job = self._jobs.get(job_id)
        if job is None:
            return
        job.orphaned = detail
        if not job.is_busy:
            try:
                await self._look_at(job)
            except (ShardsError, Busy) as error:
                log.warning("job %s: end postponed: %s", job_id, error)


def _plan(store: Store, folder: Path) -> None:
    """Make a job's folder, with the checkpoint to read. Blocks. Raises StoreFailed, OSError."""
    folder.mkdir(parents=True)
    store.checkpoint(folder / "plan")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def lease_of(row: JobRow) -> int:
    """Lease of a job, s: how long it stays open without a call."""
    return OWN_LEASE_S if row.run == "server" else LEASE_S


def write_row(commit: Commit, row: JobRow) -> None:
    commit.row(Table.META, job_key(row.id), job_value(row))
