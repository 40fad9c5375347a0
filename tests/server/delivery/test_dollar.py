"""Topics that begin with `$`: a few are the server's own, others are topics which `#` does not match."""

import pytest

from server.codec import wire
from server.codec.packets import Will
from tests.support.rig import Rig, config

TOPIC = "$foo/a"
RESERVED = ("$SYS", "$share", "$delayed", "$dead", "$queue", "$control")
LEVELS = pytest.mark.parametrize("level", [4, 5])


class Watch:
    """Five clients, of which those of `$foo` get a topic in it and those of wildcards do not."""

    def __init__(self, rig: Rig) -> None:
        self.theirs = [rig.lasting(f"their {n}") for n in range(3)]
        for peer, text in zip(self.theirs, ("$foo/a", "$foo/+", "$foo/#"), strict=True):
            peer.subscribe(text, qos=1)
        self.others = [rig.lasting(f"other {n}") for n in range(3)]
        for peer, text in zip(self.others, ("#", "+/a", "+/#"), strict=True):
            peer.subscribe(text, qos=1)

    def got(self) -> list[str]:
        """What each of those that ask for it has got, the same for all."""
        assert [peer.take_all() for peer in self.others] == [[], [], []]
        first, *rest = [peer.take_all() for peer in self.theirs]
        assert all(got == first for got in rest), (first, rest)
        return first


@LEVELS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_live(rig: Rig, level: int, qos: int) -> None:
    watch = Watch(rig)
    peer = rig.connected("p", level)
    packet_id = peer.publish(TOPIC, "x", qos)
    if qos:
        ack = peer.take_ack(wire.PUBACK if qos == 1 else wire.PUBREC, packet_id)
        assert ack.reason == 0
    assert watch.got() == ["x"]


def test_away_and_back(rig: Rig) -> None:
    Watch(rig)
    rig.crash()
    rig.connected("p").publish1(TOPIC, "x")
    again = [rig.lasting(f"their {n}") for n in range(3)] + [rig.lasting(f"other {n}") for n in range(3)]
    assert [peer.take_all() for peer in again] == [["x"], ["x"], ["x"], [], [], []]


@LEVELS
@pytest.mark.parametrize("how", ["topic", "property"])
def test_delayed(rig: Rig, level: int, how: str) -> None:
    watch = Watch(rig)
    peer = rig.connected("p", level)
    if how == "topic":
        peer.publish1(f"$delayed/2/{TOPIC}", "x")
    elif level == 5:
        peer.publish1(TOPIC, "x", user_properties=(("deliver-in", "2s"),))
    else:
        return
    rig.pass_ms(1_500)
    assert watch.got() == []
    rig.pass_ms(1_500)
    assert watch.got() == ["x"]


@LEVELS
def test_retained(rig: Rig, level: int) -> None:
    rig.connected("p", level).publish1(TOPIC, "x", retain=True)
    assert Watch(rig).got() == ["x"]
    rig.connected("p", level).publish1(TOPIC, "", retain=True)
    assert rig.core.retained.count == 0


@LEVELS
def test_a_will(rig: Rig, level: int) -> None:
    watch = Watch(rig)
    rig.connected("p", level, will=Will(TOPIC.encode(), b"gone", 1)).drop()
    assert watch.got() == ["gone"]


def test_a_group(rig: Rig) -> None:
    mine, wild = rig.lasting("a").subscribed("$share/g/$foo/#", qos=1), rig.lasting("b")
    wild.subscribe("$share/g/#", qos=1)
    rig.connected("p").publish1(TOPIC, "x")
    assert (mine.take_all(), wild.take_all()) == (["x"], [])


def test_a_server_that_denies_them() -> None:
    rig = Rig(config(deny_subscribe=("$foo/#",)))
    peer = rig.connected("a")
    assert peer.subscribe("$foo/a", "$foo/#", "$fo/#") == (0x87, 0x87, 2)
    assert rig.connected("p").publish1(TOPIC, "x").reason == 0x10


@pytest.mark.parametrize("first", RESERVED)
@pytest.mark.parametrize("rest", ["", "/", "/5", "/x", "/x/y"])
def test_reserved(rig: Rig, first: str, rest: str) -> None:
    watch = rig.connected("w").subscribed(f"{first}/#" if first != "$share" else "t")
    peer = rig.connected("p")
    for topic in (first + rest, f"$delayed/0/{first}{rest}"):
        assert peer.publish1(topic, "x").reason == 0x90
        peer.publish(topic, "x", 0)
        assert peer.begin(topic, "x").reason == 0x90
        assert rig.peer().connect("b", will=Will(topic.encode(), b"")).reason == 0x90
    rig.pass_ms(2_000)
    assert watch.publishes() == []
    old = rig.connected("o", 4)
    old.publish(first + rest, "x", 1)
    assert old.is_closed


@pytest.mark.parametrize(
    "topic", ["$", "$/", "$SYSX/a", "$sys/a", "$shared/a", "$dead-letters", "$queues/q", "a/$SYS"]
)
def test_what_only_looks_like_it(rig: Rig, topic: str) -> None:
    watch = rig.connected("w").subscribed(topic, qos=1)
    assert rig.connected("p").publish1(topic, "x").reason == 0
    assert watch.take_all() == ["x"]


@LEVELS
def test_where_bridges_say_that_they_are_connected(rig: Rig, level: int) -> None:
    """Retained and as a will, by anybody; nothing beside it."""
    topic = "$SYS/broker/connection/far.away/state"
    watch = rig.lasting("w").subscribed("$SYS/broker/connection/#", qos=1)
    wild = rig.lasting("x").subscribed("#", qos=1)
    bridge = rig.connected("b", level, will=Will(topic.encode(), b"0", 1, retain=True))
    bridge.publish1(topic, "1", retain=True)
    bridge.drop()
    assert watch.take_all() == ["1", "0"]
    late = rig.connected("l").subscribed(topic)
    assert late.take_all() == ["0"]
    assert wild.take_all() == []
    peer = rig.connected("p")
    for other in (
        "$SYS/broker/connection/state",
        "$SYS/broker/connection/a/b/state",
        f"{topic}/x",
        "$SYS/broker/x",
    ):
        assert peer.publish1(other, "1").reason == 0x90
    assert peer.publish1(f"$delayed/1/{topic}", "1").reason == 0x90
