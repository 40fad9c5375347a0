"""Calls that read many rows take turns, one step of one of them in each turn of the loop.

A long call (a listing, a count, density, an export, a bulk change) is done in steps. Were each of them to go
on with every turn of the loop, a hundred calls would hold up everybody else for a hundred steps, and whoever
sends the most calls would have the most of the server. Here a step is some 5 ms, the loop comes round behind
it, and the *clients* take turns, not the calls; a client is a key, or where keys are not asked for a network:

    calls under way     A1 A2 A3 A4 of one client, B1 of another, C1
    steps               A1 B1 C1 A2 B1 C1 A3 B1 C1 A4 B1 ...

So a flood of calls makes itself wait. A call that comes alone waits for nobody. What waits is bounded by
`http.connections`: a connection has one call under way.

What the calls have gathered meanwhile, for their answers or of their bodies, is together bounded by a part of
`limits.memory`. A client may hold as much of it as it leaves free, so that who fills it leaves half to the
others. Beyond that a page ends where it is (`keep`), and who knows before how much it will be waits until
there is room (`room`), again by client. Who holds something in that way asks for no more of it,
so nobody waits for himself.
"""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from heapq import nsmallest
from typing import Any, Protocol, TypeVar

from aiohttp import web

from ..engine.clock import Clock
from ..fair import FairQueue
from .access import client_of

STEP_S = 0.005
"""How long a step may take, as far as rows of usual size are read; who reads them looks at the clock."""
GIVE_WAY_S = 0.0002
"""How long a thread goes on when the loop wants the interpreter."""
USUAL_S = 0.001
"""The same while none works here (server/__main__.py): with less, requests cost 1.06 times as much."""
LOOK_EVERY = 64
"""Rows that are read between two looks at the clock."""


class Steps(Protocol):
    """What `least` needs of a Turn."""

    async def begin(self) -> None: ...
    def is_over(self, count: int, /) -> bool: ...


One = TypeVar("One")
Found = TypeVar("Found")
Key = TypeVar("Key", bound=Any)


async def least(
    turn: Steps, every: Sequence[One], key: Callable[[One], Key | None], most: int
) -> list[tuple[Key, One]]:
    """The `most` with the least keys, the least first; those whose key is None are not among them. There may
    be 100,000: it is found out in steps. Keys differ; `every` is not changed meanwhile."""
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
        """`max_bytes`: what calls may gather together while others have their turns."""
        self._clock = clock
        self.max_bytes = max_bytes
        self.kept_bytes = 0
        """What all of them have gathered."""
        self._kept: Counter[str] = Counter()
        """By client; one that has gathered nothing is not kept."""
        self._wanting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """By client, those that wait for room, and for how much. None is empty."""
        self._waiting = FairQueue[asyncio.Future[None]]()
        """By client, those that wait."""
        self._is_taken = False
        """A step is done in this turn of the loop."""

    def of(self, request: web.Request) -> "Turn":
        """The turns of this call."""
        return Turn(self, client_of(request), self._clock)

    def apart(self) -> "Turn":
        """Of work that others wait for, whoever it is done for: no call of one of them slows it down."""
        return Turn(self, "", self._clock)

    async def wait(self, client: str) -> None:
        """Until it is the turn of one more call of this client."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next)
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.add(client, future)
        await future

    def has_room(self, client: str, size: int) -> bool:
        """Whether the client may gather so much more."""
        return self._kept[client] + size <= self.max_bytes - self.kept_bytes

    async def room(self, client: str, size: int) -> None:
        """`take`, when there is room; if nobody holds anything there is, for however much."""
        if client in self._wanting or not self._is_free(client, size):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._wanting.setdefault(client, deque()).append((size, future))
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():  # it has been given meanwhile
                    self.give(client, size)
                raise
        else:
            self.take(client, size)

    def take(self, client: str, size: int) -> None:
        """Count what the client has gathered, until `give`."""
        self._kept[client] += size
        self.kept_bytes += size

    def give(self, client: str, size: int) -> None:
        """It is gone; others may have room now."""
        self.kept_bytes -= size
        self._kept[client] -= size
        if not self._kept[client]:
            del self._kept[client]
        for other, calls in list(self._wanting.items()):
            while calls and (calls[0][1].done() or self._is_free(other, calls[0][0])):
                wanted, future = calls.popleft()
                if not future.done():  # who waited may have been given up
                    self.take(other, wanted)
                    future.set_result(None)
            if not calls:
                del self._wanting[other]

    def _is_free(self, client: str, size: int) -> bool:
        return not self.kept_bytes or self.has_room(client, size)

    def _next(self) -> None:
        """Another turn of the loop has begun."""
        self._is_taken = False
        while self._waiting and not self._is_taken:
            _, future = self._waiting.take()
            if not future.done():  # who waited may have been given up
                future.set_result(None)
                self._is_taken = True
        if self._is_taken:
            asyncio.get_running_loop().call_soon(self._next)


class Turn:
    """One call's: wait for it before each step, and end the step when it is over."""

    __slots__ = ("_client", "_clock", "_kept_bytes", "_turns", "_until")

    def __init__(self, turns: Turns, client: str, clock: Clock) -> None:
        self._turns, self._client, self._clock = turns, client, clock
        self._until = 0.0
        self._kept_bytes = 0

    async def begin(self) -> None:
        """The next step; returns when it is this call's turn."""
        await self._turns.wait(self._client)
        self._until = self._clock.mono() + STEP_S

    def is_over(self, count: int) -> bool:
        """Whether the step has taken long enough; `count`: rows that were read in it."""
        return not count % LOOK_EVERY and self._clock.mono() >= self._until

    def keep(self, size: int) -> bool:
        """Count bytes that wait for the end of the call, until `release`. False: they are too many now."""
        has_room = self._turns.has_room(self._client, size)
        self._kept_bytes += size
        self._turns.take(self._client, size)
        return has_room

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Within it so many bytes count as gathered; entered when there is room for them."""
        await self._turns.room(self._client, size)
        try:
            yield
        finally:
            self._turns.give(self._client, size)

    def release(self) -> None:
        """What was kept is given, or given up."""
        if self._kept_bytes:
            self._turns.give(self._client, self._kept_bytes)
        self._kept_bytes = 0

    async def in_thread(self, thread: "OneThread", work: Callable[[], Found]) -> Found:
        """What `work` returns, done in the thread. Raises what it raises."""
        return await thread.do(self._client, work)

    @asynccontextmanager
    async def alone(self, lock: "Lock") -> AsyncIterator[None]:
        """Hold the lock; clients, not calls, take turns at it."""
        await lock.hold(self._client)
        try:
            yield
        finally:
            lock.let_go()


class Lock:
    """One call at a time holds it, and whoever waits for it waits for one call of each other client."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting = FairQueue[asyncio.Future[None]]()
        """By client, as in `Turns`."""

    async def hold(self, client: str) -> None:
        """Returns when it is held."""
        if not self._is_held:
            self._is_held = True
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it has been handed over meanwhile
                self.let_go()
            raise

    def let_go(self) -> None:
        """The next one holds it."""
        while self._waiting:
            _, future = self._waiting.take()
            if not future.done():  # who waited may have been given up
                future.set_result(None)
                return
        self._is_held = False


class OneThread:
    """A thread for one purpose. Clients take turns at it: a call waits for one call of each other client.

    What waits is bounded by `http.connections`, as in `Turns`. The loop's own threads do no work of clients,
    so keys, which are read again in one of them, wait for none.
    """

    def __init__(self, name: str) -> None:
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def do(self, client: str, work: Callable[[], Found]) -> Found:
        """What `work` returns. Raises what it raises."""
        await self._lock.hold(client)
        done = asyncio.get_running_loop().run_in_executor(self._pool, _giving_way, work)
        done.add_done_callback(lambda _: self._lock.let_go())
        try:
            return await asyncio.shield(done)  # whoever waits may be given up: the thread is not
        finally:
            del done  # an error would hold this frame, and the frame the error, until the next collection


def _giving_way(work: Callable[[], Found]) -> Found:
    """What `work` returns, in a thread that lets the loop have the interpreter soon.

    The loop lets go of it several times in a turn, and waits for this long each time to have it again.
    """
    sys.setswitchinterval(GIVE_WAY_S)
    try:
        return work()
    finally:
        sys.setswitchinterval(USUAL_S)
