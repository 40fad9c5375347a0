"""What a client that is there gets: filters, QoS, delays, properties, order."""

import asyncio

import pytest

from server.codec.packets import Ack, Publish
from server.settings.times import format_ms
from tests.clients.conftest import Room
from tests.support.http import Http
from tests.support.mqtt import payloads, user, wall_ms

pytestmark = pytest.mark.proof


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("{}/a/b", ["{}/a/b"], ["{}/a", "{}/a/b/c", "{}/a/B"]),
        ("{}/+/b", ["{}/a/b", "{}//b"], ["{}/a/c", "{}/a/x/b"]),
        ("{}/#", ["{}", "{}/a", "{}/a/b/c", "{}/"], ["x{}/a"]),
        ("{}/+", ["{}/a", "{}/"], ["{}", "{}/a/b"]),
        ("+/{}/#", ["a/{}", "/{}", "b/{}/c"], ["{}/a"]),
    ],
)
async def test_filters(
    room: Room, name: str, level: int, pattern: str, hits: list[str], misses: list[str]
) -> None:
    reader = await room.connected(level=level)
    writer = await room.connected(level=level)
    assert await reader.subscribe(pattern.format(name)) == (1,)
    for topic in [*misses, *hits]:
        await writer.publish(topic.format(name), topic)
    assert payloads(await reader.take_many(len(hits))) == hits
    await reader.silence()


@pytest.mark.parametrize("published", [0, 1])
@pytest.mark.parametrize("subscribed", [0, 1])
async def test_the_lower_qos_counts(
    room: Room, name: str, level: int, published: int, subscribed: int
) -> None:
    peer = await room.connected(level=level)
    assert await peer.subscribe(name, qos=subscribed) == (subscribed,)
    peer.put(name, "x", published)
    packet = await peer.take(Publish)
    assert (packet.qos, packet.dup, packet.retain) == (min(published, subscribed), False, False)
    assert bool(packet.packet_id) is bool(packet.qos)


async def test_a_wish_for_qos_2_is_granted_1_or_2(room: Room, name: str, level: int) -> None:
    peer = await room.connected(level=level)
    (granted,) = await peer.subscribe(name, qos=2)
    assert granted in (1, 2)


async def test_overlapping_filters_give_one_copy_with_all_identifiers(room: Room, name: str) -> None:
    peer = await room.connected()
    await peer.subscribe(f"{name}/#", qos=0, subscription_ids=(7,))
    await peer.subscribe(f"{name}/+", qos=1, subscription_ids=(300,))
    await peer.subscribe(f"{name}/a", qos=0)
    await peer.publish(f"{name}/a")
    packet = await peer.take(Publish)
    assert packet.qos == 1
    assert packet.properties is not None
    assert sorted(packet.properties.subscription_ids) == [7, 300]
    await peer.silence()


async def test_unsubscribe(room: Room, name: str, level: int) -> None:
    peer = await room.connected(level=level)
    await peer.subscribe(f"{name}/a", f"{name}/b")
    reasons = await peer.unsubscribe(f"{name}/a", f"{name}/never")
    assert reasons == ((0, 0x11) if level == 5 else ())
    await peer.publish(f"{name}/a")
    await peer.publish(f"{name}/b", "b")
    assert payloads([await peer.take(Publish)]) == ["b"]
    await peer.silence()


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


async def test_pubacks_come_in_the_order_of_the_publishes(room: Room, name: str) -> None:
    """MQTT-4.6.0, also when some are stored (an fsync) and some refused or handed on at once."""
    peer = await room.connected()
    ids = []
    for index in range(60):
        topic = (f"$delayed/600/{name}/x", f"{name}/nobody", "$SYS/topic")[index % 3]
        ids.append(peer.put(topic, "x"))
    acks = [await peer.take(Ack) for _ in ids]
    assert [ack.packet_id for ack in acks] == ids
    assert {acks[0].reason, acks[1].reason, acks[2].reason} == {0, 0x10, 0x90}


# -- delays


async def test_delayed_topic(room: Room, name: str, level: int) -> None:
    peer = await room.connected(level=level)
    await peer.subscribe(f"{name}/#")
    before_ms = wall_ms()
    ack = await peer.publish(f"$delayed/1/{name}/x", "later")
    assert ack is not None
    packet = await peer.take(Publish)
    assert wall_ms() >= before_ms + 1_000
    assert (packet.topic.decode(), packet.payload) == (f"{name}/x", b"later")
    if level == 5:
        assert user(ack, "fasti-id") == user(packet, "fasti-id")
        assert int(user(packet, "fasti-late-ms") or "-1") >= 0
        assert user(packet, "fasti-attempt") is None


@pytest.mark.parametrize("delay", ["PT0.3S", "0.3s", "300ms", "0.3"])
async def test_deliver_in(room: Room, name: str, delay: str) -> None:
    peer = await room.connected()
    await peer.subscribe(name)
    before_ms = wall_ms()
    ack = await peer.publish(name, "x", user_properties=(("deliver-in", delay), ("mine", "1")))
    assert ack is not None
    packet = await peer.take(Publish)
    assert wall_ms() >= before_ms + 300
    assert user(packet, "fasti-id") == user(ack, "fasti-id")
    assert (user(packet, "mine"), user(packet, "deliver-in")) == ("1", None)


async def test_fasti_id_of_a_puback_works_over_http(room: Room, name: str, web: Http) -> None:
    peer = await room.connected()
    ack = await peer.publish(f"$delayed/300/{name}", "gone")
    assert ack is not None
    message = user(ack, "fasti-id")
    found = await web.call("GET", f"/v1/messages/{message}", status=200)
    assert (found.body["topic"], found.body["payload"], found.body["state"]) == (name, "gone", "pending")
    await web.call("DELETE", f"/v1/messages/{message}", status=204)


async def test_idempotency_key_over_mqtt(room: Room, name: str) -> None:
    peer = await room.connected()
    keyed = (("deliver-in", "300s"), ("idempotency-key", name))
    first = await peer.publish(name, "x", user_properties=keyed)
    again = await peer.publish(name, "x", user_properties=keyed)
    other = await peer.publish(name, "y", user_properties=keyed)
    assert first is not None
    assert again is not None
    assert other is not None
    assert user(first, "fasti-id") == user(again, "fasti-id")
    assert (first.reason, again.reason) == (0, 0)
    assert other.reason >= 0x80


async def test_properties_of_the_publisher_come_through(room: Room, name: str) -> None:
    peer = await room.connected()
    await peer.subscribe(name)
    users = (("a", "1"), ("b", "ü"), ("a", "2"))
    await peer.publish(
        name,
        b"\xff\x00",
        user_properties=users,
        content_type="application/x",
        response_topic="answers/here",
        correlation_data=b"\x00\x01",
        payload_format=0,
    )
    packet = await peer.take(Publish)
    got = packet.properties
    assert got is not None
    assert packet.payload == b"\xff\x00"
    assert got.user_properties == users
    assert (got.content_type, got.response_topic, got.correlation_data, got.payload_format) == (
        "application/x",
        "answers/here",
        b"\x00\x01",
        0,
    )


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


async def test_message_expiry_counts_from_due(room: Room, name: str) -> None:
    """Two messages wait a second for an absent session; the one that lives a second from due is gone."""
    away = await room.connected(name, expiry=60)
    await away.subscribe(f"{name}/#")
    await away.close()
    writer = await room.connected()
    for seconds in (1, 100):
        delayed = (("deliver-in", "1s"),)
        await writer.publish(
            f"{name}/{seconds}", str(seconds), message_expiry=seconds, user_properties=delayed
        )
    await asyncio.sleep(2.3)
    back = await room.connected(name, expiry=60)
    packet = await back.take(Publish)
    assert packet.payload == b"100"
    assert packet.properties is not None
    assert 0 < (packet.properties.message_expiry or 0) <= 99
    await back.silence()


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
