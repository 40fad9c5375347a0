"""The commands on a stopped node's data: what only looks at it works, what would change it alone does not."""

import asyncio
import json
import re
import time
from pathlib import Path

import pytest

from server.__main__ import EXIT_USAGE, main
from server.reports.inspecting import summary_of
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore
from shards.rocks import RocksStore
from shards.store import Store, Table
from shards.tables import META_APPLIED, META_LEADER, META_SEAL, META_TIMELINE
from tests.shards.timelines import draft, open_at, put, texts
from tests.support.http import http
from tests.support.server import run, serving
from tests.support.shelf import MemoryEngine, Shelf

FAR = ["2030-01-01T00:00:00.000Z", "2030-01-01T00:00:01.000Z", "2031-01-01T00:00:00.000Z"]
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


def test_what_would_change_it_is_refused(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows_of(node)
    assert main(["verify", "--repair", "--data", str(node)]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert OF_A_NODE in said
    assert "if another node is undamaged, empty this directory" in said
    assert rows_of(node) == before


@pytest.mark.process
def test_a_server_of_its_own_does_not_start_on_it(node: Path) -> None:
    before = rows_of(node)
    ended = run("--data", str(node), "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    assert ended.returncode == EXIT_USAGE
    assert f"{OF_A_NODE}; see docs/failures.md" in ended.stderr
    assert rows_of(node) == before


def test_it_leaves_with_all_that_it_has(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows_of(node)
    assert main(["leave", "--data", str(node)]) == 0
    assert "is of its own now, with the log up to record 3 of epoch 1" in capsys.readouterr().out
    left = [row for row in before if row[1] not in (META_APPLIED, META_LEADER, META_SEAL, META_TIMELINE)]
    assert len(left) == len(before) - 4
    assert rows_of(node) == left
    assert main(["verify", "--repair", "--data", str(node)]) == 0
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


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Three messages of two slices, one of them cancelled, and a session; of no cluster."""
    data = tmp_path / "own"

    async def fill() -> None:
        async with serving(data) as server, http(server.url) as calls:
            ids = [await calls.schedule("a", "x", deliver_at=at) for at in FAR]
            await calls.call("DELETE", f"/v1/messages/{ids[1]}", status=204)

    asyncio.run(fill())
    return data


@pytest.mark.process
def test_inspect_in_json(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, with the numbers of the text."""
    assert main(["inspect", "--data", str(filled), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dir"], found["in_log"]) == (str(filled), None)
    assert [(one["count"], one["live"]) for one in found["slices"]] == [(2, 1), (1, 1)]
    (shard,) = found["slices"][1]["shards"]
    assert shard["first"] == shard["last"] == "2031-01-01T00:00:00.000Z"
    assert main(["inspect", "--data", str(filled)]) == 0
    text = capsys.readouterr().out
    for piece in found["slices"]:
        assert re.search(rf"{piece['start']} .* {piece['bytes']} ", text)


def _json_of(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    main(["inspect", "--data", str(path), "-o", "json"])
    return capsys.readouterr().out


@pytest.mark.process
def test_inspect_in_sums(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--summary", "-o", "json", "--data", str(filled)]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = {"slices": 2, "overfull": 0, "shards": 2, "count": 3, "live": 2, "sessions": 0, "groups": 0}
    assert {name: found[name] for name in wanted} == wanted
    assert (found["oldest"], found["newest"]) == (FAR[0], FAR[2])
    assert main(["inspect", "--summary", "--data", str(filled)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"oldest     {FAR[0]}" in lines
    assert "count      3" in lines
    found = json.loads(_json_of(filled, capsys))
    assert [summary_of(found, above)["overfull"] for above in (0, 1, 2)] == [2, 1, 0]


def test_the_json_of_a_node_says_whose_it_is(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "-o", "json", "--data", str(node)]) == 0
    assert json.loads(capsys.readouterr().out)["in_log"] == "with the log up to record 3 of epoch 1"
