"""What Spark does with a slice: split it, scan it, on `local[2]` and in a session that is warm. And what an
archive costs without it.

split/N        find where to cut N rows of one slice into eight, count the pieces; `again_s`: the counting
scan/N         sum over the table; then with a topic and a stretch of due asked for by options

columns/plain  processor time a row: a slice is read, decoded to columns and written as Parquet; the baseline
columns/rich   is the writing alone. Rich: with headers of which one never repeats, ordering keys and expiry

Rows of 200 bytes that do not compress. Each against `cp` and fsync of the same bytes (of the checkpoint),
`plain_s` is the same work in one plain Python process without Spark.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from shards import keys
from shards.commit import Caps
from shards.draft import Draft
from shards.properties import properties_of
from shards.record import decode, encode, encode_fresh
from shards.recover import open_timeline
from shards.rocks import RocksStore
from shards.state import Journal
from shards.store import Table
from shards.tables import slice_value
from spark.columns import DICTIONARY, SCHEMA, batches, table
from spark.job import Job, Source, Span, path_of
from spark.plan import cut_points
from spark.pushdown import Wanted
from spark.session import spark_session
from spark.snapshot import Snapshot, opened_snapshot
from spark.split import counted, sketch_sources, sketches
from spark.table import parts, read_part, register
from timeline.position import before
from timeline.slices import DAY_MS, Counts, Slice

from .results import Env, Result

NOW = 20_000 * DAY_MS
FAR = NOW + 104 * DAY_MS
CHILDREN = 8
GROUP_ROWS, GROUP_BYTES = 32_768, 16 << 20
PAYLOAD = 200
T = TypeVar("T")
Drafted = Callable[[int, int, bytes], Draft]
"""Makes a message from its due time, its number and noise."""
CAPS = Caps(messages=100_000, bytes=64 << 20, pending=1 << 40, structure_above=10_000)


async def spark(env: Env) -> list[Result]:
    results: list[Result] = []
    with spark_session("local[2]", "fasti bench") as session:
        register(session)
        _warm(session)
        for rows in env.sizes.spark:
            folder = env.folder / f"spark-{rows}"
            folder.mkdir()
            results += _measured(session, folder, rows, env.sizes.runs)
            shutil.rmtree(folder)
    return results


async def columns(env: Env) -> list[Result]:
    return [_columns(env, "plain", _draft), _columns(env, "rich", _rich)]


def _columns(env: Env, name: str, draft: Drafted) -> Result:
    folder = env.folder / name
    folder.mkdir()
    piece, uri = _store(folder, env.sizes.batch, draft)
    with opened_snapshot(uri) as snapshot:
        runs = [_spent(snapshot, piece, folder / "rows.parquet") for _ in range(env.sizes.runs)]
    made, written, whole = (
        [seconds / piece.count * 1e6 for seconds in one] for one in zip(*runs, strict=True)
    )
    more = {"columns_us": min(made)}
    return Result(f"columns/{name}", "us", whole, "pyarrow.parquet", written, "5 x", more, less=True)


def _spent(snapshot: Snapshot, piece: Slice, path: Path) -> tuple[float, float, float]:
    """Processor time of the columns, of writing them, and of all."""
    started, made, written = time.process_time(), 0.0, 0.0
    journal = Journal(snapshot.store)
    read = snapshot.reader.read(before(piece.start_ms), before(piece.end_ms))
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=DICTIONARY) as writer:
        for rows in batches(read, GROUP_ROWS, GROUP_BYTES):
            since = time.process_time()
            columns_of = table(rows, snapshot, journal, 0, piece)
            made += (until := time.process_time()) - since
            writer.write_table(columns_of, row_group_size=GROUP_ROWS)
            written += time.process_time() - until
    return made, written, time.process_time() - started


def _warm(session: SparkSession) -> None:
    """Both Python workers up, with what they import."""
    from spark.tasks import each

    each(
        session, list(range(4)), lambda number: {"imported": [keys.__name__, sketch_sources.__name__, number]}
    )


def _measured(session: SparkSession, folder: Path, rows: int, runs: int) -> list[Result]:
    piece, uri = _store(folder, rows, _draft)
    span = _span(piece)
    job = Job("bench", "split", "planning", checkpoint=uri, slice=span, parts=CHILDREN, split_above=1)
    splits, again, copies = [], [], []
    for _ in range(runs):
        seconds, found = _timed(lambda: sketches(session, job))
        cuts = cut_points(found, CHILDREN)
        more_s, pieces = _timed(lambda found=found, cuts=cuts: counted(session, job, found, cuts))
        assert sum(one.rows for one in pieces) == rows
        splits.append(seconds + more_s)
        again.append(more_s)
        copies.append(_timed(lambda: _copy(path_of(uri), _fresh(folder / "copy")))[0])
    children = [
        Span(start, end, 1, span.sources, one.rows)
        for (start, end), one in zip(pairwise([piece.start_ms, *cuts, piece.end_ms]), pieces, strict=True)
    ]
    plain = _timed(lambda: sketch_sources(uri, span, span.sources))[0]
    stored = sum(path.stat().st_size for path in path_of(uri).iterdir())
    more = {"again_s": min(again), "plain_s": plain, "rows_s": rows / min(splits), "mb": stored / 1e6}
    results = [Result(f"split/{rows}", "s", splits, "cp + fsync", copies, "5 x", more)]
    _cut(path_of(uri), piece, children, pieces)
    return [*results, *_scanned(session, uri, copies, rows)]


def _scanned(session: SparkSession, uri: str, copies: list[float], rows: int) -> list[Result]:
    def scan(options: dict[str, str]) -> int:
        (row,) = (
            session.read.format("fasti").options(**options).load(uri).selectExpr("count(bytes)").collect()
        )
        return int(row[0])

    def plain() -> int:
        wanted = Wanted(uri, "")
        return sum(batch.num_rows for part in parts(wanted) for batch in read_part(wanted, part))

    scan({"due_to": str(FAR)})
    whole, count = _timed(lambda: scan({}))
    assert count == rows
    hour = {"due_from": str(FAR + DAY_MS), "due_to": str(FAR + DAY_MS + 3_600_000)}
    by_topic, by_due = _timed(lambda: scan({"topic": "kind-3/#"}))[0], _timed(lambda: scan(hour))[0]
    plained, count = _timed(plain)
    assert count == rows
    more = {"topic_s": by_topic, "hour_s": by_due, "plain_s": plained, "rows_s": rows / whole}
    return [Result(f"scan/{rows}", "s", [whole], "cp + fsync", copies, "", more)]


def _store(folder: Path, rows: int, draft: Drafted) -> tuple[Slice, str]:
    """A checkpoint of a store with all rows in one slice of eight days, by the server's own commit."""
    store = RocksStore(folder / "data")
    opened = open_timeline(store, wall_ms=NOW, node=0, max_slices=100, max_structures=100, caps=CAPS)
    step_us = 7 * DAY_MS * 1_000 // rows
    noise = os.urandom(1 << 20)
    start = FAR - FAR % (8 * DAY_MS) + DAY_MS // 2
    for first in range(0, rows, 10_000):
        opened.open_batch.begin(NOW)
        opened.commit.put(
            [draft(start + n * step_us // 1_000, n, noise) for n in range(first, min(rows, first + 10_000))]
        )
        opened.open_batch.seal()
        store.flush()
        opened.close_group()
    piece = opened.directory.find(start)
    assert piece is not None
    assert piece.count == rows
    store.checkpoint(folder / "checkpoint")
    store.close()
    shutil.rmtree(folder / "data")
    return piece, (folder / "checkpoint").as_uri()


def _draft(due_ms: int, number: int, noise: bytes) -> Draft:
    topic = b"kind-%d/%d/remind" % (number % 8, number % 1_000)
    # A stretch of noise that comes again only far outside of a block.
    at = number * 7_919 % (len(noise) - PAYLOAD)
    return Draft(due_ms, topic, encode_fresh(topic, noise[at : at + PAYLOAD], due_ms, 1, 0))


def _rich(due_ms: int, number: int, noise: bytes) -> Draft:
    plain = decode(_draft(due_ms, number, noise).value)
    headers = (("traceparent", f"00-{number * 7_919:032x}-{number:016x}-01"), ("tenant", f"t{number % 50}"))
    rich = msgspec.structs.replace(
        plain,
        properties=properties_of(headers, "application/json"),
        ordering_key=b"customer-%d" % (number % 5_000),
        expires_ms=3_600_000,
        publisher=b"api",
        owner=b"shop",
        key=number.to_bytes(16, "big"),
    )
    return Draft(due_ms, plain.topic, encode(rich))


def _span(piece: Slice) -> Span:
    sources = tuple(Source(*shard.home, shard.number, shard.count) for shard in piece.shards.values())
    return Span(piece.start_ms, piece.end_ms, piece.generation, sources, piece.count)


def _cut(checkpoint: Path, piece: Slice, children: Sequence[Span], pieces: Sequence[Counts]) -> None:
    """What `commit` does: the children in place of the slice, borrowing its shards."""
    store = RocksStore(checkpoint)
    batch = store.batch()
    batch.delete(Table.SLICES, keys.slice_key(piece.home))
    for child, part in zip(children, pieces, strict=True):
        made = Slice(child.start_ms, child.end_ms, child.generation)
        made.borrow(piece.shards.values(), part)
        batch.put(Table.SLICES, keys.slice_key(made.home), slice_value(made))
    store.write(batch)
    store.flush()
    store.close()


def _copy(source: Path, target: Path) -> None:
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
        with (target / path.name).open("rb+") as file:
            os.fsync(file.fileno())


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found
