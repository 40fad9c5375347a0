"""Sessions over sockets: many takeovers at once, a full window, what is stored at all, their end over HTTP.

Their life step by step: tests/server/mqtt/test_opening.py, test_delivering.py.
"""

import asyncio
from collections.abc import Callable

import pytest

from server.codec.packets import Ack, Disconnect, Publish
from tests.clients.conftest import Room
from tests.support.http import Http
from tests.support.mqtt import Closed, Peer, payloads


async def test_a_clean_session_is_gone_with_its_connection(
    room: Room, name: str, level: int, web: Http
) -> None:
    peer = await room.connected(name, level)
    await peer.subscribe(name)
    assert (await web.call("GET", f"/v1/sessions/{name}")).status == 200
    peer.drop()
    await peer.gone()
    await _until(lambda: web.call("GET", f"/v1/sessions/{name}"), 404)


async def test_takeover_many_times_at_once(room: Room, name: str, level: int) -> None:
    """Thirty connections of one client id: each gets CONNACK or is closed, one stays, nothing is lost."""
    first = await room.connected(name, level, expiry=600)
    await first.subscribe(name)
    peers = [await room.dial(level) for _ in range(30)]
    answers = await asyncio.gather(*(_reconnect(peer, name) for peer in peers), return_exceptions=True)
    assert {type(answer) for answer in answers} <= {bool, Closed}
    writer = await room.connected(level=level)
    await writer.publish(name, "x")
    async with asyncio.timeout(60):
        while not _with_a_message(peers) or sum(not peer.is_closed for peer in peers) > 1:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert _with_a_message(peers) == [peer for peer in peers if not peer.is_closed]


async def test_qos_0_is_for_who_is_there(room: Room, name: str, level: int) -> None:
    """QoS 1 waits for a session that is away, QoS 0 does not, though RAM may still have it."""
    away = await room.connected(name, level, expiry=600)
    await away.subscribe(f"{name}/#")
    await away.close()
    writer = await room.connected(level=level)
    writer.put(f"{name}/0", "zero", 0)
    await writer.publish(f"{name}/1", "one")
    back = await room.connected(name, level, expiry=600)
    assert (await back.take(Publish)).payload == b"one"
    await back.silence()


async def test_only_what_somebody_can_replay_is_stored(room: Room, name: str, web: Http) -> None:
    there = await room.connected()
    await there.subscribe(f"{name}/#")
    writer = await room.connected()
    before = await web.rows()
    for _ in range(20):
        await writer.publish(f"{name}/x", "there")
        await writer.publish(f"{name}-nobody/x", "nobody")
        writer.put(f"{name}/x", "zero", 0)
    got = await there.take_many(40)
    there.ack(*[packet for packet in got if packet.qos])
    assert await web.rows() == before
    away = await room.connected(name, expiry=600)
    await away.subscribe(f"{name}/x")
    await away.close()
    for _ in range(20):
        await writer.publish(f"{name}/x", "kept")
        await writer.publish(f"{name}/y", "not kept")
        writer.put(f"{name}/x", "zero", 0)
    assert await web.rows() == before + 20
    back = await room.connected(name, expiry=600)
    assert payloads(await back.take_many(20)) == ["kept"] * 20
    await back.silence()


async def test_a_slow_clean_session_misses_nothing(room: Room, name: str, level: int) -> None:
    """Its window is full: what it cannot take now is kept for it, on disk."""
    peer = await room.dial(level)
    await peer.connect(name)
    await peer.subscribe(name)
    writer = await room.connected(level=level)
    for index in range(0, 3_000, 500):
        for number in range(index, index + 500):
            writer.put(name, str(number))
        for _ in range(500):
            await writer.take(Ack)
    got: list[Publish] = []
    while len(got) < 3_000:
        packet = await peer.take(Publish)
        peer.ack(packet)
        got.append(packet)
    assert payloads(got) == [str(index) for index in range(3_000)]


async def test_a_session_can_be_dropped_over_http(room: Room, name: str, web: Http) -> None:
    peer = await room.connected(name, expiry=600)
    await web.call("DELETE", f"/v1/sessions/{name}", status=204)
    await peer.gone()
    assert (await peer.take(Disconnect)).reason == 0x98
    back = await room.dial()
    assert (await back.connect(name, clean=False, session_expiry=600)).session_present is False


def _with_a_message(peers: list[Peer]) -> list[Peer]:
    return [peer for peer in peers if any(isinstance(packet, Publish) for packet in peer.inbox)]


async def _reconnect(peer: Peer, client_id: str) -> bool:
    """CONNECT to a session that lasts; whether it was there."""
    lasting = {"session_expiry": 600} if peer.level == 5 else {}
    connack = await peer.connect(client_id, clean=False, **lasting)
    assert connack.reason == 0, connack
    return connack.session_present


async def _until(ask: Callable[[], object], status: int) -> None:
    for _ in range(3_000):
        if (await ask()).status == status:  # type: ignore[misc]
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"never answered {status}")
