"""Retained messages: [MQTT-3.3.1-5] to [MQTT-3.3.1-13], [MQTT-3.8.4-4]."""

import pytest

from server.mqtt import wire
from server.mqtt.packets import Publish
from tests.mqtt.rig import Peer, Rig, config


def _retained(peer: Peer) -> dict[str, str]:
    """What has come, all of it with the retain flag."""
    found = peer.publishes()
    assert all(packet.retain for packet in found)
    return {packet.topic.decode(): packet.payload.decode() for packet in found}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("level", [4, 5])
def test_the_last_one_of_each_topic(qos: int, level: int) -> None:
    rig = Rig()
    publisher = rig.connected("p")
    for topic, payload in (("a/b", "1"), ("a/b", "2"), ("a/c", "3"), ("a", "4"), ("b", "5"), ("a/d/e", "6")):
        publisher.publish(topic, payload, qos, retain=True)
    publisher.publish("a/b", "not retained", qos)
    expected = {
        "a/#": {"a": "4", "a/b": "2", "a/c": "3", "a/d/e": "6"},
        "a/+": {"a/b": "2", "a/c": "3"},
        "+": {"a": "4", "b": "5"},
        "a/b": {"a/b": "2"},
        "#": {"a": "4", "a/b": "2", "a/c": "3", "b": "5", "a/d/e": "6"},
        "+/+/e": {"a/d/e": "6"},
        "ab/#": {},
    }
    for text, found in expected.items():
        peer = rig.connected("s", level)
        peer.subscribe(text, qos=2)
        assert {p.qos for p in peer.inbox if isinstance(p, Publish)} <= {qos}
        assert _retained(peer) == found, text


def test_an_empty_payload_clears_and_is_delivered() -> None:
    """[MQTT-3.3.1-6], [MQTT-3.3.1-7]"""
    rig = Rig()
    here = rig.connected("here")
    here.subscribe("t")
    publisher = rig.connected("p")
    publisher.publish("t", "x", retain=True)
    publisher.publish("t", "", retain=True)
    assert [packet.retain for packet in here.publishes()] == [False, False]
    peer = rig.connected("s")
    peer.subscribe("t")
    assert peer.inbox == []
    assert rig.core.retained.count == 0


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_retained_survives(how: str) -> None:
    rig = Rig()
    publisher = rig.connected("p")
    publisher.publish1("a", "1", retain=True)
    publisher.publish1("b", "2", retain=True)
    publisher.publish1("b", "", retain=True)
    rig.pump()
    getattr(rig, how)()
    rig.pump()
    peer = rig.connected("s")
    peer.subscribe("#")
    assert _retained(peer) == {"a": "1"}
    assert rig.core.retained.count == 1


def test_retained_is_never_lost_when_the_horizon_has_passed_it() -> None:
    """Whatever group is sealed between: what it says of the horizon goes with what the horizon has done."""
    for survivors in range(4):
        rig = Rig()
        publisher = rig.connected("p")
        publisher.publish("t", "x", 1, retain=True, pump=False)
        rig.compose()
        rig.settle()
        # Others are before the request that writes the retained message.
        while rig.turn():
            pass
        for _ in range(survivors):
            publisher.publish("$delayed/99/u", "y", 1, pump=False)
            rig.compose()
        rig.crash(survivors)
        rig.pump()
        peer = rig.connected("s")
        peer.subscribe("t")
        assert _retained(peer) == {"t": "x"}


def test_the_store_fails_while_a_message_is_retained() -> None:
    rig = Rig()
    publisher = rig.connected("p")
    publisher.publish("t", "x", 1, retain=True, pump=False)
    rig.compose()
    rig.settle()
    rig.store.fail_writes = True
    rig.turn()
    rig.compose()
    peer = rig.connected("s")
    peer.subscribe("t")
    assert _retained(peer) == {"t": "x"}
    rig.store.fail_writes = False
    assert rig.core.writer.recover()
    rig.pump()
    rig.core.broker.submit(lambda commit: None, lambda durable: None)
    rig.pump()
    rig.crash()
    rig.pump()
    peer = rig.connected("s")
    peer.subscribe("t")
    assert _retained(peer) == {"t": "x"}


def test_a_delayed_one_is_retained_when_it_fires() -> None:
    rig = Rig()
    publisher = rig.connected("p")
    publisher.publish1("t", "now", retain=True)
    publisher.publish1("$delayed/5/t", "later", retain=True)
    peer = rig.connected("s")
    peer.subscribe("t")
    assert _retained(peer) == {"t": "now"}
    rig.pass_ms(6_000)
    assert peer.payloads() == ["later"]
    peer = rig.connected("s2")
    peer.subscribe("t")
    assert _retained(peer) == {"t": "later"}


def test_retain_handling() -> None:
    """[MQTT-3.3.1-9] to [MQTT-3.3.1-11]"""
    rig = Rig()
    rig.connected("p").publish1("t", "x", retain=True)
    for handling, first, again in ((0, 1, 1), (1, 1, 0), (2, 0, 0)):
        peer = rig.connected("s")
        peer.subscribe("t", handling=handling, qos=0)
        assert len(peer.publishes()) == first
        peer.subscribe("t", handling=handling, qos=0)
        assert len(peer.publishes()) == again
        peer.unsubscribe("t")
        peer.subscribe("t", handling=handling, qos=0)
        assert len(peer.publishes()) == first
    lasting = rig.lasting("l")
    lasting.subscribe("t", handling=1, qos=0)
    lasting.publishes()
    lasting.drop()
    lasting = rig.lasting("l")
    lasting.subscribe("t", handling=1, qos=0)
    assert lasting.inbox == []


def test_shared_subscriptions_get_none() -> None:
    """[MQTT-3.8.4-?]: 4.8.2"""
    rig = Rig()
    rig.connected("p").publish1("t", "x", retain=True)
    peer = rig.connected("s")
    peer.subscribe("$share/g/t", handling=0)
    assert peer.inbox == []


def test_retained_messages_expire() -> None:
    rig = Rig()
    publisher = rig.connected("p")
    publisher.publish1("t", "x", retain=True, message_expiry=10)
    publisher.publish1("u", "y", retain=True, message_expiry=100)
    rig.pass_ms(6_000)
    peer = rig.connected("s")
    peer.subscribe("#", qos=0)
    found = {p.topic: p.properties.message_expiry for p in peer.publishes() if p.properties}
    assert found == {b"t": 4, b"u": 94}
    rig.pass_ms(6_000)
    peer = rig.connected("s")
    peer.subscribe("#")
    assert _retained(peer) == {"u": "y"}


def test_identifier_and_qos_of_the_subscription_that_asked() -> None:
    rig = Rig()
    rig.connected("p").publish2("t", "x", retain=True)
    peer = rig.connected("s")
    peer.subscribe("#", qos=0, subscription_ids=(1,))
    peer.publishes()
    peer.subscribe("t", qos=1, subscription_ids=(2,))
    (packet,) = peer.publishes()
    assert packet.properties is not None
    assert (packet.qos, packet.properties.subscription_ids) == (1, (2,))


def test_no_local_holds_for_retained_ones() -> None:
    rig = Rig()
    peer = rig.connected("s")
    peer.publish("t", "own", retain=True)
    peer.subscribe("t", no_local=True)
    assert peer.inbox == []
    peer.subscribe("t")
    assert _retained(peer) == {"t": "own"}


def test_retained_in_flight_is_retained_again_on_redelivery() -> None:
    rig = Rig()
    rig.connected("p").publish1("t", "x", retain=True)
    peer = rig.lasting("s")
    peer.subscribe("t")
    (first,) = peer.publishes()
    for how in ("drop", "crash"):
        if how == "crash":
            rig.crash()
            rig.pump()
        else:
            peer.drop()
        peer = rig.lasting("s")
        (again,) = peer.publishes()
        assert (again.retain, again.dup, again.packet_id) == (True, True, first.packet_id)


def test_many_go_through_a_small_window_and_unsubscribe_stops_them() -> None:
    rig = Rig()
    publisher = rig.connected("p")
    publisher.send(*[Publish(b"t/%d" % n, b"x", 1, True, packet_id=n + 1) for n in range(50)])
    peer = rig.connected("s", receive_maximum=3)
    peer.subscribe("t/#", qos=1)
    assert len(peer.take_all()) == 50
    peer.subscribe("t/#", qos=1)
    assert len(peer.publishes()) == 3
    peer.unsubscribe("t/#")
    for packet_id in range(51, 54):
        peer.ack(wire.PUBACK, packet_id)
    assert peer.inbox == []


def test_asking_again_and_again_piles_up_nothing() -> None:
    rig = Rig()
    rig.connected("p").publish1("t", "x", retain=True)
    peer = rig.lasting("s", receive_maximum=1)
    peer.subscribe("t", qos=1)
    peer.inbox.clear()
    for _ in range(50):
        peer.subscribe("t", qos=1)
    assert len(rig.core.sessions.get("s").retained) <= 1  # type: ignore[union-attr]


def test_the_bound_on_topics() -> None:
    rig = Rig(config(retained=2))
    publisher = rig.connected("p")
    for topic in ("a", "b", "c", "a"):
        publisher.publish1(topic, topic, retain=True)
    peer = rig.connected("s")
    peer.subscribe("#")
    assert _retained(peer) == {"a": "a", "b": "b"}
