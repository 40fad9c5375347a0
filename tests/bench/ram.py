"""What waiting messages cost: memory, disk, and time to be ready again after kill -9.

Messages of 200 B due over the next 30 days, their payloads once bytes of chance, which do not compress, and
once small JSON documents, as people send them. (Redis, which compresses nothing, gets text for the bytes.)
`rss` is what memory has grown by since nothing was pending, SETTLE_S after the last answer: the server gives
back what work has left behind when it has rested for a second or two, compactions over, and that is not told
apart from what a memtable happens to hold before. `loaded_MiB` is the same at the last answer. `disk` is the
data directory then; `ready` is from the start of the process to a /readyz of 200, killed at rest. Against
Redis, which is ready when it answers a PING. Ten million are measured without a peer.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from .exchange import Failed, Lines, line_to
from .http import ready, send_all
from .peers import redis as rd
from .process import Server
from .results import Env, Result
from .workload import BATCH, Draft, batches, bytes_item, cut, documents, drafts, item

IN_FLIGHT = 4
PAYLOAD = 200
STEP = 10_000
SETTLE_S = 5.0
MIB = 1 << 20

Make = Callable[[int, int, int], list[Draft]]
"""So many, of that size, from that seed."""
KINDS: tuple[tuple[str, Make], ...] = (("chance", drafts), ("JSON", documents))
ITEMS: dict[str, Callable[..., bytes]] = {"chance": bytes_item, "JSON": item}
"""What is sent for a draft."""


async def ram(env: Env) -> list[Result]:
    results: list[Result] = []
    first, *further = env.sizes.pending
    for kind, make in KINDS:
        theirs = await _redis(env, make, first)
        if theirs is None:
            env.seen.missing.add("Redis")
        results += await _fasti(env, kind, make, first, theirs, further if kind == "chance" else ())
    return results


async def _fasti(
    env: Env,
    kind: str,
    make: Make,
    count: int,
    theirs: tuple[float, float, list[float]] | None,
    further: Sequence[int],
) -> list[Result]:
    data = env.folder / f"data-{kind}"
    server = Server(data, {})
    try:
        await ready(server)
        env.seen.build = server.build()
        await asyncio.sleep(SETTLE_S)
        empty = server.rss_bytes() / MIB
        await send_all(server.http, _requests(kind, make, 0, count), IN_FLIGHT)
        loaded = server.rss_bytes() / MIB - empty
        await asyncio.sleep(SETTLE_S)
        grown, disk = server.rss_bytes() / MIB - empty, server.data_bytes() / MIB
        starts = []
        for _ in range(env.sizes.runs):
            server.kill()
            server = Server(data, {})
            starts.append(await ready(server))
        results = [
            _result(
                f"rss of {count:,} {kind}",
                "MiB",
                [grown],
                theirs and [theirs[0]],
                {"empty_MiB": empty, "loaded_MiB": loaded},
            ),
            _result(f"disk of {count:,} {kind}", "MiB", [disk], theirs and [theirs[1]], {}),
            _result(f"ready at {count:,} {kind}", "s", starts, theirs and theirs[2], {}),
        ]
        for more in further:
            await send_all(server.http, _requests(kind, make, count, more), IN_FLIGHT)
            count = more
            await asyncio.sleep(SETTLE_S)
            grown = server.rss_bytes() / MIB - empty
            told = {"disk_MiB": server.data_bytes() / MIB, "empty_MiB": empty}
            results.append(_result(f"rss of {count:,} {kind}", "MiB", [grown], None, told))
        return results
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)


def _result(
    name: str, unit: str, runs: list[float], theirs: list[float] | None, more: dict[str, float]
) -> Result:
    ack = rd.REDIS.ack if theirs else ""
    return Result(name, unit, runs, "Redis" if theirs else "", theirs or (), "", more, less=True, ack=ack)


def _requests(kind: str, make: Make, first: int, end: int) -> Iterator[bytes]:
    """Batches, made as they are sent: ten million do not fit."""
    for at in range(first, end, STEP):
        yield from batches([ITEMS[kind](*draft) for draft in make(min(STEP, end - at), PAYLOAD, at)])


# -- redis


async def _redis(env: Env, make: Make, count: int) -> tuple[float, float, list[float]] | None:
    """MiB of memory, MiB on disk, seconds to be ready at each start after a kill."""
    folder = env.folder / "redis"
    folder.mkdir()
    try:
        with rd.REDIS.running(folder) as found:
            if found is None:
                return None
            empty = found.process.rss_bytes()
            step = min(BATCH, count)
            lines = await Lines.open(found.at, IN_FLIGHT, rd.lines(2 * step))
            await lines.send_all(_pipelines(make, count, step))
            lines.close()
            await asyncio.sleep(SETTLE_S)
            grown = (found.process.rss_bytes() - empty) / MIB
            found.process.kill()
        disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / MIB
        return grown, disk, [await _restarted(folder) for _ in range(env.sizes.runs)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pipelines(make: Make, count: int, step: int) -> Iterator[bytes]:
    for start in range(0, count, STEP):
        some = make(min(STEP, count - start), PAYLOAD, start)
        yield from cut([rd.scheduled(draft, start + n) for n, draft in enumerate(some)], step)


async def _restarted(folder: Path) -> float:
    with rd.REDIS.running(folder) as found:
        assert found is not None
        while True:
            with suppress(Failed, OSError):
                await (await line_to(found.at, rd.answer_end)).ask(rd.command("PING"))
                seconds = time.monotonic() - found.process.started
                found.process.kill()
                return seconds
            await asyncio.sleep(0.01)
