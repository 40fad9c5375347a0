"""Metrics counted as events happen.

Hot paths keep plain integers (server/delivery/dispatch, server/delivery/publishing), which
server/reports/figures.py reads for `/metrics`. This file counts only what cannot be read later: HTTP answers
and connections, group commits, and the lateness of each dispatch turn. Lateness is counted by distinct ms,
because most messages of a turn share one (0.05 µs a message, where a histogram's `observe` took 1.2).
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from platform import python_version
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..build import form
from .version import server_version

OF_ALL = ("fasti_build", "fasti_horizon_behind_seconds", "fasti_cluster_")
"""Name prefixes of metrics that do not depend on clients."""
LATENESS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000)
TURN_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
COMMIT_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
TOOK_MS = (1, 2, 5, 10, 25, 50, 100, 250, 1_000, 5_000, 30_000)
SYNC_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
COMMIT_ROWS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)


class _Buckets:
    """Counts of values by upper bound, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += count
        self.total += value * count

    def up_to(self, as_text: Callable[[float], str]) -> list[tuple[str, int]]:
        """Upper bounds as text, and the number of values up to each."""
        return list(zip([*map(as_text, self._bounds), "+Inf"], accumulate(self.counts), strict=True))


def _in_s(ms: float) -> str:
    return f"{ms / 1_000}"


class Metrics:
    """One server's registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answers: Tally[tuple[str, str, int]] = Tally()
        """HTTP answers by method, route and status."""
        self.connections = 0
        """Open HTTP connections, ..."""
        self.connections_mqtt = 0
        """... and open MQTT connections, authenticated or not."""
        self.bounded: Tally[str] = Tally()
        """HTTP connections refused or closed, by the setting of the bound."""
        self.bounded_mqtt: Tally[str] = Tally()
        """The same for MQTT."""
        self.accepted = Counter(
            "fasti_messages_accepted", "Messages accepted over HTTP and stored", registry=self.registry
        )
        self.cancelled = 0
        """Successful cancels, ..."""
        self.moved = 0
        """... and moves."""
        self._took: defaultdict[tuple[str, int], _Buckets] = defaultdict(partial(_Buckets, TOOK_MS))
        """HTTP answers by route and class of status, by their time."""
        self._sync_s = Histogram(
            "fasti_sync_seconds",
            "One sync of the disk, a part of fasti_commit_seconds",
            buckets=SYNC_S,
            registry=self.registry,
        )
        Info("fasti_build", "1; version, build (pure, compiled), python", registry=self.registry).info(
            {"version": server_version(), "build": form(), "python": python_version()}
        )
        self._commit_s = Histogram(
            "fasti_commit_seconds",
            "From write to durable, per group commit",
            buckets=COMMIT_S,
            registry=self.registry,
        )
        self._commit_rows = Histogram(
            "fasti_commit_rows", "Rows per group commit", buckets=COMMIT_ROWS, registry=self.registry
        )
        self._late = _Buckets(LATENESS_MS)
        self._turns = _Buckets(TURN_S)
        ProcessCollector(registry=self.registry)

    def tell_http(self, count: int) -> None:
        """Set the number of open HTTP connections."""
        self.connections = count

    def tell_mqtt(self, count: int) -> None:
        """Set the number of open MQTT connections."""
        self.connections_mqtt = count

    def dispatched(self, late_ms: Sequence[int]) -> None:
        """Count dispatched stored messages; `late_ms`: lateness of each."""
        for ms, count in Tally(late_ms).items():
            self._late.add(ms, count)

    def turned(self, seconds: float) -> None:
        """Count a turn of the event loop that had work, by its length."""
        self._turns.add(seconds)

    def answered(self, method: str, route: str, status: int, took_ms: int | None) -> None:
        """Count an answered HTTP request; `took_ms`: since its body had arrived; None: not timed."""
        self.answers[method, route, status] += 1
        if took_ms is not None:
            self._took[route, status // 100].add(took_ms)

    def answered_many(
        self, method: str, route: str, status: int, came_ms: Sequence[int], now_ms: int
    ) -> None:
        """Count requests that are answered together: single messages of one group commit.

        `came_ms`: wall clock times at which their bodies had arrived; the clock may have been set back since.
        With 64 at once each takes 0.1 µs; one by one they took 2 to 3.
        """
        self.answers[method, route, status] += len(came_ms)
        took = self._took[route, status // 100]
        for ms, count in Tally(came_ms).items():
            took.add(max(0, now_ms - ms), count)

    def latency(self) -> Metric:
        """Time of HTTP requests, by route and class of status."""
        family = HistogramMetricFamily(
            "fasti_http_seconds",
            "From a request's body to its answer, by route and class of status (2xx); not of streams",
            labels=("route", "status"),
        )
        for (route, status), took in self._took.items():
            family.add_metric((route, f"{status}xx"), took.up_to(_in_s), took.total / 1_000)
        return family

    def committed(self, rows: int, seconds: float, sync_s: float) -> None:
        """Count a durable group; `seconds`: since it was written, `sync_s`: the disk's sync."""
        self._sync_s.observe(sync_s)
        self._commit_s.observe(seconds)
        self._commit_rows.observe(rows)

    @property
    def accepted_count(self) -> int:
        """Value of `accepted`."""
        return int(next(iter(self.accepted.collect())).samples[0].value)

    @property
    def late_counts(self) -> tuple[int, ...]:
        """Dispatched messages by lateness, as LATENESS_MS, and beyond."""
        return tuple(self._late.counts)

    def late(self) -> list[tuple[str, int]]:
        """Upper bounds, seconds as text, and the number of messages with at most that lateness."""
        return self._late.up_to(_in_s)

    def lateness(self) -> Metric:
        """Dispatch time minus due, as a histogram in seconds."""
        return HistogramMetricFamily(
            "fasti_lateness_seconds",
            "Dispatch time minus due, per stored message",
            buckets=self.late(),
            sum_value=self._late.total / 1_000,
        )

    def turns(self) -> Metric:
        """How long the loop was held in one turn."""
        return HistogramMetricFamily(
            "fasti_turn_seconds",
            "One turn of the event loop, with all its work: so long everything else waits",
            buckets=self._turns.up_to(str),
            sum_value=self._turns.total,
        )

    def collected(self, *, is_whole: bool = True) -> "Collected":
        """Collect metrics now, for any thread to write out. `is_whole` False: only those that do not depend
        on clients."""
        families = self.registry.collect()
        return Collected([one for one in families if is_whole or one.name.startswith(OF_ALL)])


class Collected:
    """Metrics of one moment. Writing out 2,000 sessions and groups takes 40 ms."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        """The interface of a registry."""
        return self._families

    def text(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(cast("CollectorRegistry", self))


class Scraped(Collector):
    """Metrics, computed when Prometheus asks for them."""

    def describe(self) -> Iterable[Metric]:
        """Returns nothing, so that the registry does not collect everything once for the names."""
        return ()


def labelled(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    labels: Sequence[str],
    values: Iterable[tuple[str | tuple[str, ...], float]],
) -> Metric:
    """A metric with one value for each label, or tuple of labels."""
    family = kind(name, text, labels=labels)
    for label, value in values:
        family.add_metric((label,) if isinstance(label, str) else label, value)
    return family
