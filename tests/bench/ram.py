"""What waiting messages cost: memory, disk, and time to be ready again after kill -9.

Measured once for each number of pending messages, 200 B of payload due over the next 30 days, against the
same server with nothing pending. `ready` is from the start of the process to a /readyz of 200.
"""

import asyncio
import time
from itertools import cycle, islice

from .http import ask, get, send_all
from .process import Server
from .results import Env, Result
from .workload import BATCH, batches, next_month

IN_FLIGHT = 4
PAYLOAD = 200
POOL = 200_000
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
        requests = batches(next_month(min(POOL, env.sizes.pending[-1]), PAYLOAD))
        stored = 0
        for pending in env.sizes.pending:
            started = time.perf_counter()
            wishes = islice(cycle(requests), (pending - stored) // BATCH)
            await send_all(server.http, wishes, IN_FLIGHT)
            rate = (pending - stored) / (time.perf_counter() - started)
            stored = pending
            await asyncio.sleep(SETTLE_S)
            more = {"disk_MiB": server.data_bytes() / MIB, "msg_s": rate}
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


async def _ready(server: Server) -> float:
    """Seconds from the start of the process until /readyz says 200."""
    server.listening()
    await ask(server.http, get("/readyz"))
    return time.monotonic() - server.started
