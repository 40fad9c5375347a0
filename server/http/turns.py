"""Turns of long calls: one step of one call in each turn of the loop.

A long call (a listing, a count, density, an export, a bulk change) is done in steps. If every call did a step
in each turn of the loop, a hundred calls would delay all others by a hundred steps, and the client with the
most calls would get the most of the server. Here a step is some 5 ms, the loop turns after it, and the
*clients* take turns, not the calls. A client is a key or, without keys, a network:

    calls under way     A1 A2 A3 A4 of one client, B1 of another, C1
    steps               A1 B1 C1 A2 B1 C1 A3 B1 C1 A4 B1 ...

So a flood of calls delays only itself. A lone call does not wait. `http.connections` bounds the waiting
calls: a connection has one call at a time.

A part of `limits.memory` bounds all bytes that calls gather, for their answers or from their bodies. A client
may hold as much of it as it leaves free, so a single client leaves half to the others. Beyond that a page
ends early (`keep`); a call that knows its size before waits for room (`room`), again by client. A call that
holds room asks for no more, so none waits for itself.
"""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from heapq import nsmallest
from typing import Any, TypeVar

from aiohttp import web

from ..engine.clock import Clock
from ..fair import FairQueue
from .access import client_of

STEP_S = 0.005
"""Maximum time of a step with rows of usual size; a reader checks the clock in between."""
GIVE_WAY_S = 0.0002
"""How long a thread runs when the loop wants the interpreter."""
USUAL_S = 0.001
"""The same while no thread works here (server/__main__.py): with less, requests cost 1.06 times as much."""
LOOK_EVERY = 64
"""Rows read between two looks at the clock."""


One = TypeVar("One")
Found = TypeVar("Found")
Key = TypeVar("Key", bound=Any)


async def least(
    turn: "Turn", every: Sequence[One], key: Callable[[One], Key | None], most: int
) -> list[tuple[Key, One]]:
    """The `most` items with the least keys, in order; items whose key is None are left out. There may be
    100,000, so it works in steps. Keys differ; `every` does not change meanwhile."""
    await turn.begin()
    best: list[tuple[Key, One]] = []
    step: list[tuple[Key, One]] = []
    for number, one in enumerate(every, 1):
        found = key(one)
        if found is not None:
            step.append((found, one))
        if turn.is_over(number):
            best, step = nsmallest(most, best + step), []
            await turn.begin()
    return nsmallest(most, best + step)


class Turns:
    """The long calls of one server."""

    def __init__(self, clock: Clock, *, max_bytes: int) -> None:
        """`max_bytes`: bytes that calls may gather together while they wait for turns."""
        self._clock = clock
        self.max_bytes = max_bytes
        self.kept_bytes = 0
        """Bytes that all calls have gathered."""
        self._kept: Counter[str] = Counter()
        """The same by client; clients without any have no entry."""
        self._wanting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """Calls that wait for room, and for how much, by client. No entry is empty."""
        self._waiting = FairQueue[asyncio.Future[None]]()
        """Calls that wait for a turn, by client."""
        self._is_taken = False
        """A step is done in this turn of the loop."""

    def of(self, request: web.Request) -> "Turn":
        """The turns of this call."""
        return Turn(self, client_of(request), self._clock)

    def apart(self) -> "Turn":
        """Turns for work that other clients wait for: no call of its client delays it."""
        return Turn(self, "", self._clock)

    async def wait(self, client: str) -> None:
        """Wait for a turn of this client."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next)
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.add(client, future)
        await future

    def has_room(self, client: str, size: int) -> bool:
        """Whether the client may gather `size` more bytes."""
        return self._kept[client] + size <= self.max_bytes - self.kept_bytes

    async def room(self, client: str, size: int) -> None:
        """`take`, when there is room. If no bytes are held there always is."""
        if client in self._wanting or not self._is_free(client, size):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._wanting.setdefault(client, deque()).append((size, future))
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():  # it has got room meanwhile
                    self.give(client, size)
                raise
        else:
            self.take(client, size)

    def take(self, client: str, size: int) -> None:
        """Count bytes that the client has gathered, until `give`."""
        self._kept[client] += size
        self.kept_bytes += size

    def give(self, client: str, size: int) -> None:
        """Uncount bytes, and wake calls that have room now."""
        self.kept_bytes -= size
        self._kept[client] -= size
        if not self._kept[client]:
            del self._kept[client]
        for other, calls in list(self._wanting.items()):
            while calls and (calls[0][1].done() or self._is_free(other, calls[0][0])):
                wanted, future = calls.popleft()
                if not future.done():  # the waiting call may have been cancelled
                    self.take(other, wanted)
                    future.set_result(None)
            if not calls:
                del self._wanting[other]

    def _is_free(self, client: str, size: int) -> bool:
        return not self.kept_bytes or self.has_room(client, size)

    def _next(self) -> None:
        """A new turn of the loop has begun."""
        self._is_taken = False
        while self._waiting and not self._is_taken:
            _, future = self._waiting.take()
            if not future.done():  # the waiting call may have been cancelled
                future.set_result(None)
                self._is_taken = True
        if self._is_taken:
            asyncio.get_running_loop().call_soon(self._next)


class Turn:
    """A call's turns: wait for one before each step, and end the step when it is over."""

    __slots__ = ("_client", "_clock", "_kept_bytes", "_turns", "_until")

    def __init__(self, turns: Turns, client: str, clock: Clock) -> None:
        self._turns, self._client, self._clock = turns, client, clock
        self._until = 0.0
        self._kept_bytes = 0

    async def begin(self) -> None:
        """Wait for the next step."""
        await self._turns.wait(self._client)
        self._until = self._clock.mono() + STEP_S

    def is_over(self, count: int) -> bool:
        """Whether the step's time is over; `count`: rows read in it."""
        return not count % LOOK_EVERY and self._clock.mono() >= self._until

    def keep(self, size: int) -> bool:
        """Count bytes kept until the end of the call. False: there is no room for them."""
        has_room = self._turns.has_room(self._client, size)
        self._kept_bytes += size
        self._turns.take(self._client, size)
        return has_room

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Context in which `size` bytes count as gathered; waits for room."""
        await self._turns.room(self._client, size)
        try:
            yield
        finally:
            self._turns.give(self._client, size)

    def release(self) -> None:
        """Uncount the kept bytes."""
        if self._kept_bytes:
            self._turns.give(self._client, self._kept_bytes)
        self._kept_bytes = 0

    async def in_thread(self, thread: "OneThread", work: Callable[[], Found]) -> Found:
        """The result of `work`, run in the thread. Raises what it raises."""
        return await thread.do(self._client, work)

    @asynccontextmanager
    async def alone(self, lock: "Lock") -> AsyncIterator[None]:
        """Context that holds the lock; clients, not calls, take turns."""
        await lock.hold(self._client)
        try:
            yield
        finally:
            lock.let_go()


class Lock:
    """Held by one call at a time; a waiting call waits for at most one call of each other client."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting = FairQueue[asyncio.Future[None]]()
        """Waiting calls by client, as in `Turns`."""

    async def hold(self, client: str) -> None:
        """Wait until it is held."""
        if not self._is_held:
            self._is_held = True
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it was handed over meanwhile
                self.let_go()
            raise

    def let_go(self) -> None:
        """Release it to the next call."""
        while self._waiting:
            _, future = self._waiting.take()
            if not future.done():  # the waiting call may have been cancelled
                future.set_result(None)
                return
        self._is_held = False


class OneThread:
    """A thread for one purpose. Clients take turns: a call waits for at most one call of each other client.

    `http.connections` bounds the waiting calls, as in `Turns`. The loop's own threads do no work for clients,
    so reading the keys file there never waits for clients.
    """

    def __init__(self, name: str) -> None:
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def do(self, client: str, work: Callable[[], Found]) -> Found:
        """The result of `work`. Raises what it raises."""
        await self._lock.hold(client)
        done = asyncio.get_running_loop().run_in_executor(self._pool, _giving_way, work)
        done.add_done_callback(lambda _: self._lock.let_go())
        try:
            return await asyncio.shield(done)  # the waiting call may be cancelled; the thread is not
        finally:
            del done  # a stored error would keep this frame in a cycle until the next collection


def _giving_way(work: Callable[[], Found]) -> Found:
    """The result of `work`, in a thread that returns the interpreter to the loop soon.

    The loop releases it several times in a turn, and waits this long each time to get it back.
    """
    sys.setswitchinterval(GIVE_WAY_S)
    try:
        return work()
    finally:
        sys.setswitchinterval(USUAL_S)
