"""Calls that read many rows take turns, one step of one of them in each turn of the loop.

A long call (a listing, a count, density, an export, a bulk change) is done in steps. Were each of them to go
on with every turn of the loop, a hundred calls would hold up everybody else for a hundred steps, and whoever
sends the most calls would have the most of the server. Here a step is some 5 ms, the loop comes round behind
it, and the *clients* take turns, not the calls; a client is a key, or where keys are not asked for a network:

    calls under way     A1 A2 A3 A4 of one client, B1 of another, C1
    steps               A1 B1 C1 A2 B1 C1 A3 B1 C1 A4 B1 ...

So a flood of calls makes itself wait. A call that comes alone waits for nobody. What waits is bounded by
`http.connections`: a connection has one call under way. What the calls have gathered for their answers
meanwhile is bounded by `http.buffered_bytes` together: beyond it a page ends where it is.
"""

import asyncio
from collections import deque

from aiohttp import web

from ..clock import Clock
from ..networks import network_of
from .access import rights_of

STEP_S = 0.005
"""How long a step may take, as far as rows of usual size are read; who reads them looks at the clock."""
LOOK_EVERY = 64
"""Rows that are read between two looks at the clock."""


class Turns:
    """The long calls of one server."""

    def __init__(self, clock: Clock, *, max_bytes: int) -> None:
        """`max_bytes`: what calls may gather together while others have their turns."""
        self._clock = clock
        self.max_bytes = max_bytes
        self.kept_bytes = 0
        """What all of them have gathered."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By client, those that wait; the client whose turn is next is the first. None is empty."""
        self._is_taken = False
        """A step is done in this turn of the loop."""

    def of(self, request: web.Request) -> "Turn":
        """The turns of this call."""
        rights = rights_of(request)
        client = network_of(request.remote or "") if rights is None else f"key {rights.name}"
        return Turn(self, client, self._clock)

    async def wait(self, client: str) -> None:
        """Until it is the turn of one more call of this client."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next)
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(client, deque()).append(future)
        await future

    def _next(self) -> None:
        """Another turn of the loop has begun."""
        self._is_taken = False
        while self._waiting and not self._is_taken:
            client = next(iter(self._waiting))
            calls = self._waiting.pop(client)
            future = calls.popleft()
            if calls:
                self._waiting[client] = calls  # behind the others
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
        self._kept_bytes += size
        self._turns.kept_bytes += size
        return self._turns.kept_bytes <= self._turns.max_bytes

    def release(self) -> None:
        """What was gathered is given, or given up."""
        self._turns.kept_bytes -= self._kept_bytes
        self._kept_bytes = 0
