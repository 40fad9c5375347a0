"""The cluster's metrics for Prometheus, on a leader or follower."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..observe.metrics import Scraped, labelled
from .view import View


class ClusterFigures(Scraped):
    """Reads the node's view of the cluster at each scrape."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        text = "1 for the state of this node (leader, follower, resync)"
        states = [(name, float(view["state"] == name)) for name in ("leader", "follower", "resync")]
        yield labelled(GaugeMetricFamily, "fasti_cluster_state", text, ("state",), states)
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
        text = "Records that a node has not applied durably, by node"
        lags = [(row["node"], row["lag"]) for row in view["nodes"]]
        yield labelled(GaugeMetricFamily, "fasti_cluster_lag_records", text, ("node",), lags)
        text = "Seconds since a node was heard, by node"
        heard = [(row["node"], row["heard_ms"] / 1000) for row in view["nodes"]]
        yield labelled(GaugeMetricFamily, "fasti_cluster_heard_seconds", text, ("node",), heard)
        yield CounterMetricFamily(
            "fasti_cluster_takeovers", "Times that this node has taken the lead", value=view["takeovers"]
        )
