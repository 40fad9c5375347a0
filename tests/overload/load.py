"""Loads: clients that run for some seconds in a process of their own (`frame.aside`).

Caller     HTTP as bytes: any number of requests sent ahead, answers told in their order
flood      many callers at once, each as fast as it is answered; what became of each request
pour       publishes over MQTT, as many as the server lets be in flight
"""

import asyncio
import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from server.codec import wire
from server.codec.packets import Ack
from tests.bench.http import answer_end, get, post
from tests.bench.workload import NDJSON
from tests.support.mqtt import dial
from tests.support.soak import SOAK

Address = tuple[str, int]
WAIT_S = 600.0 if SOAK else 60.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d)")
_RETRY = re.compile(rb"\r\n[Rr]etry-[Aa]fter: (\d+)")


def schedule(topic: str, payload: str) -> bytes:
    body = json.dumps({"topic": topic, "payload": payload, "deliver_in": "1h"}).encode()
    return post("/v1/messages", body)


def batch(topic: str, payloads: list[str]) -> bytes:
    items = [json.dumps({"topic": topic, "payload": one, "deliver_in": "1h"}) for one in payloads]
    return post("/v1/messages:batch", "\n".join(items).encode(), NDJSON)


class Caller(asyncio.Protocol):
    """One HTTP connection. `told` hears of each answer, in order: status, whether it says Retry-After."""

    def __init__(self, told: Callable[[int, bool], None]) -> None:
        self._told = told
        self._data = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._end()) >= 0:
            head = bytes(self._data[: self._data.find(b"\r\n\r\n")])
            del self._data[:end]
            found = _STATUS.match(head)
            assert found is not None, head
            self._told(int(found[1]), _RETRY.search(head) is not None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _end(self) -> int:
        """Where the first answer ends, -1 if it has not come yet."""
        stop = self._data.find(b"\r\n\r\n")
        if stop < 0 or b"chunked" not in self._data[:stop]:
            end = answer_end(self._data)
            return end if 0 < end <= len(self._data) else -1
        end = self._data.find(b"\r\n0\r\n\r\n", stop)
        if end < 0:
            del self._data[stop + 4 : -6]  # nobody wants it
        return -1 if end < 0 else end + 7


async def call(address: Address, told: Callable[[int, bool], None], source: str = "127.0.0.1") -> Caller:
    loop = asyncio.get_running_loop()
    _, caller = await loop.create_connection(lambda: Caller(told), *address, local_addr=(source, 0))
    return caller


@dataclass
class Flooded:
    """What became of the requests of a load, or publishes."""

    asked: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    without_retry: int = 0
    """Refusals (429) that did not say when to come again."""
    accepted: list[str] = field(default_factory=list)
    """Payloads that were acked as stored."""
    lost: int = 0
    """Connections that ended."""

    def add(self, other: "Flooded") -> None:
        self.asked += other.asked
        self.answers += other.answers
        self.without_retry += other.without_retry
        self.accepted += other.accepted
        self.lost += other.lost

    def __str__(self) -> str:
        said = ", ".join(f"{count:,} x {status}" for status, count in sorted(self.answers.items()))
        return f"{self.asked:,} asked: {said or 'none'}; {self.lost} connections ended"


Asked = tuple[bytes, list[str]]
"""A request, and the payloads that it stores."""


async def _flooding(
    address: Address, asks: Iterator[Asked], ahead: int, seconds: float, source: str, said: Flooded
) -> None:
    """One caller with `ahead` requests on their way, for so long; then until the last answer."""
    until = time.monotonic() + seconds
    waiting: deque[list[str]] = deque()
    news = asyncio.Event()

    def told(status: int, has_retry: bool) -> None:
        said.answers[status] += 1
        payloads = waiting.popleft()
        if status in (200, 201):
            said.accepted += payloads
        said.without_retry += status == 429 and not has_retry
        news.set()

    caller = await call(address, told, source)
    while time.monotonic() < until and not caller.ended.done():
        news.clear()
        while len(waiting) < ahead:
            data, payloads = next(asks)
            waiting.append(payloads)
            said.asked += 1
            caller.transport.write(data)
        await _first(news, caller)
    async with asyncio.timeout(WAIT_S):
        while waiting and not caller.ended.done():
            news.clear()
            await _first(news, caller)
    said.lost += caller.ended.done()
    caller.transport.close()


async def _first(news: asyncio.Event, caller: Caller) -> None:
    if not news.is_set():
        heard = asyncio.ensure_future(news.wait())
        await asyncio.wait((heard, caller.ended), return_when=asyncio.FIRST_COMPLETED)
        heard.cancel()


def _asks(kind: str, name: str) -> Iterator[Asked]:
    """Requests without end. `kind`: "single", "batch", or a target to GET, or POST with its body."""
    count = 0
    method, _, rest = kind.partition(" ")
    target, _, body = rest.partition(" ")
    fixed = (post(target, body.encode()) if method == "POST" else get(target)) if rest else b""
    while True:
        count += 1
        if kind == "single":
            payload = f"{name}-{count}"
            yield schedule("load/http", payload), [payload]
        elif kind == "batch":
            payloads = [f"{name}-{count}-{index}" for index in range(200)]
            yield batch("load/batch", payloads), payloads
        else:
            yield fixed, []


def flood(
    address: Address,
    kinds: list[str],
    connections: int,
    ahead: int,
    seconds: float,
    source: str = "127.0.0.1",
) -> Flooded:
    """So many connections for each kind, all as fast as they are answered. Blocks."""

    async def run() -> Flooded:
        said = Flooded()
        await asyncio.gather(
            *(
                _flooding(address, _asks(kind, f"{number}.{index}"), ahead, seconds, source, said)
                for number, kind in enumerate(kinds)
                for index in range(connections)
            )
        )
        return said

    return asyncio.run(run())


# -- MQTT


@dataclass(frozen=True)
class Pour:
    """How a client publishes."""

    topic: str
    qos: int
    level: int = 5
    size: int = 100


async def _pouring(address: Address, pour: Pour, name: str, seconds: float, said: Flooded) -> None:
    """As many as may be in flight; at QoS 0 as many as the socket takes."""
    peer = await dial(address, pour.level)
    connack = await peer.connect(name)
    window = 100
    if connack.properties is not None and connack.properties.receive_maximum:
        window = connack.properties.receive_maximum
    waiting: dict[int, str] = {}
    until = time.monotonic() + seconds
    count = 0

    def settle() -> None:
        for packet in peer.inbox:
            if isinstance(packet, Ack) and packet.kind == wire.PUBACK:
                payload = waiting.pop(packet.packet_id)
                said.answers[packet.reason] += 1
                if packet.reason < 0x80:
                    said.accepted.append(payload)
        peer.inbox.clear()

    while time.monotonic() < until and not peer.is_closed:
        while len(waiting) < window and not peer.is_closed:
            count += 1
            said.asked += 1
            payload = f"{name}-{count}"
            filled = payload.ljust(pour.size) if not pour.qos else payload
            packet_id = peer.put(pour.topic, filled, pour.qos)
            if pour.qos:
                waiting[packet_id] = payload
            elif not count % 100:
                break
        if not pour.qos:
            while peer.transport.get_write_buffer_size() > 1 << 16 and not peer.is_closed:
                await asyncio.sleep(0.005)
                if time.monotonic() > until:
                    break
            await asyncio.sleep(0)
            continue
        peer._news.clear()
        with suppress(TimeoutError):
            await peer._wait(until, "")
        settle()
    deadline = time.monotonic() + WAIT_S
    while waiting and not peer.is_closed and time.monotonic() < deadline:
        with suppress(TimeoutError):
            await peer._wait(deadline, "")
        settle()
    said.lost += peer.is_closed
    peer.drop()


def pour(address: Address, pours: list[Pour], seconds: float) -> list[Flooded]:
    """One client for each, at once. Blocks."""

    async def run() -> list[Flooded]:
        said = [Flooded() for _ in pours]
        await asyncio.gather(
            *(
                _pouring(address, one, f"pour-{number}", seconds, said[number])
                for number, one in enumerate(pours)
            )
        )
        return said

    return asyncio.run(run())
