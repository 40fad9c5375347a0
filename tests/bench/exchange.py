"""Requests over connections that stay, one at a time on each, with nothing in the way.

A protocol's library costs more per request than the server that is measured, so a request here is bytes, and
of an answer nothing is known but where it ends, and whether it is a refusal, which ends the measurement. The
same code asks fasti over HTTP, Redis and PostgreSQL; what differs is an `End` (http.py, peers/).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self, cast

from .process import Address

TIMEOUT_S = 600.0

End = Callable[[bytes], int]
"""Where the first answer of these bytes ends; 0 while it is not complete. Raises Failed for a refusal."""


class Failed(Exception):
    """The server has refused a request or closed the connection."""


class Line(asyncio.Protocol):
    """One connection: sends the next request as soon as the answer to the last one is there.

    `answer` is the last one, `waits_s` how long each was waited for.
    """

    def __init__(self, end: End) -> None:
        self._end = end
        self._requests: Iterator[bytes] = iter(())
        self._done: asyncio.Future[None] | None = None
        self._held = b""
        self._sent = 0.0
        self._transport: asyncio.Transport
        self.waits_s: list[float] = []
        self.answer = b""

    def send(self, requests: Iterator[bytes]) -> asyncio.Future[None]:
        """Done when none is left, and each has been answered. Raises Failed."""
        self._requests = requests
        self._done = asyncio.get_running_loop().create_future()
        self._next()
        return self._done

    async def ask(self, request: bytes) -> bytes:
        """One request, its answer. Raises Failed."""
        await self.send(iter((request,)))
        return self.answer

    def close(self) -> None:
        self._done = None
        self._transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        try:
            end = self._end(data)
        except Failed as failed:
            self._fail(failed)
            return
        if end == 0 or end > len(data):
            self._held = data
            return
        self.answer, self._held = data[:end], data[end:]
        self.waits_s.append(time.perf_counter() - self._sent)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or Failed("the server has closed the connection"))

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self._sent = time.perf_counter()
            self._transport.write(request)
        elif self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self._transport.close()


class Lines:
    """Some connections to one place, which share the requests."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    @classmethod
    async def open(cls, at: Address, count: int, end: End, hello: Sequence[bytes] = ()) -> Self:
        """`hello`: what each connection says first. Raises Failed, OSError."""
        loop = asyncio.get_running_loop()
        lines = [(await loop.create_connection(lambda: Line(end), *at))[1] for _ in range(count)]
        for line in lines:
            for word in hello:
                await line.ask(word)
        return cls(lines)

    async def send_all(self, requests: Iterable[bytes]) -> list[float]:
        """How long each waited for its answer, seconds. Raises Failed."""
        shared = iter(requests)
        for line in self._lines:
            line.waits_s.clear()
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*[line.send(shared) for line in self._lines])
        return [wait for line in self._lines for wait in line.waits_s]

    def close(self) -> None:
        for line in self._lines:
            line.close()


async def line_to(at: Address, end: End, hello: Sequence[bytes] = ()) -> Line:
    """One connection. Raises Failed, OSError."""
    _, line = await asyncio.get_running_loop().create_connection(lambda: Line(end), *at)
    for word in hello:
        await line.ask(word)
    return line
