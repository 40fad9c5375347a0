"""`client.endpoints` and `deliver_to` against the real server, with a receiver of ours behind them."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from aiohttp import web

import fasti
from fasti.testing import FastiServer, until
from tests.sdk.test_cli import fasti_cli, ok
from tests.support.http import open_site


@pytest.fixture
def settings() -> dict[str, object]:
    return {"webhook.allow_private": "true"}


@pytest.fixture
def got() -> list[tuple[str, str]]:
    """(path, body) of what was posted."""
    return []


@pytest.fixture
async def hook(got: list[tuple[str, str]]) -> AsyncIterator[str]:
    async def take(request: web.Request) -> web.Response:
        got.append((request.path, await request.text()))
        return web.Response(status=500 if request.path == "/bad" else 204)

    app = web.Application()
    app.router.add_post("/{path:.*}", take)
    async with open_site(app) as made:
        yield made


async def test_messages_are_posted_where_they_say(
    server: FastiServer, hook: str, got: list[tuple[str, str]]
) -> None:
    async with server.client() as c:
        made = await c.endpoints.put(
            "api",
            f"{hook}/a",
            secret="whsec_" + "A" * 32,
            headers={"x-of": "shop"},
            concurrency=2,
            rate=100,
            timeout=timedelta(seconds=5),
            body="raw",
            retry={"max_attempts": 2, "backoff": ["1s", 30]},
        )
        assert (made.name, made.url, made.state) == ("api", f"{hook}/a", "active")
        assert made.raw["retry"] == {"max_attempts": 2, "backoff": [1.0, 30.0]}
        assert made.raw["secret"] is not None
        again = await c.endpoints.put("api", f"{hook}/a")
        assert again.raw["secret"] is not None, "left out it stays"
        assert (await c.endpoints.put("api", f"{hook}/a", secret="")).raw["secret"] is None
        assert (await c.endpoints.test("api"))["ok"]
        got.clear()
        m = await c.messages.schedule(payload={"n": 1}, deliver_to="api", delay=60)
        many = [{"payload": 2, "deliver_to": "api", "delay": 60}]
        more = [fasti.NewMessage(payload=3, deliver_to=f"{hook}/url", delay=60)]
        assert await c.messages.schedule_many(many) == await c.messages.schedule_many(more) == 1
        await c.schedules.put("each", every=60, payload="4", deliver_to="api")
        assert m.raw["deliver_to"] == "api"
        await server.advance(seconds=60)
        await until(lambda: len(got) == 4)
        assert sorted(got) == [("/a", "2"), ("/a", "4"), ("/a", '{"n":1}'), ("/url", "3")]
        await c.schedules.delete("each")
        assert (await c.endpoints.pause("api")).state == "paused"
        await c.messages.schedule("t/1", "5", deliver_to="api")
        await asyncio.sleep(0.2)
        assert len(got) == 4
        assert (await c.endpoints.resume("api")).state == "active"
        await until(lambda: got[-1] == ("/a", "5"))
        await c.endpoints.replay("api", timedelta(hours=1))
        await until(lambda: len(got) == 9)
        assert [e.name async for e in c.endpoints.list()] == ["api"]
        await c.endpoints.delete("api")
        with pytest.raises(fasti.NotFound):
            await c.endpoints.get("api")
        with pytest.raises(fasti.BadArgument, match=r"^topic "):
            await c.messages.schedule(payload="x")
        with pytest.raises(fasti.BadArgument, match=r"^topic "):
            await c.schedules.put("each", every=60)
        with pytest.raises(fasti.Refused, match="deliver_to"):
            await c.messages.schedule(payload="x", deliver_to="ftp://example.com")


async def test_the_command_line(server: FastiServer, hook: str, got: list[tuple[str, str]]) -> None:
    at = ("--url", server.url, "-o", "json")
    await ok("endpoint", "put", "api", f"{hook}/a", "--max-attempts", "3", "--timeout", "5s", *at)
    told = json.loads(await ok("endpoint", "test", "api", *at))
    assert told["ok"]
    assert len(got) == 1
    await ok("message", "schedule", "", "hello", "--deliver-to", "api", *at)
    await until(lambda: got[-1] == ("/a", "hello"))
    made = json.loads(await ok("endpoint", "put", "api", f"{hook}/a", "--body", "envelope", *at))
    assert made["body"] == "envelope"
    await ok("message", "schedule", "", "hello", "--deliver-to", "api", *at)
    await until(lambda: got[-1][1].startswith('{"type":"$deliver/api",'))
    assert json.loads(got[-1][1])["data"] == "hello"
    assert (await fasti_cli("endpoint", "show", "other", *at))[0] == 1
