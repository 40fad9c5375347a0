"""Bytes that are no MQTT, or come at the wrong time: they end their own connection, at 5 with a reason."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from server.codec.encode import encode
from server.codec.packets import Connect, Disconnect, Publish, Subscribe, SubscribeOptions
from tests.clients.conftest import Room
from tests.support.mqtt import Closed, Peer, dial
from tests.support.server import serving

CONNECT_4 = encode(Connect(4, "c", keep_alive=60), 4)
CONNECT_5 = encode(Connect(5, "c", keep_alive=60), 5)


@pytest.fixture(autouse=True)
async def bystander(room: Room, name: str) -> AsyncIterator[Peer]:
    peer = await room.connected()
    await peer.subscribe(f"{name}/bystander")
    yield peer
    await peer.publish(f"{name}/bystander", "still here")
    assert (await peer.take(Publish)).payload == b"still here"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x00", 0x81),
        (b"\x32\x02\x00\x00", 0x81),
        (b"\x36\x05\x00\x01a\x00\x01", 0x81),
        (b"\x38\x03\x00\x01a", 0x81),
        (b"\x32\x05\x00\x01a\x00\x00", 0x81),
        (b"\x30\x05\x00\x03a/+", 0x81),
        (b"\x30\x04\x00\x02\xff\xfe", 0x81),
        (b"\x30\x04\x00\x02a\x00", 0x81),
        (b"\x80\x06\x00\x01\x00\x01a\x00", 0x81),
        (b"\x82\x02\x00\x01", 0x81),
        (b"\x82\x06\x00\x01\x00\x01a\x03", 0x81),
        (b"\xa2\x02\x00\x01", 0x81),
        (b"\xc1\x00", 0x81),
        (b"\xc0\x01\x00", 0x81),
        (b"\x32\xff\xff\xff\xff\x01", 0x81),
        (b"\x20\x02\x00\x00", 0x82),
        (b"\x90\x03\x00\x01\x00", 0x82),
        (b"\xd0\x00", 0x82),
    ],
    ids=lambda value: value.hex() if isinstance(value, bytes) else "",
)
async def test_bad_bytes(room: Room, level: int, data: bytes, reason: int) -> None:
    peer = await room.connected(level=level)
    peer.write(data)
    await peer.gone()
    if level == 5:
        assert (await peer.take(Disconnect)).reason in (0x81, 0x82)
    assert not peer.inbox


async def test_a_second_connect(room: Room, level: int) -> None:
    peer = await room.connected(level=level)
    peer.write(CONNECT_5 if level == 5 else CONNECT_4)
    await peer.gone()
    if level == 5:
        assert (await peer.take(Disconnect)).reason == 0x82


@pytest.mark.parametrize(
    "data",
    [
        b"\x30\x04\x00\x01ax",
        b"\xc0\x00",
        b"\xe0\x00",
        encode(Subscribe(1, (("a", SubscribeOptions(1)),)), 4),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x10\x0c\x00\x04MQTX\x04\x02\x00\x00\x00\x00",
        b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00",
        b"\x10\x0c\x00\x04MQTT\x04\x1e\x00\x00\x00\x00",
        b"\x10\x0c\x00\x04MQTT\x04\x42\x00\x00\x00\x00",
        b"\x10\x0b\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
        b"\x11" + CONNECT_4[1:],
    ],
    ids=lambda value: value.hex()[:24],
)
async def test_no_connect(room: Room, data: bytes) -> None:
    peer = await room.dial(4)
    peer.write(data)
    await peer.gone()
    assert not peer.inbox or getattr(peer.inbox[0], "reason", 0) != 0


async def test_a_truncated_connect_is_waited_for(room: Room) -> None:
    peer = await room.dial(4)
    for index in range(len(CONNECT_4) - 1):
        peer.write(CONNECT_4[index : index + 1])
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert not peer.inbox
    assert not peer.is_closed
    peer.drop()


async def test_connect_timeout(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Who says nothing, or half a CONNECT, does not keep a socket."""
    path = tmp_path_factory.mktemp("timeout") / "data"
    async with serving(path, settings={"limits.connect_timeout_ms": 2_000}) as server:
        peers = [await dial(server.mqtt) for _ in range(2)]
        peers[1].write(CONNECT_5[:7])
        await asyncio.sleep(0.5)
        assert not any(peer.is_closed for peer in peers)
        for peer in peers:
            await peer.gone()
        assert await server.stopped() == 0


async def test_good_packets_before_a_bad_one_count(room: Room, name: str, level: int) -> None:
    """What the server had taken in before the fault is delivered."""
    reader = await room.connected(level=level)
    await reader.subscribe(name)
    peer = await room.connected(level=level)
    peer.write(encode(Publish(name.encode(), b"good", 0), level) + b"\x00\x00")
    await peer.gone()
    assert (await reader.take(Publish)).payload == b"good"


async def test_a_persistent_session_survives_the_fault(room: Room, name: str, level: int) -> None:
    peer = await room.connected(name, level, expiry=60)
    await peer.subscribe(name)
    peer.write(b"\x00\x00")
    await peer.gone()
    writer = await room.connected(level=level)
    await writer.publish(name, "kept")
    back = await room.connected(name, level, expiry=60)
    assert (await back.take(Publish)).payload == b"kept"


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
        CONNECT_5 if level == 5 else CONNECT_4,
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
