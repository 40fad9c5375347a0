"""The pages with code of two houses side by side, of workers and of places: ours is run as it stands.

Blocks of `python fasti` are run in order, each page in a namespace of its own, with a server whose clock is
simulated. What a reader need not see is in a comment behind the block: `<!-- check` and the code that moves
the clock and looks whether it is so. https://api.example.org is a receiver of ours.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import inspect
import os
import re
import sys
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import fasti
from fasti.testing import FastiServer, until
from tests.support.sdk_forked import forked  # noqa: F401

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
COMING = sorted((ROOT / "docs").glob("coming-from-*.md"))
PAGES = [*COMING, *(ROOT / "docs" / name for name in ("workers.md", "places.md", "order.md"))]
BLOCK = re.compile(r"^(?:```python fasti|<!-- check)\n(.*?)^(?:```|-->)$", re.DOTALL | re.MULTILINE)
HEADS = (
    *("Receive", "Later", "Retries with back-off", "Cancel", "Dead letters"),
    *("Again and again", "Priorities"),
)
"""The headings of each of them, in this order."""
WAIT_S = 30
SETTINGS = {"coming-from-qstash": {"webhook.allow_private": "true"}}


class Receiver:
    """What https://api.example.org is: it keeps what it is sent, and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes, dict[str, str]]] = []
        self.answers: list[int] = []

    async def start(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        said = {name.lower(): value for name, value in request.headers.items()}
        self.got.append((request.path, await request.read(), said))
        return web.Response(status=self.answers.pop(0) if self.answers else 200)


def blocks(page: Path, base: str) -> list[tuple[int, str]]:
    """(line, code)"""
    text = page.read_text(encoding="utf-8").replace("https://api.example.org", base)
    return [(text.count("\n", 0, found.start()) + 1, found[1]) for found in BLOCK.finditer(text)]


async def run(code: str, name: str, line: int, names: dict[str, Any]) -> None:
    tree = compile("\n" * line + code, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(tree, names)
    if inspect.iscoroutine(result):
        async with asyncio.timeout(WAIT_S):
            await result


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_our_code_on_the_page_does_what_it_says(
    page: Path,
    tmp_path: Path,
    forked: None,  # noqa: F811
) -> None:
    tasks: list[asyncio.Task[Any]] = []

    def beside(work: Coroutine[Any, Any, Any]) -> None:
        tasks.append(asyncio.create_task(work))

    async def working(worker: fasti.Worker) -> None:
        """It runs, and is a member of its groups, whoever else is still there."""
        before = {member async for _, member in members()}
        beside(worker.run(signals=False))
        filters = {job.request.topic_filter for job in worker._jobs}
        await until(lambda: has_joined(filters, before))

    async def heard() -> None:
        """The server has stored all answers: a nack has none itself, and the clock may overtake it."""
        await until(is_nothing_in_flight)

    async def is_nothing_in_flight() -> bool:
        return not any([group.in_flight async for group in client.groups.list()])

    async def has_joined(filters: set[str], before: set[str]) -> bool:
        return filters <= {topic_filter async for topic_filter, member in members() if member not in before}

    async def members() -> AsyncIterator[tuple[str, str]]:
        """(filter, client id)"""
        async for group in client.groups.list():
            for member in group.members:
                yield group.filter, member["client_id"]

    receiver = Receiver()
    base = await receiver.start()
    command = [sys.executable, "-m", "server"]
    try:
        with FastiServer(
            command, tmp_path, SETTINGS.get(page.stem), start=datetime(2026, 11, 2, 9, tzinfo=UTC)
        ) as server:
            async with server.client() as client:
                names = {"fasti": fasti, "asyncio": asyncio, "base64": base64, "os": os, "c": client}
                names |= {"timedelta": timedelta, "datetime": datetime, "UTC": UTC, "server": server}
                names |= {"until": until, "beside": beside, "working": working, "receiver": receiver}
                names["heard"] = heard
                found = blocks(page, base)
                assert len(found) > 3
                for line, code in found:
                    await run(code, str(page), line, names)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await receiver.stop()


@pytest.mark.parametrize("page", COMING, ids=lambda page: page.stem)
def test_each_tells_of_the_same(page: Path) -> None:
    heads = re.findall(r"(?m)^## (.*)$", page.read_text(encoding="utf-8"))
    assert tuple(heads) == HEADS


def test_there_is_one_for_each() -> None:
    assert [page.stem.removeprefix("coming-from-") for page in COMING] == [
        "bullmq",
        "celery",
        "emqx",
        "qstash",
        "quartz",
        "sidekiq",
        "sqs",
        "temporal",
    ]
