"""Message expiry where it is odd: of 0 s, in flight, retained."""

import pytest

from server.codec.packets import Publish, Will
from server.delivery.message import Message
from shards.fields import Record
from shards.store import Table
from tests.support.rig import Rig, config, props


def _expiries(packets: list[Publish]) -> list[int | None]:
    return [packet.properties.message_expiry if packet.properties else None for packet in packets]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_expiry_0_is_for_those_who_are_there(rig: Rig, qos: int) -> None:
    here, away = (rig.lasting(name).subscribed("t") for name in ("here", "away"))
    away.drop()
    publisher = rig.connected("p")
    publisher.publish("t", "now", qos, message_expiry=0)
    assert _expiries([here.one()]) == [0]
    publisher.publish("t", "for ever", max(qos, 1))
    rig.pass_ms(1_000)
    assert rig.lasting("away").payloads() == ["for ever"]


def test_expiry_0_is_not_retained_and_holds_for_wills(rig: Rig) -> None:
    here = rig.connected("here").subscribed("t")
    rig.connected("p", will=Will(b"t", b"w", 0, True, props(message_expiry=0))).drop()
    assert here.payloads() == ["w"]
    rig.pass_ms(1)
    late = rig.connected("late").subscribed("t")
    assert late.inbox == []


def test_expiry_0_with_a_delay_counts_from_due(rig: Rig) -> None:
    here = rig.connected("here").subscribed("t")
    publisher = rig.connected("p")
    publisher.publish1("$delayed/5/t", "x", message_expiry=0)
    rig.pass_ms(5_300)  # a little late, as timers are
    assert here.payloads() == ["x"]
    publisher.publish1("$delayed/5/t", "late", message_expiry=0)
    rig.clock.now_ms += 60_000  # the server was away
    rig.pump()
    assert here.inbox == []


def test_what_expired_in_flight_is_not_sent_again_at_qos_1() -> None:
    rig = Rig(config(max_in_flight=3))
    peer = rig.lasting("a").subscribed("t")
    publisher = rig.connected("p")
    publisher.publish1("t", "short", message_expiry=5)
    publisher.publish1("t", "long", message_expiry=500)
    publisher.publish2("t", "two", message_expiry=5)
    publisher.publish1("t", "next")
    assert peer.payloads() == ["short", "long", "two"]
    peer.drop()
    rig.pass_ms(6_000)
    peer = rig.lasting("a")
    # What was begun at QoS 2 is finished: [MQTT-4.3.3-7]. Its room is free.
    assert [(p.payload, p.dup) for p in peer.publishes()] == [
        (b"long", True),
        (b"two", True),
        (b"next", False),
    ]


def test_what_expired_does_not_go_to_another_member(rig: Rig) -> None:
    a, b = rig.lasting("a").subscribed("$share/g/t"), rig.lasting("b")
    rig.connected("p").publish1("t", "short", message_expiry=5)
    assert a.payloads() == ["short"]
    b.subscribe("$share/g/t")
    rig.pass_ms(6_000)
    a.drop()
    assert b.inbox == []
    group = rig.group("$share/g/t")
    assert group.session.flights == {}


def test_expired_retained_messages_are_swept() -> None:
    rig = Rig(config(retained=3))
    publisher = rig.connected("p")
    for topic, expiry in (("a", 5), ("b", 500), ("c", 5)):
        publisher.publish1(topic, topic, retain=True, message_expiry=expiry)
    publisher.publish1("d", "d", retain=True)
    retained = rig.core.retained
    assert (retained.count, retained.refused) == (3, 1)
    assert retained.sweep(b"", 100) == ([], b"")
    rig.pass_ms(6_000)
    assert retained.sweep(b"", 2) == ([b"a"], b"c")
    assert retained.sweep(b"c", 2) == ([b"c"], b"")
    publisher.publish1("c", "new", retain=True)
    dropped = rig.decide(lambda commit: retained.drop_expired(commit, [b"a", b"c", b"x"]))
    assert (dropped, retained.count) == ([1], 2)
    publisher.publish1("d", "d", retain=True)
    peer = rig.connected("s").subscribed("#")
    assert peer.payloads() == ["b", "new", "d"]
    rig.crash()
    assert rig.core.retained.count == 3


@pytest.mark.parametrize("is_noted", [False, True])
def test_what_a_lost_group_had_dropped_counts_again(*, is_noted: bool) -> None:
    """While the group is being synced, and lost, a new message of one of its topics fires."""
    rig = Rig(config(retained=9))
    publisher = rig.connected("p")
    for topic in ("a", "b"):
        publisher.publish1(topic, topic, retain=True, message_expiry=5)
    rig.pass_ms(6_000)
    retained = rig.core.retained
    rig.decide(lambda commit: retained.drop_expired(commit, [b"a", b"b"]), pump=False)
    rig.compose()
    assert retained.count == 0
    if is_noted:
        record = Record(b"a", b"new", retain=True)
        message = Message(rig.core.horizon.position, -1, record, rig.clock.wall_ms())
        retained.note(message)
    rig.lose()
    rig.pump()
    assert retained.count == 2
    assert sum(1 for _ in rig.store.scan(Table.RETAINED, b"", b"\xff")) == 2
