"""What the archive has and what it lacks: read by jobs, retention and reports; jobs change it.

An archive job has the positions [from_ms, to_ms): from the end of the last commit, or where the slices begin
that are still there, to a quarter of an hour `slices.archive_after` behind the horizon. Nothing is placed
there any more, so the rows are the same whenever they are read.

    last commit      from_ms                       to_ms     archive_after      horizon
    ────────────────────│─────────────────────────────│──────────────────────────│

Files that an expiry has found damaged are remembered until an archive job has written them again. After a
restart the next expiry finds them anew.
"""

import os
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from shards import archived, ended
from shards.archived import JOB_MS, ArchiveRow
from shards.archives import QUARTER_MS, Manifest, archive_url, is_local, manifest_name
from shards.jobs import ARCHIVE, COMPACT
from shards.recover import Opened
from timeline.position import at_of, before
from timeline.slices import Slice

from ..settings.config import Slices
from .clock import Clock

AGAIN_MAX = 1_000
"""Commits with damaged files that are remembered."""
PAGE_BYTES = 1 << 20
LEAST_MS = 10_000
"""How long after a quarter of an hour it is archived at the earliest: the end of a delivery is written a
moment after its time."""


class Span(NamedTuple):
    """Positions that the next archive job has."""

    from_ms: int
    to_ms: int
    first_ms: int | None
    """The first message there, or end of a delivery; None: there is none."""


class Archive:
    """The archive of one server. Every call may raise Corrupt."""

    def __init__(self, opened: Opened, slices: Slices, clock: Clock) -> None:
        self._store = opened.store
        self._opened = opened
        self._slices = slices
        self._clock = clock
        self.again: dict[int, list[str]] = {}
        """Paths that are to be written again, by the number of their commit."""
        self.span = Span(0, 0, None)
        """As of the last look."""

    @property
    def url(self) -> str:
        """`slices.archive`, by its full name; empty: none."""
        return self._slices.archive

    @property
    def row(self) -> ArchiveRow:
        """The stored state."""
        return archived.archive_row(self._store.get) or ArchiveRow("")

    @property
    def lag_s(self) -> float:
        """Age of the first message that is not archived, as of the last look."""
        first_ms = self.span.first_ms
        return 0.0 if first_ms is None else max(0, self._clock.wall_ms() - first_ms) / 1_000

    @property
    def floor_ms(self) -> int:
        """What slices have from here on is there. It may be within a quarter of an hour."""
        return max(0, at_of(self._opened.directory.floor))

    def named(self, given: str) -> str:
        """A caller's archive by its full name; empty: `slices.archive`. Raises ValueError."""
        if not given:
            return self.url
        url = archive_url(given)
        if self.url and _real(url) != _real(self.url):
            raise ValueError(f"must be slices.archive, {self.url}, or be left out")
        if is_local(url) and not given.startswith(("/", "file:")):
            raise ValueError("must be an absolute path or a URL")
        return self.url or url

    def covered_ms(self, url: str) -> int:
        """That archive has everything before."""
        return self.row.at(url).covered_ms

    def look(self, url: str) -> Span:
        """What the next archive job has: of a few days at most."""
        opened, row = self._opened, self.row.at(url)
        clock_ms = min(at_of(opened.horizon.position), self._clock.wall_ms())
        limit_ms = quarter(clock_ms - max(LEAST_MS, self._slices.archive_after_ms))
        start_ms = max(row.end_ms, self.floor_ms)
        rows = opened.reader.read(before(start_ms), before(clock_ms))
        ends = ended.ends_between(opened.store, start_ms, clock_ms)
        firsts = [at_of(place) for place, _, _ in islice(rows, 1)]
        first_ms = min(firsts + [one.minute_ms for one in islice(ends, 1)], default=None)
        if not start_ms and first_ms is not None:
            # A new archive also covers rows in front of it that cannot be read.
            start_ms = quarter(min([first_ms, *(piece.start_ms for piece in islice(opened.directory, 1))]))
        is_closed = first_ms is not None and first_ms < limit_ms
        end_ms = min(limit_ms, quarter(first_ms or 0) + JOB_MS) if is_closed else start_ms
        self.span = Span(start_ms, end_ms, first_ms)
        return self.span

    def is_due(self, url: str) -> bool:
        """Whether an archive job has work."""
        span, row = self.look(url), self.row.at(url)
        has_more = span.from_ms < span.to_ms or row.published < row.last
        return has_more or bool(self._lost(row)) or self.next_again(row)[0] is not None

    def find(self) -> str:
        """Whether the server's own archive job has work."""
        return ARCHIVE if self.url and self.is_due(self.url) else ""

    def find_day(self) -> str:
        """Whether there may be a day to compact."""
        return COMPACT if self.url and self.covered_ms(self.url) else ""

    def published(self, since: int, most: int) -> list[Manifest]:
        """The commits behind a number whose manifests are in the archive: at most so many, and PAGE_BYTES."""
        found, taken, last = list[Manifest](), 0, self.row.published
        for size, manifest in archived.records(self._store, since):
            taken += size
            if manifest.number > last or len(found) == most or (found and taken > PAGE_BYTES):
                break
            found.append(manifest)
        return found

    def behind(self, pieces: Sequence[Slice], most: int) -> tuple[list[Manifest], int]:
        """The commits to read back before slices are dropped (archived.py). Blocks."""
        return archived.behind_slices(self._store, pieces, most)

    def unpublished(self, row: ArchiveRow) -> list[Manifest]:
        """The commits whose manifests are not in the archive, or no longer."""
        lost = [archived.recorded(self._store, number) for number in self._lost(row)]
        fresh = [manifest for _, manifest in archived.records(self._store, row.published)]
        return [*filter(None, lost), *fresh]

    # -- what was found damaged

    def plan_again(self, manifests: Sequence[Manifest], paths: Sequence[str]) -> list[str]:
        """Have damaged files written again by the next archive job. Returns those that cannot be."""
        found, replaced = set[str](), {path for one in manifests for path in one.replaces}
        for manifest in manifests:
            lost = archived.lost_paths(manifest, paths, replaced)
            if lost and len(self.again) < AGAIN_MAX:
                self.again[manifest.number] = lost
                found.update(lost)
        return [path for path in paths if path not in found]

    def next_again(self, row: ArchiveRow) -> tuple[Manifest | None, list[str]]:
        """The first commit of which files are to be written again, and these. Forgets those that cannot be:
        their slices are gone."""
        for number in sorted(self.again):
            paths = [path for path in self.again[number] if path != manifest_name(number)]
            manifest = archived.recorded(self._store, number) if number >= row.first else None
            if paths and manifest is not None and manifest.end_ms > self.floor_ms:
                return manifest, paths
            if manifest is None or paths or not self.again[number]:
                del self.again[number]
        return None, []

    def written(self, row: ArchiveRow) -> None:
        """All that was unpublished is in the archive."""
        for number in self._lost(row):
            self.again[number].remove(manifest_name(number))

    def _lost(self, row: ArchiveRow) -> list[int]:
        """The published commits whose manifests are to be written again."""
        lost = [number for number, paths in self.again.items() if manifest_name(number) in paths]
        return [number for number in lost if row.first <= number <= row.published]


def quarter(at_ms: int) -> int:
    """The begin of the quarter of an hour."""
    return max(0, at_ms - at_ms % QUARTER_MS)


def _real(archive: str) -> str:
    return os.path.realpath(archive) if is_local(archive) else archive
