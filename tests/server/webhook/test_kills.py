"""Posts and the end of the process that makes them, in every way."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shards.rocks import RocksStore
from shards.store import Table
from tests.support.http import Http, http
from tests.support.receiver import Behave, Receiver, answer, receiving, silent
from tests.support.server import serving

pytestmark = pytest.mark.process

SETTINGS = {"webhook.allow_private": "true"}
RETRY = {"max_attempts": 5, "backoff": ["500ms"]}


async def prepare(calls: Http, receiver: Receiver) -> None:
    body = {"url": receiver.url(), "retry": RETRY, "timeout": "30m"}
    await calls.call("PUT", "/v1/endpoints/hook", body, status=201)


async def noted(calls: Http) -> None:
    """Until the server has had the time to write where the endpoint stands."""
    await asyncio.sleep(0.5)
    await calls.schedule("other")


def slowly(seconds: float) -> Behave:
    async def behave(got: Any, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(seconds)
        return await answer(200)(got, writer)

    return behave


@pytest.mark.parametrize("target", ["hook", "url"])
async def test_what_was_under_way_at_a_kill_is_posted_again(tmp_path: Path, target: str) -> None:
    data = tmp_path / "data"
    async with receiving() as receiver:
        receiver.script = [silent]
        deliver_to = receiver.url() if target == "url" else target
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            await prepare(calls, receiver)
            name = await calls.schedule("a", "x", deliver_to=deliver_to)
            await receiver.posts(1)
            await noted(calls)
            server.kill()
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            again = (await receiver.posts(2))[1]
            assert (again.headers["webhook-id"], again.headers["fasti-attempt"]) == (name, "2")
            await noted(calls)
            server.kill()
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            await calls.schedule("a", "y", deliver_to=deliver_to)
            assert (await receiver.posts(3))[2].body == b"y"
            await noted(calls)
            assert len(receiver.got) == 3


async def test_a_retry_waits_over_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with receiving() as receiver:
        receiver.script = [answer(503, "Retry-After: 3")]
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            await prepare(calls, receiver)
            name = await calls.schedule("a", "x", deliver_to="hook")
            await receiver.posts(1)
            await noted(calls)
            server.kill()
        assert len(receiver.got) == 1
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            again = (await receiver.posts(2))[1]
            assert (again.headers["webhook-id"], again.headers["fasti-attempt"]) == (name, "2")


async def test_a_stop_waits_for_what_is_under_way(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with receiving() as receiver:
        receiver.behave = slowly(0.5)
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            await prepare(calls, receiver)
            await calls.schedule("a", "x", deliver_to="hook")
            await receiver.posts(1)
            assert await server.stopped() == 0
        receiver.behave = answer(200)
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            await calls.schedule("a", "y", deliver_to="hook")
            assert (await receiver.posts(2))[1].body == b"y"
            await noted(calls)
            assert [got.body for got in receiver.got] == [b"x", b"y"]


async def test_a_pause_and_an_endpoint_are_there_after_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with receiving() as receiver:
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            await prepare(calls, receiver)
            await calls.call("POST", "/v1/endpoints/hook:pause", status=200)
            await calls.schedule("a", "x", deliver_to="hook")
            server.kill()
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            shown = (await calls.call("GET", "/v1/endpoints/hook", status=200)).body
            assert (shown["state"], shown["lag_messages"]) == ("paused", 1)
            assert shown["retry"] == {"max_attempts": 5, "backoff": [0.5]}
            assert receiver.got == []
            await calls.call("POST", "/v1/endpoints/hook:resume", status=200)
            await receiver.posts(1)


async def test_where_nothing_is_posted_nothing_is_lost(tmp_path: Path) -> None:
    data = tmp_path / "data"
    off = {"webhook.enabled": "false", **SETTINGS}
    async with receiving() as receiver:
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            await prepare(calls, receiver)
            await calls.schedule("a", "x", deliver_to="hook", deliver_in="1s")
            server.kill()
        async with serving(data, settings=off) as server, http(server.url) as calls:
            await asyncio.sleep(1.2)
            message = {"topic": "a", "payload": "y", "deliver_to": "hook"}
            refused = await calls.call("POST", "/v1/messages", message, status=422)
            assert refused.body["errors"][0]["field"] == "deliver_to"
            await calls.call("POST", "/v1/endpoints/hook:test", status=422)
            assert receiver.got == []
            assert await server.stopped() == 0
        async with serving(data, settings=SETTINGS):
            assert (await receiver.posts(1))[0].body == b"x"


async def test_an_endpoint_whose_place_is_lost_begins_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with receiving() as receiver:
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            await prepare(calls, receiver)
            assert await server.stopped() == 0
        store = RocksStore(data)
        batch = store.batch()
        batch.delete(Table.SESSIONS, b"\0share/$endpoint/hook")
        batch.delete(Table.CURSORS, b"\0share/$endpoint/hook")
        store.write(batch)
        store.flush()
        store.close()
        async with serving(data, settings=SETTINGS) as server, http(server.url) as calls:
            await calls.schedule("a", "x", deliver_to="hook")
            await receiver.posts(1)
            assert "read position lost" in server.output
