"""Planning and counting on a store directory: the pieces hold exactly the slice's rows."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from spark.errors import NotAStore
from spark.job import Job, Source, Span
from spark.plan import WITHIN, coarse, cut_points
from spark.snapshot import opened_store
from spark.split import counted, sketch_sources, sketches
from tests.support.mover import pieces_of
from timeline.slices import Slice

from .stores import FAR, Timeline, descriptor, record, slice_body


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


@pytest.fixture
def piece(timeline: Timeline) -> Slice:
    return timeline.piece(FAR)


@pytest.fixture
def job(timeline: Timeline, piece: Slice, tmp_path: Path) -> Job:
    """Of a split of that slice, on a checkpoint of its own."""
    return msgspec.convert(descriptor(timeline, piece, timeline.checkpoint(tmp_path / "plan")), Job)


def plainly(uri: str, piece: dict[str, Any], cuts: list[int]) -> list[tuple[int, ...]]:
    with opened_store(uri) as store:
        return [tuple(one.values()) for one in pieces_of(store, piece, cuts)]


def test_the_pieces_are_even_and_counted_exactly(
    spark: SparkSession, timeline: Timeline, piece: Slice, job: Job
) -> None:
    assert len(piece.shards) > 4
    timeline.put(record(FAR + 7, "after the checkpoint"))
    found = sketches(spark, job)
    cuts = cut_points(found, 3)
    pieces = counted(spark, job, found, cuts)
    assert max(one.rows for one in pieces) <= WITHIN * min(one.rows for one in pieces)
    assert sum(one.live for one in pieces) < sum(one.rows for one in pieces) == piece.count - 1
    assert pieces == plainly(job.checkpoint, slice_body(piece), cuts)


def test_a_piece_without_rows_counts_none(spark: SparkSession, piece: Slice, job: Job) -> None:
    cuts = [piece.end_ms - 2, piece.end_ms - 1]
    pieces = counted(spark, job, sketches(spark, job), cuts)
    assert [tuple(one) for one in pieces[1:]] == [(0, 0, 0)] * 2
    assert pieces[0].rows == piece.count


def test_any_cuts_are_counted_exactly(spark: SparkSession, piece: Slice, job: Job) -> None:
    """Also where an entry of a coarse sketch lies on both sides of a cut, or of several."""
    found = [coarse(one, 5) for one in sketches(spark, job)]
    chance = random.Random(1)
    for _ in range(3):
        inside = range(piece.start_ms + 1, FAR + 200_000)
        cuts = sorted(chance.sample(inside, chance.randrange(1, 8)))
        assert counted(spark, job, found, cuts) == plainly(job.checkpoint, slice_body(piece), cuts)


def test_what_cannot_be_read_fails(job: Job, tmp_path: Path) -> None:
    table = max((tmp_path / "plan").glob("*.sst"), key=lambda path: path.stat().st_size)
    damaged = bytearray(table.read_bytes())
    damaged[len(damaged) // 3] ^= 0xFF
    table.unlink()
    table.write_bytes(damaged)
    with pytest.raises(Exception, match=r"(?i)corrupt|checksum"):
        sketch_sources(job.checkpoint, job.slices[0], job.slices[0].sources)


def test_reading_leaves_the_checkpoint_as_it_was(piece: Slice, job: Job, tmp_path: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "plan").iterdir()}
    assert sketch_sources(job.checkpoint, job.slices[0], job.slices[0].sources).total == piece.count
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "plan").iterdir()} == before


def test_a_checkpoint_elsewhere_is_refused(tmp_path: Path) -> None:
    some = [Source(0, 0, 0)]
    with pytest.raises(NotAStore, match="only file://"):
        sketch_sources("s3://bucket/jobs/1", Span(0, 1, 1), some)
    with pytest.raises(NotAStore, match="no fasti data directory"):
        sketch_sources((tmp_path / "gone").as_uri(), Span(0, 1, 1), some)
