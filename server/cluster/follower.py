"""Following the log, and the election: a step at a time, without a loop.

A step waits for records that the log pushes, for HEAR_S at most. Then, and before a claim, it reads up to the
end of the log. If there was none for `takeover_s`, although the log could be read, the node claims the log.
While the log does not answer the leader is unknown: the time begins again when it does. The wait is only a
random moment, so that not all claim at once, if there is no leader to wait for:

    no node has ever led, or the leader has resigned (the node that it names does not wait)
    this node led: it was restarted, or its log did not answer for a while

Two nodes may claim at the same time. One claim becomes the record; the other node is Fenced and continues
following. That is the whole election.

**Clocks.** Each group of the leader contains the bound of dispatch, 2 s beyond the leader's clock. So a node
that reads groups as they come knows the distance between the two clocks. A node that is ahead by more than
SKEW_MS does not take the lead: it would deliver early. A group may be old when it is read: the log did not
answer, its append took long, this process hung. It was not there at the read before, so its age is assumed as
the time since then; and of all groups of an epoch the one most in favour of this node counts. The first read
has no such bound and is ignored. Another node whose clock is as this one's counts for more: the last leader's
was wrong then.
"""

import logging
import random
from collections.abc import Callable

from shards.errors import ShardsError
from shards.log.errors import Damaged, Doubtful, Fenced, LogError, NoLog, OtherLog, Trimmed
from shards.replicated import ReplicatedStore
from shards.store import Table
from shards.tables import META_CURSOR, cursor_from
from timeline.horizon import BOUND_MS

from ..engine.clock import Clock
from ..settings.config import Cluster
from .clock_judge import ClockJudge
from .clocks import SKEW_MS
from .standing import HEAL

log = logging.getLogger(__name__)

HEAR_S = 0.5
"""Maximum time between two reads up to the end."""
MOMENT_S = 0.3
"""Maximum random wait before a claim when there is no leader to wait for."""


class Follower:
    """A node on an open store, until it leads."""

    def __init__(
        self,
        settings: Cluster,
        store: ReplicatedStore,
        urls: str,
        clock: Clock,
        judge: ClockJudge,
        unfit: Callable[[], str],
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`urls`: where other nodes redirect clients. `unfit`: why this node cannot lead now, in words;
        empty: it can. `chance`: a random number in [0, 1)."""
        self._store = store
        self._node = settings.node
        self._urls = urls
        self._takeover_s = settings.takeover_after_ms / 1000
        self._clock = clock
        self._judge = judge
        self._unfit = unfit
        self._moment_s = chance() * MOMENT_S
        self._quiet_since = clock.mono()
        self._seen = float("-inf")
        self._read_at: float | None = None
        """Time of the last complete read."""
        self._leader_ms = 0
        """The leader's clock in the last group."""
        self._epoch = 0
        self._led_ms = float("-inf")
        """Maximum of the leader's clock minus our monotonic one, and its epoch."""
        self.why = ""
        """Why it cannot take the lead, or cannot follow, in words."""
        self.is_in_doubt = False
        """Whether it would lead if no node has a record more than this one."""

    def step(self, *, waits: bool = False) -> bool:
        """Read new records. Returns whether this node leads now. `waits`: first for one.

        Raises Trimmed, Damaged if the store cannot continue with this log; NoLog if that is gone;
        StoreFailed, Corrupt for the store itself.
        """
        began = self._clock.mono()
        hear_s = self._hear_s(began) if waits else 0.0
        try:
            count = self._store.follow(hear_s)
        except (Trimmed, Damaged, NoLog):
            raise
        except LogError as error:
            self._missed(error)
            return False
        now = self._clock.mono()
        if count or self._read_at is None:
            self._quiet_since = now
        if count and self._read_at is not None:
            self._seen = now
            self._compare_clocks(self._read_at)
        if not self._store.is_behind:
            self._read_at = began
        if hear_s > 0 and self._store.is_behind:
            return False
        if now - self._quiet_since < self._patience_s:
            self.why = ""
            return False
        ahead_ms = self._clock.wall_ms() - self._clock.mono() * 1000 - self._led_ms
        if SKEW_MS < ahead_ms < float("inf") and not self._judge.agrees:
            self.why = f"this node's clock is {ahead_ms / 1000:.1f} s ahead of the last leader's"
            return False
        self.why = self._unfit()
        return not self.why and self._claim()

    def _hear_s(self, now: float) -> float:
        """How long to wait before the log is read up to its end."""
        if self._read_at is None:
            return 0.0
        return max(0.0, min(self._read_at + HEAR_S, self._quiet_since + self._patience_s) - now)

    @property
    def hears_leader(self) -> bool:
        """Whether a new record has come lately."""
        return self._is_led and self._clock.mono() - self._seen < self._takeover_s

    @property
    def _patience_s(self) -> float:
        leader = self._store.leader
        if self._is_led or leader is None or leader.node or not leader.url:
            return self._takeover_s if self._is_led else self._moment_s
        # The leader has resigned, and named the one that is to be the first to claim.
        return 0.0 if leader.url == self._node else MOMENT_S + self._moment_s

    @property
    def _is_led(self) -> bool:
        """Whether another node made the last claim. The same name with another address counts as another."""
        leader = self._store.leader
        mine = self._node, self._urls
        return leader is not None and leader.node != "" and (leader.node, leader.url) != mine

    def _claim(self) -> bool:
        self.is_in_doubt = False
        try:
            self._store.lead(self._node, self._urls)
        except Fenced as error:
            log.info("lead: another node was faster: %s", error)
            self._quiet_since = self._clock.mono()
        except LogError as error:
            self.is_in_doubt = isinstance(error, Doubtful)
            self._missed(error)
        return self._store.is_leading

    def _missed(self, error: ShardsError) -> None:
        why = f"{error}; {HEAL}" if isinstance(error, OtherLog) else str(error)
        if why != self.why:
            log.warning("log: %s", why)
        self.why = why
        self._quiet_since = self._clock.mono()

    def _compare_clocks(self, since: float) -> None:
        """`since`: time of the last read, which did not have these records yet."""
        value = self._store.get(Table.META, META_CURSOR)
        leader_ms = 0 if value is None else cursor_from(value).bound_ms - BOUND_MS
        if leader_ms in (0, self._leader_ms):
            return  # a claim says nothing
        self._leader_ms, led_ms = leader_ms, leader_ms - since * 1000
        epoch = self._store.applied.epoch
        self._led_ms = max(self._led_ms, led_ms) if epoch == self._epoch else led_ms
        self._epoch = epoch
