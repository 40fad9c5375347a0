"""FASTI_SOAK=1: one mishap after the other, chosen by chance, for FASTI_MINUTES (10) minutes.

After each one clients go on; after every ROUNDS everything is up, the account is made, and the nodes are
compared row by row. FASTI_SEED=n repeats the choices.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster, Node
from tests.support.nats import Nats
from tests.support.soak import SOAK

from .conftest import Shared
from .ledger import Load
from .test_catching_up import same, trim
from .test_failover import ACKS, TAKEOVER_S, check

MINUTES = float(os.environ.get("FASTI_MINUTES", "10"))
ROUNDS = 10
Record = Callable[[str, object], None]


class Mishaps:
    """Each leaves somebody who can lead, and is over when `mend` was called and the nodes are together."""

    def __init__(self, cluster: Cluster, nats: Nats, chance: random.Random) -> None:
        self.cluster, self.nats, self.chance = cluster, nats, chance
        self.all: tuple[Callable[[], None], ...] = (
            *(self.leader_killed, self.follower_killed, self.leader_hangs, self.leader_cut_off),
            *(self.leader_ends, self.log_leader_killed, self.log_follower_hangs, self.all_killed),
            *(self.emptied, self.trimmed, self.leader_and_log_leader_killed, self.leader_killed_soon_again),
        )

    def mend(self) -> None:
        for name in self.nats.missing:
            self.nats.start(name)
        self.nats.wait_ready()
        self.cluster.mend()
        self.cluster.wait_ready()

    def leader_killed(self) -> None:
        self.cluster.leader().kill()

    def leader_killed_soon_again(self) -> None:
        """While the others may be in the middle of taking over."""
        old = self.cluster.leader()
        old.kill()
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)
        old.start()

    def leader_ends(self) -> None:
        assert self.cluster.leader().terminate() == 0

    def follower_killed(self) -> None:
        self._follower().kill()

    def leader_hangs(self) -> None:
        self.cluster.leader().stop()
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)

    def leader_cut_off(self) -> None:
        self.cluster.cut(self.cluster.leader())
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)

    def log_leader_killed(self) -> None:
        self.nats.kill(self.nats.leader(self.cluster.name))

    def log_follower_hangs(self) -> None:
        led = self.nats.leader(self.cluster.name)
        name = self.chance.choice([one for one in self.nats.names if one != led])
        self.nats.stop(name)
        time.sleep(self.chance.random() * 2 * TAKEOVER_S)
        self.nats.resume(name)

    def leader_and_log_leader_killed(self) -> None:
        self.log_leader_killed()
        self.leader_killed()

    def all_killed(self) -> None:
        self.cluster.kill_all()
        for name in self.nats.names:
            self.nats.kill(name)
        self.mend()

    def emptied(self) -> None:
        node = self._follower()
        node.kill()
        self.cluster.wipe(node)

    def trimmed(self) -> None:
        node = self._follower()
        node.kill()
        time.sleep(0.5)
        trim(self.cluster, self.nats)

    def _follower(self) -> Node:
        return self.chance.choice(self.cluster.others(self.cluster.leader()))


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1")
def test_mishaps_in_any_order(shared: Shared, record_property: Record) -> None:
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}", flush=True)
    chance, until, done = random.Random(seed), time.monotonic() + MINUTES * 60, Counter[str]()
    turn = 0
    while time.monotonic() < until:
        cluster = shared.ready()
        mishaps = Mishaps(cluster, shared.nats, chance)
        turn += 1
        with Load(list(cluster.nodes.values()), f"r{turn}", chance.randrange(1_000), batch=100) as load:
            for _ in range(ROUNDS):
                load.acked(ACKS)
                mishap = chance.choice(mishaps.all)
                print(mishap.__name__, flush=True)
                mishap()
                done[mishap.__name__] += 1
                if chance.random() < 0.7:
                    load.acked(ACKS)
                mishaps.mend()
            check(load, record_property)
        same(cluster, record_property)
    record_property("counted", f"FASTI_SEED={seed}: {dict(done)}")
