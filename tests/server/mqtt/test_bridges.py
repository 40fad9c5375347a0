"""Bridges below level 5: they say so in the level, and what they are sent does not come from them."""

import pytest

from server.codec.packets import Ack, Connack, Connect, Publish, Will
from tests.support.rig import Peer, Rig, config

LEVELS = pytest.mark.parametrize("level", [3, 4])


STATE = Will(b"$SYS/broker/connection/h.b/state", b"0", 1, True)
"""A bridge says so by this will, too: with `try_private false`, and at level 5."""


def bridged(rig: Rig, level: int, *, lasting: bool = False) -> Peer:
    peer = rig.peer(level)
    peer.send(Connect(level, "bridge", clean_start=not lasting, is_bridge=True))
    assert peer.take(Connack).reason == 0
    return peer


@LEVELS
@pytest.mark.parametrize("lasting", [False, True])
def test_nothing_comes_back(rig: Rig, level: int, lasting: bool) -> None:
    bridge = bridged(rig, level, lasting=lasting)
    assert bridge.subscribe("#", "a/+", qos=1) == (1, 1)
    watch = rig.connected("w").subscribed("#", qos=1)
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
def test_what_is_retained_is_so_on_the_other_side(rig: Rig, level: int) -> None:
    bridge = bridged(rig, level)
    bridge.subscribe("#", qos=1)
    plain = rig.connected("c", level).subscribed("#", qos=1)
    peer = rig.connected("p")
    peer.publish1("a", "kept", retain=True)
    peer.publish1("a", "passing")
    assert [packet.retain for packet in bridge.publishes()] == [True, False]
    assert [packet.retain for packet in plain.publishes()] == [False, False]


@LEVELS
def test_what_was_missed_comes_without_its_own(rig: Rig, level: int) -> None:
    """Also after a kill: the options are the session's."""
    bridge = bridged(rig, level, lasting=True)
    bridge.subscribe("a/#", qos=1)
    bridge.drop()
    rig.connected("p").publish1("a/b", "missed")
    rig.crash(pump=True)
    bridge = bridged(rig, level, lasting=True)
    assert bridge.take_all() == ["missed"]
    bridge.publish1("a/b", "theirs")
    assert bridge.take_all() == []


@LEVELS
def test_a_bridge_in_a_group(rig: Rig, level: int) -> None:
    """No local is none of a shared subscription's options."""
    bridge = bridged(rig, level)
    assert bridge.subscribe("$share/g/a", qos=1) == (1,)
    bridge.publish("a", "x")
    assert bridge.payloads() == ["x"]


@pytest.mark.parametrize(
    ("level", "is_named", "will"), [(3, True, None), (4, True, STATE), (4, False, STATE)]
)
def test_a_bridge_below_level_5_has_20_in_flight(level: int, is_named: bool, will: Will | None) -> None:
    """mosquitto takes 20 (`max_inflight_messages`), and drops what comes beyond at QoS 2."""
    rig = Rig()
    bridge = rig.peer(level)
    bridge.send(Connect(level, "bridge", clean_start=False, is_bridge=is_named, will=will))
    bridge.take(Connack)
    bridge.subscribe("t")
    publisher = rig.connected("p")
    for number in range(50):
        publisher.publish1("t", str(number))
        publisher.publish2("t", str(number))
    assert len(bridge.inbox) == 20
    assert len(bridge.take_all()) == 100


def test_a_bridge_at_level_5_may_go_beyond_receive_maximum() -> None:
    """mosquitto's does, sends it all again at each new try, and would never come to an end."""
    rig = Rig(config(receive_maximum=3))
    bridge = rig.connected("bridge", will=STATE)
    bridge.send(*[Publish(b"t", b"x", 1 + n % 2, packet_id=n + 1) for n in range(9)])
    assert [bridge.take(Ack).packet_id for _ in range(9)] == list(range(1, 10))
    assert bridge.gone_with == -1
    other = rig.connected("other", will=Will(b"state", b"0", 1, True))
    other.send(*[Publish(b"t", b"x", 1, packet_id=n + 1) for n in range(9)])
    assert other.gone_with == 0x93
