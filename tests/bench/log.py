"""What an append to the log costs, and how fast it is read, beside the sync of a node that is alone.

log        records of 300 bytes (a group of one message) and of 250 KB (one of a thousand) are appended one
           after the other, each waited for, as group commits are; then the log is read from its beginning.
           On three NATS servers that sync always, and on PostgreSQL with `ANY 1` of two standbys, all of them
           on this machine and its disk. The floor is one row in RocksDB and a synced log, which is what the
           ack of an embedded server waits for.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from shards.log.chained import ChainedLog
from shards.log.engine import Origin
from shards.log.opening import open_log, unopened_log
from shards.log.record import ORIGIN
from shards.rocks import RocksStore
from shards.store import Table
from tests.support.nats import Nats
from tests.support.postgres import Postgres, programs

from .results import Env, Result, percentile

SIZES = {"300 B": (300, 1), "250 KB": (250_000, 4)}
"""Bytes of a record, and by what the count of appends is divided."""
FLOOR = "RocksDB, synced"
DEADLINE_S = 30.0


async def log(env: Env) -> list[Result]:
    with ExitStack() as stack:
        urls = {"JetStream": stack.enter_context(Nats(env.folder / "nats")).url}
        if programs() is None:
            env.seen.missing.add("PostgreSQL")
        else:
            urls["PostgreSQL"] = stack.enter_context(Postgres()).url
        return [
            result
            for label, (size, part) in SIZES.items()
            for result in _measured(env, urls, label, size, max(2, env.sizes.log // part))
        ]


def _measured(env: Env, urls: dict[str, str], label: str, size: int, count: int) -> Iterator[Result]:
    """All engines and the floor in turns."""
    spent: dict[str, list[list[float]]] = {name: [] for name in (*urls, FLOOR)}
    read: dict[str, list[float]] = {name: [] for name in urls}
    data = bytes(range(256)) * (size // 256 + 1)
    for run in range(env.sizes.runs):
        spent[FLOOR].append(_floor(env.folder / f"rocks-{size}-{run}", data[:size], count))
        for name, url in urls.items():
            made = unopened_log(url, f"bench_{size}_{run}", time, deadline_s=DEADLINE_S, keys=("",))
            made.begin(ORIGIN, Origin())
            made.close()
            opened = open_log(url, f"bench_{size}_{run}", time, deadline_s=DEADLINE_S, keys=("",))
            spent[name].append(_appended(opened, data[:size], count))
            read[name].append(_read(opened))
            opened.close()
    floor = [count / sum(one) for one in spent[FLOOR]]
    for name in urls:
        flat = [seconds for one in spent[name] for seconds in one]
        more = {"p50_ms": percentile(flat, 0.5) * 1e3, "p99_ms": percentile(flat, 0.99) * 1e3}
        more["read_per_s"] = sorted(read[name])[len(read[name]) // 2]
        runs = [count / sum(one) for one in spent[name]]
        yield Result(f"log: {name}, {label}", "appends/s", runs, FLOOR, floor, more=more, is_floor=True)


def _floor(folder: Path, data: bytes, count: int) -> list[float]:
    store = RocksStore(folder)

    def write(number: int) -> None:
        batch = store.batch()
        batch.put(Table.META, b"%d" % (number % 16), data)
        store.write(batch)
        store.flush()

    try:
        return _timed(write, range(count))
    finally:
        store.close()


def _appended(opened: ChainedLog, data: bytes, count: int) -> list[float]:
    epoch = opened.claim(1, "bench", "")
    return _timed(lambda seq: opened.append(seq, epoch, data), range(2, count + 2))


def _timed(call: Callable[[int], None], numbers: range) -> list[float]:
    """Seconds of each."""
    found = []
    for number in numbers:
        started = time.perf_counter()
        call(number)
        found.append(time.perf_counter() - started)
    return found


def _read(opened: ChainedLog) -> float:
    """Records a second."""
    started = time.perf_counter()
    count = sum(1 for _ in opened.read(0))
    return count / (time.perf_counter() - started)
