"""The benchmark of Spark still runs, on next to nothing. That of a program of its own: test_program.py."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.bench.__main__ import run
from tests.bench.results import TINY
from tests.support.soak import SOAK


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1: two other benchmarks run each time")
@pytest.mark.usefixtures("spark")
def test_the_benchmark_of_spark_runs(tmp_path: Path) -> None:
    results = run("spark", TINY, tmp_path)
    assert [result.name for result in results] == ["split/6000", "archive/6000", "scan/6000"]
    assert list(tmp_path.iterdir()) == []
    assert SparkSession.getActiveSession() is not None
