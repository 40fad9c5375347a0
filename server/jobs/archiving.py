"""Archive and compact jobs: each adds one commit to the archive, in two steps (shards/archived.py says why).

    archive    archiving   ---- commit --> publishing ---- published --> done
    compact    compacting  ---- commit --> publishing ---- published --> done

The program of an archive job first publishes what an earlier job has recorded and could not publish. It may
have nothing else to do: then from_ms is to_ms. Or the job repairs: it writes the rows of an earlier commit
*again*, since an expiry has found files of it damaged.

One job at a time works on the archive: what it was given holds until its end. The writer checks that all the
same.
"""

import logging
from functools import partial
from itertools import islice
from secrets import token_hex

from msgspec import structs

from shards import archived, ended
from shards.archives import APPEND, COMPACT, MESSAGES, Report, is_local
from shards.commit import Commit
from shards.dedupe import Refused
from shards.jobs import ARCHIVE, ARCHIVING, COMPACTING, PUBLISHING, JobRow
from shards.recover import Opened
from timeline.position import before

from ..engine.archive import Archive
from ..engine.clock import Clock
from ..engine.workers import Workers
from ..settings.config import Slices
from .pipeline import NOTHING, Fault, Job, JobRefused, Pipeline, write_row

log = logging.getLogger(__name__)

STATES = {ARCHIVE: ARCHIVING, COMPACT: COMPACTING}
FAULTS_MAX = 20


class Archiving:
    """Archive and compact jobs of one server; `Pipeline` has what jobs share."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Workers,
        archive: Archive,
        opened: Opened,
        slices: Slices,
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self.archive = archive
        self._opened = opened
        self._catalog = slices.archive_catalog
        self._clock = clock

    def url_for(self, run: str, given: str, *, is_needed: bool = True) -> str:
        """The archive of a new job by its full name; empty: none. Raises JobRefused."""
        ours = self.archive.url
        if is_needed and not (given or ours):
            raise JobRefused("archive", "must be given, as slices.archive is empty")
        if given and not ours and run == "server":
            raise JobRefused("archive", "must be for run=caller: the server's own job needs slices.archive")
        try:
            url = self.archive.named(given)
        except ValueError as error:
            raise JobRefused("archive", f"{error}, not {given!r}") from None
        if is_local(url) and self._pipeline.holds(url):
            raise JobRefused("archive", "must not lie in store.dir")
        return url

    async def create(self, run: str, given: str = "") -> Job:
        """Create an archive job. Raises JobRefused, StoreFailed, Busy, Corrupt."""
        url, archive = self.url_for(run, given), self.archive
        if not archive.is_due(url):
            raise JobRefused(NOTHING, "everything that has passed is archived")
        row, (start_ms, end_ms, _) = archive.row.at(url), archive.span
        again, paths = archive.next_again(row)
        if again is not None:
            start_ms, end_ms = max(again.start_ms, archive.floor_ms), again.end_ms
        pieces = list(self._opened.directory.over(before(start_ms), before(end_ms)))
        job = self._pipeline.create(ARCHIVE, run, ARCHIVING, pieces, url)
        job.row.from_ms, job.row.to_ms = start_ms, end_ms
        if again is not None:
            job.again, job.files = again, [file for file in again.files if file.path in paths]
            job.view["again"] = [{"number": again.number, "paths": paths}]
            for file in job.files:
                if file.table == MESSAGES and again.start_ms < start_ms and file.first_ms < start_ms:
                    why = f"rows before {start_ms} are in it alone, and stay below _replaced for a week"
                    log.error("archive: %s cannot be written again as a whole: %s", file.path, why)
        job.view["unpublished"] = archive.unpublished(row)
        return await self._created(job)

    async def create_compaction(self, run: str, date: str = "", given: str = "") -> Job:
        """Create a job that compacts a day, by default the newest that is worth it. Raises JobRefused,
        StoreFailed, Busy, Corrupt."""
        url = self.url_for(run, given)
        row = self.archive.row
        look = partial(archived.day_to_compact, self._opened.store, row.at(url), date)
        day, files = await self._workers.in_thread(look)
        if row != self.archive.row or not files:
            raise JobRefused(NOTHING, f"{date or 'no day'} is archived to its end, in files to compact")
        job = self._pipeline.create(COMPACT, run, COMPACTING, [], url)
        job.row.date = day
        job.files = [one.file for one in files]
        job.view["files"] = [{"number": one.number, **structs.asdict(one.file)} for one in files]
        return await self._created(job)

    async def _created(self, job: Job) -> Job:
        def begin(commit: Commit) -> None:
            job.base = archived.begin(commit, token_hex(16))
            row = job.base.at(job.row.archive)
            job.row.number = row.last + 1
            job.view |= {"timeline": row.timeline, "last": row.last if row.last >= row.first else 0}

        if self._catalog:
            job.view["archive_catalog"] = self._catalog
        return await self._pipeline.created(job, begin)

    async def commit(self, job_id: str, token: str, report: Report) -> Job:
        """Record what the job has written. Raises JobRefused, StoreFailed, Busy."""
        kind = COMPACT if report.kind == COMPACT else ARCHIVE
        async with self._pipeline.step(job_id, token, kind, STATES[kind]) as job:
            row = job.row
            wrong = archived.faults_in(report, row, job.again, job.files)
            faults = [Fault("", *fault) for fault in islice(wrong, FAULTS_MAX)]
            if faults:
                raise JobRefused("bad-manifest", f"the commit is refused: {faults[0].detail}", faults)
            assert job.base is not None, "it has begun"
            manifest = archived.manifest_from(report, row, job.base.timeline, self._clock.wall_ms())

            def decide(commit: Commit) -> None:
                if archived.archive_row(commit.get) != job.base:
                    raise Refused("wrong-state", "the archive has got another commit")
                archived.record(commit, row.archive, manifest)
                if report.kind == APPEND:
                    ended.clear_before(commit, report.end_ms)
                write_row(commit, structs.replace(row, state=PUBLISHING))

            await self._pipeline.ask(job, decide)
            row.state, row.rows = PUBLISHING, sum(span.archived for span in report.spans)
            job.view["manifest"] = manifest
            if job.again is not None:
                self.archive.again.pop(job.again.number, None)
        return job

    async def publish(self, job_id: str, token: str, number: int) -> Job | JobRow:
        """The manifests up to this one, the last that is recorded, are in the archive. It ends a job that has
        nothing else to do. Raises JobRefused, StoreFailed, Busy."""
        async with self._pipeline.step(job_id, token) as job:
            is_over = job.row.state == PUBLISHING or job.row.from_ms == job.row.to_ms
            if job.row.kind not in STATES or job.row.state == COMPACTING:
                raise JobRefused("wrong-state", f"the job is a {job.row.kind} in state {job.row.state}")

            def decide(commit: Commit) -> JobRow | None:
                job.base = archived.publish(commit, number)
                return self._pipeline.done_row(commit, job, job.row.rows) if is_over else None

            row: JobRow | None = await self._pipeline.ask(job, decide)
            self.archive.written(self.archive.row)
            if row is not None:
                await self._pipeline.closed(job, row)
        return row or job
