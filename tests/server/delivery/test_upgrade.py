"""`mqtt.upgrade_outgoing_qos`: a subscription gets each message at its own QoS."""

import pytest

from server.codec import wire
from server.codec.packets import Will
from tests.support.rig import Peer, Rig, config

LEVELS = pytest.mark.parametrize("level", [4, 5])
QOS = pytest.mark.parametrize("asked", [0, 1, 2])


def told(rig: Rig, peer: Peer, topic: str, qos: int, **options: bool) -> None:
    """Publish, and take the answer that belongs to the QoS as it was published."""
    packet_id = peer.publish(topic, "x", qos, **options)
    if qos == 1:
        assert peer.take_ack(wire.PUBACK, packet_id).reason == 0
    if qos == 2:
        assert peer.take_ack(wire.PUBREC, packet_id).reason == 0
        peer.ack(wire.PUBREL, packet_id)
        assert peer.take_ack(wire.PUBCOMP, packet_id).reason == 0
    assert peer.inbox == []


@LEVELS
@QOS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_live_retained_and_delayed(qos: int, asked: int, level: int) -> None:
    for upgrade in (False, True):
        rig = Rig(config(upgrade_outgoing_qos=upgrade))
        watch = rig.connected("w", level)
        watch.subscribe("#", qos=asked)
        peer = rig.connected("p", level)
        told(rig, peer, "t", qos)
        told(rig, peer, "kept", qos, retain=True)
        told(rig, peer, "$delayed/1/t", qos)
        rig.pass_ms(2_000)
        late = rig.connected("l", level)
        late.subscribe("kept", qos=asked)
        want = asked if upgrade else min(asked, qos)
        assert [packet.qos for packet in watch.publishes()] == [want] * 3
        assert [packet.qos for packet in late.publishes()] == [want]


@LEVELS
@QOS
def test_who_is_away_gets_what_was_published_at_qos_0(asked: int, level: int) -> None:
    """It counts as any other at QoS 1 or 2: stored if somebody needs it, over a kill too."""
    rig = Rig(config(upgrade_outgoing_qos=True))
    away = rig.lasting("a", level)
    away.subscribe("t", qos=asked)
    away.drop()
    peer = rig.connected("p", level)
    peer.publish("t", "x", 0)
    peer.publish("u", "nobody", 0)
    rig.crash()
    rig.pump()
    away = rig.lasting("a", level)
    assert [(packet.payload, packet.qos) for packet in away.publishes()] == ([(b"x", asked)] if asked else [])


@LEVELS
@QOS
def test_a_will(asked: int, level: int) -> None:
    rig = Rig(config(upgrade_outgoing_qos=True))
    watch = rig.connected("w", level)
    watch.subscribe("t", qos=asked)
    rig.connected("p", level, will=Will(b"t", b"gone", 0)).drop()
    assert [packet.qos for packet in watch.publishes()] == [asked]


def test_a_group() -> None:
    rig = Rig(config(upgrade_outgoing_qos=True))
    watch = rig.lasting("w")
    watch.subscribe("$share/g/t", qos=1)
    rig.connected("p").publish("t", "x", 0)
    assert [packet.qos for packet in watch.publishes()] == [1]


def test_no_higher_than_the_highest() -> None:
    rig = Rig(config(upgrade_outgoing_qos=True, maximum_qos=1))
    watch = rig.connected("w")
    assert watch.subscribe("t", qos=2) == (1,)
    rig.connected("p").publish("t", "x", 0)
    assert [packet.qos for packet in watch.publishes()] == [1]
    assert rig.core.config.mqtt.qos_floor == 1
