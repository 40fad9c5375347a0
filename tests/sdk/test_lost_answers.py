"""Answers that are lost: the server has committed a request, is killed, and is asked again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

import fasti
from fasti.transport import Transport
from tests.sdk.conftest import PATIENT
from tests.sdk.test_against_server import Server, server

__all__ = ["server"]

AT = datetime(2035, 1, 1, tzinfo=UTC)


def losing(server: Server, lost: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer to a POST is lost, with a kill -9 of the server that has given it."""
    real: Callable[..., Any] = Transport._request

    @asynccontextmanager
    async def request(
        self: Transport, base: str, method: str, *others: Any, **sent: Any
    ) -> AsyncIterator[Any]:
        async with real(self, base, method, *others, **sent) as response:
            if method == "POST" and not lost:
                lost.append(await response.json())
                await asyncio.to_thread(server.stop, kill=True)
                await asyncio.to_thread(server.start)
                raise aiohttp.ServerDisconnectedError
            yield response

    monkeypatch.setattr(Transport, "_request", request)


async def test_of_calls_that_shared_a_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own answer of the first request: its id, or why it was refused."""
    lost: list[Any] = []
    async with fasti.Client(server.url, retry=PATIENT) as c:
        losing(server, lost, monkeypatch)
        calls = [
            *[c.messages.schedule(f"t/{n}", n, at=AT + timedelta(seconds=n)) for n in range(20)],
            c.messages.schedule("bad/#", 1, at=AT),
            c.messages.schedule("own", 1, at=AT, key="own"),
            *[c.messages.schedule(f"t/{n}", n, at=AT + timedelta(seconds=n)) for n in range(20, 40)],
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(found[20], fasti.Refused)
        messages = [one for one in found if isinstance(one, fasti.Message)]
        assert [one.id for one in messages] == [one["id"] for one in lost[0]["results"] if "id" in one]
        assert len({one.id for one in messages}) == 41
        assert all(one.replayed for one in messages)
        assert [one.deliver_at for one in messages[:20]] == [AT + timedelta(seconds=n) for n in range(20)]
        assert await c.messages.count() == 41


async def test_of_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Any] = []
    async with fasti.Client(server.url, retry=PATIENT) as c:
        losing(server, lost, monkeypatch)
        made = await c.messages.schedule("t", 1, at=AT)
        assert (made.id, made.replayed) == (lost[0]["id"], True)
        assert await c.messages.count() == 1


async def test_of_many(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Any] = []
    async with fasti.Client(server.url, retry=PATIENT) as c:
        losing(server, lost, monkeypatch)
        items = [fasti.NewMessage(topic=f"t/{n}", payload=n, at=AT) for n in range(700)]
        assert await c.messages.schedule_many(items, batch=500) == 700
        assert lost[0]["accepted"] == 500
        assert await c.messages.count() == 700
