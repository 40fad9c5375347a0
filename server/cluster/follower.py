"""How a node follows, and when it takes the lead: sans loop, a step at a time.

A step reads what is new in the log. If there has been nothing new for `takeover_s`, although the log could be
read, the node claims it. A log that does not answer says nothing of who leads: the time begins again when it
does. Where nobody has to be waited for the wait is a moment, of random length so that not all claim at once:

    nobody has ever led, or who led has said that it does no more
    it was this node: it was started again, or its log was away for a while

Two may claim at the same time. One of the claims becomes the record, the other is Fenced and goes on
following; that is the whole election.

**Clocks.** Each group of the leader says up to which time dispatch may go, 2 s beyond its clock. So who reads
groups as they come sees how far its own clock is from the leader's. A node that is ahead by more than
SKEW_MS does not take the lead: it would deliver early. A group may be old when it is read: the log did not
answer, its append took long, this process hung. It was not there when the log was read before, so it is taken
for as old as that; and of all groups of an epoch the one counts that speaks most for this node. What is read
at the beginning says nothing.
"""

import logging
from collections.abc import Callable

from shards.errors import ShardsError
from shards.log.errors import Damaged, Fenced, LogError, Trimmed
from shards.replicated import ReplicatedStore
from shards.store import Table
from shards.tables import META_CURSOR, cursor_from
from timeline.horizon import BOUND_MS

log = logging.getLogger(__name__)

MOMENT_S = 0.3
"""Before a claim for which nobody has to be waited for; up to this, at random."""
SKEW_MS = 5_000
"""A node whose clock is further ahead of the leader's does not take the lead."""


class Follower:
    """One node on one opened store, until it leads."""

    def __init__(
        self,
        store: ReplicatedStore,
        *,
        node: str,
        urls: str,
        takeover_s: float,
        mono: Callable[[], float],
        wall_ms: Callable[[], int],
        chance: Callable[[], float],
    ) -> None:
        """`urls`: where others send the clients of this node. `chance`: from 0 up to 1, each time."""
        self._store = store
        self._node = node
        self._urls = urls
        self._takeover_s = takeover_s
        self._mono = mono
        self._wall_ms = wall_ms
        self._moment_s = chance() * MOMENT_S
        self._quiet_since = mono()
        self._seen = float("-inf")
        self._read_at: float | None = None
        """When all that the log had then was read."""
        self._told_ms = 0
        """The leader's clock, as the last group has told."""
        self._epoch = 0
        self._led_ms = float("-inf")
        """What the leader's clock is beyond our monotonic one, at most; of which epoch it is said."""
        self.why = ""
        """Why it could not take the lead, or cannot follow, in words."""

    def step(self) -> bool:
        """Read on; whether this node leads now.

        Raises Trimmed, Damaged: the store cannot go on with this log. StoreFailed, Corrupt: of the store
        itself.
        """
        began = self._mono()
        try:
            count = self._store.follow()
        except (Trimmed, Damaged):
            raise
        except LogError as error:
            self._missed(error)
            return False
        now = self._mono()
        if count or self._read_at is None:
            self._quiet_since = now
        if count and self._read_at is not None:
            self._seen = now
            self._compare_clocks(self._read_at)
        self._read_at = began
        if now - self._quiet_since < self._patience_s:
            self.why = ""
            return False
        ahead_ms = self._wall_ms() - self._mono() * 1000 - self._led_ms
        if SKEW_MS < ahead_ms < float("inf"):
            self.why = f"its clock is {ahead_ms / 1000:.1f} s ahead of the last leader's"
            return False
        return self._claim()

    @property
    def hears_leader(self) -> bool:
        """Whether something new has come lately."""
        return self._is_led and self._mono() - self._seen < self._takeover_s

    @property
    def _patience_s(self) -> float:
        return self._takeover_s if self._is_led else self._moment_s

    @property
    def _is_led(self) -> bool:
        """Whether another has claimed the log last. One with our name and another address is another."""
        leader = self._store.leader
        mine = self._node, self._urls
        return leader is not None and leader.node != "" and (leader.node, leader.url) != mine

    def _claim(self) -> bool:
        try:
            self._store.lead(self._node, self._urls)
        except Fenced as error:
            log.info("lead: another node was faster: %s", error)
            self._quiet_since = self._mono()
        except LogError as error:
            self._missed(error)
        return self._store.is_leading

    def _missed(self, error: ShardsError) -> None:
        if str(error) != self.why:
            log.warning("log: %s", error)
        self.why = str(error)
        self._quiet_since = self._mono()

    def _compare_clocks(self, since: float) -> None:
        """`since`: when what has been read now was not there yet."""
        value = self._store.get(Table.META, META_CURSOR)
        told_ms = 0 if value is None else cursor_from(value).bound_ms - BOUND_MS
        if told_ms in (0, self._told_ms):
            return  # a claim says nothing
        self._told_ms, led_ms = told_ms, told_ms - since * 1000
        epoch = self._store.applied.epoch
        self._led_ms = max(self._led_ms, led_ms) if epoch == self._epoch else led_ms
        self._epoch = epoch
