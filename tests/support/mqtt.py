"""An MQTT client that does exactly what it is told: no acks, no pings, no reconnects of its own.

It stands on the server's codec, told that it is a client's. What comes is kept in order; `take` gives the
first packet of a kind and leaves the others. `on_publish` is called at once for each delivery, with the wall
time of its arrival, before anybody waits for it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from server.codec import wire
from server.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
    Unsubscribe,
)
from server.codec.publish import Decoder
from tests.support.encode import encode

TIMEOUT_S = 60.0
PACKET_MAX = 2 << 20
Kind = TypeVar("Kind", bound=Packet)
OnPublish = Callable[["Peer", Publish, int], None]
"""Called with the connection, the packet and the wall time of its arrival, ms."""


class Closed(Exception):
    """The server has closed the connection and what is waited for has not come."""


class Peer(asyncio.Protocol):
    """One connection. Made by `dial`."""

    def __init__(self, level: int, on_publish: OnPublish | None = None) -> None:
        self.level = level
        self.inbox: list[Packet] = []
        self.on_publish = on_publish
        self.is_closed = False
        self.transport: asyncio.Transport
        self._decoder = Decoder(PACKET_MAX, level, "client")
        self._news = asyncio.Event()
        self._last_id = 0

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        now_ms = wall_ms()
        for packet in self._decoder.feed(data):
            if isinstance(packet, Publish) and self.on_publish is not None:
                self.on_publish(self, packet, now_ms)
            else:
                self.inbox.append(packet)
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._news.set()

    # -- packets

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        self.transport.write(data)

    def send(self, packet: Packet) -> None:
        self.transport.write(encode(packet, self.level))

    async def take(self, kind: type[Kind], timeout_s: float = TIMEOUT_S) -> Kind:
        """The first packet of a kind. Raises TimeoutError, Closed."""
        deadline = time.monotonic() + timeout_s
        while True:
            for index, packet in enumerate(self.inbox):
                if isinstance(packet, kind):
                    del self.inbox[index]
                    return packet
            if self.is_closed:
                raise Closed(f"waiting for {kind.__name__}; there is {self.inbox}")
            await self._wait(deadline, f"no {kind.__name__}; there is {self.inbox}")

    async def take_many(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Publish]:
        """The next deliveries, in order."""
        deadline = time.monotonic() + timeout_s
        return [await self.take(Publish, deadline - time.monotonic()) for _ in range(count)]

    async def gone(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the server has closed the connection."""
        deadline = time.monotonic() + timeout_s
        while not self.is_closed:
            await self._wait(deadline, "the connection is still open")

    async def silence(self, seconds: float = 0.1) -> None:
        """No delivery comes for so long."""
        with suppress(TimeoutError):
            packet = await self.take(Publish, seconds)
            raise AssertionError(f"nothing should have come, but {packet}")

    async def _wait(self, deadline: float, why: str) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._news.wait()
        except TimeoutError:
            raise TimeoutError(why) from None

    # -- requests

    async def connect(
        self,
        client_id: str = "",
        *,
        clean: bool = True,
        keep_alive: int = 0,
        **properties: Any,
    ) -> Connack:
        """CONNECT; the CONNACK whatever it says. Properties are those of server/codec/properties.py."""
        section = Properties(**properties) if properties else None
        self.send(Connect(self.level, client_id, clean, keep_alive, properties=section))
        return await self.take(Connack)

    async def subscribe(self, *filters: str, qos: int = 1, **properties: Any) -> tuple[int, ...]:
        """SUBSCRIBE; the reason codes."""
        section = Properties(**properties) if properties else None
        wanted = tuple((text, SubscribeOptions(qos)) for text in filters)
        self.send(Subscribe(self._next_id(), wanted, section))
        return (await self.take(Suback)).reasons

    async def unsubscribe(self, *filters: str) -> tuple[int, ...]:
        """UNSUBSCRIBE; the reason codes, none below level 5."""
        self.send(Unsubscribe(self._next_id(), filters))
        return (await self.take(Unsuback)).reasons

    async def publish(
        self, topic: str, payload: bytes | str = b"hi", qos: int = 1, **properties: Any
    ) -> Ack | None:
        """PUBLISH; the PUBACK at QoS 1."""
        self.put(topic, payload, qos, **properties)
        return await self.take(Ack) if qos else None

    def put(self, topic: str, payload: bytes | str = b"hi", qos: int = 1, **properties: Any) -> int:
        """PUBLISH and do not wait; the packet id."""
        section = Properties(**properties) if properties else None
        body = payload.encode() if isinstance(payload, str) else payload
        packet_id = self._next_id() if qos else 0
        self.send(Publish(topic.encode(), body, qos, packet_id=packet_id, properties=section))
        return packet_id

    def ack(self, *packets: Publish) -> None:
        """PUBACK each."""
        for packet in packets:
            self.send(Ack(wire.PUBACK, packet.packet_id))

    async def close(self) -> None:
        """DISCONNECT, as a client should."""
        if not self.is_closed:
            self.send(Disconnect())
            self.transport.close()
            await self.gone()

    async def hang_up(self) -> None:
        """Close the socket without a word; what was sent before still arrives."""
        self.transport.close()
        await self.gone()

    def drop(self) -> None:
        """Reset the connection."""
        self.transport.abort()

    def _next_id(self) -> int:
        self._last_id = self._last_id % 65_535 + 1
        return self._last_id


async def dial(
    address: tuple[str, int], level: int = 5, on_publish: OnPublish | None = None, **tls: Any
) -> Peer:
    """Open a connection; nothing has been sent yet. `tls`: as of `loop.create_connection`."""
    loop = asyncio.get_running_loop()
    _, peer = await loop.create_connection(lambda: Peer(level, on_publish), *address, **tls)
    return peer


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def payloads(packets: Sequence[Publish]) -> list[str]:
    return [packet.payload.decode() for packet in packets]


def user(packet: Publish | Ack, name: str) -> str | None:
    """A user property."""
    return packet.properties.user(name) if packet.properties is not None else None
