"""Replay over several slices, some dropped by retention: who reads goes on, and the loss is told."""

import logging

import pytest

from server.codec.packets import Connack, Connect, Publish
from server.delivery.replay import TURN_SENT
from server.delivery.unread import TURN_ROWS
from shards.commit import Commit
from shards.expiry import expire
from shards.store import Table
from tests.support.rig import LONG_S, Rig, config, props

QUARTER_MS, DAY_S = 900_000, 86_400


def _publish(rig: Rig, *payloads: str, qos: int = 1) -> None:
    """One message a slice: each is due a quarter of an hour after the one before."""
    publisher = rig.connected("publisher")
    for number, payload in enumerate(payloads):
        publisher.publish(f"$delayed/{900 * number}/t", payload, qos)
    publisher.drop()


def passed(rig: Rig, slices: int = 2) -> None:
    """Time passes, a slice at a time, with the housekeeping that notes what the horizon has passed."""

    def seal(commit: Commit) -> None:
        for piece in rig.core.directory.passed(rig.core.horizon.position):
            commit.open_batch.passed(piece)

    for _ in range(slices):
        rig.jump(QUARTER_MS)
        rig.decide(seal)


def _expire(rig: Rig, keep: int) -> None:
    """Retention takes all but the last `keep` quarters of an hour that were passed."""
    plan = rig.core.directory.expired(rig.core.opened.open_batch.running_ms // 1_000, keep * 900)
    assert plan
    rig.decide(lambda commit: expire(commit, plan))


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_reads_over_slices(qos: int) -> None:
    rig = Rig(config(max_in_flight=2))
    rig.lasting("s", expiry=DAY_S).subscribed("t", qos=qos).drop()
    everything = [str(n) for n in range(8)]
    _publish(rig, *everything, qos=qos)
    passed(rig, 9)
    assert len(list(rig.core.directory)) >= 8
    rig.crash(pump=True)
    assert rig.lasting("s", expiry=DAY_S).take_all() == everything


@pytest.mark.parametrize("window", [1, 100])
def test_a_session_whose_place_has_expired_goes_on_at_the_floor(
    window: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(config(max_in_flight=window))
    rig.lasting("s", expiry=DAY_S).subscribed("t").drop()
    _publish(rig, *[str(n) for n in range(8)])
    passed(rig, 9)
    _expire(rig, keep=4)
    rig.crash(pump=True)
    with caplog.at_level(logging.WARNING):
        peer = rig.lasting("s", expiry=DAY_S)
        got = peer.take_all()
    assert 0 < len(got) < 8
    assert got == [str(n) for n in range(8 - len(got), 8)]
    assert rig.core.replay.lost == 1
    assert "s: unread messages expired" in caplog.text
    # It is not stuck, and the loss is told once.
    rig.connected("p").publish1("t", "new")
    assert peer.take_all() == ["new"]
    peer.drop()
    rig.crash(pump=True)
    assert rig.lasting("s", expiry=DAY_S).inbox == []
    assert rig.core.replay.lost == 0


def test_a_session_that_is_reading_while_slices_expire() -> None:
    rig = Rig(config(max_in_flight=1))
    rig.lasting("s", expiry=DAY_S).subscribed("t").drop()
    _publish(rig, *[str(n) for n in range(8)])
    passed(rig, 9)
    rig.crash(pump=True)
    peer = rig.lasting("s", expiry=DAY_S)
    first: Publish = peer.take(Publish)
    assert first.payload == b"0"
    _expire(rig, keep=4)
    peer.inbox.append(first)
    got = peer.take_all()
    assert got[0] == "0"
    assert 1 < len(got) < 8
    assert got[1:] == [str(n) for n in range(9 - len(got), 8)]
    assert rig.core.replay.lost == 1


def test_what_was_in_flight_and_has_expired_is_counted(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    peer = rig.lasting("s", expiry=DAY_S).subscribed("t")
    _publish(rig, "0", "1")
    passed(rig, 7)
    assert peer.payloads() == ["0", "1"]
    peer.drop()
    _expire(rig, keep=2)
    _publish(rig, "new")
    rig.crash(pump=True)
    assert rig.lasting("s", expiry=DAY_S).take_all() == ["new"]
    assert rig.core.sent.lost == 2
    dead = list(rig.core.dead_letters.read())
    assert [(row.group, row.reason) for row in dead] == [("s", "kept too long")] * 2


def test_a_group_over_slices_some_of_which_have_expired() -> None:
    rig = Rig(config(max_in_flight=2))
    for name in "ab":
        rig.lasting(name, expiry=DAY_S).subscribe("$share/g/t")
    for peer in list(rig.peers):
        peer.drop()
    _publish(rig, *[str(n) for n in range(12)])
    passed(rig, 13)
    rig.crash(pump=True)
    # Half of it is read over several slices, by both.
    a, b = rig.lasting("a", expiry=DAY_S), rig.lasting("b", expiry=DAY_S)
    got = []
    for _ in range(3):
        for peer in (a, b):
            found, peer.inbox = peer.inbox[:1], peer.inbox[1:]
            for packet in found:
                assert isinstance(packet, Publish)
                got.append(packet.payload.decode())
                peer.ack(0x04, packet.packet_id)
    assert len(got) == 6
    a.disconnect()
    b.disconnect()
    _expire(rig, keep=3)
    a, b = rig.lasting("a", expiry=DAY_S), rig.lasting("b", expiry=DAY_S)
    rest = []
    while a.inbox or b.inbox:
        rest += a.take_all() + b.take_all()
    assert rig.core.replay.lost + rig.core.sent.lost > 0
    assert not set(got) & set(rest)
    assert sorted(rest, key=int) == [str(n) for n in range(12 - len(rest), 12)]
    assert rest
    rig.connected("p").publish1("t", "new")
    assert a.take_all() + b.take_all() == ["new"]


def test_a_stretch_longer_than_a_turn_over_slices() -> None:
    """More rows in one slice than are looked at in a turn, with others before and behind."""
    rig = Rig(config(max_in_flight=65_535))
    rig.lasting("s", receive_maximum=65_535, expiry=DAY_S).subscribed("t").drop()
    publisher = rig.connected("p")
    publisher.publish1("t", "first")
    rig.jump(QUARTER_MS)
    count = TURN_ROWS + 5
    publisher.send(*[Publish(b"t", b"%d" % n, 1, packet_id=n % 1_000 + 1) for n in range(1_000)])
    publisher.send(*[Publish(b"t", b"%d" % n, 1, packet_id=n - 999) for n in range(1_000, count)])
    rig.jump(QUARTER_MS)
    publisher.publish("t", "last", 1)
    rig.crash(pump=True)
    peer = rig.lasting("s", receive_maximum=65_535, expiry=DAY_S)
    assert peer.payloads() == ["first", *[str(n) for n in range(count)], "last"]


@pytest.mark.parametrize("store", ["as it is", "of before"])
@pytest.mark.parametrize("qos", [1, 2])
def test_retained_ones_in_flight_are_found_without_a_scan(
    rig: Rig, qos: int, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows on the timeline have expired; which topic a position belongs to is looked up."""
    publisher = rig.connected("p")
    for number in range(40):
        publisher.publish2(f"r/{number:02}", f"{number:02}", retain=True)
    for replaced in ("r/01", "r/02"):
        publisher.publish2(replaced, "early", retain=True)
        publisher.publish2(replaced, "again", retain=True)
    publisher.publish1("r/03", "", retain=True)
    peer = rig.lasting("s", expiry=DAY_S).subscribed("r/#", qos=qos)
    assert len(peer.payloads()) == 39
    peer.drop()
    # One of them is replaced while it is in flight, one is cleared: they are not there any more.
    publisher = rig.connected("p")
    publisher.publish2("r/04", "new", retain=True)
    publisher.publish2("r/05", "", retain=True)
    passed(rig, 7)
    _expire(rig, keep=2)
    rows = dict(rig.store.scan(Table.RETAINED, b"\xff", b"\xff" * 14))
    assert len(rows) == rig.core.retained.count == 38
    if store == "of before":
        batch = rig.store.batch()
        for key in rows:
            batch.delete(Table.RETAINED, key)
        batch.delete(Table.META, b"retained")
        rig.store.write(batch)
        rig.store.flush()
    rig.crash(pump=True)
    assert dict(rig.store.scan(Table.RETAINED, b"\xff", b"\xff" * 14)) == rows
    scanned: list[Table] = []
    scan = rig.store.scan
    monkeypatch.setattr(rig.store, "scan", lambda table, *span: scanned.append(table) or scan(table, *span))
    peer = rig.lasting("s", expiry=DAY_S)
    found = peer.publishes()
    expected = ["00", "again", "again", *(f"{n:02}" for n in range(6, 40))]
    assert [packet.payload.decode() for packet in found if packet.dup] == expected
    assert all(packet.retain for packet in found if packet.dup)
    assert Table.RETAINED not in scanned


def test_sending_again_is_done_in_turns(rig: Rig) -> None:
    peer = rig.lasting("s", expiry=DAY_S).subscribed("t", qos=1)
    publisher = rig.connected("p")
    publisher.send(*[Publish(b"t", b"%d" % n, 1, packet_id=n + 1) for n in range(600)])
    assert len(peer.publishes()) == 600
    peer.drop()
    peer = rig.peer()
    peer.send(Connect(5, "s", clean_start=False, properties=props(session_expiry=LONG_S)), pump=False)
    rig.write_all()
    sent = []
    while not rig.core.replay.is_idle:
        rig.core.replay.turn()
        rig.deliver()
        sent.append(sum(isinstance(packet, Publish) for packet in peer.inbox))
    assert sent[:3] == [250, 500, 600]
    peer.take(Connack)
    assert peer.payloads() == [str(n) for n in range(600)]


def test_what_retention_has_dropped_is_sent_as_retained(rig: Rig) -> None:
    """It became retained while the session was away with others still to be sent, and never comes live."""
    publisher = rig.connected("p")
    for topic in "abc":
        publisher.publish1(topic, f"old {topic}", retain=True)
    rig.lasting("s", receive_maximum=1, expiry=DAY_S).subscribed("#", qos=1).drop()
    publisher.publish1("b", "new b", retain=True)
    publisher.publish1("d", "new d", retain=True)
    passed(rig, 7)
    _expire(rig, keep=2)
    rig.crash(pump=True)
    peer = rig.lasting("s", expiry=DAY_S)
    assert all(packet.retain for packet in peer.inbox if isinstance(packet, Publish))
    assert peer.take_all() == ["old a", "new b", "old c", "new d"]


@pytest.mark.long
def test_of_many_who_return_at_once_all_have_something_before_one_has_all() -> None:
    """Each has a window for its whole backlog. Alone it gets it in one turn."""
    backlog, names = 4 * TURN_SENT, [f"s{n}" for n in range(5)]
    rig = Rig(config(max_in_flight=2 * backlog, out_bytes=1 << 26))
    for name in names:
        rig.lasting(name, expiry=DAY_S).subscribe("t")
    for peer in list(rig.peers):
        peer.drop()
    publisher = rig.connected("publisher")
    for number in range(backlog):
        publisher.publish("t", str(number), 1)
    returning = [rig.peer() for _ in names]
    for peer, name in zip(returning, names, strict=True):
        peer.connect(name, clean=False, expiry=DAY_S, pump=False)
    rig.write_all()
    sessions = [rig.core.sessions.get(name) for name in names]
    had: list[list[int]] = []
    while rig.stepper.replay():
        had.append([session.delivered for session in sessions if session is not None])
    assert had[len(names) - 1] == [TURN_SENT] * len(names)
    assert all(max(row) - min(row) <= TURN_SENT for row in had[: -len(names)])
    assert had[-1] == [backlog] * len(names)
    rig.pump()
    for peer in returning:
        peer.take(Connack)
        assert peer.take_all() == [str(n) for n in range(backlog)]
    # Nobody else waits: a whole turn.
    returning[0].drop()
    for number in range(backlog):
        publisher.publish("t", str(number), 1)
    rig.peer().connect(names[0], clean=False, expiry=DAY_S, pump=False)
    rig.write_all()
    alone = rig.session(names[0])
    before = alone.delivered
    rig.core.replay.turn()
    assert alone.delivered - before == backlog
