"""Characters at which MQTT clients may close the connection, again and again: MQTT 5.0, 1.5.4.

What is new is refused wherever it comes in. What an earlier version has stored is not sent to MQTT clients,
and holds up nobody.
"""

import logging

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish, Subscribe, SubscribeOptions, Will
from server.delivery.publish_request import PublishRequest
from shards.fields import Record
from shards.properties import properties_of
from tests.support.rig import Rig, about, props

BAD = ["\x01", "\n", "\x1f", "\x7f", "\x80", "\x9f", "\ufdd0", "\ufdef", "\ufffe", "\uffff", "\U0010fffe"]
"""The ends of each range that 1.5.4 names."""
GOOD = [" ", "~", "\xa0", "é", "\ufdcf", "\ufdf0", "\ufffd", "😀", "\u200b", "\u2028"]
"""Their neighbours, and characters that Python does not print."""
TOPICS = ["a/{}b", "$delayed/0/a/{}b", "$SYS/broker/connection/{}/state"]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("one", BAD)
def test_a_topic_is_refused(rig: Rig, topic: str, qos: int, one: str) -> None:
    listener, peer = rig.connected("l").subscribed("#", "$SYS/broker/connection/#"), rig.connected("p")
    packet_id = peer.publish(topic.format(one), "x", qos)
    if qos:
        ack = peer.take_ack(wire.PUBACK if qos == 1 else wire.PUBREC, packet_id)
        assert ack.reason == 0x90
    assert peer.gone_with == -1
    assert not listener.publishes()


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("qos", [1, 2])
def test_below_level_5_the_connection_closes(topic: str, qos: int) -> None:
    peer = Rig().connected("p", 4)
    peer.publish(topic.format("\x07"), "x", qos)
    assert peer.is_closed


@pytest.mark.parametrize("topic", TOPICS[:2])
@pytest.mark.parametrize("level", [4, 5])
def test_other_characters_are_no_fault(rig: Rig, topic: str, level: int) -> None:
    listener = rig.connected("l").subscribed("#", qos=1)
    for one in GOOD:
        rig.connected("p", level).publish1(topic.format(one))
    assert {packet.topic.decode() for packet in listener.publishes()} == {f"a/{one}b" for one in GOOD}


def test_a_topic_behind_an_alias_is_refused_each_time() -> None:
    peer = Rig().connected("p")
    bad = Publish(b"a\x07", b"x", 1, packet_id=1, properties=props(topic_alias=1))
    again = Publish(b"", b"x", 1, packet_id=2, properties=props(topic_alias=1))
    peer.send(bad, again)
    assert [peer.take_ack(wire.PUBACK).reason for _ in range(2)] == [0x90, 0x90]


@pytest.mark.parametrize("field", ["content_type", "response_topic"])
@pytest.mark.parametrize("one", BAD)
def test_properties_are_refused(rig: Rig, field: str, one: str) -> None:
    peer = rig.connected("p")
    users = [(("k" + one, "v"),), (("k", "v" + one),)]
    for asked in ({field: "a" + one}, *({"user_properties": pairs} for pairs in users)):
        assert peer.publish1("t", **asked).reason == 0x83
        refused = rig.peer()
        assert refused.connect("w", will=Will(b"t", b"x", 0, False, props(**asked))).reason == 0x83
    assert peer.publish1("t", correlation_data=one.encode()).reason == 0x10, "bytes are bytes"


@pytest.mark.parametrize(("level", "reason"), [(4, 5), (5, 0x90)])
def test_a_will_is_refused(level: int, reason: int) -> None:
    peer = Rig().peer(level)
    assert peer.connect("w", will=Will("a/\x85".encode(), b"x", 0, False)).reason == reason


@pytest.mark.parametrize("text", ["a/{}", "$share/g/a{}", "$share/g{}/a"])
@pytest.mark.parametrize("one", BAD)
def test_filters_are_refused(rig: Rig, text: str, one: str) -> None:
    peer = rig.connected("a")
    assert peer.subscribe("ok", text.format(one)) == (2, 0x8F)
    assert peer.unsubscribe("ok", text.format(one)) == (0, 0x8F)
    assert rig.connected("b", 4).subscribe("ok", text.format(one)) == (2, 0x80)


# -- stored by an earlier version


def stored(rig: Rig, topic: str, payload: str, due_ms: int, **more: object) -> None:
    record = Record(topic.encode(), payload.encode(), due_ms, 1, **more)  # type: ignore[arg-type]
    rig.core.publishing.publish([(PublishRequest(record, due_ms > 0), None)])


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("text", ["t/#", "$share/g/t/#"])
@pytest.mark.parametrize("due_ms", [0, 1_795_248_005_000])
def test_it_is_not_sent_and_holds_up_nobody(
    caplog: pytest.LogCaptureFixture, qos: int, level: int, text: str, due_ms: int
) -> None:
    """To a session that was away and to one that is there; alone, and in a run of several."""
    caplog.set_level(logging.WARNING)
    rig = Rig()
    away, there = rig.lasting("away", level).subscribed(text, qos=qos), rig.lasting("there", level)
    away.disconnect()
    there.subscribe("t/#", qos=qos, **({"subscription_ids": (7,)} if level == 5 else {}))
    sent = ["1", "bad", "2", "bad", "bad", "3"]
    for payload in sent:
        stored(rig, "t/\x07" if payload == "bad" else "t/ok", payload, due_ms)
    rig.pass_ms(10_000)
    assert there.take_all() == ["1", "2", "3"]
    away = rig.lasting("away", level)
    assert away.take_all() == ["1", "2", "3"]
    rig.pass_ms(10_000)
    away = away.back()
    assert away.take_all() == [], "none of it comes again"
    for name in ("away", "there"):
        assert not rig.session(name).session.flights
    assert rig.core.publishing.traffic.dropped >= 3
    assert "control characters in the topic t/\\x07" in caplog.text


@pytest.mark.parametrize("level", [4, 5])
def test_a_retained_one_is_not_sent_and_can_be_cleared(rig: Rig, level: int) -> None:
    stored(rig, "t/\x07", "bad", 0, retain=True)
    stored(rig, "t/ok", "good", 0, retain=True)
    rig.pump()
    peer = rig.lasting("a", level).subscribed("t/#", qos=1)
    assert peer.take_all() == ["good"]
    rig.connected("p", level).publish1("t/\x07", "", retain=True)
    assert rig.core.retained.count == 1


def test_a_property_has_blanks_in_their_place(rig: Rig) -> None:
    """Also what a worker says of its failure: it goes to those who read dead letters."""
    peer = rig.connected("a").subscribed("t")
    properties = properties_of((("a\x07", "1\n2\uffff"), ("b", "é")), "text/plain\x85")
    stored(rig, "t", "x", 0, properties=properties)
    stored(rig, "t", "y", 0, properties=properties_of((("b", "é" * 200),)))
    rig.pump()
    first, second = peer.publishes()
    assert first.properties == props(content_type="text/plain ", user_properties=(("a ", "1 2 "), ("b", "é")))
    assert second.properties == props(user_properties=(("b", "é" * 200),))


def test_the_reason_of_a_dead_letter_has_none(rig: Rig) -> None:
    reader, worker = rig.connected("r").subscribed("$dead/#"), rig.connected("w\x07")
    worker.send(
        Subscribe(9, (("$share/g/t", SubscribeOptions(1)),)), Subscribe(8, (("s", SubscribeOptions(1)),))
    )
    worker.inbox.clear()
    rig.connected("p").publish1("$delayed/0/s")
    (packet,) = worker.publishes()
    asked = props(user_properties=(("retry-in", "never"), ("reason", "line 1\nline 2")))
    worker.send(Ack(wire.PUBACK, packet.packet_id, 0x80, asked))
    (letter,) = reader.publishes()
    assert letter.topic == b"$dead/w%07/s"
    assert ("fasti-dead-reason", "line 1 line 2") in about(letter).user_properties


@pytest.mark.parametrize("terms", [(), (("order", "true"),), (("fair", "true"),)])
@pytest.mark.parametrize("most", [None, 1_000])
def test_it_holds_up_no_group_of_any_kind(terms: tuple[tuple[str, str], ...], most: int | None) -> None:
    rig = Rig()
    asked = {} if most is None else {"maximum_packet_size": most}
    rig.lasting("w", **asked).subscribed("$share/g/t/#", qos=1, user_properties=terms).drop()
    for number, topic in enumerate(["t/ok", "t/\x07", "t/\x07", "t/ok"]):
        stored(rig, topic, str(number), 0, ordering_key=b"k")
    worker = rig.lasting("w", **asked)
    assert worker.take_all() == ["0", "3"]
    group = rig.group("$share/g/t/#")
    assert group.session.read == rig.core.horizon.position


@pytest.mark.parametrize("one", ["\x7f", "\ufdd0"])
def test_what_the_server_quotes_in_a_reason_is_escaped(rig: Rig, one: str) -> None:
    peer = rig.connected("p")
    ack = peer.publish1("$control/done", f'{{"{one}": 1}}')
    assert ascii(one)[1:-1] in str(about(ack).reason_string)
    assert one not in str(about(ack).reason_string)
    peer.subscribe("t")
    rig.connected("other").publish1("t")
    peer.send(Ack(wire.PUBACK, peer.one().packet_id, 0x83, props(user_properties=(("retry-in", one),))))
    assert ascii(one)[1:-1] in str(peer.inbox[-1])


@pytest.mark.parametrize(("name", "level"), [("a\ufdd0b", "a%EF%B7%90b"), ("a\x85/b", "a%C2%85%2Fb")])
def test_a_copy_of_a_dead_letter_names_any_session(rig: Rig, name: str, level: str) -> None:
    grave, peer = rig.connected("grave").subscribed("$dead/#"), rig.lasting(name).subscribed("t")
    rig.connected("p").publish1("t")
    peer.send(Ack(wire.PUBACK, peer.one().packet_id, 0x83, props(user_properties=(("retry-in", "never"),))))
    assert [one.topic.decode() for one in grave.publishes()] == [f"$dead/{level}/t"]
