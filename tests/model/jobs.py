"""Split jobs in the model: each step of one can come at any time, or not at all.

The writer's side is the real one (shards/handover.py); the job is the plain one of tests/support/mover.py, on
the store in RAM. What server/jobs/pipeline.py does round it is done here by hand: a job whose step failed
with the store waits until the store is back, and its row says then what has become of it; a start gives up
what was open.
"""

import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import msgspec

from server.core import Core
from server.jobs.pipeline import write_row
from server.jobs.splitting import MARGIN_MS, with_parts
from shards import handover
from shards.borrow import Counts, span_counts
from shards.commit import Commit, Refused
from shards.cuts import Cut
from shards.jobs import (
    ABORTED,
    DONE,
    ENDED,
    MOVING,
    PLANNING,
    SPLIT,
    JobRow,
    PieceRow,
    stored_job,
    stored_jobs,
)
from shards.manifest import MovedFile, files_faults, manifest_faults, prefix_of
from shards.memory import write_table
from shards.store import Table
from tests.support.mover import move as plain_move
from timeline.position import Position, at_of, before
from timeline.slices import Slice

from .oracle import Disk, need

OPEN_MAX = 2
NOTED_MAX = 6

Submit = Callable[[Callable[[Commit], Any], Callable[[Any], None]], bool]


@dataclass(eq=False)
class RigJob:
    row: JobRow
    stage: str
    known: dict[int, int]
    folder: Path
    cut: Cut | None = None
    files: tuple[MovedFile, ...] = ()
    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Of the files, what is still to be put into a store that takes no files."""
    is_waiting: bool = False
    """For the writer's answer."""
    is_unsettled: bool = False


class Jobs:
    """All jobs of one server's life."""

    def __init__(self, core: Core, store: Disk, submit: Submit, hidden: set[bytes]) -> None:
        """`hidden`: prefixes under which rows may lie that are nobody's yet."""
        self._core = core
        self._store = store
        self._submit = submit
        self._hidden = hidden
        self._notes = core.opened.notes
        self._notes.most = NOTED_MAX
        self._jobs: list[RigJob] = []
        self._folder = Path(mkdtemp(prefix="fasti-model-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._count = 0
        self._is_giving_up = False
        self.moved = 0
        self._left = [row for row in stored_jobs(store) if row.state not in ENDED]

    def begin(self, index: int, r: Random) -> None:
        """Cut a slice that is far enough."""
        far = [p for p in self._core.directory if self._is_free(p)]
        if not far or len(self._jobs) >= OPEN_MAX:
            return
        piece = far[index % len(far)]
        if next(piece.readable(), None) is None:
            return
        rows = self._core.reader.read(before(piece.start_ms), before(piece.end_ms))
        ats = sorted({at_of(place) + r.choice((0, 0, 1)) for place, _, _ in rows})
        inside = [at for at in ats if piece.start_ms < at < piece.end_ms]
        cuts = sorted(r.sample(inside, min(len(inside), r.choice((0, 1, 1, 2)))))
        self._count += 1
        folder = self._folder / str(self._count)
        (folder / "scratch").mkdir(parents=True)
        sources = handover.sources_of(piece)
        slices = [PieceRow(piece.start_ms, piece.end_ms, piece.generation)]
        row = JobRow(
            f"j{len(self._store.log)}-{self._count}", SPLIT, "caller", PLANNING, 0, 1, slices, [sources]
        )
        parts = self._parts(piece)
        job = RigJob(with_parts(row, parts), "begin", {n: part.rows for n, part in parts.items()}, folder)

        def decide(commit: Commit) -> JobRow:
            cut = handover.begin(commit, slices[0].home, cuts, self._nearest(), job.known)
            job.cut = cut
            self._hidden |= {prefix_of(c, s.shard) for c in cut.children for s in cut.sources}
            self._notes.add(cut)
            begun = msgspec.structs.replace(
                job.row, state=MOVING, children=cut.children, sources=[cut.sources]
            )
            write_row(commit, begun)
            return begun

        def begun(answer: Any) -> None:
            job.row, job.stage = answer, "copy"

        self._jobs.append(job)
        self._ask(job, decide, begun)

    def step(self, index: int) -> None:
        """A job does what comes next."""
        if not self._jobs:
            return
        job = self._jobs[index % len(self._jobs)]
        if job.is_waiting or job.is_unsettled:
            return
        if job.cut is not None and job.cut.is_overrun:
            self._end(job)
        elif job.stage == "copy":
            self._copy(job)
        elif job.stage == "ingest":
            self._ingest(job)
        elif job.stage == "put":
            self._put(job)
        elif job.stage == "overwrite":
            self._overwrite(job)
        elif job.stage == "switch":
            self._switch(job)

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

    def _copy(self, job: RigJob) -> None:
        """A checkpoint makes durable what it holds; here: wait until there is nothing else."""
        assert job.cut is not None
        if self._store.durable < len(self._store.log):
            return
        if job.cut.start_ms << 48 < self._core.directory.floor:
            # Expired since: a real checkpoint still has the rows, and `switch` refuses what is near.
            self._end(job)
            return
        children = [
            {
                "start_ms": child.start_ms,
                "end_ms": child.end_ms,
                "generation": child.generation,
                "sources": [
                    {"start_ms": s.start_ms, "generation": s.generation, "shard": s.shard}
                    for s in job.cut.sources
                ],
            }
            for child in job.cut.children
        ]
        said = plain_move(self._store, children, job.folder, write_table)
        job.files = tuple(msgspec.convert(said, list[MovedFile]))
        faults = manifest_faults(job.files, job.cut.children, job.cut.sources, job.cut.rows)
        faults += files_faults(self._store, job.files, job.folder, job.folder / "scratch")
        need(not faults, f"an honest manifest is refused: {faults}")
        job.stage = "ingest"

    def _ingest(self, job: RigJob) -> None:
        if self._store.is_shared:
            for file in job.files:
                job.rows += self._store.rows_in(job.folder / file.name, job.folder / "scratch")
            job.stage = "put"
        elif self._core.writer.broken is None:
            self._store.ingest(Table.MESSAGES, [job.folder / file.name for file in job.files])
            job.stage = "overwrite"

    def _put(self, job: RigJob) -> None:
        """Some of the rows, as a group like any other."""
        if not job.rows:
            job.stage = "overwrite"
            return

        def copied(answer: Any) -> None:
            del job.rows[:2]

        self._ask(job, lambda commit: handover.copy(commit, job.rows[:2]), copied)

    def _overwrite(self, job: RigJob) -> None:
        cut = job.cut
        assert cut is not None

        def overwritten(left: Any) -> None:
            job.stage = "overwrite" if left else "switch"

        self._ask(job, lambda commit: handover.overwrite(commit, cut, 2), overwritten)

    def _switch(self, job: RigJob) -> None:
        cut = job.cut
        assert cut is not None

        def decide(commit: Commit) -> None:
            if cut.is_overrun:
                raise Refused("wrong-state", "too much has changed")
            handover.switch(commit, cut, job.files, self._nearest())
            write_row(commit, msgspec.structs.replace(job.row, state=DONE))

        def switched(answer: Any) -> None:
            self.moved += 1
            self._hidden -= {prefix_of(c, s.shard) for c in cut.children for s in cut.sources}
            self._closed(job)

        self._ask(job, decide, switched)

    def _end(self, job: RigJob) -> None:
        self._ask(job, lambda commit: self._give_up(commit, job.row), lambda answer: self._closed(job))

    def _give_up(self, commit: Commit, row: JobRow) -> None:
        if row.children:
            handover.discard(commit, row.children, row.sources[0])
        write_row(commit, msgspec.structs.replace(row, state=ABORTED))

    def _gave_up(self, answer: Any) -> None:
        self._is_giving_up = False
        if not isinstance(answer, Exception):
            self._left.pop()

    def _closed(self, job: RigJob) -> None:
        self._jobs.remove(job)
        if job.cut is not None:
            self._notes.drop(job.cut)

    def _ask(self, job: RigJob, decide: Callable[[Commit], Any], done: Callable[[Any], None]) -> None:
        def answered(answer: Any) -> None:
            job.is_waiting = False
            if isinstance(answer, Refused):
                need(answer.why in ("too-near", "cuts", "wrong-state"), f"a split is refused: {answer}")
                if job.cut is None:
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
        return before(piece.start_ms) > self._nearest() and not any(
            one.start_ms <= piece.start_ms < one.end_ms for one in taken
        )

    def _parts(self, piece: Slice) -> dict[int, Counts]:
        shared = handover.shared_sources(self._core.opened.directory, piece)
        return {
            shard.number: span_counts(self._store, shard.prefix, piece.start_ms, piece.end_ms)
            for shard in shared
        }
