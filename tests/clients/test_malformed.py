"""Bytes that are no MQTT, over sockets: they end their own connection, and nobody else notices.

Which fault has which reason: tests/server/codec/test_parse.py, tests/server/mqtt/test_opening.py.
"""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from server.codec.packets import Connect, Publish, Subscribe, SubscribeOptions
from tests.clients.conftest import Room
from tests.support.encode import encode
from tests.support.mqtt import Closed, Peer, dial


@pytest.fixture(autouse=True)
async def bystander(room: Room, name: str) -> AsyncIterator[Peer]:
    peer = await room.connected()
    await peer.subscribe(f"{name}/bystander")
    yield peer
    await peer.publish(f"{name}/bystander", "still here")
    assert (await peer.take(Publish)).payload == b"still here"


async def test_noise(room: Room, name: str, level: int) -> None:
    """Packets with bytes changed, cut, repeated: the connection ends or goes on, the server goes on."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    good = [
        encode(Publish(name.encode(), b"x", 1, packet_id=5), level),
        encode(Subscribe(9, ((name, SubscribeOptions(1)),)), level),
        b"\xc0\x00",
        b"\x40\x02\x00\x01",
        encode(Connect(level, "c", keep_alive=60), level),
    ]
    for _ in range(150):
        peer = await dial(room.server.mqtt, level)
        if chance.random() < 0.7:
            peer.write(encode(Connect(level, "", keep_alive=60), level))
        for _ in range(chance.randrange(1, 4)):
            data = bytearray(chance.choice(good))
            for _ in range(chance.randrange(3)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            peer.write(bytes(data[: chance.randrange(1, len(data) + 1)]))
        await asyncio.sleep(0.002)
        peer.transport.close()
        try:
            await peer.gone(2)
        except (Closed, TimeoutError):
            peer.drop()
