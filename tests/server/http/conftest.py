"""A server that asks for keys."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.settings.config import Config
from tests.support.keys import KeysFile, with_keys
from tests.support.link import FakeLink
from tests.support.stores import FailingMemory
from timeline.session import Subscription

from ..conftest import Running, running


class Keyed:
    """A server that asks for keys, and its file."""

    def __init__(self, server: Running, file: KeysFile) -> None:
        self.server = server
        self.file = file
        self.keys: dict[str, str] = {}

    def add(self, name: str, *scopes: str, **fields: Any) -> str:
        self.keys[name] = self.file.add(name, *scopes, **fields)
        self.take()
        return name

    def take(self) -> None:
        ring = self.server.app.keyring
        ring.take(ring.read())

    def shown(self, name: str) -> dict[str, str]:
        """The header of who has that key."""
        return {"Authorization": f"Bearer {self.keys[name]}"}

    async def call(self, name: str, method: str, path: str, body: object = None, **more: Any) -> Any:
        return await self.server.call(method, path, body, **{**self.shown(name), **more})

    async def body(self, name: str, method: str, path: str, body: object = None, **more: Any) -> Any:
        return (await self.call(name, method, path, body, **more)).body

    async def schedule(self, name: str, topic: str, **members: object) -> str:
        body = {"topic": topic, "payload": "x", "deliver_in": 3_600, **members}
        made = await self.body(name, "POST", "/v1/messages", body, status=201)
        return str(made["id"])

    async def topics(self, name: str, query: str = "") -> list[str]:
        page = await self.body(name, "GET", f"/v1/messages?state=all{query}")
        return [message["topic"] for message in page["messages"]]


async def connected(keyed: Keyed, name: str, client_id: str, *filters: str) -> None:
    """A session whose client has shown the key of that name."""
    core, link = keyed.server.app.core, FakeLink()
    rights = keyed.server.app.keyring.rights_of(name, client_id)
    subscriber, _ = core.clients.claim(
        link, client_id, clean_start=False, expiry_s=3_600, window=10, rights=rights
    )
    assert subscriber is not None
    for text in filters:
        core.subscriptions.subscribe(subscriber, Subscription(text, 1, core.horizon.position), None)
    core.clients.store(subscriber, lambda durable: None)
    await keyed.server.app.quiet()


@pytest.fixture
def file(tmp_path: Path) -> KeysFile:
    return KeysFile(tmp_path / "keys.toml")


@pytest.fixture
async def keyed(
    tmp_path: Path, file: KeysFile, config: Config, clock: SimulatedClock, ram: FailingMemory | None
) -> AsyncIterator[Keyed]:
    """The key `ops` may do everything."""
    async with running(tmp_path / "keyed", with_keys(config, file.path), clock, store=ram) as server:
        made = Keyed(server, file)
        made.add("ops", "admin")
        yield made
