"""Small archives by hand: rows as dictionaries, a commit each call, its manifest written last.

    archive = Archived(storage_at(str(tmp_path)))
    archive.append([message("a", DAY), message("b", DAY + 5, state="withheld")])
    archive.compact("2026-12-01", replaces=[...], messages=[...])

A commit covers its rows' quarters of an hour from the end of the append before it.
"""

import random
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from io import BytesIO
from itertools import groupby
from typing import Any
from unittest.mock import MagicMock, patch
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shards.archives import (
    AGAIN,
    APPEND,
    COMPACT,
    DELIVERIES,
    ENDS,
    MESSAGES,
    QUARTER_MS,
    TABLES,
    VERSION,
    ArchivedFile,
    Manifest,
    Report,
    Span,
    file_name,
    manifest_name,
)
from spark.compact import after, work
from spark.job import Job
from spark.manifests import read_archive
from spark.parquet import SCHEMAS, TIMES
from spark.storage import Storage
from timeline.slices import DAY_MS

TIMELINE = "7" * 32
DAY = 20_000 * DAY_MS
"""2024-10-04."""
Rows = Sequence[dict[str, Any]]


def message(name: str, at_ms: int, **more: Any) -> dict[str, Any]:
    """A row of messages: id `name`, dispatched at its due time."""
    given = {"topic": "a/b", "due": at_ms, "dispatched": at_ms, "state": "dispatched", "payload": b"x"}
    given |= {"encoding": "text", "qos": 1, "retain": False, "slice": at_ms // DAY_MS * DAY_MS, "shard": 0}
    return {"id": name, "at": at_ms, **given, "bytes": 1, **more}


def delivery(root: str, ended_ms: int, **more: Any) -> dict[str, Any]:
    """A row of deliveries: done, by the group g."""
    given = {"place": "g", "kind": "group", "incarnation": 1, "id": root, "number": 1, "end": "done"}
    return {"root": root, "ended_at": ended_ms, "attempts": 1, **given, **more}


def ends(minute_ms: int, count: int = 1, **more: Any) -> dict[str, Any]:
    """A row of ends: of the group g, done."""
    given = {"place": "g", "kind": "group", "incarnation": 1, "end": "done"}
    return {"minute": minute_ms, "count": count, **given, **more}


def date_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d")


class Archived:
    """An archive in `storage`, with the commits that were made."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.commits: list[Manifest] = []
        self.job = uuid4().hex

    def append(
        self, messages: Rows = (), deliveries: Rows = (), counts: Rows = (), *, end_ms: int = 0
    ) -> Manifest:
        """The next commit. `end_ms`: up to where it covers; 0: the end of the last row's quarter."""
        tables = {MESSAGES: messages, DELIVERIES: deliveries, ENDS: counts}
        times = [row[TIMES[table]] for table, rows in tables.items() for row in rows]
        ended = [one.end_ms for one in self.commits if one.kind == APPEND]
        start_ms = ended[-1] if ended else min(times) // QUARTER_MS * QUARTER_MS
        end_ms = end_ms or (max(times) // QUARTER_MS + 1) * QUARTER_MS
        spans = [
            Span(slice_ms, 0, quarter * QUARTER_MS, (quarter + 1) * QUARTER_MS, len(rows), len(rows))
            for (slice_ms, quarter), rows in _grouped(
                messages, lambda row: (row["slice"], row["at"] // QUARTER_MS)
            )
        ]
        return self._commit(APPEND, tables, start_ms=start_ms, end_ms=end_ms, spans=spans)

    def again(self, replaces: Sequence[str], messages: Rows) -> Manifest:
        return self._commit(AGAIN, {MESSAGES: messages}, replaces=[*replaces])

    def compact(self, replaces: Sequence[str], table: str, rows: Rows) -> Manifest:
        return self._commit(COMPACT, {table: rows}, replaces=[*replaces])

    def record(self, report: dict[str, Any]) -> Manifest:
        """A commit of what a job's program has reported: as the server records it, and its manifest."""
        given = {"number": len(self.commits) + 1, "timeline": TIMELINE, "node": 0, "job": self.job}
        made = msgspec.convert({**given, "created_ms": 1, "version": VERSION, **report}, Manifest)
        self.storage.write(manifest_name(made.number), msgspec.json.encode(made))
        self.commits.append(made)
        return made

    def _commit(self, kind: str, tables: dict[str, Rows], **more: Any) -> Manifest:
        files = [
            self._file(table, date, index, rows)
            for table, every in tables.items()
            for index, (date, rows) in enumerate(_grouped(every, lambda row: date_of(row[TIMES[table]])))  # noqa: B023
        ]
        return self.record(msgspec.to_builtins({"kind": kind, "files": files, **more}))

    def _file(self, table: str, date: str, index: int, rows: Rows) -> ArchivedFile:
        path = file_name(table, date, len(self.commits) + 1, self.job, index)
        buffer = BytesIO()
        with pq.ParquetWriter(buffer, SCHEMAS[table], compression="zstd") as writer:
            writer.write_table(pa.Table.from_pylist([*rows], SCHEMAS[table]))
        self.storage.write(path, buffer.getvalue())
        times = [row[TIMES[table]] for row in rows]
        withheld = sum(row.get("state") == "withheld" for row in rows)
        size, digest = self.storage.sum_of(path)
        return ArchivedFile(path, len(rows), size, digest, table, min(times), max(times), withheld)


def rows_of(storage: Storage, table: str = MESSAGES) -> list[dict[str, Any]]:
    """The rows of a table's files that count."""
    rows: list[dict[str, Any]] = []
    for file in read_archive(storage).files(table):
        with storage.opened(file.path) as opened:
            rows += pq.ParquetFile(opened).read().to_pylist()
    return rows


def a_day(archive: Archived, commits: int = 6) -> None:
    """Quarters of an hour of `DAY` with 50 messages and all tables, and a message of the next day."""
    draw = random.Random(5)
    for number in range(commits):
        start = DAY + number * QUARTER_MS
        at = sorted(draw.randrange(start, start + QUARTER_MS) for _ in range(50))
        archive.append(
            [message(f"{number}-{index}", one) for index, one in enumerate(at)],
            [delivery(f"{number}-{index}", one) for index, one in enumerate(at[:5])],
            [ends(start), ends(start + 60_000, 7)],
        )
    archive.append([message("next", DAY + DAY_MS)], end_ms=DAY + DAY_MS + QUARTER_MS)


def compaction(archive: Archived, day_ms: int = DAY, name: str = "c0ffee00" * 4) -> Job:
    """The job of a day, as the server describes it."""
    found = read_archive(archive.storage)
    live = [
        file for table in TABLES for file in found.files(table) if f"date={date_of(day_ms)}/" in file.path
    ]
    files = [{**msgspec.to_builtins(file), "number": 1} for file in live]
    number = len(archive.commits) + 1
    body = {"id": name, "kind": "compact", "state": "compacting", "date": date_of(day_ms), "files": files}
    return msgspec.convert({**body, "number": number, "archive": archive.storage.name}, Job)


def in_place() -> AbstractContextManager[Any]:
    """What would be tasks of Spark runs in this process."""
    return patch("spark.tasks.each", lambda session, things, do: [do(one) for one in things])


def work_here(job: Job, storage: Storage) -> Report | None:
    with in_place():
        return work(MagicMock(), job, storage)


def compacted(archive: Archived, day_ms: int = DAY) -> Manifest:
    """Compact a day, in this process."""
    report = work_here(compaction(archive, day_ms), archive.storage)
    made = archive.record(msgspec.to_builtins(report))
    after(archive.storage, made)
    return made


def _grouped(rows: Rows, key: Any) -> Iterable[tuple[Any, Rows]]:
    """The rows by key, in the order of the keys."""
    return [(found, [*group]) for found, group in groupby(sorted(rows, key=key), key)]
