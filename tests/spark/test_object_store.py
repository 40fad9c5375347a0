"""An archive in an object store: S3 as moto serves it, also behind a proxy that fails.

The child's program and the view go the same way: here is what they stand on.
"""

import logging
import time
from collections.abc import Iterator

import pytest
from pyarrow import fs

from spark import storage as storage_module
from spark.storage import Missing, StorageFailed, s3_endpoint, storage_at

from .s3 import BUCKET, CUT, FAILED, FINE, LOST, RESET, S3, SILENT, SLOW, environment, s3_server

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
