"""What the answers say: bare acks, refusals by level, and settings that only an answer can tell of."""

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish, Will
from tests.support.encode import encode
from tests.support.mqtt import user
from tests.support.rig import Rig, about, config
from timeline.position import MessageId


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("watched", [False, True])
def test_the_ack_of_a_plain_publish_is_bare(rig: Rig, qos: int, retain: bool, watched: bool) -> None:
    """[MQTT-3.4.2.1]: stored or not, 2 bytes behind the fixed header when there is nothing to say."""
    watch = rig.lasting("w") if watched else rig.connected("w")
    watch.subscribe("t")
    peer = rig.lasting("a")
    peer.raw.clear()
    packet_id = peer.publish("t", "x", qos, retain=retain)
    kind = b"\x40" if qos == 1 else b"\x50"
    assert peer.raw == [kind + b"\x02" + packet_id.to_bytes(2)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    ("topic", "users"),
    [
        ("$delayed/5/t", ()),
        ("t", (("deliver-in", "5s"),)),
        ("t", (("idempotency-key", "k"),)),
    ],
)
def test_the_ack_of_a_delayed_or_keyed_one_names_it(
    topic: str, users: tuple[tuple[str, str], ...], qos: int
) -> None:
    peer = Rig().lasting("a")
    packet_id = peer.publish(topic, "x", qos, user_properties=users)
    ack: Ack = peer.take_ack(wire.PUBACK if qos == 1 else wire.PUBREC, packet_id)
    assert len(user(ack, "fasti-id") or "") == 32


@pytest.mark.parametrize("qos", [1, 2])
def test_under_the_key_of_a_cancelled_message(rig: Rig, qos: int) -> None:
    """Who sends it again is told that nobody gets it, and can have it scheduled anew."""
    peer, watch = rig.lasting("a"), rig.connected("w").subscribed("t")
    kind = wire.PUBACK if qos == 1 else wire.PUBREC

    def said(payload: str, *more: tuple[str, str]) -> tuple[int, str | None, str | None]:
        users = (("idempotency-key", "k"), ("deliver-in", "60s"), *more)
        ack: Ack = peer.take_ack(kind, peer.publish("t", payload, qos, user_properties=users))
        told = ack.properties
        return ack.reason, told and told.user("fasti-id"), told and told.user("fasti-state")

    def cancel(name: str | None) -> None:
        rig.decide(lambda commit: commit.cancel(MessageId(int(name or "", 16))))

    replace, key_only = ("idempotency-replace", "true"), ("idempotency-key-only", "true")
    _, first, _ = said("x")
    assert said("x", replace) == (0, first, None)
    assert said("y", replace)[0] == 0x83
    assert said("y", key_only) == (0, first, None)
    cancel(first)
    assert said("x") == said("y", key_only) == (0, first, "cancelled")
    reason, second, state = said("y", replace, ("own", "1"))
    assert (reason, state) == (0, None)
    assert second != first
    assert said("y", replace, ("own", "1")) == (0, second, None)
    rig.pass_ms(61_000)
    (delivered,) = watch.publishes()
    assert delivered.payload == b"y"
    own = [pair for pair in about(delivered).user_properties if not pair[0].startswith("fasti-")]
    assert own == [("own", "1")]


@pytest.mark.parametrize(
    "users",
    [
        (("idempotency-replace", "true"),),
        (("idempotency-key-only", "true"),),
        (("idempotency-key", "k"), ("idempotency-replace", "yes")),
        (("idempotency-key", "k"), ("idempotency-key-only", "1")),
        (("idempotency-key-scope", "pending"),),
        (("idempotency-key", "k"), ("idempotency-key-scope", "unique")),
    ],
)
def test_what_is_said_of_no_key_or_cannot_be_meant_is_refused(users: tuple[tuple[str, str], ...]) -> None:
    peer = Rig().connected("a")
    assert peer.publish1("t", user_properties=users).reason == 0x83
    assert peer.publish1("t", user_properties=(("idempotency-replace", "false"),)).reason == 0x10


@pytest.mark.parametrize(("asked", "reason"), [(0, 2), (1, 0), (17, 0), (18, 2), (65_535, 2)])
@pytest.mark.parametrize("level", [3, 4])
def test_a_client_that_cannot_be_told_of_the_keep_alive(level: int, asked: int, reason: int) -> None:
    """Its own is kept or refused: it would be cut for one that it does not know."""
    peer = Rig(config(keep_alive_s=17)).peer(level)
    assert peer.connect("a", keep_alive=asked).reason == reason
    assert peer.is_closed == bool(reason)
    if not reason:
        assert peer.connection.keep_alive_s == asked


@pytest.mark.parametrize("asked", [0, 3, 99])
def test_a_client_that_can_be_told(asked: int) -> None:
    """[MQTT-3.1.2-21]"""
    peer = Rig(config(keep_alive_s=17)).peer()
    told = peer.connect("a", keep_alive=asked).properties
    assert told is not None
    assert (told.server_keep_alive, peer.connection.keep_alive_s) == (17, 17)


@pytest.mark.parametrize(
    ("will", "at_5"),
    [
        (Will(b"$SYS/x", b""), 0x90),
        (Will(b"a/b/c/d", b""), 0x90),
        (Will(b"w", b"", 2), 0x9B),
        (Will(b"w", b"", 1, True), 0x9A),
        (Will(b"w", b"12345"), 0x95),
    ],
)
def test_a_will_that_is_never_taken(will: Will, at_5: int) -> None:
    """Below level 5 as "not authorized": a client comes back soon to a "server unavailable"."""
    rig = Rig(config(maximum_qos=1, retain_available=False, max_payload=4, topic_levels=3))
    assert rig.peer(5).connect("a", will=will).reason == at_5
    assert rig.peer(4).connect("a", will=will).reason == 5


def test_what_may_be_taken_later_is_told_so() -> None:
    """More sessions than there may be: some other day."""
    rig = Rig(config(sessions=1))
    rig.connected("a")
    assert rig.peer(5).connect("b").reason == 0x97
    assert rig.peer(4).connect("b").reason == 3


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", ["t", "$delayed/1/t"])
def test_a_payload_above_the_limit(topic: str, qos: int, level: int) -> None:
    """CONNACK told of the size of packets only: the publish is refused, at QoS 0 dropped."""
    rig = Rig(config(max_payload=4))
    watch = rig.connected("w").subscribed("t", qos=0)
    peer = rig.connected("a", level)
    packet_id = peer.publish(topic, "12345", qos)
    assert rig.core.publishing.traffic.refused == 1
    if qos and level == 4:
        assert (peer.is_closed, peer.inbox) == (True, [])
        peer = rig.connected("a", level)
    elif qos:
        assert peer.take_ack(wire.PUBACK if qos == 1 else wire.PUBREC, packet_id).reason == 0x97
    assert not peer.is_closed
    peer.publish(topic, "1234", qos, packet_id=packet_id)
    rig.pass_ms(2_000)
    assert watch.payloads() == ["1234"]


def test_a_refused_qos_2_publish_leaves_its_packet_id_and_receive_maximum_alone() -> None:
    rig = Rig(config(max_payload=4, receive_maximum=1))
    peer = rig.lasting("a")
    for _ in range(5):
        assert peer.begin("t", "12345", packet_id=3).reason == 0x97
    peer.publish2("t", "1234", packet_id=3)
    peer.begin("t", "1234", packet_id=3)
    peer.publish("t", "1234", 2, packet_id=4)
    assert peer.gone_with == 0x93


@pytest.mark.parametrize("lasting", [False, True])
def test_unsubscribe_from_what_is_no_filter(rig: Rig, lasting: bool) -> None:
    peer = rig.lasting("a") if lasting else rig.connected("a")
    peer.subscribe("t", "$share/g/t")
    bad = ("a/#/b", "a+", "$share/g", "$share//a", "$share/+/a", "#/")
    assert peer.unsubscribe("t", *bad, "a", "$share/g/t") == (0, *[0x8F] * len(bad), 0x11, 0)
    old = rig.connected("o", 4).subscribed("t")
    assert old.unsubscribe("t", *bad) == ()
    assert not old.is_closed


def test_packets_of_16_bytes() -> None:
    rig = Rig(config(maximum_packet_size=16))
    peer = rig.peer()
    told = peer.connect("a client id that is longer than that", expiry=60).properties
    assert told is not None
    assert told.maximum_packet_size == 16
    peer.subscribe("t", qos=1)
    peer.publish1("t", "x" * 8)
    assert peer.take_all() == ["x" * 8]
    peer.publish("t", "x" * 9, 1)
    assert peer.gone_with == 0x95


def test_what_waits_for_an_answer_counts_once() -> None:
    """QoS 2 that has been handed on, behind one that waits for its sync: [MQTT-3.3.4-9]."""
    rig = Rig(config(receive_maximum=4))
    peer = rig.connected("a")
    peer.publish("$delayed/60/t", "x", 1, packet_id=1, pump=False)
    for packet_id in (2, 3):
        peer.publish("t", "x", 2, packet_id=packet_id, pump=False)
    rig.compose()
    for _ in range(5):
        rig.turn()
    peer.publish("t", "x", 2, packet_id=4, pump=False)
    rig.pump()
    assert [packet.packet_id for packet in peer.inbox] == [1, 2, 3, 4]  # type: ignore[union-attr]
    peer.inbox.clear()
    assert peer.begin("t", "x", packet_id=5).reason < 0x80
    peer.publish("t", "x", 2, packet_id=6)
    assert peer.gone_with == 0x93


@pytest.mark.long
@pytest.mark.parametrize("level", [4, 5])
def test_the_same_packet_again_and_again(level: int) -> None:
    """Each is answered, behind what is not: that queue has a bound too."""
    rig = Rig(config(receive_maximum=10))
    peer = rig.connected("a", level)
    peer.publish("t", "x", 2, packet_id=2)
    peer.inbox.clear()
    peer.publish("$delayed/60/t", "x", 1, packet_id=1, pump=False)
    again = encode(Publish(b"t", b"x", 2, dup=True, packet_id=2), level)
    peer.send_bytes(again * 9, pump=False)
    rig.pump()
    assert len(peer.inbox) == 10
    peer.inbox.clear()
    peer.publish("$delayed/60/t", "x", 1, packet_id=1, pump=False)
    peer.send_bytes(again * 70_000, pump=False)
    rig.pump()
    assert peer.is_closed
    assert peer.gone_with == (0x93 if level == 5 else None)


def test_topics_behind_aliases_have_a_bound_in_bytes() -> None:
    """Room for one as long as there can be, or for short ones behind each alias; an alias may get another."""
    rig = Rig(config(topic_alias_maximum=32, topic_levels=65_535))
    peer = rig.connected("a")
    for n in range(100):
        peer.publish(f"{n:02}".ljust(65_535, "x"), topic_alias=7)
    peer.publish("short", topic_alias=7)
    for n in range(64):
        peer.publish(f"{n:02}".ljust(2_048, "x"), topic_alias=n % 32 + 1)
    assert not peer.is_closed
    peer.publish("y" * 2_049, topic_alias=7)
    assert peer.gone_with == 0x97


@pytest.mark.long
@pytest.mark.parametrize(("size", "count"), [(100, 256), (1_000, 65), (60_000, 1)])
def test_aliases_that_the_server_gives_have_one(rig: Rig, size: int, count: int) -> None:
    watch = rig.connected("w", topic_alias_maximum=65_535).subscribed("#", qos=0)
    peer = rig.connected("p")
    for _ in range(2):
        for n in range(300):
            peer.publish(f"{n:03}".ljust(size, "x"))
    found = watch.publishes()
    assert len(found) == 600
    named = {p.properties.topic_alias: p.topic for p in found if p.properties and p.topic}
    assert len(named) == count
    again = [p for p in found[300:] if not p.topic]
    assert len(again) == count
    assert all(p.properties and p.properties.topic_alias in named for p in again)


def test_a_will_under_an_id_of_the_server_s_making_is_its_own(rig: Rig) -> None:
    """No local holds for it as for the client's other messages."""
    peer = rig.peer()
    connack = peer.connect("", expiry=60, will=Will(b"t", b"gone", 1))
    peer.subscribe("t", qos=1, no_local=True)
    watch = rig.connected("w").subscribed("t", qos=1)
    peer.drop()
    assert watch.take_all() == ["gone"]
    again = rig.lasting(about(connack).assigned_client_id or "")
    assert again.take_all() == []


@pytest.mark.parametrize("level", [4, 5])
def test_what_earlier_connections_have_not_released_has_a_bound(level: int) -> None:
    """Four times Receive Maximum: refused, and taken again once something is released."""
    rig = Rig(config(receive_maximum=2))
    for first in (1, 3, 5, 7):
        peer = rig.lasting("a", level)
        for packet_id in (first, first + 1):
            assert peer.begin("t", "x", packet_id=packet_id).reason < 0x80
        peer.drop()
    rig.crash(pump=True)
    peer = rig.lasting("a", level)
    peer.publish("t", "x", 2, packet_id=9)
    if level == 5:
        assert peer.take_ack(wire.PUBREC, 9).reason == 0x97
    else:
        assert peer.is_closed
        peer = rig.lasting("a", level)
    assert peer.publish1("t", packet_id=20).reason < 0x80
    assert peer.begin("t", "x", packet_id=3, dup=True).reason < 0x80
    peer.release(3)
    assert peer.begin("t", "x", packet_id=9).reason < 0x80
