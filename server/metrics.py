"""What the server counts, for Prometheus.

Counters that hot paths keep as plain integers (server/dispatch, server/mqtt) are read when `/metrics` is
asked for; only the lateness of each dispatch turn and the group commits are observed as they happen.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .dispatch import Counts

LATENESS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300, 3600)
COMMIT_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
COMMIT_ROWS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)


class Metrics:
    """One server's registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.accepted = Counter(
            "fasti_messages_accepted", "Messages accepted over HTTP and stored", registry=self.registry
        )
        self._lateness = Histogram(
            "fasti_lateness_seconds",
            "Dispatch time minus due, per stored message",
            buckets=LATENESS_S,
            registry=self.registry,
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

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A value that is read when somebody asks."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def dispatched(self, counts: Counts) -> None:
        """Take over the lateness of the last turn, ms."""
        if counts.late_ms:
            late, counts.late_ms = counts.late_ms, []
            observe = self._lateness.observe
            for late_ms in late:
                observe(late_ms / 1000)

    def committed(self, rows: int, seconds: float) -> None:
        self._commit_s.observe(seconds)
        self._commit_rows.observe(rows)

    def render(self) -> bytes:
        return generate_latest(self.registry)
