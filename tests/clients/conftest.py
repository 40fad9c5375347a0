"""One real server for most tests here: each uses topics and client ids of its own.

It speaks both levels; a test that needs other settings, or does harm, starts a server of its own.
"""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.http import Http, http
from tests.support.mqtt import OnPublish, Peer, dial
from tests.support.server import ServerProcess, served

_names = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path: Path = tmp_path_factory.mktemp("clients") / "data"
    with served(path) as running:
        yield running
        assert running.stop() == 0, running.output
        assert "Traceback" not in running.output, running.output


@pytest.fixture
async def web(server: ServerProcess) -> AsyncIterator[Http]:
    async with http(server.url) as calls:
        yield calls


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic level and client id that no other test uses."""
    return f"t{next(_names)}"


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5"])
def level(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Room:
    """Opens connections to the shared server and closes them at the end of the test."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._peers: list[Peer] = []

    async def dial(self, level: int = 5, on_publish: OnPublish | None = None) -> Peer:
        peer = await dial(self.server.mqtt, level, on_publish)
        self._peers.append(peer)
        return peer

    async def connected(self, client_id: str = "", level: int = 5, *, expiry: int = 0) -> Peer:
        """A connection with CONNACK 0; `expiry` > 0: with a persistent session, not started anew."""
        peer = await self.dial(level)
        if level == 5:
            wanted = {"session_expiry": expiry} if expiry else {}
            connack = await peer.connect(client_id, clean=not expiry, **wanted)
        else:
            connack = await peer.connect(client_id, clean=not expiry)
        assert connack.reason == 0, connack
        return peer

    def close(self) -> None:
        for peer in self._peers:
            if not peer.is_closed:
                peer.drop()


@pytest.fixture
async def room(server: ServerProcess) -> AsyncIterator[Room]:
    opened = Room(server)
    yield opened
    opened.close()
