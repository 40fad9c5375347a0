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
from functools import partial

import aiohttp

from .due import until
from .http import send_all
from .peer import POSTS, Answering
from .process import Server, peering
from .race import Entry, Sample, contenders, race, spent
from .results import Env, Result
from .workload import batches, instant, now_ms, payload

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
IN_FLIGHT = 4
SECRET = "whsec_" + b64encode(bytes(range(32))).decode()
WAIT_S = 600.0


class Count:
    """How many have come, and when the last one that is waited for did."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.come = 0
        self.last = 0.0
        self._done = asyncio.Event()

    def add(self) -> None:
        self.come += 1
        if self.come == self._wanted:
            self.last = time.perf_counter()
            self._done.set()

    async def all_came(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._done.wait()


@asynccontextmanager
async def receiving(count: Count) -> AsyncIterator[int]:
    """A receiver; its port."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Answering(ANSWER, count.add), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def webhook(env: Env) -> list[Result]:
    with contenders(env, webhook__allow_private="true") as servers:
        entries = [Entry(name, partial(_posted, env, server)) for name, server in servers]
        bare = Entry("bare aiohttp client", partial(_bare, env), is_floor=True)
        return await race(env, "webhook", "posts/s", [*entries, bare])


async def _posted(env: Env, server: Server, run: int) -> Sample:
    """From the due instant to the last post."""
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
        await until(due)
        with spent(server) as found:
            await count.all_came()
        found.seconds = count.last - found.started
        return found.by(env.sizes.webhook)


async def _bare(env: Env, _: int) -> Sample:
    """A client that does nothing else posts as many."""
    count = Count(env.sizes.webhook)
    async with receiving(count) as port:
        with peering(env.folder, "post", str(env.sizes.webhook), str(port)) as peer:
            started = time.perf_counter()
            _reader, writer = await asyncio.open_connection(*peer)
            await count.all_came()
            writer.close()
        return Sample(env.sizes.webhook / (count.last - started))
