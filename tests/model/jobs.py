"""Split jobs in the model: each step of one can come at any time, or not at all.

The writer's side is the real one (shards/handover.py); the job is the plain one of tests/support/mover.py, on
the store in RAM. What server/jobs/pipeline.py does round it is done here by hand: a job whose step failed
with the store waits until the store is back, and its row says then what has become of it; a start gives up
what was open.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from server.core import Core
from server.jobs.pipeline import write_row
from server.jobs.splitting import MARGIN_MS
from shards import handover
from shards.commit import Commit, Refused
from shards.handover import Tally
from shards.jobs import (
    ABORTED,
    DONE,
    ENDED,
    PLANNING,
    SPLIT,
    JobRow,
    PieceRow,
    SourceRow,
    stored_job,
    stored_jobs,
)
from tests.support.mover import pieces_of
from timeline.position import Position, at_of, before
from timeline.slices import Counts, Slice

from .oracle import Disk, need

OPEN_MAX = 2
NOTED_MAX = 6

Submit = Callable[[Callable[[Commit], Any], Callable[[Any], None]], bool]


@dataclass(eq=False)
class RigJob:
    row: JobRow
    cuts: list[int]
    stage: str = "begin"
    piece: Slice | None = None
    sources: Sequence[SourceRow] = ()
    said: Sequence[Counts] = ()
    tally: Tally | None = None
    is_waiting: bool = False
    """For the writer's answer."""
    is_unsettled: bool = False


class Jobs:
    """All jobs of one server's life."""

    def __init__(self, core: Core, store: Disk, submit: Submit) -> None:
        self._core = core
        self._store = store
        self._submit = submit
        self._jobs: list[RigJob] = []
        self._count = 0
        self._is_giving_up = False
        self.cut = 0
        self._left = [row for row in stored_jobs(store) if row.state not in ENDED]

    def begin(self, index: int, r: Random) -> None:
        """Have a slice counted that is far enough."""
        far = [p for p in self._core.directory if self._is_free(p)]
        if not far or len(self._jobs) >= OPEN_MAX:
            return
        piece = far[index % len(far)]
        rows = self._core.reader.read(before(piece.start_ms), before(piece.end_ms))
        ats = sorted({at_of(place) + r.choice((0, 0, 1)) for place, _, _ in rows})
        inside = [at for at in ats if piece.start_ms < at < piece.end_ms]
        cuts = sorted(r.sample(inside, min(len(inside), r.choice((0, 1, 1, 1, 2, 2)))))
        self._count += 1
        slices = [PieceRow(piece.start_ms, piece.end_ms, piece.generation)]
        row = JobRow(f"j{len(self._store.log)}-{self._count}", SPLIT, "caller", PLANNING, 0, 1, slices)
        job = RigJob(row, cuts)

        def decide(commit: Commit) -> None:
            job.piece, job.sources = handover.begin(commit, slices[0].home, self._nearest())
            assert job.piece.watch is not None
            job.piece.watch.most = NOTED_MAX
            job.tally = Tally(job.piece, cuts)
            job.tally.few = r.choice((0, 1, 100))
            write_row(commit, row)

        def begun(answer: Any) -> None:
            job.stage = "count"

        self._jobs.append(job)
        self._ask(job, decide, begun)

    def step(self, index: int) -> None:
        """A job does what comes next."""
        if not self._jobs:
            return
        job = self._jobs[index % len(self._jobs)]
        if job.is_waiting or job.is_unsettled:
            return
        if job.stage == "count":
            self._look(job)
        elif job.stage == "recount":
            self._recount(job)
        elif job.stage == "commit":
            self._commit(job)

    def abort(self, index: int) -> None:
        if self._jobs:
            job = self._jobs[index % len(self._jobs)]
            if not job.is_waiting and not job.is_unsettled:
                self._end(job)

    def sweep(self) -> None:
        """What the pipeline does now and then."""
        if self._core.writer.broken is not None:
            return
        if self._left and not self._is_giving_up:
            row = self._left[-1]
            self._is_giving_up = self._submit(lambda commit: self._give_up(commit, row), self._gave_up)
        for job in list(self._jobs):
            if job.is_unsettled and not job.is_waiting:
                stored = stored_job(self._store, job.row.id)
                if stored is not None and stored.state in ENDED:
                    self._closed(job)
                else:
                    self._end(job)

    @property
    def is_over(self) -> bool:
        return not self._jobs and not self._left

    def finish(self) -> None:
        """Let everything that is open end, whatever it takes."""
        self.sweep()
        for index in range(len(self._jobs)):
            self.step(index)

    # -- steps

    def _look(self, job: RigJob) -> None:
        """Count what is there. A checkpoint makes durable what it holds; here: wait until nothing else is."""
        assert job.piece is not None
        if self._store.durable < len(self._store.log):
            return
        if job.piece.start_ms << 48 < self._core.directory.floor:
            # Expired since: a real checkpoint still has the rows, and the commit refuses what is near.
            self._end(job)
            return
        named = [{"start_ms": s.start_ms, "generation": s.generation, "shard": s.shard} for s in job.sources]
        view = {"start_ms": job.piece.start_ms, "end_ms": job.piece.end_ms, "sources": named}
        job.said = [Counts(**found) for found in pieces_of(self._store, view, job.cuts)]
        job.stage = "commit"

    def _commit(self, job: RigJob) -> None:
        tally = job.tally
        assert tally is not None

        def decide(commit: Commit) -> bool:
            if handover.cut(commit, tally, job.said, self._nearest()) is None:
                return False
            write_row(commit, msgspec.structs.replace(job.row, state=DONE, cuts=job.cuts))
            return True

        def decided(is_cut: Any) -> None:
            if is_cut:
                self.cut += 1
                self._closed(job)
            else:
                job.stage = "recount"

        self._ask(job, decide, decided)

    def _recount(self, job: RigJob) -> None:
        assert job.tally is not None
        if self._core.writer.broken is None:
            try:
                for _ in job.tally.step(self._store, 2):
                    pass
            except Refused:
                self._end(job)  # the store failed since: what was sealed is not there
            else:
                job.stage = "commit"

    def _end(self, job: RigJob) -> None:
        self._ask(job, lambda commit: self._give_up(commit, job.row), lambda answer: self._closed(job))

    def _give_up(self, commit: Commit, row: JobRow) -> None:
        write_row(commit, msgspec.structs.replace(row, state=ABORTED))

    def _gave_up(self, answer: Any) -> None:
        self._is_giving_up = False
        if not isinstance(answer, Exception):
            self._left.pop()

    def _closed(self, job: RigJob) -> None:
        self._jobs.remove(job)
        if job.piece is not None:
            job.piece.watch = None

    def _ask(self, job: RigJob, decide: Callable[[Commit], Any], done: Callable[[Any], None]) -> None:
        def answered(answer: Any) -> None:
            job.is_waiting = False
            if isinstance(answer, Refused):
                need(answer.why in ("too-near", "cuts", "wrong-state"), f"a split is refused: {answer}")
                if job.piece is None:
                    self._closed(job)
                else:
                    self._end(job)
            elif isinstance(answer, Exception):
                job.is_unsettled = True
            else:
                done(answer)

        job.is_waiting = self._submit(decide, answered)
        job.is_unsettled = job.is_unsettled or not job.is_waiting

    # -- leaves

    def _nearest(self) -> Position:
        return max(self._core.wheel.loaded, before(self._core.horizon.clock_ms + MARGIN_MS))

    def _is_free(self, piece: Slice) -> bool:
        taken = (job.row.slices[0] for job in self._jobs)
        return (
            before(piece.start_ms) > self._nearest()
            and next(piece.readable(), None) is not None
            and not any(one.start_ms <= piece.start_ms < one.end_ms for one in taken)
        )
