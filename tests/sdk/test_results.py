"""Results on the real server: of a worker, of a pull, waited for, and that there is none."""

import asyncio
import json
import threading
from typing import Any

import pytest

import fasti
import fasti.sync
from fasti.testing import FastiServer
from tests.sdk.conftest import until
from tests.sdk.test_cli import fasti_cli, ok
from tests.sdk.test_worker import buried, dead, working


async def test_what_a_handler_returns_is_the_result(server: FastiServer) -> None:
    worker = fasti.Worker(group="workers")

    @worker.on("jobs/async", result=True)
    async def one(job: fasti.Delivery) -> Any:
        await job.progress("half")
        return job.json()

    @worker.on("jobs/plain", result=True)
    def other(job: fasti.Delivery) -> int:
        return len(job.payload)

    @worker.on("jobs/none")
    async def third(_: fasti.Delivery) -> str:
        return "not sent"

    async with server.client() as c, working(worker, c):
        payload = {"é": [1, None], "n": "x" * 30_000}
        made = await c.messages.schedule("jobs/async", payload)
        assert await c.messages.result(made.id, wait=30) == payload
        assert await c.messages.result(made.id, group="workers") == payload
        made = await c.messages.schedule("jobs/plain", "12345")
        assert await c.messages.result(made.id, wait="30s") == 5
        made = await c.messages.schedule("jobs/none", "x")
        with pytest.raises(fasti.NoResult) as none:
            await c.messages.result(made.id, wait=30)
        assert none.value.outcome == "done"


async def test_what_json_cannot_say_is_an_error_of_the_handler(server: FastiServer) -> None:
    worker = fasti.Worker(group="workers")
    given = {"set": {1}, "nan": float("nan"), "large": "x" * 65_534, "half": "\ud800"}

    @worker.on("jobs/#", result=True, retry={"max_attempts": 1})
    async def handle(job: fasti.Delivery) -> Any:
        return given[job.text()]

    async with server.client() as c, working(worker, c):
        made = [await c.messages.schedule("jobs/1", name) for name in given]
        await until(lambda: buried(c, 4))
        reasons = {payload: reason for payload, _, reason in await dead(c)}
        assert "JSON" in reasons["set"]
        assert "65,535" in reasons["large"]
        for one in made:
            with pytest.raises(fasti.NoResult, match="failed"):
                await c.messages.result(one.id, wait=30)


async def test_of_a_pull_and_of_a_loop(server: FastiServer) -> None:
    async with server.client() as c:
        await c.groups.put("workers", "jobs/#")
        made = [await c.messages.schedule("jobs/1", n) for n in range(3)]
        async with c.pull("workers", "jobs/#") as jobs:
            one, other = await anext(jobs), await anext(jobs)
            assert await one.ack(result={"n": 1})
            assert await other.ack([fasti.NewMessage(topic="x", payload=1)], result=None)
        assert await c.messages.result(one.id or "", wait=5) == {"n": 1}
        assert await c.messages.result(other.id or "", wait=5) is None
        async with c.subscribe("jobs/#", group="workers") as deliveries:
            third = await anext(deliveries)
            waiting = asyncio.ensure_future(c.messages.result(third.id or "", wait=30))
            assert await third.ack(result="late")
            assert await third.ack(), "the first one counts"
            assert await waiting == "late"
        assert {one.id, other.id, third.id} == {each.id for each in made}
        with pytest.raises(fasti.NotFound):
            await c.messages.result("01a1fd5d9eff00000000000000100002")
        async with c.subscribe("own/#", session="s") as own:
            alone = await c.messages.schedule("own/1", "x")
            assert await (await anext(own)).ack(result=1), "of a session it is dropped"
            with pytest.raises(fasti.NoResult):
                await c.messages.result(alone.id)


async def test_at_the_other_qualities(server: FastiServer) -> None:
    """There it is not sent, and the message is done."""
    async with server.client() as c, c.subscribe("jobs/#", group="workers", qos=2) as deliveries:
        for qos in (0, 2):
            await c.messages.schedule("jobs/1", "x", qos=qos)
            d = await anext(deliveries)
            assert d.qos == qos
            assert await d.ack(result=1)
        assert [x async for x in c.dead.list()] == []


def test_blocking(server: FastiServer) -> None:
    with fasti.sync.Client(server.url) as c:
        c.groups.put("workers", "jobs/#")
        made = c.messages.schedule("jobs/1", "x")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(c.messages.result(made.id, wait=30)))
        thread.start()
        with c.pull("workers", "jobs/#") as jobs:
            next(jobs).ack(result=[1])
        thread.join(30)
        assert found == [[1]]


async def test_the_command(server: FastiServer) -> None:
    async with server.client() as c:
        at = ("--url", server.url)
        await c.groups.put("workers", "jobs/#")
        made = await c.messages.schedule("jobs/1", "x")
        code, _, errors = await fasti_cli("message", "result", made.id, "--wait", "0.05", *at)
        assert code == 1
        assert "queued" in errors
        async with c.pull("workers", "jobs/#") as jobs:
            result = {"text": "é" * 200, "n": [1]}
            assert await (await anext(jobs)).ack(result=result)
        for more in ((), ("--wait", "5s", "--group", "workers"), ("-o", "json")):
            told = await ok("message", "result", made.id, *more, *at)
            assert json.loads(told) == result
            assert told.count("\n") == 1
        assert (await fasti_cli("message", "result", made.id, "--wait", "2m", *at))[0] == 1
