"""What an expiry reads back before slices are dropped, and what it counts without an archive."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from shards.archives import MARKER, ArchivedFile, Report, manifest_name
from spark.errors import ArchiveClash, SparkError
from spark.expire import counted, read_back
from spark.job import Job, Span
from spark.publish import publish
from spark.storage import StorageFailed
from timeline.slices import DAY_MS

from .archived import Book, no_lease
from .stores import FAR, NOW, Timeline, record

AT = NOW + 5 * DAY_MS
END = AT + 2 * DAY_MS


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[Timeline]:
    one = Timeline(tmp_path / "data")
    ids = one.put(*(record(AT + 1_000_000 * n, str(n)) for n in range(90)))
    one.move(ids[0], AT + 2_000_000)
    one.dispatch(FAR)
    yield one
    one.close()


@pytest.fixture
def book(timeline: Timeline, tmp_path: Path) -> Book:
    """In three commits."""
    book, uri = Book(tmp_path / "archive"), timeline.checkpoint(tmp_path / "cp")
    for end_ms in (AT + DAY_MS // 4, AT + DAY_MS // 2, END):
        book.commit(timeline, uri, end_ms)
    return book


def job_of(timeline: Timeline, book: Book) -> Job:
    pieces = tuple(
        Span(piece.start_ms, piece.end_ms, piece.generation, (), piece.count)
        for piece in timeline.opened.directory
    )
    archive, manifests = book.storage.name, tuple(book.records)
    return Job("e", "expire", "archiving", archive=archive, manifests=manifests, slices=pieces)


def test_the_spans_of_all_commits_are_added_up(timeline: Timeline, book: Book) -> None:
    slices, faults = read_back(job_of(timeline, book), no_lease())
    assert faults == []
    rows = [(piece.start_ms, piece.generation, piece.count) for piece in timeline.opened.directory]
    assert [(one["start_ms"], one["generation"], one["rows"]) for one in slices] == rows
    assert sum(one["archived"] for one in slices) == 90
    assert sum(one["rows"] for one in slices) == 91


def test_what_is_damaged_or_missing_is_named(timeline: Timeline, book: Book) -> None:
    first, second = (one.files[0] for one in book.records[:2])
    path = Path(book.storage.full(first.path))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    book.storage.delete(second.path)
    slices, faults = read_back(job_of(timeline, book), no_lease())
    assert slices == []
    name = book.storage.name
    assert faults == [
        {"path": first.path, "detail": f"{name}/{first.path} has other bytes than were written"},
        {"path": second.path, "detail": f"{name}/{second.path} is missing"},
    ]
    path.write_bytes(b"")
    _, faults = read_back(job_of(timeline, book), no_lease())
    assert faults[0]["detail"].endswith(f"has 0 bytes, not {first.bytes}")


def test_a_lost_manifest_is_written_again(timeline: Timeline, book: Book) -> None:
    path = manifest_name(2)
    data = book.storage.read(path)
    book.storage.delete(path)
    assert read_back(job_of(timeline, book), no_lease())[1] == []
    assert book.storage.read(path) == data


def test_only_files_that_count_and_have_rows_of_the_slices_are_read(timeline: Timeline, book: Book) -> None:
    job = job_of(timeline, book)
    late = book.records[2].files[-1]
    book.storage.delete(late.path)
    assert read_back(structs.replace(job, slices=job.slices[:1]), no_lease())[1] == []
    whole = ArchivedFile("date=2024-10-07/x.parquet", 1, 4, _sum(b"PAR1"), first_ms=AT, last_ms=END)
    book.storage.write(whole.path, b"PAR1")
    ends = ArchivedFile("_ends/date=2024-10-07/x.parquet", 1, 4, "0" * 64, "ends", AT, END)
    report = Report("compact", files=[whole, ends], replaces=[late.path])
    publish(book.storage, book.record(book.job(timeline, "", END), report))
    slices, faults = read_back(job_of(timeline, book), no_lease())
    assert faults == []
    assert sum(one["rows"] for one in slices) == 91, "a compaction adds none"
    book.storage.delete(whole.path)
    _, faults = read_back(job_of(timeline, book), no_lease())
    assert [one["path"] for one in faults] == [whole.path]


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_another_folder_is_no_fault_but_an_error(timeline: Timeline, book: Book) -> None:
    """A folder that is not mounted must not make the server write everything again."""
    job = job_of(timeline, book)
    Path(book.storage.full(MARKER)).rename(book.storage.full("elsewhere"))
    with pytest.raises(ArchiveClash, match="it is another folder"):
        read_back(job, no_lease())
    Path(book.storage.full("elsewhere")).rename(book.storage.full(MARKER))
    path = Path(book.storage.full(book.records[0].files[0].path))
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageFailed):
        read_back(job, no_lease())


def test_without_an_archive_rows_are_counted(timeline: Timeline, tmp_path: Path) -> None:
    pieces = tuple(Span(one.start_ms, one.end_ms, one.generation) for one in timeline.opened.directory)
    job = Job("e", "expire", "archiving", checkpoint=timeline.checkpoint(tmp_path / "counted"), slices=pieces)
    assert [one["rows"] for one in counted(job)] == [one.count for one in timeline.opened.directory]
    job.slices = (Span(pieces[0].start_ms, pieces[0].end_ms, 7),)
    with pytest.raises(SparkError, match="has no slice"):
        counted(job)
