"""Chains of work over kill -9: each message is acked with the next one and a result, so each chain has one
message at any time, and what is acked has its result."""

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
CHAINS = 20
JOBS = "/v1/groups/workers/messages"


class Chains:
    """How far each chain is: the step that was answered last, and the one that was asked for."""

    def __init__(self) -> None:
        self.answered = dict.fromkeys(range(CHAINS), 0)
        self.asked = dict.fromkeys(range(CHAINS), 0)
        self.ids: dict[tuple[int, int], object] = {}
        """Messages, by chain and step."""

    async def step(self, calls: Http, message: dict[str, object]) -> None:
        """Ack a message together with the next one of its chain."""
        chain, step = message["payload"]  # type: ignore[misc]
        assert step in (self.answered[chain], self.asked[chain]), (
            "a message is done and comes again, or is lost"
        )
        self.answered[chain], self.asked[chain] = step, step + 1
        self.ids[chain, step] = message["id"]
        body = {
            "result": {"step": step},
            "lease_ids": [message["lease_id"]],
            "then": [{"topic": f"jobs/{chain}", "payload": [chain, step + 1]}],
        }
        told = await calls.call("POST", f"{JOBS}:ack", body, status=200)
        assert told.body["acked"] == 1
        self.answered[chain] = step + 1

    async def work(self, calls: Http) -> None:
        """Until the server is gone."""
        while True:
            found = await calls.call("POST", f"{JOBS}:lease", {"max": 5, "wait": "1s", "lease": "1s"})
            if found.status == 200:
                await asyncio.gather(*(self.step(calls, one) for one in found.body["messages"]))


async def test_a_chain_has_one_message_at_any_time(tmp_path: Path) -> None:
    chance, chains = random.Random(), Chains()
    for life in range(KILLS):
        async with serving(tmp_path / "data") as server, http(server.url) as calls:
            if not life:
                await calls.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
                for chain in range(CHAINS):
                    await calls.call(
                        "POST", "/v1/messages", {"topic": f"jobs/{chain}", "payload": [chain, 0]}, status=201
                    )
            work = [asyncio.create_task(chains.work(calls)) for _ in range(3)]
            wanted = (life + 1) * CHAINS * 5
            while sum(chains.answered.values()) < wanted and not any(task.done() for task in work):
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0, 0.1))
            server.kill()
            for task in work:
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    await task
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        found: list[dict[str, object]] = []
        async with asyncio.timeout(60):
            while len(found) < CHAINS:
                more = await calls.call(
                    "POST", f"{JOBS}:lease", {"max": 100, "wait": "1s", "lease": "1h"}, status=200
                )
                found += more.body["messages"]
        left = await calls.call("POST", f"{JOBS}:lease", {"max": 100, "wait": "2s"}, status=200)
        assert left.body["messages"] == []
        steps = dict(one["payload"] for one in found)  # type: ignore[misc]
        assert len(steps) == CHAINS, "a chain has two messages, and another none"
        found_ids = {one["payload"][0]: one["id"] for one in found}  # type: ignore[index]
        for chain, step in steps.items():
            assert step in (chains.answered[chain], chains.asked[chain])
            done = await calls.call("GET", f"/v1/messages/{chains.ids[chain, step - 1]}/result", status=200)
            assert (done.body["outcome"], done.body["result"]) == ("done", {"step": step - 1})
            own = await calls.call("GET", f"/v1/messages/{found_ids[chain]}/result?wait=0.01", status=200)
            assert own.body == {"outcome": "running"}
