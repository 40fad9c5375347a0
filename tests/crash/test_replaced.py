"""`?replace=true` over kill -9: a key has the cancelled message or the new one, never both, never none."""

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
KEYS = 40


class Key:
    """One key: what was answered of it, and what is under way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"/v1/messages/by-key/{name}"
        self.known = ""
        """The id of the last message that was answered."""
        self.is_cancelled = False
        self.asked = ""
        """What nobody has answered yet: a cancel or a replacement."""
        self.replaced = 0

    async def go_on(self, calls: Http) -> None:
        """Cancel and replace, again and again, until the server is gone."""
        while True:
            if self.known and not self.is_cancelled:
                self.asked = "cancel"
                await calls.call("DELETE", self.path, status=204)
                self.is_cancelled = True
            self.asked = "replace"
            body = {
                "topic": "a",
                "payload": self.name,
                "deliver_at": "2035-01-01T00:00:00Z",
                "key": self.name,
            }
            made = await calls.call("POST", "/v1/messages?replace=true", body, status=201)
            self.replaced += bool(self.known)
            assert made.body["id"] != self.known
            self.known, self.is_cancelled, self.asked = made.body["id"], False, ""

    async def look(self, calls: Http, pending: list[str]) -> None:
        """What is left is what was answered, or what was asked for last, whole."""
        assert len(pending) <= 1, f"{self.name}: two messages wait under one key: {pending}"
        found = await calls.call("GET", self.path)
        if found.status == 404:
            assert (self.known, pending) == ("", [])
            return
        name, state = found.body["id"], found.body["state"]
        assert pending == ([name] if state == "pending" else [])
        if name != self.known:
            assert (self.asked, state) == ("replace", "pending")
        elif state == "cancelled":
            assert self.is_cancelled or self.asked == "cancel"
        else:
            assert not self.is_cancelled, "a cancel that was answered is undone"
        self.known, self.is_cancelled, self.asked = name, state == "cancelled", ""


async def test_under_a_key_is_one_of_both(tmp_path: Path) -> None:
    chance = random.Random()
    keys = [Key(f"k{number}") for number in range(KEYS)]
    for life in range(KILLS):
        async with serving(tmp_path / "data") as server, http(server.url) as calls:
            await looked(calls, keys)
            work = [asyncio.create_task(key.go_on(calls)) for key in keys]
            wanted = (life + 1) * KEYS
            while sum(key.replaced for key in keys) < wanted and not any(task.done() for task in work):
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0, 0.1))
            server.kill()
            for task in work:
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    await task
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        await looked(calls, keys)
    assert sum(key.replaced for key in keys) >= KILLS * KEYS, "nothing was tried"


async def looked(calls: Http, keys: list[Key]) -> None:
    waiting: dict[str, list[str]] = {key.name: [] for key in keys}
    async for message in calls.each("state=pending"):
        waiting[message["payload"]].append(message["id"])
    for key in keys:
        await key.look(calls, waiting[key.name])
