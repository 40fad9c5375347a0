"""What docs/cluster.md says of operators' mistakes: how it shows, and what mends it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.cluster import KEY, Cluster, Node
from tests.support.nats import Nats
from tests.support.server import ROOT, environment

from .conftest import SETTINGS
from .load import Calls, Load
from .test_backups import backup
from .test_catching_up import same, trim
from .test_damage import rot
from .test_failover import ACKS, TAKEOVER_S, acked_by, check
from .test_trouble import command, posted

Record = Callable[[str, object], None]
PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
SAID_S = 60.0


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


def scheduled(node: Node) -> str:
    """The id of a message that is due in an hour."""
    calls = Calls([node.http])
    body = json.dumps({"topic": "far", "payload": "x", "deliver_in": "1h"}).encode()
    status, said = calls.ask("POST", "/v1/messages", body, Content_Type="application/json")
    calls.close()
    assert status == 201, said
    return str(said["id"])


def test_all_go_back_to_a_backup(cluster: Cluster, nats_servers: Nats) -> None:
    """With the log: else that would undo it."""
    assert "`nats stream rm fasti`" in PAGE
    leader = cluster.leader()
    before = scheduled(leader)
    folder = backup(leader)
    after = scheduled(leader)
    for node in (*cluster.others(leader), leader):
        assert node.terminate() == 0
        cluster.wipe(node)
    assert nats_servers.api(f"STREAM.DELETE.{cluster.name}", {}).get("success")
    shutil.copytree(folder, leader.data)
    cluster.start()
    calls = Calls([cluster.wait_ready().http])
    found = [calls.ask("GET", f"/v1/messages/{name}")[0] for name in (before, after)]
    calls.close()
    assert found == [200, 404]


def test_no_node_is_whole(cluster: Cluster, nats_servers: Nats) -> None:
    """One is left, with rotten blocks, and the log lacks what new nodes need: a repair, and a log anew."""
    last = cluster.leader()
    others = cluster.others(last)
    body = json.dumps([{"topic": "far", "payload": "x" * 100, "deliver_in": "1h"}] * 1_000).encode()
    assert posted(f"{last.url}/v1/messages:batch", body)[0] == 201
    for node in others:
        node.kill()
        cluster.wipe(node)
    cluster.until(lambda: alive(last) == [last.name], "the others are heard", SAID_S)
    shutil.rmtree(backup(last))
    rot(last)
    cluster.until(lambda: "data is damaged" in (last.status() or {})["why"], "it does not say so", SAID_S)
    trim(cluster, nats_servers)
    cluster.start()
    for node in others:
        says(cluster, node, "This node's data is damaged")
    for node in (*others, last):
        assert node.terminate() == 0
    for node in others:
        cluster.wipe(node)
    for words in (("leave",), ("verify", "--repair")):
        assert f"fasti-server {' '.join(words)} --data DIR" in PAGE
        offline = [sys.executable, "-m", "server", *words, "--data", str(last.data)]
        assert subprocess.run(offline, cwd=ROOT, env=environment({})).returncode == 0
    assert nats_servers.api(f"STREAM.DELETE.{cluster.name}", {}).get("success")
    cluster.start()
    assert (cluster.wait_ready().status() or {})["why"] == ""
    scheduled(cluster.leader())


def alive(node: Node) -> list[str]:
    return [one["node"] for one in (node.status() or {}).get("nodes", ()) if one["is_alive"]]


def test_a_node_without_peers_is_told_to_begin(nats_servers: Nats, tmp_path: Path) -> None:
    settings = {**SETTINGS, "cluster.peers": "[]"}
    with Cluster(tmp_path, nats_servers.url, name="by_hand", settings=settings) as cluster:
        node = cluster.nodes["a"]
        cluster.start("a")
        says(cluster, node, "fasti-server cluster init")
        done = command(node, "init")
        assert done.returncode == 0, done.stdout + done.stderr
        assert cluster.leader() is node
