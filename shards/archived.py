"""The archive's commits as the store knows them: a state, and a record of each commit.

    meta    "archive"              ArchiveRow: which archive, its last commit, up to where it covers
            "archive/" number      the commit's manifest (archives.py), MessagePack

A commit is recorded first, in one batch with all that follows from it, and published afterwards: some job
writes its manifest into the archive exactly as it is recorded. If that job's program or its server ends
between the two, the next one publishes it: the archive cannot get a second commit of the same rows.

    :commit        record 7            last 7, published 6
    (the manifest is written)
    :commit        publish 7           last 7, published 7

Records stay for readers, RECORDS_MAX and RECORDS_BYTES of them. The oldest go first, but none that a kept
slice needs before it may be dropped.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from timeline.position import Position, at_of
from timeline.slices import DAY_MS, Home, Slice

from . import keys
from .archives import (
    AGAIN,
    APPEND,
    COMPACT,
    MESSAGES,
    QUARTER_MS,
    ArchivedFile,
    Manifest,
    Report,
    Span,
    file_name,
    manifest_name,
)
from .commit import Commit
from .dedupe import Refused
from .store import Store, Table
from .tables import encode_row, reading

STATE = b"archive"
PREFIX = b"archive/"
RECORDS_MAX, RECORDS_BYTES = 20_000, 64 << 20
RECORD_BYTES = 1 << 20
"""Maximum bytes of one record."""
FORGOTTEN = 100
"""Old records that one commit drops at most."""
JOB_MS = 4 * DAY_MS
"""Maximum time from the first row of a commit to its end: it bounds the days in which it has files."""
_INDEX = re.compile(r"(.*-)(\d{1,4})\.parquet")


class ArchiveRow(msgspec.Struct, frozen=True, array_like=True):
    """The state of a timeline's archive."""

    timeline: str
    """32 hex digits, made once: an archive belongs to one timeline."""
    url: str = ""
    """The archive of the last commit; with another one all begins anew, but for the numbers."""
    first: int = 1
    """Number of the oldest record, ..."""
    last: int = 0
    """... of the newest one, ..."""
    published: int = 0
    """... and of the last one whose manifest is in the archive."""
    end_ms: int = 0
    """Appends cover everything before."""
    bytes: int = 0
    """Of all records."""

    def at(self, url: str) -> "ArchiveRow":
        """The state from which commits to that archive go on."""
        if url == self.url:
            return self
        return ArchiveRow(self.timeline, url, self.last + 1, self.last, self.last)

    @property
    def covered_ms(self) -> int:
        """The archive has everything before, with its manifests."""
        return self.end_ms if self.published == self.last else 0


class Archived(NamedTuple):
    """What the archive has of a slice. `rows`: with stubs; `written`: without; damaged are in neither."""

    rows: int = 0
    written: int = 0
    is_damaged: bool = False


_row = reading(ArchiveRow)
manifest_of = reading(Manifest)


def record_key(number: int) -> bytes:
    return PREFIX + number.to_bytes(8, "big")


def check_archive_row(key: bytes, value: bytes) -> None:
    """Raises Corrupt if a row of `meta` is of an archive and cannot be decoded."""
    if key == STATE:
        _row(value)
    elif key.startswith(PREFIX):
        manifest_of(value)


def archive_row(get: Callable[[Table, bytes], bytes | None]) -> ArchiveRow | None:
    """The state; None: the timeline has never had an archive. Raises Corrupt."""
    value = get(Table.META, STATE)
    return None if value is None else _row(value)


def records(store: Store, since: int = 0) -> Iterator[tuple[int, Manifest]]:
    """The recorded commits behind a number, each with its bytes. Raises Corrupt."""
    for _, value in store.scan(Table.META, record_key(since + 1), keys.under(PREFIX)[1]):
        yield len(value), manifest_of(value)


def recorded(store: Store, number: int) -> Manifest | None:
    value = store.get(Table.META, record_key(number))
    return None if value is None else manifest_of(value)


# -- changes, in the writer


def begin(commit: Commit, timeline: str) -> ArchiveRow:
    """The state, made if there is none. `timeline`: random."""
    found = archive_row(commit.get)
    return _put(commit, ArchiveRow(timeline)) if found is None else found


def record(commit: Commit, url: str, manifest: Manifest) -> ArchiveRow:
    """Record the next commit. Raises Refused for one that is too large."""
    stored = archive_row(commit.get)
    assert stored is not None, "a job has begun it"
    row, value = stored.at(url), encode_row(manifest)
    assert manifest.number == row.last + 1, "the job was given it"
    if len(value) > RECORD_BYTES:
        raise Refused("bad-manifest", f"its manifest has {len(value)} bytes, more than {RECORD_BYTES}")
    if row is not stored:
        commit.open_batch.clear(Table.META, *keys.under(PREFIX))
    commit.row(Table.META, record_key(manifest.number), value)
    end_ms = manifest.end_ms if manifest.kind == APPEND else row.end_ms
    row = replace(row, last=manifest.number, end_ms=end_ms, bytes=row.bytes + len(value))
    return _put(commit, _forget_old(commit, row))


def publish(commit: Commit, number: int) -> ArchiveRow:
    """The manifests up to this one, the last, are in the archive. Raises Refused."""
    row = archive_row(commit.get)
    if row is None or number != row.last:
        last = 0 if row is None else row.last
        raise Refused("wrong-state", f"the last commit is {last}, not {number}")
    return _put(commit, replace(row, published=number))


def _put(commit: Commit, row: ArchiveRow) -> ArchiveRow:
    commit.row(Table.META, STATE, encode_row(row))
    return row


def _forget_old(commit: Commit, row: ArchiveRow) -> ArchiveRow:
    for _ in range(FORGOTTEN):
        count = row.last + 1 - row.first
        if count <= RECORDS_MAX and row.bytes <= RECORDS_BYTES:
            break
        key = record_key(row.first)
        value = commit.get(Table.META, key) or b""
        if row.first > row.published or (value and _is_needed(manifest_of(value), commit.directory.floor)):
            break
        commit.row(Table.META, key, None)
        row = replace(row, first=row.first + 1, bytes=row.bytes - len(value))
    return row


def _is_needed(manifest: Manifest, floor: Position) -> bool:
    """Whether slices that are still there have rows in the commit's files."""
    ends = [file.last_ms + 1 for file in manifest.files if file.table == MESSAGES]
    return max([manifest.end_ms, *ends]) > at_of(floor)


# -- what a job's program reports


def faults_in(
    report: Report, job: str, number: int, wanted: Manifest | None, given: Sequence[ArchivedFile], date: str
) -> Iterator[tuple[str, str]]:
    """What is wrong with a commit, as fields and words. `wanted`: of an `again`, the commit that it repairs;
    `given`: files that it may replace; `date`: of a compaction."""
    known = {file.path: file for file in given}
    strange = [path for path in report.replaces if path not in known]
    if strange or len({*report.replaces}) != len(report.replaces):
        yield (
            "replaces",
            f"must be paths that the job was given, each once{', not ' + strange[0] if strange else ''}",
        )
        return
    names = set[str]()
    for file in report.files:
        found = _INDEX.fullmatch(file.path)
        day = day_of(file.path)
        if found is None or file.path != file_name(file.table, day, number, job, int(found[2])):
            yield "files", f"{file.path} is not as {file_name(file.table, '2026-12-01', number, job, 0)}"
        elif file.path in names or (date and day != date):
            yield "files", f"{file.path} is there twice, or of another day"
        names.add(file.path)
    if report.kind == COMPACT:
        yield from _compact_faults(report, known)
        return
    yield from _span_faults(report)
    if report.kind == APPEND:
        written, in_files = sum(one.archived for one in report.spans), _rows(report.files, MESSAGES)
        if written != in_files:
            yield "files", f"they have {in_files} messages, the spans {written}"
    elif wanted is not None:
        again = {(one.slice_ms, one.generation, one.start_ms): one for one in report.spans}
        for span in wanted.spans:
            one = again.get((span.slice_ms, span.generation, span.start_ms))
            if span.start_ms >= report.start_ms and (
                one is None or (one.rows < span.rows and not one.damaged)
            ):
                yield "spans", f"the span at {span.start_ms} had {span.rows} rows"


def _compact_faults(report: Report, known: dict[str, ArchivedFile]) -> Iterator[tuple[str, str]]:
    if not report.replaces:
        yield "replaces", "must name the files that the new ones replace"
    old = [known[path] for path in report.replaces]
    for table in {file.table for file in [*old, *report.files]}:
        before, after = _rows(old, table), _rows(report.files, table)
        least = before - sum(file.withheld for file in old if file.table == table)
        if not least <= after <= before:
            yield "files", f"they have {after} rows of {table}, those that they replace {before}"


def _span_faults(report: Report) -> Iterator[tuple[str, str]]:
    last = (0, 0, -1)
    for span in report.spans:
        place = span.start_ms, span.slice_ms, span.generation
        quarter = span.start_ms - span.start_ms % QUARTER_MS
        is_within = max(quarter, report.start_ms) <= span.start_ms < span.end_ms
        if not is_within or span.end_ms > min(quarter + QUARTER_MS, report.end_ms) or place <= last:
            yield "spans", f"the one at {span.start_ms} is not within a quarter of an hour, or not in order"
        if span.archived > span.rows:
            yield "spans", f"{span.archived} of {span.rows} rows were written at {span.start_ms}"
        last = place


def _rows(files: Iterable[ArchivedFile], table: str) -> int:
    return sum(file.rows for file in files if file.table == table)


# -- what is read back before slices are dropped, or compacted


def behind_slices(store: Store, pieces: Sequence[Slice], most: int) -> tuple[list[Manifest], int]:
    """The commits that have rows of the first of these slices, or replaced files of such commits, and how
    many slices these are: at least one, and else at most `most` bytes. Raises Corrupt."""
    found: list[Manifest] = []
    paths: set[str] = set()
    taken, start_ms, end_ms = 0, pieces[0].start_ms, pieces[-1].end_ms
    for size, manifest in records(store):
        if manifest.kind == APPEND:
            if manifest.end_ms <= start_ms or manifest.start_ms >= end_ms:
                continue
            if taken + size > most and pieces[0].end_ms <= manifest.start_ms:
                end_ms = manifest.start_ms
                continue
        elif paths.isdisjoint(manifest.replaces):
            continue
        taken += size
        found.append(manifest)
        paths.update(file.path for file in manifest.files)
    return found, sum(1 for piece in pieces if piece.end_ms <= end_ms)


def archived_of(manifests: Iterable[Manifest]) -> dict[Home, Archived]:
    """What these commits have of each slice; a later span counts in place of an earlier one."""
    spans: dict[tuple[Home, int], Span] = {}
    for manifest in manifests:
        for span in manifest.spans:
            spans[Home(span.slice_ms, span.generation), span.start_ms] = span
    found: dict[Home, Archived] = {}
    for (home, _), span in spans.items():
        rows, written, is_damaged = found.get(home, Archived())
        found[home] = Archived(rows + span.rows, written + span.archived, is_damaged or bool(span.damaged))
    return found


def lacks(piece: Slice, archived: Archived) -> str:
    """Why a slice may not be dropped; empty: all of its rows are in the archive, or could not be read."""
    if archived.rows >= piece.count or archived.is_damaged:
        return ""
    return f"the archive has {archived.rows} of the {piece.count} rows of the slice at {piece.start_ms}"


class LiveFile(NamedTuple):
    """A file that counts, and the commit that brought it."""

    number: int
    kind: str
    file: ArchivedFile


def days_of(store: Store) -> dict[str, list[LiveFile]]:
    """The files of each day that count. Raises Corrupt."""
    live: dict[str, LiveFile] = {}
    for _, manifest in records(store):
        for path in manifest.replaces:
            live.pop(path, None)
        live |= {file.path: LiveFile(manifest.number, manifest.kind, file) for file in manifest.files}
    days: dict[str, list[LiveFile]] = {}
    for path, one in live.items():
        days.setdefault(day_of(path), []).append(one)
    return days


def day_of(path: str) -> str:
    """The day of a file, as in 2026-12-01."""
    return path.partition("date=")[2][:10]


def is_worth_compacting(files: Iterable[LiveFile]) -> bool:
    """Whether a table has two files or more of the day that no compaction has made."""
    fresh = [one.file.table for one in files if one.kind != COMPACT]
    return len(fresh) > len({*fresh})


def lost_paths(manifest: Manifest, faults: Iterable[str]) -> list[str]:
    """Those of the paths that the commit can be asked for again: its manifest, and files that an append or
    its repair has written."""
    own = {manifest_name(manifest.number)}
    if manifest.kind in (APPEND, AGAIN):
        own |= {file.path for file in manifest.files}
    return [path for path in faults if path in own]
