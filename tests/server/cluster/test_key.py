"""The cluster's key: asked for, and shown to others."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from server.auth.backoff import FREE
from server.cluster import key as key_module
from server.cluster.key import HELD_MAX, HOLD_S, ClusterKey
from server.cluster.members import MEMBERS_MAX
from server.cluster.reports import CALL_S
from server.http.problems import problem_middleware

SECRET = "k" * 32


class Naps:
    """Waits that end when the test says so."""

    def __init__(self) -> None:
        self.spans: list[float] = []
        self.wake = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.spans.append(seconds)
        await self.wake.wait()


@pytest.fixture
def naps() -> Naps:
    return Naps()


@pytest.fixture
def key(naps: Naps) -> ClusterKey:
    return ClusterKey([SECRET], lambda: 100.0, naps.sleep)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as opened:
        yield opened


@asynccontextmanager
async def asking(key: ClusterKey) -> AsyncIterator[str]:
    """A node that asks for the key."""

    async def answer(request: web.Request) -> web.Response:
        await key.check(request)
        return web.Response(text="shown")

    site = web.Application(middlewares=[problem_middleware])
    site.router.add_get("/", answer)
    async with TestServer(site) as server:
        yield f"http://127.0.0.1:{server.port}/"


async def status(session: aiohttp.ClientSession, url: str, said: str | None) -> int:
    headers = {} if said is None else {"Authorization": said}
    async with session.get(url, headers=headers) as answer:
        return answer.status


def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    return (one.getMessage() for one in caplog.records if one.levelname == "WARNING")


async def until_naps(naps: Naps, count: int) -> None:
    async with asyncio.timeout(60):
        while len(naps.spans) < count:
            await asyncio.sleep(0)


async def test_a_wrong_key_is_logged_and_then_held_back(
    key: ClusterKey, naps: Naps, session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking(key) as url:
        for _ in range(FREE):
            assert await status(session, url, "Bearer wrong") == 401
        assert list(warnings(caplog)) == ["cluster.key: wrong key from 127.0.0.1"] * FREE
        assert all(
            one.__dict__["by"] == "127.0.0.1" for one in caplog.records if "cluster.key" in one.message
        )
        assert not naps.spans
        slow = asyncio.ensure_future(status(session, url, "Bearer wrong"))
        await until_naps(naps, 1)
        assert naps.spans == [HOLD_S]
        assert await status(session, url, f"Bearer {SECRET}") == 200, "the right key never waits"
        assert await status(session, url, None) == 401, "nobody tries a key"
        assert not slow.done()
        naps.wake.set()
        assert await slow == 401
    assert SECRET not in caplog.text
    assert "Bearer" not in caplog.text


async def test_answers_that_are_held_back_are_bounded(
    key: ClusterKey, naps: Naps, session: aiohttp.ClientSession
) -> None:
    async with asking(key) as url:
        for _ in range(FREE):
            await status(session, url, "Bearer wrong")
        slow = [asyncio.ensure_future(status(session, url, "Bearer wrong")) for _ in range(HELD_MAX)]
        await until_naps(naps, HELD_MAX)
        with pytest.raises(aiohttp.ClientError):
            await status(session, url, "Bearer wrong")
        assert await status(session, url, f"Bearer {SECRET}") == 200
        assert len(naps.spans) == HELD_MAX
        naps.wake.set()
        assert await asyncio.gather(*slow) == [401] * HELD_MAX
        assert await status(session, url, "Bearer wrong") == 401, "there is room again"


async def test_a_key_of_other_bytes_is_wrong(key: ClusterKey) -> None:
    """A header that is not UTF-8 is no fault of ours."""
    async with asking(key) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.close()


async def test_two_keys_are_taken_and_the_first_is_sent() -> None:
    key = ClusterKey(["new" * 8, "old" * 8])
    assert key.headers("https://a") == {"Authorization": "Bearer " + "new" * 8}
    async with asking(key) as url, aiohttp.ClientSession() as session:
        for said, told in (("new", 200), ("old", 200), ("any", 401)):
            assert await status(session, url, f"Bearer {said * 8}") == told


def test_a_node_with_a_wrong_key_hears_why() -> None:
    assert HOLD_S < CALL_S


def test_a_node_warns_before_it_shows_the_key_over_plain_http(
    key: ClusterKey, caplog: pytest.LogCaptureFixture
) -> None:
    plain, inside = "http://10.0.0.2:8080", "http://127.0.0.1:8080"
    for url in (plain, "https://10.0.0.3:8080", inside, "http://[::1]:80", "http://localhost", plain):
        assert key.headers(url) == {"Authorization": f"Bearer {SECRET}"}
    (line,) = warnings(caplog)
    assert line.startswith(f"cluster.key is sent to {plain} over plain http")
    assert caplog.records[0].name == key_module.__name__


def test_the_urls_that_were_warned_of_are_bounded(key: ClusterKey) -> None:
    for number in range(3 * MEMBERS_MAX):
        key.headers(f"http://10.0.0.2:{number}")
        assert len(key._warned) <= MEMBERS_MAX
