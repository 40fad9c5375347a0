"""The server's absence ends no lease: what members of groups have over a stop, a hand-over and a kill."""

import json
from pathlib import Path
from typing import Any

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish
from server.delivery.cursors import BURST_S
from server.delivery.link import Closing
from server.delivery.settling.settling import HELD_MS
from tests.support.keyed import Keyed
from tests.support.pulling import Puller
from tests.support.rig import Peer, Rig, about, asking
from timeline.position import MessageId, id_text

GROUP = "$share/g/t/#"
TIMEOUT_MS = 10_000
WRITTEN_MS = 1_000
"""A cursor has been written by then."""
TERMS = {"": {"backoff": "1s"}, "timeout": {"ack_timeout": "10s", "backoff": "1s"}}
ORDERED = {**TERMS["timeout"], "order": "true"}
TOKEN = "fasti-token"


def came(
    rig: Rig,
    client_id: str = "w",
    terms: dict[str, str] = TERMS[""],
    level: int = 5,
    receive_maximum: int | None = None,
    **more: str,
) -> Peer:
    """A member of the group. `more`: user properties of its CONNECT."""
    said: dict[str, Any] = {"receive_maximum": receive_maximum} if receive_maximum else {}
    if more:
        said["user_properties"] = tuple((name.replace("_", "-"), one) for name, one in more.items())
    peer = rig.connected(client_id, level, **said)
    asked = {"user_properties": asking(**terms)} if level == 5 else {}
    peer.subscribe(GROUP, qos=1, pump=False, **asked)
    rig.pump()
    peer.inbox = [packet for packet in peer.inbox if isinstance(packet, Publish)]
    return peer


def put(rig: Rig, *payloads: str) -> None:
    """Due at once; so each says its id."""
    rig.send("$delayed/0/t/1", *payloads)


def number(packet: Publish) -> int:
    return int(about(packet).user("fasti-attempt") or 1)


def name(packet: Publish) -> str:
    return about(packet).user("fasti-id") or ""


def said(peer: Peer, topic: str, body: object, qos: int = 1) -> Ack:
    """What the server answers to a command."""
    number = peer.publish(topic, json.dumps(body), qos)
    (answer,) = [packet for packet in peer.inbox if isinstance(packet, Ack)]
    peer.inbox.remove(answer)
    assert answer.packet_id == number
    return answer


def holding(peer: Peer, *ids: str, group: str = GROUP, qos: int = 1) -> Ack:
    return said(peer, "$control/holding", {"group": group, "ids": ids}, qos)


def done(peer: Peer, message: str, group: str = GROUP) -> int:
    return said(peer, "$control/done", {"group": group, "id": message}).reason


def ended(rig: Rig, how: str) -> None:
    """The server goes, and one is there again."""
    if how == "killed":
        rig.pass_ms(WRITTEN_MS)
        rig.crash(pump=True)
    else:
        rig.restart(Closing.MOVED if how == "moved" else Closing.STOPPING)


HOWS = pytest.mark.parametrize("how", ["stopped", "moved", "killed"])


@pytest.mark.parametrize("terms", TERMS)
@HOWS
def test_what_a_member_has_is_its_own_until_the_lease_ends(rig: Rig, how: str, terms: str) -> None:
    member = came(rig, terms=TERMS[terms])
    put(rig, "a")
    assert member.payloads() == ["a"]
    given_ms = rig.clock.now_ms
    ended(rig, how)
    left_ms = HELD_MS if not terms else TIMEOUT_MS - (rig.clock.now_ms - given_ms)
    other = came(rig, "other", TERMS[terms])
    rig.pass_ms(left_ms - 500)
    assert other.payloads() == [], "it is leased"
    rig.pass_ms(3_000)
    again = other.one()
    assert (again.payload, number(again)) == (b"a", 2), "a try that was not acked in time"


@HOWS
def test_an_ack_over_the_next_connection_counts(rig: Rig, how: str) -> None:
    member = came(rig)
    put(rig, "a")
    given = member.one()
    ended(rig, how)
    member = came(rig)
    assert member.payloads() == []
    assert done(member, name(given)) == 0
    rig.pass_ms(2 * HELD_MS)
    assert member.payloads() == []
    assert done(member, name(given)) == 0x83, "nothing is left of it"


@HOWS
def test_the_next_of_a_key_waits_for_what_a_member_has(rig: Rig, how: str) -> None:
    member = came(rig, terms=ORDERED)
    publisher = rig.connected("publisher")
    for payload in ("a", "b"):
        publisher.publish1("$delayed/0/t/1", payload, user_properties=(("ordering-key", "k"),))
    given = member.one()
    assert given.payload == b"a"
    ended(rig, how)
    member = came(rig, terms=ORDERED)
    rig.pass_ms(5_000)
    assert member.payloads() == [], "a copy of a runs"
    assert done(member, name(given)) == 0
    assert member.payloads() == ["b"]


def test_a_connection_that_was_lost_before_the_stop_has_ended_its_leases(rig: Rig) -> None:
    member = came(rig)
    put(rig, "a")
    assert member.payloads() == ["a"]
    member.drop()
    rig.restart()
    member = came(rig)
    rig.pass_ms(2_000)
    again = member.one()
    assert (again.payload, number(again)) == (b"a", 2)


def test_what_was_returned_in_order_before_the_stop_goes_out_at_once(rig: Rig) -> None:
    member = came(rig)
    put(rig, "a")
    assert member.payloads() == ["a"]
    member.disconnect()
    rig.restart()
    again = came(rig).one()
    assert (again.payload, number(again)) == (b"a", 1)


def test_a_lease_goes_on_over_one_start_after_the_other(rig: Rig) -> None:
    """Counted while the server runs, from when it was given."""
    member = came(rig, terms=TERMS["timeout"])
    put(rig, "a")
    given = member.one()
    for how in ("stopped", "killed", "moved"):
        rig.pass_ms(1_000)
        ended(rig, how)
    other = came(rig, "other", TERMS["timeout"])
    rig.pass_ms(5_000)
    assert other.payloads() == []
    rig.pass_ms(3_500)
    assert number(other.one()) == 2
    assert done(other, name(given)) == 0


def test_a_lease_that_was_over_while_nobody_served_is_given_at_once(rig: Rig) -> None:
    """Running time counts, so this takes a stop right at its end."""
    member = came(rig, terms=TERMS["timeout"])
    put(rig, "a")
    assert member.payloads() == ["a"]
    rig.pass_ms(TIMEOUT_MS - 100)
    rig.core.writer.submit(lambda commit: None, lambda answer: None)
    rig.restart()
    rig.pass_ms(1_500)
    other = came(rig, "other", TERMS["timeout"])
    rig.pass_ms(1_500)
    assert number(other.one()) == 2


def test_the_server_s_time_away_is_not_counted(rig: Rig) -> None:
    member = came(rig, terms=TERMS["timeout"])
    put(rig, "a")
    assert member.payloads() == ["a"]
    for peer in list(rig.peers):
        peer.connection.close(Closing.STOPPING)
    rig.pump()
    rig.finish()
    rig.clock.now_ms += 3_600_000
    rig.crash(pump=True)
    other = came(rig, "other", TERMS["timeout"])
    rig.pass_ms(TIMEOUT_MS - 500)
    assert other.payloads() == []
    rig.pass_ms(3_000)
    assert number(other.one()) == 2


def test_without_a_timeout_a_lease_is_counted_from_when_the_server_is_ready(rig: Rig) -> None:
    member = came(rig)
    put(rig, "a")
    assert member.payloads() == ["a"]
    rig.restart()
    rig.pass_ms(20_000)  # it loads
    rig.core.settling.ready()
    other = came(rig, "other")
    rig.pass_ms(HELD_MS - 500)
    assert other.payloads() == []
    rig.pass_ms(3_000)
    assert number(other.one()) == 2


def test_once_ready_such_a_lease_has_its_end_over_the_next_start_too(rig: Rig) -> None:
    member = came(rig)
    put(rig, "a")
    assert member.payloads() == ["a"]
    rig.restart()
    rig.core.settling.ready()
    rig.pass_ms(20_000)
    rig.restart()
    rig.core.settling.ready()
    other = came(rig, "other")
    rig.pass_ms(9_000)
    assert other.payloads() == []
    rig.pass_ms(3_000)
    assert number(other.one()) == 2


def test_a_lease_is_written_within_a_moment_though_nothing_else_is(rig: Rig) -> None:
    member = came(rig)
    rig.pass_ms(300)
    put(rig, "a")
    assert member.payloads() == ["a"]
    rig.pass_ms(150)
    rig.crash(pump=True)
    assert came(rig, "other").payloads() == []


def test_so_it_is_in_more_groups_than_a_batch_takes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [f"$share/{number}/t/#" for number in range(8)]
    rig.connected("w").subscribed(*groups, qos=1, user_properties=asking(ack_timeout="10s"))
    rig.pass_ms(300)
    monkeypatch.setattr("server.delivery.cursors.LAZY_COST", 1)
    put(rig, "a")
    rig.pass_ms(150)
    assert not rig.core.cursors.is_behind


def test_so_it_is_when_the_group_has_paid_for_earlier_cursors(rig: Rig) -> None:
    member = came(rig)
    rig.pass_ms(300)
    rig.group(GROUP).cursor.even_at = rig.clock.mono() + BURST_S + 0.3
    put(rig, "a")
    assert member.payloads() == ["a"]
    for passes_ms, is_behind in ((150, True), (140, True), (20, False)):
        rig.pass_ms(passes_ms)
        assert rig.core.cursors.is_behind is is_behind


# -- what a kill leaves open


@pytest.mark.parametrize("terms", ["", "timeout", "order"])
def test_what_no_cursor_said_comes_again_and_says_so(rig: Rig, terms: str) -> None:
    said = ORDERED if terms == "order" else TERMS[terms]
    member = came(rig, terms=said)
    rig.pass_ms(WRITTEN_MS)
    put(rig, "a", "b")
    assert [(one.payload, one.dup) for one in member.publishes()] == [(b"a", False), (b"b", False)]
    rig.crash(pump=True)
    member = came(rig, terms=said)
    again = member.publishes()
    assert [(one.payload, one.dup, number(one)) for one in again] == [(b"a", True, 1), (b"b", True, 1)]
    put(rig, "c")
    assert not member.one().dup, "it is new"


def test_a_pulled_message_that_comes_again_says_so(rig: Rig) -> None:
    member = came(rig)
    rig.pass_ms(WRITTEN_MS)
    put(rig, "a")
    assert member.payloads() == ["a"]
    rig.crash(pump=True)
    put(rig, "b")
    again, new = Puller(rig, GROUP).ask().leased
    assert (again.given.attempt, again.given.is_redelivered) == (1, True)
    assert (new.given.attempt, new.given.is_redelivered) == (1, False)


def test_a_retry_that_comes_first_does_not_end_the_doubt(rig: Rig) -> None:
    """Retries and the backlog come in turns."""
    member = came(rig)
    put(rig, "retried")
    member.nack(member.one(), "5s")
    rig.pass_ms(WRITTEN_MS)
    put(rig, "a", "b")
    assert member.payloads() == ["a", "b"]
    rig.crash()
    rig.jump(10_000)
    again = {one.payload: one for one in came(rig).publishes()}
    assert again.keys() == {b"retried", b"a", b"b"}
    assert number(again[b"retried"]) == 2
    assert again[b"a"].dup
    assert again[b"b"].dup


def test_who_waits_for_its_key_is_in_doubt_when_it_comes(rig: Rig) -> None:
    """`a` and then `b` of one key went out in the time that the kill took with it."""
    member = came(rig, terms=ORDERED)
    rig.pass_ms(WRITTEN_MS)
    publisher = rig.connected("publisher")
    for payload in ("a", "b"):
        publisher.publish1("$delayed/0/t/1", payload, user_properties=(("ordering-key", "k"),))
    first = member.one()
    member.ack(wire.PUBACK, first.packet_id)
    assert member.payloads() == ["b"]
    rig.crash(pump=True)
    rig.pass_ms(5_000)
    member = came(rig, terms=ORDERED)
    publisher = rig.connected("publisher")
    first = member.one()
    assert (first.payload, first.dup) == (b"a", True)
    publisher.publish1("$delayed/0/t/1", "new", user_properties=(("ordering-key", "other"),))
    new = member.one()
    assert (new.payload, new.dup) == (b"new", False)
    member.ack(wire.PUBACK, first.packet_id)
    second = member.one()
    assert (second.payload, second.dup) == (b"b", True), "a copy of it may run"


# -- $control/holding


def test_a_client_holds_what_it_has_and_its_lease_begins_anew(rig: Rig) -> None:
    member = came(rig, terms=TERMS["timeout"])
    put(rig, "a", "b")
    a, b = member.publishes()
    rig.restart()
    rig.pass_ms(8_000)
    member = came(rig, terms=TERMS["timeout"])
    answer = holding(member, name(a))
    assert answer.reason == 0
    rig.pass_ms(5_000)
    other = member.one()
    assert other.payload == b.payload, "nobody has spoken for b"
    rig.pass_ms(3_500)
    assert member.payloads() == [], "a is leased since it was held"
    assert done(member, name(a)) == 0
    assert done(member, name(b)) == 0


def test_holding_does_not_shorten_a_lease(rig: Rig) -> None:
    member = came(rig, terms=TERMS["timeout"])
    put(rig, "a")
    given = member.one()
    assert said(member, "$control/extend", {"packet_id": given.packet_id, "for": "1m"}).reason == 0
    rig.restart()
    member = came(rig, terms=TERMS["timeout"])
    assert holding(member, name(given)).reason == 0
    rig.pass_ms(50_000)
    assert member.payloads() == []


def test_a_held_lease_holds_over_the_next_kill(rig: Rig) -> None:
    member = came(rig)
    put(rig, "a")
    given = member.one()
    rig.restart()
    rig.core.settling.ready()
    rig.pass_ms(25_000)
    member = came(rig)
    assert holding(member, name(given)).reason == 0
    rig.pass_ms(WRITTEN_MS)
    rig.crash(pump=True)
    rig.core.settling.ready()
    other = came(rig, "other")
    rig.pass_ms(27_000)
    assert other.payloads() == []
    rig.pass_ms(5_000)
    assert number(other.one()) == 2


def test_only_what_is_leased_to_the_client_is_held(rig: Rig) -> None:
    member, other = came(rig, "w"), came(rig, "other")
    put(rig, *"abcd")
    mine, theirs = member.publishes(), other.publishes()
    assert mine
    assert theirs
    rig.restart()
    member, unknown = came(rig, "w"), id_text(MessageId(1 << 70))
    finished = mine.pop()
    assert done(member, name(finished)) == 0
    wrong = [name(theirs[0]), unknown, name(finished)]
    answer = holding(member, *map(name, mine), *wrong)
    assert answer.reason == 0x83
    reason = about(answer).reason_string or ""
    assert all(one in reason for one in wrong)
    assert not any(name(one) in reason for one in mine), "the others are held"
    assert holding(came(rig, "stranger"), name(theirs[0])).reason == 0x83
    assert holding(member, name(theirs[0]), group="$share/none/t/#").reason == 0x83


def test_another_process_of_the_same_name_holds_nothing(rig: Rig) -> None:
    member = came(rig, fasti_token="one")
    put(rig, "a")
    given = member.one()
    rig.restart()
    assert holding(came(rig), name(given)).reason == 0x83, "no token"
    assert holding(came(rig, fasti_token="two"), name(given)).reason == 0x83
    again = came(rig, "another-id", fasti_token="one")
    assert holding(again, name(given)).reason == 0, "the token tells, whatever the client id"


def test_a_client_id_is_no_token(rig: Rig) -> None:
    member = came(rig, "w")
    put(rig, "a")
    given = member.one()
    rig.restart()
    assert holding(came(rig, "x", fasti_token="w"), name(given)).reason == 0x83


def test_another_key_holds_nothing(tmp_path: Path) -> None:
    rig = Keyed(tmp_path)
    rig.add("one", "admin")
    token = {"user_properties": ((TOKEN, "same"),)}
    member = rig.come("ops", "w", **token).subscribed(GROUP, qos=1)
    rig.come("ops", "publisher").publish1("$delayed/0/t/1", "a")
    given = member.one()
    rig.restart()
    thief = rig.come("one", "thief", **token).subscribed(GROUP, qos=1)
    assert holding(thief, name(given)).reason == 0x83
    owner = rig.come("ops", "w2", **token).subscribed(GROUP, qos=1)
    assert holding(owner, name(given)).reason == 0


def test_who_is_no_member_holds_nothing(rig: Rig) -> None:
    member = came(rig)
    put(rig, "a")
    given = member.one()
    rig.restart()
    assert holding(rig.connected("w"), name(given)).reason == 0x83


def test_what_has_lapsed_is_not_held(rig: Rig) -> None:
    member = came(rig, terms=TERMS["timeout"])
    put(rig, "a")
    given = member.one()
    rig.restart()
    rig.pass_ms(TIMEOUT_MS + 500)
    member = came(rig, terms=TERMS["timeout"])
    assert holding(member, name(given)).reason == 0x83
    rig.pass_ms(2_000)
    again = member.one()
    assert holding(member, name(again)).reason == 0x83, "it is in flight here: its packet id tells"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"group": GROUP, "ids": ["no id"]}, 0x99),
        ({"group": GROUP, "ids": ["0"] * 201}, 0x99),
        ({"group": GROUP}, 0x99),
        ({"group": GROUP, "ids": [], "for": "1m"}, 0x99),
        ({"group": 1, "ids": []}, 0x99),
        ({"group": GROUP, "ids": []}, 0),
    ],
)
def test_what_holding_cannot_be_read_says_why(rig: Rig, body: object, reason: int) -> None:
    answer = said(came(rig), "$control/holding", body)
    assert answer.reason == reason
    assert not reason or (about(answer).reason_string or "").startswith("$control/holding: ")


def test_200_ids_are_held_at_once(rig: Rig) -> None:
    member = came(rig)
    put(rig, *"abcd")
    given = member.publishes()
    assert len(given) == 4
    rig.restart()
    member = came(rig)
    assert holding(member, *(50 * [*map(name, given)])).reason == 0


def test_a_refusal_names_200_ids(rig: Rig) -> None:
    ids = [id_text(MessageId(n << 70)) for n in range(1, 201)]
    answer = holding(came(rig), *ids)
    assert answer.reason == 0x83
    assert all(one in (about(answer).reason_string or "") for one in ids)


def test_holding_at_qos_0_and_2(rig: Rig) -> None:
    member = came(rig, terms=TERMS["timeout"])
    put(rig, "a")
    given = member.one()
    rig.restart()
    rig.pass_ms(5_000)
    member = came(rig, terms=TERMS["timeout"])
    body = json.dumps({"group": GROUP, "ids": [name(given)]})
    received = member.take_ack(wire.PUBREC, member.publish("$control/holding", body, 2))
    assert received.reason == 0x83
    member.publish("$control/holding", body, 0)
    rig.pass_ms(8_000)
    assert member.payloads() == [], "at QoS 0 it counts, without an answer"


def test_a_client_of_3_1_1_keeps_its_lease_and_can_hold_it(rig: Rig) -> None:
    """It is told no id, and no reason: its lease ends by itself."""
    came(rig, terms=TERMS["timeout"]).disconnect()
    member = came(rig, "old", level=4)
    put(rig, "a")
    assert member.payloads() == ["a"]
    rig.restart()
    member = came(rig, "old", level=4)
    rig.pass_ms(TIMEOUT_MS - 1_000)
    assert member.payloads() == []
    rig.pass_ms(4_000)
    assert member.payloads() == ["a"]
    member.publish("$control/holding", "{}", 1)
    assert member.is_closed, "a refusal, as of any publish below 5"


# -- as before


def test_a_post_or_a_member_at_qos_2_has_nothing_leased_over_a_stop(rig: Rig) -> None:
    """QoS 2 belongs to the member's session, which gets it again."""
    member = rig.lasting("two").subscribed(GROUP, qos=2)
    rig.connected("publisher").publish2("t/1", "a")
    assert member.one().qos == 2
    rig.restart()
    assert rig.core.settling.former == 0
    again = rig.lasting("two").one()
    assert (again.qos, again.dup) == (2, True)


def test_a_group_whose_message_a_client_has_has_somebody_at_work(rig: Rig) -> None:
    """So it does not expire meanwhile."""
    member = came(rig, terms={"expiry": "10s"})
    put(rig, "a")
    assert member.payloads() == ["a"]
    rig.restart()
    rig.pass_ms(HELD_MS - 2_000)
    assert rig.core.groups.get(GROUP) is not None


def test_what_a_client_has_takes_room_in_its_window_if_it_shows_a_token(rig: Rig) -> None:
    """It would be given more than it can begin, and the lease of that runs."""
    member = came(rig, "w", TERMS["timeout"], fasti_token="one", receive_maximum=2)
    put(rig, "1", "2", "3", "4")
    first, _ = member.publishes()
    ended(rig, "stopped")
    other = came(rig, "x", TERMS["timeout"], receive_maximum=1)
    assert [packet.payload for packet in other.publishes()] == [b"3"]
    again = came(rig, "w", fasti_token="one", receive_maximum=2)
    assert again.publishes() == [], "it has two in hand"
    assert done(again, name(first)) == 0
    rig.pass_ms(1_000)
    (more,) = again.publishes()
    assert more.payload == b"4"
    put(rig, "5")
    assert again.publishes() == []
    rig.pass_ms(TIMEOUT_MS)  # what has lapsed takes no room
    assert b"5" in [packet.payload for packet in again.publishes()]
    assert rig.core.settling._away == {}
