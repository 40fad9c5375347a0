"""Commits of an archive without a server: what it would record, in memory."""

from pathlib import Path
from unittest.mock import MagicMock

import msgspec
import pyarrow.parquet as pq
from msgspec import structs

from shards.archives import QUARTER_MS, VERSION, Manifest, Report
from spark.archive import archive
from spark.job import Again, Job
from spark.lease import Lease
from spark.manifests import read_archive
from spark.publish import claim, publish
from spark.storage import Storage, storage_at

from .stores import Timeline, slice_body

TIMELINE = "f" * 32


class Book:
    """The records of a timeline's archive in `folder`."""

    def __init__(self, folder: Path, timeline: str = TIMELINE) -> None:
        self.storage: Storage = storage_at(str(folder))
        self.timeline = timeline
        self.records: list[Manifest] = []
        self._tries = 0

    @property
    def end_ms(self) -> int:
        return max((one.end_ms for one in self.records), default=0)

    def job(self, source: Timeline, checkpoint: str, to_ms: int, from_ms: int = 0) -> Job:
        """An archive job from the end of the last commit to `to_ms`."""
        pieces = [slice_body(piece) for piece in source.opened.directory]
        first_ms = pieces[0]["start_ms"] if pieces else 0
        start_ms = self.end_ms or from_ms or first_ms - first_ms % QUARTER_MS
        self._tries += 1
        body = {"id": f"{self._tries:08x}f", "kind": "archive", "state": "archiving", "slices": pieces}
        job = msgspec.convert(body, Job)
        job.slices = tuple(one for one in job.slices if one.start_ms < to_ms and one.end_ms > start_ms)
        job.checkpoint, job.archive, job.timeline = checkpoint, self.storage.name, self.timeline
        job.last, job.number = len(self.records), len(self.records) + 1
        job.from_ms, job.to_ms = start_ms, to_ms
        return job

    def record(self, job: Job, report: Report) -> Manifest:
        made = Manifest(
            **structs.asdict(report),
            number=job.number,
            timeline=self.timeline,
            node=0,
            job=job.id,
            created_ms=0,
            version=VERSION,
        )
        self.records.append(made)
        return made

    def commit(self, source: Timeline, checkpoint: str, to_ms: int) -> list[Manifest]:
        """Archive up to there, in as many commits as it takes."""
        found = []
        while self.end_ms < to_ms:
            job = self.job(source, checkpoint, to_ms)
            claim(self.storage, job)
            found.append(self.record(job, archive(job, self.storage, no_lease())))
            publish(self.storage, found[-1])
        return found

    def rows(self) -> list[dict]:
        """All messages of files that count, in order."""
        files = read_archive(self.storage).files()
        tables = [pq.ParquetFile(self.storage.full(file.path)).read() for file in files]
        return [row for table in tables for row in table.to_pylist()]


def no_lease() -> Lease:
    return MagicMock(spec=Lease)


def again(job: Job, number: int, paths: list[str]) -> Job:
    return structs.replace(job, again=(Again(number, paths),))
