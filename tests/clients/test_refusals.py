"""What the server does not do, refused as the protocol has it, and only that: the others go on."""

from collections.abc import AsyncIterator

import pytest

from server.codec.encode import encode
from server.codec.fields import Properties
from server.codec.packets import Ack, Connack, Connect, Disconnect, Publish, Will
from tests.clients.conftest import Room
from tests.support.mqtt import Closed, Peer


@pytest.fixture(autouse=True)
async def bystander(room: Room, name: str) -> AsyncIterator[Peer]:
    """Another connection, which must not notice."""
    peer = await room.connected()
    await peer.subscribe(f"{name}/bystander")
    yield peer
    await peer.publish(f"{name}/bystander", "still here")
    assert (await peer.take(Publish)).payload == b"still here"


async def _is_ended(peer: Peer, reason: int) -> None:
    """At level 5 a DISCONNECT says why; below the connection is closed."""
    await peer.gone()
    if peer.level == 5:
        assert (await peer.take(Disconnect)).reason == reason
    assert not peer.inbox


async def test_topic_aliases_beyond_what_was_offered(room: Room, name: str) -> None:
    peer = await room.dial()
    told = (await peer.connect("")).properties
    assert told is not None
    peer.put(name, "x", 0, topic_alias=(told.topic_alias_maximum or 0) + 1)
    await _is_ended(peer, 0x94)


async def test_a_topic_alias_that_was_never_set(room: Room) -> None:
    peer = await room.connected()
    peer.put("", "x", 0, topic_alias=1)
    await peer.gone()
    assert (await peer.take(Disconnect)).reason in (0x82, 0x94)


async def test_authentication_method(room: Room) -> None:
    peer = await room.dial()
    connack = await peer.connect("", auth_method="SCRAM-SHA-1")
    assert connack.reason == 0x8C
    await peer.gone()


@pytest.mark.parametrize(
    ("topic", "users", "reason"),
    [
        ("$delayed/x/{}", (), 0x90),
        ("$delayed/-1/{}", (), 0x90),
        ("$delayed/5", (), 0x90),
        ("$delayed/5/", (), 0x90),
        ("$delayed//{}", (), 0x90),
        ("$delayed/5/$SYS/{}", (), 0x90),
        ("$delayed/99999999999/{}", (), 0x90),
        ("$SYS/{}", (), 0x90),
        ("{}", (("deliver-in", "soon"),), 0x90),
        ("{}", (("deliver-in", "-5s"),), 0x90),
        ("{}", (("deliver-in", "P1M"),), 0x90),
        ("{}", (("deliver-in", "4000d"),), 0x90),
        ("{}", (("deliver-at", "tomorrow"),), 0x90),
        ("{}", (("deliver-at", "2027-01-01T00:00:00"),), 0x90),
        ("{}", (("deliver-at", "2027-01-01T00:00:00Z"), ("deliver-in", "5s")), 0x90),
    ],
)
async def test_bad_delays(
    room: Room, name: str, topic: str, users: tuple[tuple[str, str], ...], reason: int
) -> None:
    peer = await room.connected()
    ack = await peer.publish(topic.format(name), "x", user_properties=users)
    assert ack is not None
    assert ack.reason == reason
    assert await peer.publish(name, "the connection goes on") is not None


async def test_an_idempotency_key_that_is_too_long(room: Room, name: str) -> None:
    """0x95 is none of the codes that a PUBACK may carry (MQTT 5, table 3-4)."""
    peer = await room.connected()
    ack = await peer.publish(name, "x", user_properties=(("idempotency-key", "k" * 257),))
    assert ack is not None
    assert ack.reason >= 0x80


async def test_a_refused_publish_closes_a_311_connection(room: Room, name: str) -> None:
    for topic in (f"$delayed/x/{name}", "$SYS/x", f"$delayed/99999999999/{name}"):
        peer = await room.connected(level=4)
        with pytest.raises(Closed):
            await peer.publish(topic, "x")


async def test_a_refused_qos_0_publish_is_dropped(room: Room, name: str, level: int) -> None:
    peer = await room.connected(level=level)
    await peer.subscribe(name)
    peer.put(f"$delayed/x/{name}", "bad", 0)
    peer.put(name, "good", 0)
    assert (await peer.take(Publish)).payload == b"good"


@pytest.mark.parametrize(
    "pattern", ["a/#/b", "a+/b", "a/b#", "$share/g", "$share//a", "$share/g+/a", "#/a", "+a"]
)
async def test_filters_that_are_none(room: Room, name: str, level: int, pattern: str) -> None:
    """The bad one is refused, the one beside it is granted."""
    peer = await room.connected(level=level)
    reasons = await peer.subscribe(name, pattern)
    assert reasons == (1, 0x8F if level == 5 else 0x80)
    await peer.publish(name, "x")
    await peer.take(Publish)


async def test_an_empty_client_id_needs_a_clean_session_below_5(room: Room) -> None:
    peer = await room.dial(4)
    assert (await peer.connect("", clean=False)).reason == 2
    await peer.gone()


async def test_levels_that_do_not_exist(room: Room) -> None:
    for level, answer in ((6, b"\x20\x03\x00\x84\x00"), (2, b"\x20\x02\x00\x01")):
        peer = await room.dial(5 if level == 6 else 4)
        peer.write(b"\x10\x0d\x00\x04MQTT" + bytes((level,)) + b"\x02\x00\x00\x00\x01x")
        assert (await peer.take(Connack)).reason == answer[3]
        await peer.gone()


async def test_too_large_a_payload(room: Room, name: str, level: int) -> None:
    peer = await room.connected(level=level)
    """CONNACK did not tell of it: an answer where the level has one, and the connection goes on."""
    peer.put(name, b"x" * (256 * 1024 + 1), 0)
    assert await peer.subscribe(name) == (1,)
    if level == 5:
        ack = await peer.publish(name, b"x" * (256 * 1024 + 1))
        assert ack is not None
        assert ack.reason == 0x97
        await peer.publish(name, b"x" * 256 * 1024)
        assert len((await peer.take(Publish)).payload) == 256 * 1024
    else:
        peer.put(name, b"x" * (256 * 1024 + 1))
        await _is_ended(peer, 0x97)


async def test_too_large_a_packet(room: Room, name: str, level: int) -> None:
    """Refused when its length is read, not when all of it has come."""
    peer = await room.connected(level=level)
    peer.write(b"\x32\xff\xff\xff\x7f")
    await _is_ended(peer, 0x95)


async def test_more_in_flight_than_allowed(room: Room, name: str) -> None:
    """More publishes than a thousand that wait for their fsync, in one write: some may be acked meanwhile."""
    peer = await room.connected()
    packets = [
        encode(Publish(f"$delayed/600/{name}".encode(), b"x", 1, packet_id=index), 5)
        for index in range(1, 4_000)
    ]
    peer.write(b"".join(packets))
    await peer.gone()
    assert next(p for p in peer.inbox if isinstance(p, Disconnect)).reason == 0x93


@pytest.mark.parametrize("kind", ["qos 2", "retain", "will", "share"])
async def test_not_there_yet(room: Room, name: str, level: int, kind: str) -> None:
    """Refused, or done as the CONNACK of level 5 promises; never taken and forgotten."""
    five = await room.dial()
    told = (await five.connect("")).properties
    assert told is not None
    if kind == "share":
        peer = await room.connected(level=level)
        if told.shared_available is False:
            assert await peer.subscribe(f"$share/g/{name}") == (0x9E if level == 5 else 0x80,)
        return
    if kind == "will":
        peer = await room.dial(level)
        peer.send(Connect(level, "", will=Will(name.encode(), b"bye")))
        connack = await peer.take(Connack)
        if connack.reason:
            assert connack.reason == (0x83 if level == 5 else 3)
            await peer.gone()
        return
    peer = await room.connected(level=level)
    if kind == "qos 2" and told.maximum_qos is not None:
        peer.send(Publish(name.encode(), b"x", 2, packet_id=1))
        await _is_ended(peer, 0x9B)
    elif kind == "retain" and told.retain_available is False:
        peer.send(Publish(name.encode(), b"x", 0, retain=True))
        await _is_ended(peer, 0x9A)


async def test_a_will_of_a_delayed_topic_and_other_odd_connects(room: Room) -> None:
    peer = await room.dial()
    peer.send(Connect(5, "", properties=Properties(request_problem_info=False)))
    assert (await peer.take(Connack)).reason == 0


async def test_connack_tells_the_limits(room: Room) -> None:
    peer = await room.dial()
    told = (await peer.connect("")).properties
    assert told is not None
    assert (told.receive_maximum, told.maximum_packet_size) == (1_024, 1 << 20)
    assert told.wildcard_available is not False
    assert told.subscription_ids_available is not False


async def test_maximum_packet_size_of_the_client(room: Room, name: str) -> None:
    """What is larger is dropped for this client only, and does not block its window."""
    small = await room.dial()
    await small.connect(name, maximum_packet_size=200, receive_maximum=1)
    await small.subscribe(name)
    large = await room.connected()
    await large.subscribe(name)
    for body in ("a", "b" * 300, "c"):
        await large.publish(name, body)
    for want in ("a", "c"):
        packet = await small.take(Publish)
        assert packet.payload.decode() == want
        small.ack(packet)
    assert [len((await large.take(Publish)).payload) for _ in range(3)] == [1, 300, 1]


async def test_an_ack_of_nothing_is_no_fault(room: Room, name: str, level: int) -> None:
    peer = await room.connected(level=level)
    peer.send(Ack(4, 77))
    await peer.subscribe(name)
    await peer.publish(name, "x")
    await peer.take(Publish)
