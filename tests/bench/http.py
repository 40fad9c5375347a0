"""Requests over keep-alive connections, one at a time on each, with nothing in the way.

An HTTP library's client costs more per request than the server that is measured, so this one only knows what
it needs: a request is bytes, an answer ends where its Content-Length says. An answer of 300 or above ends the
measurement.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import cast

from .process import Address

TIMEOUT_S = 600.0


class Failed(Exception):
    """The server has refused a request or closed the connection."""


class _Connection(asyncio.Protocol):
    """Sends the next request as soon as the answer to the last one is there."""

    def __init__(self, requests: Iterator[bytes], done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._done = done
        self._held = b""
        self._sent = 0.0
        self._transport: asyncio.Transport
        self.waits_s: list[float] = []
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        end = answer_end(data)
        if end == 0 or end > len(data):
            self._held = data
            return
        self._held = b""
        if data[9:10] != b"2":
            self._fail(Failed(data[:500].decode(errors="replace")))
            return
        self.waits_s.append(time.perf_counter() - self._sent)
        self.body = data[data.index(b"\r\n\r\n") + 4 : end]
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or Failed("the server has closed the connection"))

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self._sent = time.perf_counter()
            self._transport.write(request)
            return
        if not self._done.done():
            self._done.set_result(None)
        self._transport.close()

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)
        self._transport.close()


def answer_end(data: bytes) -> int:
    """Where the first answer (or request with a body) in `data` ends; 0 if its head is not complete."""
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return 0
    head = data[:head_end].lower()
    at = head.find(b"content-length:")
    length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
    return head_end + 4 + length


async def send_all(at: Address, requests: Iterable[bytes], in_flight: int) -> list[float]:
    """Send them over `in_flight` connections; how long each waited for its answer, seconds. Raises Failed."""
    loop = asyncio.get_running_loop()
    shared = iter(requests)
    pairs = []
    for _ in range(in_flight):
        done: asyncio.Future[None] = loop.create_future()
        _, connection = await loop.create_connection(lambda done=done: _Connection(shared, done), *at)  # type: ignore[misc]
        pairs.append((connection, done))
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*[done for _, done in pairs])
    return [wait for connection, _ in pairs for wait in connection.waits_s]


async def ask(at: Address, wish: bytes) -> bytes:
    """One request, the body of its answer. Raises Failed, OSError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    _, connection = await loop.create_connection(lambda: _Connection(iter((wish,)), done), *at)
    await done
    return connection.body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
