"""How long a server's loop keeps somebody waiting who asks for next to nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.http import http

EVERY_S = 0.02


class Lag:
    """Milliseconds that calls of /livez took, one after the other, EVERY_S apart."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    def at(self, share: float) -> float:
        """So long or less took this share of the calls."""
        return sorted(self.ms)[int((len(self.ms) - 1) * share)]

    def __str__(self) -> str:
        parts = (
            f"{name} {self.at(share):.1f} ms" for name, share in (("median", 0.5), ("p90", 0.9), ("max", 1))
        )
        return f"{len(self.ms)} calls of /livez meanwhile: {', '.join(parts)}"


@asynccontextmanager
async def lag_of(url: str) -> AsyncIterator[Lag]:
    """Measured until the end of the block, which has to last for some calls."""
    lag = Lag()

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
