"""The pipeline at size: `python -m tests.bench.sized [--rows 10000000] [--folder DIR]`.

So many messages of 200 B over 60 days and 1,000 topics, of which 30 days have passed; then, a line each, with
seconds, processor time (of this process and its children, without the JVM's where it says so) and RAM:

    store        made by the server's own commit, without a server
    day          a day archived as the server's program does it, in a process of its own
    floor        the same day's columns, decoded already, through pyarrow alone
    backfill     ten days by Spark on local[2]
    compact      a day of 96 commits into one file
    next week    what is due, by day and topic: from the backup
    yesterday    what happened: states by hour, from the view of backup and archive
    late         who is late: the 99th percentile of lateness by topic, from the archive

On a standalone cluster and through Spark Connect the same three questions run with `--master`.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from unittest.mock import MagicMock

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from shards.archives import QUARTER_MS, VERSION, Manifest, Report, manifest_name
from shards.commit import Caps
from shards.draft import Draft
from shards.record import encode_fresh
from shards.recover import Opened, open_timeline
from shards.rocks import RocksStore
from spark import compact
from spark.archive import archive
from spark.job import Job, Span
from spark.manifests import read_archive
from spark.session import spark_session
from spark.snapshot import opened_snapshot
from spark.storage import Storage, storage_at
from spark.table import register
from timeline.position import Position, before
from timeline.slices import DAY_MS

NOW = 20_000 * DAY_MS
DAYS, PASSED, TOPICS, PAYLOAD = 60, 30, 1_000, 200
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
CAPS = Caps(messages=100_000, bytes=64 << 20, pending=1 << 40, structure_above=10_000)
T = TypeVar("T")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sized")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--day", metavar="CHECKPOINT", help="only archive a day of it, into --folder")
    wanted = parser.parse_args(arguments)
    if wanted.day:
        return _day(wanted.day, wanted.folder)
    with tempfile.TemporaryDirectory(prefix="fasti-sized-", dir=wanted.folder) as folder:
        _run(wanted.rows, Path(folder), wanted.master)
    return 0


def _run(rows: int, folder: Path, master: str) -> None:
    checkpoint = _told("store", rows, lambda: _store(folder, rows))
    _told("day", rows // DAYS, lambda: _in_a_process(checkpoint, folder / "one"))
    _floor(storage_at(str(folder / "one")))
    with spark_session(master, "fasti sized") as session:
        register(session)
        session.range(1).count()
        there = Archive(checkpoint, storage_at(str(folder / "archive")))
        start = NOW + 19 * DAY_MS
        ten = rows // DAYS * 10
        _told("backfill", ten, lambda: there.append(start, start + 10 * DAY_MS, session))
        for at in range(start + 10 * DAY_MS, start + 11 * DAY_MS, QUARTER_MS):
            there.append(at, at + QUARTER_MS)
        _told("compact", rows // DAYS, lambda: there.compact(start + 10 * DAY_MS, session))
        files = there.storage.list(recursive=True)
        print(f"archive: {sum(one.bytes for one in files) / 1e6:.0f} MB in {len(files)} files", flush=True)
        _questions(session, checkpoint, there.storage.name, rows)


def _questions(session: SparkSession, checkpoint: str, archive: str, rows: int) -> None:
    read = session.read.format("fasti")
    now = NOW + PASSED * DAY_MS
    week = {"columns": "topic,due", "state": "pending", "due_from": str(now), "due_to": str(now + 7 * DAY_MS)}
    next_week = read.options(**week).load(checkpoint)

    def due() -> int:
        return next_week.groupBy("topic", next_week.due.cast("date")).count().count()

    _told("next week", rows // DAYS * 7, due)
    columns = {"columns": "topic,at,due,dispatched,state", "archive": archive}
    day = {"due_from": str(now - DAY_MS), "due_to": str(now)}
    view = session.read.format("fasti").options(**columns, **day).load(checkpoint)

    def yesterday() -> int:
        return view.groupBy("state", view["at"].cast("date")).count().count()

    _told("yesterday", rows // DAYS, yesterday)
    session.read.format("fasti").options(**columns).load().createOrReplaceTempView("archived")

    def late() -> int:
        late = "percentile_approx(unix_millis(dispatched) - unix_millis(due), 0.99)"
        return session.sql(f"select topic, {late} from archived group by topic").count()

    _told("late", rows // DAYS * 11, late)


class Archive:
    """An archive without a server."""

    def __init__(self, checkpoint: str, storage: Storage) -> None:
        self.checkpoint = checkpoint
        self.storage = storage
        self.number = 0

    def append(self, start: int, end: int, session: SparkSession | None = None) -> Report:
        job = self._job("archive", from_ms=start, to_ms=end)
        with opened_snapshot(self.checkpoint) as snapshot:
            pieces = list(snapshot.reader.directory.over(before(start), before(end)))
            spans = [Span(one.start_ms, one.end_ms, one.generation, (), one.count) for one in pieces]
        job.slices = tuple(spans)
        return self._record(archive(job, self.storage, MagicMock(), session), job)

    def compact(self, day: int, session: SparkSession) -> Report:
        date = datetime.fromtimestamp(day // 1_000, UTC).strftime("%Y-%m-%d")
        files = [one for one in read_archive(self.storage).files() if f"date={date}/" in one.path]
        given = [{**msgspec.to_builtins(one), "number": 1} for one in files]
        job = self._job("compact", date=date, files=given)
        report = compact.work(session, job, self.storage)
        assert report is not None
        return self._record(report, job)

    def _job(self, kind: str, **more: object) -> Job:
        self.number += 1
        body = {"id": f"{self.number:08x}" * 4, "kind": kind, "state": "archiving", "number": self.number}
        there = {"checkpoint": self.checkpoint, "archive": self.storage.name}
        return msgspec.convert({**body, **there, **more}, Job)

    def _record(self, report: Report, job: Job) -> Report:
        given = {"number": job.number, "timeline": "7" * 32, "node": 0, "job": job.id, "version": VERSION}
        made = msgspec.convert({**msgspec.to_builtins(report), **given, "created_ms": 1}, Manifest)
        self.storage.write(manifest_name(made.number), msgspec.json.encode(made))
        compact.after(self.storage, made)
        return report


def _day(checkpoint: str, folder: Path) -> int:
    start = NOW + 20 * DAY_MS
    began = time.process_time()
    report = Archive(checkpoint, storage_at(str(folder))).append(start, start + DAY_MS)
    rows = sum(one.rows for one in report.files)
    used = (time.process_time() - began) / rows * 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    print(f"    {rows:,} rows, {used:.2f} us of processor time a row, {peak:.0f} MiB at most", flush=True)
    return 0


def _in_a_process(checkpoint: str, folder: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.sized", "--day", checkpoint, "--folder", str(folder)]
    subprocess.run(command, check=True)


def _floor(storage: Storage) -> None:
    """pyarrow alone, with the same rows."""
    (file,) = read_archive(storage).files()
    with storage.opened(file.path) as opened:
        rows = pq.ParquetFile(opened).read()
    began = time.process_time()
    pq.write_table(rows, BytesIO(), compression="zstd")
    used = (time.process_time() - began) / rows.num_rows * 1e6
    print(f"floor         {used:.2f} us of processor time a row: pq.write_table", flush=True)


def _store(folder: Path, rows: int) -> str:
    store = RocksStore(folder / "data")
    opened = open_timeline(store, wall_ms=NOW, node=0, max_slices=10_000, max_structures=1_024, caps=CAPS)
    noise, step_us = os.urandom(1 << 20), DAYS * DAY_MS * 1_000 // rows
    for first in range(0, rows, 10_000):
        opened.open_batch.begin(NOW)
        numbers = range(first, min(rows, first + 10_000))
        # Neighbours in time are not neighbours in the order of writing.
        mixed = [(number * 7_919 % rows * step_us // 1_000, number) for number in numbers]
        opened.commit.put([_draft(after_ms, number, noise) for after_ms, number in mixed])
        _sync(opened)
    _pass(opened)
    store.checkpoint(folder / "checkpoint")
    store.close()
    return (folder / "checkpoint").as_uri()


def _draft(after_ms: int, number: int, noise: bytes) -> Draft:
    topic = b"kind-%d/%d/remind" % (number % 8, number % TOPICS)
    at = number * 7_919 % (len(noise) - PAYLOAD)
    due_ms = NOW + 1_000 + after_ms
    return Draft(due_ms, topic, encode_fresh(topic, noise[at : at + PAYLOAD], due_ms, 1, 0))


def _pass(opened: Opened) -> None:
    """Let the horizon pass 30 days, a turn each minute."""
    ends = [NOW + minute * MINUTE_MS for minute in range(0, PASSED * 1_440 + 1, 1_440)]
    for low, high in pairwise(ends):
        opened.open_batch.begin(high)
        _sync(opened)
        opened.open_batch.begin(high)
        turns = [(Position(at << 48), at + 3) for at in range(low + MINUTE_MS, high + 1, MINUTE_MS)]
        opened.horizon.advance(turns[-1][0])
        opened.open_batch.dispatched(turns)
        _sync(opened)


def _sync(opened: Opened) -> None:
    opened.open_batch.seal()
    opened.open_batch.store.flush()
    opened.close_group()


def _told(name: str, rows: int, work: Callable[[], T]) -> T:
    began, cpu = time.perf_counter(), _cpu()
    found = work()
    took, used = time.perf_counter() - began, _cpu() - cpu
    print(
        f"{name:<12}  {took:6.1f} s, {rows / took:>10,.0f} rows/s, {used:6.1f} s of Python's processor time",
        flush=True,
    )
    return found


def _cpu() -> float:
    mine = resource.getrusage(resource.RUSAGE_SELF)
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
