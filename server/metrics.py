"""What the server counts, for Prometheus.

Hot paths keep plain integers (server/delivery/dispatch, server/mqtt) that are read when `/metrics` is asked
for. Only two things are noted as they happen: the lateness of each dispatch turn, counted by distinct ms
because most messages of a turn share one (0.05 µs a message, where a histogram's `observe` took 1.2), and
group commits.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .delivery.dispatch import Counts

if TYPE_CHECKING:
    from .app import App
    from .housekeeping import Housekeeping

LATENESS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000)
COMMIT_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
COMMIT_ROWS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)


class Metrics:
    """One server's registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answers: Tally[tuple[str, str, int]] = Tally()
        """HTTP answers by method, route and status."""
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

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A value that is read when somebody asks."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def dispatched(self, counts: Counts) -> None:
        """Take over the lateness of the last turn, ms."""
        if counts.late_ms:
            late, counts.late_ms = counts.late_ms, []
            for late_ms, count in Tally(late).items():
                self._late[bisect_left(LATENESS_MS, late_ms)] += count
                self._late_ms += late_ms * count

    def committed(self, rows: int, seconds: float) -> None:
        self._commit_s.observe(seconds)
        self._commit_rows.observe(rows)

    def lateness(self) -> Metric:
        """Dispatch time minus due, as a histogram in seconds."""
        bounds = [*(f"{bound / 1_000}" for bound in LATENESS_MS), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._late), strict=True))
        return HistogramMetricFamily(
            "fasti_lateness_seconds",
            "Dispatch time minus due, per stored message",
            buckets=buckets,
            sum_value=self._late_ms / 1_000,
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)


class ServerCollector(Collector):
    """The plain counters of an app, read when somebody asks."""

    def __init__(self, app: "App", housekeeping: "Housekeeping") -> None:
        self._app = app
        self._housekeeping = housekeeping

    def describe(self) -> Iterable[Metric]:
        """Nothing: or the registry would collect to find out the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield self._app.metrics.lateness()
        for name, text, value in (*self._counters(), *self._traffic()):
            yield CounterMetricFamily(f"fasti_{name}", text, value=value)
        for name, text, value in (*self._gauges(), *self._sessions()):
            yield GaugeMetricFamily(f"fasti_{name}", text, value=value)
        answers = CounterMetricFamily("fasti_http_answers", "Answers", labels=("method", "route", "status"))
        for (method, route, status), count in self._app.metrics.answers.items():
            answers.add_metric((method, route, str(status)), count)
        yield answers
        yield from self._jobs()

    def _jobs(self) -> Iterator[Metric]:
        pipeline = self._app.pipeline
        ended = CounterMetricFamily("fasti_jobs_ended", "Ended pipeline jobs", labels=("kind", "outcome"))
        for (kind, outcome), count in pipeline.outcomes.items():
            ended.add_metric((kind, outcome), count)
        yield ended
        rows = CounterMetricFamily("fasti_job_rows", "Rows moved or dropped by jobs", labels=("kind",))
        for kind, count in pipeline.rows.items():
            rows.add_metric((kind,), count)
        yield rows

    def _counters(self) -> Iterator[tuple[str, str, float]]:
        counts = self._app.core.dispatch.counts
        yield "messages_dispatched", "Stored messages that the horizon has passed", counts.dispatched
        yield "messages_expired", "Messages whose time to live was over at dispatch", counts.expired
        yield "messages_early", "Messages handed on before their due: always 0", counts.early
        yield "dispatch_turns", "Times that the horizon was moved", counts.turns
        yield "slices_expired", "Slices dropped after their retention", self._housekeeping.expired_slices
        yield "replays_lost", "Times that a session found its place dropped", self._app.core.replay.lost
        lost = self._app.core.replay.flights_lost
        yield "flights_lost", "Messages in flight dropped by retention before they were acked", lost
        refused = self._app.core.retained.refused
        yield "retained_refused", "Messages not retained: as many topics as limits.retained have one", refused
        refused = self._app.core.sessions.quota.refused
        yield "subscriptions_refused", "Subscriptions refused: one of the limits on them is reached", refused

    def _traffic(self) -> Iterator[tuple[str, str, float]]:
        traffic = self._app.core.broker.traffic
        yield "connects", "MQTT connections opened", traffic.connects
        yield "publishes_received", "Publishes received over MQTT", traffic.received
        yield "publishes_refused", "Publishes refused, with their reason code", traffic.refused
        yield "messages_delivered", "Messages sent to subscribers", traffic.sent
        yield (
            "wills_lost",
            "Wills given up, as too many could not be placed",
            self._app.core.broker.wills.lost,
        )
        yield "messages_dropped", "Deliveries dropped: larger than the subscriber takes", traffic.dropped

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        app = self._app
        yield "messages_pending", "Messages neither dispatched nor cancelled", app.core.opened.commit.pending
        yield (
            "messages_held",
            "Messages that wait because the clock was set back",
            app.core.opened.commit.held,
        )
        yield "writer_queued", "Messages' worth of requests that wait to be written", app.core.writer.queued
        yield (
            "writer_queued_bytes",
            "Bytes of requests that are not answered yet",
            app.core.writer.queued_bytes,
        )
        yield (
            "unreadable_stretches",
            "Stretches of messages that cannot be read",
            len(app.core.reader.unreadable),
        )
        passed_over = app.core.sessions.unreadable + app.core.schedules.unreadable
        yield "unreadable_rows", "Sessions, cursors and schedules that cannot be read", passed_over
        yield "groups_given_up", "Groups of requests that one request spoilt", app.core.writer.given_up
        yield "store_writable", "Whether the store takes writes", app.core.writer.broken is None
        yield "wheel_entries", "Messages in the wheel", len(app.core.wheel)
        yield "wheel_bytes", "Bytes in the wheel", app.core.wheel.bytes
        yield "tail_entries", "Dispatched messages in RAM for sessions that are caught up", len(app.core.tail)
        yield "tail_bytes", "Bytes of these", app.core.tail.bytes
        yield "live_publishes", "Plain publishes that wait for the horizon", app.core.dispatch.live
        yield "slices", "Slices in the directory", len(app.core.directory)
        yield "jobs_open", "Open pipeline jobs", app.pipeline.open
        yield "retained", "Topics with a retained message", app.core.retained.count
        quota = app.core.sessions.quota
        yield "subscriptions", "Subscriptions of all sessions", quota.count
        yield "subscription_bytes", "Bytes of their filters", quota.bytes
        yield "route_cache_bytes", "Bytes of the cache of who gets which topic", app.core.router.cached_bytes
        behind_ms = max(0, app.core.clock.wall_ms() - (app.core.horizon.position >> 48))
        yield "horizon_behind_seconds", "How far dispatch is behind the clock", behind_ms / 1_000

    def _sessions(self) -> Iterator[tuple[str, str, float]]:
        connected = in_flight = waiting = total = 0
        for subscriber in self._app.core.sessions:
            total += 1
            connected += subscriber.link is not None
            in_flight += len(subscriber.session.flights)
            waiting += subscriber.is_ready
        yield "sessions", "Sessions, connected and away", total
        yield "connections", "Sessions with a connection", connected
        yield "in_flight", "Messages sent at QoS 1 or 2 and not acked", in_flight
        yield "replay_queue", "Sessions that wait for their turn to read on", waiting
