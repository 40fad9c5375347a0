"""Which slices may go, and what holds them: their retention is over, nobody needs them, the archive has them.

Without an archive, and if configured so, housekeeping drops them alone (`drop`), except for slices that a job
is archiving. Else only an expire job does (server/jobs/expiring.py).

While the archive holds slices, giving up a place would free nothing. So none is given up to
`store.min_free`; at that point no more messages are taken.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import takewhile

from shards.expiry import expire
from shards.recover import Opened
from timeline.position import END, Position, before
from timeline.slices import Slice

from ..engine.archive import Archive
from ..engine.writer import Ask
from ..settings.config import Slices
from .floor import Floor

SLICES_MAX = 100
"""Maximum slices dropped at once, in one job or one batch."""
SETTLE_LOOKS, SETTLE_PAUSE_S = 1_000, 0.005
"""A call waits at most some 5 s for sessions' unfinished messages; housekeeping continues after it."""
HELD = "the disk has less than store.min_free, and slices behind retention wait for the archive"


class Retention:
    """Retention of one server."""

    def __init__(self, ask: Ask, opened: Opened, slices: Slices, floor: Floor, archive: Archive) -> None:
        self._ask = ask
        self._opened = opened
        self._slices = slices
        self._floor = floor
        self._archive = archive
        self.dropped = 0
        """Slices dropped without a job."""
        self.is_short = False
        """The disk has less than `store.min_free`."""
        self.full = ""
        """Why no more messages are taken."""

    @property
    def need_a_job(self) -> bool:
        """Whether slices behind retention are dropped only by a job."""
        return self._slices.expire_by == "job" or bool(self._archive.url)

    def due(self, url: str = "") -> list[Slice]:
        """Slices whose retention is over and that nothing needs, oldest first, at most SLICES_MAX; with an
        archive only those that are in it. Raises Corrupt."""
        pieces = self._over(self._slices.retention_ms, self._floor.free)[:SLICES_MAX]
        if not url:
            return pieces
        covered_ms = self._archive.covered_ms(url)
        return list(takewhile(lambda piece: piece.end_ms <= covered_ms, pieces))

    @property
    def archived(self) -> Position:
        """The archive does not hold slices before this position. Raises Corrupt."""
        url = self._archive.url
        return before(self._archive.covered_ms(url)) if url else END

    def note_disk(self, *, is_short: bool) -> None:
        """Look whether the archive holds slices, and if the disk has less than `store.min_free`, take no more
        messages until it does not. Raises Corrupt."""
        self.is_short, self.full = is_short, ""
        if self._archive.url:
            self._archive.look(self._archive.url)
            kept, free = (self._over(self._slices.retention_ms, at) for at in (END, self._floor.free))
            # What a place needs too is given up only if the archive has it.
            is_held = free or (kept and before(kept[0].end_ms) > self.archived)
            if is_short and is_held:
                self.full = HELD

    async def settle(self) -> bool:
        """Turn sessions' unfinished messages of the next slices into dead letters, or count them. False: not
        finished yet; the slices wait for it. Raises StoreFailed, Busy."""
        end = self.end_of(self._slices.retention_ms, self._floor.needed)
        if end is None or end <= self._floor.settled:
            return True
        for _ in range(SETTLE_LOOKS):
            if not await self._ask(partial(self._floor.settle, before=end)):
                return True
            await asyncio.sleep(SETTLE_PAUSE_S)
        return False

    def end_of(self, kept_ms: int, needed: Position = END) -> Position | None:
        """The end of the slices before `needed` that the horizon passed at least `kept_ms` ago; None: there
        are none."""
        pieces = self._over(kept_ms, needed)
        return before(pieces[-1].end_ms) if pieces else None

    @property
    def kept(self) -> tuple[Position, int] | None:
        """The end of the oldest slice whose retention is over, and for how many seconds; None: there is
        none."""
        pieces = self._over(self._slices.retention_ms, END)
        if not pieces:
            return None
        passed_s = self._opened.open_batch.running_ms // 1000 - (pieces[0].passed_s or 0)
        return before(pieces[0].end_ms), passed_s - self._slices.retention_ms // 1000

    async def drop(self, is_taken: Callable[[Slice], bool]) -> list[Slice]:
        """Drop slices behind retention without a job, up to the first one that a job is archiving. Returns
        the dropped ones. Raises StoreFailed, Busy.

        The writer chooses again: a job may have dropped some meanwhile, or begun to archive them.
        """

        def free() -> list[Slice]:
            return list(takewhile(lambda piece: not is_taken(piece), self.due()))

        if not free():
            return []
        gone: list[Slice] = await self._ask(lambda commit: expire(commit, free()))
        self.dropped += len(gone)
        return gone

    def _over(self, kept_ms: int, needed: Position) -> list[Slice]:
        running_s = self._opened.open_batch.running_ms // 1000
        return self._opened.directory.expired(running_s, kept_ms // 1000, needed)
