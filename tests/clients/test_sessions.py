"""Persistent sessions: away and back, takeover, expiry, the window, redelivery, what is stored at all."""

import asyncio
from collections.abc import Callable

import pytest

from server.codec.packets import Ack, Disconnect, Pingreq, Pingresp, Publish
from server.settings.times import format_ms
from tests.clients.conftest import Room
from tests.support.http import Http
from tests.support.mqtt import Closed, Peer, dial, payloads, user, wall_ms
from tests.support.server import serving


async def test_what_was_missed_comes_in_order_and_no_more(room: Room, name: str, level: int) -> None:
    away = await room.connected(name, level, expiry=600)
    await away.subscribe(f"{name}/#")
    writer = await room.connected(level=level)
    await writer.publish(f"{name}/0", "there")
    away.ack(await away.take(Publish))
    await away.close()
    for index in range(300):
        await writer.publish(f"{name}/{index % 7}", str(index))
    await writer.publish(f"$delayed/1/{name}/late", "delayed")
    await asyncio.sleep(1.3)
    back = await room.dial(level)
    connack = await _reconnect(back, name)
    assert connack is True
    missed = await back.take_many(301)
    assert payloads(missed) == [*map(str, range(300)), "delayed"]
    assert not any(packet.dup for packet in missed)
    await writer.publish(f"{name}/0", "live")
    assert payloads([await back.take(Publish)]) == ["live"]
    await back.silence()


async def test_session_present(room: Room, name: str, level: int) -> None:
    first = await room.dial(level)
    assert await _reconnect(first, name) is False
    await first.close()
    again = await room.dial(level)
    assert await _reconnect(again, name) is True
    await again.close()
    clean = await room.dial(level)
    assert (await clean.connect(name)).session_present is False
    await clean.close()
    last = await room.dial(level)
    assert await _reconnect(last, name) is False


async def test_a_clean_start_drops_everything(room: Room, name: str, level: int) -> None:
    away = await room.connected(name, level, expiry=600)
    await away.subscribe(name)
    await away.close()
    writer = await room.connected(level=level)
    await writer.publish(name, "missed")
    await (await room.connected(name, level)).close()
    back = await room.connected(name, level, expiry=600)
    await writer.publish(name, "nobody")
    await back.silence()


async def test_a_clean_session_is_gone_with_its_connection(
    room: Room, name: str, level: int, web: Http
) -> None:
    peer = await room.connected(name, level)
    await peer.subscribe(name)
    assert (await web.call("GET", f"/v1/sessions/{name}")).status == 200
    peer.drop()
    await peer.gone()
    await _until(lambda: web.call("GET", f"/v1/sessions/{name}"), 404)


async def test_takeover(room: Room, name: str, level: int) -> None:
    old = await room.connected(name, level, expiry=600)
    await old.subscribe(name)
    writer = await room.connected(level=level)
    await writer.publish(name, "one")
    first = await old.take(Publish)
    new = await room.dial(level)
    assert await _reconnect(new, name) is True
    await old.gone()
    if level == 5:
        assert (await old.take(Disconnect)).reason == 0x8E
    again = await new.take(Publish)
    assert (again.payload, again.dup, again.packet_id) == (b"one", True, first.packet_id)
    new.ack(again)
    await writer.publish(name, "two")
    assert payloads([await new.take(Publish)]) == ["two"]
    await new.silence()


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


async def test_unacked_first_in_order_with_dup_and_same_ids(room: Room, name: str, level: int) -> None:
    peer = await room.connected(name, level, expiry=600)
    await peer.subscribe(f"{name}/#")
    writer = await room.connected(level=level)
    for index in range(10):
        await writer.publish(f"{name}/{index % 3}", str(index))
    first = await peer.take_many(10)
    peer.ack(*[packet for packet in first if int(packet.payload) % 3])
    peer.send(Pingreq())
    await peer.take(Pingresp)  # it has read the acks
    await peer.hang_up()
    for index in range(10, 13):
        await writer.publish(f"{name}/{index % 3}", str(index))
    back = await room.dial(level)
    assert await _reconnect(back, name) is True
    got = await back.take_many(7)
    assert payloads(got) == ["0", "3", "6", "9", "10", "11", "12"]
    assert [packet.dup for packet in got] == [True] * 4 + [False] * 3
    ids = {packet.payload: packet.packet_id for packet in first}
    assert [packet.packet_id for packet in got[:4]] == [ids[packet.payload] for packet in got[:4]]
    await back.silence()


async def test_the_attempt_is_told(room: Room, name: str, web: Http) -> None:
    peer = await room.connected(name, expiry=600)
    await peer.subscribe(name)
    await web.schedule(name, "x", deliver_in="100ms")
    assert user(await peer.take(Publish), "fasti-attempt") is None
    for attempt in ("2", "3"):
        await peer.hang_up()
        peer = await room.connected(name, expiry=600)
        assert user(await peer.take(Publish), "fasti-attempt") == attempt


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


# -- the window


async def test_receive_maximum_is_kept(room: Room, name: str) -> None:
    peer = await room.dial()
    await peer.connect(name, clean=False, session_expiry=600, receive_maximum=5)
    await peer.subscribe(f"{name}/#")
    writer = await room.connected()
    for index in range(20):
        await writer.publish(f"{name}/{index % 2}", str(index))
    got: list[Publish] = []
    while len(got) < 20:
        flight = await peer.take_many(min(5, 20 - len(got)))
        await peer.silence(0.05)
        got += flight
        peer.ack(*flight)
    assert payloads(got) == [str(index) for index in range(20)]


async def test_a_full_window_does_not_hold_up_qos_0(room: Room, name: str) -> None:
    """Only QoS 1 and 2 count towards Receive Maximum; order says that QoS 0 behind it may wait."""
    peer = await room.dial()
    await peer.connect(name, receive_maximum=1)
    await peer.subscribe(name)
    writer = await room.connected()
    await writer.publish(name, "one")
    await writer.publish(name, "two")
    first = await peer.take(Publish)
    await peer.silence(0.05)
    peer.ack(first)
    assert payloads([await peer.take(Publish)]) == ["two"]


async def test_acks_out_of_order_open_the_window(room: Room, name: str, level: int) -> None:
    peer = await room.dial(level)
    await _reconnect(peer, name)
    await peer.subscribe(name)
    writer = await room.connected(level=level)
    for index in range(0, 1_200, 400):
        for number in range(index, index + 400):
            writer.put(name, str(number))
        for _ in range(400):
            await writer.take(Ack)
    first = await peer.take_many(1_024)
    await peer.silence(0.1)
    peer.ack(*reversed(first[500:]))
    rest = await peer.take_many(176)
    assert payloads([*first, *rest]) == [str(index) for index in range(1_200)]


# -- expiry


async def test_session_expiry(room: Room, name: str, web: Http) -> None:
    """A session that has been away for longer than it asked is not there any more."""
    peer = await room.connected(name, expiry=1)
    await peer.subscribe(name)
    await peer.close()
    await _until(lambda: web.call("GET", f"/v1/sessions/{name}"), 404)
    back = await room.dial()
    assert (await back.connect(name, clean=False, session_expiry=1)).session_present is False


async def test_disconnect_can_change_the_expiry(room: Room, name: str, web: Http) -> None:
    peer = await room.connected(name, expiry=600)
    await peer.subscribe(name)
    peer.write(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00")
    await peer.gone()
    await _until(lambda: web.call("GET", f"/v1/sessions/{name}"), 404)


async def test_a_long_expiry_is_shortened_and_said(room: Room, name: str) -> None:
    peer = await room.dial()
    connack = await peer.connect(name, clean=False, session_expiry=0xFFFF_FFFF)
    assert connack.properties is not None
    assert connack.properties.session_expiry == 7 * 86_400


async def test_an_assigned_client_id_is_told_and_can_come_back(room: Room) -> None:
    peer = await room.dial()
    connack = await peer.connect("", session_expiry=600)
    assert connack.properties is not None
    assigned = connack.properties.assigned_client_id
    assert assigned
    await peer.close()
    back = await room.dial()
    again = await back.connect(assigned, clean=False, session_expiry=600)
    assert again.session_present is True
    assert again.properties is not None
    assert again.properties.assigned_client_id is None


# -- replay


async def test_replay_from(room: Room, name: str) -> None:
    keeper = await room.connected(f"{name}-keeper", expiry=600)
    await keeper.subscribe(f"{name}/#")
    writer = await room.connected()
    await writer.publish(f"{name}/a", "before")
    await asyncio.sleep(0.05)
    middle = format_ms(wall_ms())
    await asyncio.sleep(0.05)
    for index in range(3):
        await writer.publish(f"{name}/a", str(index))
    reader = await room.connected()
    await reader.subscribe(f"{name}/a", user_properties=(("replay-from", middle),))
    assert payloads(await reader.take_many(3)) == ["0", "1", "2"]
    other = await room.connected()
    await other.subscribe(f"{name}/+", user_properties=(("replay-from", "PT1H"),))
    assert payloads(await other.take_many(4)) == ["before", "0", "1", "2"]
    await other.silence(0.05)
    assert await other.subscribe(f"{name}/x", user_properties=(("replay-from", "soon"),)) == (0x83,)


async def test_a_filter_that_is_sent_again_replays_nothing(room: Room, name: str, level: int) -> None:
    peer = await room.connected(name, level, expiry=600)
    await peer.subscribe(name)
    await peer.publish(name, "x")
    peer.ack(await peer.take(Publish))
    await peer.subscribe(name)
    await peer.silence()


# -- what is stored


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


async def test_no_session_outlives_retention(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What it would have missed is gone by then: the expiry is capped and CONNACK says so."""
    path = tmp_path_factory.mktemp("expiry") / "data"
    async with serving(path, settings={"sessions.expiry_max": "30d", "slices.retention": "2d"}) as server:
        peer = await dial(server.mqtt)
        told = (await peer.connect("long", clean=False, session_expiry=10 * 86_400)).properties
        assert told is not None
        assert told.session_expiry == 2 * 86_400
        peer.drop()
