"""Retained messages: [MQTT-3.3.1-5] to [MQTT-3.3.1-13], [MQTT-3.8.4-4]."""

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish, Suback, Subscribe, SubscribeOptions
from shards.errors import StoreFailed
from shards.store import Table
from tests.support.rig import Peer, Rig, about, config


def _retained(peer: Peer) -> dict[str, str]:
    """What has come, all of it with the retain flag."""
    found = peer.publishes()
    assert all(packet.retain for packet in found)
    return {packet.topic.decode(): packet.payload.decode() for packet in found}


def turns_of_replay(rig: Rig) -> int:
    """How many there are until it is idle."""
    turns = 0
    while not rig.core.replay.is_idle:
        rig.core.replay.turn()
        turns += 1
    return turns


@pytest.fixture
def publisher(rig: Rig) -> Peer:
    return rig.connected("p")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("level", [4, 5])
def test_the_last_one_of_each_topic(rig: Rig, publisher: Peer, qos: int, level: int) -> None:
    for topic, payload in (("a/b", "1"), ("a/b", "2"), ("a/c", "3"), ("a", "4"), ("b", "5"), ("a/d/e", "6")):
        publisher.publish(topic, payload, qos, retain=True)
    publisher.publish("a/b", "not retained", qos)
    expected = {
        "a/#": {"a": "4", "a/b": "2", "a/c": "3", "a/d/e": "6"},
        "a/+": {"a/b": "2", "a/c": "3"},
        "+": {"a": "4", "b": "5"},
        "a/b": {"a/b": "2"},
        "#": {"a": "4", "a/b": "2", "a/c": "3", "b": "5", "a/d/e": "6"},
        "+/+/e": {"a/d/e": "6"},
        "ab/#": {},
    }
    for text, found in expected.items():
        peer = rig.connected("s", level).subscribed(text, qos=2)
        assert {p.qos for p in peer.inbox if isinstance(p, Publish)} <= {qos}
        assert _retained(peer) == found, text


def test_what_is_not_durable_yet_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatch waits for the batch with it; then all of it is retained, and nothing counts any more."""
    monkeypatch.setattr("server.delivery.retained.FRESH_BYTES", 20_000)
    rig = Rig()
    here, publisher = rig.connected("here").subscribed("#", qos=0), rig.connected("p")
    for n in range(4):
        publisher.publish(f"t/{n}", "x" * 4_000, 1, retain=True, pump=False)
    rig.write()
    rig.turn()
    retained = rig.core.retained
    assert retained.fresh_bytes >= 20_000
    assert retained.is_full
    publisher.publish("t/plain", "y", pump=False)
    assert rig.compose()
    assert not rig.core.dispatch.turn()
    assert not rig.core.can_advance()
    assert rig.core.dispatch.live == 1
    rig.pump()
    assert [packet.topic for packet in here.publishes()][-1] == b"t/plain"
    assert (retained.fresh_bytes, retained.count) == (0, 4)


def test_a_store_that_takes_nothing_bounds_what_becomes_retained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.delivery.retained.FRESH_BYTES", 20_000)
    rig = Rig()
    here, publisher = rig.connected("here").subscribed("#", qos=0), rig.connected("p")
    for n in range(8):
        publisher.publish(f"t/{n}", "x" * 4_000, 1, retain=True, pump=False)
    rig.write()
    rig.core.writer.fail(StoreFailed("full"))
    while rig.core.dispatch.turn():
        pass
    rig.deliver()
    assert len(here.publishes()) == 8
    retained = rig.core.retained
    assert retained.fresh_bytes < 40_000
    assert (retained.refused, retained.count) == (6, 2)


def test_an_empty_payload_clears_and_is_delivered(rig: Rig) -> None:
    """[MQTT-3.3.1-6], [MQTT-3.3.1-7]"""
    here = rig.connected("here").subscribed("t")
    rig.send("t", "x", "", qos=0, retain=True)
    assert [packet.retain for packet in here.publishes()] == [False, False]
    peer = rig.connected("s").subscribed("t")
    assert peer.inbox == []
    assert rig.core.retained.count == 0


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_retained_survives(rig: Rig, publisher: Peer, how: str) -> None:
    publisher.publish1("a", "1", retain=True)
    publisher.publish1("b", "2", retain=True)
    publisher.publish1("b", "", retain=True)
    rig.pump()
    rig.start_again(how)
    peer = rig.connected("s").subscribed("#")
    assert _retained(peer) == {"a": "1"}
    assert rig.core.retained.count == 1


def test_retained_is_never_lost_when_the_horizon_has_passed_it() -> None:
    """Whatever group is sealed between: what it says of the horizon goes with what the horizon has done."""
    for survivors in range(4):
        rig = Rig()
        publisher = rig.connected("p")
        publisher.publish("t", "x", 1, retain=True, pump=False)
        rig.write()
        # Others are before the request that writes the retained message.
        while rig.turn():
            pass
        for _ in range(survivors):
            publisher.publish("$delayed/99/u", "y", 1, pump=False)
            rig.compose()
        rig.crash(survivors, pump=True)
        peer = rig.connected("s").subscribed("t")
        assert _retained(peer) == {"t": "x"}


def test_the_store_fails_while_a_message_is_retained(rig: Rig, publisher: Peer) -> None:
    publisher.publish("t", "x", 1, retain=True, pump=False)
    rig.write()
    rig.store.fail_writes = True
    rig.turn()
    rig.compose()
    peer = rig.connected("s").subscribed("t")
    assert _retained(peer) == {"t": "x"}
    rig.mend_store()
    rig.pump()
    rig.decide(lambda commit: None)
    rig.crash(pump=True)
    peer = rig.connected("s").subscribed("t")
    assert _retained(peer) == {"t": "x"}


def test_a_former_one_that_cannot_be_read_now_keeps_none_from_being_retained(
    rig: Rig, publisher: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader whose data is damaged hands over: the horizon is not stored beyond what was not retained."""
    publisher.publish1("t", "x", retain=True)
    publisher.publish("t", "y", 1, retain=True, pump=False)
    rig.write()
    real = rig.store.get

    def get(table: Table, key: bytes) -> bytes | None:
        if table is Table.RETAINED:
            raise StoreFailed("another node takes the lead")
        return real(table, key)

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "get", get)
        while rig.turn():
            pass
        rig.compose()
        assert rig.core.writer.broken is not None
    rig.crash(pump=True)
    peer = rig.connected("s").subscribed("t")
    assert _retained(peer) == {"t": "y"}


def test_a_delayed_one_is_retained_when_it_fires(rig: Rig, publisher: Peer) -> None:
    publisher.publish1("t", "now", retain=True)
    publisher.publish1("$delayed/5/t", "later", retain=True)
    peer = rig.connected("s").subscribed("t")
    assert _retained(peer) == {"t": "now"}
    rig.pass_ms(6_000)
    assert peer.payloads() == ["later"]
    peer = rig.connected("s2").subscribed("t")
    assert _retained(peer) == {"t": "later"}


def test_retain_handling(rig: Rig) -> None:
    """[MQTT-3.3.1-9] to [MQTT-3.3.1-11]"""
    rig.connected("p").publish1("t", "x", retain=True)
    for handling, first, again in ((0, 1, 1), (1, 1, 0), (2, 0, 0)):
        peer = rig.connected("s").subscribed("t", handling=handling, qos=0)
        assert len(peer.publishes()) == first
        peer.subscribe("t", handling=handling, qos=0)
        assert len(peer.publishes()) == again
        peer.unsubscribe("t")
        peer.subscribe("t", handling=handling, qos=0)
        assert len(peer.publishes()) == first
    lasting = rig.lasting("l").subscribed("t", handling=1, qos=0)
    lasting.publishes()
    lasting.drop()
    lasting = rig.lasting("l").subscribed("t", handling=1, qos=0)
    assert lasting.inbox == []


def test_shared_subscriptions_get_none(rig: Rig) -> None:
    """[MQTT-3.8.4-?]: 4.8.2"""
    rig.connected("p").publish1("t", "x", retain=True)
    peer = rig.connected("s").subscribed("$share/g/t", handling=0)
    assert peer.inbox == []


def test_retained_messages_expire(rig: Rig, publisher: Peer) -> None:
    publisher.publish1("t", "x", retain=True, message_expiry=10)
    publisher.publish1("u", "y", retain=True, message_expiry=100)
    rig.pass_ms(6_000)
    peer = rig.connected("s").subscribed("#", qos=0)
    found = {p.topic: p.properties.message_expiry for p in peer.publishes() if p.properties}
    assert found == {b"t": 4, b"u": 94}
    rig.pass_ms(6_000)
    peer = rig.connected("s").subscribed("#")
    assert _retained(peer) == {"u": "y"}


def test_identifier_and_qos_of_the_subscription_that_asked(rig: Rig) -> None:
    rig.connected("p").publish2("t", "x", retain=True)
    peer = rig.connected("s").subscribed("#", qos=0, subscription_ids=(1,))
    peer.publishes()
    peer.subscribe("t", qos=1, subscription_ids=(2,))
    (packet,) = peer.publishes()
    assert (packet.qos, about(packet).subscription_ids) == (1, (2,))


def test_no_local_holds_for_retained_ones(rig: Rig) -> None:
    peer = rig.connected("s")
    peer.publish("t", "own", retain=True)
    peer.subscribe("t", no_local=True)
    assert peer.inbox == []
    peer.subscribe("t")
    assert _retained(peer) == {"t": "own"}


def test_retained_in_flight_is_retained_again_on_redelivery(rig: Rig) -> None:
    rig.connected("p").publish1("t", "x", retain=True)
    peer = rig.lasting("s").subscribed("t")
    (first,) = peer.publishes()
    for how in ("drop", "crash"):
        if how == "crash":
            rig.crash(pump=True)
        else:
            peer.drop()
        peer = rig.lasting("s")
        (again,) = peer.publishes()
        assert (again.retain, again.dup, again.packet_id) == (True, True, first.packet_id)


def test_many_go_through_a_small_window_and_unsubscribe_stops_them(rig: Rig, publisher: Peer) -> None:
    publisher.send(*[Publish(b"t/%d" % n, b"x", 1, True, packet_id=n + 1) for n in range(50)])
    peer = rig.connected("s", receive_maximum=3).subscribed("t/#", qos=1)
    assert len(peer.take_all()) == 50
    peer.subscribe("t/#", qos=1)
    assert len(peer.publishes()) == 3
    peer.unsubscribe("t/#")
    for packet_id in range(51, 54):
        peer.ack(wire.PUBACK, packet_id)
    assert peer.inbox == []


def test_asking_again_and_again_piles_up_nothing(rig: Rig) -> None:
    rig.connected("p").publish1("t", "x", retain=True)
    peer = rig.lasting("s", receive_maximum=1).subscribed("t", qos=1)
    peer.inbox.clear()
    for _ in range(50):
        peer.subscribe("t", qos=1)
    assert len(rig.session("s").retained_queue) <= 1


def test_the_bound_on_topics() -> None:
    rig = Rig(config(retained=2))
    publisher = rig.connected("p")
    for topic in ("a", "b", "c", "a"):
        publisher.publish1(topic, topic, retain=True)
    peer = rig.connected("s").subscribed("#")
    assert _retained(peer) == {"a": "a", "b": "b"}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("how", ["drop", "takeover", "crash"])
def test_what_is_still_to_be_sent_is_not_forgotten_with_the_connection(rig: Rig, how: str, qos: int) -> None:
    """A subscription that was granted is sent all that was retained for it, in any number of connections."""
    publisher = rig.connected("p")
    for number in range(20):
        publisher.publish2(f"r/{number:02}", f"{number:02}", retain=True)
        publisher.publish2(f"q/{number:02}", f"q{number:02}", retain=True)
    peer = rig.lasting("s", receive_maximum=5).subscribed("r/#", "q/#", qos=qos, handling=1)
    got: list[str] = []
    for _ in range(4):
        got += [p.payload.decode() for p in peer.inbox[:3] if isinstance(p, Publish)]
        for packet in peer.inbox[:3]:
            assert isinstance(packet, Publish)
            peer.ack(wire.PUBACK if qos == 1 else wire.PUBREC, packet.packet_id, pump=False)
        rig.pump()
        if qos == 2:
            for packet in list(peer.inbox):
                if isinstance(packet, Ack):
                    peer.ack(wire.PUBCOMP, packet.packet_id, pump=False)
            rig.pump()
        if how == "drop":
            peer.drop()
        elif how == "crash":
            rig.crash(pump=True)
        peer = rig.lasting("s", receive_maximum=5)
        assert peer.subscribe("r/#", "q/#", qos=qos, handling=1, pump=False) == ()
        rig.pump()
        peer.inbox = [packet for packet in peer.inbox if not isinstance(packet, Suback)]
    got += peer.take_all()
    expected = [f"{n:02}" for n in range(20)] + [f"q{n:02}" for n in range(20)]
    assert list(dict.fromkeys(got)) == expected
    assert qos == 1 or got == expected


def test_an_unsubscribe_forgets_what_is_still_to_be_sent_over_connections(rig: Rig, publisher: Peer) -> None:
    for number in range(9):
        publisher.publish1(f"r/{number}", f"r{number}", retain=True)
        publisher.publish1(f"q/{number}", f"q{number}", retain=True)
    peer = rig.lasting("s", receive_maximum=2).subscribed("r/#", "q/#", qos=1)
    assert [p.payload for p in peer.publishes()] == [b"r0", b"r1"]
    peer.unsubscribe("r/#")
    rig.crash(pump=True)
    peer = rig.lasting("s")
    assert peer.take_all() == ["r0", "r1", *(f"q{n}" for n in range(9))]


@pytest.mark.parametrize("durable", [False, True])
def test_the_wish_for_retained_messages_is_durable_when_suback_leaves(rig: Rig, durable: bool) -> None:
    rig.connected("p").publish1("t", "x", retain=True)
    peer = rig.lasting("s")
    peer.subscribe("t", pump=False)
    while rig.compose() or (durable and rig.settle()):
        pass
    rig.crash(pump=True)
    assert rig.lasting("s").take_all() == (["x"] if durable else [])


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_becomes_retained_meanwhile_comes_once_and_as_a_live_one(rig: Rig, qos: int) -> None:
    publisher = rig.connected("p")
    for topic in "abc":
        publisher.publish2(topic, f"old {topic}", retain=True)
    peer = rig.lasting("s", receive_maximum=1).subscribed("#", qos=2)
    (first,) = peer.publishes()
    publisher.publish("c", "new c", qos, retain=True)
    publisher.publish("d", "new d", qos, retain=True)
    publisher.publish("b", "", qos, retain=True)
    peer.inbox.append(first)
    found = [(packet.payload.decode(), packet.retain) for packet in peer.deliveries()]
    assert found == [("old a", True), ("new c", False), ("new d", False), ("", False)]


def test_retained_ones_are_asked_for_again_although_they_came_live(rig: Rig) -> None:
    peer = rig.lasting("s").subscribed("t", qos=1)
    rig.connected("p").publish1("t", "x", retain=True)
    assert peer.take_all() == ["x"]
    peer.subscribe("t", qos=1)
    (again,) = peer.publishes()
    assert (again.payload, again.retain) == (b"x", True)


def test_nothing_new_is_sent_between_subscribe_and_what_is_retained(rig: Rig, publisher: Peer) -> None:
    publisher.publish1("t", "old", retain=True)
    peer = rig.lasting("s").subscribed("u")
    peer.subscribe("t", qos=1, pump=False)
    assert rig.compose()  # SUBSCRIBE's group is being synced
    for topic in "tu":
        publisher.publish(topic, f"new {topic}", 1, retain=True, pump=False)
    rig.pump()
    suback, *found = peer.inbox
    assert isinstance(suback, Suback)
    assert [(p.payload, p.retain) for p in found if isinstance(p, Publish)] == [
        (b"old", True),
        (b"new t", False),
        (b"new u", False),
    ]


def test_a_message_is_loaded_only_when_there_is_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    publisher = rig.connected("p")
    for number in range(200):
        publisher.publish1(f"t/{number:03}", "x", retain=True)
    loaded = []
    load = rig.core.retained.load
    monkeypatch.setattr(rig.core.retained, "load", lambda kept: loaded.append(kept) or load(kept))
    peer = rig.connected("s", receive_maximum=1).subscribed("t/#", qos=1)
    for number in range(10):
        assert len(loaded) <= 3 * (number + 1), "one that is sent, and one at each wake with a full window"
        peer.ack(wire.PUBACK, peer.one().packet_id)
    peer.take_all()
    peer.subscribe("t/#", qos=0, pump=False)
    peer.connection.outbox.is_blocked = True
    loaded.clear()
    rig.pump()
    assert loaded == []


def test_a_turn_looks_at_a_bounded_number_of_topics(rig: Rig, publisher: Peer) -> None:
    for start in range(0, 2_500, 500):
        topics = range(start, start + 500)
        publisher.send(*[Publish(b"t/%04d" % n, b"x", 1, True, packet_id=n - start + 1) for n in topics])
    rig.connected("o").subscribe("u")
    peer = rig.connected("s")
    peer.subscribe("+/nothing", "+/0000", pump=False)
    assert turns_of_replay(rig) >= 5
    rig.pump()
    assert [p.topic for p in peer.inbox if isinstance(p, Publish)] == [b"t/0000"]
    # Another session's turn comes in between.
    peer.subscribe("+/nothing", pump=False)
    order: list[str] = []
    for subscriber in (rig.core.sessions.get("s"), rig.core.sessions.get("o")):
        assert subscriber is not None
        subscriber.session.fall_behind(rig.core.horizon.position)
        rig.core.groups.read_on(subscriber)
    while not rig.core.replay.is_idle:
        order.append(rig.core.replay._ready._queue[0].session.client_id)
        rig.core.replay.turn()
    assert order[:2] == ["s", "o"]
    assert order[2:] == ["s"] * len(order[2:])


def test_many_filters_that_match_nothing_take_turns_too(rig: Rig) -> None:
    peer = rig.connected("s")
    peer.subscribe(*(f"nothing/{number}" for number in range(500)), pump=False)
    while rig.deliver():
        pass
    assert turns_of_replay(rig) >= 5


def test_large_messages_count_for_more(rig: Rig, publisher: Peer) -> None:
    for number in range(40):
        publisher.publish1(f"t/{number}", b"x" * 250_000, retain=True)
    peer = rig.connected("s")
    peer.subscribe("+/nothing", pump=False)
    assert turns_of_replay(rig) >= 3


def test_filters_of_one_subscribe_are_taken_one_after_the_other(rig: Rig) -> None:
    rig.connected("p").publish2("t", "x", retain=True)
    peer = rig.connected("s")
    first, last = SubscribeOptions(2), SubscribeOptions(1, False, False, 0)
    peer.send(Subscribe(9, (("t", first), ("a+", first), ("t", last), ("t", last))))
    assert peer.take(Suback).reasons == (2, 0x8F, 1, 1)
    assert peer.one().qos == 1
