"""What waiting messages cost: memory, disk, and time to be ready again after kill -9.

Measured once for each number of pending messages, 200 B of payload due over the next 30 days, against the
same server with nothing pending. `ready` is from the start of the process to a /readyz of 200.
"""

import asyncio
import time
from collections.abc import Iterator

from .http import ask, get, send_all
from .process import Server
from .results import Env, Result
from .workload import batches, next_month

IN_FLIGHT = 4
PAYLOAD = 200
STEP = 10_000
SETTLE_S = 2.0
MIB = 1 << 20


async def ram(env: Env) -> list[Result]:
    data = env.folder / "data"
    server = Server(data, {})
    try:
        empty_ready = await _ready(server)
        await asyncio.sleep(SETTLE_S)
        empty = server.rss_bytes() / MIB
        results = [Result("rss at 0", "MiB", [empty])]
        stored = 0
        for pending in env.sizes.pending:
            await send_all(server.http, _requests(stored, pending), IN_FLIGHT)
            stored = pending
            await asyncio.sleep(SETTLE_S)
            more = {"disk_MiB": server.data_bytes() / MIB}
            results.append(
                Result(
                    f"rss at {pending:,}", "MiB", [server.rss_bytes() / MIB], "rss at 0", [empty], "", more
                )
            )
        ready = []
        for _ in range(env.sizes.runs):
            server.kill()
            server = Server(data, {})
            ready.append(await _ready(server))
        more = {"rss_MiB": server.rss_bytes() / MIB, "disk_MiB": server.data_bytes() / MIB}
        results.append(Result(f"ready at {stored:,}", "s", ready, "ready at 0", [empty_ready], "", more))
        return results
    finally:
        server.stop()


def _requests(first: int, end: int) -> Iterator[bytes]:
    """Batches, made as they are sent: ten million do not fit."""
    for at in range(first, end, STEP):
        yield from batches(next_month(min(STEP, end - at), PAYLOAD, seed=at))


async def _ready(server: Server) -> float:
    """Seconds from the start of the process until /readyz says 200."""
    server.listening()
    await ask(server.http, get("/readyz"))
    return time.monotonic() - server.started
