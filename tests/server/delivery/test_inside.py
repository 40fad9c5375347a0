"""Members of a group that are parts of the server, which ack for somebody else."""

import pytest

from server.delivery.membership import UnknownGroup
from server.delivery.picker import CAPACITY_FIRST
from server.delivery.subscriber import Inside
from shards.store import Table
from tests.support.link import FakeLink
from tests.support.rig import START_MS, Rig
from timeline.session import Terms

TEXT = "$share/g/a/#"


def enlisted(rig: Rig, link: FakeLink) -> Inside:
    member = rig.core.groups.enlist(link, TEXT, name="pull")
    rig.pump()
    return member


def test_it_is_sent_what_its_link_has_room_for_whatever_it_has_shown(rig: Rig) -> None:
    rig.make(TEXT)
    enlisted(rig, link := FakeLink())
    rig.send("a/x", *map(str, range(3 * CAPACITY_FIRST)))
    assert len(link.sent) == 3 * CAPACITY_FIRST
    assert len(set(link.packet_ids)) == 3 * CAPACITY_FIRST


def test_what_is_stored_comes_at_qos_1_and_is_acked_or_goes_to_the_next(rig: Rig) -> None:
    rig.make(TEXT)
    member = enlisted(rig, link := FakeLink())
    rig.send("a/x", *(f"job {n}" for n in range(2)), qos=0, user_properties=(("deliver-in", "1s"),))
    rig.clock.now_ms = START_MS + 5_000
    rig.pump()
    assert [m.record.qos for m in link.sent] == [0, 0]
    assert all(link.packet_ids)
    assert rig.core.settling.ack(member, link.packet_ids[0])
    rig.core.settling.leave(member, is_clean=True)
    second = FakeLink()
    enlisted(rig, second)
    assert [m.record.payload for m in second.sent] == [b"job 1"]


def test_a_plain_qos_0_message_is_handed_over_and_is_done_with(rig: Rig) -> None:
    rig.make(TEXT)
    enlisted(rig, link := FakeLink())
    rig.send("a/x", "now", qos=0)
    assert (len(link.sent), link.packet_ids) == (1, [0])


def test_it_waits_for_room(rig: Rig) -> None:
    rig.make(TEXT)
    link = FakeLink()
    link.room = 1
    member = enlisted(rig, link)
    rig.send("a/x", "1", "2", "3")
    assert len(link.sent) == 1
    link.room = 2
    rig.core.groups.read_on(member)
    rig.pump()
    assert [m.record.payload for m in link.sent] == [b"1", b"2", b"3"]


def test_it_is_in_no_list_and_nothing_of_it_is_stored(rig: Rig) -> None:
    rig.make(TEXT)
    member = enlisted(rig, FakeLink())
    rig.send("a/x", "1")
    rig.pump()
    assert member.session.client_id == "pull"
    assert rig.core.sessions.get("pull") is None
    assert rig.store.get(Table.SESSIONS, b"pull") is None
    assert rig.store.get(Table.CURSORS, b"pull") is None
    assert member not in rig.core.cursors.dirty


def test_the_group_stays_when_it_goes_and_keeps_what_comes(rig: Rig) -> None:
    rig.make(TEXT, terms=Terms(30_000))
    link = FakeLink()
    rig.core.settling.leave(enlisted(rig, link), is_clean=True)
    rig.send("a/x", "kept")
    group = rig.group(TEXT)
    assert group.in_force.ack_timeout_ms == 30_000
    enlisted(rig, link)
    assert [m.record.payload for m in link.sent] == [b"kept"]


def test_it_shares_with_clients(rig: Rig) -> None:
    worker = rig.connected("worker").subscribed(TEXT)
    enlisted(rig, link := FakeLink())
    rig.send("a/x", *map(str, range(10)))
    assert 0 < len(link.sent) < 10
    assert len(worker.take_all()) == 10 - len(link.sent)


def test_there_has_to_be_a_group() -> None:
    with pytest.raises(UnknownGroup, match="not found"):
        Rig().core.groups.enlist(FakeLink(), TEXT, name="pull")
