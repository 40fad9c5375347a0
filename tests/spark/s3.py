"""An S3 server for tests (moto), and a proxy before it that is slow, fails, and cuts what it carries.

Each request has a connection of its own: moto closes it after the answer.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from moto.server import ThreadedMotoServer

BUCKET = "box"
FINE, SLOW, RESET, LOST, FAILED, CUT, SILENT = "fine", "slow", "reset", "lost", "failed", "cut", "silent"
"""`LOST`: the request is done and the answer is not. `CUT`: half of the answer, and the end."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_UNAVAILABLE = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy:
    """`fate(method, target, number)`: what becomes of a request."""

    def __init__(self, port: int, fate: Callable[[str, str, int], str]) -> None:
        self.fate = fate
        self.seen: Counter[str] = Counter()
        self._behind = port
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        starting = asyncio.start_server(self._carry, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._one(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"100-continue" in head:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(head, reader)
        method, target, _ = head.split(b" ", 2)
        fate = self.fate(method.decode(), target.decode(), self.seen.total())
        self.seen[fate] += 1
        if fate == SILENT:
            await reader.read()
        elif fate == RESET:
            writer.transport.abort()
        elif fate == FAILED:
            writer.write(_UNAVAILABLE)
        else:
            await asyncio.sleep(0.05 if fate == SLOW else 0)
            answer = await self._ask(re.sub(rb"Expect: .*?\r\n", b"", head, flags=re.IGNORECASE) + body)
            if fate == LOST:
                writer.transport.abort()
            elif fate == CUT:
                start = answer.index(b"\r\n\r\n") + 4
                writer.write(answer[: start + (len(answer) - start) // 2])
            else:
                writer.write(answer)
        with suppress(OSError):
            await writer.drain()

    async def _ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._behind)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    found = _LENGTH.search(head)
    if found or b"chunked" not in head.lower():
        return await reader.readexactly(int(found[1]) if found else 0)
    parts = []
    while (size := int((line := await reader.readline()).split(b";")[0], 16)) > 0:
        parts += [line, await reader.readexactly(size + 2)]
    while line != b"\r\n":
        parts.append(line)
        line = await reader.readline()
    return b"".join([*parts, line])


class S3:
    """The server, with an empty bucket `BUCKET`."""

    def __init__(self, port: int) -> None:
        self.port = port

    @contextmanager
    def behind(self, fate: Callable[[str, str, int], str]) -> Iterator[Proxy]:
        proxy = Proxy(self.port, fate)
        proxy.start()
        try:
            yield proxy
        finally:
            proxy.stop()


def environment(port: int) -> dict[str, str]:
    """The variables that lead to a server on this machine."""
    return {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def s3_server() -> Iterator[S3]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield S3(port)
    finally:
        server.stop()
        server._server.server_close()
