"""What was not done comes again later, or is dead: nack, lease, lost connection."""

import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish
from server.codec.reasons import Reason
from server.delivery import progress
from server.delivery.publish_request import PublishRequest
from server.delivery.settling.events import UNDER_WAY, Events
from server.delivery.settling.lives import Happening, Outcome
from server.engine.writer import Busy
from shards import delivery_rows
from shards.commit import Commit
from shards.errors import StoreFailed
from shards.fields import Record
from shards.record import decode
from shards.store import Table
from tests.support.build import OPENED
from tests.support.mqtt import user
from tests.support.rig import Peer, Rig, about, asking, config, props
from timeline.position import before

GROUP = "$share/g/t/#"


def waiting(rig: Rig) -> list[str]:
    """Payloads of the retries that are still to come."""
    rows = delivery_rows.waiting(rig.core.opened.store, before(rig.clock.wall_ms() + 1))
    return [decode(row.record).payload.decode() for row in rows]


def letters(rig: Rig) -> list[tuple[str, str, int, str]]:
    """(group, payload, attempts, reason)."""
    rows = list(rig.core.dead_letters.read())
    return [(row.group, decode(row.record).payload.decode(), row.attempts, row.reason) for row in rows]


def in_flight(rig: Rig, name: str = "a") -> int:
    group = rig.core.groups.get(GROUP)
    subscriber = group if name == GROUP else rig.core.sessions.get(name)
    assert subscriber is not None
    return len(subscriber.session.flights)


def session(rig: Rig, name: str = "a", **said: str) -> Peer:
    return rig.lasting(name).subscribed("t/#", user_properties=asking(**said))


def members(rig: Rig, *names: str, qos: int = 1, window: int = 4, **said: str) -> list[Peer]:
    peers = [rig.lasting(name, receive_maximum=window) for name in names]
    return [peer.subscribed(GROUP, qos=qos, user_properties=asking(**said)) for peer in peers]


Kind = Callable[[Rig], Peer]
KINDS = pytest.mark.parametrize(
    "begin", [session, lambda rig: members(rig, "a")[0]], ids=["session", "group"]
)


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return session(rig)


@KINDS
@pytest.mark.parametrize("qos", [1, 2])
def test_a_nack_brings_it_again_at_that_time_to_whom_it_was_sent_alone(begin: Kind, qos: int) -> None:
    rig = Rig()
    witness = session(rig, "witness")
    peer = begin(rig)
    rig.send("t/x", "job", qos=qos)
    assert witness.take_all() == ["job"]
    peer.nack(peer.one(), "30s", "the database is away")
    assert waiting(rig) == ["job"]
    rig.pass_ms(29_999)
    assert peer.inbox == []
    rig.pass_ms(1)
    (again,) = peer.publishes()
    assert (again.payload, again.dup, user(again, "fasti-attempt")) == (b"job", False, "2")
    peer.inbox.append(again)
    assert peer.take_all() == ["job"]
    rig.pass_ms(120_000)
    assert peer.inbox == witness.inbox == []
    assert waiting(rig) == []


@KINDS
def test_without_a_time_the_back_off_counts_and_in_the_end_it_is_dead(begin: Kind) -> None:
    rig = Rig(config(max_attempts=4))
    grave = rig.connected("grave").subscribed("$dead/#")
    peer = begin(rig)
    rig.send("t/x", "job")
    for number, (wait, delay_ms) in enumerate([("", 1_000), ("auto", 5_000), ("", 30_000)], 2):
        peer.nack(peer.one(), wait, "no")
        rig.pass_ms(delay_ms - 1)
        assert peer.inbox == []
        rig.pass_ms(1)
        (seen,) = peer.inbox
        assert isinstance(seen, Publish)
        assert user(seen, "fasti-attempt") == str(number)
    peer.nack(peer.one(), "10s", "poison")
    assert waiting(rig) == []
    ((_, payload, attempts, reason),) = letters(rig)
    assert (payload, attempts, reason) == ("job", 4, "poison")
    (dead,) = grave.publishes()
    assert user(dead, "fasti-dead-reason") == "poison"
    rig.pass_ms(20_000)
    assert peer.inbox == []


def test_by_default_a_group_gives_up_after_20_and_a_session_never(rig: Rig) -> None:
    lasting = session(rig, "a")
    (member,) = members(rig, "m")
    rig.send("t/x", "job")
    for _ in range(25):
        for peer in (lasting, member):
            for packet in peer.publishes():
                peer.nack(packet, "0")
    assert [(group, attempts) for group, _, attempts, _ in letters(rig)] == [("g", 20)]
    assert lasting.payloads() == ["job"]


def test_what_a_subscription_asks_for_counts_for_it_alone(rig: Rig) -> None:
    (member,) = members(rig, "m", max_attempts="2", backoff="10s")
    lasting = session(rig, "a", backoff="2s", max_attempts="3")
    rig.send("t/x", "job")
    for peer in (member, lasting):
        peer.nack(peer.one())
    rig.pass_ms(2_000)
    lasting.nack(lasting.one())
    assert member.inbox == []
    rig.pass_ms(8_000)
    for peer in (lasting, member):
        peer.nack(peer.one(), "", "enough")
    assert [(group, attempts) for group, _, attempts, _ in letters(rig)] == [("a", 3), ("g", 2)]


def test_the_reason_is_the_property_or_the_reason_string_or_the_code() -> None:
    rig = Rig(config(max_attempts=1))
    peer = session(rig)
    rig.send("t/x", "1", "2", "3")
    first, second, third = peer.publishes()
    peer.nack(first, "1s", "said")
    asked = props(user_properties=(("retry-in", "1s"),), reason_string="a string")
    peer.send(Ack(wire.PUBACK, second.packet_id, 0x97, asked))
    peer.nack(third)
    assert [reason for *_, reason in letters(rig)] == ["said", "a string", "nacked with 0x80"]


def test_without_retry_in_a_refusal_ends_it_and_retry_in_with_a_success_says_nothing(rig: Rig) -> None:
    """[MQTT-4.8.2-6]"""
    peer = session(rig)
    rig.send("t/x", "1", "2")
    first, second = peer.publishes()
    peer.ack(wire.PUBACK, first.packet_id, 0x80)
    peer.send(Ack(wire.PUBACK, second.packet_id, 0, props(user_properties=(("retry-in", "1s"),))))
    rig.pass_ms(5_000)
    assert peer.inbox == []
    assert waiting(rig) == []
    assert in_flight(rig) == 0


@pytest.mark.parametrize("wait", ["5 parsecs", "-1s", "P1Y", "999999d"])
def test_a_time_that_is_none_ends_the_connection_and_the_message_stays(rig: Rig, wait: str) -> None:
    peer = session(rig)
    rig.send("t/x", "job")
    peer.nack(peer.one(), wait)
    assert peer.gone_with == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    (last,) = peer.inbox
    assert "retry-in" in str(about(last).reason_string)
    assert rig.lasting("a").payloads() == ["job"]


@pytest.mark.long
@pytest.mark.parametrize("qos", [1, 2])
@KINDS
def test_what_never_can_be_done_is_dead_at_once(
    begin: Kind, qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nothing is ever given up."""
    rig = Rig(config(max_attempts=0))
    if begin is session:
        peer, name = session(rig), "a"
    else:
        (peer,), name = members(rig, "a", qos=qos), "g"
    rig.send("t/x", "bad", qos=qos)
    peer.nack(peer.one(), "never", "no such order")
    assert letters(rig) == [(name, "bad", 1, "no such order")]
    assert f"moved to $dead/{name}/t/x: no such order" in caplog.text
    assert waiting(rig) == []
    assert in_flight(rig) == 0
    rig.restart()
    assert rig.lasting("a").inbox == []
    assert letters(rig) == [(name, "bad", 1, "no such order")]


def test_a_nack_of_the_wrong_kind_or_of_nothing(rig: Rig, peer: Peer) -> None:
    rig.send("t/x", "job")
    (packet,) = peer.publishes()
    peer.nack(Publish(b"t", b"", 1, packet_id=999), "1s")
    assert (peer.gone_with, waiting(rig)) == (-1, [])
    peer.nack(Publish(b"t", b"", 2, packet_id=packet.packet_id), "1s")
    assert peer.gone_with == Reason.PROTOCOL_ERROR


def test_a_nack_frees_the_window_and_others_come_meanwhile(rig: Rig) -> None:
    peer = rig.lasting("a", receive_maximum=1).subscribed("t/#")
    rig.send("t/x", "1", "2", "3")
    peer.nack(peer.one(), "10s")
    assert peer.take_all() == ["2", "3"]
    rig.pass_ms(10_000)
    assert peer.take_all() == ["1"]


# -- leases


def test_deliveries_of_a_group_with_a_timeout_say_so(rig: Rig) -> None:
    (member,) = members(rig, "m", ack_timeout="30s")
    (other,) = members(rig, "m")  # again, and without: as it was
    plain = session(rig, "a")
    peer = rig.connected("p")
    peer.publish1("t/x", "1")
    peer.publish1("$delayed/0/t/x", "2")
    for packet in other.publishes():
        assert user(packet, "fasti-ack-timeout") == "30000"
    assert all(user(packet, "fasti-ack-timeout") is None for packet in plain.publishes())
    assert member is not other


def test_a_lease_that_lapses_brings_it_again_with_back_off_and_the_reason() -> None:
    rig = Rig(config(max_attempts=2))
    a, b = members(rig, "a", "b", ack_timeout="30s")
    rig.send("t/x", "job")
    (first,) = [*a.publishes(), *b.publishes()]
    assert user(first, "fasti-attempt") is None
    rig.pass_ms(29_999)
    assert waiting(rig) == []
    rig.pass_ms(251)
    assert waiting(rig) == ["job"]
    rig.pass_ms(1_000)
    (again,) = [*a.publishes(), *b.publishes()]
    assert user(again, "fasti-attempt") == "2"
    rig.pass_ms(30_250)
    assert letters(rig) == [("g", "job", 2, "not acked within 30 s")]


def extend(peer: Peer, packet_id: int, for_: object, qos: int = 1) -> Ack | None:
    number = peer.publish("$control/extend", json.dumps({"packet_id": packet_id, "for": for_}), qos)
    return peer.take_ack(wire.PUBACK, number) if qos == 1 else None


@pytest.mark.parametrize("qos", [0, 1])
def test_a_lease_is_extended_from_now_on(rig: Rig, qos: int) -> None:
    a, b = members(rig, "a", "b", ack_timeout="30s")
    rig.send("t/x", "1", "2")
    (held,), (lapses,) = a.publishes(), b.publishes()
    rig.pass_ms(20_000)
    answer = extend(a, held.packet_id, "PT1M", qos)
    assert answer is None or answer.reason == 0
    rig.pass_ms(11_000)
    assert waiting(rig) == [lapses.payload.decode()]
    rig.pass_ms(48_000)
    assert a.payloads() == [lapses.payload.decode()]
    assert in_flight(rig, GROUP) == 2
    assert extend(a, held.packet_id, 5).reason == 0  # type: ignore[union-attr]
    rig.pass_ms(4_999)
    assert waiting(rig) == []
    rig.pass_ms(251)
    assert waiting(rig) == [held.payload.decode()]
    late = extend(a, held.packet_id, 5)
    assert late is not None
    assert late.reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert "no longer leased" in str(about(late).reason_string)


def test_where_nobody_waits_there_is_nothing_to_extend_and_that_is_fine(rig: Rig, peer: Peer) -> None:
    (member,) = members(rig, "m")
    rig.send("t/x", "job")
    for one in (peer, member):
        (packet,) = one.publishes()
        assert extend(one, packet.packet_id, "60s").reason == 0  # type: ignore[union-attr]
        assert extend(one, packet.packet_id + 1, "60s").reason == 0x83  # type: ignore[union-attr]
    rig.pass_ms(180_000)
    assert in_flight(rig, GROUP) == 1


@pytest.mark.parametrize(
    ("payload", "reason", "field"),
    [
        ("{}", 0x99, "packet_id"),
        ('{"packet_id": 0, "for": 5}', 0x99, "packet_id"),
        ('{"packet_id": 1}', 0x99, "for"),
        ('{"packet_id": 1, "for": "soon"}', 0x99, "for"),
        ('{"packet_id": 1, "for": true}', 0x99, "for"),
        ('{"packet_id": 1, "for": 0}', 0x97, "for"),
        ('{"packet_id": 1, "for": "13h"}', 0x97, "for"),
        ('{"packet_id": 1, "for": 5, "x": 1}', 0x99, "x"),
        ("\xff", 0x99, "extend"),
        ('{"packet_id": 1, "for": 5, "progress": "\xff"}', 0x99, "extend"),
        ('{"packet_id": 1, "for": 5, "progress": }', 0x99, "extend"),
        (f'{{"packet_id": 1, "for": 5, "progress": "{"x" * 4_095}"}}', 0x97, "progress"),
        ('{"packet_id": 1, "for": 5, "progress": 1}', 0x83, "group"),
    ],
)
def test_an_extension_that_cannot_be_read_says_why(rig: Rig, payload: str, reason: int, field: str) -> None:
    peer = session(rig)
    rig.send("t/x", "job")
    peer.publishes()
    number = peer.publish("$control/extend", payload.encode("latin-1"), 1)
    answer = peer.take_ack(wire.PUBACK, number)
    assert answer.reason == reason
    assert field in str(about(answer).reason_string)
    assert peer.begin("$control/extend", '{"packet_id": 1, "for": 5}').reason == 0x83


@pytest.mark.parametrize("ack_timeout", ["30s", "0s"])
def test_a_member_says_how_far_it_is(rig: Rig, monkeypatch: pytest.MonkeyPatch, ack_timeout: str) -> None:
    """Also where its time is not limited. It goes with its cursor, and with the delivery."""
    (member,) = members(rig, "m", ack_timeout=ack_timeout)
    rig.send("t/x", "job")
    (packet,) = member.publishes()
    body = f'{{"packet_id": {packet.packet_id}, "for": 5, "progress": {{"done": 1}}}}'
    assert member.take_ack(wire.PUBACK, member.publish("$control/extend", body, 1)).reason == 0
    (group,) = rig.core.groups
    (flight,) = group.session.flights.values()
    assert flight.progress == b'{"done": 1}'
    monkeypatch.setattr(progress, "GROUP_BYTES", 5)
    answer = member.take_ack(wire.PUBACK, member.publish("$control/extend", body, 1))
    assert (answer.reason, "progress" in str(about(answer).reason_string)) == (Reason.QUOTA_EXCEEDED, True)
    rig.restart()
    (group,) = rig.core.groups
    (flight,) = group.session.flights.values()
    assert flight.progress == b'{"done": 1}'


def test_a_door_may_lend_for_a_time_of_its_own(rig: Rig) -> None:
    (member,) = members(rig, "m")
    rig.send("t/x", "job")
    (packet,) = member.publishes()
    subscriber = rig.session("m")
    core = rig.core
    (group,) = core.groups
    assert all(core.settling.lease(subscriber, group.text, [packet.packet_id], 5_000))
    assert core.settling.extend(subscriber, packet.packet_id, 8_000)
    rig.pass_ms(7_999)
    assert waiting(rig) == []
    rig.pass_ms(251)
    assert waiting(rig) == ["job"]
    assert core.settling.lease(subscriber, group.text, [packet.packet_id], 5_000) == [0]


# -- connections


@pytest.mark.parametrize("reason", [0, 4])
def test_who_leaves_in_order_gives_back_at_once(rig: Rig, reason: int) -> None:
    a, b = members(rig, "a", "b")
    rig.send("t/x", "1", "2")
    (mine,) = a.payloads()
    b.take_all()
    a.disconnect(reason)
    assert b.take_all() == [mine]


@pytest.mark.parametrize("how", ["drop", "error", "keep-alive", "taken over", "deleted"])
def test_whose_connection_is_lost_has_failed(how: str) -> None:
    rig = Rig(config(max_attempts=2))
    a, b = members(rig, "a", "b")
    rig.send("t/x", "1", "2")
    (mine,) = a.payloads()
    b.take_all()
    if how == "drop":
        a.drop()
    elif how == "error":
        a.disconnect(0x80)
    elif how == "keep-alive":
        a.connection.refuse(Reason.KEEP_ALIVE_TIMEOUT, "told to")
        rig.pump()
    elif how == "taken over":
        rig.lasting("a")
    else:
        rig.decide(lambda _: rig.core.clients.drop("a"))
    assert b.inbox == []
    rig.pass_ms(1_000)
    found = [payload for peer in rig.peers for payload in peer.payloads()]
    assert found == [mine]


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_server_that_stops_or_is_killed_has_failed_nobody(how: str, is_held: bool) -> None:
    """What nobody has is delayed for nobody; what a client has is its own for a while."""
    rig = Rig()
    a, b = members(rig, "a", "b")
    rig.send("t/x", "1", "2")
    held = {*a.payloads(), *b.payloads()}
    if not is_held:
        rig.disown()
    rig.pass_ms(500)
    rig.start_again(how)
    assert waiting(rig) == []
    peers = rig.lasting("c"), *members(rig, "d")
    assert {one for peer in peers for one in peer.payloads()} == (set() if is_held else held)
    rig.lapse()
    assert {one for peer in peers for one in peer.payloads()} == (held if is_held else set())


@pytest.mark.long
def test_a_thousand_flights_of_a_lost_connection_are_put_off_in_pieces() -> None:
    rig = Rig(config(receive_maximum=65_535))
    peer = rig.lasting("a").subscribed(GROUP, qos=1)
    publisher = rig.connected("p")
    got: list[Publish] = []
    sent = 0
    while len(got) < 1_024:  # one more with each ack
        for _ in range(200):
            publisher.publish("t/x", str(sent), 1, pump=False)
            sent += 1
        rig.pump()
        publisher.inbox.clear()
        fresh = peer.publishes()
        got += fresh
        while len(got) < 1_024 and got:
            peer.ack(wire.PUBACK, got.pop(0).packet_id, pump=False)
            if len(got) < 20:
                break
        rig.pump()
    held = in_flight(rig, GROUP)
    assert held >= 1_000
    peer.drop(pump=False)
    most = 0
    while not rig.core.events.errand.is_settled:
        queued = rig.core.writer.queued
        most = max(most, queued)
        rig.write()
        rig.turn()
    assert most <= UNDER_WAY + 10
    assert len(waiting(rig)) == held
    assert in_flight(rig, GROUP) == 0


# -- the writer


@OPENED
def test_what_the_writer_does_not_take_stays_in_flight_and_is_tried_again(
    rig: Rig, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.send("t/x", "job", "next")
    first, second = peer.publishes()
    told: list[Outcome] = []
    subscriber = rig.session("a")
    with monkeypatch.context() as patch:
        patch.setattr(rig.core.events.errand, "_writer", SimpleNamespace(submit=_full, broken=None))
        assert rig.core.settling.nack(
            subscriber, first.packet_id, delay_ms=1_000, reason="no", done=told.append
        )
        rig.pump()
        assert told == [Outcome.FAILED]
        peer.drop()
        # What waits is not sent again from where it was.
        peer = rig.lasting("a")
        assert peer.payloads() == ["next"]
    rig.pass_ms(1_000)
    assert waiting(rig) == ["job"]
    assert told == [Outcome.FAILED]
    rig.pass_ms(1_000)
    assert peer.payloads() == ["job"]
    assert second.payload == b"next"


def _full(*_: object, **__: object) -> None:
    raise Busy("full")


@pytest.mark.parametrize("begin", [session, lambda rig: members(rig, "a")[0]], ids=["session", "group"])
def test_a_failed_sync_leaves_it_in_flight(rig: Rig, begin: Kind) -> None:
    peer = begin(rig)
    rig.send("t/x", "job")
    peer.nack(peer.one(), "1s", pump=False)
    assert rig.compose()
    rig.lose()
    rig.pump()
    assert waiting(rig) == []
    rig.pass_ms(1_000)
    assert waiting(rig) == ["job"]
    rig.pass_ms(1_000)
    assert peer.take_all() == ["job"]


def test_a_store_that_takes_nothing_is_waited_for(rig: Rig) -> None:
    (member,) = members(rig, "m", ack_timeout="30s")
    rig.send("t/x", "job")
    member.publishes()
    rig.core.writer.fail(StoreFailed("told to"))
    rig.jump(31_000)
    assert len(rig.core.events.errand.put_off) == 1
    assert in_flight(rig, GROUP) == 1
    assert rig.recover()
    rig.pass_ms(1_100)
    assert waiting(rig) == ["job"]


@KINDS
@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_kill_leaves_it_in_flight_or_waiting(begin: Kind, survivors: int) -> None:
    outcomes = set()
    for steps in range(8):
        rig = Rig()
        peer = begin(rig)
        rig.send("t/x", "job")
        rig.pass_ms(500)
        peer.nack(peer.one(), "5s", pump=False)
        is_at_rest = not rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        peer = rig.lasting("a")
        if rig.core.settling.former:
            rig.lapse()
        came = peer.take_all()
        assert (came, waiting(rig)) in ((["job"], []), ([], ["job"])), steps
        outcomes.add(bool(came))
        rig.pass_ms(6_000)
        assert rig.peers[0].take_all() == ([] if came else ["job"])
        if is_at_rest:
            break
    assert outcomes == {True, False}


# -- messages


def test_what_has_expired_or_would_comes_no_more(rig: Rig, peer: Peer) -> None:
    rig.send("t/x", "short", message_expiry=10)
    rig.send("t/x", "long", message_expiry=100)
    short, long = peer.publishes()
    peer.nack(short, "20s")
    peer.nack(long, "20s")
    assert (waiting(rig), in_flight(rig)) == (["long"], 0)
    rig.pass_ms(20_000)
    (again,) = peer.publishes()
    assert about(again).message_expiry == 80
    rig.pass_ms(80_000)
    peer.nack(again, "0")
    assert (waiting(rig), in_flight(rig)) == ([], 0)


def test_late_drop_is_about_the_first_delivery(rig: Rig, peer: Peer) -> None:
    rig.core.publishing.publish(
        [(PublishRequest(Record(b"t/x", b"job", rig.clock.now_ms, drop_late=True), True), None)]
    )
    rig.pump()
    peer.nack(peer.one(), "5s")
    rig.jump(60_000)
    assert peer.payloads() == ["job"]


def test_what_was_retained_comes_again_as_a_message(rig: Rig) -> None:
    rig.connected("p").publish1("t/x", "state", retain=True)
    peer = session(rig)
    (packet,) = peer.publishes()
    assert packet.retain
    peer.nack(packet, "5s")
    rig.pass_ms(5_000)
    (again,) = peer.publishes()
    assert (again.payload, again.retain) == (b"state", False)
    late = rig.connected("late").subscribed("t/#")
    assert late.payloads() == ["state"]


def test_what_was_not_stored_comes_again_from_the_tail(rig: Rig) -> None:
    peer = rig.connected("a").subscribed("t/#")
    rig.send("t/x", "job")
    assert not rig.store.log or all(
        change[0] is not Table.MESSAGES for batch in rig.store.log for change in batch.changes
    )
    peer.nack(peer.one(), "5s")
    rig.pass_ms(5_000)
    assert peer.payloads() == ["job"]


def test_a_group_that_ends_meanwhile_gets_nothing(rig: Rig) -> None:
    a, b = members(rig, "a", "b")
    rig.send("t/x", "job")
    (packet,) = [*a.publishes(), *b.publishes()]
    a.nack(packet, "5s", pump=False)
    b.nack(packet, "5s", pump=False)
    rig.core.groups.forget(rig.core.sessions.get("a"))  # type: ignore[arg-type]
    rig.core.groups.forget(rig.core.sessions.get("b"))  # type: ignore[arg-type]
    rig.pump()
    rig.pass_ms(6_000)
    assert a.inbox == b.inbox == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_member_may_nack_and_be_gone_at_once_with_its_session(rig: Rig, qos: int) -> None:
    """At QoS 2 what is in flight is the member's alone, and ends with its session: the nack counts."""
    peer = rig.connected("a").subscribed(GROUP, qos=qos)
    rig.send("t/x", "job", qos=qos)
    peer.nack(peer.one(), "5s", "no", pump=False)
    peer.drop()
    (other,) = members(rig, "b", qos=qos)
    rig.pass_ms(4_999)
    assert other.take_all() == []
    rig.pass_ms(1)
    assert other.take_all() == ["job"]


def test_who_has_one_that_failed_does_not_wait_for_the_thousands_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.delivery.settling.events.UNDER_WAY", 10)
    rig = Rig()
    many = rig.lasting("many").subscribed("t/#", qos=1)
    one = rig.lasting("one").subscribed("u", qos=1)
    rig.send("t/x", *(f"m{number}" for number in range(40)))
    peer = rig.connected("publisher")
    peer.publish1("u", "job")
    thousands, (own,) = many.publishes(), one.publishes()
    assert len(thousands) == 40
    for packet in thousands:
        many.nack(packet, "1h", pump=False)
    one.nack(own, "1h", pump=False)
    while rig.deliver():
        """What they say is read."""
    for _ in range(2):
        rig.write()
    session = rig.session("one")
    assert not session.session.flights
    assert rig.core.events.retried < 40
    rig.pump()
    assert rig.core.events.retried == 40 + 1


def test_a_turn_is_a_few_so_that_cursors_are_written_seldom(rig: Rig) -> None:
    """Of 20 groups with 16 each a piece takes all of some, and not some of all."""
    peer = rig.lasting("a").subscribed(*(f"$share/g{number}/t/#" for number in range(20)), qos=1)
    rig.send("t/x", *map(str, range(16)))
    groups = list(rig.core.groups)
    assert [len(group.session.flights) for group in groups] == [16] * 20
    peer.drop(pump=False)
    for _ in range(2):
        rig.write()
    left = [len(group.session.flights) for group in groups]
    assert sum(left) > 100
    assert left.count(0) >= 10
    rig.pump()
    assert not any(group.session.flights for group in groups)
    assert rig.core.events.retried == 320


@OPENED
def test_what_there_is_no_time_for_goes_first_with_the_next_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    decide, decided = Events._decide, list[int]()

    def slow(self: Events, commit: Commit, what: Happening) -> Outcome:
        rig.clock.now_ms += 3
        decided.append(what.root)
        return decide(self, commit, what)

    monkeypatch.setattr(Events, "_decide", slow)
    rig = Rig()
    rig.lasting("a").subscribe(GROUP, qos=1)
    rig.send("t/x", *map(str, range(10)))
    rig.core.clients.leave(rig.core.sessions.get("a"), is_clean=False)  # type: ignore[arg-type]
    counts = []
    while not rig.core.events.errand.is_settled:
        rig.compose()
        counts.append(len(decided))
        rig.settle()
    assert counts == [1, 4, 7, 10]
    assert decided == sorted(decided)
    assert sorted(waiting(rig), key=int) == list(map(str, range(10)))
