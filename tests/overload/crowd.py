"""Many clients at once, in the process of the test, and what can be asked of a server meanwhile.

gathered   so many connections, made a few at a time
present    they are there, and cut off in the end
metric     one figure of /metrics
felt       what honest clients wait for (tests/bench/honest.py); `latencies`: for plain publishes
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from tests.bench.honest import Crowd, Found, during
from tests.support.http import http
from tests.support.latencies import Latencies
from tests.support.mqtt import Peer
from tests.support.server import ServerProcess
from tests.support.soak import SOAK

from .frame import Table, aside
from .load import WAIT_S

AT_ONCE = 100
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


EVERYTHING = ("ping", "schedule", "acked", "listing")
"""Of what honest clients ask."""


async def felt(
    server: ServerProcess, names: Sequence[str], seconds: float, count: int = 1, tick_s: float = 0.02
) -> Found:
    """What honest clients feel for so long, `count` of each kind; for a soak from a process of their own."""
    crowd = Crowd(server.mqtt, server.http, names, count=count, tick_s=tick_s, patience_s=WAIT_S)
    return await (aside(during, crowd, seconds) if SOAK else asyncio.to_thread(during, crowd, seconds))


async def latencies(server: ServerProcess, seconds: float) -> Latencies:
    """How long a plain publish takes from one client to another, for so long."""
    (one,) = (await felt(server, ("p2p",), seconds))["p2p"]
    assert not one.lost
    return Latencies(one.waits_ms)


def told(table: Table, found: Found, whose: str) -> None:
    """Lines of what they felt."""
    for name, every in found.items():
        table.add(f"{name} {whose}", Latencies(wait for one in every for wait in one.waits_ms))
    if lost := sum(one.lost for every in found.values() for one in every):
        table.add(f"refused {whose}", lost)


def is_normal(now: Latencies, before: Latencies) -> bool:
    """Whether it is as it was before, on a machine that has others to serve too."""
    return now.at(0.5) <= 5 * before.at(0.5) + 20
