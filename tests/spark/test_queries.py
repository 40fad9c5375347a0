"""The queries of docs/spark.md are ones that Spark runs."""

import re

import pytest
from pyspark.sql import SparkSession

from spark.table import register
from tests.support.server import ROOT
from timeline.slices import DAY_MS

from .stores import FAR, NOW, Timeline, record

QUERIES = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "spark.md").read_text("utf-8"), re.DOTALL)
OF_TIMELINE = [query for query in QUERIES if "archive" not in query]


@pytest.fixture(scope="module")
def timeline(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A view of the timeline."""
    folder = tmp_path_factory.mktemp("queries")
    one = Timeline(folder / "data")
    ids = one.put(*(record(NOW + DAY_MS + n * 60_000, str(n), f"orders/{n}/remind") for n in range(120)))
    one.put(*(record(FAR + n, str(n), f"orders/{n}/remind") for n in range(40)))
    one.cancel(ids[7])
    one.dispatch(NOW + 2 * DAY_MS, late_ms=250)
    uri = one.checkpoint(folder / "backup")
    one.close()
    register(spark)
    spark.read.format("fasti").load(uri).createOrReplaceTempView("timeline")


@pytest.mark.parametrize("query", OF_TIMELINE, ids=lambda query: query.split("\n")[0][:40])
@pytest.mark.usefixtures("timeline")
def test_a_query_of_the_docs_runs(spark: SparkSession, query: str) -> None:
    mine = query.replace("now()", f"timestamp_millis({FAR - 1000})")
    assert spark.sql(mine).collect()


def test_there_are_five() -> None:
    assert len(QUERIES) == 5
