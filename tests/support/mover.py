"""Jobs in plain Python: what the Spark side does, a row at a time, for tests of the server's side.

It knows the agreement (docs/http.md, "Jobs") and nothing of the server: it reads the checkpoint that a new
job names and counts the rows of each piece.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from shards.record import is_stub
from shards.rocks import RocksStore
from shards.store import Store, Table
from spark.job import Span, job_from
from spark.snapshot import Snapshot, opened_snapshot
from timeline.position import before

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


def archived(created: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Do the work of an expire job without an archive; the `slices` that it commits."""
    job = job_from(created)
    with opened_snapshot(job.checkpoint) as snapshot:
        return [{**_counted(snapshot, piece), "archived": 0, "files": []} for piece in job.slices]


def _counted(snapshot: Snapshot, piece: Span) -> dict[str, Any]:
    rows = snapshot.reader.read(before(piece.start_ms), before(piece.end_ms))
    return {"start_ms": piece.start_ms, "generation": piece.generation, "rows": sum(1 for _ in rows)}


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


def archived_file(folder: Path, name: str, rows: int) -> dict[str, Any]:
    """Write a file of an archive, and report it as a job does."""
    content = f"PAR1 {name}".encode()
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return {"path": name, "rows": rows, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
