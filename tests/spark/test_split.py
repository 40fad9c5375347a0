"""Planning and moving on a store directory: the children's files hold exactly the parent's rows."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shards import keys
from shards.record import is_stub
from spark.errors import NotAStore
from spark.job import Span, begun_from, job_from
from spark.plan import WITHIN, cut_points
from spark.split import sketches, write_child, write_children

from .stores import FAR, Timeline, begun, descriptor, ingested, record


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[Timeline]:
    one = Timeline(tmp_path / "data")
    ids = one.put(*(record(FAR + 1_000 * n, str(n), f"orders/{n % 7}", owner=b"meter-7") for n in range(200)))
    for message in ids[::9]:
        one.cancel(message)
    for message in ids[2::18]:
        one.move(message, FAR + 555_555)
    yield one
    one.close()


def test_children_hold_every_row_under_their_own_keys(
    spark: SparkSession, timeline: Timeline, tmp_path: Path
) -> None:
    piece = timeline.piece(FAR)
    assert len(piece.shards) > 4
    job = job_from(descriptor(timeline, piece, timeline.checkpoint(tmp_path / "plan")))
    cuts = cut_points(sketches(spark, job), 3)
    # What comes between plan and begin is in the second checkpoint.
    timeline.put(record(FAR + 7, "between"))
    body = begun(piece, cuts, timeline.checkpoint(tmp_path / "moving"), tmp_path / "out")
    answer = begun_from(json.loads(json.dumps(body)))
    files = write_children(spark, answer)
    assert [file["slice"] for file in files] == [piece.start_ms, *cuts]
    assert max(file["rows"] for file in files) <= WITHIN * min(file["rows"] for file in files)
    paths = [tmp_path / "out" / file["name"] for file in files]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in paths)
    expected = timeline.rows(piece)
    got = ingested(tmp_path / "scratch", paths)
    children = {child.home for child in answer.children}
    assert {(keys.shard_of(key)[1], keys.place_of(key)): value for key, value in got.items()} == expected
    assert {keys.shard_of(key)[0] for key in got} == children
    for key in got:
        home = keys.shard_of(key)[0]
        child = next(child for child in answer.children if child.home == home)
        assert child.start_ms <= keys.place_of(key) >> 48 < child.end_ms
    for file, path in zip(files, paths, strict=True):
        check_row(file, path, got)


def check_row(file: dict, path: Path, got: dict[bytes, bytes]) -> None:
    """A row of the manifest against the file and its rows."""
    assert file["bytes"] == path.stat().st_size
    assert file["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    own = sorted(key for key in got if keys.slice_of(key).start_ms == file["slice"])
    assert (file["rows"], file["first"], file["last"]) == (len(own), own[0].hex(), own[-1].hex())
    assert [part["shard"] for part in file["shards"]] == sorted({keys.shard_of(key)[1] for key in own})
    for part in file["shards"]:
        rows = [(key, got[key]) for key in own if keys.shard_of(key)[1] == part["shard"]]
        assert part == {
            "shard": part["shard"],
            "rows": len(rows),
            "live": sum(not is_stub(value) for _, value in rows),
            "bytes": sum(len(value) + 22 for _, value in rows),
            "first": rows[0][0][-12:].hex(),
            "last": rows[-1][0][-12:].hex(),
        }


def test_a_child_without_rows_has_no_file(spark: SparkSession, timeline: Timeline, tmp_path: Path) -> None:
    piece = timeline.piece(FAR)
    cuts = [piece.end_ms - 2, piece.end_ms - 1]
    body = begun(piece, cuts, timeline.checkpoint(tmp_path / "moving"), tmp_path / "out")
    files = write_children(spark, begun_from(body))
    assert [file["slice"] for file in files] == [piece.start_ms]
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_a_task_that_fails_leaves_no_file(timeline: Timeline, tmp_path: Path) -> None:
    piece = timeline.piece(FAR)
    moving = tmp_path / "moving"
    body = begun(piece, [], timeline.checkpoint(moving), tmp_path / "out")
    (child,) = begun_from(body).children
    table = max(moving.glob("*.sst"), key=lambda path: path.stat().st_size)
    damaged = bytearray(table.read_bytes())
    damaged[len(damaged) // 3] ^= 0xFF
    table.unlink()
    table.write_bytes(damaged)
    with pytest.raises(Exception, match=r"(?i)corrupt|checksum"):
        write_child(body["checkpoint"], body["output"], child)
    assert list((tmp_path / "out").iterdir()) == []


def test_reading_leaves_the_checkpoint_as_it_was(timeline: Timeline, tmp_path: Path) -> None:
    piece = timeline.piece(FAR)
    moving = tmp_path / "moving"
    body = begun(piece, [], timeline.checkpoint(moving), tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in moving.iterdir()}
    assert write_child(body["checkpoint"], body["output"], begun_from(body).children[0])
    assert {path.name: path.stat().st_mtime_ns for path in moving.iterdir()} == before


def test_a_checkpoint_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="only file://"):
        write_child("s3://bucket/jobs/1", tmp_path.as_uri(), Span(0, 1, 1))
    with pytest.raises(NotAStore, match="no fasti data directory"):
        write_child((tmp_path / "gone").as_uri(), tmp_path.as_uri(), Span(0, 1, 1))
