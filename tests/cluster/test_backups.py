"""A backup of a node that follows: what it has of the log, without a word to the leader."""

import json
import time
import urllib.request
from pathlib import Path

from shards.replicated import applied_of
from shards.rocks import RocksStore
from tests.support.cluster import Cluster, Node


def backup(node: Node) -> Path:
    """Make one of this node's data."""
    said = json.dumps({"dir": f"b{time.time_ns()}"}).encode()
    asked = urllib.request.Request(
        f"{node.url}/v1/backups", said, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert answer.status == 201
        assert answer.url == f"{node.url}/v1/backups", "nobody was asked but this node"
        return Path(json.load(answer)["dir"])


def test_who_follows_makes_one_of_its_own_data(cluster: Cluster) -> None:
    node = cluster.others(cluster.leader())[0]
    folder = backup(node)
    assert folder.is_relative_to(node.data.parent)
    store = RocksStore(folder)
    assert applied_of(store).seq > 0
    store.close()
    assert (node.status() or {})["state"] == "follower"
