"""PUBACKs that come together: as if each had come by itself."""

import pytest

from server.codec import wire
from server.codec.packets import AckRun, Publish
from server.codec.publish import ack
from server.codec.reasons import Reason
from server.delivery.publishing import Publishing
from server.delivery.subscriber import Subscriber
from tests.support.build import OPENED
from tests.support.rig import Peer, Rig, config

GROUP = "$share/g/t/#"
TIMED = (("ack-timeout", "30s"),)


def publish(rig: Rig, count: int, qos: int = 1, first: int = 0) -> None:
    publisher = rig.connected("publisher")
    publisher.send(*[Publish(b"t/x", b"%03d" % (first + n), qos, packet_id=n + 1) for n in range(count)])
    publisher.disconnect()


def acked(peer: Peer, *packet_ids: int) -> None:
    peer.send_bytes(b"".join(ack(peer.level, wire.PUBACK, one) for one in packet_ids))


def in_flight(rig: Rig, name: str) -> list[int]:
    subscriber = rig.session(name)
    return sorted(subscriber.session.flights)


@pytest.mark.parametrize("level", [4, 5])
def test_a_run_ends_what_it_names_and_passes_over_the_rest(rig: Rig, level: int) -> None:
    peer = rig.lasting("a", level).subscribed("t/#", qos=1)
    publish(rig, 10)
    assert len(peer.publishes()) == 10
    acked(peer, 9, 2, 2, 400, 1, 3, 65_535)
    assert not peer.is_closed
    assert in_flight(rig, "a") == [4, 5, 6, 7, 8, 10]


def test_one_of_the_wrong_kind_ends_the_connection_in_its_place(rig: Rig) -> None:
    peer = rig.lasting("a").subscribed("t/#")
    publish(rig, 3)
    publish(rig, 1, qos=2)
    publish(rig, 3)
    peer.inbox.clear()
    acked(peer, 1, 2, 3, 4, 5, 6)
    assert peer.gone_with == Reason.PROTOCOL_ERROR
    assert in_flight(rig, "a") == [4, 5, 6, 7]


def test_what_is_to_be_sent_again_is_not_when_a_run_has_named_it() -> None:
    rig = Rig(config(receive_maximum=4))
    peer = rig.lasting("a", receive_maximum=4).subscribed("t/#", qos=1)
    publish(rig, 4)
    assert len(peer.publishes()) == 4
    peer.drop()
    peer = rig.opened("a")
    acked(peer, 1, 2, 3)
    again = [packet for packet in peer.inbox if isinstance(packet, Publish)]
    assert [(packet.packet_id, packet.dup) for packet in again] == [(4, True)]


@OPENED
def test_members_of_a_group_ack_in_runs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _ = (rig.lasting(name).subscribed(GROUP, qos=1) for name in "ab")
    publish(rig, 30)
    group = rig.group(GROUP)
    assert len(group.session.flights) == 30
    theirs = [packet.packet_id for packet in a.publishes()]
    read_on = rig.core.groups.read_on

    looks: list[Subscriber] = []

    def counted(subscriber: Subscriber) -> None:
        looks.append(subscriber)
        read_on(subscriber)

    monkeypatch.setattr(rig.core.groups, "read_on", counted)
    a.send_bytes(b"".join(ack(5, wire.PUBACK, one) for one in theirs), pump=False)
    assert len(looks) == 1
    assert in_flight(rig, "a") == []
    assert len(group.session.flights) == 15
    assert list(group.lent) == [rig.core.sessions.get("b")]


def test_a_run_that_comes_too_late_for_some_ends_these_where_they_wait(rig: Rig) -> None:
    a, b = (rig.lasting(name).subscribed(GROUP, qos=1, user_properties=TIMED) for name in "ab")
    publish(rig, 8)
    early = {packet.payload for packet in a.publishes()}
    b.take_all()
    rig.pass_ms(20_000)
    publish(rig, 8, first=8)
    later = {packet.payload for packet in a.publishes()}
    b.take_all()
    assert len(early) == 4
    assert later
    rig.pass_ms(10_500)
    acked(a, *in_flight(rig, "a"))
    assert in_flight(rig, "a") == []
    rig.pass_ms(60_000)
    assert a.inbox + b.inbox == []
    assert rig.core.events.finished == 4


@OPENED
def test_acks_behind_a_publish_that_waits_are_bounded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is counted in packets, and handled in one go when it waits no more."""
    rig = Rig()
    peer = rig.connected("a", level=4)
    is_congested = True
    monkeypatch.setattr(Publishing, "is_congested", lambda *_: is_congested)
    rig.core.publishing.is_pressed = True
    peer.send(Publish(b"t", b"", 0), pump=False)
    peer.send_bytes(b"\x40\x02\x12\x34" * 100, pump=False)
    waiting = peer.connection._backlog.packets
    assert len(waiting) == 101
    assert not any(isinstance(one, AckRun) for one in waiting)
    is_congested = False
    rig.pump()
    assert not peer.connection.is_behind
    assert not peer.is_closed
