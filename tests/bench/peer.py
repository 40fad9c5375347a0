"""The other end of a comparison: a process that does as little as can be done with the same bytes.

    echo     answers each HTTP request by a fixed 201
    blast N  on a connection's CONNECT and SUBSCRIBE sends N ready-made QoS 1 publishes, as the window allows
    post N P  on a connection posts N bodies to the port P, POSTS at a time

What it costs is what sockets, loop and the load's own side cost; the server can only be slower.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Final, cast

import aiohttp
import uvloop

from server.codec import wire
from server.codec.packets import Connack, Suback
from server.codec.publish import publish_parts
from tests.support.encode import encode

from .http import answer_end
from .mqtt import LEVEL
from .workload import payload

WINDOW: Final = 1_024
POSTS: Final = 20
_BODY: Final = b'{"id":"01a1fd5d9eff00000000000000100001","deliver_at":"2026-11-21T09:08:53.631Z"}'
ANSWER: Final = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)


class Answering(asyncio.Protocol):
    """Answers each request at once, one at a time, and tells of it."""

    def __init__(self, answer: bytes, told: Callable[[], None] = lambda: None) -> None:
        self._answer, self._told = answer, told
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        end = answer_end(self._held)
        if end and end <= len(self._held):
            self._held = self._held[end:]
            self._transport.write(self._answer)
            self._told()


class Blast(asyncio.Protocol):
    """One subscriber: its acks are counted by their size, 4 bytes each."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._sent = 0
        self._acked_bytes = 0
        self._is_open = self._is_subscribed = False
        self._parts = publish_parts(LEVEL, b"bench/drain/0", payload(200).encode(), 1, False, False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            self._is_open = True
            self._transport.write(encode(Connack(), LEVEL))
        elif not self._is_subscribed:
            self._is_subscribed = True
            self._transport.write(encode(Suback(1, (1,)), LEVEL))
            self._pump()
        elif data[0] >> 4 != wire.DISCONNECT:
            self._acked_bytes += len(data)
            self._pump()

    def _pump(self) -> None:
        head, tail = self._parts
        count = min(self._left, WINDOW - (self._sent - self._acked_bytes // 4))
        ids = [(self._sent + i) % 60_000 + 1 for i in range(count)]
        self._sent += count
        self._left -= count
        self._transport.writelines([head + number.to_bytes(2) + tail for number in ids])


class Poster(asyncio.Protocol):
    """Posts so many bodies of 200 B to a port, POSTS at a time, by the client that webhooks use."""

    def __init__(self, count: int, port: int) -> None:
        self._left = count
        self._url = f"http://127.0.0.1:{port}/"
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        del transport
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*[self._post(session) for _ in range(POSTS)])

    async def _post(self, session: aiohttp.ClientSession) -> None:
        body = payload(200).encode()
        while self._left > 0:
            self._left -= 1
            async with session.post(self._url, data=body) as answer:
                await answer.read()


async def _serve(mode: str, count: int, port: int) -> None:
    loop = asyncio.get_running_loop()
    kinds = {
        "echo": lambda: Answering(ANSWER),
        "blast": lambda: Blast(count),
        "post": lambda: Poster(count, port),
    }
    server = await loop.create_server(kinds[mode], "127.0.0.1", 0)
    print(f"listening 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[2:]]
    uvloop.run(_serve(sys.argv[1], *(*numbers, 0, 0)[:2]))
