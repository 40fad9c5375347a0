"""One cluster for all tests of this folder: what a test has broken the next one mends."""

import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.engines import nats_servers  # noqa: F401
from tests.support.nats import Nats

from .load import Load

SETTINGS = {
    "cluster.takeover_after": "2s",
    "cluster.scrub_every": "2s",
    "webhook.allow_private": "true",
}


class Shared:
    """The cluster, which each test mends that begins."""

    def __init__(self, nats: Nats, folder: Path) -> None:
        self.nats, self.folder = nats, folder
        self._numbers = itertools.count(1)
        self._ending = ExitStack()
        self._cluster: Cluster | None = None

    def ready(self) -> Cluster:
        for name in self.nats.missing:
            self.nats.start(name)
        self.nats.wait_ready()
        if self._cluster is not None:
            self._mend(self._cluster)
            return self._cluster
        name = f"c{next(self._numbers)}"
        self._cluster = self._ending.enter_context(
            Cluster(self.folder / name, self.nats.url, name=name, settings=SETTINGS)
        )
        self._cluster.start()
        self._cluster.wait_ready()
        return self._cluster

    def close(self) -> None:
        self._ending.close()

    def _mend(self, cluster: Cluster) -> None:
        """Raises TimeoutError for what does not come back; the next test gets another cluster."""
        cluster.mend()
        try:
            cluster.wait_ready()
        except TimeoutError:
            self.close()
            self._cluster = None
            raise


@pytest.fixture(scope="session")
def shared(nats_servers: Nats) -> Iterator[Shared]:  # noqa: F811
    folder = Path(tempfile.mkdtemp(prefix="fasti-cluster-"))
    made = Shared(nats_servers, folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(shared: Shared) -> Iterator[Cluster]:
    """Three nodes, together; in the end they have said nothing of an error that nobody expected.

    aiohttp says it where it answers on a connection that has gone meanwhile.
    """
    made = shared.ready()
    said = {name: len(node.output) for name, node in made.nodes.items()}
    yield made
    for name, node in made.nodes.items():
        lines = node.output[said[name] :].splitlines()
        at = [
            n
            for n, line in enumerate(lines)
            if line.startswith("Traceback") and "aiohttp" not in lines[n - 1]
        ]
        assert not at, "\n".join(lines[at[0] - 1 : at[0] + 40])


@pytest.fixture
def load(
    cluster: Cluster, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[Load]:
    """Clients of all of them under way; in the end everything is up again, and the account is right."""
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}", flush=True)
    with Load(list(cluster.nodes.values()), request.node.name.replace("[", "-").strip("]"), seed) as made:
        made.acked(20)
        yield made
