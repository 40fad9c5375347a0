"""One view of a backup and an archive, at moments of a run: each message once, as the account has it."""

import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from shards.archived import STATE, ArchiveRow
from shards.archives import QUARTER_MS, manifest_name
from shards.store import Table
from shards.tables import encode_row
from spark.columns import SCHEMA
from spark.errors import SparkError
from spark.pushdown import wanted_of
from spark.storage import Storage, StorageFailed, storage_at
from spark.table import FastiSource, parts, read_part, register
from timeline.position import id_text
from timeline.slices import DAY_MS

from .archives import TIMELINE, Archived, delivery, ends, message
from .stores import NOW, Timeline, record
from .views import Account, Place, World, compact, expected

MOMENTS = 20


@pytest.fixture(scope="module", params=[(1, 0), (2, 0), (3, 9)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """By seed, and the moment from which there is an archive."""
    seed, since = request.param
    one = World(tmp_path_factory.mktemp("world"), seed)
    for number in range(MOMENTS):
        one.live()
        one.back_up()
        if number >= since and one.dice.random() < 0.7:
            one.write_archive()
        if one.dice.random() < 0.2:
            compact(one.archive)
        if one.dice.random() < 0.3:
            one.drop()
        copy = one.folder / f"archive-{number}"
        shutil.copytree(one.archive.storage.root, copy)
        one.archives.append((copy, dict(one.archived)))
    one.close()
    return one


def rows_of(**options: str) -> list[dict[str, Any]]:
    """What Spark would get, without Spark."""
    reader = FastiSource(options).reader(StructType())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def shown(**options: str) -> Account:
    """Place and state by id; no id twice."""
    rows = rows_of(columns="id,at,state", **options)
    assert [name for name, count in Counter(row["id"] for row in rows).items() if count > 1] == []
    return {row["id"]: Place(round(row["at"].timestamp() * 1_000), row["state"]) for row in rows}


def test_a_view_of_any_backup_and_any_archive_is_as_the_account_says(world: World) -> None:
    for moment, (backup, account) in enumerate(world.moments):
        for archive, archived in world.dice.sample(world.archives, 4):
            found = shown(path=backup, archive=str(archive))
            assert found == expected(account, moment, archived), (moment, archive.name)


def test_what_came_again_before_the_archive_began_is_there_once(tmp_path: Path) -> None:
    """In the backup it is withheld, at a place that the archive does not cover."""
    one = World(tmp_path, 0)
    (name,) = one.put(record(NOW + 60_000, "x"))
    one.account[id_text(name)] = Place(NOW + 60_000, "pending")
    one.go_on(NOW + 120_000, share=1)
    backup = one.checkpoint(tmp_path / "backup")
    assert shown(path=backup) == {id_text(name): Place(NOW + 60_000, "withheld")}
    one.go_on(NOW + DAY_MS)
    one.revive(name)
    one.go_on(NOW + DAY_MS + 60_000, share=0)
    one.archive.append([message(id_text(name), NOW + DAY_MS)])
    one.close()
    assert shown(path=backup, archive=one.archive.storage.root) == one.account
    assert one.account == {id_text(name): Place(NOW + DAY_MS, "dispatched")}


@pytest.mark.parametrize("columns", ["slice", "id,slice"])
def test_a_count_by_slice_of_both(world: World, columns: str) -> None:
    for backup, _ in world.moments[::6]:
        for archive, _ in world.archives[::6]:
            every = rows_of(path=backup, archive=str(archive))
            found = rows_of(path=backup, archive=str(archive), columns=columns)
            assert Counter(row["slice"] for row in found) == Counter(row["slice"] for row in every)


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "orders/+"},
        {"topic": "orders/1", "state": "dispatched"},
        {"state": "pending"},
        {"state": "withheld"},
    ],
)
def test_options_choose_rows_of_both(world: World, options: dict[str, str]) -> None:
    backup, _ = world.moments[MOMENTS // 2]
    topics = options.get("topic", "")
    for archive, _ in world.archives[4::5]:
        every = rows_of(path=backup, archive=str(archive), columns="id,topic,state,due,date")
        some = rows_of(path=backup, archive=str(archive), columns="id", **options)
        wanted = {
            row["id"]
            for row in every
            if row["state"] == options.get("state", row["state"]) and topics in ("", "orders/+", row["topic"])
        }
        assert {row["id"] for row in some} == wanted
        due = sorted(row["due"] for row in every)[len(every) // 3]
        bounds = {"due_from": due.isoformat(), "due_to": (due + timedelta(hours=2)).isoformat()}
        found = rows_of(path=backup, archive=str(archive), columns="id", **bounds)
        late = {row["id"] for row in every if due <= row["due"] < due + timedelta(hours=2)}
        assert {row["id"] for row in found} == late


def test_an_archive_alone_has_all_that_was_archived(world: World, spark: SparkSession) -> None:
    """And the same columns of the same types as a backup, and as its files read by Spark."""
    register(spark)
    archive, archived = world.archives[-1]
    found = spark.read.format("fasti").option("archive", str(archive)).load()
    assert shown(archive=str(archive)) == {name: one for name, (one, _) in archived.items()}
    assert found.count() == len(archived)
    backup = spark.read.format("fasti").load(world.moments[0][0])
    assert backup.schema == found.schema
    files = spark.read.parquet(str(archive))
    assert [(one.name, one.dataType) for one in files.schema] == [
        (one.name, one.dataType) for one in found.schema
    ]
    assert found.unionByName(backup).unionByName(files).count() > len(archived)


def kind_of(field: StructField) -> tuple[str, DataType]:
    return field.name, field.dataType


def test_an_archive_of_before_counts_where_no_commit_has_it_again(tmp_path: Path) -> None:
    """Its manifests are one a slice, and its files lack the later columns."""
    archive = Archived(storage_at(str(tmp_path)))
    archive.append([message(f"{n:032x}", NOW + n) for n in range(5)])
    (new,) = archive.commits
    for start in (NOW - 2 * QUARTER_MS, NOW):
        rows = [message(f"{start:031x}{n}", start + n) for n in range(3)]
        old = pa.Table.from_pylist(rows, SCHEMA).drop_columns(SCHEMA.names[SCHEMA.names.index("slice") :])
        path = f"date={datetime.fromtimestamp(start // 1_000, UTC):%Y-%m-%d}/{start}-0.parquet"
        with archive.storage.writing(path) as file:
            pq.write_table(old, file)
        size, digest = archive.storage.sum_of(path)
        entry = {"path": path, "rows": 3, "bytes": size, "sha256": digest}
        manifest = {
            "start_ms": start,
            "end_ms": start + QUARTER_MS,
            "generation": 0,
            "rows": 3,
            "files": [entry],
        }
        archive.storage.write(f"_manifests/{start}-0.json", json.dumps(manifest).encode())
    found = rows_of(archive=str(tmp_path))
    assert len(found) == new.files[0].rows + 3
    assert [row["slice"] is None for row in sorted(found, key=itemgetter("at"))] == [True] * 3 + [False] * 5
    assert len(rows_of(archive=str(tmp_path), due_to=str(NOW), columns="id")) == 3


def test_an_old_slice_narrower_than_a_quarter_counts_too(tmp_path: Path) -> None:
    """A split had cut it; the first commit begins in the same quarter of an hour, with the slice after it."""
    archive = Archived(storage_at(str(tmp_path)))
    start, middle = NOW // QUARTER_MS * QUARTER_MS, NOW // QUARTER_MS * QUARTER_MS + 300_000
    made = archive.append([message("b" * 32, middle, slice=middle)])
    spans = [replace(made.spans[0], start_ms=middle)]
    archive.storage.write(manifest_name(1), msgspec.json.encode(replace(made, spans=spans)))
    date = f"date={datetime.fromtimestamp(start // 1_000, UTC):%Y-%m-%d}"
    for name, at in (("a" * 32, start), ("b" * 32, middle)):
        path = f"{date}/{at}-1.parquet"
        with archive.storage.writing(path) as file:
            pq.write_table(pa.Table.from_pylist([message(name, at)], SCHEMA), file)
        size, digest = archive.storage.sum_of(path)
        old = {"start_ms": at, "end_ms": at + 300_000, "generation": 1, "rows": 1}
        entry = {"path": path, "rows": 1, "bytes": size, "sha256": digest}
        archive.storage.write(f"_manifests/{at}-1.json", json.dumps({**old, "files": [entry]}).encode())
    assert [row["id"][0] for row in rows_of(archive=str(tmp_path), columns="id")] == ["a", "b"]


def test_what_a_compaction_moves_meanwhile_is_read_where_it_is(tmp_path: Path) -> None:
    archive = Archived(storage_at(str(tmp_path)))
    for n in range(3):
        archive.append([message(f"{n:032x}", NOW + n * QUARTER_MS)])
    wanted = wanted_of({"archive": str(tmp_path), "columns": "id"})
    planned = parts(wanted)
    exists = Storage.exists
    with patch.object(Storage, "exists", lambda self, path: path.startswith("date=") or exists(self, path)):
        compact(archive)
        assert len([row for part in planned for batch in read_part(wanted, part) for row in batch["id"]]) == 3
    assert len([row for part in planned for batch in read_part(wanted, part) for row in batch["id"]]) == 3
    assert len(rows_of(archive=str(tmp_path))) == 3
    shutil.rmtree(tmp_path / "_replaced")
    with pytest.raises(SparkError, match=r"date=\S+ is missing, and below _replaced/ too: python -m"):
        list(read_part(wanted, planned[0]))


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    archive = Archived(storage_at(str(tmp_path)))
    (file,) = archive.append([message("a" * 32, NOW)]).files
    (tmp_path / file.path).write_bytes(b"PAR1 no more")
    with pytest.raises(StorageFailed, match=f"{file.path} cannot be read"):
        rows_of(archive=str(tmp_path))


def test_ends_of_deliveries_are_tables_too(tmp_path: Path) -> None:
    archive = Archived(storage_at(str(tmp_path)))
    archive.append([], [delivery("1" * 24, NOW), delivery("2" * 24, NOW + 5, end="dead")], [ends(NOW, 2)])
    archive.append([], [delivery("2" * 24, NOW + QUARTER_MS, number=2)], [ends(NOW + QUARTER_MS)])
    found = rows_of(archive=str(tmp_path), table="deliveries")
    assert [(row["root"][0], row["end"], str(row["date"])) for row in found] == [
        ("1", "done", "2024-10-04"),
        ("2", "dead", "2024-10-04"),
        ("2", "done", "2024-10-04"),
    ]
    assert [row["count"] for row in rows_of(archive=str(tmp_path), table="ends", columns="count")] == [2, 1]
    assert rows_of(archive=str(tmp_path)) == []


def test_another_number_than_the_archive_s_is_refused(tmp_path: Path) -> None:
    archive = Archived(storage_at(str(tmp_path)))
    archive.append([message("a" * 32, NOW)])
    with pytest.raises(ValueError, match="option node: 3 is not the number of the archive's server, 0"):
        rows_of(archive=str(tmp_path), node="3")


def test_an_archive_of_another_timeline_is_refused(tmp_path: Path) -> None:
    archive = Archived(storage_at(str(tmp_path / "archive")))
    archive.append([message("a" * 32, NOW)])
    timeline = Timeline(tmp_path / "data")
    for name in (TIMELINE, "0" * 32):
        timeline.begin().row(Table.META, STATE, encode_row(ArchiveRow(name)))
        timeline.sync()
        backup = timeline.checkpoint(tmp_path / name)
        if name == TIMELINE:
            assert len(rows_of(path=backup, archive=str(tmp_path / "archive"))) == 1
        else:
            with pytest.raises(SparkError, match="is the archive of another timeline than the backup's"):
                rows_of(path=backup, archive=str(tmp_path / "archive"))
    timeline.close()


def test_it_meets_what_it_is_there_for(world: World) -> None:
    """Messages that were withheld and came again, and all states."""
    states = {one.state for _, account in world.moments for one in account.values()}
    assert states == {"pending", "dispatched", "cancelled", "withheld"}
    assert len(world.archived) > 100


def test_many_ids_looked_up_make_fewer_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them takes the ids along."""
    archive = Archived(storage_at(str(tmp_path)))
    for n in range(6):
        archive.append([message(f"{n:032x}", NOW + n * QUARTER_MS, state="withheld")])
    wanted = wanted_of({"archive": str(tmp_path)})
    monkeypatch.setattr("spark.table.PARTITION_ROWS", 1)
    assert len(parts(wanted)) == 6
    monkeypatch.setattr("spark.table.LOOKED_UP_ROWS", 3)
    assert len(parts(wanted)) == 2
