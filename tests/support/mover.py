"""Jobs in plain Python: what the Spark side does, a row at a time, for tests of the server's side.

It knows the agreement (docs/http.md, "Jobs") and nothing of the server: from the answer to `:begin` it reads
the checkpoint, writes one table file for each child that has rows, and makes the manifest. An expiry is
archived by the very code that Spark runs in a task.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rocksdict import Options, SstFileWriter

from shards.record import is_stub
from shards.rocks import RocksStore
from shards.store import Store, Table
from spark.job import Span, job_from
from spark.snapshot import Snapshot, opened_snapshot
from timeline.position import before

Rows = list[tuple[bytes, bytes]]
Write = Callable[[Path, Rows], None]
SAID = ("start_ms", "generation", "rows", "archived", "files")


def path_of(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def write_sst(path: Path, rows: Rows) -> None:
    """A table file of RocksDB."""
    writer = SstFileWriter(options=Options(raw_mode=True))
    writer.open(str(path))
    for key, value in rows:
        writer[key] = value
    writer.finish()


def moved(begun: Mapping[str, Any], *, write: Write = write_sst) -> list[dict[str, Any]]:
    """Do the work of a job that has begun; the `files` of its manifest."""
    store = RocksStore(path_of(begun["checkpoint"]), read_only=True)
    try:
        return move(store, begun["children"], path_of(begun["output"]), write)
    finally:
        store.close()


def archived(created: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Do the work of an expire job; the `slices` of its manifest. With an archive pyarrow is needed."""
    job = job_from(created)
    with opened_snapshot(job.checkpoint) as snapshot:
        if job.archive:
            from spark.archive import archive_slice, clear_unfinished

            folder = path_of(job.archive)
            folder.mkdir(parents=True, exist_ok=True)
            for piece in job.slices:
                clear_unfinished(folder, piece.home)
            written = [archive_slice(snapshot, piece.home, folder, job.node) for piece in job.slices]
            return [{name: one[name] for name in SAID} for one in written]
        return [{**_counted(snapshot, piece), "archived": 0, "files": []} for piece in job.slices]


def _counted(snapshot: Snapshot, piece: Span) -> dict[str, Any]:
    rows = snapshot.reader.read(before(piece.start_ms), before(piece.end_ms))
    return {"start_ms": piece.start_ms, "generation": piece.generation, "rows": sum(1 for _ in rows)}


def move(
    store: Store, children: Sequence[Mapping[str, Any]], out: Path, write: Write
) -> list[dict[str, Any]]:
    """The same from any store; `children` as in the answer to `:begin`."""
    files = []
    for number, child in enumerate(children):
        rows = list(child_rows(store, child))
        if rows:
            path = out / f"part-{number}.sst"
            write(path, rows)
            files.append(described(path, rows, child["start_ms"]))
    return files


def child_rows(store: Store, child: Mapping[str, Any]) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a new slice under their new keys."""
    home = child["start_ms"].to_bytes(6, "big") + child["generation"].to_bytes(2, "big")
    for source in sorted(child["sources"], key=lambda source: source["shard"]):
        number = source["shard"].to_bytes(2, "big")
        old = source["start_ms"].to_bytes(6, "big") + source["generation"].to_bytes(2, "big") + number
        low, high = (old + child[bound].to_bytes(6, "big") for bound in ("start_ms", "end_ms"))
        for key, value in store.scan(Table.MESSAGES, low + bytes(6), high + bytes(6)):
            yield home + number + key[10:], value


def described(path: Path, rows: Rows, start_ms: int) -> dict[str, Any]:
    """What the manifest says of a file."""
    content = path.read_bytes()
    shards: dict[int, Rows] = {}
    for key, value in rows:
        shards.setdefault(int.from_bytes(key[8:10], "big"), []).append((key, value))
    return {
        "name": path.name,
        "rows": len(rows),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "first": rows[0][0].hex(),
        "last": rows[-1][0].hex(),
        "slice": start_ms,
        "shards": [
            {
                "shard": number,
                "rows": len(own),
                "live": sum(not is_stub(value) for _, value in own),
                "bytes": sum(len(value) + 22 for _, value in own),
                "first": own[0][0][10:].hex(),
                "last": own[-1][0][10:].hex(),
            }
            for number, own in shards.items()
        ],
    }
