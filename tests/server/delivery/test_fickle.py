"""Random walks of a session that subscribes and unsubscribes while others publish and everything breaks.

By a simple book: what is published, from the first try to its ack, while the filter is there
for certain, comes (once at QoS 2); what is published while it certainly is not, does not.
"""

import os
import random

import pytest

from server.codec.packets import Packet, Suback, Subscribe, SubscribeOptions, Unsuback, Unsubscribe
from tests.support.client import Client, finish
from tests.support.rig import Rig, config
from tests.support.soak import SOAK

WALKS = int(os.environ.get("FASTI_MQTT_WALKS", "400" if SOAK else "20"))
STEPS = 200
TOPICS = ("a", "b")


class Fickle(Client):
    """Changes its mind about each topic. `wants`: the filters as of the last packet that was sent, `granted`:
    as of the last answer; they differ while something is under way."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.granted: dict[str, int] = {}
        self.asked: dict[int, tuple[str, int | None]] = {}
        self.unsure: set[str] = set()
        """Topics of which an answer is on its way, or was lost with the connection."""

    def toggle(self, topic: str, qos: int) -> None:
        """Subscribe to it or, if that is granted, unsubscribe."""
        if not self.is_connected or not self._is_asked or topic in self.unsure:
            return
        self._next_id += 1
        self.unsure.add(topic)
        if topic in self.granted:
            self.asked[self._next_id] = (topic, None)
            self._send(Unsubscribe(self._next_id, (topic,)))
        else:
            self.asked[self._next_id] = (topic, qos)
            self._send(Subscribe(self._next_id, ((topic, SubscribeOptions(qos)),)))

    def settle(self) -> None:
        """On a new connection: ask again for what was asked for when the last one broke."""
        asked, self.asked = self.asked, {}
        for topic, qos in asked.values():
            self._next_id += 1
            self.asked[self._next_id] = (topic, qos)
            if qos is None:
                self._send(Unsubscribe(self._next_id, (topic,)))
            else:
                self._send(Subscribe(self._next_id, ((topic, SubscribeOptions(qos)),)))

    def _on(self, packet: Packet) -> None:
        if not isinstance(packet, Suback | Unsuback):
            super()._on(packet)
            if self._is_asked and self.is_connected and self.peer is not self._settled_on:
                self._settled_on = self.peer
                self.settle()
            return
        topic, qos = self.asked.pop(packet.packet_id)
        self.unsure.discard(topic)
        if qos is None:
            del self.granted[topic]
        else:
            assert isinstance(packet, Suback)
            assert packet.reasons == (qos,)
            self.granted[topic] = qos

    _settled_on: object = None


class Walk:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(config(out_bytes=4_096))
        self.publisher, self.keeper, self.fickle = Client("p"), Client("k", {"#": 1}), Fickle("f")
        self.clients = [self.publisher, self.keeper, self.fickle]
        finish(self.rig, self.clients)
        self.pending: dict[str, tuple[str, int, bool | None]] = {}
        """Under way: payload -> (topic, QoS, granted all the while or not; None: unknown)."""
        self.must: dict[str, tuple[str, int]] = {}
        self.must_not: set[str] = set()
        self.count = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.note()
        for client in self.clients:
            client.loses = lambda: False
        for _ in range(50):
            finish(self.rig, self.clients)
            self.note()
        got = self.fickle.got
        for payload, (_, qos) in self.must.items():
            assert payload in got, payload
            assert qos < 2 or got.count(payload) == 1, payload
        assert not self.must_not & set(got)

    def step(self) -> None:
        rng, rig, dice = self.rng, self.rig, self.rng.random()
        if dice < 0.12 and len(self.publisher.outgoing) < 20:
            topic, qos = rng.choice(TOPICS), rng.choice([1, 2])
            self.count += 1
            granted = self.state_of(topic)
            best = min(qos, self.fickle.granted.get(topic, 0))
            self.pending[str(self.count)] = (topic, best, granted)
            self.publisher.publish(topic, str(self.count), qos)
        elif dice < 0.17:
            self.fickle.toggle(rng.choice(TOPICS), rng.choice([1, 2]))
        elif dice < 0.55:
            rng.choice(self.clients).react()
        elif dice < 0.93:
            rng.choice([rig.deliver, rig.turn, rig.compose, rig.settle, rig.micro])()
        elif dice < 0.96:
            client = rng.choice(self.clients)
            client.drop() if client.is_connected and rng.random() < 0.3 else None
            if not client.is_connected:
                client.connect(rig)
        elif dice < 0.975:
            rig.crash(rng.randrange(3))
            # The horizon starts again where it was stored: what it had passed since is new to the session.
            assert not self.must_not & set(self.fickle.got)
            self.must_not.clear()
        elif dice < 0.98:
            rig.restart()
        else:
            rig.clock.now_ms += rng.choice([1, 50, 200])

    def state_of(self, topic: str) -> bool | None:
        return None if topic in self.fickle.unsure else topic in self.fickle.granted

    def note(self) -> None:
        """What was granted or not is so no more, for what is under way; what the horizon has passed, as
        somebody else's having it shows, is judged. (Before that a new subscription may still get it.)"""
        passed = set(self.keeper.got) & set(self.publisher.acked)
        for payload, (topic, qos, state) in list(self.pending.items()):
            if state is None or self.state_of(topic) is not state:
                del self.pending[payload]
            elif payload in passed:
                del self.pending[payload]
                if state:
                    self.must[payload] = (topic, qos)
                else:
                    self.must_not.add(payload)
        for payload, (topic, _) in list(self.must.items()):
            if self.state_of(topic) is not True and payload not in self.fickle.got:
                del self.must[payload]  # given up before it came


@pytest.mark.long
@pytest.mark.parametrize("seed", range(WALKS))
def test_walk(seed: int) -> None:
    Walk(seed).run()


@pytest.mark.long
def test_the_walks_look_at_something() -> None:
    walks = [Walk(seed) for seed in range(8)]
    for walk in walks:
        walk.run()
    assert sum(len(walk.must) for walk in walks) > 20
    assert sum(len(walk.must_not) for walk in walks) > 20
