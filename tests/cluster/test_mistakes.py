"""What docs/cluster.md says of operators' mistakes: how it shows, and what mends it."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.support.cluster import KEY, Cluster, Node
from tests.support.nats import Nats

from .ledger import Load
from .test_catching_up import same
from .test_failover import ACKS, TAKEOVER_S, acked_by, check

Record = Callable[[str, object], None]
PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
SAID_S = 20.0


def says(cluster: Cluster, node: Node, words: str) -> None:
    """The page quotes them, and the node says so in `why`."""
    assert f"`{words}`" in re.sub(r"\s+", " ", PAGE)
    cluster.until(lambda: words in (node.status() or {}).get("why", ""), f"does not say {words}", SAID_S)


def test_the_log_is_purged_while_all_are_stopped(
    cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record
) -> None:
    """The others have less than who led; its last record is all that the log has to be continued from."""
    load.acked(ACKS)
    leader = cluster.leader()
    for node in cluster.others(leader):
        node.kill()
    assert leader.terminate() == 0
    assert nats_servers.api(f"STREAM.PURGE.{cluster.name}", {}).get("success")
    cluster.start()
    cluster.wait_ready()
    load.acked(ACKS)
    check(load, record_property)
    same(cluster, record_property)


def test_a_node_has_another_key(cluster: Cluster, load: Load, record_property: Record) -> None:
    leader = cluster.leader()
    node, third = cluster.others(leader)
    node.kill()
    node.environ["FASTI__CLUSTER__KEY"] = KEY[::-1]
    node.start()
    says(cluster, node, "another cluster.key")
    third.stop()
    leader.kill()
    assert acked_by(node.http, 2 * TAKEOVER_S) == 0
    says(cluster, node, "another cluster.key")
    third.resume()
    cluster.leader(but=leader)
    load.acked(ACKS)
    node.kill()
    del node.environ["FASTI__CLUSTER__KEY"]
    cluster.start()
    cluster.wait_ready()
    check(load, record_property)


def test_a_node_gets_an_old_copy_of_its_data(
    cluster: Cluster, load: Load, record_property: Record, tmp_path: Path
) -> None:
    node = cluster.others(cluster.leader())[0]
    node.kill()
    shutil.copytree(node.data, tmp_path / "old")
    node.start()
    cluster.wait_ready()
    load.acked(ACKS)
    node.kill()
    cluster.wipe(node)
    shutil.copytree(tmp_path / "old", node.data)
    node.start()
    cluster.wait_ready()
    check(load, record_property)
    same(cluster, record_property)
