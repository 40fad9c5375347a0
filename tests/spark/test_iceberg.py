"""The archive as Iceberg tables: each file once, whatever ends a job and whoever else is at it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs, to_builtins
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction

from shards.archives import DELIVERIES, ENDS, MESSAGES, Manifest, manifest_name
from spark import iceberg
from spark.compact import after
from spark.errors import ArchiveClash, SparkError
from spark.iceberg import add
from spark.manifests import read_archive
from spark.storage import storage_at

from .archives import DAY, Archived, a_day, compacted, compaction, message, rows_of, work_here


@pytest.fixture
def archive(tmp_path: Path) -> Archived:
    return Archived(storage_at(str(tmp_path / "archive")))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/catalog.db"


def opened(uri: str) -> Catalog:
    return load_catalog("fasti", uri=uri)


def table(uri: str, name: str = MESSAGES) -> Table:
    return opened(uri).load_table(f"fasti.{name}")


def numbers(uri: str, name: str = MESSAGES) -> list[int]:
    """The commits of a table's snapshots."""
    snapshots = sorted(table(uri, name).metadata.snapshots, key=lambda one: one.sequence_number)
    return [int(one.summary["fasti.number"]) for one in snapshots if one.summary]


def is_whole(uri: str, archive: Archived) -> bool:
    """Whether the tables have the rows and files of the archive, each once, as two readers see them."""
    for name in (MESSAGES, DELIVERIES, ENDS):
        files = {
            f"file://{archive.storage.full(one.path)}" for one in read_archive(archive.storage).files(name)
        }
        scan = table(uri, name).scan()
        there = [task.file.file_path for task in scan.plan_files()]
        rows = [
            str(one["id"]) if "id" in one else str(one["count"]) for one in rows_of(archive.storage, name)
        ]
        column = "count" if name == ENDS else "id"
        read = scan.to_duckdb("seen").sql(f'SELECT "{column}" FROM seen').fetchall()
        seen = [str(one[column]) for one in scan.to_arrow().to_pylist()]
        if sorted(there) != sorted(files) or sorted(rows) != sorted(seen):
            return False
        if sorted(rows) != sorted(str(one[0]) for one in read):
            return False
    return True


def commits(archive: Archived, count: int = 3) -> list[Manifest]:
    a_day(archive, count - 1)
    return archive.commits


def test_each_commit_is_a_snapshot(archive: Archived, uri: str) -> None:
    for one in commits(archive):
        add(uri, archive.storage, one)
        add(uri, archive.storage, one)
    assert is_whole(uri, archive)
    assert numbers(uri) == [1, 2, 3]
    assert numbers(uri, DELIVERIES) == numbers(uri, ENDS) == [1, 2]
    fields = {field.name: str(field.field_type) for field in table(uri).schema().fields}
    assert (fields["at"], fields["headers"]) == ("timestamptz", "map<string, string>")
    days = [str(one["partition"]["day"]) for one in table(uri).inspect.partitions().to_pylist()]
    assert sorted(days) == ["2024-10-04", "2024-10-05"]
    seen = table(uri).scan(row_filter="at >= '2024-10-05T00:00:00+00:00'")
    assert [row["id"] for row in seen.to_arrow().to_pylist()] == ["next"]
    assert len(list(seen.plan_files())) == 1, "the other day's files are not read"


def test_an_earlier_snapshot(archive: Archived, uri: str) -> None:
    for one in commits(archive):
        add(uri, archive.storage, one)
    first = table(uri).metadata.snapshots[0].snapshot_id
    assert table(uri).scan(snapshot_id=first).to_arrow().num_rows == 50


def test_a_catalog_that_comes_later_gets_all(archive: Archived, uri: str) -> None:
    made = commits(archive, 5)
    add(uri, archive.storage, made[-1])
    assert is_whole(uri, archive)
    assert numbers(uri) == [5]


def test_a_gap_is_filled(archive: Archived, uri: str) -> None:
    made = commits(archive, 5)
    for number in (0, 3, 4):
        add(uri, archive.storage, made[number])
    assert is_whole(uri, archive)
    assert numbers(uri) == [1, 4, 5]


def test_a_gap_in_the_archive_is_not_passed_over(archive: Archived, uri: str) -> None:
    """Its rows would never come."""
    first, second, *_, last = commits(archive, 4)
    add(uri, archive.storage, first)
    path = manifest_name(second.number)
    data = archive.storage.read(path)
    archive.storage.delete(path)
    with pytest.raises(SparkError, match=f"lacks commit {second.number}"):
        add(uri, archive.storage, last)
    archive.storage.write(path, data)
    add(uri, archive.storage, last)
    assert is_whole(uri, archive)


def test_compaction_and_files_written_again_swap_entries(archive: Archived, uri: str) -> None:
    for one in commits(archive, 4):
        add(uri, archive.storage, one)
    damaged = archive.commits[0].files[0]
    again = [message(f"0-{index}", damaged.first_ms + index) for index in range(50)]
    add(uri, archive.storage, archive.again([damaged.path], again))
    assert is_whole(uri, archive)
    made = archive.record(to_builtins(work_here(compaction(archive), archive.storage)))
    add(uri, archive.storage, made)
    after(archive.storage, made)
    add(uri, archive.storage, made)
    assert is_whole(uri, archive)
    assert numbers(uri) == [1, 2, 3, 4, 5, 6]
    assert len(list(table(uri).scan().plan_files())) == 2


def test_a_later_catalog_of_a_compacted_archive(archive: Archived, uri: str) -> None:
    made = commits(archive, 4)
    add(uri, archive.storage, made[1])
    last = compacted(archive)
    add(uri, archive.storage, last)
    assert is_whole(uri, archive)
    for name in (MESSAGES, DELIVERIES, ENDS):
        opened(uri).drop_table(f"fasti.{name}")
    add(uri, archive.storage, last)
    assert is_whole(uri, archive)


@pytest.mark.parametrize("name", [MESSAGES, DELIVERIES])
def test_a_dropped_table_is_made_again(name: str, archive: Archived, uri: str) -> None:
    made = commits(archive, 4)
    for one in made[:3]:
        add(uri, archive.storage, one)
    opened(uri).drop_table(f"fasti.{name}")
    add(uri, archive.storage, made[3])
    assert is_whole(uri, archive)


def test_it_ends_anywhere_and_is_done_again(
    archive: Archived, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = commits(archive, 3)
    add(uri, archive.storage, made[0])
    steps = 0
    for last in range(12):
        with monkeypatch.context() as patch:
            _dies_at(last, patch)
            try:
                add(uri, archive.storage, made[1])
            except KeyboardInterrupt:
                steps += 1
    assert steps >= 3
    add(uri, archive.storage, made[1])
    add(uri, archive.storage, made[2])
    assert is_whole(uri, archive)
    assert numbers(uri) == [1, 2, 3]


def _dies_at(last: int, patch: pytest.MonkeyPatch) -> None:
    """Ends before or after the given commit of a transaction."""
    commit, count = Transaction.commit_transaction, iter(range(1 << 30))

    def counted(self: Transaction) -> Table:
        number = next(count)
        if number == last // 2 and last % 2 == 0:
            raise KeyboardInterrupt
        found = commit(self)
        if number == last // 2:
            raise KeyboardInterrupt
        return found

    patch.setattr(Transaction, "commit_transaction", counted)


def test_two_at_once(archive: Archived, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program adds the same commit between the look and the commit of this one."""
    made = commits(archive, 3)
    add(uri, archive.storage, made[0])
    update: Callable[..., None] = iceberg._update
    others = iter([1, 2])

    def overtaken(*given: Any) -> None:
        if next(others, 0) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(iceberg, "_update", update)
                add(uri, archive.storage, made[1])
                add(uri, archive.storage, made[2])
        update(*given)

    monkeypatch.setattr(iceberg, "_update", overtaken)
    add(uri, archive.storage, made[1])
    assert is_whole(uri, archive)
    assert numbers(uri) == [1, 2, 3]


def test_a_catalog_that_is_always_overtaken(
    archive: Archived, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def failing(*given: Any) -> None:
        tries.append(1)
        raise CommitFailedException("branch main has changed\nand more")

    monkeypatch.setattr(iceberg, "_update", failing)
    with pytest.raises(SparkError, match=r"catalog\.db: branch main has changed and more$"):
        add(uri, archive.storage, commits(archive)[0])
    assert len(tries) == iceberg.TRIES


def test_tables_of_another_timeline_or_of_a_restored_one(archive: Archived, uri: str, tmp_path: Path) -> None:
    made = commits(archive)
    for one in made:
        add(uri, archive.storage, one)
    other = Archived(storage_at(str(tmp_path / "other")))
    other.append([message("x", DAY)])
    with pytest.raises(ArchiveClash, match="is ahead of this archive"):
        add(uri, other.storage, other.commits[0])
    with pytest.raises(ArchiveClash, match="of another timeline"):
        add(uri, archive.storage, structs.replace(made[0], timeline="8" * 32))


def test_somebody_else_has_rewritten_the_table(archive: Archived, uri: str) -> None:
    for one in commits(archive):
        add(uri, archive.storage, one)
    with table(uri).transaction() as change, change.update_snapshot().overwrite() as files:
        files.delete_data_file(next(iter(table(uri).scan("id == '0-0'").plan_files())).file)
    made = archive.record(to_builtins(work_here(compaction(archive), archive.storage)))
    with pytest.raises(SparkError, match="Drop its tables"):
        add(uri, archive.storage, made)
    for name in (MESSAGES, DELIVERIES, ENDS):
        opened(uri).drop_table(f"fasti.{name}")
    add(uri, archive.storage, made)
    assert is_whole(uri, archive)


def test_a_new_column(archive: Archived, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = commits(archive)
    schema = iceberg.SCHEMAS[MESSAGES]
    monkeypatch.setitem(iceberg.SCHEMAS, MESSAGES, schema.remove(schema.get_field_index("deliver_to")))
    with pytest.raises(SparkError):
        add(uri, archive.storage, made[0])
    monkeypatch.setitem(iceberg.SCHEMAS, MESSAGES, schema)
    add(uri, archive.storage, made[-1])
    assert is_whole(uri, archive)


@pytest.mark.parametrize(
    "name", ["nobody", "http://127.0.0.1:9/x", "sqlite:////no/such/folder/x.db", "ftp://x"]
)
def test_no_such_catalog(name: str, archive: Archived) -> None:
    with pytest.raises(SparkError, match=r"^the catalog .*: ") as found:
        add(name, archive.storage, commits(archive)[0])
    assert "\n" not in str(found.value)


def test_a_password_is_not_said(archive: Archived) -> None:
    with pytest.raises(SparkError, match=r"the catalog postgresql://127\.0\.0\.1/x: ") as found:
        add("postgresql://me:secret@127.0.0.1:9/x", archive.storage, commits(archive)[0])
    assert "secret" not in str(found.value)


def test_old_snapshots_go(archive: Archived, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "KEPT", 2)
    for one in commits(archive, 6):
        add(uri, archive.storage, one)
    assert numbers(uri) == [5, 6]
    add(uri, archive.storage, compacted(archive))
    assert numbers(uri) == [5, 6, 7]
    assert is_whole(uri, archive)
