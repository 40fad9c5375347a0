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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import date
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
    FILES_MAX,
    MESSAGES,
    QUARTER_MS,
    VERSION,
    ArchivedFile,
    Manifest,
    Report,
    Span,
    day_of,
    file_name,
    manifest_name,
    start_of,
)
from .commit import Commit
from .dedupe import Refused
from .jobs import JobRow
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
_INDEX = re.compile(r"-(\d{1,4})\.parquet$")


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


def manifest_from(report: Report, job: JobRow, timeline: str, now_ms: int) -> Manifest:
    """What is recorded of a job's commit."""
    return Manifest(
        **msgspec.structs.asdict(report),
        number=job.number,
        timeline=timeline,
        node=job.node,
        job=job.id,
        created_ms=now_ms,
        version=VERSION,
    )


def faults_in(
    report: Report, job: JobRow, again: Manifest | None, given: Sequence[ArchivedFile]
) -> Iterator[tuple[str, str]]:
    """What is wrong with a job's commit, as fields and words. `again`: the commit that it repairs; `given`:
    files that it may replace."""
    known = {file.path: file for file in given}
    strange = next((path for path in report.replaces if path not in known), "")
    if strange or len({*report.replaces}) != len(report.replaces):
        yield "replaces", f"must be paths that the job was given, each once: {strange}"
        return
    yield from _file_faults(report, job)
    if report.kind == COMPACT:
        yield from _compact_faults(report, known)
        return
    yield from _bound_faults(report, job, APPEND if again is None else AGAIN)
    yield from _span_faults(report, job)
    if again is not None:
        if left := [
            path for path, file in known.items() if file.table == MESSAGES and path not in report.replaces
        ]:
            yield "replaces", f"must have {left[0]} too: its day is written again"
        yield from _again_faults(report, again)
    else:
        written, in_files = sum(one.archived for one in report.spans), _rows(report.files, MESSAGES)
        if written != in_files:
            yield "files", f"they have {in_files} messages, the spans {written}"


def _file_faults(report: Report, job: JobRow) -> Iterator[tuple[str, str]]:
    names = set[str]()
    for file in report.files:
        index, day = _INDEX.search(file.path), day_of(file.path)
        right = file_name(file.table, day, job.number, job.id, int(index[1]) if index else 0)
        if file.path != right or not _is_day(day):
            yield "files", f"{file.path} is not as {right}"
        elif file.path in names or (job.date and day != job.date):
            yield "files", f"{file.path} is there twice, or of another day"
        names.add(file.path)


def _bound_faults(report: Report, job: JobRow, wanted: str) -> Iterator[tuple[str, str]]:
    if report.kind != wanted:
        yield "kind", f"must be {wanted}, not {report.kind}"
    is_cut = wanted == APPEND and report.end_ms % QUARTER_MS == 0
    is_within = report.start_ms == job.from_ms < report.end_ms <= job.to_ms
    if not is_within or not (is_cut or report.end_ms == job.to_ms):
        yield "end_ms", f"must be from {job.from_ms} to the end of a quarter, up to {job.to_ms}"


def _again_faults(report: Report, again: Manifest) -> Iterator[tuple[str, str]]:
    spans = {(one.slice_ms, one.generation, one.start_ms): one for one in report.spans}
    for span in again.spans:
        one = spans.get((span.slice_ms, span.generation, span.start_ms))
        has_less = one is None or (one.rows < span.rows and not one.damaged)
        if has_less and span.start_ms >= report.start_ms:
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


def _span_faults(report: Report, job: JobRow) -> Iterator[tuple[str, str]]:
    ends = {piece.home: piece.end_ms for piece in job.slices}
    last = (0, 0, -1)
    for span in report.spans:
        place = span.start_ms, span.slice_ms, span.generation
        quarter = span.start_ms - span.start_ms % QUARTER_MS
        is_within = max(quarter, report.start_ms) <= span.start_ms < span.end_ms
        if not is_within or span.end_ms > min(quarter + QUARTER_MS, report.end_ms) or place <= last:
            yield "spans", f"the one at {span.start_ms} is not within a quarter of an hour, or not in order"
        if (
            not span.slice_ms
            <= span.start_ms
            < span.end_ms
            <= ends.get(Home(span.slice_ms, span.generation), 0)
        ):
            yield "spans", f"the one at {span.start_ms} is not within a slice of the job"
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


def day_to_compact(store: Store, row: ArchiveRow, wanted: str) -> tuple[str, list[LiveFile]]:
    """A day that is archived to its end, and its files that count: by default the newest one that has two
    files of a table that no compaction has made. No files: there is none. Raises Corrupt."""
    live: dict[str, LiveFile] = {}
    for _, manifest in records(store):
        for path in manifest.replaces:
            live.pop(path, None)
        live |= {file.path: LiveFile(manifest.number, manifest.kind, file) for file in manifest.files}
    days: dict[str, list[LiveFile]] = {}
    for path, one in live.items():
        days.setdefault(day_of(path), []).append(one)
    closed = [day for day in sorted(days, reverse=True) if start_of(day) + DAY_MS <= row.covered_ms]
    day = wanted or next((day for day in closed if _is_worth_it(days[day])), "")
    return day, days[day][:FILES_MAX] if day in closed else []


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_worth_it(files: Iterable[LiveFile]) -> bool:
    fresh = [one.file.table for one in files if one.kind != COMPACT]
    return len(fresh) > len({*fresh})


def lost_paths(manifest: Manifest, faults: Collection[str], replaced: Collection[str]) -> list[str]:
    """Those of the paths that the commit can be asked for again: its manifest, and files that an append or
    its repair has written. The messages of a day are written together: with one of their files go the others,
    and none of them if one is `replaced`."""
    own, days = {manifest_name(manifest.number)}, dict[str, list[str]]()
    for file in manifest.files if manifest.kind in (APPEND, AGAIN) else ():
        day = day_of(file.path) if file.table == MESSAGES else file.path
        days.setdefault(day, []).append(file.path)
    lost = [path for path in faults if path in own]
    for paths in days.values():
        if not set(paths).isdisjoint(faults) and set(paths).isdisjoint(replaced):
            lost += paths
    return lost
