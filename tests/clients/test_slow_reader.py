"""A subscriber that stops reading for a while. Many that never do: tests/overload/test_deaf.py."""

import pytest

from server.codec.packets import Ack, Publish
from tests.support.mqtt import dial
from tests.support.server import serving

pytestmark = pytest.mark.proof


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
