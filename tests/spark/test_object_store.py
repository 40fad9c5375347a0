"""An archive in an object store: S3 as moto serves it, also behind a proxy that fails.

Files first, then what a job's program does with them, from commits to compaction and a catalog.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar
from unittest.mock import MagicMock

import pytest
from msgspec import structs
from pyarrow import fs
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from shards.archives import QUARTER_MS
from spark import run as run_module
from spark import storage as storage_module
from spark.__main__ import main
from spark.archive import archive
from spark.compact import after
from spark.errors import SparkError
from spark.iceberg import add
from spark.manifests import read_archive
from spark.publish import claim, publish
from spark.storage import Missing, StorageFailed, s3_endpoint, storage_at
from spark.stream import ArchiveStream
from spark.table import FastiSource, register
from spark.verify import faults_in
from timeline.slices import DAY_MS

from .archived import Book, no_lease
from .archives import Archived, a_day, compacted, compaction, in_place, message, rows_of, work_here
from .s3 import BUCKET, CUT, FAILED, FINE, LOST, RESET, S3, SILENT, SLOW, environment, s3_server
from .served import served
from .stores import NOW, Timeline, record

ROOT = f"s3://{BUCKET}/fasti/archive"
SMALL = b"small" * 1_000
LARGE = bytes(range(256)) * 45_000
"""More than one part of an upload."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_server() as made:
        yield made


@pytest.fixture(autouse=True)
def s3(server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """An empty bucket, and the variables that lead to it."""
    lead_to(server.port, monkeypatch)
    made = fs.S3FileSystem(
        endpoint_override=s3_endpoint(), allow_bucket_creation=True, allow_bucket_deletion=True
    )
    if made.get_file_info(BUCKET).type == fs.FileType.Directory:
        made.delete_dir(BUCKET)
    made.create_dir(BUCKET)
    return server


def lead_to(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)


def test_files_of_an_archive() -> None:
    storage = storage_at(ROOT)
    assert storage.list(recursive=True) == []
    storage.write("date=2026-12-01/a.parquet", LARGE)
    storage.write("_manifests/0000000001.json", SMALL)
    assert storage.read("date=2026-12-01/a.parquet") == LARGE
    assert storage.sum_of("_manifests/0000000001.json")[0] == len(SMALL)
    assert [(one.path, one.bytes) for one in storage.list(recursive=True)] == [
        ("_manifests/0000000001.json", len(SMALL)),
        ("date=2026-12-01/a.parquet", len(LARGE)),
    ]
    assert [one.path for one in storage.list("_manifests")] == ["_manifests/0000000001.json"]
    storage.move("date=2026-12-01/a.parquet", "_replaced/date=2026-12-01/a.parquet")
    assert not storage.exists("date=2026-12-01/a.parquet")
    assert storage.read("_replaced/date=2026-12-01/a.parquet") == LARGE
    storage.delete("_replaced/date=2026-12-01/a.parquet")
    storage.delete("_replaced/date=2026-12-01/a.parquet")
    with pytest.raises(Missing):
        storage.move("date=2026-12-01/a.parquet", "x")
    with pytest.raises(Missing):
        storage.read("date=2026-12-01/a.parquet")


@pytest.mark.parametrize("fate", [SLOW, RESET, FAILED, CUT])
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_mishap_of_the_first_request_of_each_kind(
    fate: str, data: bytes, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: set[str] = set()

    def first(method: str, target: str, number: int) -> str:
        kind = method + target.partition("?")[2][:6]
        is_new = kind not in met and method != "HEAD"
        met.add(kind)
        return fate if is_new else FINE

    with s3.behind(first) as proxy:
        lead_to(proxy.port, monkeypatch)
        storage = storage_at(ROOT)
        storage.write("a", data)
        assert storage.read("a") == data
        assert [(one.path, one.bytes) for one in storage.list()] == [("a", len(data))]
        assert proxy.seen[fate] >= 3


def test_an_answer_that_is_lost_leaves_the_file_whole(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3.behind(lambda method, target, number: LOST if number == 0 else FINE) as proxy:
        lead_to(proxy.port, monkeypatch)
        storage_at(ROOT).write("a", SMALL)
    lead_to(s3.port, monkeypatch)
    assert storage_at(ROOT).read("a") == SMALL


@pytest.mark.parametrize("fate", [RESET, FAILED, SILENT])
def test_a_store_that_never_answers_fails_in_one_line_and_in_time(
    fate: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage_at(ROOT).write("there", SMALL)
    monkeypatch.setattr(storage_module, "REQUEST_S", 1)
    monkeypatch.setattr(storage_module, "TRIES", 2)
    began = time.monotonic()
    with s3.behind(lambda method, target, number: fate) as proxy:
        lead_to(proxy.port, monkeypatch)
        storage = storage_at(ROOT)
        acts = [lambda: storage.read("there")]
        if fate != SILENT:
            acts += [
                storage.list,
                lambda: storage.write("a", SMALL),
                lambda: storage.write("b", LARGE),
                lambda: storage.move("there", "c"),
            ]
        for act in acts:
            with pytest.raises(StorageFailed, match=f"{ROOT}.*") as found:
                act()
            assert not isinstance(found.value, Missing)
            assert "\n" not in str(found.value)
    assert time.monotonic() - began < 60
    lead_to(s3.port, monkeypatch)
    assert [(one.path, one.bytes) for one in storage_at(ROOT).list()] == [("there", len(SMALL))]


def test_no_such_bucket_and_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageFailed, match="s3://other/a"):
        storage_at("s3://other/a").write("x", b"")
    lead_to(9, monkeypatch)
    monkeypatch.setattr(storage_module, "TRIES", 2)
    with pytest.raises(StorageFailed, match=f"{ROOT}/x: .*onnect"):
        storage_at(ROOT).read("x")


Made = TypeVar("Made")


@pytest.mark.parametrize("seed", [1, 2])
def test_an_archive_is_whole_whatever_the_store_does(
    seed: int, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request of eight meets a mishap, and a job that fails is followed by the next one."""
    source = Timeline(tmp_path / "data")
    start = NOW + DAY_MS
    source.put(*(record(start + n * 60_000, str(n)) for n in range(60)))
    source.dispatch(start + DAY_MS + 1)
    checkpoint = source.checkpoint(tmp_path / "cp")
    draw = random.Random(seed)
    monkeypatch.setattr(storage_module, "TRIES", 1)
    failed = 0

    def tried(act: Callable[[], Made]) -> Made:
        nonlocal failed
        for _ in range(1_000):
            try:
                return act()
            except StorageFailed:
                failed += 1
        raise AssertionError("it never comes to an end")

    def fate(method: str, target: str, number: int) -> str:
        return draw.choice([FINE] * 7 + [draw.choice([RESET, LOST, FAILED, CUT])])

    with s3.behind(fate) as proxy:
        lead_to(proxy.port, monkeypatch)
        book = Book(ROOT)  # type: ignore[arg-type]

        def one_job() -> None:
            job = book.job(source, checkpoint, (book.end_ms or start) + QUARTER_MS, start)
            claim(book.storage, job)
            book.record(job, archive(job, book.storage, no_lease()))

        for _ in range(4):
            tried(one_job)
            tried(lambda: publish(book.storage, book.records[-1]))
        done = SimpleNamespace(storage=book.storage, commits=book.records)
        report = tried(lambda: work_here(compaction(done, start), book.storage))
        made = structs.replace(book.records[-1], number=5, **structs.asdict(report))
        tried(lambda: publish(book.storage, made))
        tried(lambda: after(book.storage, made))
    lead_to(s3.port, monkeypatch)
    assert failed > 2
    rows = rows_of(storage_at(ROOT))
    assert [row["payload"] for row in rows] == [str(n).encode() for n in range(60)]
    assert [one for one in faults_in(ROOT) if "no commit" not in one] == []
    source.close()


def test_a_catalog_of_an_archive_in_an_object_store(tmp_path: Path) -> None:
    made = Archived(storage_at(ROOT))
    a_day(made, 3)
    uri = f"sqlite:///{tmp_path}/catalog.db"
    for one in made.commits:
        add(uri, made.storage, one)
    add(uri, made.storage, compacted(made))
    catalog = load_catalog("fasti", uri=uri, **{"s3.endpoint": s3_endpoint(), "s3.region": "us-east-1"})
    scan = catalog.load_table("fasti.messages").scan()
    assert sorted(row["id"] for row in scan.to_arrow().to_pylist()) == sorted(
        row["id"] for row in rows_of(made.storage)
    )
    assert [one.file.file_path for one in scan.plan_files() if "0000000005" in one.file.file_path]


def test_sql_over_an_archive_in_an_object_store(
    spark: SparkSession, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Archived(storage_at(ROOT))
    a_day(made, 3)
    compacted(made)
    # Of a session that runs already; else the workers have the variables of the program.
    for name, value in environment(s3.port).items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    register(spark)
    rows = spark.read.format("fasti").option("archive", ROOT).load().select("id", "date").collect()
    assert sorted(row.id for row in rows) == sorted(row["id"] for row in rows_of(made.storage))
    assert {str(row.date) for row in rows} == {"2024-10-04", "2024-10-05"}


def test_a_server_without_credentials_whose_program_has_them(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From messages to tables of a catalog, a compaction, and the drop. The store fails in between."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    for name in environment(0):
        monkeypatch.delenv(name)
    settings = {"slices.archive": ROOT, "slices.archive_catalog": uri}
    with served(tmp_path / "data", "--clock", "simulated", settings=settings) as server:
        call, put = server.remote.call, [f"m{n}" for n in range(40)]
        server.put(
            [{"topic": "t", "payload": name, "deliver_in": 60 + n * 600} for n, name in enumerate(put)]
        )
        call("POST", "/v1/clock:advance", {"by": "PT5H"})
        lead_to(s3.port, monkeypatch)
        assert main(["archive", "--server", server.url]) == 0
        monkeypatch.setattr(storage_module, "TRIES", 1)
        call("POST", "/v1/clock:advance", {"by": "PT4H"})
        number = 0

        def dies(method: str, target: str, count: int) -> str:
            return RESET if count >= number else FINE

        while True:
            with s3.behind(dies) as proxy:
                lead_to(proxy.port, monkeypatch)
                if main(["archive", "--server", server.url]) == 0:
                    break
            number += 7
        assert number > 20
        lead_to(s3.port, monkeypatch)
        call("POST", "/v1/clock:advance", {"by": "P1D"})
        put.append("the day after")
        server.put([{"topic": "t", "payload": put[-1], "deliver_in": 60}])
        call("POST", "/v1/clock:advance", {"by": "PT1H"})
        assert main(["archive", "--server", server.url]) == 0
        before = read_archive(storage_at(ROOT))
        monkeypatch.setattr(run_module, "spark_session", lambda *_: nullcontext(MagicMock()))
        with in_place():
            assert main(["compact", "--server", server.url]) == 0
        assert len(read_archive(storage_at(ROOT)).files()) < len(before.files())
        call("POST", "/v1/clock:advance", {"by": "P4D"})
        assert main(["expire", "--server", server.url]) == 0
        assert server.slices() == []
    catalog = load_catalog("fasti", uri=uri, **{"s3.endpoint": s3_endpoint(), "s3.region": "us-east-1"})
    scan = catalog.load_table("fasti.messages").scan().to_arrow()
    assert sorted(scan["payload"].to_pylist()) == sorted(name.encode() for name in put)
    assert sorted(row["id"] for row in rows_of(storage_at(ROOT))) == sorted(scan["id"].to_pylist())
    there = {task.file.file_path for task in catalog.load_table("fasti.messages").scan().plan_files()}
    assert there == {f"{ROOT}/{file.path}" for file in read_archive(storage_at(ROOT)).files()}
    assert [one for one in faults_in(ROOT) if "no commit" not in one] == []


def test_a_view_and_a_stream_of_an_archive_in_an_object_store(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, or an error of one line, whatever the store does."""
    source = Timeline(tmp_path / "data")
    source.put(*(record(NOW + DAY_MS + n * 60_000, str(n)) for n in range(40)))
    source.dispatch(NOW + 2 * DAY_MS)
    made = Archived(storage_at(ROOT))
    for n in range(3):
        made.append([message(f"{n:032x}", NOW + n * QUARTER_MS)])
    backup = source.checkpoint(tmp_path / "backup")
    source.close()
    draw = random.Random(53)
    monkeypatch.setattr(storage_module, "TRIES", 1)
    view = {"path": backup, "archive": ROOT, "columns": "id,state"}
    stream = ArchiveStream({"path": ROOT, "columns": "id"})
    failures = []

    def seen() -> tuple[int, int]:
        reader = FastiSource(view).reader(StructType())
        rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
        commits = stream.streamReader(StructType())
        some = commits.partitions({"number": 1}, {"number": 3})
        return rows, sum(batch.num_rows for part in some for batch in commits.read(part))

    with s3.behind(lambda *_: draw.choice([FINE] * 100 + [RESET, LOST, FAILED, CUT])) as proxy:
        lead_to(proxy.port, monkeypatch)
        for _ in range(12):
            try:
                assert seen() == (43, 2)
            except StorageFailed as error:
                failures.append(str(error))
    assert 2 < len(failures) < 25
    assert any(".parquet" in text for text in failures)
    assert all("\n" not in text and text.startswith(f"{ROOT}/") for text in failures)


def test_a_missing_archive_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SparkError, match=f"^{ROOT} is no archive: it has no manifests$"):
        FastiSource({"archive": ROOT}).reader(StructType()).partitions()
