"""The log is full, or slow; and rows that were there before it."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.support.cluster import KEY, Cluster, Node
from tests.support.nats import Nats
from tests.support.ports import free_ports
from tests.support.server import ROOT, environment

from .load import Load
from .test_failover import ACKS, check

Record = Callable[[str, object], None]
READY_S = 60.0
SEEN_S = 60.0
"""A leader looks at the stream once a second; a busy machine takes its time."""


def bounded(nats: Nats, stream: str, max_bytes: int) -> None:
    """A full log refuses what is more."""
    config = nats.api(f"STREAM.INFO.{stream}", {})["config"]
    said = nats.api(f"STREAM.UPDATE.{stream}", {**config, "max_bytes": max_bytes})
    assert "error" not in said, said


def replicated(nats: Nats, stream: str, replicas: int) -> None:
    config = nats.api(f"STREAM.INFO.{stream}", {})["config"]
    said = nats.api(f"STREAM.UPDATE.{stream}", {**config, "num_replicas": replicas})
    assert "error" not in said, said


def posted(url: str, body: bytes) -> tuple[int, str]:
    """Status and body of the answer."""
    asked = urllib.request.Request(url, body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def command(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """`fasti-server cluster` on a node, which may run."""
    where = ["--data", str(node.data), "--http", f"127.0.0.1:{node.http[1]}"]
    return subprocess.run(
        [sys.executable, "-m", "server", *where, "cluster", *words],
        cwd=ROOT,
        env=environment(node.settings),
        capture_output=True,
        text=True,
    )


def test_a_full_log(cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record) -> None:
    """Nothing is acked, nobody leads, and each says why; with room everything goes on."""
    leader = cluster.leader()
    bounded(nats_servers, cluster.name, 1)
    cluster.until(lambda: not any(node.is_ready() for node in cluster.nodes.values()), "it leads on", READY_S)
    cluster.until(
        lambda: "maximum bytes" in str((leader.status() or {}).get("why")), "it does not say why", READY_S
    )
    bounded(nats_servers, cluster.name, -1)
    cluster.leader(READY_S)
    load.acked(ACKS)
    check(load, record_property)


def test_a_small_log(cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record) -> None:
    """Five times what it holds goes through, while a node is away that has acked nothing of it."""
    leader = cluster.leader()
    away = next(node for node in cluster.nodes.values() if node is not leader)
    away.kill()
    bounded(nats_servers, cluster.name, 4 << 20)
    body = json.dumps([{"topic": "small", "payload": "x" * 1_000, "deliver_in": "1h"}] * 200).encode()
    taken, until = 0, time.monotonic() + 120
    while taken < 100:
        assert time.monotonic() < until, taken
        status, answer = posted(f"{leader.url}/v1/messages:batch", body)
        taken += status == 201
        if status != 201:
            assert (status, "the log is full" in answer) == (503, True), answer
            time.sleep(0.2)
    assert cluster.leader() is leader
    lacks = f"what {away.name} lacks"
    cluster.until(lambda: lacks in str((leader.status() or {}).get("why")), "it does not say so", READY_S)
    away.start()
    cluster.wait_ready(READY_S)
    bounded(nats_servers, cluster.name, -1)
    load.acked(ACKS)
    check(load, record_property)


def test_a_slow_log(cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record) -> None:
    """Without a quorum for less than it takes others to claim: the leader waits, and leads on."""
    leader = cluster.leader()
    before = (leader.status() or {})["epoch"]
    away = [name for name in nats_servers.names if name != nats_servers.leader(cluster.name)]
    nats_servers.stop(*away)
    try:
        time.sleep(0.7)
    finally:
        nats_servers.resume(*away)
    load.acked(ACKS)
    assert cluster.leader() is leader
    assert (leader.status() or {})["epoch"] == before
    check(load, record_property)


def test_one_copy_of_the_log(
    cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record
) -> None:
    """Somebody takes the stream's replicas away: nothing is acked any more, and each node says why."""
    body = b'{"topic":"one","payload":"","deliver_in":"1h"}'
    replicated(nats_servers, cluster.name, 1)
    cluster.until(lambda: not any(node.is_ready() for node in cluster.nodes.values()), "it leads on", SEEN_S)
    for node in cluster.nodes.values():
        cluster.until(
            lambda node=node: "1 replicas" in str((node.status() or {}).get("why")), "no word of it", READY_S
        )
        assert posted(f"{node.url}/v1/messages", body)[0] == 503
    replicated(nats_servers, cluster.name, 3)
    leader = cluster.leader(READY_S)
    assert posted(f"{leader.url}/v1/messages", body)[0] == 201
    load.acked(ACKS)
    check(load, record_property)


def test_somebody_else_publishes_into_the_log(
    cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record
) -> None:
    """All pass over it, and say so; and a batch larger than a message of the servers goes through."""
    leader = cluster.leader()
    said = nats_servers.publish(f"{cluster.name}.log", b"hello")
    load.acked(ACKS)
    assert cluster.leader() is leader
    told = f"1 from record {said['seq']} to {said['seq']}: passed over"
    for node in cluster.nodes.values():
        cluster.until(lambda node=node: told in (node.status() or {})["why"], "it does not say so", READY_S)
    body = json.dumps([{"topic": "large", "payload": "x" * 200_000, "deliver_in": "1h"}] * 20).encode()
    asked = urllib.request.Request(
        f"{leader.url}/v1/messages:batch", body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 201
    leader.kill()
    cluster.leader(READY_S, but=leader)
    load.acked(ACKS)
    check(load, record_property)


def test_rows_that_were_there_before_the_log(nats_servers: Nats, tmp_path: Path) -> None:
    """A server alone becomes the first of three: the others take a copy, and its messages are delivered."""
    http, mqtt = free_ports(2)
    alone = subprocess.Popen(
        [
            *(sys.executable, "-m", "server", "--data", str(tmp_path / "nodes" / "a")),
            *("--http", f"127.0.0.1:{http}", "--mqtt", f"127.0.0.1:{mqtt}"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert alone.stdout is not None
        assert b"listening" in alone.stdout.readline()
        body = json.dumps([{"topic": "old", "payload": n, "deliver_in": "1h"} for n in range(500)]).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{http}/v1/messages:batch", body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 201
    finally:
        alone.send_signal(signal.SIGTERM)
        alone.communicate(timeout=20)
    with Cluster(tmp_path / "nodes", nats_servers.url, name="grown", is_cuttable=False) as cluster:
        cluster.start()
        first = cluster.wait_ready(READY_S)
        assert first.name == "a"
        assert re.search("copy: data of", cluster.nodes["b"].output)
        with urllib.request.urlopen(f"{first.url}/v1/messages?limit=1000") as answer:
            assert len(json.load(answer)["messages"]) == 500
        first.kill()
        second = cluster.leader(READY_S, but=first)
        with urllib.request.urlopen(f"{second.url}/v1/messages?limit=1000") as answer:
            assert len(json.load(answer)["messages"]) == 500
        cluster.kill_all()
        rows, differences = cluster.differences()
        assert not differences
        assert rows > 500
        assert KEY not in first.output


def test_the_stream_is_deleted(
    cluster: Cluster, load: Load, nats_servers: Nats, record_property: Record
) -> None:
    """While all answer the log is begun anew. Else nobody leads, and a person decides; an empty node never
    does."""
    load.acked(ACKS)
    timeline = (cluster.leader().status() or {})["timeline"]
    assert nats_servers.api(f"STREAM.DELETE.{cluster.name}", {})["success"]
    load.acked(ACKS)
    cluster.wait_ready(READY_S)
    assert (cluster.leader().status() or {})["timeline"] == timeline
    away = cluster.others(cluster.leader())[0]
    away.kill()
    assert nats_servers.api(f"STREAM.DELETE.{cluster.name}", {})["success"]
    there = cluster.others(away)
    for node in there:
        told = f"all of cluster.peers answer, {away.url} do not; `fasti-server cluster heal`"
        cluster.until(
            lambda node=node, told=told: told in (node.status() or {})["why"], "it does not say why", READY_S
        )
    assert not any(node.is_ready() for node in there)
    for option, code, last in (((), 1, "--accept-loss"), (("--accept-loss",), 0, "take a copy")):
        done = command(there[0], "heal", *option)
        assert (done.returncode, last in done.stdout) == (code, True), done.stdout + done.stderr
    cluster.leader(READY_S)
    load.acked(ACKS)
    cluster.wipe(away)
    away.start()
    cluster.wait_ready(READY_S)
    assert {(node.status() or {})["timeline"] for node in cluster.running} == {timeline}
    check(load, record_property)
