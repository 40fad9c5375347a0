"""Shared subscriptions: [MQTT-4.8.2-1] to [MQTT-4.8.2-6]."""

import json
from itertools import pairwise

import pytest

from server.codec import wire
from server.codec.packets import Publish, Unsubscribe
from server.delivery.beside import TURN_RESENDS
from server.delivery.picker import CAPACITY_FIRST
from server.delivery.rate_limit import RateLimited
from server.delivery.settling.leases import Leases
from server.delivery.shared import KEY_PREFIX, Group
from server.settings.config import Sessions
from shards.store import Table
from tests.support.build import OPENED
from tests.support.clock import RigClock
from tests.support.mqtt import user
from tests.support.rig import Peer, Rig, config
from timeline.key_rows import KeyBound
from timeline.position import Position
from timeline.session import Flight, Returned, Session

TEXT = "$share/g/t/#"
AT_ONCE = (("expiry", "0s"),)
"""The group goes with the last session that holds it."""


def _members(
    rig: Rig, *names: str, qos: int = 2, asked: tuple[tuple[str, str], ...] = (), **options: int
) -> list[Peer]:
    peers = [rig.lasting(name, **options) for name in names]
    return [peer.subscribed(TEXT, qos=qos, user_properties=asked) for peer in peers]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_members_get_disjoint_messages_and_others_get_all(rig: Rig, qos: int) -> None:
    a, b, c = (rig.connected(name) for name in "abc")
    for peer in (a, b, c):
        peer.subscribe(TEXT, qos=qos)
    other, alone = rig.connected("o").subscribed("$share/h/t/#"), rig.connected("n").subscribed("t/#")
    publisher = rig.connected("p")
    publisher.send(*[Publish(b"t/x", b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in range(30)])
    shares = [peer.take_all() for peer in (a, b, c)]
    everything = [str(n) for n in range(30)]
    assert sorted((payload for share in shares for payload in share), key=int) == everything
    assert all(len(share) == 10 for share in shares)
    assert all(share == sorted(share, key=int) for share in shares)
    assert other.take_all() == everything
    assert alone.take_all() == everything


def test_the_group_uses_each_member_s_qos(rig: Rig) -> None:
    for qos in (0, 1, 2):
        peer = rig.connected(f"m{qos}").subscribed("$share/g/t", qos=qos)
    publisher = rig.connected("p")
    for _ in range(6):
        publisher.publish2("t")
    for qos, peer in enumerate(rig.peers[:3]):
        found = [packet.qos for packet in peer.inbox if isinstance(packet, Publish)]
        assert set(found) == {qos}


def test_a_client_with_both_kinds_of_subscription_gets_both(rig: Rig) -> None:
    """4.8.2: a shared subscription is one of its own."""
    peer = rig.connected("a").subscribed("$share/g/t", subscription_ids=(1,))
    peer.subscribe("t", subscription_ids=(2,))
    peer.subscribe("$share/h/t", subscription_ids=(3,))
    rig.connected("p").publish1("t", "x")
    ids = sorted(p.properties.subscription_ids for p in peer.publishes() if p.properties)
    assert ids == [(1,), (2,), (3,)]


def test_what_a_member_that_leaves_has_not_acked_goes_to_another_first(rig: Rig) -> None:
    a, b = _members(rig, "a", "b", receive_maximum=2)
    rig.send("t/x", *map(str, range(6)))
    theirs, others = a.publishes(), b.publishes()
    assert len(theirs) == len(others) == 2
    a.disconnect()
    for packet in others:
        b.ack(wire.PUBACK, packet.packet_id)
    found = b.publishes()
    assert [p.payload for p in found] == [p.payload for p in theirs]
    assert not any(p.dup for p in found)
    b.inbox = list(found)
    assert b.take_all() == [p.payload.decode() for p in theirs] + ["4", "5"]


@pytest.mark.parametrize("leaving", ["drop", "takeover"])
def test_what_a_member_has_that_is_lost_comes_again_later(rig: Rig, leaving: str) -> None:
    """It may have been what killed it."""
    a, b = _members(rig, "a", "b", receive_maximum=2)
    rig.send("t/x", *map(str, range(6)))
    theirs, others = a.publishes(), b.publishes()
    assert len(theirs) == len(others) == 2
    if leaving == "takeover":
        rig.connected("a", clean=True)
    else:
        a.drop()
    for packet in others:
        b.ack(wire.PUBACK, packet.packet_id)
    assert b.take_all() == ["4", "5"]
    rig.pass_ms(999)
    assert b.inbox == []
    rig.pass_ms(1)
    found = b.publishes()
    assert [p.payload for p in found] == [p.payload for p in theirs]
    assert not any(p.dup for p in found)


def test_qos_2_stays_with_its_member(rig: Rig) -> None:
    """[MQTT-4.8.2-4], [MQTT-4.8.2-5]"""
    a, b = _members(rig, "a", "b")
    rig.send("t/x", *map(str, range(4)), qos=2)
    theirs, others = a.publishes(), b.publishes()
    assert len(theirs) == len(others) == 2
    a.drop()
    assert b.inbox == []
    b.inbox += others
    b.take_all()
    a = rig.lasting("a")
    again = a.publishes()
    assert [(p.packet_id, p.dup, p.payload) for p in again] == [
        (p.packet_id, True, p.payload) for p in theirs
    ]


def test_a_member_of_a_session_that_ends_leaves_qos_2_behind(rig: Rig) -> None:
    """[MQTT-4.8.2-5]: nobody else gets it."""
    a = rig.connected("a").subscribed(TEXT)
    (b,) = _members(rig, "b")
    rig.send("t/x", "0", "1", qos=2)
    assert len(a.publishes()) == len(b.publishes()) == 1
    a.drop()
    assert b.inbox == []


def test_the_group_lives_while_an_away_session_holds_it(rig: Rig) -> None:
    a, b = _members(rig, "a", "b")
    a.drop()
    b.drop()
    rig.send("t/x", "1", "2", "3")
    b = rig.lasting("b")
    assert b.take_all() == ["1", "2", "3"]
    b.unsubscribe(TEXT)
    rig.send("t/x", "4")
    assert rig.lasting("a").take_all() == ["4"]


def test_it_ends_with_its_last_member(rig: Rig) -> None:
    (a,) = _members(rig, "a", asked=AT_ONCE)
    rig.send("t/x", "1")
    assert a.payloads() == ["1"]
    a.unsubscribe(TEXT)
    rig.send("t/x", "2")
    assert a.inbox == []
    (b,) = _members(rig, "b", asked=AT_ONCE)
    assert b.inbox == []
    rig.send("t/x", "3")
    assert b.take_all() == ["3"]
    b.drop()
    rig.connected("b", clean=True)
    assert len(rig.core.groups) == 0
    rig.crash()
    assert len(rig.core.groups) == 0


def test_an_expired_session_leaves_its_groups(rig: Rig) -> None:
    (a,) = _members(rig, "a", asked=AT_ONCE, expiry=5)
    a.drop()
    rig.pass_ms(6_000)
    assert rig.core.clients.end_expired(list(rig.core.sessions)) == 1
    assert len(rig.core.groups) == 0
    assert len(rig.core.router) == 0


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_position_and_flights_are_kept_over_a_start(rig: Rig, how: str) -> None:
    a, b = _members(rig, "a", "b", receive_maximum=2)
    rig.send("t/x", *map(str, range(8)))
    mine, theirs = a.publishes(), b.publishes()
    b.ack(wire.PUBACK, theirs[0].packet_id)
    theirs += b.publishes()
    rig.pass_ms(500)
    rig.core.cursors.recover()
    rig.decide(lambda commit: None)
    rig.start_again(how)
    (c,) = _members(rig, "c")
    found, acked = c.take_all(), theirs[0].payload.decode()
    held = sorted(p.payload.decode() for p in (*mine, *theirs[1:]))
    assert found == sorted({str(n) for n in range(8)} - {acked, *held})
    rig.lapse()
    assert c.take_all() == held
    assert rig.lasting("a").inbox == []


def test_who_joins_later_does_not_move_the_beginning(rig: Rig) -> None:
    """What was missed while all were away is there after a start, whoever of them is restored first."""
    (z,) = _members(rig, "z")
    z.drop()
    rig.send("t/x", "1", "2")
    rig.lasting("a").subscribed("t/#").disconnect()
    late = rig.lasting("b", receive_maximum=1).subscribed(TEXT, qos=1)
    late.publishes()
    late.disconnect()
    rig.crash(pump=True)
    assert rig.lasting("b").take_all() == ["1", "2"]


def test_the_group_s_place_does_not_hang_on_who_made_it(rig: Rig) -> None:
    """Its first member is gone, the one that is left joined behind what is still to be read."""
    (z,) = _members(rig, "z")
    z.drop()
    rig.send("t/x", "1", "2", "3")
    (b,) = _members(rig, "b", receive_maximum=1)
    assert b.payloads() == ["1"]
    rig.connected("z", clean=True).disconnect()
    rig.pass_ms(200)
    rig.decide(lambda commit: None)
    rig.crash(pump=True)
    b = rig.lasting("b")
    assert b.take_all() == ["2", "3"]
    rig.lapse()
    assert b.take_all() == ["1"]


def test_unsubscribe_does_not_take_away_what_is_in_flight(rig: Rig) -> None:
    a, b = _members(rig, "a", "b")
    rig.send("t/x", "1", "2")
    (mine,) = a.publishes()
    b.publishes()
    a.unsubscribe(TEXT)
    assert b.inbox == []
    a.ack(wire.PUBACK, mine.packet_id)
    a.drop()
    assert b.inbox == []
    # Not acked before the connection ends: another member gets it.
    rig.send("t/x", "3")
    (three,) = b.publishes()
    (c,) = _members(rig, "c")
    b.unsubscribe(TEXT)
    b.disconnect()
    assert c.payloads() == ["2", "3"]
    assert three.payload == b"3"


def test_returns_in_order_are_no_tries_ten_times() -> None:
    rig = Rig(config(max_attempts=2))
    grave = rig.connected("grave").subscribed("$dead/#")
    (keeper,) = _members(rig, "keeper", qos=1)
    keeper.disconnect(expiry=3_600)
    rig.connected("p").publish1("t/x", "bad")

    def attempt() -> str | None:
        """What the next worker is told, which stops in order."""
        peer = rig.connected("w", receive_maximum=1).subscribed(TEXT, qos=1)
        (came,) = peer.publishes() or (None,)
        peer.disconnect()
        if came is None:
            return "nothing"
        assert not came.dup
        return came.properties.user("fasti-attempt") if came.properties else None

    assert [attempt() for _ in range(10)] == [None] * 10
    rig.kill()  # how often it was returned outlives the server
    assert attempt() is None, "the eleventh return is a try, with its back-off"
    assert attempt() == "nothing"
    assert grave.publishes() == []
    (row,) = list(rig.core.kept_retries.read())
    assert (row.attempts, row.counted, row.returns) == (1, 1, 10)
    assert [(one.outcome, one.by) for one in row.tries] == [("returned", "w")]


def test_attempts_are_counted_and_poison_goes_to_dead() -> None:
    rig = Rig(config(max_attempts=2))
    grave = rig.connected("grave").subscribed("$dead/#")
    rig.connected("p").publish1("$delayed/1/t/x", "bad")
    a, b = _members(rig, "a", "b", qos=1)
    rig.pass_ms(2_000)
    (first,) = [*a.publishes(), *b.publishes()]
    assert first.properties is not None
    assert first.properties.user("fasti-attempt") is None
    holder, other = (a, b) if rig.session("a").session.flights else (b, a)
    holder.drop()
    rig.pass_ms(2_000)
    (second,) = other.publishes()
    assert user(second, "fasti-attempt") == "2"
    (told,) = json.loads(user(second, "fasti-tries") or "")
    assert (told["outcome"], told["reason"], told["by"]) == (
        "lost",
        "connection lost",
        holder.connection.client_id,
    )
    assert not second.dup
    other.drop()
    (dead,) = grave.publishes()
    assert (dead.topic, dead.payload) == (b"$dead/g/t/x", b"bad")


def _timed(rig: Rig, *names: str, lasting: bool = True) -> list[Peer]:
    """Members of a group that waits 30 s for an ack, one message at a time."""
    peers = [(rig.lasting if lasting else rig.connected)(name, receive_maximum=1) for name in names]
    return [peer.subscribed(TEXT, qos=1, user_properties=(("ack-timeout", "30s"),)) for peer in peers]


@pytest.mark.parametrize("is_lasting", [False, True])
def test_after_the_ack_timeout_it_comes_again(rig: Rig, is_lasting: bool) -> None:
    a, b = _timed(rig, "a", "b", lasting=is_lasting)
    rig.send("t/x", "1", "2")
    (mine,) = a.publishes()
    b.take_all()
    rig.pass_ms(30_000)
    assert b.inbox == []
    rig.pass_ms(1_250)
    assert b.take_all() == [mine.payload.decode()]
    # The late ack frees the window.
    a.ack(wire.PUBACK, mine.packet_id)
    assert a.inbox == []
    rig.send("t/x", "3", "4")
    assert sorted(a.take_all() + b.take_all()) == ["3", "4"]


@pytest.mark.long
@pytest.mark.parametrize("survivors", range(4))
def test_qos_2_of_a_group_is_with_one_member_or_with_none(survivors: int) -> None:
    """A kill between the cursors of the group and of its members: each message is there once."""
    for steps in range(1, 25):
        rig = Rig()
        _members(rig, "a", "b")
        publisher = rig.connected("p")
        publisher.send(*[Publish(b"t/x", b"%d" % n, 2, packet_id=n + 1) for n in range(4)], pump=False)
        for _ in range(steps):
            rig.clock.now_ms += 60
            rig.micro()
        stored = any(packet for packet in publisher.inbox)
        rig.crash(survivors, pump=True)
        a, b = rig.lasting("a"), rig.lasting("b")
        found = sorted(a.take_all() + b.take_all())
        assert found == sorted(set(found))
        assert not stored or found == ["0", "1", "2", "3"], steps


@pytest.mark.parametrize("how", ["drop", "restart", "crash"])
def test_qos_2_comes_again_with_the_identifier_of_the_share(rig: Rig, how: str) -> None:
    a = rig.lasting("a").subscribed(TEXT, rap=True, subscription_ids=(7,))
    a.subscribe("t/#", subscription_ids=(9,))
    rig.connected("p").publish2("t/x", "x", retain=True)
    first = [packet.properties.subscription_ids for packet in a.publishes() if packet.properties]
    assert sorted(first) == [(7,), (9,)]
    a.drop() if how == "drop" else getattr(rig, how)()
    rig.pump()
    again = rig.lasting("a").publishes()
    assert [packet.dup for packet in again] == [True, True]
    assert [packet.properties.subscription_ids for packet in again if packet.properties] == first
    assert {packet.properties.subscription_ids: packet.retain for packet in again if packet.properties} == {
        (7,): True,
        (9,): False,
    }


@pytest.mark.parametrize(("since", "got"), [("PT1H", ["2", "3"]), ("2026-11-20T08:00:00Z", ["1", "2", "3"])])
def test_replay_from_where_a_group_begins(rig: Rig, since: str, got: list[str]) -> None:
    """It holds for who makes the group. Who joins later changes nothing."""
    rig.lasting("keeper").subscribe("#")
    publisher = rig.connected("p")
    publisher.publish1("t", "1")
    rig.jump(7_200_000)
    publisher.publish1("t", "2")
    publisher.publish1("t", "3")
    asked = (("replay-from", since),)
    a = rig.lasting("a").subscribed("$share/g/t", user_properties=asked)
    assert a.take_all() == got
    b = rig.lasting("b").subscribed("$share/g/t", user_properties=asked)
    a.subscribe("$share/g/t", user_properties=asked)
    assert a.inbox + b.inbox == []
    rig.crash(pump=True)
    assert rig.lasting("a").inbox == []
    publisher = rig.connected("p")
    publisher.publish1("t", "4")
    assert sum(len(peer.inbox) for peer in rig.peers) == 1


@pytest.mark.parametrize("survivors", [0, 1, 2, 3])
def test_where_a_group_begins_is_kept_from_its_first_suback_on(rig: Rig, survivors: int) -> None:
    rig.lasting("keeper").subscribe("#")
    rig.connected("p").publish1("t", "1")
    a = rig.lasting("a")
    a.is_reading = False
    a.subscribe("$share/g/t", pump=False, user_properties=(("replay-from", "PT1H"),))
    rig.write()
    rig.crash(survivors, pump=True)
    assert rig.lasting("a").take_all() == ["1"]


@pytest.mark.parametrize("is_lasting", [False, True])
def test_a_plain_publish_with_a_member_that_dies_goes_to_another(rig: Rig, is_lasting: bool) -> None:
    """Also when nobody's session outlives its connection."""
    peers = [rig.lasting(name) if is_lasting else rig.connected(name) for name in ("a", "b")]
    for peer in peers:
        peer.subscribe(TEXT, qos=1)
    publisher = rig.connected("p")
    for number in range(6):
        assert publisher.publish1("t/x", str(number)).reason == 0
    a, b = peers
    theirs, others = a.payloads(), b.take_all()
    a.drop()
    rig.pass_ms(1_000)
    assert b.take_all() == theirs
    assert sorted(theirs + others) == ["0", "1", "2", "3", "4", "5"]


def test_an_ack_that_comes_before_it_is_decided_wins(rig: Rig) -> None:
    (a,) = _timed(rig, "a")
    rig.send("t/x", "1")
    (mine,) = a.publishes()
    rig.clock.now_ms += 31_000
    rig.turn()
    assert not rig.core.events.errand._waiting
    assert rig.core.writer.queued
    a.ack(wire.PUBACK, mine.packet_id)
    rig.pass_ms(10_000)
    assert a.inbox == []
    assert not rig.group(TEXT).session.flights


def test_an_overdue_message_of_the_only_member_comes_again_too(rig: Rig) -> None:
    """It keeps its window for the first one, until it acks that."""
    (a,) = _timed(rig, "a")
    rig.send("t/x", "1")
    (mine,) = a.publishes()
    rig.pass_ms(60_000)
    assert a.inbox == []
    (b,) = _timed(rig, "b")
    assert b.take_all() == ["1"]
    a.ack(wire.PUBACK, mine.packet_id)
    assert not a.is_closed
    assert not rig.group(TEXT).session.flights


def test_a_session_that_ends_with_qos_2_in_flight_holds_nothing_more(rig: Rig) -> None:
    clean = rig.connected("c").subscribed(TEXT, qos=2)
    (lasting,) = _members(rig, "m")
    rig.send("t/x", "1", "2", "3", "4", qos=2)
    group = rig.group(TEXT)
    assert sorted(map(len, group.lent.values())) == [2, 2]
    clean.drop()
    lasting.take_all()
    assert group.lent == {}


def test_a_stalled_member_keeps_no_more_than_it_has_shown_it_can_take(rig: Rig) -> None:
    stalled, active = rig.lasting("a"), rig.lasting("b", receive_maximum=64)
    for peer in (stalled, active):
        peer.subscribe("$share/g/t", qos=1)
    publisher = rig.connected("p", receive_maximum=1_000)
    got = 0
    for _ in range(9):
        for number in range(100):
            publisher.publish("t", str(number), 1, pump=False)
        rig.pump()
        while active.inbox:
            got += len(active.take_all())
    held = len(stalled.publishes())
    assert held <= CAPACITY_FIRST
    assert got == 900 - held


def test_a_member_that_acks_is_given_up_to_its_window(rig: Rig) -> None:
    (member,) = _members(rig, "a", receive_maximum=100)
    rig.send("t/x", *map(str, range(300)))
    most = 0
    got: list[str] = []
    while member.inbox:
        found = member.publishes()
        most = max(most, len(found))
        got += [packet.payload.decode() for packet in found]
        for packet in found:
            member.ack(wire.PUBACK, packet.packet_id, pump=False)
        rig.pump()
    assert most > CAPACITY_FIRST
    assert got == list(map(str, range(300)))


def test_a_qos_2_message_of_a_group_comes_once_over_a_failed_sync_and_a_kill(rig: Rig) -> None:
    """What the failed sync took with it of the group's place is written again, with its members'."""
    (member,) = _members(rig, "m")
    publisher = rig.connected("p")
    publisher.publish2("t/x", "warm")
    member.take_all()
    rig.pass_ms(500)
    publisher.publish("t/x", "X", 2, pump=False)
    rig.write()
    rig.turn()
    assert rig.compose()
    rig.lose()
    rig.pump()
    rig.decide(lambda commit: None)
    rig.crash(pump=True)
    assert rig.lasting("m").take_all() == ["X"]


@pytest.mark.parametrize("survivors", range(4))
def test_the_last_member_that_unsubscribes_keeps_what_it_has_over_a_kill(survivors: int) -> None:
    for steps in range(12):
        rig = Rig()
        (member,) = _members(rig, "m", qos=1)
        rig.send("t/x", "A")
        assert member.payloads() == ["A"]
        member.send(Unsubscribe(member.next_id(), (TEXT,)), pump=False)
        is_at_rest = not rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        assert rig.lasting("m").take_all() == ["A"], steps
        if is_at_rest:
            break


def test_who_left_a_group_before_its_last_member_keeps_what_it_has(rig: Rig) -> None:
    a, b = _members(rig, "a", "b", qos=1)
    rig.send("t/x", "1", "2")
    mine = a.payloads()
    b.take_all()
    a.unsubscribe(TEXT)
    b.unsubscribe(TEXT)
    rig.pass_ms(500)
    rig.crash(pump=True)
    assert rig.lasting("a").take_all() == mine


@OPENED
def test_members_that_leave_together_do_not_cost_the_square_of_what_they_held() -> None:
    """Counted in comparisons of flights, not in seconds."""
    session = Session(KEY_PREFIX + "$share/g/t", read=Position(0), expiry_s=9, window=65_535)
    group = Group(
        session,
        set(),
        Leases(RigClock(0), lambda: 0),
        Sessions(),
        RateLimited(float),
        Returned(9_999),
        KeyBound(10),
    )
    flights, loans = [Counted(n + 1, Position(n << 48), 0, 1) for n in range(3_000)], Rig().core.groups.loans
    Counted.compared = 0
    for flight in flights:
        group.session.flights[flight.packet_id] = flight
    for flight in flights:
        assert loans.await_member(group, flight)
        assert loans.await_member(group, flight)
    assert len(group.session.resends) == 3_000
    assert Counted.compared < 3_000


class Counted(Flight):
    """A flight that counts how often it is compared with another."""

    compared = 0
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return self is other


@pytest.mark.parametrize("survivors", [0, 99])
def test_what_the_last_persistent_member_holds_is_its_own_though_others_stay(survivors: int) -> None:
    rig = Rig()
    (a,) = _members(rig, "a", asked=AT_ONCE)
    rig.send("t/x", "job")
    assert a.payloads() == ["job"]
    rig.connected("b").subscribe(TEXT)
    assert a.unsubscribe(TEXT) == (0,)
    group = rig.group(TEXT)
    assert not group.session.flights
    assert not group.lent
    rig.crash(survivors, pump=True)
    assert rig.lasting("a").take_all() == ["job"]


def test_a_group_goes_on_when_its_member_has_ended_what_it_had_to_send_again(rig: Rig) -> None:
    """Nobody acks what has expired meanwhile: it is not an ack that makes room."""
    a = rig.lasting("a").subscribed("own", TEXT, qos=1)
    publisher = rig.connected("p")
    for _ in range(TURN_RESENDS + 50):
        publisher.publish("own", qos=1, message_expiry=5)
    a.drop()
    rig.pass_ms(10_000)
    rig.send("t/x", "0", "1")
    a = rig.opened("a")
    rig.pump()
    assert a.payloads() == ["0", "1"]


def test_a_group_forgets_who_is_no_member_and_has_acked(rig: Rig) -> None:
    _members(rig, "keeper", receive_maximum=1)
    rig.send("t/x", "hold")
    (guest,) = _members(rig, "guest")
    rig.send("t/x", "x")
    (delivery,) = guest.publishes()
    guest.unsubscribe(TEXT)
    guest.ack(wire.PUBACK, delivery.packet_id)
    group = rig.group(TEXT)
    assert rig.core.sessions.get("guest") not in group.picker._capacities
    assert len(group.lent) == 1


def test_many_groups_that_end_at_once_write_an_heir_once(rig: Rig) -> None:
    a = rig.lasting("a")
    names = [f"$share/g{number}/t" for number in range(100)]
    a.subscribe(*names, qos=1)
    rig.connected("p").publish("t", "job", 1)
    assert len(a.publishes()) == len(names)
    rig.pass_ms(1_000)
    before = len(rig.store.log)
    a.unsubscribe(*names)
    cursors = [
        sum(change[0] is Table.CURSORS and change[1] == b"a" and bool(change[2]) for change in batch.changes)
        for batch in rig.store.log[before:]
    ]
    assert max(cursors) == 1
    rig.crash(pump=True)
    assert rig.lasting("a").take_all() == ["job"] * len(names)


def test_a_look_at_leases_is_bounded_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.delivery.settling.settling.LAPSED", 10)
    rig = Rig(config(ack_timeout_ms=30_000))
    names = [f"$share/g{number}/t" for number in range(25)]
    a = rig.connected("a").subscribed(*names, qos=1)
    rig.connected("p").publish("t", "job", 1)
    assert len(a.publishes()) == len(names)
    rig.connected("b").subscribe(*names, qos=1)
    rig.pass_ms(29_900)
    came = []
    for _ in range(12):
        rig.pass_ms(250)
        came.append(rig.core.events.retried)
    steps = [after - before for before, after in pairwise([0, *came])]
    assert max(steps) <= 10
    assert sum(steps) == len(names)


def test_a_member_that_takes_small_packets_only_is_passed_over_for_large_ones(rig: Rig) -> None:
    worker = rig.connected("worker", maximum_packet_size=1_000).subscribed(TEXT, qos=1)
    tiny = rig.connected("tiny", maximum_packet_size=20).subscribed(TEXT, qos=1)
    large = ["." * 50 + str(number) for number in range(3 * CAPACITY_FIRST)]
    rig.send("t/x", *large)
    # The worker is full, and what is large waits for it.
    came = worker.take_all()
    assert came == large
    assert tiny.inbox == []
    assert rig.core.publishing.traffic.dropped == 0
    rig.send("t/x", "a", "b")
    assert len(worker.take_all() + tiny.take_all()) == 2
    # When it is gone what it had comes back, and nobody takes that.
    rig.send("t/x", large[0])
    worker.disconnect()
    rig.pump()
    assert rig.core.publishing.traffic.dropped == 1
    rig.send("t/x", "c", large[1], "d")
    assert tiny.take_all() == ["c", "d"]
    group = rig.group(TEXT)
    assert not group.session.flights


@OPENED
def test_a_member_that_nothing_can_be_sent_to_is_cut_off_and_another_gets_the_message(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = _members(rig, "a", "b")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("told to")

    monkeypatch.setattr(a.connection.outbox, "send", fail)
    rig.send("t/x", "0", "1", "2", "3")
    assert a.is_closed
    rig.pass_ms(1_000)
    assert sorted(b.take_all()) == ["0", "1", "2", "3"]
    group = rig.group(TEXT)
    assert not group.session.flights
