"""Expire jobs: what is behind retention is read by the job, archived if there is an archive, and then
dropped.

The server counts what the job says that it has read against what it holds; what was passed does not change
any more, so the two are equal or the job has missed something. It drops exactly the slices of the job, the
oldest. Without an archive, and if the server is to expire by itself, housekeeping does this alone
(server/rounds/housekeeping.py).
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import msgspec

from shards.commit import Commit
from shards.dedupe import Refused
from shards.expiry import expire
from shards.handover import sources_of
from shards.jobs import ARCHIVING, EXPIRE, JobRow
from shards.recover import Opened
from timeline.position import END, Position, before
from timeline.retention import expired_slices
from timeline.slices import Slice

from ..engine.writer import Ask
from ..settings.config import Slices
from .leavings import Leavings
from .pipeline import Fault, Job, JobRefused, Pipeline
from .workers import Workers

EXPIRE_SLICES = 100
"""That go at once, in one job or one batch."""


class DroppedSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the job says of a slice: rows that it read, stubs too; rows that it wrote; the files."""

    start_ms: int
    generation: int
    rows: int
    archived: int
    files: list[dict[str, str | int]] = []


SETTLE_LOOKS, SETTLE_PAUSE_S = 1_000, 0.005
"""A call waits some 5 s at most for what sessions have undone; housekeeping goes on with it."""


class Floor(Protocol):
    """Who needs what stands on the timeline (server/delivery/floor.py)."""

    @property
    def needed(self) -> Position:
        """No group or endpoint needs what is before."""

    @property
    def free(self) -> Position:
        """What is before may go."""

    @property
    def settled(self) -> Position:
        """No session has anything undone before it."""

    def settle(self, commit: Commit, before: Position) -> bool:
        """A step of what makes it free for sessions; whether there is more to do."""


class Expiries:
    """What expires on one server, with a job or without; `Pipeline` has what jobs share."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Workers,
        leavings: Leavings,
        ask: Ask,
        opened: Opened,
        slices: Slices,
        floor: Floor,
    ) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self._leavings = leavings
        self._ask = ask
        self._opened = opened
        self._slices = slices
        self._floor = floor
        self.dropped = 0
        """Slices that went without a job."""

    @property
    def need_a_job(self) -> bool:
        """Whether slices behind retention go only with a job."""
        return self._slices.expire_by == "job" or bool(self._slices.archive)

    def due(self) -> list[Slice]:
        """The slices whose retention is over and that nobody needs, the oldest first, as many as may go at
        once."""
        return self._over(self._slices.retention_ms, self._floor.free)[:EXPIRE_SLICES]

    async def settle(self) -> bool:
        """What sessions have not done of slices that go next becomes dead letters, or is counted. False: that
        goes on, and the slices wait for it. Raises StoreFailed, Busy."""
        end = self.end_of(self._slices.retention_ms, self._floor.needed)
        if end is None or end <= self._floor.settled:
            return True
        for _ in range(SETTLE_LOOKS):
            if not await self._ask(partial(self._floor.settle, before=end)):
                return True
            await asyncio.sleep(SETTLE_PAUSE_S)
        return False

    def end_of(self, kept_ms: int, needed: Position = END) -> Position | None:
        """The end of the slices that the horizon has passed so long ago, before `needed`; None: there are
        none."""
        pieces = self._over(kept_ms, needed)
        return before(pieces[-1].end_ms) if pieces else None

    @property
    def kept(self) -> tuple[Position, int] | None:
        """The end of the oldest slice whose retention is over, and for how many seconds it has been; None:
        there is none."""
        pieces = self._over(self._slices.retention_ms, END)
        if not pieces:
            return None
        passed_s = self._opened.running_ms // 1000 - (pieces[0].passed_s or 0)
        return before(pieces[0].end_ms), passed_s - self._slices.retention_ms // 1000

    def _over(self, kept_ms: int, needed: Position) -> list[Slice]:
        running_s = self._opened.running_ms // 1000
        return expired_slices(self._opened.directory, running_s, kept_ms // 1000, needed)

    async def create(self, run: str) -> Job:
        """A job on what retention lets go. Raises JobRefused, StoreFailed, Busy."""
        is_settled = await self.settle()
        pieces = self.due()
        if not pieces:
            why = "no slice is behind retention"
            if not is_settled:
                why = "unfinished messages in the slices are still being settled; try again"
            raise JobRefused("nothing-to-expire", why)
        job = self._pipeline.create(EXPIRE, run, ARCHIVING, pieces)
        job.sources = [sources_of(piece) for piece in pieces]
        return await self._pipeline.created(job)

    async def commit(self, job_id: str, token: str, said: Sequence[DroppedSlice]) -> JobRow:
        """Drop what was read. Raises JobRefused, StoreFailed, Busy."""
        async with self._pipeline.step(job_id, token, EXPIRE, ARCHIVING) as job:
            faults = list(_faults(job, said, is_archived=bool(self._slices.archive)))
            if faults:
                raise JobRefused("bad-manifest", "the job's counts differ from the stored ones", faults)

            def decide(commit: Commit) -> JobRow:
                pieces = self.due()[: len(job.row.slices)]
                if [piece.home for piece in pieces] != [piece.home for piece in job.row.slices]:
                    raise Refused("wrong-state", "the slices are no longer the oldest ones")
                expire(commit, pieces)
                return self._pipeline.done_row(commit, job, sum(one.rows for one in said))

            row: JobRow = await self._pipeline.ask(job, decide)
            await self._pipeline.closed(job, row)
            self._workers.later(self._leavings.sweep())
        return row

    async def drop(self) -> list[Slice]:
        """Drop what is behind retention without a job; what was dropped. Raises StoreFailed, Busy.

        It is chosen again in the writer: what a job has dropped meanwhile is not there any more.
        """
        chosen = self.due()
        if not chosen:
            return []
        gone: list[Slice] = await self._ask(lambda commit: expire(commit, chosen))
        self.dropped += len(gone)
        return gone


def _faults(job: Job, said: Sequence[DroppedSlice], *, is_archived: bool) -> Iterator[Fault]:
    """Where the job has not read what is stored."""
    if [(one.start_ms, one.generation) for one in said] != [tuple(piece.home) for piece in job.row.slices]:
        yield Fault("", "slices", "must be the slices of the job, in order")
        return
    for one, piece in zip(said, job.row.slices, strict=True):
        if one.rows != piece.rows:
            yield Fault(str(one.start_ms), "rows", f"{one.rows} rows were read, {piece.rows} are stored")
        if is_archived and not piece.live <= one.archived <= piece.rows:
            yield Fault(
                str(one.start_ms),
                "archived",
                f"{one.archived} rows were written, {piece.live} are live messages",
            )
