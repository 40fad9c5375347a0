"""Stored pipeline jobs: table `meta`, "job/" and the id.

The row says how far the job came, so that a starting server knows which jobs to abort. The last 100 ended
jobs are kept for inspection.
"""

import logging
from collections.abc import Iterator
from itertools import chain

import msgspec

from timeline.slices import Home, Shard

from .archives import ArchivedFile
from .errors import Corrupt
from .keys import under
from .store import Store, Table
from .tables import reading
from .unreadable import readable

log = logging.getLogger(__name__)

PREFIX = b"job/"

SPLIT, EXPIRE, ARCHIVE, COMPACT = "split", "expire", "archive", "compact"
PLANNING, ARCHIVING, COMPACTING, PUBLISHING = "planning", "archiving", "compacting", "publishing"
DONE, ABORTED = "done", "aborted"
ENDED = (DONE, ABORTED)


class PieceRow(msgspec.Struct, frozen=True, array_like=True):
    """A slice of a job, and its number of rows."""

    start_ms: int
    end_ms: int
    generation: int
    rows: int = 0
    live: int = 0

    @property
    def home(self) -> Home:
        return Home(self.start_ms, self.generation)


class SourceRow(msgspec.Struct, frozen=True, array_like=True):
    """A shard that a job reads."""

    start_ms: int
    generation: int
    shard: int
    structure: int
    count: int = 0
    live: int = 0


class JobRow(msgspec.Struct, array_like=True, omit_defaults=True):
    """A job. `slices`: its slices, one for a split; `cuts`: the cut points, ms from the slice's start.

    Only jobs of older versions, which copied rows, have `sources` and `children`.
    """

    id: str
    kind: str
    run: str
    state: str
    node: int
    created_ms: int
    slices: list[PieceRow] = []
    sources: list[list[SourceRow]] = []
    parts: int = 0
    children: list[PieceRow] = []
    ended_ms: int = 0
    detail: str = ""
    rows: int = 0
    """Rows that were cut or dropped in the end."""
    cuts: list[int] = []
    archive: str = ""
    """The archive by its full name; empty: the job has nothing to do with one."""
    files: list[ArchivedFile] = []
    """Of a finished expiry of an older version: the files it has written there."""
    from_ms: int = 0
    to_ms: int = 0
    """Of an archive job: its positions."""
    number: int = 0
    """Of an archive or compact job: of its commit."""
    date: str = ""
    """Of a compact job: its day, as in 2026-12-01."""

    @property
    def copies(self) -> Iterator[bytes]:
        """Prefixes of rows that an older version's job may have copied, and that no slice reads."""
        if self.state != DONE:
            for child in self.children:
                for source in chain.from_iterable(self.sources):
                    yield Shard(child.home, source.shard).prefix


_read = reading(JobRow)


def job_key(job: str) -> bytes:
    return PREFIX + job.encode()


def job_value(row: JobRow) -> bytes:
    """The row without its id, which is in the key."""
    return msgspec.msgpack.encode(msgspec.structs.replace(row, id=""))


def stored_jobs(store: Store) -> Iterator[JobRow]:
    """Every stored job that can be read."""
    for key, value in readable(store, Table.META, *under(PREFIX)):
        try:
            yield _row(key, value)
        except Corrupt as error:
            log.error("job %r: unreadable, skipped: %s", key, error)


def stored_job(store: Store, job: str) -> JobRow | None:
    value = store.get(Table.META, job_key(job))
    return None if value is None else _row(job_key(job), value)


def _row(key: bytes, value: bytes) -> JobRow:
    row = _read(value)
    row.id = key[len(PREFIX) :].decode()
    return row
