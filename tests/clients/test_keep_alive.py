"""Keep alive: a silent client is closed after 1.5 times of it, one that pings is not.

One that the server imposes: tests/server/mqtt/test_answers.py.
"""

import asyncio
import time

import pytest

from server.codec.packets import Disconnect, Pingreq, Pingresp, Publish
from tests.clients.conftest import Room

pytestmark = pytest.mark.proof


async def test_silence_ends_the_connection(room: Room, name: str, level: int) -> None:
    peer = await room.dial(level)
    lasting = {"session_expiry": 60} if level == 5 else {}
    await peer.connect(name, clean=False, keep_alive=1, **lasting)
    await peer.subscribe(name)
    started = time.monotonic()
    await peer.gone()
    assert time.monotonic() - started >= 1.3
    if level == 5:
        assert (await peer.take(Disconnect)).reason == 0x8D
    writer = await room.connected(level=level)
    await writer.publish(name, "meanwhile")
    back = await room.connected(name, level, expiry=60)
    assert (await back.take(Publish)).payload == b"meanwhile"


async def test_pings_and_other_packets_keep_it(room: Room, name: str, level: int) -> None:
    peer = await room.dial(level)
    await peer.connect("", keep_alive=2)
    for index in range(4):
        await asyncio.sleep(0.9)
        if index % 2:
            peer.send(Pingreq())
            await peer.take(Pingresp)
        else:
            await peer.publish(name, "alive")
    assert not peer.is_closed


async def test_what_the_server_sends_does_not_count(room: Room, name: str) -> None:
    """MQTT-3.1.2-22 looks at what comes from the client only."""
    peer = await room.dial()
    await peer.connect("", keep_alive=1)
    await peer.subscribe(name, qos=0)
    writer = await room.connected()
    started = time.monotonic()
    while not peer.is_closed and time.monotonic() - started < 60:
        writer.put(name, "x", 0)
        await asyncio.sleep(0.1)
    assert peer.is_closed
