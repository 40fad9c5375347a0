"""What a client sends takes effect in the order in which it was sent: publishes before subscriptions."""

from itertools import pairwise

import pytest

from server.codec import wire
from server.codec.packets import (
    Ack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.support.rig import Peer, Rig, config

RETAINED = Publish(b"t", b"x", 1, True, packet_id=1)


def _wants(handling: int = 0, packet_id: int = 2) -> Subscribe:
    return Subscribe(packet_id, (("t", SubscribeOptions(1, False, False, handling)),))


def _came(peer: Peer) -> list[tuple[bytes, bool]]:
    """Payload and retain flag of the publishes, all acked."""
    found, peer.inbox = [packet for packet in peer.inbox if isinstance(packet, Publish)], []
    for packet in found:
        if packet.qos:
            peer.ack(wire.PUBACK if packet.qos == 1 else wire.PUBREC, packet.packet_id)
    return [(packet.payload, packet.retain) for packet in found]


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_publish_and_then_a_subscribe_in_one_go(level: int, lasting: bool, qos: int) -> None:
    rig = Rig()
    peer = rig.lasting("s", level) if lasting else rig.connected("s", level)
    peer.send(Publish(b"t", b"x", qos, True, packet_id=1 if qos else 0), _wants(), Pingreq())
    kinds = [type(packet) for packet in peer.inbox if not isinstance(packet, Ack)]
    assert sorted(kinds, key=str) == sorted([Suback, Publish, Pingresp], key=str)
    assert kinds.index(Suback) < kinds.index(Publish)
    assert _came(peer) == [(b"x", True)]
    assert _came(peer) == []


@pytest.mark.parametrize("retain", [False, True])
def test_with_retain_handling_2_what_was_published_before_does_not_come(rig: Rig, retain: bool) -> None:
    for peer in (rig.connected("a"), rig.lasting("b")):
        peer.send(Publish(b"t", b"before", 1, retain, packet_id=1), _wants(2))
        peer.send(Publish(b"t", b"again", 1, retain, packet_id=3), _wants(2, 4), pump=False)
        rig.pump()
        assert _came(peer) == [(b"again", False)]


def test_what_is_published_behind_a_subscribe_comes(rig: Rig) -> None:
    for peer in (rig.connected("a"), rig.lasting("b")):
        behind = Publish(b"t", b"behind", 1, packet_id=3)
        peer.send(RETAINED, _wants(2), behind, Publish(b"t", b"last", 0))
        assert [payload for payload, _ in _came(peer)] == [b"behind", b"last"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_was_published_before_an_unsubscribe_comes(rig: Rig, qos: int) -> None:
    for peer in (rig.connected("a"), rig.lasting("b")):
        peer.subscribe("t")
        before = Publish(b"t", b"before", qos, packet_id=1 if qos else 0)
        peer.send(before, Unsubscribe(2, ("t",)), Publish(b"t", b"behind", 0))
        assert [payload for payload, _ in _came(peer)] == [b"before"]


def test_many_of_both_in_one_go_come_each_in_its_place(rig: Rig) -> None:
    peer = rig.connected("s")
    packets: list[Packet] = []
    for number in range(300):
        packets += [Publish(b"t", b"no %d" % number, 0), _wants(2), Publish(b"t", b"%d" % number, 0)]
        packets += [Unsubscribe(3, ("t",))]
    peer.send(*packets, pump=False)
    assert peer.connection.is_behind
    rig.pump()
    assert not peer.connection.is_behind
    assert sum(isinstance(packet, Suback | Unsuback) for packet in peer.inbox) == 600
    assert [payload for payload, _ in _came(peer)] == [b"%d" % number for number in range(300)]


def test_who_has_published_nothing_waits_for_nothing(rig: Rig) -> None:
    peer = rig.connected("s")
    peer.publish("t")
    peer.subscribe("u")
    peer.send(_wants(), pump=False)
    peer.deliver()
    peer.take(Suback)


def test_acks_and_pings_do_not_wait(rig: Rig) -> None:
    peer = rig.connected("s", receive_maximum=1).subscribed("u", qos=1)
    rig.send("u", "1", "2")
    (first,) = peer.publishes()
    peer.send(RETAINED, _wants(), pump=False)
    peer.send(Pingreq(), Ack(wire.PUBACK, first.packet_id), Publish(b"u", b"behind", 0), pump=False)
    peer.deliver()
    peer.take(Pingresp)
    assert peer.inbox == []
    rig.core.replay.turn()
    peer.deliver()
    assert [packet.payload for packet in peer.publishes()] == [b"2"]
    rig.pump()
    peer.take_ack(wire.PUBACK, 1)
    peer.take(Suback)


@pytest.mark.parametrize("lasting", [False, True])
def test_the_store_fails_while_a_subscribe_waits(rig: Rig, lasting: bool) -> None:
    peer = rig.lasting("s") if lasting else rig.connected("s")
    rig.store.fail_writes = True
    peer.send(RETAINED, _wants(), Pingreq(), pump=False)
    for _ in range(9):
        rig.compose()
        rig.turn()
        rig.deliver()
    assert peer.is_closed is lasting
    assert lasting or {type(packet) for packet in peer.inbox} == {Suback, Pingresp, Ack}
    # And once more, now that it is known to have failed.
    peer = rig.connected("other")
    peer.send(RETAINED, _wants(), Pingreq(), pump=False)
    rig.deliver()
    rig.compose()
    while rig.deliver():
        pass
    assert {type(packet) for packet in peer.inbox} == {Suback, Pingresp, Ack}


def test_what_was_sent_before_the_connection_ended_counts(rig: Rig) -> None:
    watch = rig.connected("w").subscribed("#")
    peer = rig.lasting("s", will=Will(b"will", b"will"))
    peer.send(RETAINED, _wants(), Publish(b"u", b"last", 0), Disconnect(), pump=False)
    peer.drop()
    assert "t" in rig.session("s").session.subscriptions
    assert [payload for payload, _ in _came(watch)] == [b"x", b"last"]


@pytest.mark.parametrize("lasting", [False, True])
def test_many_filters_are_worked_off_in_rounds(lasting: bool) -> None:
    rig = Rig(config(subscriptions_per_session=1_500))
    peer = rig.lasting("s") if lasting else rig.connected("s")
    filters = [f"{number}/" + "x" * 100 for number in range(2_000)]
    wanted = tuple((text, SubscribeOptions(1, False, False, 2)) for text in filters)
    behind = Publish(filters[1_400].encode(), b"x", 0)
    peer.send(Subscribe(2, wanted), behind, Unsubscribe(3, tuple(filters)), Pingreq(), pump=False)
    subscriber = rig.session("s")
    counts = [len(subscriber.session.subscriptions)]
    assert counts[0] < 400
    while any([rig.compose(), rig.settle(), rig.turn(), rig.deliver()]):
        counts.append(len(subscriber.session.subscriptions))
    assert max(abs(after - before) for before, after in pairwise(counts)) < 800
    assert max(counts) == 1_500
    pingresp, publish, suback, unsuback = sorted(peer.inbox, key=lambda packet: type(packet).__name__)
    assert isinstance(suback, Suback)
    assert suback.reasons == (1,) * 1_500 + (0x97,) * 500
    assert isinstance(publish, Publish)
    assert isinstance(unsuback, Unsuback)
    assert unsuback.reasons == (0,) * 1_500 + (0x11,) * 500
    assert isinstance(pingresp, Pingresp)
    assert subscriber.unanswered == 0


def test_many_packets_of_one_filter_are_worked_off_in_rounds_too(rig: Rig) -> None:
    peer = rig.connected("s")
    subscriber = rig.session("s")
    filters = [f"{number}/" + "x" * 200 for number in range(600)]
    peer.send(
        *[Subscribe(2, ((text, SubscribeOptions(0, False, False, 2)),)) for text in filters], pump=False
    )
    assert len(subscriber.session.subscriptions) < 200
    rig.pump()
    assert [packet.reasons for packet in peer.inbox if isinstance(packet, Suback)] == [(0,)] * 600
    peer.send(*[Unsubscribe(2, (text,)) for text in filters], pump=False)
    assert len(subscriber.session.subscriptions) > 400
    rig.pump()
    assert subscriber.session.subscriptions == {}


@pytest.mark.parametrize("level", [4, 5])
def test_too_many_filters_in_one_packet(rig: Rig, level: int) -> None:
    many = ("a",) * 10_001
    for packet in (Subscribe(2, tuple((text, SubscribeOptions(1)) for text in many)), Unsubscribe(2, many)):
        peer = rig.connected("s", level)
        peer.send(packet)
        assert peer.gone_with == (0x95 if level == 5 else None)
    peer = rig.connected("s", level)
    peer.send(Unsubscribe(2, many[1:]))
    peer.take(Unsuback)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("lasting", [True, False])
def test_who_subscribes_after_a_retained_publish_of_another_gets_it_as_such(
    rig: Rig, lasting: bool, level: int, qos: int
) -> None:
    """[MQTT-3.3.1-8]. At QoS 0 nothing tells its publisher when that is."""
    publisher, peer = rig.connected("p"), (rig.lasting if lasting else rig.connected)("a", level)
    publisher.publish("t", "kept", qos, retain=True, pump=False)
    peer.send(Subscribe(1, (("t", SubscribeOptions(1)),)), pump=False)
    rig.pump()
    peer.take(Suback)
    assert [(one.payload, one.retain) for one in peer.publishes()] == [(b"kept", True)]
    assert not rig.core.publishing._retaining


def test_subscribing_does_not_wait_for_a_store_that_takes_nothing(rig: Rig) -> None:
    publisher, peer = rig.connected("p"), rig.connected("a")
    publisher.publish("t", "kept", retain=True, pump=False)
    peer.send(Subscribe(1, (("t", SubscribeOptions(1)),)), pump=False)
    rig.compose()
    rig.fail_sync()
    rig.pump()
    peer.take(Suback)
    assert not rig.core.publishing._retaining


def test_subscribing_does_not_wait_where_much_is_being_retained(rig: Rig) -> None:
    publisher, peer = rig.connected("p"), rig.connected("a")
    publisher.publish("t", "1", 0, retain=True, pump=False)
    rig.clock.now_ms += 100
    publisher.publish("t", "2", 0, retain=True, pump=False)
    peer.send(Subscribe(1, (("t", SubscribeOptions(1)),)), pump=False)
    peer.deliver()
    peer.take(Suback)
