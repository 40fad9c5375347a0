"""Files of an archive in a directory, the names of archives, and what the manifests say."""

from pathlib import Path

import msgspec
import pytest

from shards.archives import AGAIN, APPEND, COMPACT, ArchivedFile, DamagedRange, Manifest, Span, archive_url
from spark.errors import SparkError
from spark.manifests import Archive, OldManifest, read_archive, write_all
from spark.storage import Missing, Storage, StorageFailed, storage_at
from timeline.position import position

QUARTER = 900_000
SUM = "0" * 64


def file(path: str, rows: int = 1, **more: object) -> ArchivedFile:
    return msgspec.convert({"path": path, "rows": rows, "bytes": 1, "sha256": SUM, **more}, ArchivedFile)


def commit(number: int, kind: str = APPEND, **more: object) -> Manifest:
    given = {"number": number, "kind": kind, "timeline": "ab", "node": 0, "job": "c0ffee00", "version": 2}
    return msgspec.convert({"created_ms": 1, **given, **more}, Manifest)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("/var/a", "/var/a"),
        ("file:///var/a%20b/", "/var/a b"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("abfs://box@name.dfs.core.windows.net/a", "abfs://box@name.dfs.core.windows.net/a"),
    ],
)
def test_the_name_of_an_archive(name: str, url: str) -> None:
    assert archive_url(name) == url


@pytest.mark.parametrize(
    "name",
    [
        "",
        "~/a",
        "C:\\a",
        "http://x/a",
        "s3a://bucket/a",
        "hdfs://a/b",
        "file://host/a",
        "s3://",
        "s3:bucket/a",
        "s3://bucket/a/../b",
        "s3://bucket//a",
        "s3://bucket/a b",
        "s3://bucket/a?region=x",
        "s3://key:secret@bucket/a",
        "s3://key@bucket/a",
        "abfs://box:key@name.dfs.core.windows.net/a",
        "s3://bucket/" + "a" * 1_100,
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"must|has"):
        archive_url(name)
    with pytest.raises(StorageFailed):
        storage_at(name)


def test_a_file_is_complete_or_not_there(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path / "a"))
    with pytest.raises(RuntimeError):
        _write_half(storage, "date=2026-12-01/x.parquet")
    assert storage.list(recursive=True) == []
    assert [*(tmp_path / "a").glob("**/*.tmp")] == []
    storage.write("date=2026-12-01/x.parquet", b"whole")
    assert storage.read("date=2026-12-01/x.parquet") == b"whole"
    assert [(one.path, one.bytes) for one in storage.list(recursive=True)] == [
        ("date=2026-12-01/x.parquet", 5)
    ]
    storage.move("date=2026-12-01/x.parquet", "_replaced/date=2026-12-01/x.parquet")
    assert not storage.exists("date=2026-12-01/x.parquet")
    storage.delete("_replaced/date=2026-12-01/x.parquet")
    storage.delete("_replaced/date=2026-12-01/x.parquet")
    with pytest.raises(Missing, match="is missing"):
        storage.read("_replaced/date=2026-12-01/x.parquet")


def _write_half(storage: Storage, path: str) -> None:
    with storage.writing(path) as out:
        out.write(b"half")
        raise RuntimeError


def test_an_error_is_one_line_and_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no directory")
    with pytest.raises(SparkError, match=r"a/b/x") as found:
        storage_at(str(tmp_path / "a")).write("b/x", b"")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "date=2026-12-01/../../x"])
def test_a_path_leads_nowhere_else(tmp_path: Path, path: str) -> None:
    storage = storage_at(str(tmp_path / "a"))
    for work in (storage.read, storage.delete, storage.exists, lambda one: storage.write(one, b"")):
        with pytest.raises(StorageFailed, match="is not inside it"):
            work(path)


def test_files_that_count() -> None:
    again = commit(3, AGAIN, files=[file("c")], replaces=["a"])
    compact = commit(4, COMPACT, files=[file("d", rows=2)], replaces=["b", "c"])
    archive = Archive([again, commit(1, files=[file("a")]), commit(2, files=[file("b")]), compact])
    assert [one.path for one in archive.files()] == ["d"]
    assert [one.path for one in archive.up_to(3).files()] == ["b", "c"]
    assert archive.last == 4


def test_what_is_covered() -> None:
    low, high = position(QUARTER + 5, 0), position(QUARTER + 7, 0)
    gap = DamagedRange(f"{low:024x}", f"{high:024x}")
    spans = [Span(0, 0, QUARTER, 2 * QUARTER, 1, 1, [gap])]
    old = [OldManifest(0, QUARTER, 0, 1), OldManifest(QUARTER, 2 * QUARTER, 0, 1)]
    archive = Archive(
        [
            commit(1, start_ms=QUARTER, end_ms=2 * QUARTER, spans=msgspec.to_builtins(spans)),
            commit(2, start_ms=3 * QUARTER, end_ms=4 * QUARTER),
        ],
        old,
    )
    assert archive.covered == [(0, 2 * QUARTER), (3 * QUARTER, 4 * QUARTER)]
    assert [one.start_ms for one in archive.old] == [0], "the append has the other slice again"
    there = [0, QUARTER, 2 * QUARTER - 1, 2 * QUARTER, 3 * QUARTER, 4 * QUARTER - 1, 4 * QUARTER]
    assert [archive.covers(at) for at in there] == [True, True, True, False, True, True, False]
    assert archive.damaged == [(low, high)]
    assert not Archive([]).covers(5)


def test_manifests_are_read_one_by_one_or_all_at_once(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path))
    commits = [commit(number, start_ms=number, files=[file(f"f{number}")]) for number in range(1, 6)]
    for one in commits:
        storage.write(f"_manifests/{one.number:010d}.json", msgspec.json.encode(one))
    storage.write(
        "_manifests/1796083200000-0.json", b'{"start_ms": 0, "end_ms": 1, "generation": 0, "rows": 1}'
    )
    assert read_archive(storage).commits == commits
    write_all(storage, commits[:3])
    write_all(storage, commits[:4])
    for one in commits[:4]:
        storage.delete(f"_manifests/{one.number:010d}.json")
    found = read_archive(storage)
    assert found.commits == commits
    assert [one.rows for one in found.old] == [1]
    storage.write("_manifests/0000000009.json", b"{")
    with pytest.raises(SparkError, match=r"0000000009\.json cannot be read"):
        read_archive(storage)
