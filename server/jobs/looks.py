"""Finds work for the server's own jobs, and decides how long to wait after a failure.

Every minute it goes through a table of looks, and starts the first job that has work:

    archive    a quarter of an hour that has passed with messages, or a commit that is not published
    expire     slices behind retention that the archive has
    compact    a day that is archived to its end, in many files; once an hour it looks
    split      a slice that has more rows than `slices.split_above`, and is further away than a job takes

After each failed job what it was for waits twice as long: some slices cannot be cut (all due in one instant),
and a Spark session costs a minute of processor time. An archive waits for five minutes at most: rows that are
not archived cannot be dropped. An expiry waits for an hour at most.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from shards.errors import ShardsError
from shards.jobs import ARCHIVE, COMPACT, DONE, EXPIRE, SPLIT
from timeline.position import before
from timeline.slices import Directory, Home

from ..engine.clock import Clock
from ..engine.writer import Busy
from .archiving import Archiving
from .expiring import Expiries
from .launch import Launcher
from .pipeline import NOTHING, Job, JobRefused, Pipeline
from .splitting import Splits

log = logging.getLogger(__name__)

FAR_MS = 1_200_000
"""How far beyond the nearest splittable time a slice must start: time for a session and millions of rows."""
WAIT_S, WAIT_MAX_S = 600.0, 86_400.0
ARCHIVE_S, ARCHIVE_MAX_S = 60.0, 300.0
EXPIRE_MAX_S = 3_600.0
COMPACT_S = 3_600.0
TRIES_MAX = 1_000
"""Maximum slices and days whose failures are remembered."""


class Look(NamedTuple):
    """A kind of job. `find`: what there is to do, or nothing; `start`: makes a job for it."""

    kind: str
    find: Callable[[], Any]
    start: Callable[[Any], Awaitable[Job]]
    wait_s: float = WAIT_S
    wait_max_s: float = WAIT_MAX_S


class Looks:
    """Starts one job at a time."""

    def __init__(
        self,
        pipeline: Pipeline,
        launcher: Launcher,
        splits: Splits,
        archiving: Archiving,
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
        self._directory = directory
        self._clock = clock
        self._split_above = split_above
        self._waits: dict[object, tuple[float, float]] = {}
        """(not before, waited), monotonic seconds, of what a job was started for."""
        self._last: tuple[str, object] | None = None
        archive = archiving.archive
        self._looks = (
            Look(ARCHIVE, archive.find, lambda _: archiving.create("server"), ARCHIVE_S, ARCHIVE_MAX_S),
            Look(EXPIRE, expiries.find, lambda _: expiries.create("server"), WAIT_S, EXPIRE_MAX_S),
            Look(COMPACT, archive.find_day, lambda _: archiving.create_compaction("server"), COMPACT_S),
            Look(SPLIT, self.overfull, lambda home: splits.create(home.start_ms, 0, "server")),
        )

    async def look(self) -> None:
        """Start the first job that has work, if any. What cannot be done now is tried at the next look."""
        self._learn()
        for look in self._looks:
            if self._launcher.why_not(look.kind) is None and await self._begin(look):
                return

    async def _begin(self, look: Look) -> bool:
        try:
            found = look.find()
            if not found or self._clock.mono() < self._waits.get(found, (0.0, 0.0))[0]:
                return False
            job = await look.start(found)
        except (JobRefused, ShardsError, Busy) as error:
            if getattr(error, "slug", "") == NOTHING:
                self._waits[found] = (self._clock.mono() + look.wait_s, look.wait_s / 2)
            else:
                log.warning("jobs: no %s started: %s", look.kind, error)
            return False
        waited = min(look.wait_max_s, 2 * self._waits.pop(found, (0.0, look.wait_s / 2))[1])
        self._waits[found] = (self._clock.mono() + waited, waited)
        self._last = job.row.id, found
        if len(self._waits) > TRIES_MAX:
            del self._waits[next(iter(self._waits))]
        return True

    def overfull(self) -> Home | None:
        """The slice that most needs a split job."""
        low = self._splits.nearest() + (FAR_MS << 48)
        pieces = [
            piece
            for piece in self._directory
            if before(piece.start_ms) > low
            and piece.count > self._split_above
            and self._pipeline.job_at(piece.start_ms) is None
            and self._clock.mono() >= self._waits.get(piece.home, (0.0, 0.0))[0]
        ]
        return max(pieces, key=lambda piece: piece.count).home if pieces else None

    def _learn(self) -> None:
        """Forget the wait of what the last job finished."""
        if self._last is not None:
            found = self._pipeline.get(self._last[0])
            if getattr(found, "state", "") == DONE:
                self._waits.pop(self._last[1], None)
