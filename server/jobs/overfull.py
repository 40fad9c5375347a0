"""Finds work for jobs, and decides how long to wait after a failure.

Every minute it looks for work: slices behind retention if there is an archive for them, and overfull ones. A
slice is overfull if it has more rows than `slices.split_above`, and is further away than a job takes.

After each failed job a slice waits twice as long, up to a day: some slices cannot be cut (all due in one
instant), and a Spark session costs a minute of processor time.
"""

import logging

from shards.errors import ShardsError
from shards.jobs import DONE
from timeline.position import before
from timeline.slices import Directory, Home, Slice

from ..engine.clock import Clock
from ..engine.writer import Busy
from .expiring import Expiries
from .launch import Launcher
from .pipeline import JobRefused, Pipeline
from .splitting import Splits

log = logging.getLogger(__name__)

FAR_MS = 1_200_000
"""How far beyond the nearest splittable time a slice must start: time for a session and millions of rows."""
WAIT_S = 600.0
WAIT_MAX_S = 86_400.0
TRIES_MAX = 1_000
"""Maximum slices whose failures are remembered."""


class Overfull:
    """Finds work for jobs, and starts one at a time."""

    def __init__(
        self,
        pipeline: Pipeline,
        launcher: Launcher,
        splits: Splits,
        expiries: Expiries,
        directory: Directory,
        clock: Clock,
        *,
        split_above: int,
    ) -> None:
        """`split_above`: rows above which a slice is overfull."""
        self._pipeline = pipeline
        self._launcher = launcher
        self._splits = splits
        self._expiries = expiries
        self._directory = directory
        self._clock = clock
        self._split_above = split_above
        self._waits: dict[Home, tuple[float, float]] = {}
        """(not before, waited), monotonic seconds, of slices for which a job was started."""
        self._last: tuple[str, Home] | None = None

    async def look(self) -> None:
        """Start the most useful job, if any. What cannot be done now is tried at the next look."""
        if self._launcher.why_not() is not None:
            return
        self._learn()
        try:
            due = self._expiries.due() if self._expiries.has_archive else []
            if due and self._may(due[0].home):
                self._tried(due[0].home, (await self._expiries.create("server")).row.id)
                return
            piece = self.candidate()
            if piece is not None:
                job = await self._splits.create(piece.start_ms, 0, "server")
                self._tried(piece.home, job.row.id)
        except (JobRefused, ShardsError, Busy) as error:
            log.warning("jobs: none started: %s", error)

    def candidate(self) -> Slice | None:
        """The slice that most needs a split job."""
        low = self._splits.nearest() + (FAR_MS << 48)
        pieces = [
            piece
            for piece in self._directory
            if before(piece.start_ms) > low
            and piece.count > self._split_above
            and self._pipeline.job_at(piece.start_ms) is None
            and self._may(piece.home)
        ]
        return max(pieces, key=lambda piece: piece.count, default=None)

    def _may(self, home: Home) -> bool:
        return self._clock.mono() >= self._waits.get(home, (0.0, 0.0))[0]

    def _tried(self, home: Home, job: str) -> None:
        waited = min(WAIT_MAX_S, 2 * self._waits.pop(home, (0.0, WAIT_S / 2))[1])
        self._waits[home] = (self._clock.mono() + waited, waited)
        self._last = job, home
        if len(self._waits) > TRIES_MAX:
            del self._waits[next(iter(self._waits))]

    def _learn(self) -> None:
        """Forget the wait of slices that the last job finished."""
        if self._last is not None:
            found = self._pipeline.get(self._last[0])
            if getattr(found, "state", "") == DONE:
                self._waits.pop(self._last[1], None)
