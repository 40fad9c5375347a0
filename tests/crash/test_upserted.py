"""Upserts with versions over kill -9: what was answered counts, and no older wish comes after a newer one."""

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.support.http import Http, http
from tests.support.server import serving

pytestmark = pytest.mark.short

KILLS = 20 if os.environ.get("FASTI_SOAK") else 1
KEYS = 20


class Key:
    """One key: the highest version that was answered, and what is under way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"/v1/messages/by-key/{name}"
        self.answered = self.asked = 0

    def body(self, version: int) -> dict[str, object]:
        """Every third wish is a cancel."""
        if version % 3 == 0:
            return {"cancel": True, "version": [version, 0]}
        at = f"20{28 + version % 7}-01-01T00:00:00Z"
        payload = f"{self.name} {version}"
        return {"topic": "a", "payload": payload, "deliver_at": at, "version": [version, 0]}

    async def go_on(self, calls: Http, chance: random.Random) -> None:
        """Wishes in order, some repeated and some late, until the server is gone."""
        while True:
            if self.answered and chance.random() < 0.3:
                old = chance.randint(1, self.answered)
                late = await calls.call("PUT", self.path, self.body(old))
                assert late.body["changed"] is False, "an older wish has changed something"
                continue
            self.asked = self.answered + 1
            told = await calls.call("PUT", self.path, self.body(self.asked))
            assert told.status in (200, 201)
            self.answered = self.asked

    async def look(self, calls: Http, pending: list[str]) -> None:
        """What is left is the last wish that was answered, or the one that nobody answered, which is said."""
        assert pending in (self.left(self.answered), self.left(self.asked))
        if not self.answered:
            return
        told = await calls.call("PUT", self.path, self.body(self.answered))
        assert (told.status, told.body["changed"]) == (200, False), "a version is forgotten"

    def left(self, version: int) -> list[str]:
        """What is pending after this wish."""
        return [f"{self.name} {version}"] if version % 3 else []


async def test_the_highest_version_counts_over_kills(tmp_path: Path) -> None:
    chance = random.Random()
    keys = [Key(f"k{number}") for number in range(KEYS)]
    for life in range(KILLS):
        async with serving(tmp_path / "data") as server, http(server.url) as calls:
            await looked(calls, keys)
            work = [asyncio.create_task(key.go_on(calls, chance)) for key in keys]
            wanted = (life + 1) * KEYS * 5
            while sum(key.answered for key in keys) < wanted and not any(task.done() for task in work):
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0, 0.1))
            server.kill()
            for task in work:
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    await task
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        await looked(calls, keys)
    assert sum(key.answered for key in keys) >= KILLS * KEYS * 4, "nothing was tried"


async def looked(calls: Http, keys: list[Key]) -> None:
    waiting: dict[str, list[str]] = {key.name: [] for key in keys}
    async for message in calls.each("state=pending"):
        waiting[message["payload"].split()[0]].append(message["payload"])
    for key in keys:
        await key.look(calls, waiting[key.name])
