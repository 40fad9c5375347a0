"""Usual messages that come together are routed once and offered as one; what a subscriber sees of it is their
order, and all of them."""

from itertools import pairwise

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish
from server.codec.publish import publish_parts
from server.delivery.message import Message
from server.delivery.picker import CAPACITY_FIRST
from server.delivery.run import RUN_MAX, Run
from server.delivery.shared import Group
from server.delivery.subscriber import Subscriber
from server.mqtt.forms import common_properties, run_pieces
from server.mqtt.outbox import Outbox
from shards.fields import Record
from tests.server.delivery.test_router import Some
from tests.support.link import FakeLink
from tests.support.rig import Peer, Rig, asking
from timeline.position import Position
from timeline.session import Session, Subscription

MANY = 3 * RUN_MAX + 7


def chunk(count: int, qos: int = 1, topic: bytes = b"t/x") -> list[Publish]:
    return [Publish(topic, b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in range(count)]


def payloads(peer: Peer) -> list[bytes]:
    return [packet.payload for packet in peer.inbox if isinstance(packet, Publish)]


def counted(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("level", [4, 5])
def test_everybody_gets_all_of_them_in_order(rig: Rig, level: int, sent: int, granted: int) -> None:
    peers = [
        rig.connected(f"s{n}", level, receive_maximum=MANY) if level == 5 else rig.connected(f"s{n}", 4)
        for n in range(3)
    ]
    for peer in peers:
        peer.subscribe("t/#", qos=granted)
    publisher = rig.connected("p", level)
    publisher.send(*chunk(MANY, sent))
    for peer in peers:
        assert payloads(peer) == counted(MANY)
        found = [packet for packet in peer.inbox if isinstance(packet, Publish)]
        assert {packet.qos for packet in found} == {min(sent, granted)}
        ids = [packet.packet_id for packet in found]
        assert ids == (list(range(1, MANY + 1)) if min(sent, granted) else [0] * MANY)
    answers = [packet.packet_id for packet in publisher.inbox if isinstance(packet, Ack)]
    assert answers == (list(range(1, MANY + 1)) if sent else [])


def test_who_has_room_for_a_part_gets_that_and_later_the_rest(rig: Rig) -> None:
    small = rig.connected("small", 5, receive_maximum=10)
    wide = rig.connected("wide", 5, receive_maximum=1_000)
    for peer in (small, wide):
        peer.subscribe("t/x", qos=1)
    rig.connected("p").send(*chunk(50))
    assert payloads(small) == counted(10)
    assert payloads(wide) == counted(50)
    seen = payloads(small)
    while len(seen) < 50:
        waiting = [packet.packet_id for packet in small.inbox if isinstance(packet, Publish)]
        small.inbox.clear()
        assert waiting
        for packet_id in waiting:
            small.ack(wire.PUBACK, packet_id)
        seen += payloads(small)
    assert seen == counted(50)


def test_runs_end_where_topic_qos_or_kind_change(rig: Rig) -> None:
    peer = rig.connected("s", 5).subscribed("t/#", qos=1)
    asked = [
        Publish(b"t/%d" % (n // 5 % 2), b"%d" % n, n // 7 % 2, packet_id=n + 1 if n // 7 % 2 else 0)
        for n in range(100)
    ]
    rig.connected("p").send(*asked)
    found = [packet for packet in peer.inbox if isinstance(packet, Publish)]
    assert [(one.topic, one.payload, one.qos) for one in found] == [
        (one.topic, one.payload, one.qos) for one in asked
    ]


def test_several_subscriptions_and_no_local_are_looked_at_one_by_one(rig: Rig) -> None:
    own = rig.connected("own", 5).subscribed("t/#", qos=1, no_local=True)
    twice = rig.connected("twice", 5).subscribed("t/#", qos=1, subscription_ids=(7,))
    twice.subscribe("t/x", qos=1, subscription_ids=(8,))
    own.send(*chunk(20))
    assert payloads(own) == []
    assert payloads(twice) == counted(20)
    (identifiers,) = {
        packet.properties.subscription_ids
        for packet in twice.inbox
        if isinstance(packet, Publish) and packet.properties is not None
    }
    assert sorted(identifiers) == [7, 8]


def test_a_client_that_takes_small_packets_gets_those(rig: Rig) -> None:
    peer = rig.connected("s", 5, maximum_packet_size=60).subscribed("t/x", qos=1)
    wanted = chunk(20)
    wanted[7] = Publish(b"t/x", b"x" * 100, 1, packet_id=8)
    rig.connected("p").send(*wanted)
    assert payloads(peer) == [payload for n, payload in enumerate(counted(20)) if n != 7]


def a_run(count: int, qos: int = 1, *, due_ms: int = 0, lease_ms: int = 0) -> Run:
    return Run(
        [
            Message(Position(5 << 48 | n), -1, Record(b"t", b"x" * (n % 3), due_ms, qos), 5, is_usual=True)
            for n in range(count)
        ],
        lease_ms,
    )


def a_subscriber(window: int, room: int | None = None) -> tuple[Subscriber, FakeLink]:
    subscriber = Subscriber(
        Session("a", read=Position(0), expiry_s=0, window=window), set(), lambda one, done: None
    )
    link = subscriber.link = FakeLink()
    link.room = room
    return subscriber, link


def test_all_or_nothing() -> None:
    plain = (Subscription("t", 1, Position(0)),)
    run = a_run(10)
    subscriber, link = a_subscriber(10)
    assert subscriber.offer_run(run, plain)
    assert link.packet_ids == list(range(1, 11)) == list(subscriber.session.flights)
    assert subscriber.delivered == 10
    assert subscriber in subscriber.dirty
    assert not subscriber.offer_run(run, plain)
    assert len(link.sent) == 10
    for narrow, link in (a_subscriber(9), a_subscriber(10, room=5)):
        assert not narrow.offer_run(run, plain)
        assert (link.sent, narrow.session.flights, narrow.delivered, narrow.dirty) == ([], {}, 0, set())


@pytest.mark.long
def test_packet_ids_in_use_are_passed_over() -> None:
    session = Session("a", read=Position(0), expiry_s=0, window=65_535)
    addresses = [(Position(n), -1) for n in range(65_533)]
    session.launch_run(addresses, 1)
    session.retire([65_535])
    for packet_id in (1, 3):
        session.ack(packet_id)
    assert [flight.packet_id for flight in session.launch_run(addresses[:3], 1)] == [65_534, 1, 3]


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("due_ms", [0, 3])
@pytest.mark.parametrize(("qos", "lease_ms"), [(0, 0), (1, 0), (1, 30_000)])
def test_pieces_are_what_each_message_is_by_itself(qos: int, lease_ms: int, due_ms: int, level: int) -> None:
    run = a_run(9, due_ms=due_ms, lease_ms=lease_ms)
    pieces, size = run_pieces(run, level, qos, 1)
    alone = b""
    for message in run.messages:
        properties = common_properties(message, 1, lease_ms) if level == 5 else b""
        head, tail = publish_parts(level, message.topic, message.payload, qos, False, False, properties)
        alone += head + (b"id" if qos else b"") + tail
    if qos:
        pieces = pieces.copy()
        pieces[1::3] = [b"id"] * 9
    assert b"".join(pieces) == alone
    assert len(alone) == size


@pytest.mark.parametrize("window", [1, 7, 1_000])
def test_who_was_away_gets_all_in_order_whatever_they_come_by(rig: Rig, window: int) -> None:
    peer = rig.lasting("away", 5, receive_maximum=window).subscribed("t/a", qos=1)
    peer.subscribe("t/b", qos=1, subscription_ids=(7,))
    peer.subscribe("t/+", qos=1)
    peer.drop()
    wanted = [
        Publish(b"t/" + b"aabccc"[n // 5 % 6 :][:1], b"%d" % n, 1 + (n % 40 > 35), packet_id=n + 1)
        for n in range(300)
    ]
    rig.connected("p").send(*wanted)
    back = rig.lasting("away", 5, receive_maximum=window)
    assert back.take_all() == [f"{n}" for n in range(300)]


@pytest.mark.parametrize("window", [1, 20, 1_000])
def test_who_has_room_for_a_part_stands_behind_that(rig: Rig, window: int) -> None:
    rig.lasting("away", 5, receive_maximum=window).subscribed("t/x", qos=1).drop()
    rig.connected("p").send(*chunk(400))
    rig.lasting("away", 5, receive_maximum=window)
    subscriber = rig.session("away")
    sent = min(window, 400)
    assert len(subscriber.session.flights) == sent
    last = subscriber.session.flights[sent].position
    assert subscriber.session.tailing or subscriber.session.read >= last


@pytest.mark.parametrize("text", ["t/x", "$share/g/t/x"])
def test_a_run_that_cannot_be_written_comes_again_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.lasting("away").subscribed(text, qos=1).disconnect()
    rig.connected("p").send(*chunk(MANY))
    with monkeypatch.context() as broken:
        broken.setattr(Outbox, "send_run", None)
        assert rig.lasting("away", receive_maximum=MANY).is_closed
    back = rig.lasting("away", receive_maximum=MANY)
    rig.pass_ms(60_000)
    assert sorted(back.take_all(), key=int) == [f"{n}" for n in range(MANY)]


def a_backlog(rig: Rig, *members: Peer, text: str = "$share/g/t/x", qos: int = 1, **terms: str) -> list[Peer]:
    """MANY messages wait for a group while its members are away; the members, back again."""
    asked = asking(**terms)
    for peer in members:
        peer.subscribe(text, qos=qos, user_properties=asked)
        peer.disconnect()
    rig.connected("p").send(*chunk(MANY))
    return [rig.lasting(peer.connection.client_id, receive_maximum=1_000) for peer in members]


def acked(peer: Peer) -> list[bytes]:
    """Payloads of what has come, all of which it acks in one go."""
    found = [packet for packet in peer.inbox if isinstance(packet, Publish)]
    peer.inbox.clear()
    peer.send(*[Ack(wire.PUBACK, packet.packet_id) for packet in found if packet.qos])
    return [packet.payload for packet in found]


@pytest.mark.parametrize("timeout", ["0s", "30s"])
@pytest.mark.parametrize("qos", [0, 1])
def test_members_of_a_group_divide_a_backlog(rig: Rig, qos: int, timeout: str) -> None:
    away = [rig.lasting(name) for name in "abc"]
    members = a_backlog(rig, *away, qos=qos, ack_timeout=timeout)
    first = [packet for packet in members[0].inbox if isinstance(packet, Publish)]
    told = [packet.properties.user("fasti-ack-timeout") for packet in first if packet.properties is not None]
    assert first
    assert {packet.qos for packet in first} == {qos}
    assert set(told) <= {"30000" if qos and timeout != "0s" else None}
    shares: list[list[bytes]] = [[], [], []]
    while any(came := [acked(peer) for peer in members]):
        for share, more in zip(shares, came, strict=True):
            share += more
    assert sorted([one for share in shares for one in share], key=int) == counted(MANY)
    for share in shares:
        assert share == sorted(share, key=int)
        in_a_row = sum(int(one) + 1 == int(other) for one, other in pairwise(share))
        assert in_a_row >= len(share) // 2
    (group,) = rig.core.groups
    assert not group.session.flights
    assert not group.lent
    assert not rig.core.leases


@pytest.mark.parametrize(
    ("granted", "windows"),
    [((0, 0), (5, 1)), ((0, 1), (1_000, 1_000)), ((1, 0, 1), (30, 1, 100)), ((1, 1), (5, 9))],
)
def test_members_get_of_a_run_what_they_get_one_by_one(
    granted: tuple[int, ...], windows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shares() -> list[int]:
        rig = Rig()
        for name, (qos, window) in enumerate(zip(granted, windows, strict=True)):
            rig.connected(f"{name}", receive_maximum=window).subscribe("$share/g/t/x", qos=qos)
        members = rig.peers.copy()
        (group,) = rig.core.groups
        pause, submit = rig.core.groups.pause, rig.core.writer.submit
        submit(lambda commit: pause(commit, group, is_paused=True), lambda _: None)
        rig.connected("p").send(*chunk(120))
        submit(lambda commit: pause(commit, group, is_paused=False), lambda _: None)
        rig.pump()
        return [len(payloads(peer)) for peer in members]

    in_runs = shares()
    monkeypatch.setattr(Group, "offer_run", lambda *_: 0)
    assert in_runs == shares()


def test_a_member_that_stalls_keeps_what_it_has_shown_from_a_backlog(rig: Rig) -> None:
    stalled, other = a_backlog(rig, rig.lasting("a"), rig.lasting("b"))
    found = []
    while came := acked(other):
        found += came
    kept = payloads(stalled)
    assert len(kept) == CAPACITY_FIRST
    assert sorted(found + kept, key=int) == counted(MANY)


def test_a_backlog_goes_at_the_rate_of_its_group(rig: Rig) -> None:
    (peer,) = a_backlog(rig, rig.lasting("a"), rate="100")
    assert acked(peer) == counted(10)
    assert acked(peer) == []
    found = []
    for _ in range(20):
        rig.pass_ms(100)
        found += acked(peer)
    assert found == counted(10 + len(found))[10:]
    assert 180 <= len(found) <= 200


def test_a_run_of_a_group_has_room_in_every_window(rig: Rig) -> None:
    for name, identifiers in (("small", ()), ("named", (7,)), ("picky", ())):
        away = rig.lasting(name)
        away.subscribe("$share/g/t/x", qos=1, **({"subscription_ids": identifiers} if identifiers else {}))
        away.disconnect()
    rig.connected("p").send(*chunk(MANY))
    small = rig.lasting("small", receive_maximum=3)
    named = rig.lasting("named", receive_maximum=5)
    picky = rig.lasting("picky", maximum_packet_size=1_000, receive_maximum=7)
    v4 = rig.connected("v4", 4).subscribed("$share/g/t/x", qos=1)
    shares: list[list[bytes]] = []
    while any(came := [acked(peer) for peer in (small, named, picky, v4)]):
        assert all(len(share) <= most for share, most in zip(came, (3, 5, 7), strict=False))
        shares += came
    assert sorted([one for share in shares for one in share], key=int) == counted(MANY)


def test_a_member_gets_no_topic_of_a_run_that_its_key_may_not_have(rig: Rig) -> None:
    rig.lasting("away").subscribed("$share/g/t/#", qos=1).disconnect()
    wanted = [Publish(b"t/" + b"ab"[n // 20 % 2 :][:1], b"", 1, packet_id=n + 1) for n in range(180)]
    rig.connected("p").send(*wanted)
    narrow, free = FakeLink(), FakeLink()
    for link, rights in ((narrow, Some(b"t/a")), (free, None)):
        rig.core.groups.enlist(link, "$share/g/t/#", name="pull", rights=rights)
    rig.pump()
    assert narrow.sent
    assert set(narrow.topics) == {"t/a"}
    places = [message.position for message in narrow.sent + free.sent]
    assert len(set(places)) == len(places) == 180
