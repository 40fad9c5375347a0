"""Retention passes sessions: what they have in flight becomes dead letters, what is unread is counted."""

import logging
from functools import partial

import pytest

from server.codec import wire
from server.codec.packets import Publish
from server.delivery.settling import burying
from shards.commit import Commit
from tests.server.delivery.test_burials import letters
from tests.server.delivery.test_replay import QUARTER_MS, passed
from tests.support.rig import Rig
from timeline.position import START, Position, before
from timeline.session import Flight

TOLD = "sessions: kept too long: 0 unfinished messages became dead letters, %d were dropped"


def ended(rig: Rig) -> Position:
    """The end of what was passed and no group needs: all of it is over retention."""
    ends = [before(one.end_ms) for one in rig.core.directory if one.passed_s is not None]
    return max((end for end in ends if end <= rig.core.floor.needed), default=START)


def look(rig: Rig, times: int = 2) -> None:
    """Housekeeping sees to it that the slices may go."""
    for _ in range(times):
        rig.decide(lambda commit: rig.core.floor.settle(commit, ended(rig)))


def asleep(rig: Rig, name: str = "s", qos: int = 1) -> None:
    rig.lasting(name).subscribed("t", qos=qos).drop()


def dropped(rig: Rig) -> int:
    return rig.core.burials.dropped["kept too long"]


def flights(rig: Rig, name: str = "s") -> list[Flight]:
    return [*rig.session(name).session.flights.values()]


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is one row."""
    monkeypatch.setattr(burying, "LOOK", 1)


def test_what_sessions_have_not_read_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for name in ("s1", "s2"):
        asleep(rig, name)
    asleep(rig, "once at most", qos=0)
    reader = rig.lasting("reader").subscribed("t", qos=1)
    rig.send("t", "0", "1")
    rig.send("t", "over", message_expiry=1)
    rig.send("t", "for who is there", qos=0)
    assert reader.take_all()
    passed(rig)
    rig.send("t", "new")
    assert rig.core.floor.free == 0, "the slices wait"
    with caplog.at_level(logging.WARNING):
        look(rig)
        look(rig)
    assert dropped(rig) == 4
    assert caplog.text.count(TOLD % 4) == 1
    assert letters(rig) == []
    assert before(rig.clock.now_ms - QUARTER_MS) <= rig.core.floor.free
    for name in ("s1", "s2", "reader"):
        assert rig.lasting(name).take_all() == ["new"]
    assert dropped(rig) == 4


def test_slices_go_at_once_when_no_session_is_behind(rig: Rig) -> None:
    reader = rig.lasting("s").subscribed("t", qos=1)
    rig.send("t", "0")
    assert reader.take_all() == ["0"]
    passed(rig)
    look(rig, 1)
    assert rig.core.floor.free > 0
    assert rig.core.burials.active == {}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_away", [True, False])
def test_what_a_session_has_in_flight_becomes_dead_letters(rig: Rig, qos: int, *, is_away: bool) -> None:
    peer = rig.lasting("s").subscribed("t", qos=qos)
    rig.send("t", "0", "1", qos=qos)
    packets = peer.publishes()
    assert [one.payload for one in packets] == [b"0", b"1"]
    if is_away:
        peer.drop()
    passed(rig)
    look(rig)
    assert letters(rig) == [("s", "0", "kept too long", 1), ("s", "1", "kept too long", 1)]
    assert (flights(rig), dropped(rig)) == ([], 0)
    assert rig.core.floor.free > 0
    rig.crash()
    assert (len(letters(rig)), flights(rig)) == (2, [])
    assert rig.lasting("s").take_all() == []


def test_an_ack_of_what_has_ended_ends_no_other_message(rig: Rig) -> None:
    peer = rig.lasting("s", receive_maximum=2).subscribed("t", qos=1)
    rig.send("t", "0", "1")
    old: list[Publish] = peer.publishes()
    passed(rig)
    look(rig)
    subscriber = rig.session("s")
    subscriber.session._last_id = 0
    rig.send("t", "2")
    (new,) = peer.publishes()
    assert new.packet_id not in [one.packet_id for one in old]
    for packet in old:
        peer.ack(wire.PUBACK, packet.packet_id)
    assert [one.packet_id for one in flights(rig)] == [new.packet_id]
    assert subscriber.session.retired == {}


def test_what_a_client_has_received_at_qos_2_is_no_dead_letter(rig: Rig) -> None:
    peer = rig.lasting("s").subscribed("t", qos=2)
    rig.send("t", "0", qos=2)
    (packet,) = peer.publishes()
    peer.ack(wire.PUBREC, packet.packet_id)
    passed(rig)
    look(rig)
    assert letters(rig) == []
    peer.ack(wire.PUBCOMP, packet.packet_id)
    assert flights(rig) == []


def test_what_a_group_has_lent_at_qos_2_is_its_dead_letter(rig: Rig) -> None:
    peer = rig.lasting("worker").subscribed("$share/g/t", qos=2)
    rig.send("t", "0", qos=2)
    assert peer.payloads() == ["0"]
    passed(rig)
    look(rig)
    assert letters(rig) == [("g", "0", "kept too long", 1)]
    assert flights(rig, "worker") == []


def test_what_is_in_flight_of_a_session_that_was_set_back_is_told_once(rig: Rig) -> None:
    peer = rig.lasting("s", receive_maximum=1).subscribed("t", qos=1)
    rig.send("t", "0", "1")
    assert peer.payloads() == ["0"]
    rig.rewind("s")
    peer.drop()
    passed(rig)
    look(rig)
    assert letters(rig) == [("s", "0", "kept too long", 1)]
    assert dropped(rig) == 1


def test_its_own_publishes_are_no_loss_to_who_does_not_want_them(rig: Rig) -> None:
    peer = rig.lasting("s").subscribed("t", qos=1, no_local=True)
    other = rig.lasting("other").subscribed("other", qos=1)
    peer.publish("$delayed/60/t", "own", 1)
    other.publish("$delayed/60/t", "theirs", 1)
    peer.drop()
    passed(rig)
    look(rig)
    assert dropped(rig) == 1


@pytest.mark.usefixtures("in_steps")
def test_who_comes_back_while_it_is_counted_has_each_message_or_is_counted(rig: Rig) -> None:
    asleep(rig)
    rig.send("t", *map(str, range(8)))
    passed(rig)
    look(rig, 0)
    rig.decide(partial(_begin, rig), pump=False)
    while not dropped(rig):
        rig.micro()
    got = rig.lasting("s").take_all()
    look(rig)
    assert got == [str(number) for number in range(8 - len(got), 8)]
    assert 0 < len(got) < 8
    assert dropped(rig) == 8 - len(got)


def _begin(rig: Rig, commit: Commit) -> bool:
    return rig.core.floor.settle(commit, ended(rig))


@pytest.mark.usefixtures("in_steps")
@pytest.mark.parametrize("survivors", [0, 1])
def test_a_kill_costs_nothing_of_the_number(survivors: int, caplog: pytest.LogCaptureFixture) -> None:
    for steps in range(0, 24, 3):
        rig = Rig()
        asleep(rig)
        rig.send("t", *map(str, range(5)))
        passed(rig)
        rig.decide(partial(_begin, rig), pump=False)
        rig.take_steps(steps)
        caplog.clear()
        is_over = rig.core.burials.passed and not rig.core.burials.active
        rig.crash(survivors)
        with caplog.at_level(logging.WARNING):
            look(rig)
        assert caplog.text.count(TOLD % 5) == (not is_over), steps
        assert rig.lasting("s").take_all() == []


@pytest.mark.usefixtures("in_steps")
def test_a_step_that_is_not_written_is_counted_once(rig: Rig) -> None:
    asleep(rig)
    rig.send("t", *map(str, range(5)))
    passed(rig)
    rig.decide(partial(_begin, rig), pump=False)
    while dropped(rig) < 2:
        rig.micro()
    rig.store.fail_writes = True
    rig.take_steps(20)
    rig.store.fail_writes = False
    rig.recover()
    peer = rig.lasting("s")
    rig.pass_ms(5_000)
    look(rig)
    got = peer.take_all()
    assert dropped(rig) + len(got) == 5


def test_nobody_is_set_back_to_what_is_about_to_go(rig: Rig) -> None:
    peer = rig.lasting("s").subscribed("t", qos=1)
    rig.send("t", "0")
    assert peer.take_all() == ["0"]
    passed(rig)
    look(rig)
    rig.send("t", "new")
    assert peer.take_all() == ["new"]
    rig.rewind("s")
    assert peer.take_all() == ["new"]
    other = rig.lasting("other").subscribed("t", qos=1, user_properties=(("replay-from", "PT9H"),))
    assert other.take_all() == ["new"]
