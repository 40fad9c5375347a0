"""The benchmarks still run, on next to nothing. No figure is looked at, but that nothing is early.

One each time, the others with FASTI_SOAK=1. Those of Spark: tests/spark/test_benchmarks.py.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import hostile
from tests.bench.__main__ import run
from tests.bench.failover import back
from tests.bench.honest import Felt
from tests.bench.replicated import JETSTREAM, POSTGRESQL, is_installed
from tests.bench.results import TINY, Result, Seen, percentile, table
from tests.support.soak import SOAK

NOT_EACH_TIME = pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1: a benchmark starts servers")


@pytest.mark.parametrize(
    "name", ["batch", *(["single", "drain", "lateness", "replay", "webhook"] if SOAK else [])]
)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    seen = Seen()
    results = run(name, TINY, tmp_path, seen=seen)
    assert results
    for result in results:
        told = json.loads(result.line())
        assert told["value"] > 0
        assert told.get("ratio", 0) > 0 or seen.missing, "a row has no ratio only if a peer is not installed"
        assert told.get("early", 0) == 0
    assert list(tmp_path.iterdir()) == []


@NOT_EACH_TIME
@pytest.mark.parametrize("name", ["pull", "order", "plain", "log"])
def test_it_is_measured_beside_what_is_installed(name: str, tmp_path: Path) -> None:
    results = run(name, TINY, tmp_path)
    assert results
    assert all(json.loads(result.line())["value"] > 0 for result in results)
    assert list(tmp_path.iterdir()) == []


@NOT_EACH_TIME
def test_job_queues_of_node_are_measured_where_they_are_installed(tmp_path: Path) -> None:
    seen = Seen()
    results = run("jobs", TINY, tmp_path, seen=seen)
    assert bool(results) or {"BullMQ", "pg-boss"} <= seen.missing
    for result in results:
        told = json.loads(result.line())
        assert told["value"] > 0
        assert told.get("early", 0) == told.get("broken", 0) == 0


@NOT_EACH_TIME
@pytest.mark.parametrize("name", ["cluster", "rows", "waits", "failover", "standby"])
def test_a_cluster_is_measured_beside_a_server_that_is_alone(name: str, tmp_path: Path) -> None:
    results = run(name, TINY, tmp_path)
    assert bool(results) == is_installed(POSTGRESQL if name == "rows" else JETSTREAM)
    for result in results:
        told = json.loads(result.line())
        assert told["value"] > 0
        assert told.get("early", 0) == told.get("their_early", 0) == 0
        assert not result.name.startswith("cluster on") or told["log_us"] > 0
    assert list(tmp_path.iterdir()) == []


def test_what_came_back_is_the_end_of_the_longest_gap() -> None:
    assert back([0.5, 0.9, 1.1, 1.2, 4.5, 4.6, 5.0], 1.0) == 4.5
    assert back([0.9, 3.0, 3.1, 4.0], 1.0) == 3.0
    assert back([0.9], 1.0) == 1.0


@NOT_EACH_TIME
def test_an_attack_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert hostile.main(["--seconds", "0.3", "--only", "tiny_publishes"]) == 0
    told = capsys.readouterr().out
    head, _, row, *_ = told.partition("\n\n")[2].splitlines()
    assert head.split()[:6] == ["attack", "server", "ping", "p2p", "schedule", "lost"]
    name, _, *cells = row.replace("!", "").split()
    assert name == "tiny_publishes"
    for p99, most in (cells[:2], cells[2:4], cells[4:6]):
        assert 0 < float(p99) <= float(most) + 1
    assert cells[6] == "0", "no honest client is refused or cut"
    assert float(cells[7]) + float(cells[8]) > 0, "it costs the server something"
    assert told.rstrip().endswith("ns")


@pytest.mark.parametrize(
    ("client", "felt"),
    [
        ("ping", Felt(21.0, 30.0, 0)),
        ("p2p", Felt(5.0, 61.0, 0)),
        ("schedule", Felt(5.0, 151.0, 0)),
        ("schedule", Felt(5.0, 6.0, 1)),
    ],
)
def test_a_row_marks_what_misses_the_goal(client: str, felt: Felt) -> None:
    kept = {"ping": Felt(20.0, 60.0, 0), "p2p": Felt(20.0, 60.0, 0), "schedule": Felt(100.0, 150.0, 0)}
    row = hostile.Row("here", "nothing", kept, 1.0, 0.0, 0, 0, 0, 0, "")
    assert not row.misses
    assert "!" not in "".join(row.cells())
    row = replace(row, felt=kept | {client: felt})
    assert row.misses
    assert "".join(row.cells()).count("!") == 1


def test_every_attack_tells_its_story() -> None:
    assert len({attack.__name__ for attack in hostile.EVERY}) == len(hostile.EVERY)
    for attack in hostile.EVERY:
        assert attack.__doc__
        assert "\n" not in attack.__doc__


def test_the_table_names_the_cores() -> None:
    result = Result("a", "msg/s", [3.0, 1.0, 200.0], "b", [2.0, 6.0, 6.0], "9 k", {"p99_ms": 1.5})
    assert (result.value, result.ratio) == (3.0, 0.5)
    lines = table([result, Result("c", "s", [1.0])]).splitlines()
    assert lines[2].split() == ["a", "3", "msg/s", "0.5", "b", "6", "9", "k", "p99_ms=1.5"]
    assert lines[-1].startswith("cores: ")


def test_percentile() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
