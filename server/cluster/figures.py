"""The cluster's metrics for Prometheus, on a leader or follower."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .view import View


class ClusterFigures(Collector):
    """Reads the node's view of the cluster at each scrape."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Nothing; otherwise the registry would collect everything once just for the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        state = GaugeMetricFamily(
            "fasti_cluster_state", "1 for the state of this node (leader, follower, resync)", labels=["state"]
        )
        for name in ("leader", "follower", "resync"):
            state.add_metric([name], float(view["state"] == name))
        yield state
        yield GaugeMetricFamily(
            "fasti_cluster_fit", "1: this node leads or could, 0: not, and `why` says why", value=view["fit"]
        )
        if view["clock_offset_ms"] is not None:
            yield GaugeMetricFamily(
                "fasti_cluster_clock_offset_seconds",
                "How far this node's clock is ahead of the other nodes' middle one; absent while unknown",
                value=view["clock_offset_ms"] / 1000,
            )
        yield GaugeMetricFamily("fasti_cluster_epoch", "Epoch of the last claim seen", value=view["epoch"])
        yield GaugeMetricFamily(
            "fasti_cluster_applied", "Last record of the log applied here", value=view["applied"]
        )
        lag = GaugeMetricFamily(
            "fasti_cluster_lag_records",
            "Records that a node has not applied durably, by node",
            labels=["node"],
        )
        heard = GaugeMetricFamily(
            "fasti_cluster_heard_seconds", "Seconds since a node was heard, by node", labels=["node"]
        )
        for row in view["nodes"]:
            lag.add_metric([row["node"]], row["lag"])
            heard.add_metric([row["node"]], row["heard_ms"] / 1000)
        yield lag
        yield heard
        yield CounterMetricFamily(
            "fasti_cluster_takeovers", "Times that this node has taken the lead", value=view["takeovers"]
        )
