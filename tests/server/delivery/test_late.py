"""Who once had a message may finish it, wherever it is by then."""

import json
from types import SimpleNamespace

import pytest

from server.codec import wire
from server.codec.packets import Publish
from server.codec.reasons import Reason
from server.delivery.settling import events
from server.delivery.settling.lives import Outcome
from server.engine.writer import Busy
from shards.errors import Corrupt
from shards.record import decode
from shards.store import Table
from tests.server.delivery.test_undone import (
    GROUP,
    extend,
    in_flight,
    letters,
    members,
    session,
    waiting,
)
from tests.support.build import OPENED
from tests.support.mqtt import user
from tests.support.rig import Peer, Rig, config
from timeline.position import END, Position, id_text, message_id


def done(peer: Peer, packet_or_id: Publish | str, group: str = GROUP, qos: int = 1) -> int:
    """What `$control/done` is answered."""
    id_ = packet_or_id if isinstance(packet_or_id, str) else user(packet_or_id, "fasti-id")
    number = peer.publish("$control/done", json.dumps({"group": group, "id": id_}), qos)
    return peer.take_ack(wire.PUBACK, number).reason


NOTHING_LEFT = Reason.IMPLEMENTATION_SPECIFIC_ERROR


def scheduled(rig: Rig, payload: str = "job") -> None:
    """One that has an id to be called by."""
    rig.connected("publisher").publish1("$delayed/0/t/x", payload)
    rig.pass_ms(1)


def back(rig: Rig, name: str = "a", group: str = GROUP) -> Peer:
    """A member that comes without a session, as ever."""
    return rig.connected(name, receive_maximum=4).subscribed(group, qos=1)


def overdue(rig: Rig, *names: str, window: int = 4) -> tuple[Peer, Publish, list[Peer]]:
    """Who has not acked in time, what, and the others."""
    peers = []
    for name in names:
        peer = rig.lasting(name, receive_maximum=window)
        peer.subscribe(GROUP, qos=1, user_properties=(("ack-timeout", "30s"),))
        peers.append(peer)
    rig.send("t/x", "job")
    ((peer, packet),) = [(peer, packet) for peer in peers for packet in peer.publishes()]
    rig.pass_ms(30_250)
    assert waiting(rig) == ["job"]
    return peer, packet, [other for other in peers if other is not peer]


def test_while_it_waits(rig: Rig) -> None:
    peer, packet, (other,) = overdue(rig, "a", "b")
    peer.ack(wire.PUBACK, packet.packet_id)
    assert waiting(rig) == []
    assert rig.core.opened.waiting.pending == 0
    rig.pass_ms(60_000)
    assert peer.inbox == other.inbox == []
    assert rig.core.events.finished == 1
    rig.restart()
    rig.pass_ms(60_000)
    assert members(rig, "c")[0].inbox == []


@pytest.mark.parametrize("is_in_tail", [True, False])
def test_when_it_has_come_and_nobody_has_room(is_in_tail: bool) -> None:
    """A job ten times slower than its lease, with one at a time: it is done once."""
    rig = Rig(config(max_entries=1_000 if is_in_tail else 16))
    peer, packet, _ = overdue(rig, "a", window=1)
    rig.pass_ms(10_000)
    assert waiting(rig) == []
    noise = rig.connected("p")
    noise.publish1("t/y", "next")
    for number in range(40):
        noise.publish1("else", str(number))
    rig.pass_ms(260_000)
    assert peer.inbox == []
    peer.ack(wire.PUBACK, packet.packet_id)
    assert peer.take_all() == ["next"]
    rig.pass_ms(600_000)
    assert peer.inbox == []
    assert in_flight(rig, GROUP) == 0
    assert letters(rig) == []


def test_when_another_has_it() -> None:
    rig = Rig(config(max_attempts=2))
    peer, packet, (other,) = overdue(rig, "a", "b")
    rig.pass_ms(1_000)
    ((holder, again),) = [(one, found) for one in (peer, other) for found in one.publishes()]
    assert again.payload == b"job"
    peer.ack(wire.PUBACK, packet.packet_id)
    assert in_flight(rig, GROUP) == 0
    assert extend(holder, again.packet_id, 5).reason == 0x83  # type: ignore[union-attr]
    rig.pass_ms(120_000)
    holder.ack(wire.PUBACK, again.packet_id)
    assert peer.inbox == other.inbox == []
    assert letters(rig) == waiting(rig) == []
    assert not holder.is_closed


@pytest.mark.parametrize("how", ["nack", "drop"])
def test_when_another_has_it_and_fails(rig: Rig, how: str) -> None:
    peer, packet, (other,) = overdue(rig, "a", "b")
    rig.pass_ms(1_000)
    ((holder, again),) = [(one, found) for one in (peer, other) for found in one.publishes()]
    peer.ack(wire.PUBACK, packet.packet_id)
    if how == "nack":
        holder.nack(again, "5s")
    else:
        holder.drop()
    rig.pass_ms(60_000)
    assert peer.inbox == other.inbox == []
    assert waiting(rig) == []


def test_when_it_is_dead() -> None:
    rig = Rig(config(max_attempts=2))
    peer, packet, (other,) = overdue(rig, "a", "b")
    rig.pass_ms(35_000)
    assert [payload for _, payload, *_ in letters(rig)] == ["job"]
    peer.ack(wire.PUBACK, packet.packet_id)
    assert letters(rig) == []
    assert rig.core.dead_letter_queue.totals.count == 0
    assert other is not peer


@pytest.mark.parametrize("steps", range(4))
def test_in_a_race_with_its_retry(rig: Rig, steps: int) -> None:
    """Asked, composed, synced, settled: whichever comes first, it is done once."""
    (peer,) = members(rig, "a", ack_timeout="30s")
    rig.send("t/x", "job")
    (packet,) = peer.publishes()
    rig.clock.now_ms += 31_000
    rig.turn()
    assert rig.core.writer.queued
    rig.take_steps(steps)
    peer.ack(wire.PUBACK, packet.packet_id)
    assert waiting(rig) == []
    assert in_flight(rig, GROUP) == 0
    rig.pass_ms(60_000)
    assert peer.inbox == []


def test_behind_a_batch_that_fails_with_its_retry(rig: Rig) -> None:
    (peer,) = members(rig, "a", ack_timeout="30s")
    rig.send("t/x", "job")
    (packet,) = peer.publishes()
    rig.clock.now_ms += 31_000
    rig.turn()
    assert rig.compose()
    peer.ack(wire.PUBACK, packet.packet_id, pump=False)
    rig.lose()
    rig.pass_ms(60_000)
    assert waiting(rig) == peer.inbox == []
    assert in_flight(rig, GROUP) == 0


@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_over_a_kill(survivors: int) -> None:
    outcomes = set()
    for steps in range(6):
        rig = Rig()
        peer, packet, _ = overdue(rig, "a")
        peer.ack(wire.PUBACK, packet.packet_id, pump=False)
        is_at_rest = not rig.take_steps(steps)
        rig.crash(survivors, pump=True)
        left = waiting(rig)
        outcomes.add(len(left))
        rig.pass_ms(10_000)
        assert rig.lasting("a").take_all() == left
        if is_at_rest:
            break
    assert outcomes == {0, 1}


def test_by_its_place_after_a_start(rig: Rig) -> None:
    """As a lease that was given before a kill is acked behind it."""
    peer, _, _ = overdue(rig, "a")
    group = rig.group(GROUP)
    ((place, shard),) = {(f.position, f.shard) for f in rig.session("a").session.flights.values()}
    rig.crash(pump=True)
    told: list[Outcome] = []
    late, group = rig.core.events, rig.core.groups.get(GROUP)
    assert group is not None
    late.finish(group, place, shard, told.append)
    late.finish(group, place, shard, told.append)
    late.finish(group, Position(1), shard, told.append)
    rig.pump()
    assert told == [Outcome.DONE, Outcome.GONE, Outcome.GONE]
    assert waiting(rig) == []
    assert peer.is_closed


@pytest.mark.parametrize("is_stored", [True, False])
def test_of_what_is_in_flight_after_a_kill(rig: Rig, is_stored: bool) -> None:
    """Or of what is to be read again, because nobody had stored how far the group was."""
    (peer,) = members(rig, "a")
    rig.send("t/x", "job", "next")
    assert peer.payloads() == ["job", "next"]
    peer.ack(wire.PUBACK, 2)
    ((place, shard),) = {(f.position, f.shard) for f in rig.session("a").session.flights.values()}
    if is_stored:
        rig.pass_ms(500)
    rig.crash(pump=True)
    told: list[Outcome] = []
    group = rig.group(GROUP)
    rig.core.events.finish(group, place, shard, told.append)
    rig.pump()
    assert told == [Outcome.DONE]
    for _ in range(2):
        rig.crash(pump=True)
        assert bool(rig.group(GROUP).session.finished) != is_stored
    assert rig.lasting("a").take_all() == ([] if is_stored else ["next"])
    rig.pass_ms(500)
    rig.restart()
    assert rig.lasting("a").take_all() == []
    assert not rig.group(GROUP).session.finished


@OPENED
def test_what_cannot_be_written_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, packet, _ = overdue(rig, "a")
    with monkeypatch.context() as patch:
        patch.setattr(rig.core.events.errand, "_writer", SimpleNamespace(submit=_full, broken=None))
        peer.ack(wire.PUBACK, packet.packet_id)
        assert waiting(rig) == ["job"]
        assert rig.core.events.errand.is_settled
    rig.pass_ms(1_100)
    assert rig.core.events.finished == 1
    assert in_flight(rig, GROUP) == 0
    rig.pass_ms(60_000)
    assert waiting(rig) == letters(rig) == []


def _full(*_: object, **__: object) -> None:
    raise Busy("full")


def test_one_beside_an_unreadable_dead_letter_fails_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No group is given up for it: the others are done, and whoever publishes meanwhile is answered."""
    rig = Rig(config(max_attempts=1))
    (worker,) = members(rig, "worker", ack_timeout="30s")
    session(rig, "keeper").drop()
    rig.send("t/x", "m0", "m1", "m2")
    held = worker.publishes()
    rig.pass_ms(30_500)
    assert len(letters(rig)) == 3
    bad = [key for key, _ in rig.store.scan(Table.DELIVERIES, b"\0", b"\1")][1]
    real = rig.store.get

    def get(table: Table, key: bytes) -> bytes | None:
        if (table, key) == (Table.DELIVERIES, bad):
            raise Corrupt("a rotten block")
        return real(table, key)

    monkeypatch.setattr(rig.store, "get", get)
    publisher = rig.connected("publisher")
    for packet in held:
        worker.ack(wire.PUBACK, packet.packet_id, pump=False)
    for _ in range(20):
        assert publisher.publish1("t/y").reason < 0x80
        rig.pass_ms(950)
    assert (rig.core.writer.given_up, rig.core.events.finished, rig.core.events.errand.put_off) == (0, 2, {})
    assert sum("cannot be written" in line for line in caplog.messages) == 1


def test_many_are_one_request_and_too_many_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LATE_MAX", 10)
    monkeypatch.setattr(events, "UNDER_WAY", 5)
    rig = Rig()
    peer = rig.lasting("a", receive_maximum=64)
    peer.subscribe(GROUP, qos=1, user_properties=(("ack-timeout", "30s"),))
    rig.send("t/x", *map(str, range(16)))
    packets = peer.publishes()
    rig.pass_ms(30_250)
    assert len(waiting(rig)) == 16
    for packet in packets:
        peer.ack(wire.PUBACK, packet.packet_id, pump=False)
    rig.pump()
    assert rig.core.events.finished == 10
    assert len(waiting(rig)) == 6


# -- on another connection


@pytest.mark.parametrize("how", ["lost", "taken over", "given back", "killed"])
def test_on_the_next_connection_by_its_id(how: str) -> None:
    """Whatever has become of it by then: nobody gets it again."""
    rig = Rig()
    peer = back(rig)
    scheduled(rig)
    (packet,) = peer.publishes()
    if how == "lost":
        peer.drop()
    elif how == "given back":
        peer.disconnect()
    elif how == "killed":
        rig.crash()
    peer = back(rig)
    again = peer.publishes()
    assert len(again) == (how in ("given back", "killed")), "it comes at once, and is done all the same"
    assert done(peer, packet) == 0
    assert done(peer, packet) == NOTHING_LEFT
    assert waiting(rig) == []
    for each in again:
        peer.ack(wire.PUBACK, each.packet_id)
    rig.pass_ms(60_000)
    assert peer.inbox == []
    assert in_flight(rig, GROUP) == 0
    rig.restart()
    peer = back(rig)
    rig.pass_ms(60_000)
    assert peer.inbox == []


def test_by_its_id_when_it_is_the_retry_that_was_done_or_is_dead() -> None:
    rig = Rig(config(max_attempts=2))
    peer = back(rig)
    scheduled(rig)
    peer.nack(peer.one(), "1s")
    rig.pass_ms(1_000)
    (again,) = peer.publishes()
    peer.drop()
    peer = back(rig)
    assert [text for _, text, _, _ in letters(rig)] == ["job"]
    assert done(peer, again) == 0
    assert letters(rig) == waiting(rig) == []
    rig.pass_ms(60_000)
    assert peer.inbox == []


def test_by_its_id_when_another_has_it(rig: Rig) -> None:
    peer = back(rig)
    scheduled(rig)
    (packet,) = peer.publishes()
    peer.drop()
    other = back(rig, "b")
    rig.pass_ms(2_000)
    (again,) = other.publishes()
    peer = back(rig)
    assert done(peer, packet) == 0
    other.ack(wire.PUBACK, again.packet_id)
    rig.pass_ms(60_000)
    assert (peer.inbox, other.inbox) == ([], [])


def test_what_is_not_ones_own_to_finish(rig: Rig) -> None:
    """A group that one is no member of; what has not come yet; what the group does not get."""
    a, stranger = back(rig), back(rig, "s", "$share/h/else")
    scheduled(rig)
    (packet,) = a.publishes()
    publisher = rig.connected("p")
    publisher.publish1("$delayed/60/t/x", "later")
    rig.pass_ms(1)
    (row,) = [value for _, _, value in rig.core.reader.read(rig.core.horizon.position, END)]
    assert decode(row).payload == b"later"
    (place,) = [place for place, _, _ in rig.core.reader.read(rig.core.horizon.position, END)]
    later = id_text(message_id(place, 0, 0))
    assert done(stranger, packet) == NOTHING_LEFT
    assert done(stranger, packet, "$share/h/else") == NOTHING_LEFT
    assert done(a, later) == NOTHING_LEFT
    assert done(a, "0" * 32) == NOTHING_LEFT
    assert done(a, "nonsense") == Reason.PAYLOAD_FORMAT_INVALID
    a.ack(wire.PUBACK, packet.packet_id)
    rig.pass_ms(60_000)
    assert a.take_all() == ["later"]
