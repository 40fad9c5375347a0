"""The engines, each with what a test does to it from outside; the servers are started once."""

import itertools
from collections.abc import Iterator, Sequence

import pytest

from shards.log.chained import ChainedLog, open_engine
from shards.log.engine import Clock, Engine
from shards.log.jetstream import JetStream
from shards.log.postgres import Postgres as PostgresEngine
from tests.support.engines import nats_servers, postgres_servers  # noqa: F401
from tests.support.logs import Elapsing, Faulty, Skipping, created
from tests.support.nats import Nats
from tests.support.postgres import Postgres
from tests.support.shelf import MemoryEngine, Shelf

ENGINES = (pytest.param("memory", marks=pytest.mark.short), "jetstream", "postgres")
DEADLINE_S = 8.0
NAMES = (f"t{number}" for number in itertools.count(1))


class Place:
    """One log of one engine, and who opens it: as often as wanted, each time as another node would.

    Deadlines are long, and what waits in vain skips them.
    """

    name: str

    def __init__(self, clock: Clock | None = None) -> None:
        self._skipping = Skipping()
        self.clock = clock or self._skipping
        self._opened: list[ChainedLog] = []

    def engine(self) -> Engine:
        raise NotImplementedError

    def put(self, seq: int, frame: bytes) -> None:
        """Have anybody's bytes come to stand there."""
        engine = created(self.engine())
        engine.put(seq, frame, 5)
        engine.close()

    def lose(self, seq: int) -> None:
        """Take one record out of the engine, as rot would."""
        raise NotImplementedError

    def delete(self) -> None:
        """Have the whole storage disappear, as an operator would."""
        raise NotImplementedError

    def open(self, deadline_s: float = DEADLINE_S, keys: Sequence[str] = ("",)) -> ChainedLog:
        return self.faulty(deadline_s, keys)[0]

    def faulty(
        self, deadline_s: float = DEADLINE_S, keys: Sequence[str] = ("",)
    ) -> tuple[ChainedLog, Faulty]:
        """A log, and the network before its engine."""
        network = Faulty(created(self.engine()))
        self._skipping.networks.append(network)
        log = open_engine(network, self.clock, deadline_s, keys)
        self._opened.append(log)
        return log, network

    def close(self) -> None:
        for log in self._opened:
            log.close()


class MemoryPlace(Place):
    def __init__(self) -> None:
        super().__init__(Elapsing())
        self.name = "memory"
        self.shelf = Shelf()

    def engine(self) -> Engine:
        return MemoryEngine(self.shelf)

    def lose(self, seq: int) -> None:
        del self.shelf.frames[seq]

    def delete(self) -> None:
        self.shelf.frames.clear()
        self.shelf.is_made = False


class JetStreamPlace(Place):
    def __init__(self, servers: Nats) -> None:
        super().__init__()
        self.servers = servers
        self.name = next(NAMES)

    def engine(self) -> Engine:
        return JetStream(self.servers.url, self.name)

    def lose(self, seq: int) -> None:
        said = self.servers.api(f"STREAM.MSG.DELETE.{self.name}", {"seq": seq})
        assert said.get("success"), said

    def delete(self) -> None:
        assert self.servers.api(f"STREAM.DELETE.{self.name}", {})["success"]

    def losing(self) -> None:
        """Have the stream made so that a record can be taken out."""
        config = {
            "name": self.name,
            "subjects": [f"{self.name}.log"],
            "storage": "file",
            "discard": "new",
            "num_replicas": 3,
        }
        assert "error" not in self.servers.api(f"STREAM.CREATE.{self.name}", config)


class PostgresPlace(Place):
    def __init__(self, servers: Postgres) -> None:
        super().__init__()
        self.servers = servers
        self.name = next(NAMES)

    def engine(self) -> Engine:
        return PostgresEngine(self.servers.url_of_all, self.name)

    def lose(self, seq: int) -> None:
        self.servers.asked(f"DELETE FROM {self.name}_log WHERE seq = {seq}")

    def delete(self) -> None:
        self.servers.asked(f"DROP TABLE {self.name}_log")


@pytest.fixture
def jetstream(nats_servers: Nats) -> Iterator[JetStreamPlace]:  # noqa: F811
    place = JetStreamPlace(nats_servers)
    yield place
    place.close()
    nats_servers.delete(place.name)


@pytest.fixture
def postgres(postgres_servers: Postgres) -> Iterator[PostgresPlace]:  # noqa: F811
    place = PostgresPlace(postgres_servers)
    yield place
    place.close()


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "memory":
        return MemoryPlace()
    found: Place = request.getfixturevalue(request.param)
    return found
