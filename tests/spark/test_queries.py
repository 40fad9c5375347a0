"""The queries of docs/spark.md are ones that Spark runs."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.archive import archive_slice
from spark.snapshot import opened_snapshot
from spark.table import register
from tests.support.server import ROOT
from timeline.slices import DAY_MS

from .stores import FAR, NOW, Timeline, record

QUERIES = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "spark.md").read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made a view of the timeline, too."""
    folder = tmp_path_factory.mktemp("queries")
    one = Timeline(folder / "data")
    ids = one.put(*(record(NOW + DAY_MS + n * 60_000, str(n), f"orders/{n}/remind") for n in range(120)))
    one.put(*(record(FAR + n, str(n), f"orders/{n}/remind") for n in range(40)))
    one.cancel(ids[7])
    one.dispatch(NOW + 2 * DAY_MS, late_ms=250)
    uri = one.checkpoint(folder / "backup")
    one.close()
    with opened_snapshot(uri) as snapshot:
        for piece in list(snapshot.reader.directory)[:-1]:
            archive_slice(snapshot, piece.home, folder / "archive", 0)
    register(spark)
    spark.read.format("fasti").load(uri).createOrReplaceTempView("timeline")
    return folder / "archive"


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.split("\n")[0][:40])
def test_a_query_of_the_docs_runs(spark: SparkSession, archive: Path, query: str) -> None:
    mine = query.replace("/var/fasti/archive", str(archive)).replace(
        "now()", f"timestamp_millis({FAR - 1000})"
    )
    mine = mine.replace("2026-11-01", "2024-01-01")
    rows = spark.sql(mine).collect()
    assert rows
    if "late_ms_max" in query:
        assert sum(row["messages"] for row in rows) == 119
        assert max(row["late_ms_max"] for row in rows) >= 250


def test_there_are_five() -> None:
    assert len(QUERIES) == 5
