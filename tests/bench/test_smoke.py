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


EACH = [
    "single",
    "drain",
    "lateness",
    "replay",
    "webhook",
    "pull",
    "keep",
    "order",
    "plain",
    "log",
    "structures",
    "jobs",
]
NODES = ["cluster", "rows", "waits", "failover", "standby"]


@pytest.mark.parametrize(
    "name", ["batch", *(pytest.param(name, marks=NOT_EACH_TIME) for name in EACH + NODES)]
)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    """Without the servers that it compares, or that keep its log, it says that they are missing."""
    seen = Seen()
    results = run(name, TINY, tmp_path, seen=seen)
    needs = {"jobs": not {"BullMQ", "pg-boss"} <= seen.missing, "rows": is_installed(POSTGRESQL)}
    assert bool(results) == needs.get(name, name not in NODES or is_installed(JETSTREAM))
    for result in results:
        told = json.loads(result.line())
        assert told["value"] > 0
        assert told.get("early", 0) == told.get("their_early", 0) == told.get("broken", 0) == 0
        assert told.get("ratio", 0) > 0 or seen.missing or name in NODES
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
        ("ping", Felt([0.021], 0)),
        ("p2p", Felt([0.061, *[0.001] * 1_000], 0)),
        ("schedule", Felt([0.151], 0)),
        ("schedule", Felt([0.006], 1)),
    ],
)
def test_a_row_marks_what_misses_the_goal(client: str, felt: Felt) -> None:
    just = Felt([0.06, *[0.02] * 1_000], 0)
    kept = {"ping": just, "p2p": just, "schedule": Felt([0.15], 0)}
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
