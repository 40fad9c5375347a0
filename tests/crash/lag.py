"""How long a server's loop keeps somebody waiting who asks for next to nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.http import http
from tests.support.latencies import Latencies

EVERY_S = 0.02


@asynccontextmanager
async def lag_of(url: str) -> AsyncIterator[Latencies]:
    """Of calls of /livez, one after the other, EVERY_S apart, until the end of the block."""
    lag = Latencies()

    async def measure() -> None:
        async with http(url) as calls:
            while True:
                started = time.perf_counter()
                await calls.call("GET", "/livez", status=200)
                lag.ms.append((time.perf_counter() - started) * 1000)
                await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(measure())
    try:
        yield lag
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
