"""What the server does not take: topics that are too deep, packet ids in use, denied topics, bad CONNECTs."""

import pytest

from server.codec import wire
from server.codec.packets import (
    Connack,
    Connect,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
    Will,
)
from server.codec.packets import Unsubscribe as Leave
from tests.support.encode import encode
from tests.support.rig import Rig, config, props


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_to_a_topic_that_is_too_deep(level: int, qos: int) -> None:
    rig = Rig(config(topic_levels=3))
    watch = rig.connected("w").subscribed("#")
    peer = rig.connected("a", level)
    peer.publish("a/b/c", "ok")
    peer.publish("$delayed/0/a/b/c", "ok")
    rig.pass_ms(1_000)
    assert watch.payloads() == ["ok", "ok"]
    for topic in ("a/b/c/d", "a///", "$delayed/0/a/b/c/d"):
        peer = rig.connected("a", level)
        packet_id = peer.publish(topic, "deep", qos)
        if not qos:
            assert not peer.is_closed
        elif level == 5:
            kind = wire.PUBACK if qos == 1 else wire.PUBREC
            assert peer.take_ack(kind, packet_id).reason == 0x90
        else:
            assert peer.is_closed
    rig.pass_ms(1_000)
    assert watch.inbox == []


@pytest.mark.parametrize(("level", "reason"), [(4, 0x80), (5, 0x8F)])
def test_a_filter_that_is_too_deep(level: int, reason: int) -> None:
    rig = Rig(config(topic_levels=3))
    peer = rig.connected("a", level)
    assert peer.subscribe("a/b/c", "a/+/c/#", "$share/g/a/b/c", "$share/g/a/b/c/d", qos=1) == (
        1,
        reason,
        1,
        reason,
    )


@pytest.mark.parametrize(("level", "reason"), [(4, 5), (5, 0x90)])
def test_a_will_to_a_topic_that_is_too_deep(level: int, reason: int) -> None:
    rig = Rig(config(topic_levels=3))
    assert rig.peer(level).connect("a", will=Will(b"a/b/c", b"w")).reason == 0
    assert rig.peer(level).connect("b", will=Will(b"a/b/c/d", b"w")).reason == reason


@pytest.mark.parametrize("taken", ["$share/g/t", "$endpoint/billing", ".", ".."])
def test_client_ids_that_groups_have_or_no_url(rig: Rig, taken: str) -> None:
    assert rig.peer(5).connect(taken).reason == 0x85
    assert rig.peer(4).connect(taken).reason == 2
    assert rig.peer(5).connect("$shared").reason == 0


def test_groups_that_no_url_has() -> None:
    peer = Rig().connected("...")
    assert peer.subscribe("$share/./t", "$share/../t", "$share/.../t", "t/..", qos=1) == (0x87, 0x87, 1, 1)


def _connect(level: int) -> bytes:
    return encode(Connect(level, "abc"), level)


@pytest.mark.parametrize(
    ("what", "reason"),
    [("reserved flag", 0x81), ("cut", 0x81), ("property twice", 0x82), ("length", 0x81), ("utf-8", 0x81)],
)
def test_connack_of_a_connect_that_cannot_be_read(what: str, reason: int) -> None:
    """[MQTT-3.1.4-1], [MQTT-3.1.4-2]: at level 5 it says why; below, the connection is just closed."""

    def spoil(level: int) -> bytes:
        data = bytearray(_connect(level))
        if what == "reserved flag":
            data[9] |= 1
        elif what == "cut":
            data[1] -= 1
            del data[-1]
        elif what == "property twice":
            data = bytearray(encode(Connect(level, "abc", properties=props(receive_maximum=9)), level))
            if level == 5:
                data[1] += 3
                data[12] += 3
                data[13:13] = data[13:16]
        elif what == "length":
            data[1] |= 0x80
            data[2:2] = b"\0"
        else:
            data[-1] = 0xFF
        return bytes(data)

    rig = Rig()
    peer = rig.peer(5)
    peer.send_bytes(spoil(5))
    assert peer.take(Connack).reason == reason
    assert (peer.inbox, peer.is_closed) == ([], True)
    old = rig.peer(4)
    if what in ("reserved flag", "cut", "utf-8"):
        old.send_bytes(spoil(4))
        assert (old.inbox, old.is_closed) == ([], True)


def test_what_is_no_connect_at_all_gets_no_connack(rig: Rig) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x10\x07\x00\x05MQTTX", b"\xc0\x00", b"\x11\x00"):
        peer = rig.peer(5)
        peer.send_bytes(data)
        assert (peer.raw, peer.is_closed) == ([], True), data


def test_packet_ids_in_use(rig: Rig) -> None:
    """A SUBSCRIBE under the packet id of what has not been answered yet takes no effect: 0x91."""
    peer = rig.lasting("a")
    options = SubscribeOptions(1)
    peer.send(Subscribe(7, (("a", options),)), pump=False)
    peer.send(Subscribe(7, (("b", options), ("c", options))), pump=False)
    peer.send(Leave(7, ("a",)), pump=False)
    peer.send(Publish(b"x", b"", 1, packet_id=7), pump=False)
    peer.send(Publish(b"x", b"", 2, packet_id=7), pump=False)
    rig.pump()
    found = [packet for packet in peer.inbox if isinstance(packet, Suback)]
    assert [packet.reasons for packet in found] == [(0x91, 0x91), (1,)]
    assert [packet.reasons for packet in peer.inbox if isinstance(packet, Unsuback)] == [(0x91,)]
    peer.inbox = [packet for packet in peer.inbox if not isinstance(packet, Suback | Unsuback)]
    assert peer.take_ack(wire.PUBACK, 7).reason == 0x91
    assert peer.take_ack(wire.PUBREC, 7).reason == 0x91
    # It is free again.
    peer.send(Subscribe(7, (("d", options),)))
    assert peer.take(Suback).reasons == (1,)
    assert set(rig.session("a").session.subscriptions) == {"a", "d"}


def test_the_packet_id_of_qos_2_is_in_use_until_it_is_released(rig: Rig) -> None:
    peer = rig.lasting("a")
    peer.begin("t", "x", packet_id=3)
    assert peer.publish("t", "y", 1, packet_id=3) == 3
    assert peer.take_ack(wire.PUBACK, 3).reason == 0x91
    # Sent again it is the same one: [MQTT-4.3.3-10].
    assert peer.begin("t", "x", packet_id=3, dup=True).reason == 0
    peer.release(3)
    assert peer.publish1("t", "y", packet_id=3).reason in (0, 0x10)


def test_below_level_5_a_publish_may_be_sent_again_while_it_waits(rig: Rig) -> None:
    rig.lasting("w").subscribe("t")
    peer = rig.connected("a", 4)
    for dup in (False, True):
        peer.publish("t", "x", 1, packet_id=3, dup=dup, pump=False)
    rig.pump()
    assert [peer.take_ack(wire.PUBACK, 3).reason for _ in range(2)] == [0, 0]
    assert not peer.is_closed


def test_denied_topics_reach_nobody_by_a_wider_filter(rig: Rig) -> None:
    first = rig.lasting("s").subscribed("#", "$share/g/#")
    rig.connected("p").publish("secret/kept", "old", 1, retain=True)
    assert len(first.take_all()) == 2
    first.drop()
    rig.crash(settings=config(deny_subscribe=("secret/#", "+/hidden")), pump=True)
    peer = rig.lasting("s")
    assert peer.subscribe("secret/a", "#", "a/hidden") == (0x87, 2, 0x87)
    assert peer.inbox == []  # not the retained one either
    publisher = rig.connected("p")
    for topic in ("secret/x", "secret", "a/hidden", "a/b", "secrets"):
        reason = publisher.publish1(topic, topic).reason
        assert reason == (0 if topic in ("a/b", "secrets") else 0x10)
    publisher.publish1("$delayed/1/secret/later", "later")
    rig.pass_ms(2_000)
    assert peer.take_all() == ["a/b", "a/b", "secrets", "secrets"]
    peer.drop()
    publisher.publish1("$delayed/0/secret/away", "away")
    publisher.publish1("$delayed/0/away", "away")
    assert rig.lasting("s").take_all() == ["away", "away"]
