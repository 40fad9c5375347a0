"""Server-sent events: what they tell, to whom, how many there may be, and that they end."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from server.http.routes import events

from ..conftest import Running, until, with_settings
from .conftest import Keyed

PATH = "/v1/events"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVERY_S", 0.01)


@asynccontextmanager
async def stream(server: Running, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with server.http.get(PATH, headers=headers) as answer:
        assert answer.status == 200
        yield answer


async def figures(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """The next event's."""
    async with asyncio.timeout(30):
        event, data, end = [await answer.content.readline() for _ in range(3)]
    assert (event, end) == (b"event: figures\n", b"\n")
    found: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
    return found


async def test_tells_what_changes(server: Running) -> None:
    async with stream(server) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        first = await figures(answer)
        assert (first["pending"], first["dispatched"], first["store_writable"]) == (0, 0, True)
        await server.schedule(deliver_in="1m")
        while (now := await figures(answer))["pending"] != 1:
            pass
        await server.pass_time(60_000)
        while (now := await figures(answer))["dispatched"] != 1:
            pass
        assert (now["pending"], now["time"], now["behind_ms"]) == (0, "2026-11-21T08:01:00.000Z", 0)
        assert now["lateness"][0] == ["0.001", 1]
        assert now["lateness"][-1] == ["+Inf", 1]


@pytest.mark.long
async def test_nobody_is_behind_who_has_nothing_to_do(server: Running) -> None:
    """The horizon of such a server moves now and then only."""
    server.clock.now_ms += 150
    assert server.app.figures.moving().behind_ms == 0
    await server.schedule(deliver_in=1)
    await server.app.quiet()
    server.clock.now_ms += 1_150
    assert server.app.figures.moving().behind_ms >= 1_000
    await server.app.quiet()
    assert server.app.figures.moving().behind_ms == 0


async def test_ends_when_the_server_stops(server: Running) -> None:
    async with stream(server) as answer:
        await figures(answer)
        assert len(server.app.streams) == 1
        server.app.streams.stop()
        async with asyncio.timeout(30):
            await answer.content.read()
    assert len(server.app.streams) == 0


async def test_who_leaves_makes_room(server: Running) -> None:
    async with stream(server) as answer:
        await figures(answer)
    await until(lambda: not len(server.app.streams))


async def test_a_head_is_not_a_stream(server: Running) -> None:
    async with server.http.head(PATH) as answer:
        assert answer.status == 405


@with_settings(http={"idle_timeout_ms": 200})
async def test_who_does_not_read_is_cut(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it is what the socket takes and 64 KiB; then nothing is made for it any more."""
    made: list[int] = []

    def event(*_: object) -> bytes:
        made.append(1)
        return b": " + b"x" * (256 << 10) + b"\n\n"

    monkeypatch.setattr(events.Events, "_event", event)
    url = server.http.make_url(PATH)
    with socket.create_connection((url.host, url.port)) as deaf:
        deaf.sendall(f"GET {PATH} HTTP/1.1\r\nHost: {url.authority}\r\n\r\n".encode())
        async with asyncio.timeout(60):
            while not made:
                await asyncio.sleep(0.01)
            while len(server.app.streams):
                await asyncio.sleep(0.01)
        assert server.app.metrics.bounded["http.idle_timeout"] == 1
        assert len(made) < 100


@with_settings(http={"event_streams": 2})
async def test_a_client_leaves_room_for_others(server: Running) -> None:
    async with stream(server) as answer:
        await figures(answer)
        said = await server.call("GET", PATH, status=429)
        assert said.body["type"] == "/problems/over-quota"
        assert said.headers["Retry-After"] == "1"


@with_settings(http={"event_streams": 0})
async def test_they_can_be_forbidden(server: Running) -> None:
    await server.call("GET", PATH, status=429)


async def test_keys(keyed: Keyed) -> None:
    keyed.add("wide", "read")
    keyed.add("narrow", "read", deliver=["a/#"])
    async with stream(keyed.server, **keyed.shown("narrow")) as answer:
        assert set(await figures(answer)) == {"time", "horizon", "behind_ms"}
    async with stream(keyed.server, **keyed.shown("wide")) as answer:
        assert "pending" in await figures(answer)
        keyed.file.revoke("wide")
        keyed.take()
        async with asyncio.timeout(30):
            await answer.content.read()


async def test_a_stream_is_counted_and_not_timed(server: Running) -> None:
    """It takes as long as its client wants."""
    async with stream(server) as answer:
        await figures(answer)
        server.app.streams.stop()
        await answer.content.read()
    page = (await server.call("GET", "/metrics")).body.decode()
    assert 'fasti_http_answers_total{method="GET",route="/v1/events",status="200"} 1.0' in page
    assert 'fasti_http_seconds_count{route="/v1/events"' not in page


async def test_totals_are_for_who_sees_all_or_would_be_sent_them_over_mqtt(keyed: Keyed) -> None:
    rules = {"a/#": False, "a": False, "+/#": False, "#": True, "$SYS/#": True, "$SYS/broker/#": True}
    for n, rule in enumerate(rules):
        name = keyed.add(f"key{n}", "read", deliver=[rule])
        async with stream(keyed.server, **keyed.shown(name)) as answer:
            has_totals = "pending" in await figures(answer)
        metrics = await keyed.body(name, "GET", "/metrics")
        assert (has_totals, b"fasti_messages_pending" in metrics) == (rules[rule],) * 2, rule
