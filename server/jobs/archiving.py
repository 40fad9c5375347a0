"""Archive and compact jobs: each adds one commit to the archive, in two steps (shards/archived.py says why).

    archive    archiving   ---- commit --> publishing ---- published --> done
    compact    compacting  ---- commit --> publishing ---- published --> done

An archive job has the positions [from_ms, to_ms): whole quarters of an hour, from the end of the last commit
to `slices.archive_after` behind the horizon. Nothing is placed there any more, so the rows are the same
whenever they are read. Its program first publishes what an earlier job has recorded and could not publish; a
job may have nothing else to do, and then from_ms is to_ms. Or the job repairs: it writes the rows of an
earlier commit *again*, since an expiry has found files of it damaged.

One job at a time works on the archive: what it was given holds until its end. The writer checks that all the
same.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from secrets import token_hex
from typing import NamedTuple

from msgspec import structs

from shards import archived, ended
from shards.archived import JOB_MS, ArchiveRow
from shards.archives import (
    AGAIN,
    APPEND,
    COMPACT,
    FILES_MAX,
    QUARTER_MS,
    VERSION,
    Manifest,
    Report,
    archive_url,
    is_local,
    manifest_name,
)
from shards.commit import Commit
from shards.dedupe import Refused
from shards.jobs import ARCHIVE, ARCHIVING, COMPACTING, PUBLISHING, JobRow
from shards.recover import Opened
from timeline.position import at_of, before
from timeline.slices import DAY_MS

from ..engine.clock import Clock
from ..settings.config import Slices
from .pipeline import NOTHING, Fault, Job, JobRefused, Pipeline, write_row
from .workers import Workers

STATES = {ARCHIVE: ARCHIVING, COMPACT: COMPACTING}
AGAIN_MAX = 1_000
"""Commits with damaged files that are remembered."""
FAULTS_MAX = 20
PAGE, PAGE_BYTES = 100, 1 << 20
"""Commits of one answer: at least one, and at most this many bytes of records."""


class Span(NamedTuple):
    """Positions that the next archive job has."""

    from_ms: int
    to_ms: int
    first_ms: int | None
    """The first message there, or end of a delivery; None: there is none."""


class Archiving:
    """The archive of one server."""

    def __init__(
        self, pipeline: Pipeline, workers: Workers, opened: Opened, slices: Slices, clock: Clock
    ) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self._opened = opened
        self._slices = slices
        self._clock = clock
        self._again: dict[int, list[str]] = {}
        """Damaged files that can be written again, by the number of their commit."""
        self.span = Span(0, 0, None)
        """As of the last look."""

    # -- look-ups

    @property
    def row(self) -> ArchiveRow:
        """The stored state. Raises Corrupt."""
        return archived.archive_row(self._opened.store.get) or ArchiveRow("")

    @property
    def lag_s(self) -> float:
        """Age of the first message that is not archived, as of the last look."""
        first_ms = self.span.first_ms
        return 0.0 if first_ms is None else max(0, self._clock.wall_ms() - first_ms) / 1_000

    def url_for(self, run: str, given: str, *, is_needed: bool = True) -> str:
        """The archive of a new job by its full name; empty: none. Raises JobRefused."""
        ours = self._slices.archive
        if not given:
            if is_needed and not ours:
                raise JobRefused("archive", "is needed, as slices.archive is empty")
            return ours
        try:
            url = archive_url(given)
        except ValueError as error:
            raise JobRefused("archive", f"{error}, not {given!r}") from None
        if ours and _real(url) != _real(ours):
            raise JobRefused("archive", f"must be slices.archive, {ours}, or be left out, not {given!r}")
        if not ours and run == "server":
            raise JobRefused("archive", "is for run=caller: the server's own job needs slices.archive")
        if is_local(url) and not given.startswith(("/", "file:")):
            raise JobRefused("archive", f"must be an absolute path or a URL, not {given!r}")
        if is_local(url) and self._pipeline.holds(url):
            raise JobRefused("archive", "must not lie in store.dir")
        return ours or url

    def covered_ms(self, url: str) -> int:
        """That archive has everything before."""
        return self.row.at(url).covered_ms

    def look(self, url: str) -> Span:
        """What the next archive job has: to where no more is placed, and a few days at most. Raises
        Corrupt."""
        opened, row = self._opened, self.row.at(url)
        clock_ms = min(at_of(opened.horizon.position), self._clock.wall_ms())
        limit_ms = _quarter(clock_ms - self._slices.archive_after_ms)
        start_ms = max(row.end_ms, _quarter(at_of(opened.directory.floor)))
        rows = opened.reader.read(before(start_ms), before(clock_ms))
        ends = ended.ends_between(opened.store, start_ms, clock_ms)
        firsts = [at_of(place) for place, _, _ in islice(rows, 1)]
        first_ms = min(firsts + [one.minute_ms for one in islice(ends, 1)], default=None)
        start_ms = start_ms or _quarter(first_ms or 0)
        is_closed = first_ms is not None and first_ms < limit_ms
        end_ms = min(limit_ms, _quarter(first_ms or 0) + JOB_MS) if is_closed else start_ms
        self.span = Span(start_ms, end_ms, first_ms)
        return self.span

    def is_due(self, url: str) -> bool:
        """Whether an archive job has work. Raises Corrupt."""
        span, row = self.look(url), self.row.at(url)
        has_lost = self._next_again(row)[0] is not None or self._unwritten(row)
        return bool(has_lost) or span.from_ms < span.to_ms or row.published < row.last

    def published(self, since: int, most: int) -> list[Manifest]:
        """The published commits behind a number: some, or none. Raises Corrupt."""
        found, taken = list[Manifest](), 0
        for size, manifest in archived.records(self._opened.store, since):
            taken += size
            if manifest.number > self.row.published or len(found) == most or (found and taken > PAGE_BYTES):
                break
            found.append(manifest)
        return found

    def find(self) -> str:
        """Whether the server's own archive job has work. Raises Corrupt."""
        url = self._slices.archive
        return ARCHIVE if url and self.is_due(url) else ""

    def find_day(self) -> str:
        """Whether there may be a day to compact. Raises Corrupt."""
        url, catalog = self._slices.archive, self._slices.archive_catalog
        return COMPACT if url and not catalog and self.covered_ms(url) else ""

    # -- jobs

    async def create(self, run: str, given: str = "") -> Job:
        """Create an archive job. Raises JobRefused, StoreFailed, Busy, Corrupt."""
        url = self.url_for(run, given)
        if not self.is_due(url):
            raise JobRefused(NOTHING, "everything that has passed is archived")
        row, span = self.row.at(url), self.span
        again, paths = self._next_again(row)
        if again is not None:
            span = Span(
                max(again.start_ms, _quarter(at_of(self._opened.directory.floor))), again.end_ms, None
            )
        pieces = list(self._opened.directory.over(before(span.from_ms), before(span.to_ms)))
        job = self._pipeline.create(ARCHIVE, run, ARCHIVING, pieces, url)
        job.row.from_ms, job.row.to_ms = span.from_ms, span.to_ms
        if again is not None:
            job.again, job.files = again, [file for file in again.files if file.path in paths]
            job.view["again"] = [{"number": again.number, "paths": paths}]
        lost = filter(
            None, [archived.recorded(self._opened.store, number) for number in self._unwritten(row)]
        )
        job.view["unpublished"] = [
            *lost,
            *(one for _, one in archived.records(self._opened.store, row.published)),
        ]
        return await self._created(job)

    async def create_compaction(self, run: str, date: str = "", given: str = "") -> Job:
        """Create a job that compacts a day, by default the oldest that is worth it. Raises JobRefused,
        StoreFailed, Busy, Corrupt."""
        url = self.url_for(run, given)
        if self._slices.archive_catalog:
            raise JobRefused(NOTHING, "slices.archive_catalog is set: the catalog's tools compact")
        row = self.row
        days = await self._workers.in_thread(partial(archived.days_of, self._opened.store))
        closed = sorted(day for day in days if _end_of(day) <= row.at(url).covered_ms)
        worth = (day for day in closed if archived.is_worth_compacting(days[day]))
        day = date or next(worth, "")
        if row != self.row or day not in closed:
            raise JobRefused(NOTHING, f"{day or 'no day'} has files to compact, and is archived to its end")
        job = self._pipeline.create(COMPACT, run, COMPACTING, [], url)
        job.row.date = day
        job.files = [one.file for one in days[day][:FILES_MAX]]
        job.view["files"] = [
            {"number": one.number, **structs.asdict(one.file)} for one in days[day][:FILES_MAX]
        ]
        return await self._created(job)

    async def _created(self, job: Job) -> Job:
        def begin(commit: Commit) -> None:
            job.base = archived.begin(commit, token_hex(16))
            row = job.base.at(job.row.archive)
            job.row.number = row.last + 1
            job.view |= {"timeline": row.timeline, "last": row.last if row.last >= row.first else 0}

        if self._slices.archive_catalog:
            job.view["archive_catalog"] = self._slices.archive_catalog
        return await self._pipeline.created(job, begin)

    async def commit(self, job_id: str, token: str, report: Report) -> Job:
        """Record what the job has written. Raises JobRefused, StoreFailed, Busy."""
        kind = COMPACT if report.kind == COMPACT else ARCHIVE
        async with self._pipeline.step(job_id, token, kind, STATES[kind]) as job:
            row = job.row
            faults = [Fault("", *fault) for fault in islice(_faults(job, report), FAULTS_MAX)]
            if faults:
                raise JobRefused("bad-manifest", f"the commit is refused: {faults[0].detail}", faults)
            assert job.base is not None, "it has begun"
            manifest = Manifest(
                **structs.asdict(report),
                number=row.number,
                timeline=job.base.timeline,
                node=row.node,
                job=row.id,
                created_ms=self._clock.wall_ms(),
                version=VERSION,
            )

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
                self._again.pop(job.again.number, None)
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
            for one in self._unwritten(self.row):
                self._again[one].remove(manifest_name(one))
            if row is not None:
                await self._pipeline.closed(job, row)
        return row or job

    # -- files that were found damaged

    def plan_again(self, manifests: Iterable[Manifest], paths: Sequence[str]) -> list[str]:
        """Have damaged files written again by the next archive job. Returns those that cannot be."""
        found = set[str]()
        for manifest in manifests:
            lost = archived.lost_paths(manifest, paths)
            if lost and len(self._again) < AGAIN_MAX:
                self._again[manifest.number] = lost
                found.update(lost)
        return [path for path in paths if path not in found]

    def _next_again(self, row: ArchiveRow) -> tuple[Manifest | None, list[str]]:
        """The first commit of which files are to be written again, and these."""
        for number in sorted(self._again):
            paths = [path for path in self._again[number] if path != manifest_name(number)]
            manifest = archived.recorded(self._opened.store, number) if number >= row.first else None
            if paths and manifest is not None and before(manifest.end_ms) > self._opened.directory.floor:
                return manifest, paths
            if manifest is None or not self._again[number] or paths:
                del self._again[number]  # its slices are gone
        return None, []

    def _unwritten(self, row: ArchiveRow) -> list[int]:
        """The commits whose manifests are to be written again."""
        again = self._again.items()
        return [
            number for number, paths in again if manifest_name(number) in paths and number <= row.published
        ]


def _faults(job: Job, report: Report) -> Iterator[tuple[str, str]]:
    """What is wrong with a job's commit, as fields and words."""
    row = job.row
    if report.kind != COMPACT:
        wanted = APPEND if job.again is None else AGAIN
        if report.kind != wanted:
            yield "kind", f"must be {wanted}, not {report.kind}"
        is_whole = report.end_ms == row.to_ms or (wanted == APPEND and report.end_ms % QUARTER_MS == 0)
        if report.start_ms != row.from_ms or not row.from_ms < report.end_ms <= row.to_ms or not is_whole:
            yield (
                "end_ms",
                f"must begin at {row.from_ms}, and end after a quarter of an hour, up to {row.to_ms}",
            )
    yield from archived.faults_in(report, row.id, row.number, job.again, job.files, row.date)


def _quarter(at_ms: int) -> int:
    return max(0, at_ms - at_ms % QUARTER_MS)


def _end_of(day: str) -> int:
    return int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() * 1_000) + DAY_MS


def _real(archive: str) -> str:
    return os.path.realpath(archive) if is_local(archive) else archive
