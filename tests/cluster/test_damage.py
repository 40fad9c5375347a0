"""Blocks of a follower's table file rot: it finds that out by itself, and takes a copy of a whole node."""

from collections.abc import Callable
from pathlib import Path

from tests.support.cluster import Cluster, Node

from .load import Load
from .test_backups import backup
from .test_catching_up import same
from .test_failover import ACKS, check

Record = Callable[[str, object], None]
MENDED_S = 30.0


def rot(node: Node) -> Path:
    """Blocks of its largest table file, which this is."""
    table = max(node.data.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    for at in range(len(data) // 10, len(data) // 2, len(data) // 10):
        data[at : at + 16] = bytes(byte ^ 0x55 for byte in data[at : at + 16])
    with table.open("r+b") as file:
        file.write(data)
    return table


def test_rotten_blocks_are_mended(cluster: Cluster, load: Load, record_property: Record) -> None:
    load.acked(ACKS)
    node = cluster.others(cluster.leader())[0]
    said = len(node.output)
    backup(node)  # which writes its rows into table files
    rot(node)
    cluster.until(lambda: "copy: data of" in node.output[said:], "it is not mended", MENDED_S)
    assert "damage found" in node.output[said:]
    load.acked(ACKS)
    cluster.wait_ready()
    status = node.status() or {}
    assert status["scrubbed_at"]
    assert status["why"] == ""
    assert status["fit"]
    check(load, record_property)
    same(cluster, record_property)
