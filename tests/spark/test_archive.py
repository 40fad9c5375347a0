"""Commits of the archive: every message once, however often it was tried, and what is damaged is named."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyspark.sql import SparkSession

import spark.storage
from shards.archives import MARKER, QUARTER_MS, ArchivedFile, Span, file_name, manifest_name
from shards.errors import Corrupt
from shards.record import ENCODINGS, is_moved
from shards.rocks import RocksStore
from shards.store import Table
from spark import columns
from spark.archive import Writer, archive, is_backfill, rows_within
from spark.errors import ArchiveClash
from spark.manifests import read_archive
from spark.publish import check, claim, publish
from spark.remote import Remote
from spark.run import STAGES
from spark.snapshot import opened_snapshot
from spark.storage import Storage, StorageFailed
from spark.verify import faults_in
from tests.support.server import ROOT
from timeline.position import at_of, before
from timeline.slices import DAY_MS

from .archived import Book, again, no_lease
from .stores import FAR, NOW, Timeline, record

PROPERTIES = b"\x03\x00\x0atext/plain\x26\x00\x01a\x00\x011\x26\x00\x01b\x00\x012\x01\x01"
AT = NOW + 5 * DAY_MS
END = AT + 2 * DAY_MS


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[Timeline]:
    """Two days of the past: dispatched ones, cancelled, moved, expired, late, sent again, with headers."""
    one = Timeline(tmp_path / "data")
    ids = one.put(
        *(
            record(AT + 1_000_000 * n, str(n), f"t/{n % 3}", properties=PROPERTIES, qos=n % 3)
            for n in range(90)
        ),
        record(AT + 50, "gone", expires_ms=100),
        record(AT + 60, "kept", expires_ms=DAY_MS, retain=True, encoding=2, publisher=b"p1"),
        record(AT + 70, "nightly", schedule=b"nightly"),
    )
    for message in ids[:90:10]:
        one.cancel(message)
    for message in ids[1:90:10]:
        one.move(message, AT + 7_777_777)
    one.dispatch(AT + 100, late_ms=200)
    for n in (2, 3, 4):
        one.retry(ids[n], AT + 1_000_000 * n + 5)
    one.put(record(AT - 5_000, "late", owner=b"meter-7"))
    one.dispatch(AT + 90_000_000, late_ms=3)
    one.dispatch(FAR)
    yield one
    one.close()


@pytest.fixture
def uri(timeline: Timeline, tmp_path: Path) -> str:
    return timeline.checkpoint(tmp_path / "cp")


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "archive")


def test_every_message_is_in_the_archive_once(timeline: Timeline, uri: str, book: Book) -> None:
    book.commit(timeline, uri, AT + DAY_MS // 2)
    book.commit(timeline, uri, END)
    assert [one.kind for one in book.records] == ["append", "append"]
    rows = {row["id"]: row for row in book.rows()}
    expected = timeline.messages()
    assert rows.keys() == expected.keys()
    assert len(rows) == len(book.rows()) == archived(book)
    for name, stored in expected.items():
        row = rows[name]
        assert row["topic"] == stored.topic.decode()
        assert row["payload"] == (None if stored.stub else stored.payload)
        assert int(row["due"].timestamp() * 1000) == stored.due_ms
        assert (row["qos"], row["retain"]) == (stored.qos, stored.retain)
        assert row["encoding"] == ENCODINGS[stored.encoding]
        assert row["state"] == ("cancelled" if stored.stub else row["state"])
        assert row["slice"] <= row["at"]
    by_payload = {row["payload"]: row for row in rows.values() if row["payload"]}
    assert by_payload[b"gone"]["state"] == "expired"
    assert by_payload[b"late"]["at"] > by_payload[b"late"]["due"]
    late = by_payload[b"kept"]["dispatched"] - by_payload[b"kept"]["due"]
    assert late.total_seconds() * 1000 == 240
    assert faults(book) == []


def archived(book: Book) -> int:
    return sum(span.archived for one in book.records for span in one.spans)


def faults(book: Book) -> list[str]:
    return [line.removeprefix(f"{book.storage.name}/") for line in faults_in(book.storage.name)]


def test_spans_have_all_stored_rows_of_each_slice(timeline: Timeline, uri: str, book: Book) -> None:
    book.commit(timeline, uri, END)
    spans = [span for one in book.records for span in one.spans]
    for piece in timeline.opened.directory.over(before(AT - DAY_MS), before(END)):
        own = [span for span in spans if (span.slice_ms, span.generation) == piece.home]
        assert sum(span.rows for span in own) == piece.count
        kept = [value for value in timeline.rows(piece).values() if not is_moved(value)]
        assert sum(span.archived for span in own) == len(kept)
    for span in spans:
        assert span.end_ms - span.start_ms <= QUARTER_MS
        assert span.start_ms // QUARTER_MS == (span.end_ms - 1) // QUARTER_MS
    assert spans == sorted(spans, key=lambda one: one.start_ms)


def test_files_lie_under_the_day_of_their_rows(timeline: Timeline, uri: str, book: Book) -> None:
    book.commit(timeline, uri, END)
    files = [file for one in book.records for file in one.files]
    assert len(files) >= 2
    for file in files:
        path = Path(book.storage.full(file.path))
        at = pq.ParquetFile(path).read()["at"].to_pylist()
        assert {f"date={str(one)[:10]}" for one in at} == {path.parent.name}
        assert at == sorted(at)
        assert [int(one.timestamp() * 1000) for one in (at[0], at[-1])] == [file.first_ms, file.last_ms]
        assert path.stat().st_size == file.bytes
        assert pq.ParquetFile(path).schema_arrow.equals(columns.SCHEMA)


@pytest.mark.parametrize("rows_max", [1, 7, 20, 1_000])
@pytest.mark.parametrize("batch", [1, 9, 1_000])
def test_a_commit_of_many_rows_ends_with_a_quarter(
    timeline: Timeline, uri: str, book: Book, rows_max: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever commits and batches end, each quarter of an hour of a slice is counted in one span."""
    monkeypatch.setattr("spark.archive.GROUP_ROWS", batch)
    monkeypatch.setattr("spark.columns.STEP", 1)
    job, start_ms, spans, found = book.job(timeline, uri, END), 0, list[Span](), list[ArchivedFile]()
    with opened_snapshot(uri) as snapshot:
        while (start_ms := start_ms or job.from_ms) < END:
            report = Writer(snapshot, book.storage, job, start_ms, END, len(found)).append(rows_max)
            assert report.end_ms % QUARTER_MS == 0
            assert all(start_ms <= span.start_ms < span.end_ms <= report.end_ms for span in report.spans)
            rows = [span.rows for span in report.spans]
            assert report.end_ms == END or sum(rows) >= rows_max > sum(rows[:-1])
            spans += report.spans
            found += report.files
            start_ms = report.end_ms
    counts: Counter[tuple[int, int]] = Counter()
    for piece in timeline.opened.directory.over(before(job.from_ms), before(END)):
        counts.update((piece.start_ms, at_of(place) // QUARTER_MS) for _, place in timeline.rows(piece))
    assert {(one.slice_ms, one.start_ms // QUARTER_MS): one.rows for one in spans} == counts
    assert len(spans) == len(counts)
    tables = [pq.ParquetFile(book.storage.full(file.path)).read(["id"]) for file in found]
    names = [name for table in tables for name in table["id"].to_pylist()]
    assert sorted(names) == sorted(timeline.messages())
    assert sum(span.archived for span in spans) == len(names)


def test_many_bytes_end_a_commit_too(
    timeline: Timeline, uri: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark.archive.GROUP_ROWS", 5)
    job = book.job(timeline, uri, END)
    with opened_snapshot(uri) as snapshot:
        assert Writer(snapshot, book.storage, job, job.from_ms, END).append().end_ms == END
        monkeypatch.setattr("spark.archive.BYTES_MAX", 2_000)
        report = Writer(snapshot, book.storage, job, job.from_ms, END).append()
    assert job.from_ms < report.end_ms < END
    assert report.end_ms % QUARTER_MS == 0


def test_the_first_commit_begins_where_slices_do(timeline: Timeline, uri: str, book: Book) -> None:
    """Not before: what a backup has there was dropped without an archive."""
    job = book.job(timeline, uri, END, from_ms=AT - AT % QUARTER_MS + 60_000)
    whole = archive(job, book.storage, no_lease())
    assert (whole.start_ms, whole.end_ms) == (job.from_ms, END)
    assert all(one.start_ms // QUARTER_MS == (one.end_ms - 1) // QUARTER_MS for one in whole.spans)
    each = patch("spark.tasks.each", lambda _, things, do: [do(one) for one in things])
    with each, patch("spark.tasks.TASK_ROWS", 10):
        parts = archive(structs.replace(job, id="2" * 32), book.storage, no_lease(), MagicMock())
    assert parts.spans == whole.spans
    assert len(parts.files) > len(whole.files)


def test_row_groups_are_whole(
    timeline: Timeline, uri: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of many quarters make a group, which is as large as it may be."""
    monkeypatch.setattr("spark.parquet.GROUP_ROWS", 30)
    book.commit(timeline, uri, END)
    groups = []
    for file in (file for one in book.records for file in one.files):
        found = pq.ParquetFile(book.storage.full(file.path)).metadata
        groups.append([found.row_group(n).num_rows for n in range(found.num_row_groups)])
    assert all(rows >= 30 for one in groups for rows in one[:-1])
    assert max(map(len, groups)) > 1


class Stopped(Exception):
    """The test pulls the plug."""


class Plug:
    """`sync_path` that stops before its n-th step or, odd steps, after it."""

    def __init__(self, step: int, real: Any) -> None:
        self.left = step
        self.real = real
        self.was_pulled = False

    def __call__(self, path: Path) -> None:
        self._step()
        self.real(path)
        self._step()

    def _step(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.was_pulled = True
            raise Stopped


def test_interrupted_anywhere_and_run_again_nothing_is_twice_or_missing(
    timeline: Timeline, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sync of a directory is a step: before it and after it the program may end."""
    expected, step = sorted(timeline.messages()), 0
    while True:
        book = Book(tmp_path / f"archive-{step}")
        plug = Plug(step, spark.storage.sync_path)
        monkeypatch.setattr("spark.storage.sync_path", plug)
        try:
            book.commit(timeline, uri, END)
        except Stopped:
            monkeypatch.undo()
            for manifest in book.records:
                publish(book.storage, manifest)
            book.commit(timeline, uri, END)
        monkeypatch.undo()
        assert sorted(row["id"] for row in book.rows()) == expected
        assert faults(book) == []
        if not plug.was_pulled:
            break
        step += 1
    assert step > 12


def test_files_of_a_try_that_died_go(timeline: Timeline, uri: str, book: Book) -> None:
    dead = book.job(timeline, uri, END)
    archive(dead, book.storage, no_lease())
    left = [entry.path for entry in book.storage.list(recursive=True)]
    assert left
    other = file_name("messages", "2024-10-09", 2, "0" * 32, 0)
    book.storage.write(other, b"of another commit")
    (manifest,) = book.commit(timeline, uri, END)
    named = {file.path for file in manifest.files} | {other, MARKER, manifest_name(1)}
    assert {entry.path for entry in book.storage.list(recursive=True)} == named


def test_a_program_that_is_late_deletes_nothing(timeline: Timeline, uri: str, book: Book) -> None:
    late = book.job(timeline, uri, END)
    book.commit(timeline, uri, END)
    rows = book.rows()
    archive(late, book.storage, no_lease())
    assert book.rows() == rows
    assert {line.partition(" ")[2] for line in faults(book)} == {"belongs to no commit"}


def test_a_damaged_file_is_written_again(timeline: Timeline, uri: str, book: Book) -> None:
    (manifest,) = book.commit(timeline, uri, END)
    lost, kept, *_ = manifest.files
    path = Path(book.storage.full(lost.path))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert faults(book) == [f"{lost.path} has other bytes than were written"]
    job = again(book.job(timeline, uri, END, manifest.start_ms), 1, [lost.path])
    job.from_ms = manifest.start_ms
    report = archive(job, book.storage, no_lease())
    assert (report.kind, report.replaces) == ("again", [lost.path])
    assert report.spans == manifest.spans
    (made,) = report.files
    assert (made.rows, made.first_ms, made.last_ms) == (lost.rows, lost.first_ms, lost.last_ms)
    publish(book.storage, book.record(job, report))
    assert sorted(row["id"] for row in book.rows()) == sorted(timeline.messages())
    assert kept.path in {file.path for file in read_archive(book.storage).files()}
    assert book.storage.exists(f"_replaced/{lost.path}")
    assert faults(book) == []


def test_a_file_that_is_not_as_it_was_written_is_no_commit(
    timeline: Timeline, uri: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = book.storage.sum_of
    monkeypatch.setattr(book.storage, "sum_of", lambda path: (real(path)[0], "0" * 64))
    with pytest.raises(StorageFailed, match="has other bytes than were written"):
        book.commit(timeline, uri, END)
    assert book.records == []


def test_a_job_that_cannot_write_leaves_nothing(
    timeline: Timeline, uri: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full stays as full as it was, however often it is tried."""
    book.commit(timeline, uri, AT)
    before = book.storage.list(recursive=True)
    real, written = Storage.writing, list[str]()

    def fills(storage: Storage, path: str) -> Any:
        if len(written) == 1:
            raise StorageFailed("No space left on device")
        written.append(path)
        return real(storage, path)

    monkeypatch.setattr(Storage, "writing", fills)
    with pytest.raises(StorageFailed, match="No space left"):
        STAGES["archive"](MagicMock(spec=Remote), book.job(timeline, uri, END), no_lease(), None)
    assert written[0].startswith("date=")
    assert book.storage.list(recursive=True) == before


def test_an_archive_is_of_one_timeline(timeline: Timeline, uri: str, book: Book) -> None:
    book.commit(timeline, uri, AT)
    other = Book(Path(book.storage.root), "0" * 32)
    with pytest.raises(ArchiveClash, match="of another timeline"):
        other.commit(timeline, uri, AT)
    restored = Book(Path(book.storage.root))
    with pytest.raises(ArchiveClash, match="ahead of this timeline"):
        restored.commit(timeline, uri, AT)
    book.commit(timeline, uri, END)
    restored.records = book.records[:1]
    with pytest.raises(ArchiveClash, match="ahead of this timeline"):
        restored.commit(timeline, uri, END)
    job = structs.replace(book.job(timeline, uri, END), kind="compact", last=1)
    with pytest.raises(ArchiveClash, match="ahead of this timeline"):
        STAGES["compact"](MagicMock(spec=Remote), job, no_lease(), None)
    job = book.job(timeline, uri, END)
    book.storage.delete(MARKER)
    with pytest.raises(ArchiveClash, match="it is another folder"):
        claim(book.storage, job)
    book.storage.write(MARKER, b"{")
    with pytest.raises(ArchiveClash, match="cannot be read"):
        check(book.storage, job.timeline)


def test_a_manifest_of_another_server_of_the_timeline_stays(timeline: Timeline, uri: str, book: Book) -> None:
    """A copy of the store may publish at the same moment, when no look beforehand could see it."""
    restored = Book(Path(book.storage.root))
    book.commit(timeline, uri, END)
    data, before = book.storage.read(manifest_name(1)), book.rows()
    job = restored.job(timeline, uri, END)
    job.id = "e" * 32
    other = restored.record(job, archive(job, book.storage, no_lease()))
    with pytest.raises(ArchiveClash, match="of a commit that was not made here"):
        publish(book.storage, other)
    assert book.storage.read(manifest_name(1)) == data
    assert book.rows() == before


def test_a_manifest_is_written_as_it_is_recorded(timeline: Timeline, uri: str, book: Book) -> None:
    (manifest,) = book.commit(timeline, uri, END)
    path = Path(book.storage.full(manifest_name(1)))
    data, written = path.read_bytes(), path.stat().st_mtime_ns
    publish(book.storage, manifest)
    assert path.stat().st_mtime_ns == written
    path.write_bytes(b"{}")
    publish(book.storage, manifest)
    assert path.read_bytes() == data


def test_verify_names_gaps_and_what_is_missing(timeline: Timeline, uri: str, book: Book) -> None:
    for end_ms in (AT, AT + DAY_MS // 2, END):
        book.commit(timeline, uri, end_ms)
    path = Path(book.storage.full(manifest_name(2)))
    data = path.read_bytes()
    path.unlink()
    book.storage.write(MARKER, json.dumps({"version": 2, "timeline": "0" * 32}).encode())
    first, last = book.records[0].end_ms, book.records[2].start_ms
    found = faults(book)
    assert f"{manifest_name(1)} is of another timeline" in found
    assert f"{book.storage.name} has no commits between 1 and 3" in found
    assert f"commit 3 begins at {last}, the one before ends at {first}" in found
    assert [line for line in found if line.endswith("belongs to no commit")]
    path.write_bytes(data[:-1])
    (only,) = faults(book)
    assert "cannot be read" in only
    path.write_bytes(data)
    book.storage.delete(MARKER)
    assert faults(book) == [f"{book.storage.name} has commits, but no marker"]
    gone = book.records[1].files[0].path
    book.storage.delete(gone)
    assert f"{gone} is missing" in faults(book)


def test_verify_goes_along_with_an_archive_that_goes_on(
    timeline: Timeline, uri: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written, replaced and moved while it reads is no fault."""
    (first,) = book.commit(timeline, uri, AT + DAY_MS)
    lost = first.files[0]
    real = Storage.fault_in

    def meanwhile(storage: Storage, file: ArchivedFile) -> str:
        monkeypatch.setattr(Storage, "fault_in", real)
        job = again(book.job(timeline, uri, AT + DAY_MS, first.start_ms), 1, [lost.path])
        job.from_ms = first.start_ms
        publish(book.storage, book.record(job, archive(job, book.storage, no_lease())))
        book.commit(timeline, uri, END)
        archive(book.job(timeline, uri, END + DAY_MS), book.storage, no_lease())
        return real(storage, file)

    monkeypatch.setattr(Storage, "fault_in", meanwhile)
    assert faults(book) == []
    assert len(book.records) == 3
    book.storage.write(f"_manifests/{9:010d}.json", book.storage.read(manifest_name(1)))
    Path(book.storage.full("date=2026-12-01/x.csv")).parent.mkdir(exist_ok=True)
    book.storage.write("date=2026-12-01/x.csv", b"")
    assert faults(book) == [
        f"_manifests/{9:010d}.json belongs to no commit",
        "date=2026-12-01/x.csv belongs to no commit",
    ]


def test_a_slice_that_borrows_is_archived_with_its_own_rows_only(timeline: Timeline, book: Book) -> None:
    """A cut within a quarter of an hour: the span of each slice ends there."""
    start_ms = FAR + 20 * DAY_MS
    timeline.put(*(record(start_ms + n, str(n)) for n in range(20)))
    timeline.dispatch(start_ms + DAY_MS)
    piece = timeline.piece(start_ms)
    cut_ms = start_ms + 5
    left, right = type(piece)(piece.start_ms, cut_ms, 1), type(piece)(cut_ms, piece.end_ms, 1)
    for child in (left, right):
        child.borrowed = dict(piece.shards)
    with opened_snapshot(timeline.checkpoint(timeline.path.parent / "cp")) as snapshot:
        directory = snapshot.reader.directory
        directory.drop(directory.get(piece.start_ms))
        for child in (left, right):
            directory.adopt(child)
        job = book.job(timeline, "", start_ms + QUARTER_MS)
        report = Writer(snapshot, book.storage, job, start_ms, start_ms + QUARTER_MS).append()
    spans = [(one.start_ms, one.end_ms, one.slice_ms, one.rows) for one in report.spans]
    assert spans == [
        (start_ms, cut_ms, left.start_ms, 5),
        (cut_ms, start_ms + QUARTER_MS, right.start_ms, 15),
    ]


COUNT = 2_000


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path, book: Book) -> None:
    """A block of the checkpoint is rotten, and one value cannot be decoded."""
    source = Timeline(tmp_path / "rotten")
    ids = source.put(*(record(AT + 10 * n, os.urandom(300).hex(), "a/b") for n in range(COUNT)))
    found = source.opened.reader.find(ids[3])
    assert found is not None
    batch = source.store.batch()
    batch.put(Table.MESSAGES, found.shard.prefix + found.position.to_bytes(12, "big"), found.value[:9])
    source.store.write(batch)
    source.dispatch(FAR)
    source.store._families[Table.MESSAGES].flush()
    uri = source.checkpoint(tmp_path / "cp")
    table = max((tmp_path / "cp").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 0xFF
    table.unlink()
    table.write_bytes(data)
    (manifest,) = book.commit(source, uri, AT - AT % QUARTER_MS + QUARTER_MS)
    source.close()
    (span,) = manifest.spans
    rows = {row["id"]: row for row in book.rows()}
    assert span.archived == len(rows) == span.rows - 1 < COUNT - 1
    damaged = [(int(one.start, 16), int(one.end, 16)) for one in span.damaged]
    assert damaged[0] == (found.position, found.position + 1)
    assert len(damaged) == 2
    lost = [number for number in ids if f"{number:032x}" not in rows]
    for number in lost:
        place = number >> 80 << 48 | number & (1 << 48) - 1
        assert any(start <= place < end for start, end in damaged)
    assert 1 < len(lost) < 200
    assert faults(book) == []


def test_very_much_that_cannot_be_decoded_is_a_commit_too(
    timeline: Timeline, uri: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a commit says has a bound: ranges become wider, and all rows are in one."""
    monkeypatch.setattr("spark.archive.DAMAGED_MAX", 8)
    bad = [place for piece in timeline.opened.directory for _, place in timeline.rows(piece)][::2]

    def check(row: Any) -> None:
        if row[0] in bad:
            raise Corrupt("as if")

    def table(rows: Any, *more: Any) -> Any:
        for row in rows:
            check(row)
        return real(rows, *more)

    real = columns.table
    monkeypatch.setattr(columns, "check", check)
    monkeypatch.setattr(columns, "table", table)
    (manifest,) = book.commit(timeline, uri, END)
    assert sum(len(span.damaged) for span in manifest.spans) <= 8 + len(manifest.spans)
    damaged = read_archive(book.storage).damaged
    places = [place for place in bad if place < before(END)]
    assert places
    assert all(any(start <= place < end for start, end in damaged) for place in places)


def test_a_rotten_journal_costs_only_times(
    timeline: Timeline, uri: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of turns in a block that cannot be read; those behind it are known."""
    real = RocksStore.scan

    def scan(store: RocksStore, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in real(store, table, start, end):
            if table is Table.DISPATCHES and key < before(AT + DAY_MS).to_bytes(12, "big"):
                raise Corrupt("block checksum mismatch")
            yield key, value

    monkeypatch.setattr(RocksStore, "scan", scan)
    book.commit(timeline, uri, END)
    rows = book.rows()
    assert sorted(row["id"] for row in rows) == sorted(timeline.messages())
    known = [row["dispatched"] is not None for row in rows if row["state"] == "dispatched"]
    assert known == sorted(known)
    assert {*known} == {False, True}


def test_spark_is_for_a_backfill(
    timeline: Timeline, uri: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = book.job(timeline, uri, END)
    assert 80 < rows_within(job) <= 110
    assert not is_backfill(job, "local[2]")
    monkeypatch.setattr("spark.archive.ROWS_MAX", 50)
    assert is_backfill(job, "local[2]")
    assert not is_backfill(job, None)
    assert not is_backfill(again(job, 1, []), "local[2]")
    job.from_ms, job.to_ms = AT, AT + QUARTER_MS
    assert not is_backfill(job, "local[2]")


def test_tasks_write_the_same(
    spark: SparkSession, timeline: Timeline, uri: str, book: Book, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("spark.tasks.TASK_ROWS", 30)
    job = book.job(timeline, uri, END)
    claim(book.storage, job)
    manifest = book.record(job, archive(job, book.storage, no_lease(), spark))
    publish(book.storage, manifest)
    plain = Book(tmp_path / "plain")
    plain.commit(timeline, uri, END)
    assert manifest.spans == plain.records[0].spans
    assert len(manifest.files) > len(plain.records[0].files)
    assert manifest.end_ms == END
    assert book.rows() == plain.rows()
    assert faults(book) == []


def test_the_plain_program_knows_no_spark() -> None:
    code = (
        "import sys, spark.__main__, spark.archive, spark.expire, spark.publish, spark.verify;"
        "sys.exit(any(name.partition('.')[0] in ('pyspark', 'pandas') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
