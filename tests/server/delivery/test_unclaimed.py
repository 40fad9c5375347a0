"""What is dispatched while nobody asks for it is counted: who asks, and which messages count."""

import pytest

from server.codec.packets import Will
from server.delivery.membership import Membership
from server.reports.figures import sys_records
from tests.support.rig import Rig, config

DELAYED = "$delayed/5/t"


def unclaimed(rig: Rig) -> int:
    return rig.core.dispatch.counts.unclaimed


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("level", [4, 5])
def test_each_plain_publish_that_nobody_asks_for(rig: Rig, level: int, qos: int) -> None:
    peer = rig.connected("p", level)
    for number in range(5):
        peer.publish("t", f"{number}", qos)
    assert unclaimed(rig) == 5
    rig.connected("s").subscribe("t")
    peer.publish("t", "x", qos)
    assert unclaimed(rig) == 5


def test_those_that_are_handed_on_together(rig: Rig) -> None:
    peer = rig.connected("p")
    for _ in range(50):
        peer.publish("t", pump=False)
    rig.pump()
    assert unclaimed(rig) == 50


def test_what_is_delayed_counts_when_it_is_dispatched(rig: Rig) -> None:
    rig.connected("p").publish1(DELAYED)
    assert unclaimed(rig) == 0
    rig.pass_ms(6_000)
    assert unclaimed(rig) == 1


@pytest.mark.parametrize("who", ["away", "group without members", "paused group"])
def test_who_comes_later_asks_for_it(rig: Rig, who: str) -> None:
    if who == "away":
        rig.lasting("s").subscribed("t", qos=1).drop()
    else:
        groups: Membership = rig.core.groups
        rig.make("$share/g/t")
        if who == "paused group":
            group = groups.get("$share/g/t")
            assert group is not None
            rig.pause("$share/g/t")
    peer = rig.connected("p")
    assert peer.publish1("t").reason == 0
    peer.publish1(DELAYED)
    rig.pass_ms(6_000)
    assert unclaimed(rig) == 0


def test_who_is_connected_and_has_no_room_asks_for_it(rig: Rig) -> None:
    rig.connected("s", receive_maximum=1).subscribe("t", qos=1)
    peer = rig.connected("p")
    for _ in range(3):
        peer.publish1("t")
    assert unclaimed(rig) == 0


def test_a_will_counts(rig: Rig) -> None:
    rig.connected("p", will=Will(b"t", b"w", 1)).drop()
    assert unclaimed(rig) == 1


def test_what_is_retained_is_for_who_subscribes_later(rig: Rig) -> None:
    peer = rig.connected("p")
    peer.publish1("t", "kept", retain=True)
    peer.publish("u", "kept", retain=True)
    peer.publish1("t", "", retain=True)
    assert unclaimed(rig) == 0


def test_what_has_expired_counts_as_expired_alone(rig: Rig) -> None:
    rig.connected("p").publish1(DELAYED, message_expiry=1)
    rig.jump(60_000)
    counts = rig.core.dispatch.counts
    assert (counts.expired, counts.unclaimed) == (1, 0)


def test_the_server_s_own_do_not_count_and_clients_topics_with_a_dollar_do() -> None:
    rig = Rig(config(max_attempts=1))
    rig.lasting("w").subscribe("jobs", qos=1)
    peer = rig.connected("p")
    peer.publish1("jobs")
    rig.peers[0].drop()
    rig.lasting("w")
    assert rig.core.dead_letter_queue.buried == 1
    rig.core.publishing.publish_system(sys_records(rig.core, "1", 5), rig.core.retained.note_volatile)
    rig.pump()
    assert unclaimed(rig) == 0, "nobody subscribes to $dead and $SYS"
    peer.publish1("$foo/a")
    assert unclaimed(rig) == 1
