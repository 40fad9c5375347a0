"""The same over PostgreSQL: fasti's leader dies, then the primary, which is started again."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.engines import postgres_servers  # noqa: F401
from tests.support.postgres import PRIMARY, Postgres

from .conftest import SETTINGS
from .ledger import Load
from .test_failover import ACKS, check


def test_leader_and_primary_are_killed(
    postgres_servers: Postgres,  # noqa: F811
    record_property: Callable[[str, object], None],
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="fasti-cluster-") as folder,
        Cluster(Path(folder), postgres_servers.url_of_all, name="p1", settings=SETTINGS) as cluster,
    ):
        cluster.start()
        cluster.wait_ready()
        with Load(list(cluster.nodes.values()), "postgres", 1) as load:
            load.acked(ACKS)
            old = cluster.leader()
            old.kill()
            cluster.leader(but=old)
            load.acked(ACKS)
            old.start()
            postgres_servers.kill(PRIMARY)
            postgres_servers.start(PRIMARY)
            postgres_servers.wait_ready(PRIMARY)
            cluster.wait_ready()
            load.acked(ACKS)
            check(load, record_property)
        cluster.kill_all()
        rows, differences = cluster.differences()
        assert not differences, differences[:5]
        assert rows > 100
