"""What comes over MQTT and HTTP together, in order and by the clock on the wall.

What a delivery is by itself: tests/server/mqtt/test_delivering.py. Readers that never read:
tests/overload/test_deaf.py.
"""

import asyncio

import pytest

from server.codec.packets import Ack, Publish
from server.settings.times import format_ms
from tests.clients.conftest import Room
from tests.support.http import Http
from tests.support.mqtt import dial, payloads, user, wall_ms
from tests.support.server import serving

pytestmark = pytest.mark.proof


async def test_plain_publishes_keep_their_order(room: Room, name: str, level: int) -> None:
    """Over QoS 0 and 1, over topics, over what is stored and what is not."""
    reader = await room.connected(level=level)
    writer = await room.connected(level=level)
    await reader.subscribe(f"{name}/#")
    keeper = await room.connected(f"{name}-keeper", level, expiry=60)
    await keeper.subscribe(f"{name}/stored/#")
    sent = []
    for index in range(600):
        kind = "stored" if index % 7 == 3 else "live"
        writer.put(f"{name}/{kind}/{index % 5}", str(index), qos=index % 2)
        sent.append(str(index))
        if index % 100 == 99:
            await asyncio.sleep(0.01)
    assert payloads(await reader.take_many(600)) == sent


async def test_fasti_id_of_a_puback_works_over_http(room: Room, name: str, web: Http) -> None:
    peer = await room.connected()
    ack = await peer.publish(f"$delayed/300/{name}", "gone")
    assert ack is not None
    message = user(ack, "fasti-id")
    found = await web.call("GET", f"/v1/messages/{message}", status=200)
    assert (found.body["topic"], found.body["payload"], found.body["state"]) == (name, "gone", "pending")
    await web.call("DELETE", f"/v1/messages/{message}", status=204)


async def test_headers_of_http_are_user_properties(room: Room, name: str, web: Http) -> None:
    peer = await room.connected()
    await peer.subscribe(name)
    message = await web.schedule(name, {"n": 1}, headers={"kind": "test"}, expires_in=60)
    packet = await peer.take(Publish)
    assert packet.properties is not None
    assert (user(packet, "kind"), user(packet, "fasti-id")) == ("test", message)
    assert packet.properties.content_type == "application/json"
    assert packet.properties.message_expiry is not None
    assert 58 <= packet.properties.message_expiry <= 60


async def test_no_client_is_served_early(room: Room, name: str, web: Http) -> None:
    """Two hundred messages, a few ms apart, against the wall clock of this machine, which is the server's."""
    late_ms = []

    def arrived(_: object, packet: Publish, now_ms: int) -> None:
        late_ms.append(now_ms - int(packet.payload))

    peer = await room.dial(5, arrived)
    await peer.connect("")
    await peer.subscribe(f"{name}/#")
    start_ms = wall_ms() + 500
    items: list[dict[str, object]] = [
        {
            "topic": f"{name}/{n % 7}",
            "payload": str(start_ms + 3 * n),
            "deliver_at": format_ms(start_ms + 3 * n),
        }
        for n in range(200)
    ]
    assert (await web.schedule_many(items)).status == 201
    async with asyncio.timeout(60):
        while len(late_ms) < 200:
            await asyncio.sleep(0.02)
    assert min(late_ms) >= 0


async def test_a_topic_that_begins_with_a_dollar(room: Room, name: str, level: int, web: Http) -> None:
    """Over HTTP, by a schedule, plain and delayed: for those who ask for it, and not for `#`."""
    topic = f"${name}/a"
    peer, wild = await room.connected(level=level), await room.connected(level=level)
    await peer.subscribe(f"${name}/#")
    await wild.subscribe("#", f"+/{name}", "+/a")
    message = await web.schedule(topic, "http", deliver_in="300ms")
    await peer.publish(topic, "plain")
    await peer.publish(f"$delayed/1/{topic}", "delayed")
    made = await web.call(
        "PUT", f"/v1/schedules/{name}", {"every": "1h", "topic": topic, "payload": "schedule"}
    )
    assert made.status == 201, made.body
    assert (await web.call("POST", f"/v1/schedules/{name}:trigger")).status == 200
    assert {(await peer.take(Publish)).payload for _ in range(4)} == {
        b"http",
        b"plain",
        b"delayed",
        b"schedule",
    }
    listed = await web.call("GET", f"/v1/messages?state=dispatched&topic=%24{name}/%23&limit=1000")
    assert message in [item["id"] for item in listed.body["messages"]]
    listed = await web.call("GET", "/v1/messages?state=dispatched&topic=%2B/a&limit=1000")
    assert message not in [item["id"] for item in listed.body["messages"]]
    assert (await web.call("DELETE", f"/v1/schedules/{name}")).status == 204
    await wild.publish(f"{name}/end", "end")
    while (packet := await wild.take(Publish)).payload != b"end":
        assert not packet.topic.startswith(b"$"), packet


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
