"""The keys file lacks a name: what its owner has sent waits, and goes out when the name is there again."""

import logging
from pathlib import Path

import pytest

from server.codec import wire
from server.delivery import awaited
from shards.record import decode, id_at, is_stub
from shards.store import Table
from tests.support.keyed import Keyed
from tests.support.rig import Peer
from timeline.position import END, START

KEPT_MS = 300_000


@pytest.fixture
def rig(tmp_path: Path) -> Keyed:
    rig = Keyed(tmp_path, kept_behind_ms=KEPT_MS)
    rig.add("alice", publish=["#"])
    return rig


def remove(rig: Keyed) -> str:
    lines = rig.file.remove("alice")
    rig.read_keys()
    return lines


def put_back(rig: Keyed, lines: str) -> None:
    rig.file.put_back("alice", lines)
    rig.read_keys()
    rig.pump()


def send(rig: Keyed, texts: str, topic: str = "m", delay_s: int = 60, **options: bool) -> None:
    """Each letter is a message; small ones are alice's, large ones of ops."""
    for number, text in enumerate(texts):
        peer = rig.come("alice" if text.islower() else "ops")
        where = f"$delayed/{delay_s + number}/{topic}" if delay_s else topic
        peer.publish1(where, text, **options)
        peer.disconnect()


def reader(rig: Keyed, text: str = "m", client_id: str = "reader") -> Peer:
    return rig.stay("ops", client_id).subscribed(text, qos=1)


@pytest.fixture
def peer(rig: Keyed) -> Peer:
    return reader(rig)


@pytest.mark.parametrize("filter_", ["m", "$share/g/m"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_came_due_meanwhile_goes_out_once_and_in_its_order(
    rig: Keyed, filter_: str, *, is_killed: bool
) -> None:
    peer = reader(rig, filter_)
    send(rig, "aBcD")
    lines = remove(rig)
    rig.pass_ms(70_000)
    assert peer.take_all() == ["B", "D"], "others do not wait"
    assert rig.core.opened.waiting.pending == 0
    if is_killed:
        rig.kill()
        peer = rig.stay("ops", "reader")
    put_back(rig, lines)
    assert peer.take_all() == ["a", "c"]
    assert rig.core.opened.waiting.pending == 0
    assert rig.core.opened.owned.pending(b"alice") == 0
    send(rig, "e", delay_s=0)
    assert peer.take_all() == ["e"]
    peer.disconnect()
    rig.restart()
    put_back(rig, lines)
    assert not rig.stay("ops", "reader").take_all(), "once"


def test_it_is_told_as_waiting(rig: Keyed) -> None:
    """Dispatch has passed it, and nobody has it."""
    peer = reader(rig, "$share/g/m")
    send(rig, "aB")
    lines = remove(rig)
    rig.pass_ms(70_000)
    assert peer.take_all() == ["B"]
    assert states(rig) == [("waiting", True), ("done", False)]
    put_back(rig, lines)
    assert peer.take_all() == ["a"]
    assert states(rig) == [("done", False)] * 2


def states(rig: Keyed) -> list[tuple[str, bool]]:
    """Of each message with the group, and whether anything is left of it."""
    core, told = rig.core, []
    for place, number, value in core.reader.read(START, END):
        if is_stub(value):
            continue
        record = decode(value)
        found = core.opened.commit.find(id_at(place, number, core.node, record.id))
        assert found is not None
        (one,), _ = core.deliveries.of(found.id, found.position, record, lambda _: True)
        told.append((one.state, core.deliveries.is_undone(core.opened.open_batch, found)))
    return told


def test_a_retained_one_is_retained_then(rig: Keyed) -> None:
    send(rig, "a", retain=True)
    lines = remove(rig)
    rig.pass_ms(70_000)
    assert reader(rig).take_all() == []
    put_back(rig, lines)
    assert reader(rig, client_id="new").take_all() == ["a"]


def test_who_was_away_gets_it_once(rig: Keyed) -> None:
    reader(rig).drop()
    send(rig, "aB")
    lines = remove(rig)
    rig.pass_ms(70_000)
    assert rig.stay("ops", "reader").take_all() == ["B"]
    put_back(rig, lines)
    assert rig.stay("ops", "reader").take_all() == ["a"]


@pytest.mark.parametrize("filter_", ["m", "$share/g/m"])
def test_who_has_still_to_read_it_stands_still(rig: Keyed, filter_: str) -> None:
    """Others have had it: it is not sent again to all."""
    reader(rig, filter_).drop()
    other = reader(rig, client_id="other")
    send(rig, "AbC", delay_s=0)
    assert other.take_all() == ["A", "b", "C"]
    lines = remove(rig)
    peer = rig.stay("ops", "reader")
    assert peer.take_all() == ["A"]
    put_back(rig, lines)
    assert peer.take_all() == ["b", "C"]
    assert other.take_all() == []


def test_nobody_waits_for_ever(rig: Keyed, peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    send(rig, "a")
    lines = remove(rig)
    with caplog.at_level(logging.WARNING):
        rig.pass_ms(70_000)
        assert [record.message for record in caplog.records] == ["message waits: there is no key alice"]
        assert rig.core.awaited.floor < rig.core.horizon.position, "its slice is kept"
        rig.pass_ms(KEPT_MS + 60_000)
        assert "given up" in caplog.text
    put_back(rig, lines)
    assert peer.take_all() == []


def test_a_name_that_is_revoked_in_place_of_missing_is_forgotten(rig: Keyed, peer: Peer) -> None:
    send(rig, "a")
    lines = remove(rig)
    rig.pass_ms(70_000)
    put_back(rig, lines + "revoked = 2026-11-22T00:00:00Z\n")
    rig.pass_ms(2_000)
    put_back(rig, lines)
    assert peer.take_all() == []
    assert not list(rig.core.opened.store.scan(Table.META, b"awaited/", b"awaited0"))


@pytest.mark.long
def test_thousands_go_out_in_steps(rig: Keyed, peer: Peer) -> None:
    alice = rig.come("alice")
    for n in range(500):
        alice.publish1("$delayed/60/m", str(n))
    alice.disconnect()
    lines = remove(rig)
    rig.pass_ms(61_000)
    assert peer.take_all() == []
    put_back(rig, lines)
    got = peer.take_all()
    assert got == [str(n) for n in range(500)]


def release_half(rig: Keyed, lines: str) -> None:
    """Put alice's key back, and go on until some of what waits has been released, durably."""
    rig.file.put_back("alice", lines)
    rig.keyring.take(rig.keyring.read())
    rig.core.review()
    first = rig.core.awaited.floor
    while rig.core.awaited.floor == first:
        assert rig.micro()
    for _ in range(6):
        rig.write()
        rig.turn()
        rig.deliver()
    assert rig.core.awaited.floor < rig.core.horizon.position, "some of it still waits"


def wait_many(rig: Keyed, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """More messages than go out in a few steps, which wait for alice."""
    monkeypatch.setattr(awaited, "STEP_ROWS", 10)
    texts = [str(n) for n in range(400)]
    alice = rig.come("alice")
    for text in texts:
        alice.publish1("$delayed/600/m", text)
    alice.disconnect()
    lines = remove(rig)
    rig.pass_ms(601_000)
    return texts, lines


@pytest.mark.long
def test_a_kill_in_the_middle_of_the_release_doubles_nothing(
    rig: Keyed, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, lines = wait_many(rig, monkeypatch)
    release_half(rig, lines)
    got = []
    for packet in peer.publishes():
        got.append(packet.payload.decode())
        peer.ack(wire.PUBACK, packet.packet_id, pump=False)
    assert got
    rig.core.cursors.finish()
    for _ in range(3):
        rig.write()
    assert rig.core.awaited.floor < rig.core.horizon.position, "some of it still waits"
    rig.crash(pump=True)
    got += rig.stay("ops", "reader").take_all()
    assert len(got) == len(texts)
    assert sorted(got) == sorted(texts)


@pytest.mark.long
def test_a_key_that_goes_again_in_the_middle_of_the_release_doubles_nothing(
    rig: Keyed, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, lines = wait_many(rig, monkeypatch)
    release_half(rig, lines)
    remove(rig)
    put_back(rig, lines)
    got = peer.take_all()
    assert len(got) == len(texts)
    assert sorted(got) == sorted(texts)
