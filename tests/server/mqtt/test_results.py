"""PUBACK with the user property `result`: stored with the ack, or dropped, and the message is done."""

from typing import Any

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish
from shards import kept
from shards.delivery_rows import Name
from tests.support.kept import kept_of, result_at
from tests.support.rig import Peer, Rig, asking, props

GROUP = "$share/g/t/#"


@pytest.fixture
def member(rig: Rig) -> Peer:
    return rig.lasting("m", receive_maximum=2).subscribed(GROUP, user_properties=asking(ack_timeout="30s"))


def given(rig: Rig, member: Peer) -> Publish:
    rig.send("t/x", "job")
    (packet,) = member.publishes()
    return packet


def ack(member: Peer, packet: Publish, result: str, reason: int = 0, kind: int = wire.PUBACK) -> None:
    member.send(Ack(kind, packet.packet_id, reason, props(user_properties=(("result", result),))))


def stored(rig: Rig) -> list[bytes | None]:
    """Results of the group's messages, in the order of roots."""
    (group,) = rig.core.groups
    roots = [one.root for one in kept_of(rig.core.opened.store, group.whose)]
    return [result_at(rig.core.opened.store, Name(group.whose, root)) for root in roots]


def undone(rig: Rig) -> int:
    (group,) = rig.core.groups
    return len(group.session.flights)


@pytest.mark.parametrize("result", ['{"n": 1.0}', "1e999", "null", '"é"', "[]", '"' + "x" * 65_000 + '"'])
def test_a_result_is_stored_as_it_came(rig: Rig, member: Peer, result: str) -> None:
    ack(member, given(rig, member), result)
    rig.pump()
    assert (stored(rig), undone(rig)) == ([result.encode()], 0)
    rig.crash()
    rig.pump()
    assert (stored(rig), undone(rig)) == ([result.encode()], 0)
    assert rig.core.settling.results_dropped == 0


@pytest.mark.parametrize("result", ["", "x", "{", "[" * 60_000, "NaN"])
def test_what_is_no_json_is_dropped(rig: Rig, member: Peer, result: str, caplog: Any) -> None:
    ack(member, given(rig, member), result)
    rig.pump()
    assert (stored(rig), undone(rig), member.is_closed) == ([], 0, False)
    assert rig.core.settling.results_dropped == 1
    assert "a result is dropped" in caplog.text


def test_at_the_bound_it_is_dropped(rig: Rig, member: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "RESULT_BYTES_EACH", 3)
    ack(member, given(rig, member), "12")
    rig.pump()
    ack(member, given(rig, member), "34")
    rig.pump()
    assert (stored(rig), undone(rig), rig.core.settling.results_dropped) == ([b"12"], 0, 1)


@pytest.mark.parametrize("bound", ["RESULT_BYTES_EACH", "RESULT_BYTES_ALL"])
def test_the_bound_holds_within_a_batch(rig: Rig, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(kept, bound, 4)
    member = rig.lasting("m", receive_maximum=20).subscribed(GROUP)
    for _ in range(2):
        rig.send("t/x", *"abc")
        for packet in member.publishes():
            rig.core.settling.answer(rig.session("m"), packet.packet_id, b"12")
        rig.pump()
    assert (stored(rig), undone(rig)) == ([b"12", b"12"], 0)
    assert rig.core.settling.results_dropped == 4


def test_a_store_that_fails_leaves_the_ack(rig: Rig, member: Peer) -> None:
    packet = given(rig, member)
    rig.break_store()
    ack(member, packet, "1")
    assert undone(rig) == 0
    rig.mend_store()
    rig.pump()
    assert (stored(rig), undone(rig), rig.core.settling.results_dropped) == ([], 0, 1)


@pytest.mark.parametrize("survivors", [0, 9])
def test_a_sync_that_fails(rig: Rig, member: Peer, survivors: int) -> None:
    """What is stored all the same is there; else the message is done without."""
    packet = given(rig, member)
    rig.core.settling.answer(rig.session("m"), packet.packet_id, b"1")
    rig.compose()
    rig.lose(survivors)
    rig.pump()
    rig.pass_ms(60_000)
    rig.pump()
    assert undone(rig) == 0
    assert stored(rig) == ([b"1"] if survivors else [])


@pytest.mark.parametrize("then", ["acked again", "lost", "left", "lapsed", "nacked"])
def test_what_comes_between(rig: Rig, member: Peer, then: str) -> None:
    """The member's next word, before the writer comes to the ack: at most one of them counts, and the message
    is done either way."""
    packet = given(rig, member)
    subscriber = rig.session("m")
    rig.core.settling.answer(subscriber, packet.packet_id, b"1")
    match then:
        case "acked again":
            rig.core.settling.ack(subscriber, packet.packet_id)
        case "lost":
            member.drop()
        case "left":
            member.disconnect()
        case "lapsed":
            rig.core.settling._look_at = 0
            rig.clock.now_ms += 40_000
            rig.core.settling.step()
        case "nacked":
            nack = props(user_properties=(("retry-in", "0"),))
            member.send(Ack(wire.PUBACK, packet.packet_id, 0x80, nack))
    rig.pump()
    rig.pass_ms(60_000)
    rig.pump()
    assert undone(rig) == 0
    assert rig.core.settling.results_dropped == (stored(rig) in ([], [None]))


def test_of_a_session_or_with_a_refusal_it_is_dropped(rig: Rig, member: Peer) -> None:
    other = rig.lasting("s").subscribed("t/#", qos=1)
    ack(member, given(rig, member), "1", 0x80)
    (own,) = other.publishes()
    ack(other, own, "1")
    rig.pump()
    assert (stored(rig), undone(rig)) == ([], 0)
    assert not rig.session("s").session.flights
    assert rig.core.settling.results_dropped == 1


def test_one_of_the_wrong_kind_is_as_ever(rig: Rig) -> None:
    member = rig.lasting("m").subscribed(GROUP, qos=2)
    rig.send("t/x", "job", qos=2)
    (packet,) = member.publishes()
    ack(member, packet, "1")
    rig.pump()
    assert member.is_closed
