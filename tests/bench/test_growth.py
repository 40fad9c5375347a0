"""Growth and budget: what is read from stacks and figures. Their runs are too long for the suite."""

from pathlib import Path
from xml.etree import ElementTree

from tests.bench.budget import IN, OUT, stage_of
from tests.bench.growth import BASE, FIGURES, Case, plot, rows, told


def test_a_stage_is_that_of_the_innermost_function_of_ours() -> None:
    stack = ["serve (server/run.py:10)", "post (server/http/routes/batch.py:4)", "loads (/x/json/a.py:3)"]
    assert stage_of(stack, IN) == "answer"
    assert stage_of([*stack, "RocksStore.write (/srv/a/shards/rocks.py:90)"], IN) == "write"
    assert stage_of([*stack, "RocksStore.scan (/srv/a/shards/rocks.py:95)"], IN) == "put"
    assert stage_of([*stack, "now (server/engine/clock.py:95)"], IN) == "server/engine/clock.py"
    assert stage_of(["_worker (concurrent/futures/thread.py:1)"], IN) == "other threads and the interpreter"


def test_a_stage_can_be_all_below_a_function() -> None:
    stack = ["data_received (server/mqtt/link.py:9)", "insert (timeline/wheel.py:7)"]
    assert stage_of(stack, OUT) == "acks"
    assert stage_of(stack[1:], OUT) == "wheel"


def test_the_plot_shows_ratios_to_the_smallest_case_of_a_row(tmp_path: Path) -> None:
    cases = {case for _, some in rows((1_000_000,)) for case in some}
    found = {case: [10.0, 20.0, 30.0, 2.0] for case in cases}
    found[Case(1_000_000, *BASE[1:])] = [11.0, 20.0, 30.0, 1.0]
    results = told(found, (1_000_000,))
    ratios = {one.name: one.ratio for one in results if one.ratio is not None}
    assert ratios["batch, 1,000,000 pending"] == 1.1
    assert ratios["lateness p99, 1,000,000 pending"] == 0.5
    assert ratios["drain, 1,000 sessions"] == 1.0
    file = tmp_path / "growth.svg"
    plot(results, (1_000_000,), file)
    lines = [one for one in ElementTree.parse(file).iter() if one.tag.endswith("polyline")]
    assert len(lines) == 3 * len(FIGURES)
    assert "1 M" in file.read_text()
