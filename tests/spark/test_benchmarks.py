"""The benchmarks of Spark still run, on next to nothing."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.bench.__main__ import run
from tests.bench.results import TINY
from tests.support.soak import SOAK

pytestmark = pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1: two other benchmarks run each time")


@pytest.mark.usefixtures("spark")
def test_the_benchmark_of_spark_runs(tmp_path: Path) -> None:
    results = run("spark", TINY, tmp_path)
    assert [result.name for result in results] == ["split/6000", "archive/6000", "scan/6000"]
    assert list(tmp_path.iterdir()) == []
    assert SparkSession.getActiveSession() is not None


def test_the_benchmark_of_columns_runs(tmp_path: Path) -> None:
    assert [result.name for result in run("columns", TINY, tmp_path)] == ["columns/plain", "columns/rich"]
    assert list(tmp_path.iterdir()) == []


def test_the_benchmark_of_a_split_under_load_runs(tmp_path: Path) -> None:
    """The program that the server starts by itself, with the load that it must not disturb."""
    (result,) = run("splitting", TINY, tmp_path)
    assert json.loads(result.line())["early"] == 0
    assert list(tmp_path.iterdir()) == []
