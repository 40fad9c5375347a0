"""Publishers are held back when what was published waits, by key, and by what it leads to."""

import pytest

from server.codec.packets import Ack, Pingreq, Pingresp, Publish
from server.delivery.publishing import HOLD_MESSAGES, PLACED_BOUNDS, RETAINED_COST, SHARED_HOLD
from server.mqtt.state import REACH_MAX
from tests.support.encode import encode
from tests.support.rig import Rig

WIDE = 300


def shared(rig: Rig, part: float = 0.9) -> None:
    """Several owners are there."""
    rig.core.part.now = part


def publish(rig: Rig, owner: str, count: int) -> None:
    """Publishes of a key, as many as `count`, that are with the writer."""
    rig.core.publishing._came(owner, count, 0)


def test_who_has_published_most_of_what_waits_is_held_back(rig: Rig) -> None:
    shared(rig, 0.5)
    held = int(HOLD_MESSAGES * 0.5 * SHARED_HOLD)
    is_congested = rig.core.publishing.is_congested
    publish(rig, "flood", held)
    assert not is_congested("flood")
    publish(rig, "flood", 1)
    assert is_congested("flood")
    assert not is_congested("honest")
    publish(rig, "honest", held // 2)
    assert not is_congested("honest")
    publish(rig, "honest", held // 2 + 1)
    assert is_congested("honest"), "it has as much as the other one now"
    publish(rig, "flood", HOLD_MESSAGES * 2)
    assert is_congested("a third one"), "nobody goes beyond twice the bound"


def test_all_are_held_back_while_one_owner_is_there(rig: Rig) -> None:
    publish(rig, "flood", HOLD_MESSAGES)
    assert not rig.core.publishing.is_pressed
    publish(rig, "flood", 1)
    assert rig.core.publishing.is_pressed
    assert rig.core.publishing.is_congested("honest")
    rig.core.publishing._left(1, 0)
    assert not rig.core.publishing.is_congested("honest")
    assert not rig.core.publishing.is_pressed


def test_who_is_held_back_is_told_that_the_connection_lives(rig: Rig) -> None:
    """Else it connects again, and sends again what is held."""
    peer = rig.connected("p")
    publish(rig, "flood", HOLD_MESSAGES + 1)
    peer.publish("t", "held", 1, pump=False)
    peer.send(Pingreq(), Pingreq(), pump=False)
    peer.deliver()
    assert peer.inbox == [Pingresp(), Pingresp()]
    assert peer.connection.has_published
    assert peer.connection.kept_bytes
    rig.core.publishing._left(HOLD_MESSAGES + 1, 0)
    peer.inbox.clear()
    rig.pump()
    assert [type(one) for one in peer.inbox] == [Ack]
    assert not peer.connection.kept_bytes


def test_shares_begin_anew_when_nothing_waits(rig: Rig) -> None:
    shared(rig)
    publish(rig, "honest", 100)
    rig.core.publishing._left(100, 0)
    publish(rig, "flood", HOLD_MESSAGES + 1)
    assert not rig.core.publishing.is_congested("honest")
    assert rig.core.publishing.is_congested("flood")


def test_what_was_published_long_ago_holds_nobody_back_for_ever(rig: Rig) -> None:
    """Something waits all the time, so that shares never begin anew."""
    shared(rig, 0.5)
    publishing = rig.core.publishing
    for _ in range(1_000):
        publish(rig, "old", 1_000)
        publishing._left(publishing.waiting - 1, 0)
    turns = 0
    while publishing.is_congested("old") or not turns:
        while not publishing.is_congested("new"):
            publish(rig, "new", 500)
        publishing._left(1_000, 0)
        turns += 1
    assert turns <= 2 * PLACED_BOUNDS * HOLD_MESSAGES // 1_000, "a thousand in each of them"


@pytest.mark.long
def test_one_publish_to_many_counts_as_many_while_several_owners_are_there(rig: Rig) -> None:
    readers = [rig.connected(f"reader {n}").subscribed("wide") for n in range(WIDE)]
    publisher = rig.connected("p")
    shared(rig)
    sent = 2 * REACH_MAX // WIDE
    publishes = [encode(Publish(b"wide", f"{number}".encode(), 0), 5) for number in range(sent)]
    publisher.send_bytes(b"".join(publishes), pump=False)
    connection = publisher.connection
    assert connection.is_behind
    assert rig.core.publishing.waiting == pytest.approx(REACH_MAX, abs=WIDE)
    rig.pump()
    assert not connection.is_behind
    for reader in readers:
        assert reader.payloads() == [str(number) for number in range(sent)]
    assert rig.core.publishing.waiting == rig.core.dispatch.reach == 0


def test_what_is_handed_over_in_pieces_counts_once(rig: Rig) -> None:
    """A PINGREQ or PUBREL behind each of them ends a piece."""
    for number in range(10):
        rig.connected(f"reader {number}").subscribe("wide")
    publisher = rig.connected("p")
    shared(rig)
    piece = encode(Publish(b"wide", b"x", 0), 5) + encode(Pingreq(), 5)
    publisher.send_bytes(piece * 50, pump=False)
    assert rig.core.publishing.waiting == 50 * 10
    rig.pump()
    assert rig.core.publishing.waiting == 0


@pytest.mark.long
def test_one_publish_to_many_does_not_make_those_behind_it_count_as_many(rig: Rig) -> None:
    for number in range(WIDE):
        rig.connected(f"reader {number}").subscribe("wide")
    publisher = rig.connected("p")
    shared(rig)
    topics = [b"wide", *[b"narrow"] * 60]
    publisher.send_bytes(b"".join([encode(Publish(topic, b"x", 0), 5) for topic in topics]), pump=False)
    rig.stepper.compose()
    assert rig.core.dispatch.live == len(topics)
    assert rig.core.dispatch.reach == WIDE + 60
    rig.pump()
    assert rig.core.dispatch.reach == 0


def test_what_becomes_retained_counts_for_more(rig: Rig) -> None:
    """It is written too: 2,000 of them would hold up others' publishes for 0.2 s."""
    publisher = rig.connected("p")
    shared(rig)
    one = encode(Publish(b"kept", b"x", 0, retain=True), 5)
    publisher.send_bytes(one * 10, pump=False)
    assert rig.core.publishing.waiting == 10 * RETAINED_COST
    rig.pump()
    assert rig.core.publishing.waiting == 0
