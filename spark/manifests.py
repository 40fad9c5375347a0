"""What an archive has, by its manifests: commits, files that count, and which positions are covered.

    read_archive(storage).files(MESSAGES)      the files that count now, each with its bounds in time
    .commits                                   since the first, by number
    .covers(at_ms)                             whether an append has the positions of that instant

An archive of before has a manifest for each slice, `{start}-{generation}.json`. It counts where no append has
the slice again.

A compaction, and now and then another commit, leaves `_manifests/{number}.all.gz`: all manifests, a line
each, so that a reader does not open thousands.
"""

import gzip
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain

import msgspec

from shards.archives import (
    APPEND,
    MANIFESTS,
    MESSAGES,
    ArchivedFile,
    Manifest,
    Span,
    day_of,
    manifest_name,
    start_of,
)
from timeline.position import Position
from timeline.slices import DAY_MS

from .errors import SparkError
from .storage import Missing, Storage

READS = 16
"""Manifests that are read at a time."""
ALL = ".all.gz"


class OldManifest(msgspec.Struct, frozen=True):
    """A slice in an archive of before."""

    start_ms: int
    end_ms: int
    generation: int
    rows: int
    files: list[ArchivedFile] = []


_manifest = msgspec.json.Decoder(Manifest).decode
_old = msgspec.json.Decoder(OldManifest).decode


class Archive:
    """An archive as its manifests had it when they were read."""

    def __init__(self, commits: Iterable[Manifest], old: Iterable[OldManifest] = ()) -> None:
        self.commits = sorted(commits, key=lambda one: one.number)
        self.old = sorted(old, key=lambda one: one.start_ms)
        until_ms = max((one.end_ms for one in self.old), default=0)
        spans = [span for one in self.commits for span in one.spans if span.start_ms < until_ms]
        self.old = [one for one in self.old if not any(_overlap(one, span) for span in spans)]

    @property
    def last(self) -> int:
        """Number of the last commit; 0: there is none."""
        return self.commits[-1].number if self.commits else 0

    def up_to(self, number: int) -> "Archive":
        """The archive as it was after that commit."""
        return Archive([one for one in self.commits if one.number <= number], self.old)

    @cached_property
    def replaced(self) -> frozenset[str]:
        return frozenset(path for one in self.commits for path in one.replaces)

    def files(self, table: str = MESSAGES) -> list[ArchivedFile]:
        """The files of a table that count now, in the order of their commits."""
        every = chain(*[one.files for one in self.old], *[one.files for one in self.commits])
        return [file for file in every if file.table == table and file.path not in self.replaced]

    @cached_property
    def covered(self) -> list[tuple[int, int]]:
        """What has been archived, [start, end) in ms, rising and apart."""
        found: list[tuple[int, int]] = []
        spans = [(one.start_ms, one.end_ms) for one in self.old]
        spans += [(one.start_ms, one.end_ms) for one in self.commits if one.kind == APPEND]
        for start, end in sorted(spans):
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], end)
            else:
                found.append((start, end))
        return found

    @cached_property
    def damaged(self) -> list[tuple[Position, Position]]:
        """Positions [start, end) whose rows could not be read when they were archived, rising."""
        return sorted(
            (Position(int(gap.start, 16)), Position(int(gap.end, 16)))
            for one in self.commits
            for span in one.spans
            for gap in span.damaged
        )

    def covers(self, at_ms: int) -> bool:
        index = bisect_right(self.covered, (at_ms, 1 << 62)) - 1
        return index >= 0 and at_ms < self.covered[index][1]


def _overlap(one: OldManifest, span: Span) -> bool:
    return one.start_ms < span.end_ms and span.start_ms < one.end_ms


def bounds_of(file: ArchivedFile) -> tuple[int, int]:
    """The first and last time in a file, ms; of one whose manifest does not say, its day."""
    if file.last_ms:
        return file.first_ms, file.last_ms
    start = start_of(day_of(file.path))
    return start, start + DAY_MS - 1


def over(files: Iterable[ArchivedFile], low: int, high: int) -> list[ArchivedFile]:
    """Those that may have rows of low <= time <= high."""
    return [file for file in files if bounds_of(file)[0] <= high and bounds_of(file)[1] >= low]


def read_archive(storage: Storage) -> Archive:
    """Read all manifests. Raises StorageFailed, SparkError."""
    paths = [one.path for one in storage.list(MANIFESTS)]
    commits: dict[int, Manifest] = {}
    for path in sorted((path for path in paths if path.endswith(ALL)), reverse=True)[:1]:
        commits = {one.number: one for one in _all_of(storage, path)}
    singles = [path for path in paths if path.endswith(".json")]
    old = [path for path in singles if "-" in path]
    known = {manifest_name(number) for number in commits}
    new = [path for path in singles if "-" not in path and path not in known]
    with ThreadPoolExecutor(READS) as threads:
        read = threads.map(lambda path: _decoded(storage, path), [*old, *new])
        found = [one for one in read if one is not None]
    commits |= {one.number: one for one in found if isinstance(one, Manifest)}
    return Archive(commits.values(), [one for one in found if isinstance(one, OldManifest)])


def write_all(storage: Storage, commits: Sequence[Manifest]) -> None:
    """Leave all manifests in one file, for readers; earlier such files go."""
    before = [one.path for one in storage.list(MANIFESTS) if one.path.endswith(ALL)]
    path = manifest_name(commits[-1].number).removesuffix(".json") + ALL
    lines = b"\n".join([msgspec.json.encode(one) for one in commits])
    storage.write(path, gzip.compress(lines, mtime=0))
    for old in before:
        if old != path:
            storage.delete(old)


def _all_of(storage: Storage, path: str) -> list[Manifest]:
    """Empty if it cannot be read: the manifests themselves are there."""
    try:
        return [_manifest(line) for line in gzip.decompress(storage.read(path)).splitlines()]
    except (Missing, OSError, EOFError, zlib.error, msgspec.DecodeError):
        return []


def _decoded(storage: Storage, path: str) -> Manifest | OldManifest | None:
    """None: it is not there any more."""
    data = storage.find(path)
    try:
        return None if data is None else _old(data) if "-" in path else _manifest(data)
    except msgspec.DecodeError as error:
        raise SparkError(f"{storage.name}/{path} cannot be read: {error}") from error
