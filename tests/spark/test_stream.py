"""The stream of an archive: each row once over restarts, whatever becomes of the files in between."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from shards.archives import DELIVERIES, MESSAGES, QUARTER_MS, manifest_name
from spark.errors import SparkError
from spark.storage import storage_at
from spark.stream import ArchiveStream, StreamReader
from spark.table import FastiSource, register
from timeline.slices import DAY_MS

from .archives import Archived, delivery, message
from .views import compact, in_ms

DAY = 20_000 * DAY_MS


class Source:
    """An archive that grows, and the ids that were written into it."""

    def __init__(self, folder: Path) -> None:
        self.archive = Archived(storage_at(str(folder)))
        self.ids: list[str] = []

    def append(self, count: int = 10) -> None:
        at = DAY + len(self.archive.commits) * QUARTER_MS
        rows = [message(f"{at + n:032x}", at + n) for n in range(count)]
        ended = [delivery(row["id"], at) for row in rows[:1]]
        self.archive.append(rows, ended, end_ms=at + QUARTER_MS)
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


def test_each_row_comes_once(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    source = Source(tmp_path / "archive")
    source.append()
    source.append()
    drained(spark, source, tmp_path, columns="id,at,topic")
    assert ids(spark, tmp_path) == source.ids
    source.append()
    compact(source.archive, keeps=False)
    source.append()
    drained(spark, source, tmp_path, columns="id,at,topic")
    assert ids(spark, tmp_path) == source.ids
    drained(spark, source, tmp_path, columns="id,at,topic")
    compact(source.archive, keeps=False)
    source.append()
    drained(spark, source, tmp_path, columns="id,at,topic", rows="15")
    assert ids(spark, tmp_path) == source.ids
    assert len(source.ids) == 50


def stream(source: Source, **options: str) -> StreamReader:
    """As Spark makes one."""
    return ArchiveStream({"path": source.archive.storage.root, **options}).streamReader(StructType())


def read(reader: StreamReader, start: int, end: int) -> list[dict[str, Any]]:
    made = reader.partitions({"number": start}, {"number": end})
    return [row for part in made for batch in reader.read(part) for row in batch.to_pylist()]


def test_any_two_offsets_give_the_rows_of_the_commits_between(tmp_path: Path) -> None:
    """Before and after files were written again, or compacted, or both."""
    source = Source(tmp_path)
    for count in (3, 0, 5, 1, 4):
        source.append(count)
    reader, archive = stream(source, columns="id"), source.archive
    pairs = [(start, end) for start in range(6) for end in range(start, 6)]
    before = {pair: sorted(row["id"] for row in read(reader, *pair)) for pair in pairs}
    assert before[0, 5] == sorted(source.ids)
    assert [len(before[n, n + 1]) for n in range(5)] == [3, 0, 5, 1, 4]
    (file,) = [one for one in archive.commits[2].files if one.table == MESSAGES]
    again = pq.ParquetFile(tmp_path / file.path).read().to_pylist()
    archive.again([file.path], [{name: in_ms(value) for name, value in row.items()} for row in again])
    (tmp_path / file.path).unlink()
    assert {pair: sorted(row["id"] for row in read(reader, *pair)) for pair in pairs} == before
    compact(archive, keeps=False)
    assert {pair: sorted(row["id"] for row in read(reader, *pair)) for pair in pairs} == before
    assert read(reader, 5, archive.commits[-1].number) == []


def test_a_micro_batch_has_about_so_many_rows(tmp_path: Path) -> None:
    source = Source(tmp_path)
    for count in (3, 1, 5, 20, 4):
        source.append(count)
    reader = stream(source, rows="8")
    offset, offsets = reader.initialOffset(), []
    while (until := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        offset = until
        offsets.append(offset["number"])
    # A commit is never divided.
    assert offsets == [2, 3, 4, 5]
    assert reader.latestOffset({"number": 0}, ReadAllAvailable()) == {"number": 5}
    reader.prepareForTriggerAvailableNow()
    source.append()
    assert reader.latestOffset({"number": 0}, ReadAllAvailable()) == {"number": 5}
    assert stream(source).latestOffset({"number": 5}, ReadAllAvailable()) == {"number": 6}


def test_a_commit_that_is_missing_is_not_passed_over(tmp_path: Path) -> None:
    source = Source(tmp_path)
    for _ in range(3):
        source.append()
    source.archive.storage.delete(manifest_name(2))
    with pytest.raises(SparkError, match=r"lacks commit 2: python -m spark verify$"):
        stream(source).latestOffset({"number": 0}, ReadAllAvailable())
    with pytest.raises(SparkError, match="lacks commit 2"):
        read(stream(source), 0, 3)
    with pytest.raises(SparkError, match="lacks commit 2"):
        FastiSource({"archive": source.archive.storage.root}).reader(StructType()).partitions()
    source.archive.storage.delete(manifest_name(1))
    assert stream(source).latestOffset({"number": 0}, ReadAllAvailable()) == {"number": 3}


def test_an_archive_that_ends_before_the_stream_is_an_error(tmp_path: Path) -> None:
    """It is another one, or lacks its last commits: the stream would wait for ever, or pass over rows."""
    source = Source(tmp_path)
    for _ in range(3):
        source.append()
    source.archive.storage.delete(manifest_name(3))
    with pytest.raises(SparkError, match="ends at commit 2, the stream is at 3"):
        stream(source).latestOffset({"number": 3}, ReadAllAvailable())
    with pytest.raises(SparkError, match="ends at commit 2, the stream is at 3"):
        stream(source).partitions({"number": 1}, {"number": 3})


def test_a_moved_file_is_read_where_it_is(tmp_path: Path) -> None:
    """A compaction between the plan of a micro-batch and its tasks."""
    source = Source(tmp_path)
    source.append()
    source.append()
    reader = stream(source, columns="id")
    planned = reader.partitions({"number": 0}, {"number": 2})
    compact(source.archive)
    found = [row["id"] for part in planned for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(found) == source.ids


def test_ends_of_deliveries_are_a_stream_too(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append()
    source.append()
    (row,) = read(stream(source, table=DELIVERIES), 1, 2)
    assert row["id"] == source.ids[10]
    assert row["date"] == row["ended_at"].date()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"rows": "0"}, "option rows: '0' is not a number above 0"),
        ({"topic": "a"}, "option topic: is not known; there are path, table, columns, rows"),
        ({"columns": "when"}, "option columns: 'when' is not one of id, topic"),
        ({"table": "x"}, "option table: 'x' is not one of"),
        ({"path": ""}, "option path: is missing: the archive"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused(options: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        ArchiveStream({"path": "/a", **options}).schema()
