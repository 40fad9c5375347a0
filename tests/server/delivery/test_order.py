"""Groups that order by key: one message of a key at a time, in order, through failures, kills and members."""

import random

import pytest

from server.codec import wire
from server.codec.packets import Ack
from server.http.lag import lag_of
from server.http.timeline import Timeline
from shards.commit import Commit
from shards.dead import DEAD
from shards.record import decode
from shards.retries import RETRIES
from shards.store import Table
from tests.support.rig import Peer, Rig, props
from timeline.position import END, START, Position, message_id

TEXT = "$share/workers/jobs/#"


def worker(rig: Rig, name: str = "w", **more: str) -> Peer:
    peer = rig.connected(name)
    asked = {"order": "true", "backoff": "1s", "expiry": "never", **more}
    said = tuple((key.replace("_", "-"), value) for key, value in asked.items())
    assert peer.subscribe(TEXT, qos=1, user_properties=said) == (1,)
    return peer


def send(rig: Rig, *payloads: str) -> None:
    """Messages whose key is their first letter; `-`: none."""
    peer = rig.connected("publisher")
    for payload in payloads:
        users = (("deliver-in", "0s"), ("ordering-key", payload[0].strip("-")))
        assert peer.publish1("jobs/x", payload, user_properties=users).reason == 0
    peer.disconnect()


def came(peer: Peer) -> dict[str, int]:
    """Payloads and packet ids."""
    return {packet.payload.decode(): packet.packet_id for packet in peer.publishes()}


def nack(peer: Peer, packet_id: int, retry_in: str = "2s") -> None:
    peer.send(Ack(wire.PUBACK, packet_id, 0x80, props(user_properties=(("retry-in", retry_in),))))


def test_of_a_key_one_is_out_and_the_next_comes_with_its_ack() -> None:
    rig = Rig()
    peer = worker(rig)
    send(rig, "a1", "a2", "b1", "a3", "b2")
    first = came(peer)
    assert list(first) == ["a1", "b1"]
    peer.ack(wire.PUBACK, first["a1"])
    second = came(peer)
    assert list(second) == ["a2"]
    peer.ack(wire.PUBACK, first["b1"])
    assert list(came(peer)) == ["b2"]
    peer.ack(wire.PUBACK, second["a2"])
    assert list(came(peer)) == ["a3"]


def test_what_follows_waits_behind_a_retry() -> None:
    rig = Rig()
    peer = worker(rig)
    send(rig, "a1", "a2", "b1")
    first = came(peer)
    nack(peer, first["a1"])
    peer.ack(wire.PUBACK, first["b1"])
    assert not came(peer)
    rig.pass_ms(2_500)
    again = came(peer)
    assert list(again) == ["a1"]
    peer.ack(wire.PUBACK, again["a1"])
    assert list(came(peer)) == ["a2"]


def test_a_dead_letter_lets_the_next_go() -> None:
    rig = Rig()
    peer = worker(rig)
    send(rig, "a1", "a2")
    nack(peer, came(peer)["a1"], "never")
    assert list(came(peer)) == ["a2"]


def test_a_replay_begins_again_in_order() -> None:
    rig = Rig()
    peer = worker(rig)
    send(rig, "a1", "a2", "b1", "b2")
    first = came(peer)
    nack(peer, first["a1"])
    peer.ack(wire.PUBACK, first["b1"])
    assert list(came(peer)) == ["b2"]
    group = rig.core.groups.get(TEXT)
    assert group is not None
    rig.core.writer.submit(lambda commit: rig.core.replay.rewind(commit, group, Position(0)), lambda _: None)
    rig.pump()
    out = came(peer)
    assert list(out) == ["a1"], "b2 is still out"
    peer.ack(wire.PUBACK, out["a1"])
    out = came(peer)
    assert list(out) == ["a2"]
    peer.ack(wire.PUBACK, out["a2"])
    rig.pass_ms(10_000)
    assert not came(peer), "the retry has ended"


def test_a_retry_that_is_dropped_or_tried_at_once_lets_its_key_go_on() -> None:
    rig = Rig()
    peer = worker(rig)
    send(rig, "a1", "a2", "b1", "b2")
    first = came(peer)
    nack(peer, first["a1"], "1h")
    nack(peer, first["b1"], "1h")
    steering, now_ms = rig.core.steering, rig.clock.now_ms
    (a, b) = [place for place, _ in RETRIES.all(rig.store)]
    rig.core.writer.submit(lambda commit: steering.drop(commit, a, lambda *_: True), lambda _: None)
    rig.pump()
    assert list(came(peer)) == ["a2"]
    rig.core.writer.submit(lambda commit: steering.try_(commit, b, now_ms, lambda *_: True), lambda _: None)
    rig.pump()
    rig.pass_ms(500)
    again = came(peer)
    assert list(again) == ["b1"]
    peer.ack(wire.PUBACK, again["b1"])
    assert list(came(peer)) == ["b2"]


def test_what_waits_for_its_key_is_undone_and_holds_its_slice() -> None:
    rig = Rig()
    peer = worker(rig)
    send(rig, "a1", "a2", "a3")
    came(peer)
    group = rig.core.groups.get(TEXT)
    assert group is not None
    assert group.session.order is not None
    rows = [(place, decode(value)) for place, _, value in rig.core.reader.read(START, END, None)]
    (second,) = [place for place, record in rows if record.payload == b"a2"]
    assert rig.core.floor.needed <= second
    for place, record in rows:
        told, _ = rig.core.deliveries.of(message_id(place, 0, 0), place, record, lambda _: True)
        assert [one.state for one in told] == ["in_flight" if record.payload == b"a1" else "waiting"]
    timeline = Timeline(rig.core.opened, rig.core.writer.journal, node=0)
    assert lag_of(group, timeline, rig.core.router, 100)["lag_messages"] == 2


@pytest.mark.parametrize("how", ["skip", "end"])
def test_what_waits_for_its_key_becomes_dead_letters(how: str) -> None:
    rig = Rig()
    peer = worker(rig)
    send(rig, *[f"a{n}" for n in range(250)], "b0", "b1")
    first = came(peer)
    group = rig.core.groups.get(TEXT)
    assert group is not None
    if how == "skip":
        send(rig, "a250")

        def decide(commit: Commit) -> object:
            return rig.core.replay.skip(commit, group, END, "skipped", is_dead=True)

    else:

        def decide(commit: Commit) -> object:
            return rig.core.groups.disband(commit, group)

    rig.core.writer.submit(
        lambda commit: rig.core.groups.pause(commit, group, is_paused=True), lambda _: None
    )
    rig.pump()
    send(rig, "c0")
    rig.core.writer.submit(decide, lambda _: None)
    rig.pass_ms(2_000)
    dead = sorted(decode(row.record).payload.decode() for _, row in DEAD.all(rig.store))
    sent = [f"a{n}" for n in range(251 if how == "skip" else 250)] + ["b0", "b1", "c0"]
    assert dead == sorted({*sent} - ({"a0", "b0"} if how == "skip" else set()))
    assert not list(rig.store.scan(Table.ORDER, b"\3", b"\4"))
    if how == "skip":
        rig.core.writer.submit(
            lambda commit: rig.core.groups.pause(commit, group, is_paused=False), lambda _: None
        )
        peer.ack(wire.PUBACK, first["a0"])
        send(rig, "a251")
        assert list(came(peer)) == ["a251"]
    else:
        assert not list(rig.store.scan(Table.ORDER, b"", b"\2")), "its index goes with the slices"


class Life:
    """Three workers of one group, messages of a few keys, and what has become of them."""

    def __init__(self, seed: int) -> None:
        self.rnd, self.rig = random.Random(seed), Rig()
        self.peers = [worker(self.rig, f"w{n}") for n in range(3)]
        self.sent: dict[str, list[str]] = {key: [] for key in "abc-"}
        self.done: dict[str, list[str]] = {key: [] for key in "abc-"}
        self.out: dict[str, tuple[Peer, int]] = {}

    def take(self) -> None:
        for peer in self.peers:
            for payload, packet_id in came(peer).items():
                key = payload[0]
                assert payload not in self.out, "one and the same is out once"
                if key != "-":
                    first = self.sent[key][len(set(self.done[key]))]
                    assert not [other for other in self.out if other[0] == key], "one of a key is out"
                    assert payload in self.done[key] or payload == first, "in order"
                self.out[payload] = peer, packet_id

    def ack(self, payload: str) -> None:
        peer, packet_id = self.out.pop(payload)
        peer.ack(wire.PUBACK, packet_id)
        self.done[payload[0]].append(payload)

    def send(self) -> None:
        some = []
        for _ in range(self.rnd.choice((1, 2, 9))):
            key = self.rnd.choice("aaabc-")
            self.sent[key].append(f"{key}{len(self.sent[key])}")
            some.append(self.sent[key][-1])
        send(self.rig, *some)

    def come_again(self, n: int) -> None:
        """A worker disconnects in order, and is back."""
        self.out = {payload: held for payload, held in self.out.items() if held[0] is not self.peers[n]}
        self.peers[n].disconnect()
        self.take()
        self.peers[n] = worker(self.rig, f"w{n}")

    def kill(self) -> None:
        self.rig.kill()
        self.out.clear()
        self.peers = [worker(self.rig, f"w{n}") for n in range(3)]

    def act(self) -> None:
        op, rnd = self.rnd.random(), self.rnd
        if op < 0.25:
            self.send()
        elif op < 0.6 and self.out:
            self.ack(rnd.choice(list(self.out)))
        elif op < 0.75 and self.out:
            peer, packet_id = self.out.pop(rnd.choice(list(self.out)))
            nack(peer, packet_id, rnd.choice(("0s", "1s", "4s")))
        elif op < 0.85:
            self.rig.pass_ms(rnd.choice((500, 2_000)))
        elif op < 0.9:
            self.come_again(rnd.randrange(3))
        elif op < 0.94:
            self.kill()
        self.take()

    def end(self) -> None:
        """All is acked."""
        for _ in range(400):
            self.rig.pass_ms(3_000)
            self.take()
            for payload in list(self.out):
                self.ack(payload)
            self.take()
            if {*self.done} == {*self.sent} and all(
                len(set(self.done[key])) == len(self.sent[key]) for key in self.sent
            ):
                return
        raise AssertionError(f"not all came: {self.done} of {self.sent}")


@pytest.mark.parametrize("seed", range(12))
def test_random_lives(seed: int) -> None:
    """Acks, failures, departures and kills at random: each key's messages come in order, one at a time, and
    all of them. After a kill what was out comes again, first."""
    life = Life(seed)
    for _ in range(150):
        life.act()
    life.end()
    for key in "abc":
        assert list(dict.fromkeys(life.done[key])) == life.sent[key]
