"""The stream of an archive: each row once over restarts, whatever becomes of the files in between."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from shards.archives import QUARTER_MS
from spark.storage import storage_at
from spark.table import register
from timeline.slices import DAY_MS

from .archives import Archived, delivery, message
from .views import compact

DAY = 20_000 * DAY_MS


class Source:
    """An archive that grows, and the ids that were written into it."""

    def __init__(self, folder: Path) -> None:
        self.archive = Archived(storage_at(str(folder)))
        self.ids: list[str] = []

    def append(self, count: int = 10) -> None:
        at = DAY + len(self.archive.commits) * QUARTER_MS
        rows = [message(f"{at + n:032x}", at + n) for n in range(count)]
        self.archive.append(rows, [delivery(rows[0]["id"], at)], end_ms=at + QUARTER_MS)
        self.ids += [row["id"] for row in rows]


def drained(spark: SparkSession, source: Source, checkpoint: Path, **options: Any) -> None:
    """Start or go on; end when all is read. The rows go to the table of that name."""
    stream = spark.readStream.format("fasti.archive").options(**options).load(source.archive.storage.root)
    out = stream.writeStream.format("parquet").option("path", str(checkpoint / "out"))
    query = out.option("checkpointLocation", str(checkpoint / "state")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None


def ids(spark: SparkSession, checkpoint: Path) -> list[str]:
    return sorted(row["id"] for row in spark.read.parquet(str(checkpoint / "out")).collect())


@pytest.mark.parametrize("keeps", [True, False])
def test_each_row_comes_once(spark: SparkSession, tmp_path: Path, *, keeps: bool) -> None:
    register(spark)
    source = Source(tmp_path / "archive")
    source.append()
    source.append()
    drained(spark, source, tmp_path, columns="id,at,topic")
    assert ids(spark, tmp_path) == source.ids
    source.append()
    compact(source.archive, keeps=keeps)
    source.append()
    drained(spark, source, tmp_path, columns="id,at,topic")
    assert ids(spark, tmp_path) == source.ids
    drained(spark, source, tmp_path, columns="id,at,topic")
    compact(source.archive, keeps=keeps)
    source.append()
    drained(spark, source, tmp_path, columns="id,at,topic", rows="15")
    assert ids(spark, tmp_path) == source.ids
    assert len(source.ids) == 50
