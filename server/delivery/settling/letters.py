"""Dead letters: how many are kept, and for how long.

A message that goes to `$dead/...` is also kept, in the same batch: its delivery is dead from now on, with its
tries and the reason (shards/deliveries.py). Bounds: 100,000 and `dead.max_bytes`, beyond which the oldest is
dropped in the batch that brings a new one; and `dead.retention`, in running time of the server, enforced by
housekeeping. Dropped ones are counted.
"""

import logging
from contextlib import suppress

from shards import delivery_rows
from shards.commit import Commit
from shards.deliveries import bury, drop_older
from shards.delivery_rows import NONE, DeliveryRow
from shards.errors import StoreFailed
from shards.store import Store
from shards.tables import KeptTotals
from timeline.position import Position

from ...settings.config import Dead as Bounds

log = logging.getLogger(__name__)

SWEEP_LETTERS = 250
"""Maximum expired dead letters dropped in one step."""


class Letters:
    """The dead letters of one server. `buried`, `crowded_out`, `expired`: counts since the start."""

    def __init__(self, store: Store, bounds: Bounds) -> None:
        self._store = store
        self._bounds = bounds
        self._totals = NONE
        self.buried = self.crowded_out = self.expired = 0

    @property
    def totals(self) -> KeptTotals:
        """Their number and bytes; while the store cannot be read, the last known ones."""
        with suppress(StoreFailed):
            self._totals = delivery_rows.totals(self._store)
        return self._totals

    def half_of_room(self, commit: Commit) -> tuple[int, int]:
        """Half of the remaining room for dead letters, in messages and bytes."""
        now, bounds = delivery_rows.totals(commit.open_batch), self._bounds
        return max(0, bounds.max_messages - now.count) // 2, max(0, bounds.max_bytes - now.bytes) // 2

    def keep(self, commit: Commit, row: DeliveryRow) -> tuple[Position, int]:
        """Keep a row. Returns the time of death, and the number of evicted dead letters."""
        return bury(commit, row, max_messages=self._bounds.max_messages, max_bytes=self._bounds.max_bytes)

    def note_buried(self, count: int, gone: int = 0) -> None:
        """Count durable dead letters, and those evicted for them."""
        self.buried += count
        self.crowded_out += gone
        if gone:
            log.warning("dead letters: %d dropped, the limit or dead.max_bytes is reached", gone)

    def are_over(self, running_ms: int) -> bool:
        """Whether the retention of the oldest one is over."""
        oldest = delivery_rows.oldest_dead(self._store)
        return oldest is not None and oldest.running_ms < running_ms - self._bounds.retention_ms

    def drop_expired(self, commit: Commit, running_ms: int) -> int:
        """In the writer: drop a step's worth of expired ones. Returns their number.

        `running_ms`: now. The open group's own is from the last write, which may be long ago.
        """
        return drop_older(commit, running_ms - self._bounds.retention_ms, SWEEP_LETTERS)

    def note_expired(self, gone: int) -> None:
        """Count expired dead letters."""
        self.expired += gone
