"""Compaction of a closed day: few files, the same rows, and nothing lost wherever it ends."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from shards.archives import DELIVERIES, ENDS, MESSAGES, QUARTER_MS
from spark import compact
from spark.compact import KEPT_S, after, work
from spark.errors import SparkError
from spark.job import Job
from spark.manifests import Archive, read_archive
from spark.storage import Storage, StorageFailed, storage_at
from timeline.slices import DAY_MS

from .archives import DAY, Archived, a_day, compacted, compaction, date_of, message, rows_of, work_here


@pytest.fixture
def archive(tmp_path: Path) -> Archived:
    return Archived(storage_at(str(tmp_path / "archive")))


def test_a_day_becomes_a_file_of_each_table_by_spark(archive: Archived, spark: SparkSession) -> None:
    a_day(archive)
    before = {table: rows_of(archive.storage, table) for table in (MESSAGES, DELIVERIES, ENDS)}
    report = work(spark, compaction(archive), archive.storage)
    after(archive.storage, archive.record(msgspec.to_builtins(report)))
    storage = archive.storage
    for table, count in ((MESSAGES, 2), (DELIVERIES, 1), (ENDS, 1)):
        files = read_archive(storage).files(table)
        assert len(files) == count
        assert not any(storage.fault_in(file) for file in files)
        rows = rows_of(storage, table)
        assert sorted(rows, key=str) == sorted(before[table], key=str)
    (file,) = [one for one in read_archive(storage).files() if one.rows == 300]
    assert (file.first_ms, file.last_ms) == (
        min(one.first_ms for one in archive.commits[0].files if one.table == MESSAGES),
        max(one.last_ms for one in archive.commits[5].files if one.table == MESSAGES),
    )
    with pq.ParquetFile(storage.full(file.path)) as opened:
        at = opened.read(columns=["at"])["at"].to_pylist()
        assert at == sorted(at)
        group = opened.metadata.row_group(0)
        assert [one.column_index for one in group.sorting_columns] == [opened.schema_arrow.names.index("at")]
        assert group.column(0).bloom_filter_length > 0
    probe = duckdb.sql(
        f"SELECT * FROM parquet_bloom_probe('{storage.full(file.path)}', 'id', 'none')"
    ).fetchall()
    assert [one[2] for one in probe] == [True], "the Bloom filter tells that there is no such id"


def test_manifests_are_together_also_where_nothing_is_compacted(
    archive: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "SWEPT", 3)
    a_day(archive)
    for one in archive.commits:
        after(archive.storage, one)
    there = [entry.path for entry in archive.storage.list("_manifests")]
    assert [path for path in there if path.endswith(".all.gz")] == ["_manifests/0000000007.all.gz"]
    opened: list[str] = []
    monkeypatch.setattr(
        Storage, "read", lambda self, path, read=Storage.read: opened.append(path) or read(self, path)
    )
    assert read_archive(archive.storage).commits == archive.commits
    assert opened == ["_manifests/0000000007.all.gz"]


def test_other_programs_read_the_directory_as_it_is(archive: Archived) -> None:
    a_day(archive)
    root = archive.storage.root

    def seen() -> list[set[str]]:
        glob = f"{root}/date=*/*.parquet"
        by_duckdb = duckdb.sql(f"SELECT id FROM read_parquet('{glob}', hive_partitioning = true)").fetchall()
        by_polars = pl.scan_parquet(glob, hive_partitioning=True).select("id", "date").collect()
        by_pandas = pd.read_parquet(root, columns=["id"])
        found = [[one[0] for one in by_duckdb], [*by_polars["id"]], [*by_pandas["id"]]]
        assert {len(one) for one in found} == {301}
        return [set(one) for one in found]

    ids = {row["id"] for row in rows_of(archive.storage)}
    assert seen() == [ids, ids, ids]
    compacted(archive)
    assert seen() == [ids, ids, ids], "what was replaced is not seen"
    days = duckdb.sql(
        f"SELECT date, count(*) FROM read_parquet('{root}/date=*/*.parquet') GROUP BY date ORDER BY date"
    ).fetchall()
    assert [count for _, count in days] == [300, 1]


def test_what_came_again_is_there_once(archive: Archived) -> None:
    held = {"state": "withheld", "dispatched": None}
    archive.append([message("a", DAY, **held), message("b", DAY + 1, **held), message("c", DAY + 2, **held)])
    archive.append([message("a", DAY + QUARTER_MS), message("d", DAY + QUARTER_MS + 1, **held)])
    archive.append([message("b", DAY + DAY_MS, **held)])
    archive.append([message("b", DAY + 2 * DAY_MS)])
    compacted(archive)
    assert [(row["id"], row["state"]) for row in rows_of(archive.storage)] == [
        ("b", "withheld"),
        ("b", "dispatched"),
        ("c", "withheld"),
        ("a", "dispatched"),
        ("d", "withheld"),
    ]
    (file,) = archive.commits[-1].files
    assert (file.rows, file.withheld) == (3, 2)


def test_a_day_of_which_all_came_again(archive: Archived) -> None:
    for number in range(2):
        archive.append([message(f"m{number}", DAY + number * QUARTER_MS, state="withheld")])
    archive.append([message(f"m{number}", DAY + DAY_MS + number) for number in range(2)])
    made = compacted(archive)
    assert (made.files, len(made.replaces)) == ([], 2)
    assert [row["state"] for row in rows_of(archive.storage)] == ["dispatched", "dispatched"]


def test_many_withheld_rows_stay(archive: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "WITHHELD_MAX", 1)
    archive.append([message("a", DAY, state="withheld"), message("b", DAY, state="withheld")])
    archive.append([message("a", DAY + QUARTER_MS)])
    compacted(archive)
    assert len(rows_of(archive.storage)) == 3


def test_a_large_day_is_cut_into_files_of_one_size(
    archive: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_day(archive, 12)
    size = sum(file.bytes for file in compaction(archive).files if file.table == MESSAGES)
    monkeypatch.setattr(compact, "FILE_MAX", size // 2 - 1)
    before = rows_of(archive.storage)
    compacted(archive)
    files = [one for one in archive.commits[-1].files if one.table == MESSAGES]
    assert [one.rows for one in files] == [200, 200, 200]
    assert all(one.last_ms <= two.first_ms for one, two in pairwise(files))
    assert sorted(rows_of(archive.storage), key=str) == sorted(before, key=str)


def test_a_day_that_is_compact_is_left_alone(archive: Archived) -> None:
    a_day(archive)
    compacted(archive)
    assert work_here(compaction(archive), archive.storage) is None
    compacted(archive, DAY + DAY_MS)
    assert work_here(compaction(archive, DAY + DAY_MS), archive.storage) is None


def test_late_files_of_a_compact_day(archive: Archived) -> None:
    a_day(archive)
    compacted(archive)
    first = archive.commits[-1].files[0]
    again = [message("other", first.first_ms - 1)]
    archive.again([], again)
    compacted(archive)
    assert len(rows_of(archive.storage)) == 302
    assert [row["id"] for row in rows_of(archive.storage)][1] == "other", "in its place"


def test_a_damaged_file_ends_it(archive: Archived) -> None:
    a_day(archive)
    path = Path(archive.storage.full(archive.commits[2].files[0].path))
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StorageFailed, match="has other bytes than were written") as found:
        work_here(compaction(archive), archive.storage)
    assert "\n" not in str(found.value)


def test_rows_out_of_order_are_refused(archive: Archived) -> None:
    archive.append([message("a", DAY), message("b", DAY + 9)], end_ms=DAY + QUARTER_MS)
    archive.again([], [message("c", DAY + 3)])
    with pytest.raises(SparkError, match="not in order"):
        work_here(compaction(archive), archive.storage)


def test_an_older_file_lacks_columns(archive: Archived) -> None:
    a_day(archive, 2)
    file = archive.commits[0].files[0]
    path = archive.storage.full(file.path)
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["deliver_to", "bytes"]), path)
    size, digest = archive.storage.sum_of(file.path)
    job = compaction(archive)
    job.files = tuple(
        msgspec.structs.replace(one, bytes=size, sha256=digest) if one.path == file.path else one
        for one in job.files
    )
    report = work_here(job, archive.storage)
    assert report is not None
    rows = pq.ParquetFile(archive.storage.full(report.files[0].path)).read().to_pylist()
    assert [row["bytes"] for row in rows] == [None] * 50 + [1] * 50


def test_it_ends_anywhere_and_is_done_again(archive: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write, move and delete of the job is once the last that happens."""
    a_day(archive)
    storage = archive.storage
    before = sorted(rows_of(storage), key=str)
    number = 0
    for last in range(60):
        if not _ends_after(last, archive, monkeypatch, f"{last:08x}" * 4):
            number = last
            break
        assert sorted(rows_of(storage), key=str) == before
    assert number > 15
    assert sorted(rows_of(storage), key=str) == before
    there = {one.path for one in storage.list(recursive=True) if one.path.endswith(".parquet")}
    found = read_archive(storage)
    live = {one.path for table in (MESSAGES, DELIVERIES, ENDS) for one in found.files(table)}
    assert {path for path in there if not path.startswith("_replaced/")} == live, "no other try's"
    assert {path for path in there if path.startswith("_replaced/")} == {
        f"_replaced/{one}" for one in found.replaced
    }


def _ends_after(last: int, archive: Archived, monkeypatch: pytest.MonkeyPatch, name: str) -> bool:
    """A try of the job that is killed at its step `last`; False: it was over by then."""
    storage, steps = archive.storage, iter(range(1 << 30))

    class Killed(BaseException): ...

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **more: Any) -> Any:
            if next(steps) >= last:
                raise Killed
            return do(*given, **more)

        return step

    with monkeypatch.context() as patch:
        for act in ("writing", "move", "delete"):
            patch.setattr(Storage, act, counted(getattr(Storage, act)))
        try:
            if archive.commits[-1].kind != "compact":
                report = work_here(compaction(archive, name=name), storage)
                archive.record(msgspec.to_builtins(report))
            after(storage, archive.commits[-1])
        except Killed:
            return True
    return False


def test_replaced_files_stay_for_a_week(archive: Archived) -> None:
    a_day(archive)
    root = Path(archive.storage.root)
    for path in root.glob("**/*.parquet"):
        os.utime(path, (1.0, 1.0))
    compacted(archive)
    replaced = [*root.glob("_replaced/**/*.parquet")]
    assert len(replaced) == 18
    moved_s = replaced[0].stat().st_mtime
    after(archive.storage, archive.commits[-1], moved_s + KEPT_S - 60)
    assert [*root.glob("_replaced/**/*.parquet")] == replaced
    after(archive.storage, archive.commits[-1], moved_s + KEPT_S + 60)
    assert [*root.glob("_replaced/**/*.parquet")] == []
    assert read_archive(archive.storage).last == 8


def test_files_of_earlier_tries_go(archive: Archived) -> None:
    a_day(archive)
    storage, folder = archive.storage, f"date={date_of(DAY)}"
    stay = [f"{folder}/{name}" for name in ("0000000009-0badf00d-0.parquet", f"{DAY}-0.parquet", "notes.txt")]
    stay.append(f"date={date_of(DAY + DAY_MS)}/0000000008-0badf00d-0.parquet")
    for name in (*stay, f"{folder}/0000000003-0badf00d-0.parquet", f"{folder}/0000000008-0badf00d-0.parquet"):
        storage.write(name, b"")
    compacted(archive)
    known = {file.path for commit in archive.commits for file in commit.files}
    others = {one.path for one in storage.list(recursive=True)} - known
    assert {one for one in others if one.startswith("date=")} == {*stay}


def test_sizes_of_parts() -> None:
    def part_sizes(*sizes: int) -> list[list[int]]:
        files = [
            {
                "path": f"f{index}",
                "rows": 1,
                "bytes": size << 20,
                "sha256": "0" * 64,
                "first_ms": index,
                "number": 1,
            }
            for index, size in enumerate(sizes)
        ]
        body = {"id": "j" * 8, "kind": "compact", "state": "compacting", "files": files}
        job = msgspec.convert(body, Job)
        parts = compact.parts_of(job, MESSAGES, Archive([]))
        return [[file.bytes >> 20 for file in part.files] for part in parts]

    assert part_sizes() == []
    assert part_sizes(5) == [[5]]
    assert part_sizes(5, 5) == [[5, 5]]
    assert part_sizes(*[100] * 11) == [[100] * 3, [100] * 4, [100] * 4]
    assert part_sizes(600, 2) == [[600, 2]]
