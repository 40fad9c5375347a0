"""FASTI_SOAK=1: three nodes are upgraded, or get another key, one after the other, as docs/cluster.md says.

Clients go on meanwhile, and the account is made in the end. The older versions are commits of this
repository that write a format which this program reads: the last one, and those of FASTI_FROM.
"""

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import KEY, Cluster
from tests.support.engines import nats_servers  # noqa: F401
from tests.support.nats import Nats
from tests.support.server import ROOT
from tests.support.soak import SOAK

from .load import Load
from .test_catching_up import same
from .test_failover import ACKS, check
from .test_mistakes import PAGE

OF_ALL = {"cluster.takeover_after": "2s"}
"""Settings that each of them knows."""
VERSIONS = ("HEAD", *os.environ.get("FASTI_FROM", "").split())


def tree(commit: str, folder: Path) -> Path:
    """The files of a commit."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"commit {commit} is not in this repository")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1")
@pytest.mark.parametrize("commit", VERSIONS)
def test_a_node_at_a_time(
    commit: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    older = tree(commit, tmp_path / "older")
    name = f"from_{commit}"
    with (
        Nats(tmp_path / "nats") as nats,
        Cluster(tmp_path / "nodes", nats.url, name=name, settings=OF_ALL) as cluster,
    ):
        for node in cluster.nodes.values():
            node.root = older
        cluster.start()
        cluster.wait_ready()
        load = Load(list(cluster.nodes.values()), name, 1)
        with load:
            load.acked(ACKS)
            leader = cluster.leader()
            for node in (*cluster.others(leader), leader):
                assert node.terminate() == 0
                node.root = ROOT
                load.acked(ACKS)
                node.start()
                cluster.wait_ready()
                load.acked(ACKS)
            cluster.until(lambda: _why(cluster) == "", "something is left to be said", 60)
            last = cluster.leader()
            last.kill()
            cluster.leader(but=last)
            load.acked(ACKS)
            last.start()
            cluster.wait_ready()
            check(load, record_property)
        same(cluster, record_property)


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1")
def test_the_key_is_changed_in_three_steps(
    nats_servers: Nats,  # noqa: F811
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    assert "`old,new`, then `new,old`, then `new`" in PAGE
    new = KEY[::-1]
    with Cluster(tmp_path, nats_servers.url, name="rekeyed", settings=OF_ALL) as cluster:
        cluster.start()
        cluster.wait_ready()
        with Load(list(cluster.nodes.values()), "rekeyed", 1) as load:
            load.acked(ACKS)
            for keys in (f"{KEY},{new}", f"{new},{KEY}", new):
                leader = cluster.leader()
                for node in (*cluster.others(leader), leader):
                    assert node.terminate() == 0
                    node.environ["FASTI__CLUSTER__KEY"] = keys
                    node.start()
                    cluster.wait_ready()
                    assert "cluster.key" not in _why(cluster)
                    load.acked(ACKS)
            check(load, record_property)


def _why(cluster: Cluster) -> str:
    return "; ".join(str((node.status() or {}).get("why")) for node in cluster.nodes.values()).strip("; ")
