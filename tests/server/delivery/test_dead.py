"""`$dead`: the copy there and the end of the delivery come together."""

import pytest

from server.codec import wire
from server.delivery.picker import CAPACITY_FIRST
from server.engine.writer import Busy
from shards.errors import StoreFailed
from shards.store import Table
from tests.support.build import OPENED
from tests.support.rig import Rig, config
from timeline.delivery_rows import Event


def _unacked(rig: Rig, *texts: str) -> None:
    """A message that a session has been sent once, of which once is enough."""
    rig.lasting("grave").subscribe("$dead/#")
    rig.lasting("a").subscribe(*texts, qos=1)
    rig.connected("p").publish1("t", "bad")
    rig.disown()
    rig.kill()  # a member of a group that is lost has failed then and there; one that leaves has not


def _found(rig: Rig) -> tuple[list[str], bool]:
    """What came to `$dead`, and whether the session (or its group) still has the message."""
    dead = rig.lasting("grave").take_all()
    subscriber = rig.session("a")
    held = [subscriber, *rig.core.groups]
    return dead, any(one.session.flights for one in held)


@pytest.mark.long
@pytest.mark.parametrize("text", ["t", "$share/g/t"])
@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_kill_leaves_it_in_flight_or_dead(text: str, survivors: int) -> None:
    dead_after = []
    for steps in range(14):
        rig = Rig(config(max_attempts=1))
        _unacked(rig, text)
        peer = rig.peer()
        peer.connect("a", clean=False, expiry=3_600, pump=False)
        is_at_rest = not rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        dead, is_held = _found(rig)
        assert (dead, is_held) in ((["bad"], False), ([], True)), steps
        dead_after.append(bool(dead))
        rig.lasting("a").take_all()
        rig.pump()
        assert _found(rig) == ([] if dead else ["bad"], False)
        if is_at_rest:
            break
    assert True in dead_after
    assert False in dead_after


def test_the_copy_is_not_retained() -> None:
    rig = Rig(config(max_attempts=1))
    grave = rig.connected("grave").subscribed("$dead/#", rap=True)
    rig.lasting("a").subscribe("t", handling=2)
    rig.connected("p").publish1("t", "bad", retain=True)
    rig.lasting("a")
    (dead,) = grave.publishes()
    assert (dead.payload, dead.retain) == (b"bad", False)
    late = rig.connected("late").subscribed("$dead/#")
    assert late.inbox == []


def test_an_ack_that_comes_first_wins_and_room_is_used_again() -> None:
    rig = Rig(config(max_attempts=1))
    _unacked(rig, "t")
    rig.connected("p").publish1("t", "good")
    peer = rig.peer()
    peer.connect("a", clean=False, expiry=3_600, receive_maximum=1, pump=False)
    while rig.session("a").session.resends or not rig.core.writer.queued:
        assert rig.micro()
    (flight,) = rig.session("a").session.flights.values()
    peer.ack(wire.PUBACK, flight.packet_id)
    peer.inbox.pop(0)
    assert peer.payloads() == ["good"]
    assert rig.lasting("grave").take_all() == []
    peer.drop()
    # Now it is this one's turn, with the window full.
    rig.connected("p").publish1("t", "last")
    assert rig.lasting("a", receive_maximum=1).payloads() == ["last"]
    assert rig.lasting("grave").take_all() == ["good"]


def test_while_the_store_fails_it_stays() -> None:
    rig = Rig(config(max_attempts=1))
    _unacked(rig, "t")
    peer = rig.lasting("b")
    rig.core.writer.fail(StoreFailed("told to"))
    subscriber = rig.session("a")
    (flight,) = subscriber.session.flights.values()
    rig.core.events.fail(subscriber, flight, Event.NACK, "not acked")
    assert len(rig.core.events.errand.put_off) == 1
    assert rig.recover()
    rig.pump()
    assert list(subscriber.session.flights.values()) == [flight]
    peer.drop()
    rig.lasting("a")
    rig.pass_ms(1_000)
    assert rig.lasting("grave").take_all() == ["bad"]


@pytest.mark.parametrize("how", ["stays", "restart", "crash"])
def test_the_packet_id_of_a_buried_qos_2_message_is_not_used_before_pubcomp(how: str) -> None:
    """The client may hold it: another message under it would be taken for the same."""
    rig = Rig(config(max_attempts=1))
    peer = rig.lasting("s").subscribed("t", qos=2)
    rig.connected("p").publish2("t", "one")
    (first,) = peer.publishes()
    peer = peer.back()
    assert peer.inbox == []
    if how != "stays":
        peer.drop()
        rig.pass_ms(500)
        rig.start_again(how)
        peer = rig.lasting("s")
    publisher = rig.connected("p")
    used = set()
    for _ in range(3):
        publisher.publish2("t", "two")
        (packet,) = peer.publishes()
        used.add(packet.packet_id)
        peer.inbox.append(packet)
        peer.take_all()
    assert first.packet_id not in used
    # The exchange that was given up is ended by the client: the id is free again.
    peer.ack(wire.PUBREC, first.packet_id)
    assert peer.take_ack(wire.PUBREL, first.packet_id).reason == 0
    peer.ack(wire.PUBCOMP, first.packet_id)
    subscriber = rig.session("s")
    assert not subscriber.session.retired


@pytest.mark.parametrize("text", ["t", "$share/g/t"])
def test_many_at_once_write_one_cursor(text: str) -> None:
    rig = Rig(config(max_attempts=1))
    rig.lasting("grave").subscribe("$dead/#")
    rig.lasting("a").subscribe(text, qos=1)
    publisher = rig.connected("p")
    for number in range(200):
        publisher.publish("t", str(number), 1, pump=False)
    rig.pump()
    rig.disown()
    rig.kill()
    mark = len(rig.store.log)
    rig.lasting("a")
    written: list[bytes] = []
    for batch in rig.store.log[mark:]:
        written += [key for table, key, _, _ in batch.changes if table is Table.CURSORS]
    assert len(written) < 12
    # A member of a group that acks nothing is not given more.
    given = 200 if text == "t" else CAPACITY_FIRST
    assert len(rig.lasting("grave").take_all()) == given


@OPENED
@pytest.mark.parametrize("text", ["t", "$share/g/t"])
@pytest.mark.parametrize("how", ["busy", "failed"])
def test_what_cannot_be_buried_is_tried_again_and_holds_nobody(
    text: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(config(max_attempts=1))
    _unacked(rig, text)
    rig.connected("p").publish1("t", "good")
    peer = rig.opened("a")
    with monkeypatch.context() as patch:
        if how == "busy":
            patch.setattr(rig.core.writer, "submit", _refuse)
            for _ in range(3):
                rig.turn()
        else:
            rig.turn()
            rig.turn()
            rig.compose()
            rig.lose()
    rig.pump()
    assert peer.payloads() == ["good"]
    assert len(rig.core.events.errand.put_off) == 1
    rig.pass_ms(2_000)
    assert len(rig.core.events.errand.put_off) == 0
    assert _found(rig)[0] == ["bad"]


def _refuse(*_: object, **__: object) -> None:
    raise Busy("full")


def test_a_member_whose_own_message_could_not_be_buried_is_sent_the_group_s() -> None:
    rig = Rig(config(max_attempts=1))
    _unacked(rig, "t", "$share/g/jobs")
    peer = rig.opened("a")
    rig.turn()
    rig.turn()
    rig.compose()
    rig.lose()
    rig.pump()
    rig.send("jobs", *map(str, range(3)))
    assert peer.payloads() == ["0", "1", "2"]


def test_what_is_acked_before_it_is_buried_is_not_said_to_be_moved(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(config(max_attempts=1))
    _unacked(rig, "t")
    peer = rig.opened("a")
    rig.turn()
    (flight,) = rig.session("a").session.flights.values()
    peer.ack(wire.PUBACK, flight.packet_id)
    assert _found(rig) == ([], False)
    assert "moved" not in caplog.text
