"""A session whose filters begin one after the other, against the account of deliveries."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from server.codec import wire
from server.codec.packets import Suback
from tests.support.ledger.deliveries import Deliveries
from tests.support.ledger.messages import Message
from tests.support.ledger.words import Fault as Found
from tests.support.planted import Fault, finds
from tests.support.rig import Rig

FILTERS = ["a/#", "b/#", "+/1", "+/2", "#"]
TOPICS = ("a/1", "a/2", "b/1", "b/2")


def _fails(fault: Found) -> None:
    raise AssertionError(str(fault))


class Life:
    def __init__(self, seed: int) -> None:
        self.rnd, self.rig = random.Random(seed), Rig()
        self.ledger = Deliveries(self.rig.clock.now_ms)
        self.ledger.book.tell = _fails
        self.left = self.rnd.sample(FILTERS, len(FILTERS))
        first = self.left.pop()
        self.began_ms = self.rig.clock.now_ms
        self.place = self.ledger.lives.opened("session", "s", first, max_tries=0)
        self.peer = self.rig.lasting("s").subscribed(first, qos=1)
        self.out: list[tuple[str, int]] = []

    def look(self) -> None:
        self.ledger.arrived(self.rig.clock.now_ms)
        for packet in self.peer.publishes():
            self.ledger.given(self.place, packet.payload.decode())
            self.out.append((packet.payload.decode(), packet.packet_id))

    def send(self) -> None:
        topic, key = self.rnd.choice(TOPICS), str(len(self.ledger.messages.by_id))
        self.ledger.accepted(Message(key, topic, self.rig.clock.now_ms))
        self.rig.send(f"$delayed/0/{topic}", key)

    def ack(self) -> None:
        if self.out:
            key, packet_id = self.out.pop(self.rnd.randrange(len(self.out)))
            self.peer.ack(wire.PUBACK, packet_id)
            self.ledger.settling.finished(self.place.stakes[key])

    def subscribe(self) -> None:
        """From a moment between two steps."""
        if self.left and self.rnd.random() < 0.2:
            text, more = self.left.pop(), dict[str, Any]()
            to_ms = self.rnd.choice(
                (None, self.rnd.randrange(self.began_ms, self.rig.clock.now_ms, 1_000) + 500)
            )
            if to_ms is not None:
                more["user_properties"] = (
                    ("replay-from", datetime.fromtimestamp(to_ms / 1_000, UTC).isoformat()),
                )
            self.ledger.lives.subscribed(self.place, text, to_ms)
            self.peer.subscribe(text, qos=1, pump=False, **more)
            self.rig.pump()
            assert [one.reasons for one in self.peer.inbox if isinstance(one, Suback)] == [(1,)]
            self.peer.inbox = [one for one in self.peer.inbox if not isinstance(one, Suback)]

    def back(self) -> None:
        self.peer = self.peer.back()
        self.ledger.losses.left(self.place)
        self.out.clear()

    def live(self) -> None:
        for _ in range(80):
            self.rig.pass_ms(1_000)
            self.look()
            self.rnd.choice((self.send, self.send, self.ack, self.ack, self.subscribe, self.back))()
            self.look()
        while self.out:
            self.ack()
            self.look()
        self.ledger.at_the_end()


def walks(seeds: range) -> None:
    for seed in seeds:
        Life(seed).live()


@pytest.mark.long
def test_random_lives() -> None:
    walks(range(10))


@pytest.mark.long
@finds("filters")
def test_each_rule_left_out_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    with pytest.raises(AssertionError):
        walks(range(fault.drivers["filters"], 30))
