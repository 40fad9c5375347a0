"""What becomes of connections when the process runs out of file descriptors: shed, said, and then on."""

import asyncio
import logging
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from server.fair import Part
from server.net.acceptor import FILES, Acceptor, Ports
from server.net.crowd import Crowd, http_bounds
from server.net.loop_time import LoopTime
from server.net.opening import Opening
from server.settings.config import Config
from server.settings.kinds import Address


class Echo(Opening):
    """Says what it is told."""

    def __init__(self) -> None:
        self.owner = "127.0.0.1"
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


@pytest.fixture
def bounded() -> Counter[str]:
    return Counter()


@pytest.fixture
async def port(bounded: Counter[str]) -> AsyncIterator[int]:
    crowd = Crowd[Any](http_bounds(Config().http), bounded, lambda _: None)
    loop_time = LoopTime(time.monotonic, Part())
    acceptor = Acceptor(
        crowd, loop_time, Ports(), needs_header=True, handshake_bound="a.setting", handshake_s=1
    )
    yield await acceptor.open(Address("127.0.0.1", 0), lambda peer: Echo(), None)
    acceptor.close()


async def test_a_kept_port_is_never_refused_while_what_serves_it_changes(bounded: Counter[str]) -> None:
    ports, crowd = Ports(), Crowd[Any](http_bounds(Config().http), bounded, lambda _: None)
    known = await ports.keep(Address("127.0.0.1", 0))

    async def served() -> Acceptor:
        loop_time = LoopTime(time.monotonic, Part())
        acceptor = Acceptor(crowd, loop_time, ports, needs_header=True, handshake_bound="a", handshake_s=1)
        assert await acceptor.open(known, lambda peer: Echo(), None) == known.port
        return acceptor

    first = await served()
    assert await answers(known.port)
    first.close()
    waits = asyncio.create_task(answers(known.port))
    await asyncio.sleep(0)
    second = await served()
    assert await waits
    second.close()
    ports.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", known.port)


@pytest.fixture
def files() -> Iterator[list[int]]:
    """Descriptors that are given back in the end, as the limit is."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    yield held
    for one in held:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def answers(port: int) -> bool:
    """Whether a new connection is served."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        try:
            return await reader.read(1) == b"x"
        except ConnectionError:
            return False
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def test_the_last_descriptors_are_not_for_connections(
    port: int, bounded: Counter[str], files: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    files.append(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 30, hard))
    while files[-1] < free + 25:
        files.append(os.open(os.devnull, os.O_RDONLY))
    with caplog.at_level(logging.WARNING):
        assert not await answers(port)
    assert f"out of file descriptors, {free + 30} may be open" in caplog.text
    assert bounded == {FILES: 1}
    while len(files) > 1:
        os.close(files.pop())
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 200, hard))
    assert await answers(port)


async def test_without_any_descriptor_a_client_is_still_told(
    port: int, bounded: Counter[str], files: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The client's own socket is made first: it needs one, too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    loop = asyncio.get_running_loop()
    with (
        socket.socket() as late,
        caplog.at_level(logging.WARNING),
    ):
        late.setblocking(False)
        with suppress(OSError):
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
                resource.setrlimit(resource.RLIMIT_NOFILE, (files[-1] + 1, hard))
        await loop.sock_connect(late, ("127.0.0.1", port))
        async with asyncio.timeout(60):
            with suppress(ConnectionError):
                assert await loop.sock_recv(late, 1) == b""
    assert "out of file descriptors" in caplog.text
    assert bounded == {FILES: 1}
    writer.write(b"y")
    assert await reader.read(1) == b"y"
    while files:
        os.close(files.pop())
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else 1_024, hard))
    assert await answers(port)
    writer.close()
    await writer.wait_closed()
