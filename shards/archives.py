"""Where an archive lies, and what its manifests say: a log of commits, each with files and what they cover.

An archive is a directory, named by a path or a `file:` URL, or a place in an object store. The program that
first reads the name makes it absolute, because the server, the job's program and its workers run in different
directories:

    archive  in /srv            /srv/archive          file:///var/a%20b     /var/a b
    s3://bucket/x/              s3://bucket/x         http://x, C:\\x, ~/x  refused
    file://host/x, a\\0b       refused               s3://key:secret@x/y   refused

A commit has a number, one more than the commit before it. Its manifest is recorded in the store, and then
written below `_manifests/`, last of its files: a file that no manifest names is not part of the archive.

    append    covers the positions [start_ms, end_ms), from the end of the append before it
    again     has the rows of a span again, because files of it were missing or damaged: it replaces them
    compact   replaces the files of a day by few

Reading and writing are spark's.
"""

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from timeline.slices import DAY_MS

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
STORES = ("s3", "gs", "abfs")
"""Schemes of object stores."""
QUARTER_MS = 900_000
"""A span of the archive: a slice's part of a quarter of an hour."""
URL_MAX = 1_024
FILES_MAX = 1_000
SPANS_MAX = 2_000
DAMAGED_MAX = 1_000
"""Bounds of one commit: the job's program stops earlier."""
MESSAGES: Final = "messages"
DELIVERIES: Final = "deliveries"
ENDS: Final = "ends"
TABLES = (MESSAGES, DELIVERIES, ENDS)
APPEND: Final = "append"
AGAIN: Final = "again"
COMPACT: Final = "compact"
MANIFESTS, MARKER, REPLACED = "_manifests", "_timeline.json", "_replaced"

VERSION = 2
PositionText = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{24}$")]
RelativePath = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[^\u0000-\u001f]+$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ArchivedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of an archive. `path`: within the archive; `sha256`: hexadecimal."""

    path: RelativePath
    rows: Count
    bytes: Count
    sha256: Sha256
    table: Literal["messages", "deliveries", "ends"] = MESSAGES
    first_ms: Count = 0
    last_ms: Count = 0
    """The first and last `at`, `ended_at` or `minute` in it; both 0: unknown, in an old archive."""
    withheld: Count = 0
    """Rows of messages that nobody had got: such a message may come again, under its id, at a later `at`."""


class DamagedRange(msgspec.Struct, frozen=True):
    """Positions [start, end) whose rows could not be read."""

    start: PositionText
    end: PositionText


class Span(msgspec.Struct, frozen=True, omit_defaults=True):
    """A slice's part of a quarter of an hour, as a commit has it. Only spans with rows are listed."""

    slice_ms: Count
    generation: Count
    start_ms: Count
    end_ms: Count
    rows: Count
    """All stored rows, with stubs."""
    archived: Count
    damaged: Annotated[list[DamagedRange], msgspec.Meta(max_length=DAMAGED_MAX)] = []


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job's program has written: a commit that the server has not recorded yet."""

    kind: Literal["append", "again", "compact"]
    start_ms: Count = 0
    end_ms: Count = 0
    """Covered positions [start_ms, end_ms); of a compaction both 0."""
    spans: Annotated[list[Span], msgspec.Meta(max_length=SPANS_MAX)] = []
    files: Annotated[list[ArchivedFile], msgspec.Meta(max_length=FILES_MAX)] = []
    replaces: Annotated[list[RelativePath], msgspec.Meta(max_length=FILES_MAX)] = []
    """Paths of files that are no longer part of the archive."""


class Manifest(Report, frozen=True, omit_defaults=True, kw_only=True):
    """A commit."""

    number: Count
    timeline: str
    """Which timeline it is of: 32 hex digits, made with its first archive."""
    node: Count
    """Number of the timeline in ids (`store.number`)."""
    job: str
    """The job that has written it. Names of files have the first 8 digits: a try."""
    created_ms: Count
    version: Count
    """VERSION."""


class DroppedSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expiry's report on a slice: rows read, with stubs; rows of messages that are archived."""

    start_ms: int
    generation: int
    rows: int
    archived: int = 0


class FileFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file or manifest of the archive that cannot be read back: its path there, and why."""

    path: str
    detail: str


def local_path(name: str) -> str:
    """The absolute path of a directory of this machine, named by a path or `file:` URL; a relative one is
    resolved in the working directory. Raises ValueError."""
    if name.startswith("~"):
        raise ValueError("must be written out: only a shell replaces ~")
    if not name or "\0" in name or name != name.strip():
        raise ValueError("must be a directory, without a space at its ends")
    if not _SCHEME.match(name):
        return os.path.abspath(name)
    scheme, host, path, *more = urlsplit(name)
    path = unquote(path)
    if scheme != "file" or host not in ("", "localhost") or any(more) or path[:1] != "/" or "\0" in path:
        raise ValueError("must be a directory or a URL such as file:///var/fasti/archive")
    return os.path.abspath(path)


def archive_url(name: str) -> str:
    """An archive by its full name: the absolute path of a directory, or the URL of a place in an object store
    without a slash at its end. Raises ValueError."""
    parts = urlsplit(name) if _SCHEME.match(name) else None
    if parts is None or parts.scheme == "file":
        return local_path(name)
    scheme, host, path, *more = parts
    if scheme not in STORES:
        known = ", ".join(f"{one}:" for one in ("file", *STORES))
        raise ValueError(f"must be a directory, or a URL with one of {known}")
    account = host.rpartition("@")[0]
    if ":" in account or (account and scheme != "abfs"):
        raise ValueError("must not have credentials: they come from the environment of the job's program")
    inner = path.removeprefix("/").removesuffix("/")
    folders = inner.split("/") if inner else []
    is_plain = name.isprintable() and " " not in name and not any(more)
    if not host or not is_plain or {"", ".", ".."} & {*folders}:
        raise ValueError(f"must be like {scheme}://bucket/folder")
    if len(name) > URL_MAX:
        raise ValueError(f"has more than {URL_MAX} characters")
    return f"{scheme}://{'/'.join([host, *folders])}"


def is_local(archive: str) -> bool:
    """Whether an archive, by its full name, is a directory of this machine."""
    return archive.startswith("/")


def number_text(number: int) -> str:
    """The number of a commit as it is in names, which sort by it."""
    return f"{number:010d}"


def manifest_name(number: int) -> str:
    """Path of a commit's manifest within the archive."""
    return f"{MANIFESTS}/{number_text(number)}.json"


def prefix_of(table: str) -> str:
    """How the paths of a table's files begin, and of no other's."""
    return "date=" if table == MESSAGES else f"_{table}/"


def file_name(table: str, date: str, number: int, job: str, index: int) -> str:
    """Path of a commit's file within the archive. `date`: 2026-12-01."""
    folder = "" if table == MESSAGES else prefix_of(table)
    return f"{folder}date={date}/{number_text(number)}-{job[:8]}-{index}.parquet"


def day_of(path: str) -> str:
    """The day of a file, as in 2026-12-01."""
    return path.partition("date=")[2][:10]


def start_of(day: str) -> int:
    """When a day begins, ms. Raises ValueError for what is no day."""
    return int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()) * 1_000


def date_of(at_ms: int) -> str:
    """The day of an instant, UTC: 2026-12-01."""
    return datetime.fromtimestamp(at_ms // 1_000, UTC).strftime("%Y-%m-%d")


def dates_of(start_ms: int, end_ms: int) -> list[str]:
    """The days that have a part of [start, end)."""
    return [date_of(day * DAY_MS) for day in range(start_ms // DAY_MS, (end_ms - 1) // DAY_MS + 1)]


def why_not_usable(folder: Path, *, is_written: bool = True) -> str:
    """Why files cannot be written below this directory, which need not exist yet; empty: they can.
    `is_written`: False if it is only read."""
    there = folder
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a directory"
    access = os.X_OK | (os.W_OK if is_written else os.R_OK)
    return "" if os.access(there, access) else f"{there} is not {'writable' if is_written else 'readable'}"
