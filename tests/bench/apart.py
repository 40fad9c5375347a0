"""Load from a process of its own: what measures beside it is not late because of it."""

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from .process import Address

Load = Callable[[int], Awaitable[None]]
"""Told when to begin, ms."""
Make = Callable[[Address, int, int], Load]
"""Prepares a load on somebody: so many a second, for so many seconds."""

_ready: list[Load] = []
"""In the process of its own: what has been prepared."""


@contextmanager
def apart(make: Make, at: Address, per_s: int, seconds: int) -> Iterator[Load]:
    """The load that `make` prepares there, which is done by now; the process ends at the end."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(_prepare, make, at, per_s, seconds).result()

        async def load(start_ms: int) -> None:
            await asyncio.get_running_loop().run_in_executor(pool, _run, start_ms)

        yield load


def _prepare(make: Make, at: Address, per_s: int, seconds: int) -> None:
    _ready.append(make(at, per_s, seconds))


def _run(start_ms: int) -> None:
    (load,) = _ready

    async def go() -> None:
        await load(start_ms)

    asyncio.run(go())
