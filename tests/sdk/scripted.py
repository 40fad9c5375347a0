"""An MQTT 5 peer that does what a test tells it, byte by byte: for what no good broker does on demand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x10, 0x20, 0x30, 0x40, 0x50, 0x62, 0x70
SUBSCRIBE, SUBACK, PINGREQ, PINGRESP, DISCONNECT = 0x82, 0x90, 0xC0, 0xD0, 0xE0


class Peer:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, *, answer_pings: bool = True) -> tuple[int, bytes]:
        """The next packet: first byte and body (of less than 128 bytes). IncompleteReadError at the end."""
        while True:
            first, length = await self._reader.readexactly(2)
            assert length < 128
            if first != PINGREQ or not answer_pings:
                return first, await self._reader.readexactly(length)
            self.send(PINGRESP, b"")

    def send(self, first: int, body: bytes) -> None:
        self._writer.write(bytes((first, len(body))) + body)

    def publish(self, mid: int, payload: bytes, *, qos: int = 1, dup: bool = False) -> None:
        first = PUBLISH | qos << 1 | (8 if dup else 0)
        self.send(first, b"\x00\x01t" + mid.to_bytes(2, "big") + b"\x00" + payload)

    async def welcome(self, *, session_present: bool = False, code: int = 0) -> bytes:
        """Read CONNECT, answer CONNACK; give the CONNECT's body."""
        first, body = await self.read()
        assert first == CONNECT
        self.send(CONNACK, bytes((session_present, code, 0)))
        return body

    async def subscribed(self, *, code: int = 1) -> bytes:
        """Read SUBSCRIBE, answer SUBACK; give the SUBSCRIBE's body."""
        first, body = await self.read()
        assert first == SUBSCRIBE
        self.send(SUBACK, body[:2] + bytes((0, code)))
        return body

    def cut(self) -> None:
        self._writer.close()


Act = Callable[[Peer], Awaitable[None]]


async def rest(peer: Peer) -> None:
    """Read until the other side goes."""
    while True:
        await peer.read()


async def soon(peer: Peer) -> None:
    """End the connection a little later."""
    await asyncio.sleep(0.1)


def hearing(heard: list[tuple[int, bytes]]) -> Act:
    """Keep what is said until the other side goes."""

    async def act(peer: Peer) -> None:
        while True:
            heard.append(await peer.read())

    return act


def saying(first: int, body: bytes) -> Act:
    async def act(peer: Peer) -> None:
        peer.send(first, body)
        await rest(peer)

    return act


def giving(*payloads: bytes, qos: int = 1, then: Act = rest) -> Act:
    """Take CONNECT and SUBSCRIBE, and give messages, whose packet ids count from 1."""

    async def act(peer: Peer) -> None:
        await peer.welcome()
        await peer.subscribed(code=qos)
        for mid, payload in enumerate(payloads, 1):
            peer.publish(mid, payload, qos=qos)
        await then(peer)

    return act


class Script:
    """Listens; the n-th connection is played by the n-th act, and the last act by all later ones."""

    def __init__(self, *acts: Act) -> None:
        self._acts = acts
        self.connections = 0
        self.failures: list[BaseException] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._play, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        if self.failures:
            raise self.failures[0]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        act = self._acts[min(self.connections, len(self._acts) - 1)]
        self.connections += 1
        try:
            await act(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except AssertionError as error:
            self.failures.append(error)
        finally:
            writer.close()
