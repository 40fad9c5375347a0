"""A job as the server describes it: its slices, its checkpoint, its bounds.

The checkpoint stays a URI until its files are opened: a later cluster will use other schemes than `file://`.
Times are Unix ms.
"""

from pathlib import Path

import msgspec

from shards.archives import ArchivedFile, Manifest, local_path
from timeline.slices import Home, Shard

from .errors import NotAStore


class Source(msgspec.Struct, frozen=True):
    """A shard to read. `count` is 0 if the server does not give it."""

    start_ms: int
    generation: int
    shard: int
    count: int = 0

    @property
    def prefix(self) -> bytes:
        """The first ten bytes of its row keys."""
        return Shard(Home(self.start_ms, self.generation), self.shard).prefix


class Span(msgspec.Struct, frozen=True):
    """A slice: [start, end) and the shards with its rows."""

    start_ms: int
    end_ms: int
    generation: int
    sources: tuple[Source, ...] = ()
    count: int = 0

    @property
    def home(self) -> Home:
        return Home(self.start_ms, self.generation)


class Again(msgspec.Struct, frozen=True):
    """Files of an earlier commit that were found damaged."""

    number: int
    paths: list[str]


class Job(msgspec.Struct):
    """A job. `token` is empty if the server keeps it. `slice`: of a split, and the only one of `slices`."""

    id: str
    kind: str
    state: str
    token: str = ""
    lease_s: float = 60.0
    node: int = 0
    checkpoint: str = ""
    slice: Span | None = None
    slices: tuple[Span, ...] = ()
    parts: int | None = None
    split_above: int = 0
    archive: str | None = None
    archive_catalog: str | None = None
    timeline: str = ""
    number: int = 0
    """Of the commit that the job may make; ..."""
    last: int = 0
    """... and of the last one in this archive; 0: there is none."""
    from_ms: int = 0
    to_ms: int = 0
    """Positions [from, to) to archive; both the same: only what is unpublished."""
    unpublished: tuple[Manifest, ...] = ()
    """Commits whose manifests may not be in the archive yet."""
    again: tuple[Again, ...] = ()
    manifests: tuple[Manifest, ...] = ()
    """Of an expiry: the commits with the rows of its slices."""
    date: str | None = None
    files: tuple[ArchivedFile, ...] = ()
    """Of a compaction: the day, and its files."""
    manifest: Manifest | None = None
    """What was recorded of this job."""

    def __post_init__(self) -> None:
        if self.slice is not None:
            self.slices = (self.slice,)


def path_of(uri: str) -> Path:
    """The absolute path of a `file:` URI or a plain path. Raises NotAStore for anything else."""
    try:
        return Path(local_path(uri))
    except ValueError:
        raise NotAStore(f"{uri}: only file:// can be read here") from None
