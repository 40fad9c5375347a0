"""A job as the server describes it: its slices, its checkpoint, its bounds.

The checkpoint stays a URI until its files are opened: a later cluster will use other schemes than `file://`.
Times are Unix ms.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shards.archives import local_path
from timeline.slices import Home, Shard

from .errors import NotAStore


@dataclass(frozen=True, slots=True)
class Source:
    """A shard to read. `count` is 0 if the server does not give it."""

    home: Home
    number: int
    count: int = 0

    @property
    def prefix(self) -> bytes:
        """The first ten bytes of its row keys."""
        return Shard(self.home, self.number).prefix


@dataclass(frozen=True, slots=True)
class Span:
    """A slice: [start, end) and the shards with its rows."""

    start_ms: int
    end_ms: int
    generation: int
    sources: tuple[Source, ...] = ()
    count: int = 0

    @property
    def home(self) -> Home:
        return Home(self.start_ms, self.generation)


@dataclass(frozen=True, slots=True)
class Job:
    """A job. `token` is empty if the server keeps it."""

    id: str
    kind: str
    state: str
    token: str
    lease_s: float
    node: int
    checkpoint: str
    slices: tuple[Span, ...]
    parts: int | None = None
    split_above: int = 0
    archive: str = ""


def job_from(body: Mapping[str, Any], token: str = "") -> Job:
    """A job from the server's JSON. `token`: the caller's."""
    one = body.get("slice")
    pieces = body.get("slices") or ([one] if one else [])
    return Job(
        id=body["id"],
        kind=body["kind"],
        state=body["state"],
        token=body.get("token") or token,
        lease_s=float(body.get("lease_s", 60)),
        node=int(body.get("node", 0)),
        checkpoint=body.get("checkpoint") or "",
        slices=tuple(span_from(piece) for piece in pieces),
        parts=body.get("parts"),
        split_above=int(body.get("split_above") or 0),
        archive=body.get("archive") or "",
    )


def span_from(body: Mapping[str, Any]) -> Span:
    sources = tuple(_source(source) for source in body.get("sources", ()))
    count = int(body.get("count") or 0)
    return Span(body["start_ms"], body["end_ms"], body["generation"], sources, count)


def _source(body: Mapping[str, Any]) -> Source:
    home = Home(body["start_ms"], body["generation"])
    return Source(home, body["shard"], int(body.get("count") or 0))


def path_of(uri: str) -> Path:
    """The absolute path of a `file:` URI or a plain path. Raises NotAStore for anything else."""
    try:
        return Path(local_path(uri))
    except ValueError:
        raise NotAStore(f"{uri}: only file:// can be read here") from None
