"""The leader's lease: how long a node may lead without proof that it still does.

Each group that comes into the log is that proof, or else a heartbeat. Before another node takes the lead, it
waits for the duration of a lease from when it has *seen* the last record, which is after the leader began it.
So a leader that keeps to its lease hands on and acknowledges nothing beside another leader. That is a
courtesy to clients: the log's fence keeps the log safe, whatever clocks do.

The wall clock has no part in it: it may be set back while groups are due.

A loop that is busy for longer than the lease is no reason to end a term: the next leader's would be as busy.
So for half of the lease the heartbeat is the loop's, and then another thread's (server/cluster/beats.py).
"""

from collections.abc import Callable

from .clock import Clock

BEATS = 4
"""Groups in the time of a lease, at least."""


class Lease:
    """Lasts `for_s` from the beginning of the last append that succeeded."""

    def __init__(self, clock: Clock, for_s: float) -> None:
        self.for_s = for_s
        self._clock = clock
        self._since = clock.mono()
        self._is_over = False

    def end(self) -> None:
        """Another node may lead from now on."""
        self._is_over = True

    def renew(self, since: float) -> None:
        """An append that was begun then has come into the log. In monotonic seconds."""
        self._since = max(self._since, since)

    def renewed_by(self, append: Callable[[], None]) -> None:
        """Append, and last from its beginning on. Raises what it raises."""
        since = self._clock.mono()
        append()
        self.renew(since)

    @property
    def is_fresh(self) -> bool:
        return not self._is_over and self._clock.mono() - self._since < self.for_s

    @property
    def is_due(self) -> bool:
        """Whether a group should be written, so that it stays so."""
        return self._clock.mono() - self._since > self.for_s / BEATS

    @property
    def is_late(self) -> bool:
        """Whether the loop should have written that group by now."""
        return not self._is_over and self._clock.mono() - self._since > self.for_s / 2
