"""Nodes that lack more than the log has: they take a copy of another one, and have the same rows then."""

from collections.abc import Callable

from tests.support.cluster import Cluster
from tests.support.nats import Nats

from .load import Load
from .test_failover import ACKS, check

Record = Callable[[str, object], None]


def trim(cluster: Cluster, nats: Nats) -> int:
    """All that the leader has applied but the last; the first record that is left."""
    log = (cluster.leader().status() or {})["log"]
    said = nats.api(f"STREAM.PURGE.{cluster.name}", {"seq": log["last"]})
    assert said.get("success"), said
    return int(log["last"])


def same(cluster: Cluster, record: Record) -> None:
    """All nodes have the same rows, once each has what the log has."""
    cluster.kill_all()
    rows, differences = cluster.differences()
    assert not differences, differences[:5]
    assert rows > 100
    record("counted", f"{rows} rows are the same on {len(cluster.nodes)} nodes")


def test_an_emptied_directory(cluster: Cluster, load: Load, record_property: Record) -> None:
    """The log has everything since its first record."""
    gone = cluster.others(cluster.leader())[0]
    gone.kill()
    cluster.wipe(gone)
    load.acked(ACKS)
    gone.start()
    cluster.wait_ready()
    check(load, record_property)
    same(cluster, record_property)


def test_a_trimmed_log(cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record) -> None:
    """One has nothing and one is behind what is left of the log; both take a copy while clients go on."""
    leader = cluster.leader()
    empty, behind = cluster.others(leader)
    empty.kill()
    behind.kill()
    cluster.wipe(empty)
    load.acked(ACKS)
    trim(cluster, nats_servers)
    load.acked(ACKS)
    empty.start()
    behind.start()
    cluster.wait_ready()
    load.acked(ACKS)
    leader.kill()
    cluster.leader(but=leader)
    load.acked(ACKS)
    leader.start()
    cluster.wait_ready()
    check(load, record_property)
    same(cluster, record_property)
