"""How fast messages are taken, each answer after the fsync that covers it.

batch    NDJSON of 1,000 messages a request, four requests in flight
         against an append log: the same bytes, fdatasync after each batch
single   one message a request, at 1, 16 and 64 in flight
         against a server that answers a constant and stores nothing
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from .http import post, send_all
from .process import Address, Server, peering, serving
from .results import Env, Result, percentile
from .workload import batches, bodies, next_month

IN_FLIGHT = 4
SINGLES = (1, 16, 64)
PAYLOAD = 200


async def batch(env: Env) -> list[Result]:
    count = env.sizes.batch
    items = next_month(count, PAYLOAD)
    requests = batches(items)
    rates, logs, cpus = [], [], []
    with serving(env.folder / "data") as server:
        await send_all(server.http, requests[:IN_FLIGHT], IN_FLIGHT)
        for _ in range(env.sizes.runs):
            seconds, cpu = await _timed(server, requests, IN_FLIGHT)
            rates.append(count / seconds)
            cpus.append(cpu)
            logs.append(count / _append(env.folder / "log", bodies(items)))
    more = {"cpu_us": min(cpus) / count * 1e6}
    return [Result("batch", "msg/s", rates, "fdatasync'd append", logs, "150 k", more)]


async def _timed(server: Server, requests: Sequence[bytes], in_flight: int) -> tuple[float, float]:
    """Seconds and the server's processor seconds that the requests took."""
    cpu, started = server.cpu_s(), time.perf_counter()
    await send_all(server.http, requests, in_flight)
    return time.perf_counter() - started, server.cpu_s() - cpu


def _append(path: Path, pieces: Sequence[bytes]) -> float:
    """Seconds to append the pieces to a new file, each synced."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    started = time.perf_counter()
    for piece in pieces:
        os.write(file, piece)
        os.fdatasync(file)
    seconds = time.perf_counter() - started
    os.close(file)
    path.unlink()
    return seconds


async def single(env: Env) -> list[Result]:
    items = next_month(min(env.sizes.single, 10_000), PAYLOAD)
    requests = [post("/v1/messages", item) for item in items]
    results = []
    with serving(env.folder / "data") as server, peering(env.folder, "echo") as echo:
        for in_flight in SINGLES:
            # One in flight is bound by the disk's latency: a tenth tells as much.
            some = requests[: max(10, len(requests) // 10)] if in_flight == 1 else requests
            results.append(await _single(env, server, echo, some, in_flight))
    return results


async def _single(
    env: Env, server: Server, echo: Address, requests: Sequence[bytes], in_flight: int
) -> Result:
    count = len(requests)
    rates, echoes, cpus, waits = [], [], [], []
    for _ in range(env.sizes.runs):
        cpu, started = server.cpu_s(), time.perf_counter()
        waits += await send_all(server.http, requests, in_flight)
        rates.append(count / (time.perf_counter() - started))
        cpus.append(server.cpu_s() - cpu)
        started = time.perf_counter()
        await send_all(echo, requests, in_flight)
        echoes.append(count / (time.perf_counter() - started))
    more = {
        "p50_ms": percentile(waits, 0.5) * 1000,
        "p99_ms": percentile(waits, 0.99) * 1000,
        "cpu_us": min(cpus) / count * 1e6,
    }
    return Result(f"single/{in_flight}", "msg/s", rates, "bare HTTP echo", echoes, "", more)
