"""A node with another time zone database that takes the lead moves what is due by local time."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, Node

READY_S = 60.0


@pytest.fixture
def other_zones(cluster: Cluster, tmp_path: Path) -> Iterator[Node]:
    """One of those that follow, started again with a database of another name."""
    node = cluster.others(cluster.leader())[0]
    (tmp_path / "+VERSION").write_text("2099z\n")
    node.terminate()
    node.environ["PYTHONTZPATH"] = str(tmp_path)  # what is not there is taken from the package
    node.start()
    cluster.wait_ready()
    yield node
    node.environ.clear()
    node.kill()


def zones(node: Node) -> dict[str, Any]:
    status = node.status()
    assert status is not None
    found: dict[str, Any] = status["tzdata"]
    return found


def test_a_promotion_retimes(cluster: Cluster, other_zones: Node) -> None:
    first = cluster.leader()
    before = zones(first)["store"]
    wish = {"topic": "a", "payload": "x", "deliver_at": "2027-07-01T12:00[Europe/Berlin]"}
    body = json.dumps(wish).encode()
    asked = urllib.request.Request(
        f"{first.url}/v1/messages", body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 201
    (third,) = [node for node in cluster.nodes.values() if node not in (first, other_zones)]
    assert zones(other_zones) == {"node": "2099z", "store": before, "retime": True}
    third.terminate()
    first.kill()
    assert cluster.leader(READY_S, but=first) is other_zones
    assert zones(other_zones) == {"node": "2099z", "store": "2099z", "retime": False}
    assert (other_zones.status() or {})["takeovers"] == 1
    assert f"time zones: changed from {before} to 2099z" in other_zones.output
    assert "1 pending messages with a zone, 0 moved" in other_zones.output
