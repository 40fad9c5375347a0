"""The same over PostgreSQL: leader and primary die; and a standby that lacks rows is promoted."""

import json
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.engines import postgres_servers  # noqa: F401
from tests.support.postgres import PRIMARY, Postgres, programs

from .conftest import SETTINGS
from .load import Load
from .test_failover import ACKS, check
from .test_trouble import READY_S, command, posted


def test_leader_and_primary_are_killed(
    postgres_servers: Postgres,  # noqa: F811
    record_property: Callable[[str, object], None],
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="fasti-cluster-") as folder,
        Cluster(Path(folder), postgres_servers.url_of_all, name="p1", settings=SETTINGS) as cluster,
    ):
        cluster.start()
        cluster.wait_ready()
        with Load(list(cluster.nodes.values()), "postgres", 1) as load:
            load.acked(ACKS)
            old = cluster.leader()
            old.kill()
            cluster.leader(but=old)
            load.acked(ACKS)
            old.start()
            postgres_servers.kill(PRIMARY)
            postgres_servers.start(PRIMARY)
            postgres_servers.wait_ready(PRIMARY)
            cluster.wait_ready()
            load.acked(ACKS)
            check(load, record_property)
        cluster.kill_all()
        rows, differences = cluster.differences()
        assert not differences, differences[:5]
        assert rows > 100


@pytest.mark.skipif(programs() is None, reason="no PostgreSQL from 15 on is installed")
def test_a_standby_that_lacks_rows_takes_over(tmp_path: Path) -> None:
    """Nobody waits without a word: first it has no standby of its own, then the log ends before what all
    nodes have. The nodes have it still, and go on from there when they are told to."""
    behind, other = "s1", "s2"
    body = json.dumps([{"topic": "kept", "payload": n, "deliver_in": "1h"} for n in range(50)]).encode()
    with (
        Postgres() as servers,
        Cluster(tmp_path, servers.url_of_all, name="p2", settings=SETTINGS, is_cuttable=False) as cluster,
    ):
        cluster.start()
        leader = cluster.wait_ready()
        servers.kill(behind)
        assert posted(f"{leader.url}/v1/messages:batch", body)[0] == 201
        ends = (leader.status() or {})["applied"]
        cluster.until(
            lambda: all((node.status() or {})["applied"] >= ends for node in cluster.running), "slow", READY_S
        )
        servers.kill(PRIMARY)
        servers.kill(other)
        servers.start(behind)
        servers.wait_ready(behind)
        servers.asked("SELECT pg_promote()", behind)

        def told(text: str) -> None:
            for node in cluster.running:
                cluster.until(lambda node=node: text in str((node.status() or {}).get("why")), text, READY_S)

        told("no synchronous standbys")
        servers.add_standby("s3", of=behind)
        servers.set_standbys("ANY 1 (s3)", behind)
        told("the log ends ")
        told("`fasti-server cluster heal`")
        done = command(leader, "heal")
        assert (done.returncode, "nothing was changed" in done.stdout) == (1, True), done.stdout + done.stderr
        done = command(leader, "heal", "--accept-loss")
        assert done.returncode == 0, done.stdout + done.stderr
        leader = cluster.wait_ready(READY_S)
        with urllib.request.urlopen(f"{leader.url}/v1/messages?limit=1000") as answer:
            assert len(json.load(answer)["messages"]) == 50
        assert posted(f"{leader.url}/v1/messages:batch", body)[0] == 201
        cluster.kill_all()
        rows, differences = cluster.differences()
        assert not differences, differences[:5]
        assert rows > 100


def test_the_log_goes_back_to_an_old_state(
    postgres_servers: Postgres,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A node that was away fits to it, and could lead; it does not, since the others have more."""
    body = json.dumps([{"topic": "kept", "payload": n, "deliver_in": "1h"} for n in range(50)]).encode()
    with Cluster(
        tmp_path, postgres_servers.url_of_all, name="p3", settings=SETTINGS, is_cuttable=False
    ) as cluster:
        cluster.start()
        leader = cluster.wait_ready()
        away, third = cluster.others(leader)
        away.kill()
        ((ends,),) = postgres_servers.asked("SELECT max(seq) FROM p3_log")
        assert posted(f"{leader.url}/v1/messages:batch", body)[0] == 201
        has = (leader.status() or {})["applied"]
        cluster.until(lambda: (third.status() or {}).get("applied", 0) >= has, "slow", READY_S)
        third.stop()
        leader.stop()
        postgres_servers.asked(f"DELETE FROM p3_log WHERE seq > {ends}")
        leader.resume()
        third.resume()
        away.start()
        told = {"it has lost its end": away, "this node's data goes": leader, "data goes up to": third}
        for text, node in told.items():
            cluster.until(
                lambda node=node, text=text: text in str((node.status() or {}).get("why")), text, READY_S
            )
        assert postgres_servers.asked("SELECT max(seq) FROM p3_log") == [(ends,)]
        done = command(away, "heal", "--accept-loss")
        assert done.returncode == 0, done.stdout + done.stderr
        leader = cluster.wait_ready(READY_S)
        with urllib.request.urlopen(f"{leader.url}/v1/messages?limit=1000") as answer:
            assert len(json.load(answer)["messages"]) == 50
