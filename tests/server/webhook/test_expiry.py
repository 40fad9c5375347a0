"""An endpoint with an expiry: nobody is there while it is paused, and from then on the time counts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.clock import SimulatedClock
from server.settings.config import Config
from tests.server.conftest import DAY_MS, HOUR_MS, Running, running
from tests.support.receiver import Receiver, answer

from .conftest import dead, put, settled, shown


async def pass_time(server: Running, by_ms: int) -> None:
    server.app.core.writer.ran(by_ms)
    await server.app.ask(lambda commit: None)
    await server.pass_time(by_ms)
    await server.app.housekeeping.run_due()
    await server.app.quiet()


async def call(server: Running, verb: str) -> None:
    await server.call("POST", f"/v1/endpoints/billing:{verb}")


async def names(server: Running) -> list[str]:
    return [one["name"] for one in (await server.call("GET", "/v1/endpoints")).body["endpoints"]]


async def test_what_is_paused_expires_and_its_backlog_becomes_dead_letters(
    server: Running, receiver: Receiver
) -> None:
    made = await put(server, receiver, expiry="2d")
    await put(server, receiver, "lasting")
    assert made["expiry"] == 2 * DAY_MS / 1_000
    await call(server, "pause")
    await server.call("POST", "/v1/endpoints/lasting:pause")
    name = await server.schedule("a", "x", deliver_to="billing")
    await pass_time(server, 2 * DAY_MS - HOUR_MS)
    assert await names(server) == ["billing", "lasting"]
    await pass_time(server, HOUR_MS)
    assert await names(server) == ["lasting"]
    await server.call("POST", "/v1/endpoints/billing:resume", status=404)
    assert [(one["id"], one["reason"]) for one in await dead(server)] == [(name, "group expired")]
    assert receiver.got == []
    message = {"topic": "a", "payload": "y", "deliver_to": "billing"}
    await server.call("POST", "/v1/messages", message, status=422)


async def test_what_is_posted_to_does_not_expire(server: Running, receiver: Receiver) -> None:
    """However long there is nothing to post, or every post fails."""
    await put(server, receiver, expiry="1h", retry={"max_attempts": 0, "backoff": ["3h"]})
    receiver.behave = answer(500)
    await pass_time(server, DAY_MS)
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
    await settled(server)
    await pass_time(server, 2 * HOUR_MS)
    assert await names(server) == ["billing"]


async def test_a_resume_ends_the_counting(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, expiry="1d")
    for _ in range(3):
        await call(server, "pause")
        await pass_time(server, DAY_MS - HOUR_MS)
        await call(server, "resume")
        await pass_time(server, DAY_MS)
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)


async def test_a_pause_by_410_counts(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, expiry="1d")
    receiver.script = [answer(410)]
    name = await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
    async with asyncio.timeout(30):
        while (await shown(server))["state"] != "paused":
            await asyncio.sleep(0.01)
    await pass_time(server, DAY_MS)
    assert await names(server) == []
    assert [one["id"] for one in await dead(server)] == [name]


@pytest.mark.parametrize("is_over", [False, True])
async def test_it_counts_over_a_restart(
    tmp_path: Path, config: Config, clock: SimulatedClock, receiver: Receiver, *, is_over: bool
) -> None:
    async with running(tmp_path, config, clock) as server:
        await put(server, receiver, expiry="1d")
        await call(server, "pause")
        await pass_time(server, DAY_MS - HOUR_MS)
    clock.now_ms += 9 * DAY_MS
    async with running(tmp_path, config, clock) as server:
        await pass_time(server, 2 * HOUR_MS if is_over else 0)
        assert await names(server) == ([] if is_over else ["billing"])
    async with running(tmp_path, config, clock) as server:
        assert await names(server) == ([] if is_over else ["billing"]), "its row is gone"


async def test_where_nothing_is_posted_nobody_is_there(
    tmp_path: Path, config: Config, clock: SimulatedClock, receiver: Receiver
) -> None:
    async with running(tmp_path, config, clock) as server:
        await put(server, receiver, expiry="1d")
    async with running(tmp_path, config, clock) as server:
        await pass_time(server, DAY_MS)
        assert await names(server) == ["billing"], "it is posted to"
    off = replace(config, webhook=replace(config.webhook, enabled=False))
    async with running(tmp_path, off, clock) as server:
        await pass_time(server, DAY_MS)
        assert await names(server) == []
