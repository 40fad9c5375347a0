"""Many clients at once, in the process of the test, and what can be asked of a server meanwhile.

gathered   so many connections, made a few at a time
present    they are there, and cut off in the end
metric     one figure of /metrics
latencies  plain publishes of a normal client to itself, from a process of its own
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from server.codec.packets import Publish
from tests.support.http import http
from tests.support.latencies import Latencies
from tests.support.mqtt import Peer, dial
from tests.support.soak import SOAK

from .frame import aside

AT_ONCE = 100
Address = tuple[str, int]
T = TypeVar("T")


async def gathered(count: int, make: Callable[[int], Awaitable[T]]) -> list[T]:
    """`make` of each number, AT_ONCE of them at a time."""
    made: list[T] = []
    for first in range(0, count, AT_ONCE):
        made += await asyncio.gather(*(make(one) for one in range(first, min(first + AT_ONCE, count))))
    return made


@asynccontextmanager
async def present(peers: Sequence[Peer]) -> AsyncIterator[None]:
    """They are cut off in the end."""
    try:
        yield
    finally:
        for peer in peers:
            peer.drop()
        await asyncio.sleep(0.05)


async def until(holds: Callable[[], bool], why: Callable[[], str], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(why())
        await asyncio.sleep(0.01)


async def metrics(url: str) -> dict[str, float]:
    """All figures, asked for on a connection of its own."""
    async with http(url, timeout_s=60) as calls:
        return await calls.metrics()


async def metric(url: str, name: str) -> float:
    """One of them, 0 if there is none."""
    return (await metrics(url)).get(name, 0.0)


async def used(url: str, bound: str) -> float:
    """How much of a bound is taken."""
    return await metric(url, f'fasti_limit_used{{name="{bound}"}}')


async def probing(address: Address, seconds: float, pause_s: float) -> list[float]:
    """A client that publishes to another of its own and waits for the delivery, again and again: ms."""
    found: list[float] = []
    came = asyncio.Event()

    def on_publish(peer: Peer, packet: Publish, now_ms: int) -> None:
        came.set()

    reader, writer = await dial(address, on_publish=on_publish), await dial(address)
    await reader.connect("probe-reader")
    await reader.subscribe("probe", qos=0)
    await writer.connect("probe-writer")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        came.clear()
        began = time.monotonic()
        writer.put("probe", "x", 0)
        async with asyncio.timeout(60):
            await came.wait()
        found.append((time.monotonic() - began) * 1_000)
        await asyncio.sleep(pause_s)
    await reader.close()
    await writer.close()
    return found


def probe(address: Address, seconds: float, pause_s: float) -> list[float]:
    """The same, in a process of its own. Blocks."""
    return asyncio.run(probing(address, seconds, pause_s))


async def latencies(address: Address, seconds: float, pause_s: float = 0.02) -> Latencies:
    """How long a plain publish takes from one client to another, for so long."""
    measured = aside(probe, address, seconds, pause_s) if SOAK else probing(address, seconds, pause_s)
    return Latencies(await measured)


def is_normal(now: Latencies, before: Latencies) -> bool:
    """Whether it is as it was before, on a machine that has others to serve too."""
    return now.at(0.5) <= 5 * before.at(0.5) + 20
