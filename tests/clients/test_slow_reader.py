"""Subscribers that stop reading: the others go on, and the server's memory stays where it was."""

import asyncio
import time
from contextlib import suppress

import pytest

from server.codec.packets import Ack, Publish
from tests.support.http import Http, http
from tests.support.mqtt import Peer, dial, wall_ms
from tests.support.server import ServerProcess, serving

pytestmark = pytest.mark.proof

PAYLOAD = 10_000
COUNT = 6_000
SLOW = 20
GROWTH_MAX = 200 << 20
"""Twenty that do not read, 60 MB for each of them: kept per reader that would be 1.2 GB."""


async def test_slow_readers(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("slow") / "data"
    async with serving(path) as server, http(server.url) as calls:
        slow = [await _slow(server, index) for index in range(SLOW)]
        got: list[int] = []
        late_ms: list[int] = []

        def arrived(peer: Peer, packet: Publish, now_ms: int) -> None:
            number, sent_ms = packet.payload[:40].split(b" ")[:2]
            got.append(int(number))
            late_ms.append(now_ms - int(sent_ms))
            if packet.qos:
                peer.ack(packet)

        quick = await dial(server.mqtt, 5, arrived)
        await quick.connect("quick")
        await quick.subscribe("load/#", qos=1)
        before = server.rss_bytes()
        peak = await _publish(server, len(got))
        await _until(lambda: len(got) == COUNT, 60)
        assert got == list(range(COUNT))
        assert peak - before < GROWTH_MAX, f"{(peak - before) >> 20} MiB more than before"
        late_ms.sort()
        print(f"{(peak - before) >> 20} MiB more; p50 {late_ms[COUNT // 2]} ms, max {late_ms[-1]} ms")
        await _others_are_served(calls, server)
        await _catches_up(slow[0])
        for peer in [*slow, quick]:
            peer.drop()
        assert await server.stopped() == 0
        assert "Traceback" not in server.output, server.output


async def _slow(server: ServerProcess, index: int) -> Peer:
    """Half of them at QoS 0, half at QoS 1, a third with a persistent session; none reads."""
    peer = await dial(server.mqtt, 4 + index % 2)
    lasting = {"session_expiry": 600} if peer.level == 5 and index % 3 == 0 else {}
    await peer.connect(f"slow{index}", clean=not (peer.level == 4 and index % 3 == 0), **lasting)
    await peer.subscribe("load/#", qos=index % 4 // 2)
    peer.transport.pause_reading()
    return peer


async def _publish(server: ServerProcess, start: int) -> int:
    """All messages, with 200 unanswered at most; the server's largest RSS on the way."""
    writer = await dial(server.mqtt)
    await writer.connect("")
    peak = 0
    for index in range(start, COUNT):
        head = b"%d %d " % (index, wall_ms())
        writer.put(f"load/{index % 10}", head + b" x" + b"." * (PAYLOAD - len(head)))
        if index % 200 == 199:
            for _ in range(200):
                await writer.take(Ack)
            peak = max(peak, server.rss_bytes())
    await writer.close()
    return peak


async def _others_are_served(calls: Http, server: ServerProcess) -> None:
    """A fresh message goes through while the slow ones do not read."""
    peer = await dial(server.mqtt)
    await peer.connect("")
    await peer.subscribe("other")
    await calls.schedule("other", "x")
    await peer.take(Publish)
    peer.drop()


async def _catches_up(peer: Peer) -> None:
    """The first slow one (level 4, QoS 0, persistent) reads again: what comes is in order."""
    peer.transport.resume_reading()
    numbers = []
    with suppress(TimeoutError):
        while True:
            numbers.append(int((await peer.take(Publish, 1)).payload.split(b" ")[0]))
    assert numbers == sorted(numbers)


async def _until(ready: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.05)


async def test_a_slow_qos_1_reader_gets_all_of_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It stops for a while, more than any buffer holds goes by, and then every message comes, in order."""
    path = tmp_path_factory.mktemp("slow") / "data"
    settings = {"tail.max_bytes": "1MiB", "limits.out_bytes": "256KiB"}
    async with serving(path, settings=settings) as server:
        reader = await dial(server.mqtt, 5)
        await reader.connect("reader", session_expiry=600)
        await reader.subscribe("load/#")
        reader.transport.pause_reading()
        writer = await dial(server.mqtt)
        await writer.connect("")
        for index in range(0, 4_000, 200):
            for number in range(index, index + 200):
                writer.put(f"load/{number % 3}", b"%d " % number + b"." * 5_000)
            for _ in range(200):
                await writer.take(Ack)
        reader.transport.resume_reading()
        got = []
        for _ in range(4_000):
            packet = await reader.take(Publish)
            reader.ack(packet)
            got.append(int(packet.payload.split(b" ")[0]))
        assert got == list(range(4_000))
        for peer in (reader, writer):
            peer.drop()
        assert await server.stopped() == 0
