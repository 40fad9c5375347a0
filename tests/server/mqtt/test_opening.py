"""CONNECT and what it grants, sessions that stay or go, and what ends a connection: [MQTT-3.1], [MQTT-3.2],
[MQTT-3.14], [MQTT-4.1], [MQTT-4.13]."""

import pytest

from server.codec import wire
from server.codec.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Will,
)
from server.delivery.link import Closing
from server.reports.figures import reason_name
from tests.support.encode import encode
from tests.support.rig import LONG_S, Rig, about, config, props

LEVELS = pytest.mark.parametrize("level", [3, 4, 5])


@LEVELS
def test_connack_comes_first_and_says_that_there_was_no_session(level: int) -> None:
    peer = Rig().peer(level)
    connack = peer.connect("a")
    assert (connack.session_present, connack.reason) == (False, 0)
    peer.ping()
    peer.take(Pingresp)
    assert peer.inbox == []


@LEVELS
def test_what_is_sent_without_waiting_for_connack_is_done_in_order(rig: Rig, level: int) -> None:
    peer = rig.peer(level)
    clean = Connect(
        level, "a", clean_start=False, properties=props(session_expiry=60) if level == 5 else None
    )
    packets = (
        clean,
        Subscribe(1, (("t", SubscribeOptions(1)),)),
        Publish(b"t", b"x", 1, packet_id=2),
        Pingreq(),
    )
    peer.send(*packets)
    peer.take(Connack)
    kinds = [type(packet) for packet in peer.inbox]
    assert sorted(kind.__name__ for kind in kinds) == ["Ack", "Pingresp", "Publish", "Suback"]


def test_a_fault_behind_connect_is_not_told_before_connack(rig: Rig) -> None:
    """[MQTT-3.14.0-1]"""
    for level in (4, 5):
        peer = rig.peer(level)
        clean = Connect(
            level, "a", clean_start=False, properties=props(session_expiry=9) if level == 5 else None
        )
        peer.send_bytes(encode(clean, level) + b"\x00\x00")
        peer.take(Connack)
        assert peer.is_closed
        assert peer.gone_with == (0x81 if level == 5 else None)


def test_a_takeover_before_connack_is_not_told_before_connack(rig: Rig) -> None:
    first, second = rig.peer(), rig.peer()
    first.connect("a", expiry=60, pump=False)
    second.connect("a", expiry=60, pump=False)
    rig.pump()
    assert first.is_closed
    assert first.inbox == []
    assert second.take(Connack).reason == 0


@LEVELS
def test_the_first_packet_must_be_connect(rig: Rig, level: int) -> None:
    """[MQTT-3.1.0-1]"""
    for packet in (Publish(b"t", b""), Pingreq(), Subscribe(1, (("t", SubscribeOptions()),)), Disconnect()):
        peer = rig.peer(level)
        peer.send(packet)
        assert peer.is_closed
        assert peer.inbox == []


@LEVELS
def test_a_second_connect_is_a_fault(rig: Rig, level: int) -> None:
    """[MQTT-3.1.0-2]"""
    peer = rig.connected("a", level)
    peer.send(Connect(level, "a"))
    assert peer.gone_with == (0x82 if level == 5 else None)


def test_levels_and_names_that_are_not_spoken(rig: Rig) -> None:
    """[MQTT-3.1.2-1], [MQTT-3.1.2-2]"""
    for level, name, answer in ((6, b"MQTT", b"\x20\x03\x00\x84\x00"), (2, b"MQTT", b"\x20\x02\x00\x01")):
        peer = rig.peer(4)
        body = b"\x00\x04" + name + bytes((level, 2)) + b"\x00\x00\x00\x01a"
        peer.connection.receive(b"\x10" + bytes((len(body),)) + body)
        assert b"".join(peer.connection.take_output()) == answer
        assert peer.connection.outbox.is_closed


@pytest.mark.parametrize(
    ("level", "clean", "reason"),
    [(3, False, 2), (3, True, 2), (4, False, 2), (4, True, 0), (5, True, 0), (5, False, 0)],
)
def test_empty_client_ids(level: int, clean: bool, reason: int) -> None:
    """[MQTT-3.1.3-6] to [MQTT-3.1.3-8]"""
    peer = Rig().peer(level)
    connack = peer.connect("", clean=clean)
    assert connack.reason == reason
    assert peer.is_closed == (reason != 0)
    if level == 5:
        assert about(connack).assigned_client_id


def test_assigned_client_ids_differ_and_name_a_session(rig: Rig) -> None:
    """[MQTT-3.2.2-16]"""
    names = []
    for _ in range(3):
        peer = rig.peer()
        connack = peer.connect("", expiry=60)
        names.append(about(connack).assigned_client_id)
        peer.subscribe("t")
        peer.drop()
    assert len(set(names)) == 3
    again = rig.peer()
    connack = again.connect(names[1], clean=False, expiry=60)
    assert connack.session_present
    assert connack.properties is None or connack.properties.assigned_client_id is None


def test_what_connack_announces() -> None:
    rig = Rig(config(keep_alive_s=17, maximum_qos=1, retain_available=False, receive_maximum=7))
    told = rig.peer().connect("a", keep_alive=99).properties
    assert told is not None
    assert told.server_keep_alive == 17
    assert told.maximum_qos == 1
    assert told.retain_available is False
    assert told.receive_maximum == 7
    assert told.topic_alias_maximum == 32
    assert told.maximum_packet_size == 1 << 20
    assert told.session_expiry is None
    told = Rig().peer().connect("a").properties
    assert told is not None
    assert (told.server_keep_alive, told.maximum_qos, told.retain_available) == (None, None, None)
    assert (told.shared_available, told.wildcard_available, told.subscription_ids_available) == (None,) * 3
    assert told.receive_maximum == 1_024


@pytest.mark.parametrize(
    ("asked", "told"), [(60, None), (0, None), (0xFFFF_FFFF, 604_800), (604_801, 604_800), (604_800, None)]
)
def test_session_expiry_is_capped_and_told(asked: int, told: int | None) -> None:
    """[MQTT-3.2.2-21] in the errata's numbering: the server says what it uses instead."""
    properties = Rig().peer().connect("a", expiry=asked).properties
    assert properties is not None
    assert properties.session_expiry == told


def test_session_present_over_its_whole_life(rig: Rig) -> None:
    """[MQTT-3.2.2-2], [MQTT-3.2.2-3], [MQTT-3.1.2-5], [MQTT-3.1.2-23]"""
    for clean, expiry, present in (
        (False, 60, False),
        (False, 60, True),
        (False, 0, True),
        (False, 60, False),
        (True, 60, False),
        (False, 60, True),
        (True, 0, False),
        (False, 0, False),
    ):
        peer = rig.peer()
        assert peer.connect("a", clean=clean, expiry=expiry).session_present == present
        peer.drop()


def test_clean_session_of_3_1_1(rig: Rig) -> None:
    """[MQTT-3.1.2-4] to [MQTT-3.1.2-6]"""
    for clean, present in ((False, False), (False, True), (True, False), (False, False), (False, True)):
        peer = rig.peer(4)
        assert peer.connect("a", clean=clean).session_present == present
        peer.disconnect()


def test_a_session_is_over_when_its_expiry_has_come_whether_housekeeping_has_or_not(rig: Rig) -> None:
    rig.lasting("a", expiry=5).subscribed("t").drop()
    rig.pass_ms(4_000)
    peer = rig.peer()
    assert peer.connect("a", clean=False, expiry=5).session_present
    peer.drop()
    rig.pass_ms(5_000)
    rig.connected("p").publish1("t", "late")
    peer = rig.peer()
    assert not peer.connect("a", clean=False, expiry=5).session_present
    assert peer.inbox == []


def test_expiry_is_changed_by_disconnect(rig: Rig) -> None:
    """[MQTT-3.14.2-2] and 3.14.2.2.2"""
    rig.lasting("a").disconnect(expiry=0)
    peer = rig.peer()
    assert not peer.connect("a", clean=False, expiry=3).session_present
    peer.disconnect(expiry=0xFFFF_FFFF)
    rig.pass_ms(10_000)
    peer = rig.peer()
    assert peer.connect("a", clean=False, expiry=3).session_present
    peer.disconnect(expiry=50)
    rig.crash()
    rig.pass_ms(10_000)
    peer = rig.peer()
    assert peer.connect("a", clean=False, expiry=3).session_present


def test_disconnect_cannot_give_an_expiry_to_a_session_without(rig: Rig) -> None:
    peer = rig.connected("a")
    peer.disconnect(expiry=10)
    assert peer.gone_with == 0x82


def test_nothing_of_a_session_outlives_a_clean_start(rig: Rig) -> None:
    """[MQTT-3.1.2-4]: subscriptions, deliveries in flight, and packet ids of half-done publishes."""
    first = rig.lasting("a").subscribed("t")
    rig.connected("p").publish1("t", "old")
    first.publish("u", "half", 2, packet_id=9)
    first.drop()
    second = rig.peer()
    assert not second.connect("a", clean=True, expiry=LONG_S).session_present
    rig.connected("p").publish1("t", "new")
    assert second.inbox == []
    rig.crash(pump=True)
    third = rig.lasting("a")
    watch = rig.connected("w").subscribed("u")
    assert third.begin("u", "another", packet_id=9).reason == 0
    assert watch.take_all() == ["another"]


@LEVELS
def test_takeover(rig: Rig, level: int) -> None:
    """[MQTT-3.1.4-3]"""
    first = rig.lasting("a", level).subscribed("t", qos=1)
    rig.send("t", "in flight")
    sent = first.one()
    second = rig.peer(level)
    assert second.connect("a", clean=False, **({"expiry": 60} if level == 5 else {})).session_present == (
        level > 3
    )
    assert first.gone_with == (0x8E if level == 5 else None)
    again = second.one()
    assert (again.payload, again.packet_id, again.dup) == (b"in flight", sent.packet_id, True)
    second.ack(wire.PUBACK, again.packet_id)
    rig.connected("p").publish1("t", "x")
    assert second.take_all() == ["x"]


def test_auth_without_a_method_and_with_one(rig: Rig) -> None:
    """[MQTT-4.12.0-1], [MQTT-4.12.0-6]"""
    peer = rig.connected("a")
    peer.send(Auth(0x18, props(auth_method="X")))
    assert peer.gone_with == 0x82
    peer = rig.peer()
    assert peer.connect("b", auth_method="X").reason == 0x8C
    assert peer.is_closed


def test_anonymous_clients_can_be_refused() -> None:
    rig = Rig(config(allow_anonymous=False))
    assert rig.peer(5).connect("a").reason == 0x87
    assert rig.peer(4).connect("a").reason == 5
    assert rig.core.publishing.traffic.answered == {0x87: 2}


def test_what_connects_are_answered_with_is_counted(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.connected(name)
    rig.peer().connect("c", auth_method="X")
    assert rig.core.publishing.traffic.answered == {0: 2, 0x8C: 1}
    assert [reason_name(one) for one in (0, 0x8C, 0x05)] == ["success", "bad_authentication_method", "0x05"]


def test_nothing_follows_a_disconnect_of_the_server(rig: Rig) -> None:
    """[MQTT-3.14.4-1]: also not what was waiting for the disk."""
    peer = rig.lasting("a").subscribed("t")
    other = rig.connected("p")
    other.publish("t", "x", 2, pump=False)
    peer.publish("u", "y", 1, pump=False)
    for _ in range(3):
        rig.write()
        rig.turn()
    peer.connection.close(Closing.STOPPING)
    rig.pump()
    assert isinstance(peer.inbox[-1], Disconnect)


def test_request_problem_information_0_keeps_acks_bare(rig: Rig) -> None:
    """[MQTT-3.1.2-29]"""
    for wanted, has in ((True, True), (False, False), (None, True)):
        options = {} if wanted is None else {"request_problem_info": wanted}
        peer = rig.connected(**options)
        ack = peer.publish1("$delayed/5/t", "x")
        assert (ack.properties is not None) == has
        refused = peer.publish1("$SYS/t", "x")
        assert refused.reason == 0x90
        assert (refused.properties is not None) == has


def test_maximum_packet_size_of_the_client_holds_for_answers_too(rig: Rig) -> None:
    """[MQTT-3.1.2-24], [MQTT-3.4.2-2]"""
    peer = rig.connected("a", maximum_packet_size=40)
    ack = peer.publish1("$delayed/5/t", "x")
    assert (ack.reason, ack.properties) == (0, None)
    peer.send(Subscribe(9, tuple((f"t/{n}", SubscribeOptions()) for n in range(100))))
    assert peer.gone_with == 0x95
    assert all(len(data) <= 40 for data in peer.raw)


@pytest.mark.parametrize(("most", "has"), [(40, False), (200, True)])
def test_a_reason_string_is_told_if_it_fits(most: int, has: bool) -> None:
    """[MQTT-3.9.2-2], [MQTT-3.14.2-3]"""
    peer = Rig().connected("a", maximum_packet_size=most)
    peer.send(Subscribe(1, (("a/#/b", SubscribeOptions()),)))
    answer = peer.take(Suback)
    assert (answer.reasons, answer.properties is not None) == ((0x8F,), has)
    peer.publish("t", topic_alias=999)
    assert (peer.gone_with, peer.take(Disconnect).properties is not None) == (0x94, has)


def test_an_ack_of_something_unknown() -> None:
    """PUBREL and PUBREC of an unknown id are answered with 0x92; PUBACK and PUBCOMP are passed over."""
    for level in (4, 5):
        peer = Rig().connected(level=level)
        peer.ack(wire.PUBACK, 5)
        peer.ack(wire.PUBCOMP, 5)
        assert peer.inbox == []
        peer.ack(wire.PUBREC, 5)
        peer.ack(wire.PUBREL, 6)
        reason = 0x92 if level == 5 else 0
        assert peer.inbox == [Ack(wire.PUBREL, 5, reason), Ack(wire.PUBCOMP, 6, reason)]


@pytest.mark.parametrize(("said", "told"), [("false", False), ("true", None), (None, None)])
def test_a_client_may_have_no_subscription_identifiers(said: str | None, told: bool | None) -> None:
    """Node-RED matches topics by itself then; of several identifiers in one PUBLISH it can read none."""
    users = () if said is None else (("subscription-identifiers", said),)
    connack = Rig().peer().connect("a", user_properties=users)
    assert about(connack).subscription_ids_available is told


@pytest.mark.parametrize("level", [4, 5])
def test_in_a_resumed_session_it_is_no_error(rig: Rig, level: int) -> None:
    """MQTT 5.0, 3.6.2.1: 0x92 is for other times than recovery. The answer to the first PUBREL was lost."""
    peer = rig.lasting("a", level)
    peer.publish2("t", packet_id=6)
    peer = peer.back()
    peer.ack(wire.PUBREL, 6)
    peer.ack(wire.PUBREC, 5)
    assert peer.inbox == [Ack(wire.PUBCOMP, 6, 0), Ack(wire.PUBREL, 5, 0)]


def test_the_release_of_a_refused_publish_is_an_error_in_a_resumed_session_too(rig: Rig) -> None:
    """paho releases what PUBREC refused, and tells its program of success if PUBCOMP says 0."""
    rig.lasting("a").drop()
    peer = rig.lasting("a")
    peer.send(Publish(b"$delayed/x/t", b"m", 2, packet_id=6))
    peer.ack(wire.PUBREL, 6)
    answers = [(one.kind, one.reason) for one in peer.inbox if isinstance(one, Ack)]
    assert answers == [(wire.PUBREC, 0x90), (wire.PUBCOMP, 0x92)]


def test_a_will_with_what_the_server_does_not_take() -> None:
    """[MQTT-3.2.2-12], [MQTT-3.2.2-13]"""
    rig = Rig(config(maximum_qos=1, retain_available=False))
    assert rig.peer().connect("a", will=Will(b"w", b"", 1)).reason == 0
    said = props(payload_format=1)
    assert rig.peer().connect("a", will=Will(b"w", b"\xff", 1, properties=said)).reason == 0x99
    assert rig.peer().connect("a", will=Will(b"w", b"text", 1, properties=said)).reason == 0


@pytest.mark.parametrize(("reason", "told"), [(0, []), (4, ["gone"])])
def test_a_client_that_disconnects_and_comes_back_at_once_has_left_in_order(
    rig: Rig, reason: int, told: list[str]
) -> None:
    """Its DISCONNECT stands behind a SUBSCRIBE, which waits for the store."""
    watch, peer = rig.connected("w").subscribed("t", qos=0), rig.lasting("a", will=Will(b"t", b"gone", 0))
    first = Publish(b"t", b"1", 2, packet_id=1)
    again = Publish(b"t", b"2", 0)
    peer.send(first, Subscribe(2, (("x", SubscribeOptions(1)),)), again, Disconnect(reason), pump=False)
    peer.deliver()
    rig.lasting("a")
    assert sorted(watch.payloads()) == ["1", "2", *told]
