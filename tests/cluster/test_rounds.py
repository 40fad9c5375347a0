"""FASTI_SOAK=1: one mishap after the other, chosen by chance, for FASTI_MINUTES (10) minutes, on each engine.

After each one clients go on; after every ROUNDS everything is up, the account is made, and the nodes are
compared row by row. FASTI_SEED=n repeats the choices.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.disks import mounted
from tests.support.cluster import Cluster
from tests.support.engines import nats_servers, postgres_servers  # noqa: F401
from tests.support.nats import Nats
from tests.support.postgres import Postgres
from tests.support.soak import SOAK

from .conftest import SETTINGS
from .load import Load
from .mishaps import Mishaps, OnNats, OnPostgres
from .test_catching_up import same
from .test_failover import ACKS, check

MINUTES = float(os.environ.get("FASTI_MINUTES", "10"))
ROUNDS = 10
DISK = "192m"
"""Of a node: what it has, a copy beside it, and what copies leave free."""
Record = Callable[[str, object], None]
Made = Callable[[Cluster, random.Random], Mishaps]

pytestmark = pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1")


def test_mishaps_in_any_order(nats_servers: Nats, tmp_path: Path, record_property: Record) -> None:  # noqa: F811
    with mounted(tmp_path / "disk", DISK) as disk:
        befall(
            nats_servers.url,
            lambda cluster, chance: OnNats(cluster, chance, nats_servers, disk),
            (tmp_path, disk),
            record_property,
        )


def test_mishaps_on_postgres(
    postgres_servers: Postgres,  # noqa: F811
    tmp_path: Path,
    record_property: Record,
) -> None:
    with mounted(tmp_path / "disk", DISK) as disk:
        befall(
            postgres_servers.url_of_all,
            lambda cluster, chance: OnPostgres(cluster, chance, postgres_servers, disk),
            (tmp_path, disk),
            record_property,
        )


def befall(url: str, made: Made, folders: tuple[Path, Path], record: Record) -> None:
    """`folders`: for the nodes, and the small disk of one."""
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}", flush=True)
    chance, until, done, turn = random.Random(seed), time.monotonic() + MINUTES * 60, Counter[str](), 0
    with (
        Cluster(folders[0] / "nodes", url, name="rounds", settings=SETTINGS) as cluster,
        ExitStack() as ending,
    ):
        cluster.nodes["c"].data = folders[1] / "c"
        mishaps = made(cluster, chance)
        ending.callback(mishaps.end)
        while time.monotonic() < until:
            cluster.mend()
            cluster.wait_ready()
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
                check(load, record)
            same(cluster, record)
    record("counted", f"FASTI_SEED={seed}: {dict(done)}, {mishaps.refused} jobs did nothing")
