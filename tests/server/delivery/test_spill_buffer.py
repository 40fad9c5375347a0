"""Plain publishes that were not stored: what was acked reaches everybody who was there, whatever the room."""

import pytest

import server.delivery.dispatch
from server.codec import wire
from server.codec.packets import Ack, Publish
from shards.commit import Commit
from shards.errors import StoreFailed
from shards.store import Table
from tests.support.rig import Peer, Rig, config
from timeline.position import Position


def _hold_the_horizon(rig: Rig) -> None:
    """A group is written and its sync takes a while: nothing behind it may be sent."""
    rig.connected("k").publish("other", "x", 1, pump=False, user_properties=(("deliver-in", "1h"),))
    assert rig.compose()
    assert rig.stepper.unsynced


def _read_all(rig: Rig, peer: Peer) -> list[str]:
    """What a client gets that acks each message as it comes."""
    got: list[str] = []
    for _ in range(10_000):
        rig.pump()
        found = [packet for packet in peer.inbox if isinstance(packet, Publish)]
        peer.inbox.clear()
        if not found:
            return got
        for packet in found:
            got.append(packet.payload.decode()[:6])
            if packet.qos:
                peer.ack(wire.PUBACK, packet.packet_id, pump=False)
    raise AssertionError("it does not end")


def _acked(*peers: Peer) -> int:
    return sum(isinstance(packet, Ack) and packet.reason == 0 for peer in peers for packet in peer.inbox)


def test_a_burst_judged_before_a_sync_reaches_a_session_that_then_has_no_room() -> None:
    rig = Rig(config(max_entries=16, max_in_flight=10))
    subscriber, publisher = rig.connected("s"), rig.connected("p", receive_maximum=1_000)
    subscriber.subscribe("t", qos=1)
    _hold_the_horizon(rig)
    for index in range(200):
        publisher.publish("t", f"{index:06}", 1, pump=False)
        rig.compose()
    assert rig.core.dispatch.live == 200
    got = _read_all(rig, subscriber)
    assert _acked(publisher) == 200
    assert got == [f"{index:06}" for index in range(200)]
    assert rig.core.spill.bytes == 0
    assert len(rig.core.spill) == 0


def test_large_publishes_of_one_round_reach_a_session_with_little_room() -> None:
    rig = Rig(config(max_bytes=1 << 20, out_bytes=4_096))
    subscriber = rig.connected("s").subscribed("t", qos=1)
    publishers = [rig.connected(f"p{index}") for index in range(60)]
    for index, publisher in enumerate(publishers):
        publisher.publish("t", f"{index:06}" + "." * 20_000, 1, pump=False)
    got = _read_all(rig, subscriber)
    assert _acked(*publishers) == 60
    assert sorted(got) == [f"{index:06}" for index in range(60)]


def test_what_is_owed_comes_between_what_is_stored_in_the_order_of_the_positions() -> None:
    rig = Rig(config(max_entries=16, max_in_flight=4, receive_maximum=1_000))
    subscriber, publisher = rig.connected("s").subscribed("#", qos=1), rig.connected("p")
    _hold_the_horizon(rig)
    for index in range(60):
        # Every third is stored, because it is retained.
        publisher.publish(f"t{index}", f"{index:06}", 1, retain=index % 3 == 0, pump=False)
        rig.compose()
    assert _read_all(rig, subscriber) == [f"{index:06}" for index in range(60)]


def test_beyond_the_bound_publishes_are_stored_and_qos_0_is_dropped_and_counted() -> None:
    rig = Rig(config(max_bytes=1 << 16, receive_maximum=1_000))
    subscriber, publisher = rig.connected("s").subscribed("t", qos=1), rig.connected("p")
    _hold_the_horizon(rig)
    for index in range(40):
        publisher.publish("t", f"{index:06}" + "." * 1_000, 1, pump=False)
    rig.compose()
    publisher.publish("t", "zero", 0, pump=False)
    publisher.publish("nobody", "x", 1, pump=False)
    rig.compose()
    assert rig.core.dispatch.live_bytes < (1 << 16) + 5_000
    assert rig.core.dispatch.live < 40
    assert rig.core.publishing.traffic.dropped == 2
    assert _read_all(rig, subscriber) == [f"{index:06}" for index in range(40)]
    assert _acked(publisher) == 40


def test_a_session_that_ends_is_owed_nothing_more() -> None:
    rig = Rig(config(max_in_flight=2, receive_maximum=1_000))
    subscriber, publisher = rig.connected("s").subscribed("t", qos=1), rig.connected("p")
    _hold_the_horizon(rig)
    for _ in range(10):
        publisher.publish("t", "x", 1, pump=False)
    rig.pump()
    assert len(rig.core.spill) == 8
    assert rig.core.spill.bytes > 0
    subscriber.drop()
    assert len(rig.core.spill) == 0
    assert rig.core.spill.bytes == 0


def test_one_message_for_more_sessions_than_a_turn_offers_reaches_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server.delivery.dispatch, "TURN_COST", 3)
    rig = Rig(config())
    subscribers = [rig.connected(f"s{index}") for index in range(10)]
    for qos, subscriber in enumerate(subscribers):
        subscriber.subscribe("t", qos=qos % 3)
    publisher = rig.connected("p")
    publisher.publish("t", "first", 1, pump=False)
    publisher.publish("t", "retained", 1, retain=True, pump=False)
    rig.write()
    rig.core.dispatch.turn()
    assert sum(not session.session.tailing for session in rig.core.sessions) == 7
    rig.pump()
    for subscriber in subscribers:
        assert subscriber.take_all() == ["first", "retained"]
    assert rig.core.spill.bytes == 0


def test_a_turn_ends_between_two_messages_when_enough_has_been_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server.delivery.dispatch, "TURN_COST", 40)
    monkeypatch.setattr(server.delivery.dispatch, "RUN_MIN", 2)
    rig = Rig(config())
    subscribers = [rig.connected(f"s{index}").subscribed("t/#", qos=0) for index in range(10)]
    publisher = rig.connected("p", receive_maximum=1_000)
    publisher.publish("t/x", "warm")
    for index in range(40):
        publisher.publish(f"t/{index}", str(index), pump=False)
    rig.compose()
    turns = 0
    while rig.core.dispatch.live:
        before = rig.core.dispatch.live
        rig.core.dispatch.turn()
        turns += 1
        assert before - rig.core.dispatch.live <= 4
    assert turns >= 5
    rig.pump()
    for subscriber in subscribers:
        assert subscriber.payloads() == ["warm", *map(str, range(40))]


def test_publishes_that_wait_for_a_sync_are_bounded_in_bytes() -> None:
    """At half of `limits.queued_bytes` what a publisher has sent waits at its connection."""
    rig = Rig(config(queued_bytes=1 << 20, receive_maximum=1_000))
    rig.lasting("s").subscribe("t", qos=1)
    publisher = rig.connected("p")
    assert not rig.core.publishing.is_congested("")
    for _ in range(30):
        publisher.publish("t", "." * 20_000, 1, pump=False)
    assert rig.core.publishing.is_congested("")
    for _ in range(40):
        publisher.publish("t", "." * 20_000, 1, pump=False)
    assert rig.core.writer.queued_bytes <= 1 << 20
    rig.pump()
    reasons = [packet.reason for packet in publisher.inbox if isinstance(packet, Ack)]
    assert len(reasons) == 70
    assert set(reasons) == {0}
    assert rig.core.writer.queued_bytes == 0


def test_publishes_that_wait_for_the_horizon_hold_publishers_back_by_their_bytes() -> None:
    rig = Rig(config(queued_bytes=1 << 20, receive_maximum=1_000))
    rig.connected("s").subscribe("t", qos=0)
    publisher = rig.connected("p")
    _hold_the_horizon(rig)
    for _ in range(12):
        publisher.publish("t", "." * 20_000, 0, pump=False)
        rig.compose()
    assert rig.core.writer.queued_bytes < 1 << 19
    assert rig.core.publishing.is_congested("")


def test_a_turn_passes_few_messages_that_many_want_or_that_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken from the wheel and has no time goes back, and comes in its order."""
    monkeypatch.setattr(server.delivery.dispatch, "TURN_COST", 50)
    rig = Rig(config())
    subscribers = [rig.connected(f"s{index}").subscribed("t/#", qos=0) for index in range(10)]
    publisher = rig.connected("p", receive_maximum=1_000)
    for index in range(30):
        size = 20_000 if index % 2 else 1
        publisher.publish(
            f"t/{index}", f"{index:06}" + "." * size, 1, user_properties=(("deliver-in", "5s"),)
        )
    rig.jump(4_999)
    rig.clock.now_ms += 1
    rig.write()
    turns = 0
    while rig.core.dispatch.turn():
        turns += 1
        rig.core.wheel.check()
    assert turns >= 6
    assert rig.core.opened.waiting.pending == 0
    rig.pump()
    for subscriber in subscribers:
        assert [text[:6] for text in subscriber.payloads()] == [f"{index:06}" for index in range(30)]


def test_plain_publishes_without_a_pause_do_not_wait_for_the_durable_bound() -> None:
    """The writer is never idle then, and the bound is renewed all the same."""
    rig = Rig(config())
    subscriber, publisher = rig.connected("s").subscribed("t", qos=0), rig.connected("p")
    for number in range(120):
        publisher.publish("t", str(number), pump=False)
        rig.turn()
        rig.write()
        rig.clock.now_ms += 50
    assert rig.core.dispatch.live <= 4
    rig.pump()
    assert subscriber.payloads() == list(map(str, range(120)))


def test_a_read_that_fails_in_the_middle_of_a_turn_sends_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was given out before is behind the horizon."""
    rig = Rig(config(receive_maximum=1_000))
    subscriber = rig.lasting("s").subscribed("t", qos=2)
    publisher = rig.connected("p")
    for number in range(10):
        publisher.publish("t", f"{number:06}" + "." * 5_000, 1, user_properties=(("deliver-in", "5s"),))
    rig.jump(4_000)
    reader = rig.core.reader
    read, calls = reader.value_at, iter(range(1_000))

    def fails_once(place: Position, shard: int) -> bytes | None:
        if next(calls) == 7:
            raise StoreFailed("planned")
        return read(place, shard)

    monkeypatch.setattr(type(reader), "value_at", lambda self, place, shard: fails_once(place, shard))
    rig.clock.now_ms += 1_000
    for _ in range(20):
        rig.pump()
    got = [text[:6] for text in subscriber.payloads()]
    assert got == [f"{number:06}" for number in range(10)]


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_publish_that_was_answered_with_an_error_is_not_sent(is_under_way: bool) -> None:
    """A plain QoS 2 publish is not stored, but its packet id is: if that fails it comes again."""
    rig = Rig(config())
    watcher = rig.connected("w").subscribed("t", qos=2)
    publisher = rig.lasting("p")
    packet_id = publisher.publish("t", "once", 2, pump=False)
    assert rig.compose()
    if is_under_way:
        rig.turn()  # a round does so while the group is being synced
    assert rig.core.dispatch.live == 1
    rig.lose()
    rig.pump()
    assert publisher.take_ack(wire.PUBREC, packet_id).reason == 0x83
    assert watcher.inbox == []
    publisher.publish2("t", "again")
    assert watcher.take_all() == ["again"]
    assert rig.core.dispatch.live_bytes == 0


def test_one_request_that_fails_takes_no_answer_twice() -> None:
    rig = Rig(config())
    rig.connected("w").subscribe("t", qos=1)
    publisher = rig.connected("p")
    packet_id = publisher.publish("t", "x", 1, pump=False)
    rig.decide(_spoil)
    assert publisher.take_ack(wire.PUBACK, packet_id).reason == 0x83
    assert publisher.inbox == []


def _spoil(commit: Commit) -> None:
    commit.row(Table.META, b"spoilt", b"")
    raise ValueError("planned")


def test_qos_0_that_nobody_had_room_for_is_counted_once_it_has_left_the_tail() -> None:
    rig = Rig(config(max_entries=16))
    deaf, other, publisher = rig.connected("deaf"), rig.connected("other"), rig.connected("p")
    deaf.subscribe("t", qos=0)
    deaf.subscribe("u", qos=1)
    other.subscribe("t", qos=0)
    rig.lasting("away").subscribed("t", qos=0).drop()
    owed = rig.core.spill
    deaf.connection.outbox.is_blocked = True
    for index in range(10):
        publisher.publish("t", f"{index:06}", 0)
    assert owed.dropped == 0
    deaf.connection.outbox.is_blocked = False
    deaf.connection.drained()
    assert _read_all(rig, deaf) == [f"{index:06}" for index in range(10)]
    assert not owed._put_off
    deaf.connection.outbox.is_blocked = True
    for index in range(100):
        publisher.publish("t", f"{index:06}", 0)
    dropped = owed.dropped
    assert 100 - 16 <= dropped <= 100
    assert len(owed._put_off) <= 16
    deaf.connection.outbox.is_blocked = False
    deaf.connection.drained()
    found = _read_all(rig, deaf)
    assert found == [f"{index:06}" for index in range(100 - len(found), 100)] or not found
    for index in range(40):
        publisher.publish("t", f"{index:06}", 0)
    assert owed.dropped == 100 - len(found)
    assert len(_read_all(rig, other)) == 150
    assert not owed._put_off
