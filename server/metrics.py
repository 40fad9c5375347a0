"""What is counted as it happens.

Hot paths keep plain integers (server/delivery/dispatch, server/delivery/broker) that server/figures.py reads
when `/metrics` is asked for. Only what a reader cannot find out later is noted here: HTTP answers and
connections, the lateness of each dispatch turn, counted by distinct ms because most messages of a turn share
one (0.05 µs a message, where a histogram's `observe` took 1.2), and group commits.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric

LATENESS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000)
COMMIT_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
COMMIT_ROWS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)


class Metrics:
    """One server's registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answers: Tally[tuple[str, str, int]] = Tally()
        """HTTP answers by method, route and status."""
        self.connections = 0
        """Open HTTP connections."""
        self.bounded: Tally[str] = Tally()
        """HTTP connections that were refused or closed, by the setting that is their bound."""
        self.bounded_mqtt: Tally[str] = Tally()
        """The same of MQTT."""
        self.accepted = Counter(
            "fasti_messages_accepted", "Messages accepted over HTTP and stored", registry=self.registry
        )
        self._commit_s = Histogram(
            "fasti_commit_seconds",
            "From write to durable, per group",
            buckets=COMMIT_S,
            registry=self.registry,
        )
        self._commit_rows = Histogram(
            "fasti_commit_rows", "Rows per group commit", buckets=COMMIT_ROWS, registry=self.registry
        )
        self._late = [0] * (len(LATENESS_MS) + 1)
        self._late_ms = 0
        ProcessCollector(registry=self.registry)

    def dispatched(self, late_ms: Sequence[int]) -> None:
        """Stored messages were dispatched; how late each was, ms."""
        for ms, count in Tally(late_ms).items():
            self._late[bisect_left(LATENESS_MS, ms)] += count
            self._late_ms += ms * count

    def committed(self, rows: int, seconds: float) -> None:
        """A group is durable; how long after it was written, s."""
        self._commit_s.observe(seconds)
        self._commit_rows.observe(rows)

    def late(self) -> list[tuple[str, int]]:
        """The upper bound, seconds as text, and how many messages were that late at most."""
        bounds = [*(f"{bound / 1_000}" for bound in LATENESS_MS), "+Inf"]
        return list(zip(bounds, accumulate(self._late), strict=True))

    def lateness(self) -> Metric:
        """Dispatch time minus due, as a histogram in seconds."""
        return HistogramMetricFamily(
            "fasti_lateness_seconds",
            "Dispatch time minus due, per stored message",
            buckets=self.late(),
            sum_value=self._late_ms / 1_000,
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)
