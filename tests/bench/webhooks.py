"""How many messages a second are posted to one fast receiver.

webhook    messages with a payload of 200 B due in one instant, delivered to one signed endpoint, POSTS at a
           time, to a receiver that answers at once: from the due instant to the last post. Against aiohttp's
           client in a process that does nothing else, with as many at a time.
"""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import aiohttp

from .http import answer_end, send_all
from .peer import POSTS
from .process import Server, peering, serving
from .results import Env, Result
from .workload import batches, instant, now_ms, payload

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
IN_FLIGHT = 4
SECRET = "whsec_" + b64encode(bytes(range(32))).decode()
WAIT_S = 600.0


class Receiver(asyncio.Protocol):
    """Answers each post at once, and counts."""

    def __init__(self, count: "Count") -> None:
        self._count = count
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        end = answer_end(self._held)
        if end and end <= len(self._held):
            self._held = self._held[end:]
            self._transport.write(ANSWER)
            self._count.add()


class Count:
    """How many have come, and when the last one that is waited for did."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.come = 0
        self.last = 0.0
        self.done = asyncio.Event()

    def add(self) -> None:
        self.come += 1
        if self.come == self._wanted:
            self.last = time.monotonic()
            self.done.set()


@asynccontextmanager
async def receiving(count: Count) -> AsyncIterator[int]:
    """A receiver; its port."""
    server = await asyncio.get_running_loop().create_server(lambda: Receiver(count), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def webhook(env: Env) -> list[Result]:
    rates, bare, cpus = [], [], []
    with serving(env.folder / "data", webhook__allow_private="true") as server:
        for run in range(env.sizes.runs):
            seconds, cpu = await _posted(env, server, run)
            rates.append(env.sizes.webhook / seconds)
            cpus.append(cpu)
    for _ in range(env.sizes.runs):
        bare.append(env.sizes.webhook / await _bare(env))
    more = {"cpu_us": min(cpus) / env.sizes.webhook * 1e6}
    return [Result("webhook", "posts/s", rates, "bare aiohttp client", bare, "", more)]


async def _posted(env: Env, server: Server, run: int) -> tuple[float, float]:
    """Seconds from the due instant to the last post, and the server's processor seconds."""
    count = Count(env.sizes.webhook)
    async with receiving(count) as port, aiohttp.ClientSession() as session:
        url = f"http://{server.http[0]}:{server.http[1]}/v1/endpoints/bench-{run}"
        body = {"url": f"http://127.0.0.1:{port}/", "secret": SECRET, "concurrency": POSTS}
        async with session.put(url, json=body) as answer:
            assert answer.status == 201, await answer.text()
        due = now_ms() + int((env.sizes.lead_s + env.sizes.webhook / 40_000) * 1000)
        message = {"payload": payload(200), "deliver_to": f"bench-{run}", "deliver_at": instant(due)}
        item = json.dumps(message).encode()
        await send_all(server.http, batches([item] * env.sizes.webhook), IN_FLIGHT)
        left_s = due / 1000 - time.time()
        assert left_s > 0, "scheduling took until due"
        await asyncio.sleep(left_s)
        cpu, started = server.cpu_s(), time.monotonic()
        async with asyncio.timeout(WAIT_S):
            await count.done.wait()
        return count.last - started, server.cpu_s() - cpu


async def _bare(env: Env) -> float:
    """Seconds in which a client that does nothing else posts as many."""
    count = Count(env.sizes.webhook)
    async with receiving(count) as port:
        with peering(env.folder, "post", str(env.sizes.webhook), str(port)) as peer:
            started = time.monotonic()
            _, writer = await asyncio.open_connection(*peer)
            async with asyncio.timeout(WAIT_S):
                await count.done.wait()
            writer.close()
        return count.last - started
