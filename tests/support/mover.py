"""Jobs in plain Python: what the Spark side does, a row at a time, for tests of the server's side.

It knows the agreement (docs/http.md, "Jobs") and nothing of the server: it reads the checkpoint that a new
job names and counts the rows of each piece. An archive is written by the very code of the program.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import convert, to_builtins

from shards.archives import Manifest
from shards.record import is_stub
from shards.rocks import RocksStore
from shards.store import Store, Table
from spark import expire
from spark.job import Job

Pieces = list[dict[str, int]]


def path_of(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def counted(created: Mapping[str, Any], cuts: Sequence[int]) -> Pieces:
    """Do the work of a split; the `pieces` that it commits."""
    store = RocksStore(path_of(created["checkpoint"]), read_only=True)
    try:
        return pieces_of(store, created["slice"], cuts)
    finally:
        store.close()


def expired(created: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Do the work of an expire job; the `slices` that it commits. With an archive pyarrow is needed."""
    job = convert(created, Job)
    if job.archive:
        lines, faults = expire.read_back(job, FOLLOWED_BY_NOBODY)
        assert not faults, faults
        return lines
    return expire.counted(job)


def archived(created: Mapping[str, Any]) -> dict[str, Any]:
    """Do the work of an archive job, by the code of the program; what it commits first. Needs pyarrow."""
    from spark import archive, publish
    from spark.storage import storage_at

    job = convert(created, Job)
    storage = storage_at(job.archive or "")
    publish.claim(storage, job)
    for manifest in job.unpublished:
        publish.publish(storage, manifest)
    if job.from_ms == job.to_ms:
        return {"published": job.last}
    return {"archived": to_builtins(archive.archive(job, storage, FOLLOWED_BY_NOBODY))}


def published(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Write the manifest of a recorded commit; what to commit then."""
    from spark import publish
    from spark.storage import storage_at

    manifest = convert(recorded["manifest"], Manifest)
    publish.publish(storage_at(recorded["archive"]), manifest)
    return {"published": manifest.number}


class _Nobody:
    def follow(self, progress: object) -> None:
        """Nobody asks how far the work is."""


FOLLOWED_BY_NOBODY: Any = _Nobody()


def pieces_of(store: Store, piece: Mapping[str, Any], cuts: Sequence[int]) -> Pieces:
    """The same from any store; `piece` as a new job names its slice."""
    found = [{"rows": 0, "live": 0, "bytes": 0} for _ in range(len(cuts) + 1)]
    for source in piece["sources"]:
        number = source["shard"].to_bytes(2, "big")
        home = source["start_ms"].to_bytes(6, "big") + source["generation"].to_bytes(2, "big") + number
        low, high = (home + piece[bound].to_bytes(6, "big") for bound in ("start_ms", "end_ms"))
        for key, value in store.scan(Table.MESSAGES, low + bytes(6), high + bytes(6)):
            one = found[bisect_right(cuts, int.from_bytes(key[10:16], "big"))]
            one["rows"] += 1
            one["live"] += not is_stub(value)
            one["bytes"] += len(value) + 22
    return found
