"""What is stored of a pipeline job, in the table `meta` under "job/" and its id.

The row says how far the job came, so that a server that starts knows which jobs it has to give up, and under
which keys files may lie that nobody reads. The last 100 ended ones are kept to be looked at.
"""

import logging
from collections.abc import Iterator

import msgspec

from timeline.slices import Home

from .errors import Corrupt
from .store import Store, Table
from .tables import decoded
from .unreadable import readable

log = logging.getLogger(__name__)

PREFIX = b"job/"
PREFIX_END = b"job0"

SPLIT, EXPIRE = "split", "expire"
PLANNING, MOVING, ARCHIVING, COMMITTING = "planning", "moving", "archiving", "committing"
DONE, ABORTED = "done", "aborted"
ENDED = (DONE, ABORTED)


class PieceRow(msgspec.Struct, frozen=True, array_like=True):
    """A slice of a job. `rows`: how many it holds, as far as that is known."""

    start_ms: int
    end_ms: int
    generation: int
    rows: int = 0
    live: int = 0

    @property
    def home(self) -> Home:
        return Home(self.start_ms, self.generation)


class SourceRow(msgspec.Struct, frozen=True, array_like=True):
    """A shard that is read by a job."""

    start_ms: int
    generation: int
    shard: int
    structure: int
    count: int = 0
    live: int = 0


class JobRow(msgspec.Struct, array_like=True, omit_defaults=True):
    """A job. `slices`: what it is about, one for a split; `children`: what `begin` made of it."""

    id: str
    kind: str
    run: str
    state: str
    node: int
    created_ms: int
    slices: list[PieceRow] = []
    sources: list[list[SourceRow]] = []
    """Of each of `slices`."""
    parts: int = 0
    children: list[PieceRow] = []
    ended_ms: int = 0
    detail: str = ""
    rows: int = 0
    """Rows moved or dropped in the end."""


_decoder = msgspec.msgpack.Decoder(JobRow)


def job_key(job: str) -> bytes:
    return PREFIX + job.encode()


def job_value(row: JobRow) -> bytes:
    return msgspec.msgpack.encode(row)


def stored_jobs(store: Store) -> Iterator[JobRow]:
    """Every job that is stored and can be read."""
    for key, value in readable(store, Table.META, PREFIX, PREFIX_END):
        try:
            yield decoded(_decoder, value)
        except Corrupt as error:
            log.error("the job at %r is passed over: %s", key, error)


def stored_job(store: Store, job: str) -> JobRow | None:
    value = store.get(Table.META, job_key(job))
    return None if value is None else decoded(_decoder, value)
