"""Bridges below level 5: they say so in the level, and what they are sent does not come from them."""

import pytest

from server.codec.packets import Connack, Connect
from tests.mqtt.rig import Peer, Rig

LEVELS = pytest.mark.parametrize("level", [3, 4])


def bridged(rig: Rig, level: int, *, lasting: bool = False) -> Peer:
    peer = rig.peer(level)
    peer.send(Connect(level, "bridge", clean_start=not lasting, is_bridge=True))
    assert peer.take(Connack).reason == 0
    return peer


@LEVELS
@pytest.mark.parametrize("lasting", [False, True])
def test_nothing_comes_back(level: int, lasting: bool) -> None:
    rig = Rig()
    bridge = bridged(rig, level, lasting=lasting)
    assert bridge.subscribe("#", "a/+", qos=1) == (1, 1)
    watch = rig.connected("w")
    watch.subscribe("#", qos=1)
    for qos in range(3):
        bridge.publish("a/b", f"theirs {qos}", qos)
    bridge.inbox.clear()
    bridge.publish1("a/c", "kept", retain=True)
    bridge.publish1("$delayed/1/a/b", "later")
    rig.pass_ms(2_000)
    assert bridge.inbox == []
    rig.connected("p").publish1("a/b", "ours")
    assert bridge.take_all() == ["ours"]
    assert watch.take_all() == ["theirs 0", "theirs 1", "theirs 2", "kept", "later", "ours"]


@LEVELS
def test_what_is_retained_is_so_on_the_other_side(level: int) -> None:
    rig = Rig()
    bridge = bridged(rig, level)
    bridge.subscribe("#", qos=1)
    plain = rig.connected("c", level)
    plain.subscribe("#", qos=1)
    peer = rig.connected("p")
    peer.publish1("a", "kept", retain=True)
    peer.publish1("a", "passing")
    assert [packet.retain for packet in bridge.publishes()] == [True, False]
    assert [packet.retain for packet in plain.publishes()] == [False, False]


@LEVELS
def test_what_was_missed_comes_without_its_own(level: int) -> None:
    """Also after a kill: the options are the session's."""
    rig = Rig()
    bridge = bridged(rig, level, lasting=True)
    bridge.subscribe("a/#", qos=1)
    bridge.drop()
    rig.connected("p").publish1("a/b", "missed")
    rig.crash()
    rig.pump()
    bridge = bridged(rig, level, lasting=True)
    assert bridge.take_all() == ["missed"]
    bridge.publish1("a/b", "theirs")
    assert bridge.take_all() == []


@LEVELS
def test_a_bridge_in_a_group(level: int) -> None:
    """No local is none of a shared subscription's options."""
    rig = Rig()
    bridge = bridged(rig, level)
    assert bridge.subscribe("$share/g/a", qos=1) == (1,)
    bridge.publish("a", "x")
    assert bridge.payloads() == ["x"]
