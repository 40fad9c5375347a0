"""A server that posts to a receiver of the test's own."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from server.settings.config import Config, Webhook
from tests.server.conftest import Running, changed
from tests.support.receiver import Receiver, receiving


@pytest.fixture
def config(request: pytest.FixtureRequest) -> Config:
    """Its posts have ten real minutes: one that failed would wait for a time that only a test lets pass."""
    posting = replace(Config(), webhook=Webhook(allow_private=True, timeout_ms=600_000))
    return changed(posting, request)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


async def put(
    server: Running, receiver: Receiver, name: str = "billing", **members: object
) -> dict[str, Any]:
    answer = await server.call("PUT", f"/v1/endpoints/{name}", {"url": receiver.url(), **members}, status=201)
    return dict(answer.body)


async def shown(server: Running, name: str = "billing") -> dict[str, Any]:
    return dict((await server.call("GET", f"/v1/endpoints/{name}")).body)


async def settled(server: Running) -> None:
    """Until nothing is under way and what came of it is durable."""
    async with asyncio.timeout(60):
        while server.app.webhooks.under_way or any(
            group.session.flights for group in server.app.core.groups if group.is_endpoint
        ):
            await asyncio.sleep(0.005)
    await server.app.quiet()


async def dead(server: Running) -> list[dict[str, Any]]:
    return list((await server.call("GET", "/v1/dead")).body["messages"])
