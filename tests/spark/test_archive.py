"""The Parquet archive of a slice: every message once, however often it was tried."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from shards.record import ENCODINGS
from spark import archive
from spark.archive import MANIFESTS, SCHEMA, archive_slice, sync_path
from spark.errors import ArchiveClash
from spark.expire import archive_all
from spark.job import job_from
from spark.snapshot import opened_snapshot
from timeline.slices import DAY_MS, Slice

from .stores import FAR, NOW, Timeline, record, slice_body

PROPERTIES = b"\x03\x00\x0atext/plain\x26\x00\x01a\x00\x011\x26\x00\x01b\x00\x012\x01\x01"


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[Timeline]:
    """Two days of the past: pending ones, cancelled, moved, expired, late, sent again, with headers."""
    one = Timeline(tmp_path / "data")
    at = NOW + 5 * DAY_MS
    ids = one.put(
        *(
            record(at + 1_000_000 * n, str(n), f"t/{n % 3}", properties=PROPERTIES, qos=n % 3)
            for n in range(90)
        ),
        record(at + 50, "gone", expires_ms=100),
        record(at + 60, "kept", expires_ms=DAY_MS, retain=True, encoding=2, publisher=b"p1"),
        record(at + 70, "nightly", schedule=b"nightly"),
    )
    for message in ids[:90:10]:
        one.cancel(message)
    for message in ids[1:90:10]:
        one.move(message, at + 7_777_777)
    one.dispatch(at + 100, late_ms=200)
    for n in (2, 3, 4):
        one.retry(ids[n], at + 1_000_000 * n + 5)
    one.put(record(at - 5_000, "late", owner=b"meter-7"))
    one.dispatch(at + 90_000_000, late_ms=3)
    one.dispatch(FAR)
    yield one
    one.close()


def job_of(timeline: Timeline, checkpoint: str):
    pieces = [slice_body(piece) for piece in timeline.opened.directory]
    body = {"id": "j", "kind": "expire", "state": "archiving", "checkpoint": checkpoint, "slices": pieces}
    return job_from(body)


def archived(folder: Path) -> list[dict]:
    paths = sorted(folder.glob("date=*/*.parquet"))
    return [row for path in paths for row in pq.read_table(path, schema=SCHEMA).to_pylist()]


def test_every_message_is_in_the_archive_once(
    spark: SparkSession, timeline: Timeline, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    job = job_of(timeline, timeline.checkpoint(tmp_path / "cp"))
    assert len(job.slices) > 3
    said = archive_all(spark, job, str(folder))
    assert [(one["start_ms"], one["rows"]) for one in said] == [(p.start_ms, p.count) for p in job.slices]
    rows = {row["id"]: row for row in archived(folder)}
    expected = timeline.messages()
    assert rows.keys() == expected.keys()
    assert len(rows) == len(archived(folder)) == sum(one["archived"] for one in said)
    for name, stored in expected.items():
        row = rows[name]
        assert row["topic"] == stored.topic.decode()
        assert row["payload"] == (None if stored.stub else stored.payload)
        assert int(row["due"].timestamp() * 1000) == stored.due_ms
        assert (row["qos"], row["retain"]) == (stored.qos, stored.retain)
        assert row["schedule"] == (stored.schedule.decode() or None)
        assert row["encoding"] == ENCODINGS[stored.encoding]
        assert row["state"] == ("cancelled" if stored.stub else row["state"])
        assert (row["dispatched"] is None) == (row["state"] != "dispatched")
        if stored.properties:
            assert dict(row["headers"]) == {"a": "1", "b": "2"}
            assert row["content_type"] == "text/plain"
    by_payload = {row["payload"]: row for row in rows.values() if row["payload"]}
    assert by_payload[b"gone"]["state"] == "expired"
    assert by_payload[b"kept"]["state"] == "dispatched"
    assert by_payload[b"kept"]["publisher"] == "p1"
    assert by_payload[b"late"]["at"] > by_payload[b"late"]["due"]
    late = by_payload[b"kept"]["dispatched"] - by_payload[b"kept"]["due"]
    assert late.total_seconds() * 1000 == 240


def test_files_lie_under_the_day_of_their_rows(timeline: Timeline, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with opened_snapshot(timeline.checkpoint(tmp_path / "cp")) as snapshot:
        for piece in snapshot.reader.directory:
            archive_slice(snapshot, piece.home, folder, 0)
    days = sorted(path.name for path in folder.iterdir() if path.name.startswith("date="))
    assert len(days) >= 2
    for path in folder.glob("date=*/*.parquet"):
        table = pq.read_table(path, schema=SCHEMA)
        assert {str(at)[:10] for at in table["at"].to_pylist()} == {path.parent.name.removeprefix("date=")}
        assert table["at"].to_pylist() == sorted(table["at"].to_pylist())
    for manifest in (folder / MANIFESTS).iterdir():
        for file in json.loads(manifest.read_bytes())["files"]:
            assert (folder / file["path"]).stat().st_size == file["bytes"]


class Stopped(Exception):
    """The test pulls the plug."""


def test_interrupted_anywhere_and_run_again_nothing_is_twice_or_missing(
    timeline: Timeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sync of a directory is a step: before it and after it the job may end."""
    job = job_of(timeline, timeline.checkpoint(tmp_path / "cp"))
    expected = sorted(timeline.messages())
    with opened_snapshot(job.checkpoint) as snapshot:

        def run(folder: Path) -> None:
            for piece in job.slices:
                archive_slice(snapshot, piece.home, folder, 0)

        step = 0
        while True:
            folder = tmp_path / f"archive-{step}"
            plug = Plug(step)
            monkeypatch.setattr(archive, "sync_path", plug)
            with suppress(Stopped):
                run(folder)
            monkeypatch.undo()
            if not plug.was_pulled:
                break
            run(folder)
            assert sorted(row["id"] for row in archived(folder)) == expected
            assert not list(folder.rglob("*.tmp"))
            step += 1
    assert step > 15


class Plug:
    """`sync_path` that stops before its n-th step or, odd steps, after it."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.was_pulled = False

    def __call__(self, path: Path) -> None:
        self._step()
        sync_path(path)
        self._step()

    def _step(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.was_pulled = True
            raise Stopped


def test_what_is_archived_is_left_alone_and_what_is_damaged_written_again(
    timeline: Timeline, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    with opened_snapshot(timeline.checkpoint(tmp_path / "cp")) as snapshot:
        home = next(iter(snapshot.reader.directory)).home
        first = archive_slice(snapshot, home, folder, 0)
        path = folder / first["files"][0]["path"]
        written = path.stat().st_mtime_ns
        assert archive_slice(snapshot, home, folder, 0) == first
        assert path.stat().st_mtime_ns == written
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        archive_slice(snapshot, home, folder, 0)
        assert pq.read_table(path).num_rows == first["files"][0]["rows"]


def test_an_archive_of_another_server_is_not_overwritten(timeline: Timeline, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with opened_snapshot(timeline.checkpoint(tmp_path / "cp")) as snapshot:
        home = next(iter(snapshot.reader.directory)).home
        archive_slice(snapshot, home, folder, 0)
        manifest = archive.manifest_path(folder, home)
        other = json.loads(manifest.read_bytes()) | {"rows": 4_711}
        manifest.write_text(json.dumps(other))
        with pytest.raises(ArchiveClash, match="an archive of its own"):
            archive_slice(snapshot, home, folder, 0)


def test_a_slice_that_borrows_is_archived_with_its_own_rows_only(timeline: Timeline, tmp_path: Path) -> None:
    late = timeline.put(*(record(FAR + DAY_MS * 20 + n, str(n)) for n in range(20)))
    piece = timeline.piece(FAR + DAY_MS * 20)
    left = Slice(piece.start_ms, FAR + DAY_MS * 20 + 5, 1)
    right = Slice(left.end_ms, piece.end_ms, 1)
    for child in (left, right):
        child.borrowed = dict(piece.shards)
    with opened_snapshot(timeline.checkpoint(tmp_path / "cp")) as snapshot:
        directory = snapshot.reader.directory
        directory.drop(directory.get(piece.start_ms))
        for child in (left, right):
            directory.adopt(child)
        counts = [archive_slice(snapshot, child.home, tmp_path / "a", 0)["rows"] for child in (left, right)]
    assert counts == [5, 15]
    assert len(late) == 20


def test_without_an_archive_rows_are_only_counted(
    spark: SparkSession, timeline: Timeline, tmp_path: Path
) -> None:
    job = job_of(timeline, timeline.checkpoint(tmp_path / "cp"))
    said = archive_all(spark, job, "")
    assert [one["rows"] for one in said] == [piece.count for piece in timeline.opened.directory]
    assert {one["archived"] for one in said} == {0}
