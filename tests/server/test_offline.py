"""The commands on a stopped node's data: what only looks at it works, what would change it alone does not."""

import time
from pathlib import Path

import pytest

from server.__main__ import EXIT_USAGE, main
from shards.log.chained import open_engine
from shards.log.memory import MemoryEngine, Shelf
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.store import Store, Table
from shards.tables import META_APPLIED, META_LEADER
from tests.shards.timelines import draft, open_at, put, texts
from tests.support.server import run

DUE = 1_900_000_000_000
LAST = b"\xff" * 64
OF_A_NODE = "of a cluster's node, with the log up to record 3 of epoch 1"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The data of a node that was killed."""
    path, below = tmp_path / "data", RocksStore(tmp_path / "data")
    store = ReplicatedStore(below, open_engine(MemoryEngine(Shelf()), time, 1.0))
    store.lead("a", "http://a")
    put(open_at(store), draft(DUE, "one"))
    below.close()
    return path


def rows_of(path: Path) -> list[tuple[Table, bytes, bytes]]:
    store = RocksStore(path)
    found = [(table, *row) for table in Table for row in store.scan(table, b"", LAST)]
    store.close()
    return found


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_looking_says_whose_it_is(node: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows_of(node)
    assert main([command, "--data", str(node)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == OF_A_NODE
    assert rows_of(node) == before


@pytest.mark.parametrize(
    ("command", "instead"),
    [(("verify", "--repair"), "empty the directory"), (("retime",), "fasti cluster retime")],
)
def test_what_would_change_it_is_refused(
    node: Path, command: tuple[str, ...], instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = rows_of(node)
    assert main([*command, "--data", str(node)]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert OF_A_NODE in said
    assert instead in said
    assert rows_of(node) == before


def test_a_server_of_its_own_does_not_start_on_it(node: Path) -> None:
    before = rows_of(node)
    ended = run("--data", str(node), "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    assert ended.returncode == EXIT_USAGE
    assert f"{OF_A_NODE}; see docs/operations.md" in ended.stderr
    assert rows_of(node) == before


def test_it_leaves_with_all_that_it_has(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows_of(node)
    assert main(["leave", "--data", str(node)]) == 0
    assert "is of its own now, with the log up to record 3 of epoch 1" in capsys.readouterr().out
    left = [row for row in before if row[1] not in (META_APPLIED, META_LEADER)]
    assert len(left) == len(before) - 2
    assert rows_of(node) == left
    assert main(["verify", "--repair", "--data", str(node)]) == 0
    assert main(["retime", "--data", str(node)]) == 0
    store: Store = RocksStore(node)
    assert texts(open_at(store)) == ["one"]
    store.close()


def test_who_is_of_no_cluster_may_leave_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RocksStore(tmp_path / "data")
    put(open_at(store), draft(DUE, "one"))
    store.close()
    before = rows_of(tmp_path / "data")
    assert main(["leave", "--data", str(tmp_path / "data")]) == 0
    assert "was of no cluster" in capsys.readouterr().out
    assert rows_of(tmp_path / "data") == before
