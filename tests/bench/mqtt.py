"""MQTT clients that cost little: they ack, count, and hand on when and what as far as it is asked for.

Connecting and subscribing go through the server's codec. Deliveries do not: a walk from packet to packet by
their lengths is enough to count them and to collect packet ids, at about a third of the price of decoding.
The acks of one chunk go out together.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

from server.codec import wire
from server.codec.packets import (
    Connack,
    Connect,
    Packet,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    SubscribeOptions,
)
from server.codec.publish import Decoder, ack, publish_parts
from tests.support.encode import encode

from .process import Address

PACKET_MAX = 2 << 20
TIMEOUT_S = 120.0
LEVEL = 5
_FIRST = {kind: ack(LEVEL, kind, 1)[0] for kind in (wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP)}
_NEXT = {wire.PUBREC: wire.PUBREL, wire.PUBREL: wire.PUBCOMP}
Look = Callable[[bytes, int, int], None]
"""Called for each delivery with a buffer, and where in it the packet starts and ends."""


def acks(kind: int, packet_ids: Sequence[int]) -> bytes:
    """One ack of `kind` with reason 0 for each of `packet_ids`, in one go."""
    base = _FIRST[kind] << 24 | 0x2_0000
    return struct.pack(f">{len(packet_ids)}I", *[base | packet_id for packet_id in packet_ids])


class Client(asyncio.Protocol):
    """One connection. `received` and `acked` count; `last` is the monotonic time of the last delivery."""

    def __init__(self, look: Look | None = None) -> None:
        self.received = 0
        self.acked = 0
        self.last = 0.0
        self.progress: Callable[[], None] = lambda: None
        """Called when either count has grown."""
        self.look = look
        self._held = b""
        self._decoder = Decoder(PACKET_MAX, LEVEL, "client")
        self._answers: asyncio.Queue[Packet] = asyncio.Queue()
        self._goal = 0
        self._reached: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reached is not None and not self._reached.done():
            self._reached.set_exception(exc or ConnectionError("the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        answers: dict[int, list[int]] = {}
        before = self.received
        at = self._walk(data, answers)
        self._held = data[at:]
        if answers:
            self.transport.write(b"".join([acks(kind, ids) for kind, ids in answers.items()]))
        if self.received > before:
            self.last = time.monotonic()
        if self._reached is not None and self.received >= self._goal and not self._reached.done():
            self._reached.set_result(None)
        self.progress()

    def _walk(self, data: bytes, answers: dict[int, list[int]]) -> int:
        """Count the packets of `data` and gather their acks; return where an incomplete one starts."""
        ids: list[int] = []
        at, end, count, look = 0, len(data), 0, self.look
        while end - at >= 2:
            first, length, body = data[at], data[at + 1], at + 2
            if length > 127 and end - at < 3:
                break
            if length > 127:
                length += (data[at + 2] << 7) - 128
                body += 1
                assert data[at + 2] < 128, "deliveries here have less than 16 KiB"
            stop = body + length
            if stop > end:
                break
            if first >> 4 == wire.PUBLISH:
                count += 1
                if first & 6:
                    mark = body + 2 + (data[body] << 8 | data[body + 1])
                    if first & 4:
                        answers.setdefault(wire.PUBREC, []).append(data[mark] << 8 | data[mark + 1])
                    else:
                        ids.append(data[mark] << 8 | data[mark + 1])
                if look is not None:
                    look(data, at, stop)
            elif first >> 4 in (wire.PUBACK, wire.PUBCOMP):
                self.acked += 1
            elif first >> 4 in _NEXT:
                answers.setdefault(_NEXT[first >> 4], []).append(data[body] << 8 | data[body + 1])
            else:
                for packet in self._decoder.feed(data[at:stop]):
                    self._answers.put_nowait(packet)
            at = stop
        self.received += count
        if ids:
            answers[wire.PUBACK] = ids
        return at

    # -- what a benchmark asks for

    async def answer(self, kind: type[Packet]) -> Packet:
        """The next answer. Raises ConnectionError if it is another one."""
        async with asyncio.timeout(TIMEOUT_S):
            packet = await self._answers.get()
        if not isinstance(packet, kind):
            raise ConnectionError(f"{kind.__name__} was expected, not {packet}")
        return packet

    async def subscribe(self, filter_: str, qos: int, *, replay_from: str = "") -> None:
        properties = Properties(user_properties=(("replay-from", replay_from),)) if replay_from else None
        packet = Subscribe(1, ((filter_, SubscribeOptions(qos)),), properties)
        self.transport.write(encode(packet, LEVEL))
        suback = cast("Suback", await self.answer(Suback))
        if suback.reasons != (qos,):
            raise ConnectionError(f"{filter_} was answered by {suback.reasons}")

    async def until(self, count: int, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until that many deliveries have come in all. Raises TimeoutError with how many came."""
        if self.received >= count:
            return
        self._goal, self._reached = count, asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._reached
        except TimeoutError:
            raise TimeoutError(f"{self.received} of {count} deliveries came") from None

    async def ping(self) -> None:
        """Until all that was sent before has been read."""
        self.transport.write(b"\xc0\x00")
        await self.answer(Pingresp)

    def close(self) -> None:
        self.transport.write(b"\xe0\x00")
        self.transport.close()


async def connect(
    at: Address, client_id: str, *, expiry_s: int = 0, clean: bool = True, look: Look | None = None
) -> Client:
    """A client that the server has accepted."""
    _, client = await asyncio.get_running_loop().create_connection(lambda: Client(look), *at)
    properties = Properties(session_expiry=expiry_s, receive_maximum=65_535)
    client.transport.write(encode(Connect(LEVEL, client_id, clean, 0, properties=properties), LEVEL))
    connack = cast("Connack", await client.answer(Connack))
    if connack.reason:
        raise ConnectionError(f"CONNACK 0x{connack.reason:02x}")
    return client


@asynccontextmanager
async def subscribed(
    at: Address, name: str, count: int, filter_: Callable[[int], str], qos: int = 1
) -> AsyncIterator[list[Client]]:
    """So many clients, each with the filter of its number; closed at the end."""
    clients = [await connect(at, f"{name}-{number}") for number in range(count)]
    for number, client in enumerate(clients):
        await client.subscribe(filter_(number), qos)
    yield clients
    for client in clients:
        client.close()


async def all_of(clients: Sequence[Client], count: int) -> None:
    """Wait until that many deliveries have come to them together. Raises TimeoutError with how many came."""
    done = asyncio.get_running_loop().create_future()

    def look() -> None:
        if not done.done() and sum([client.received for client in clients]) >= count:
            done.set_result(None)

    for client in clients:
        client.progress = look
    look()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await done
    except TimeoutError:
        came = sum([client.received for client in clients])
        raise TimeoutError(f"{came} of {count} deliveries came") from None


class Publisher:
    """Publishes as fast as it may: `window` messages ahead of the acks and of the slowest subscriber."""

    def __init__(self, client: Client, subscribers: Sequence[Client], qos: int, window: int) -> None:
        self._client, self._subscribers, self._qos, self._window = client, subscribers, qos, window
        self._sent = 0
        self._left = 0
        for one in (client, *subscribers):
            one.progress = self._pump

    async def send(self, topic: bytes, payload: bytes, count: int) -> None:
        """Until the last one has been received by all. Raises TimeoutError."""
        self._head, self._tail = publish_parts(LEVEL, topic, payload, self._qos, False, False)
        self._left = count
        self._pump()
        goal = self._sent + self._left
        await asyncio.gather(*[one.until(goal) for one in self._subscribers])

    def close(self) -> None:
        self._client.close()

    def _pump(self) -> None:
        done = min(one.received for one in self._subscribers)
        if self._qos:
            done = min(done, self._client.acked)
        count = min(self._left, self._window - (self._sent - done))
        # Small writes cost both sides more than they win.
        if count <= 0 or (count < self._window // 8 and count < self._left):
            return
        head, tail, first = self._head, self._tail, self._sent
        self._sent += count
        self._left -= count
        if self._qos:
            ids = [(first + i) % 60_000 + 1 for i in range(count)]
            self._client.transport.write(b"".join([head + number.to_bytes(2) + tail for number in ids]))
        else:
            self._client.transport.write((head + tail) * count)


class Sender:
    """Publishes ready-made packets, `window` in flight; nobody subscribes."""

    def __init__(self, client: Client, window: int) -> None:
        self._client, self._window = client, window
        self._packets: Sequence[tuple[bytes, bytes]] = ()
        self._sent = 0
        self._done: asyncio.Future[None] | None = None
        client.progress = self._pump

    async def send(self, packets: Sequence[tuple[bytes, bytes]]) -> None:
        """Each: what comes before the packet id, and what after it. Until the last is acked."""
        self._packets, self._sent, self._client.acked = packets, 0, 0
        self._done = asyncio.get_running_loop().create_future()
        self._pump()
        async with asyncio.timeout(TIMEOUT_S):
            await self._done

    def close(self) -> None:
        self._client.close()

    def _pump(self) -> None:
        assert self._done is not None
        acked, first = self._client.acked, self._sent
        stop = min(len(self._packets), acked + self._window)
        if stop > first:
            self._sent = stop
            parts = self._packets[first:stop]
            self._client.transport.write(
                b"".join([a + ((first + i) % 60_000 + 1).to_bytes(2) + b for i, (a, b) in enumerate(parts)])
            )
        elif acked == len(self._packets) and not self._done.done():
            self._done.set_result(None)
