"""What a client does not read counts with what waits at all connections, and is bounded with it."""

import asyncio

import pytest

from server.codec.packets import Ack
from tests.support.mqtt import dial
from tests.support.server import serving

EACH = 30
MIB = 1 << 20


async def _metric(url: tuple[str, int], name: str) -> float:
    reader, writer = await asyncio.open_connection(*url)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name + " ")))


@pytest.mark.process
async def test_those_that_read_nothing_take_half_of_the_pool_and_nobody_is_ended(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("deaf") / "data"
    async with serving(path, settings={"limits.pool_bytes": 16 * MIB}) as server:
        deaf = [await dial(server.mqtt) for _ in range(EACH)]
        for number, peer in enumerate(deaf):
            await peer.connect(f"deaf-{number}")
            await peer.subscribe("all", qos=0)
            peer.transport.pause_reading()
        before = server.rss_bytes()
        writer = await dial(server.mqtt)
        await writer.connect("writer")
        for _ in range(400):
            writer.put("all", b"x" * 50_000, 0)
            writer.put("none", b"", 1)
            await writer.take(Ack)
        grown = server.rss_bytes() - before
        assert await _metric(server.http, "fasti_connections") == EACH + 1
        assert await _metric(server.http, "fasti_messages_dropped_total") > 0
        assert grown < 60 * MIB
        for peer in (*deaf, writer):
            peer.drop()
