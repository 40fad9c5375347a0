"""Takes samples of figures that exist, for the server's history (observe/history.py), in housekeeping.

Counters and gauges are read at each sample. Groups, sessions, the disk and reasons of retries cost reading,
so they are looked at once in LOOK_EACH samples, in steps between which others have turns; samples between
show the last look. Reasons of dead letters are read from the letters that came since the sample before. At
most STEPS steps are read of either: dead letters beyond count in the next sample, retries beyond do not
count.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator

from shards.delivery_rows import DeliveryRow
from shards.errors import ShardsError
from timeline.position import Position, before

from ..core import Core
from ..http.turns import Turns
from ..observe.history import GroupSample, History, Sample, SessionSample, cut, frequent
from ..observe.metrics import Metrics
from ..webhook.verdicts import Outcome
from ..webhook.webhooks import Webhooks
from .figures import behind, resident_bytes
from .status import Status, label_of

log = logging.getLogger(__name__)

LOOK_EACH = 6
STEPS = 10


class Sampling:
    """Samples of one server."""

    def __init__(
        self, core: Core, metrics: Metrics, status: Status, webhooks: Webhooks, turns: Turns, history: History
    ) -> None:
        self._core = core
        self._metrics = metrics
        self._status = status
        self._webhooks = webhooks
        self._turns = turns
        self._history = history
        self._until_look = 0
        self._dead_from = before(core.horizon.clock_ms)
        """Dead letters from here on are not counted yet."""
        self._retry_reasons: dict[str, int] = {}
        self._sessions: list[SessionSample] = []

    def begin(self) -> None:
        """Take the first sample, without what costs reading, so that nothing is counted before it."""
        self._history.add(self._sample({}))

    async def look(self) -> None:
        """Take a sample."""
        died: dict[str, int] = {}
        try:
            died, self._dead_from = await self._reasons(self._core.dead_letters.read, self._dead_from)
            if not self._until_look:
                self._until_look = LOOK_EACH
                self._retry_reasons, _ = await self._reasons(self._core.kept_retries.read, Position(0))
                await self._status.look(self._turns.apart())
                self._sessions = await self._status.sessions_behind(self._turns.apart())
        except ShardsError as error:
            log.warning("history: groups and reasons not read: %s", error)
        self._until_look = max(0, self._until_look - 1)
        self._history.add(self._sample(died))

    async def _reasons(
        self, read: Callable[[Position], Iterator[DeliveryRow]], start: Position
    ) -> tuple[dict[str, int], Position]:
        """Reasons of rows from `start` on, and where reading has ended."""
        reasons: Counter[str] = Counter()
        turn, is_end = self._turns.apart(), False
        for _ in range(STEPS):
            await turn.begin()
            is_end = True
            for row in read(start):
                start = Position(row.at + 1)
                reasons[cut(row.reason)] += 1
                if turn.is_over(0):
                    is_end = False
                    break
            reasons = Counter(frequent(reasons))
            if is_end:
                break
        return dict(reasons), start

    def _sample(self, died: dict[str, int]) -> Sample:
        core, status = self._core, self._status
        posts, traffic = self._webhooks.posted, core.publishing.traffic
        stored, free = status.disk or (None, None)
        return Sample(
            at_ms=core.horizon.clock_ms,
            counts=(
                self._metrics.accepted_count,
                traffic.received,
                core.dispatch.counts.dispatched,
                traffic.sent,
                core.pull.leased,
                posts[Outcome.DONE],
                posts[Outcome.AGAIN] + posts[Outcome.GONE],
                core.events.retried,
                core.dead_letter_queue.buried,
                core.dispatch.counts.unclaimed,
                core.burials.dropped.total(),
            ),
            late=self._metrics.late_counts,
            behind_ms=behind(core, core.clock.wall_ms()),
            pending=core.opened.waiting.pending,
            retries=core.opened.waiting.retries,
            dead_letters=core.dead_letter_queue.totals.count,
            memory_bytes=resident_bytes(),
            store_bytes=stored,
            disk_free_bytes=free,
            dead_reasons=died,
            retry_reasons=self._retry_reasons,
            groups=[
                GroupSample(
                    *row.labels,
                    row.lag_messages,
                    row.lag_is_exact,
                    row.lag_seconds,
                    row.in_flight,
                    row.retries,
                    *row.ends,
                )
                for row in status.rows
                if row.lag_messages or row.in_flight or row.retries or any(row.ends)
            ],
            sessions=self._sessions,
            failing={label_of(name): one.share for one, name in status.failing() if one.share},
        )
