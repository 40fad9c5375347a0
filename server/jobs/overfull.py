"""What the server would have a job do now, and how long it leaves alone what has failed.

Overfull is a slice with more rows than `slices.split_above`. One that borrows has been cut already and
waits for its bytes to be moved. Of both only those count that are further away than a job takes.
"""

import logging

from shards.errors import ShardsError
from shards.jobs import DONE
from timeline.position import before
from timeline.slices import Home, Slice

from ..writer import Busy
from . import expiring, splitting
from .pipeline import JobRefused, Pipeline

log = logging.getLogger(__name__)

FAR_MS = 1_200_000
"""So far behind what can be cut at all a slice must start: time for a session and millions of rows."""
WAIT_S = 600.0
WAIT_MAX_S = 86_400.0
TRIES_MAX = 1_000
"""Slices whose failures are remembered."""


class Overfull:
    """Notices work for jobs, and starts one at a time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._waits: dict[Home, tuple[float, float]] = {}
        """(not before, waited), monotonic seconds, of slices that a job was started for."""
        self._last: tuple[str, Home] | None = None

    async def look(self) -> None:
        """Start the most useful job, if any. What cannot be done now is tried again at the next look."""
        pipeline = self._pipeline
        if not pipeline.url or pipeline.launcher.why_not() is not None:
            return
        self._learn()
        try:
            if pipeline.app.jobs_expire and pipeline.expired():
                home = pipeline.expired()[0].home
                if self._may(home):
                    self._tried(home, (await expiring.create(pipeline, "server")).row.id)
                    return
            piece = self.candidate()
            if piece is not None:
                job = await splitting.create(pipeline, piece.start_ms, 0, "server")
                self._tried(piece.home, job.row.id)
        except (JobRefused, ShardsError, Busy) as error:
            log.warning("no job was started: %s", error)

    def candidate(self) -> Slice | None:
        """The slice that most needs a split job."""
        pipeline = self._pipeline
        low = pipeline.nearest() + (FAR_MS << 48)
        most = pipeline.app.core.config.slices.split_above
        pieces = [
            piece
            for piece in pipeline.app.core.directory
            if before(piece.start_ms) > low
            and (piece.borrowed or piece.count > most)
            and pipeline.job_at(piece.start_ms) is None
            and self._may(piece.home)
        ]
        return max(pieces, key=lambda piece: (bool(piece.borrowed), piece.count), default=None)

    def _may(self, home: Home) -> bool:
        return self._pipeline.app.core.clock.mono() >= self._waits.get(home, (0.0, 0.0))[0]

    def _tried(self, home: Home, job: str) -> None:
        waited = min(WAIT_MAX_S, 2 * self._waits.pop(home, (0.0, WAIT_S / 2))[1])
        self._waits[home] = (self._pipeline.app.core.clock.mono() + waited, waited)
        self._last = job, home
        if len(self._waits) > TRIES_MAX:
            del self._waits[next(iter(self._waits))]

    def _learn(self) -> None:
        """What the last job did well need not wait."""
        if self._last is not None:
            found = self._pipeline.get(self._last[0])
            if getattr(found, "state", "") == DONE:
                self._waits.pop(self._last[1], None)
