"""A receiver of webhooks that keeps what it gets and answers as it is told, in every way that one can
fail."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Behave = Callable[["Got", asyncio.StreamWriter], Awaitable[bool]]
"""Answers one post; whether the connection goes on."""


@dataclass
class Got:
    """One post as it came."""

    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)


def answer(status: int, *headers: str, body: bytes = b"") -> Behave:
    """Always that status."""
    head = "".join(f"{line}\r\n" for line in (*headers, f"Content-Length: {len(body)}"))
    said = f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body

    async def behave(_: Got, writer: asyncio.StreamWriter) -> bool:
        writer.write(said)
        return True

    return behave


def raw(data: bytes) -> Behave:
    """These bytes, and the end of the connection."""

    async def behave(_: Got, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return False

    return behave


async def silent(_: Got, writer: asyncio.StreamWriter) -> bool:
    """No answer, until the other side goes."""
    with suppress(ConnectionError):
        await writer.wait_closed() if writer.is_closing() else await asyncio.sleep(3_600)
    return False


async def drop(_: Got, writer: asyncio.StreamWriter) -> bool:
    """The end, without a word."""
    del writer
    return False


async def reset(_: Got, writer: asyncio.StreamWriter) -> bool:
    """A reset in the middle of an answer."""
    writer.write(b"HTTP/1.1 2")
    await writer.drain()
    writer.transport.abort()
    return False


async def endless_headers(_: Got, writer: asyncio.StreamWriter) -> bool:
    """Headers without end."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    with suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(b"x-more: " + b"y" * 1_000 + b"\r\n")
            await writer.drain()
    return False


async def slow_headers(_: Got, writer: asyncio.StreamWriter) -> bool:
    """A byte of the head now and then."""
    with suppress(ConnectionError):
        for byte in OK:
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0.2)
    return False


async def slow_body(_: Got, writer: asyncio.StreamWriter) -> bool:
    """The head at once, the body never."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
    with suppress(ConnectionError):
        await asyncio.sleep(3_600)
    return False


async def huge_body(_: Got, writer: asyncio.StreamWriter) -> bool:
    """A body without end."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
    with suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(b"z" * 65_536)
            await writer.drain()
    return False


class Receiver:
    """Where posts come to. `behave` may be replaced at any time; `script` comes first, one for each post."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.behave: Behave = answer(200)
        self.script: list[Behave] = []
        self.port = 0
        self.connections = 0
        self.open = self.open_max = 0
        self._came = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def url(self, path: str = "/hook", *, scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def posts(self, count: int) -> list[Got]:
        """What has come when so many posts have."""
        async with asyncio.timeout(60):
            while len(self.got) < count:
                self._came.clear()
                await self._came.wait()
        return self.got

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def resting(self) -> int:
        """Connections that are open, and nothing is asked on them."""
        return len(self._tasks) - self.open

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {}
                for line in head[1:-2]:
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                got = Got(head[0].split(" ")[1], headers, body)
                self.got.append(got)
                self._came.set()
                self.open += 1
                self.open_max = max(self.open, self.open_max)
                behave = self.script.pop(0) if self.script else self.behave
                try:
                    goes_on = await behave(got, writer)
                finally:
                    self.open -= 1
                if not goes_on:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Receiver]:
    """A receiver on a port of its own."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, host, 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.stop()
