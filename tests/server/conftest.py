"""A whole server in one process: a store in RAM, a simulated clock, HTTP by a test client, no MQTT sockets.

A test of checkpoints, files or a damaged disk overrides `ram` by None.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from server.delivery.shared import Group
from server.delivery.subscriber import Subscriber
from server.engine.clock import SimulatedClock
from server.http.front import HttpListener
from server.http.turns import Turns
from server.net.acceptor import Ports
from server.net.loop_time import LoopTime
from server.observe.tracing import Traces
from server.rounds import app as rounds
from server.rounds.app import App
from server.serving import CLOSE_S
from server.settings.config import Config
from server.settings.kinds import Address
from server.site import build_site
from tests.support.http import Answer, Http
from tests.support.link import FakeLink
from tests.support.rig import Rig
from tests.support.served import Served, everywhere, serve
from tests.support.stores import FailingMemory, FailingStore
from timeline.session import Subscription

START_MS = 1_795_248_000_000
"""2026-11-21T08:00:00Z."""
START = "2026-11-21T08:00:00.000Z"
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
NDJSON = "application/x-ndjson"
rounds.RETRY_S = 0.1  # a store that has failed is opened again so soon
LISTENING = [Address("127.0.0.1", 1883, "mqtt")]


async def until(holds: Callable[[], object]) -> None:
    """Waits for other tasks, threads and sockets."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


class Running:
    """An app with its HTTP side."""

    def __init__(
        self, app: App, clock: SimulatedClock, http: TestClient[web.Request, web.Application]
    ) -> None:
        self.app = app
        self.clock = clock
        self.http = http
        self._calls = Http(http)
        self.store: FailingStore | FailingMemory = app.core.opened.store  # type: ignore[assignment]

    async def call(
        self, method: str, path: str, body: object = None, *, status: int | None = 200, **headers: str
    ) -> Answer:
        """Send; `body` bytes go as they are, anything else as JSON. The status must be `status`.

        Headers by name with `_` for `-`.
        """
        return await self._calls.call(method, path, body, status=status, **headers)

    async def schedule(self, topic: str = "a/b", payload: object = "hi", **members: object) -> str:
        """The id of a new message."""
        return await self._calls.schedule(topic, payload, **members)

    async def batch(self, items: Sequence[Mapping[str, object]]) -> list[str]:
        """The ids of new messages."""
        made = await self._calls.schedule_many(items)
        assert made.status == 201, made
        return list(made.body["ids"])

    @property
    def front(self) -> "Fronted":
        """Where its connections begin."""
        assert isinstance(self.http.server, Fronted)
        return self.http.server

    def session(self, client_id: str) -> Subscriber:
        """It is there."""
        found = self.app.core.sessions.get(client_id)
        assert found is not None, client_id
        return found

    def group(self, text: str) -> Group:
        """It is there."""
        found = self.app.core.groups.get(text)
        assert found is not None, text
        return found

    async def writable(self) -> None:
        """Until the store takes writes again."""
        await until(lambda: self.app.core.writer.broken is None)
        await self.app.quiet()

    async def pass_time(self, by_ms: int) -> None:
        """Let the clock jump and everything that is due be dispatched."""
        self.clock.now_ms += by_ms
        await self.app.quiet()

    async def connect(
        self, client_id: str, *filters: str, expiry_s: int = 3_600, window: int = 100
    ) -> tuple[Subscriber, FakeLink]:
        """A session with a connection."""
        link, core = FakeLink(), self.app.core
        subscriber, _ = core.clients.claim(
            link, client_id, clean_start=False, expiry_s=expiry_s, window=window
        )
        assert subscriber is not None
        core.clients.resume(subscriber)
        for topic_filter in filters:
            core.subscriptions.subscribe(
                subscriber, Subscription(topic_filter, 1, core.horizon.position), None
            )
        if expiry_s:
            core.clients.store(subscriber, lambda durable: None)
        await self.app.quiet()
        return subscriber, link


class Fronted(TestServer):
    """The HTTP side as it is served: connections begin at the front."""

    def __init__(self, app: App) -> None:
        site, self._desk = build_site(app, LISTENING)
        super().__init__(site)
        self._of = app

    async def start_server(self, **kwargs: Any) -> None:
        await super().start_server(auto_decompress=False, **kwargs)
        core = self._of.core
        time, share = LoopTime(monotonic, core.part), core.clients.connections
        self.listener = HttpListener(core.config, self._of.pool, time, self._of.metrics, Ports(), share)
        await self.listener.start(self.app, self._desk)
        self.front_port = await self.listener.open(Address("127.0.0.1", 0), None)
        self._root = URL.build(scheme="http", host="127.0.0.1", port=self.front_port)

    async def close(self) -> None:
        await self.listener.close(CLOSE_S)
        await super().close()


@asynccontextmanager
async def running(
    path: Path,
    config: Config,
    clock: SimulatedClock,
    traces: Traces | None = None,
    store: FailingMemory | None = None,
) -> AsyncIterator[Running]:
    """A server on a data directory, its rows in `store` if there is one; stopped in order at the end."""
    faults: list[str] = []
    path.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    config = replace(config, store=replace(config.store, dir=str(path)))
    app = App(
        config,
        clock,
        FailingStore(path) if store is None else store,
        fatal=lambda: faults.append("the server had to stop"),
        traces=traces,
    )
    await app.start()
    async with TestClient(Fronted(app)) as http:
        yield Running(app, clock, http)
    await app.stop()
    assert not faults


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(START_MS)


@pytest.fixture
def rig() -> Rig:
    """A server whose clients speak MQTT, without sockets, with the settings as they are."""
    return Rig()


def with_settings(**sections: Mapping[str, object]) -> pytest.MarkDecorator:
    """A test, a class or a module with other settings: `with_settings(limits={"pending": 2})`."""
    return pytest.mark.settings(sections)


def changed(config: Config, request: pytest.FixtureRequest) -> Config:
    """As `with_settings` says; what is nearest to the test counts."""
    for mark in reversed(list(request.node.iter_markers("settings"))):
        for name, values in mark.args[0].items():
            config = replace(config, **{name: replace(getattr(config, name), **values)})
    return config


@pytest.fixture
def config(request: pytest.FixtureRequest) -> Config:
    return changed(Config(), request)


@pytest.fixture
def settings() -> Config:
    """Of `served`; overridden where a test needs other limits."""
    return everywhere(connect_rate=0)


@pytest.fixture
async def served(tmp_path: Path, settings: Config) -> AsyncIterator[Served]:
    """A server with a listener of each kind, in this process."""
    async with serve(tmp_path / "data", settings) as made:
        yield made


@pytest.fixture
def ram() -> FailingMemory | None:
    """Where the server's rows are; None: on disk."""
    return FailingMemory()


@pytest.fixture
async def server(
    tmp_path: Path, config: Config, clock: SimulatedClock, ram: FailingMemory | None
) -> AsyncIterator[Running]:
    async with running(tmp_path / "data", config, clock, store=ram) as made:
        yield made


Start = Callable[[], AbstractAsyncContextManager[Running]]


@pytest.fixture
def start(tmp_path: Path, config: Config, clock: SimulatedClock) -> Start:
    """Each time it is called, a server on the data on disk that the one before left."""
    return partial(running, tmp_path / "data", config, clock)


TOGETHER = pytest.mark.asyncio(loop_scope="module")
"""For tests that share the server `lasting`."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One for the refusals of a module: nothing that they send changes anything."""
    path = tmp_path_factory.mktemp("lasting")
    async with running(path, Config(), SimulatedClock(START_MS), store=FailingMemory()) as made:
        yield made


@pytest.fixture
def turns_taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one each time that a call waits for its turn; each turn is over at once."""
    taken: list[str] = []
    wait = Turns.wait

    async def counted(turns: Turns, client: str) -> None:
        taken.append(client)
        await wait(turns, client)

    monkeypatch.setattr(Turns, "wait", counted)
    monkeypatch.setattr("server.http.turns.Turn.is_over", lambda *_: True)
    return taken
