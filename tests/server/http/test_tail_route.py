"""`GET /v1/tail`: what it shows, to whom, its bounds, and that it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from server.http.routes import tail

from ..conftest import Running, until
from .conftest import Keyed

PATH = "/v1/tail"
Event = tuple[str, Any]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "EVERY_S", 0.01)
    monkeypatch.setattr(tail, "QUIET_S", 0.05)


@asynccontextmanager
async def stream(server: Running, topic: str = "#", **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with server.http.get(PATH, params={"topic": topic}, headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert await answer.content.readline() == b": open\n"
        assert await answer.content.readline() == b"\n"
        yield answer


async def told(answer: aiohttp.ClientResponse) -> Event:
    """The next event."""
    async with asyncio.timeout(30):
        while (event := await answer.content.readline()) in (b":\n", b"\n"):
            pass  # a comment
        data, end = [await answer.content.readline() for _ in range(2)]
    assert end == b"\n"
    return event.decode().removeprefix("event: ").strip(), json.loads(data.removeprefix(b"data: "))


async def message(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    event, found = await told(answer)
    assert event == "message"
    assert isinstance(found, dict)
    return found


async def test_shows_what_is_dispatched(server: Running) -> None:
    await server.schedule("a/before")
    await server.app.quiet()
    async with stream(server, "a/+") as answer:
        later = await server.schedule("a/1", "x", deliver_in="1m")
        await server.schedule("b/1")
        await server.schedule("a/2")
        await server.app.quiet()
        assert (await message(answer))["topic"] == "a/2"
        await server.pass_time(60_500)
        found = await message(answer)
        assert found == {
            "id": later,
            "topic": "a/1",
            "deliver_at": "2026-11-21T08:01:00.000Z",
            "late_ms": 500,
            "qos": 1,
            "payload": "x",
            "encoding": "text",
            "payload_bytes": 1,
            "is_cut": False,
        }


async def test_what_dispatch_drops_is_not_shown(server: Running) -> None:
    async with stream(server) as answer:
        await server.schedule("a/1", deliver_in="1m", late="drop")
        await server.schedule("a/2", deliver_in="1m", expires_in="1s")
        await server.schedule("a/3", deliver_in="1m")
        await server.pass_time(120_000)
        assert (await message(answer))["topic"] == "a/3"


async def test_payloads_are_cut_and_cannot_make_events(server: Running) -> None:
    async with stream(server) as answer:
        await server.schedule("a", "é" * 2_000)
        await server.app.quiet()
        found = await message(answer)
        assert (found["payload"], found["payload_bytes"], found["is_cut"]) == ("é" * 512, 4_000, True)
        await server.schedule("a", "x" + "é" * 2_000)
        await server.app.quiet()
        assert (await message(answer))["payload"] == "x" + "é" * 511
        body = b'{"topic":"a","payload":{"n":\r\n\n[1,\r2]},"deliver_in":0}'
        await server.call("POST", "/v1/messages", body, status=201, Content_Type="application/json")
        await server.app.quiet()
        assert (await message(answer))["payload"] == {"n": [1, 2]}


@pytest.mark.parametrize("bound", ["LOOK_EVENTS", "LOOK_BYTES", "LOOK_MESSAGES"])
async def test_what_is_beyond_a_bound_is_counted(
    server: Running, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(tail, bound, 1)
    monkeypatch.setattr(tail, "EVERY_S", 0.1)
    async with stream(server) as answer:
        for n in range(5):
            await server.schedule(f"a/{n}", deliver_in=60)
        await server.pass_time(60_000)
        first, second = await told(answer), await told(answer)
        assert [event for event, _ in (first, second)] == ["message", "skipped"]
        assert second[1] == {"messages": 4}


async def test_what_has_left_the_ring_is_counted(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "EVERY_S", 0.1)
    ring = server.app.core.tail
    async with stream(server) as answer:
        monkeypatch.setattr(ring, "max_entries", 4)
        for n in range(10):
            await server.schedule(f"a/{n}", deliver_in=60)
        await server.pass_time(60_000)
        events = [await told(answer) for _ in range(len(ring) + 1)]
        assert [event for event, _ in events] == ["message"] * len(ring) + ["skipped"]
        assert events[-1][1] == {"messages": 10 - len(ring)}


async def test_ends_when_the_server_stops_or_the_client_leaves(server: Running) -> None:
    async with stream(server) as answer:
        assert len(server.app.tails) == 1
        server.app.end_streams()
        async with asyncio.timeout(30):
            await answer.content.read()
    assert len(server.app.tails) == 0


async def test_who_leaves_makes_room(server: Running) -> None:
    async with stream(server):
        assert len(server.app.tails) == 1
    await until(lambda: not len(server.app.tails))


async def test_a_client_leaves_room_for_others(server: Running) -> None:
    async with stream(server), stream(server), stream(server), stream(server):
        await server.call("GET", PATH, status=429)


async def test_a_quiet_stream_is_written_to(server: Running) -> None:
    async with stream(server) as answer, asyncio.timeout(30):
        assert await answer.content.readline() == b":\n"


async def test_not_a_filter(server: Running) -> None:
    await server.call("GET", f"{PATH}?topic=a/%23/b", status=422)


async def test_keys(keyed: Keyed) -> None:
    keyed.add("narrow", "read", subscribe=["a/#"], deliver=["a/#"])
    keyed.add("hidden", "read", subscribe=["#"], deliver=["a/1"])

    async def send(*topics: str) -> None:
        for topic in topics:
            await keyed.schedule("ops", topic, deliver_in=0)
        await keyed.server.app.quiet()

    await keyed.call("narrow", "GET", PATH, status=403)
    async with (
        stream(keyed.server, "a/#", **keyed.shown("narrow")) as own,
        stream(keyed.server, "#", **keyed.shown("hidden")) as other,
    ):
        await send("b/1", "a/2", "a/1")
        assert [(await message(own))["topic"] for _ in range(2)] == ["a/2", "a/1"]
        assert (await message(other))["topic"] == "a/1"
        keyed.file.revoke("narrow")
        keyed.take()
        async with asyncio.timeout(30):
            assert b"event" not in await own.content.read()
        await send("a/1")
        assert (await message(other))["topic"] == "a/1"


async def test_a_narrow_key_gets_no_counts(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LOOK_MESSAGES", 1)
    monkeypatch.setattr(tail, "EVERY_S", 0.1)
    keyed.add("narrow", "read", deliver=["a/#"])
    async with stream(keyed.server, "a/#", **keyed.shown("narrow")) as answer:
        for _ in range(3):
            await keyed.schedule("ops", "b", deliver_in=60)
        await keyed.server.pass_time(60_000)
        assert await told(answer) == ("skipped", {"messages": None})
