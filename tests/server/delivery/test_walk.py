"""Random walks: clients publish, read, lose connections, come back; the server is killed and started, at any
step. In the end the books of the clients must agree. A failure prints its seed."""

import os
import random

import pytest

from tests.support.client import Client, finish
from tests.support.rig import Rig, config
from tests.support.soak import SOAK

WALKS = int(os.environ.get("FASTI_MQTT_WALKS", "400" if SOAK else "20"))
STEPS = 250


class Walk:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(config(receive_maximum=30, out_bytes=4_096))
        loses = lambda: self.rng.random() < 0.02  # noqa: E731
        window = self.rng.choice([1, 2, 5, 1_000])
        self.publishers = [Client(f"p{n}", loses=loses) for n in range(2)]
        self.readers = [
            Client("s2", {"t/#": 2}, window=window, loses=loses),
            Client("s1", {"t/#": 1, "t/a": 1}, window=window, loses=loses),
            Client("s0", {"t/+": 0}, loses=loses),
            Client("over", {"t/a": 0, "t/#": 2, "#": 1}, window=window, loses=loses),
        ]
        self.members = [Client(f"m{n}", {"$share/g/t/#": 2}, window=window, loses=loses) for n in range(2)]
        self.clients = [*self.publishers, *self.readers, *self.members]
        finish(self.rig, self.clients)
        for client in self.clients:
            client.loses = loses
        self.sent: list[tuple[str, int]] = []
        self.crashes = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        finish(self.rig, self.clients)
        self.rig.pass_ms(300)
        finish(self.rig, self.clients)
        self.check()

    def step(self) -> None:
        rng, rig = self.rng, self.rig
        dice = rng.random()
        client = rng.choice(self.clients)
        if dice < 0.12:
            publisher = rng.choice(self.publishers)
            if len(publisher.outgoing) < 25:
                payload, qos = f"{publisher.name} {len(self.sent)}", rng.randrange(3)
                if qos or (publisher.is_connected and publisher._is_asked):
                    self.sent.append((payload, qos))
                publisher.publish(rng.choice(["t/a", "t/b"]), payload, qos)
        elif dice < 0.5:
            client.react()
        elif dice < 0.9:
            rng.choice([rig.deliver, rig.turn, rig.compose, rig.settle, rig.micro])()
        elif dice < 0.93:
            client.drop()
        elif dice < 0.97:
            if not client.is_connected or rng.random() < 0.2:
                client.connect(rig)
        elif dice < 0.98:
            rig.crash(rng.randrange(3))
            self.crashes += 1
        elif dice < 0.983:
            rig.restart()
        else:
            rig.clock.now_ms += rng.choice([1, 50, 200])

    def check(self) -> None:
        by_qos = {qos: [payload for payload, asked in self.sent if asked == qos] for qos in range(3)}
        s2, s1, s0, over = (reader.got for reader in self.readers)
        for got in (s2, over):
            for payload in by_qos[2]:
                assert got.count(payload) == 1, payload
        for got in (s2, s1, over):
            for payload in by_qos[1]:
                assert payload in got, payload
        for payload in by_qos[2]:
            assert payload in s1, payload
        for got in (s2, s1, s0, over):
            for payload in by_qos[0]:
                assert got.count(payload) <= 1
        for got in (s2, s1, over):
            self.check_order(got)
        shared = [payload for member in self.members for payload in member.got]
        for payload in by_qos[2]:
            assert shared.count(payload) == 1, payload
        for payload in by_qos[1]:
            assert payload in shared, payload

    def check_order(self, got: list[str]) -> None:
        """[MQTT-4.6.0-5]: what one client published at one QoS comes in its order, repeats aside."""
        qos_of = dict(self.sent)
        for publisher in self.publishers:
            for qos in (1, 2):
                first = list(dict.fromkeys(p for p in got if p.startswith(publisher.name)))
                numbers = [int(p.split()[1]) for p in first if qos_of[p] == qos]
                assert numbers == sorted(numbers)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(WALKS))
def test_walk(seed: int) -> None:
    Walk(seed).run()
