"""Expire jobs: a job reads the slices behind retention, and the server drops them.

Without an archive the job counts their rows: passed slices no longer change, so if its counts differ from the
stored ones it has missed rows. With an archive a slice may be dropped when all of its rows are in recorded
and published commits, and the job has read their manifests and files back from the archive in this very job.
If it finds any damaged, nothing is dropped, and the next archive job writes them again.

A job drops exactly its slices, the oldest. Without an archive, and if configured so, housekeeping does this
alone (server/rounds/housekeeping.py), except for slices that a caller's job is archiving.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile

import msgspec

from shards import archived
from shards.archived import Archived
from shards.archives import Manifest
from shards.commit import Commit
from shards.dedupe import Refused
from shards.expiry import expire
from shards.handover import sources_of
from shards.jobs import ARCHIVING, EXPIRE, JobRow
from shards.recover import Opened
from timeline.position import END, Position, before
from timeline.slices import Home, Slice

from ..delivery.floor import Floor
from ..engine.clock import Clock
from ..engine.writer import Ask
from ..settings.config import Slices
from .archiving import Archiving
from .garbage import GarbageCollector
from .pipeline import Fault, Job, JobRefused, Pipeline
from .workers import Workers

log = logging.getLogger(__name__)

EXPIRE_SLICES = 100
"""Maximum slices dropped at once, in one job or one batch."""
DETAIL_MAX = 900
HELD = "the disk has less than store.min_free, and slices behind retention wait for the archive"
READ_BYTES = 4 << 20
"""Maximum bytes of the commits that a job reads back, unless one slice has more."""
PATIENCE, PATIENCE_S = 28, 21_600
"""The server's own job waits for more slices: an archive's files are read back for each job. It waits for
this part of `slices.retention`, and for 6 h at most."""


class DroppedSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job's report on a slice: rows read, with stubs; rows of messages that are archived."""

    start_ms: int
    generation: int
    rows: int
    archived: int = 0


class FileFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file or manifest of the archive that cannot be read back: its path there, and why."""

    path: str
    detail: str


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
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self._garbage = garbage
        self.archiving = Archiving(pipeline, workers, opened, slices, clock)
        self._ask = ask
        self._opened = opened
        self._slices = slices
        self._floor = floor
        self.dropped = 0
        """Slices dropped without a job."""
        self.is_short = False
        """The disk has less than `store.min_free`."""
        self.full = ""
        """Why no more messages are taken."""

    @property
    def need_a_job(self) -> bool:
        """Whether slices behind retention are dropped only by a job."""
        return self._slices.expire_by == "job" or self.has_archive

    @property
    def has_archive(self) -> bool:
        """Whether `slices.archive` is set, so that the server's own job may drop archived slices."""
        return bool(self._slices.archive)

    def due(self, url: str = "") -> list[Slice]:
        """Slices whose retention is over and that nothing needs, oldest first, at most EXPIRE_SLICES; with an
        archive only those that are in it. Raises Corrupt."""
        pieces = self._over(self._slices.retention_ms, self._floor.free)[:EXPIRE_SLICES]
        if not url:
            return pieces
        covered_ms = self.archiving.covered_ms(url)
        return list(takewhile(lambda piece: piece.end_ms <= covered_ms, pieces))

    @property
    def archived(self) -> Position:
        """The archive does not hold slices before this position. Raises Corrupt."""
        return before(self.archiving.covered_ms(self._slices.archive)) if self.has_archive else END

    def note_disk(self, *, is_short: bool) -> None:
        """Look whether the archive holds slices, and if the disk has less than `store.min_free`, take no more
        messages until it does not. Raises Corrupt."""
        self.is_short, self.full = is_short, ""
        if self.has_archive:
            self.archiving.look(self._slices.archive)
            if is_short and self._over(self._slices.retention_ms, self._floor.free):
                self.full = HELD

    def find(self) -> str:
        """Whether the server's own job has enough to do. Without an archive it never has: a caller may
        mean to archive what it would drop. Raises Corrupt."""
        kept, pieces = self.kept, self.due(self._slices.archive) if self.has_archive else []
        patience_s = min(PATIENCE_S, self._slices.retention_ms // 1_000 // PATIENCE)
        is_enough = self.is_short or len(pieces) == EXPIRE_SLICES
        return EXPIRE if pieces and kept is not None and (is_enough or kept[1] >= patience_s) else ""

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

    async def create(self, run: str, given: str = "") -> Job:
        """Create a job on the slices behind retention. `given`: the caller's archive, if `slices.archive` is
        empty. Raises JobRefused, StoreFailed, Busy, Corrupt."""
        url = self.archiving.url_for(run, given, is_needed=False)
        is_settled = await self.settle()
        pieces, base = self.due(url), self.archiving.row
        if not pieces:
            raise JobRefused("nothing-to-expire", self._why_nothing(url, is_settled=is_settled))
        manifests = list[Manifest]()
        if url:
            look = partial(archived.behind_slices, self._opened.store, pieces, READ_BYTES)
            manifests, count = await self._workers.in_thread(look)
            pieces = pieces[:count]
        if self.archiving.row != base:
            raise JobRefused("job-active", "the archive has just got a commit; try again")
        job = self._pipeline.create(EXPIRE, run, ARCHIVING, pieces, url)
        job.sources = [sources_of(piece) for piece in pieces]
        if url:
            job.base, job.manifests, job.view["manifests"] = base, manifests, manifests
        return await self._pipeline.created(job)

    def _why_nothing(self, url: str, *, is_settled: bool) -> str:
        if not is_settled:
            return "unfinished messages in the slices are still being settled; try again"
        return f"no slice behind retention is in the archive {url}" if url else "no slice is behind retention"

    async def commit(self, job_id: str, token: str, report: Sequence[DroppedSlice]) -> JobRow:
        """Drop the slices that the job has read. Raises JobRefused, StoreFailed, Busy."""
        async with self._pipeline.step(job_id, token, EXPIRE, ARCHIVING) as job:
            found = archived.archived_of(job.manifests)
            faults = list(_faults(job, report, found))
            if faults:
                raise JobRefused("bad-manifest", "the job's counts differ from the stored ones", faults)

            def decide(commit: Commit) -> JobRow:
                pieces = self.due(job.row.archive)[: len(job.row.slices)]
                if [piece.home for piece in pieces] != [piece.home for piece in job.row.slices]:
                    raise Refused("wrong-state", "the slices are no longer the oldest ones")
                if job.base is not None:
                    self._check_archive(commit, job, pieces)
                expire(commit, pieces)
                return self._pipeline.done_row(commit, job, sum(one.rows for one in report))

            row: JobRow = await self._pipeline.ask(job, decide)
            await self._pipeline.closed(job, row)
            self.full = ""
            self._workers.later(self._garbage.sweep())
        return row

    def _check_archive(self, commit: Commit, job: Job, pieces: Sequence[Slice]) -> None:
        """In the writer: the archive is as the job has read it, and has all of these. Raises Refused."""
        if archived.archive_row(commit.get) != job.base:
            raise Refused("wrong-state", "the archive has got another commit")
        found = archived.archived_of(job.manifests)
        for piece in pieces:
            if why := archived.lacks(piece, found.get(piece.home, Archived())):
                raise Refused("bad-manifest", why)

    async def refuse(self, job_id: str, token: str, faults: Sequence[FileFault]) -> JobRow:
        """The job has found files of the archive damaged: nothing is dropped. Raises JobRefused, StoreFailed,
        Busy."""
        async with self._pipeline.step(job_id, token, EXPIRE, ARCHIVING) as job:
            paths = [fault.path for fault in faults]
            final = self.archiving.plan_again(job.manifests, paths)
            words = "; ".join(f"{fault.path}: {fault.detail}" for fault in faults)[:DETAIL_MAX]
            await self._pipeline.abort_job(job, f"the archive is damaged: {words}")
        log.error("archive: damaged: %s", words)
        for path in final:
            log.error("archive: %s cannot be written again: put it back, as from a copy of the archive", path)
        return job.row

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


def _faults(job: Job, report: Sequence[DroppedSlice], found: dict[Home, Archived]) -> Iterator[Fault]:
    """Differences between the job's report and what is stored, or recorded of its archive."""
    if [(one.start_ms, one.generation) for one in report] != [tuple(piece.home) for piece in job.row.slices]:
        yield Fault("", "slices", "must be the slices of the job, in order")
        return
    for one, piece in zip(report, job.row.slices, strict=True):
        slice_ms, recorded = str(one.start_ms), found.get(piece.home, Archived())
        rows = recorded.rows if job.row.archive else piece.rows
        if one.rows != rows:
            yield Fault(
                slice_ms,
                "rows",
                f"{one.rows} rows were read, {rows} are {'archived' if job.row.archive else 'stored'}",
            )
        if job.row.archive and one.archived != recorded.written:
            yield Fault(
                slice_ms, "archived", f"{one.archived} messages were read, {recorded.written} are archived"
            )
