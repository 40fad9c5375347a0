"""Leases of a real server over kill -9 and SIGTERM: leased, acked and not answered, nacked, waited for."""

import asyncio
import random
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.http import Http, http
from tests.support.server import serving

PATH = "/v1/groups/workers/messages"


async def _lease(calls: Http, most: int = 1_000, **members: object) -> list[dict[str, Any]]:
    answer = await calls.call("POST", f"{PATH}:lease", {"max": most, **members}, status=200)
    messages: list[dict[str, Any]] = answer.body["messages"]
    return messages


async def _all(calls: Http) -> list[dict[str, Any]]:
    """Everything that there is at once."""
    found: list[dict[str, Any]] = []
    while some := await _lease(calls, wait="500ms"):
        found += some
    return found


async def _say(calls: Http, what: str, messages: list[dict[str, Any]], **members: object) -> dict[str, Any]:
    body = {"lease_ids": [message["lease_id"] for message in messages], **members}
    said: dict[str, Any] = (await calls.call("POST", f"{PATH}:{what}", body, status=200)).body
    return said


async def _release(calls: Http, messages: list[dict[str, Any]]) -> None:
    """Those that are leased still."""
    for at in range(0, len(messages), 1_000):
        await _say(calls, "release", messages[at : at + 1_000])


async def _filled(calls: Http, count: int) -> None:
    await _lease(calls, 1, filter="jobs/#")
    items = [{"topic": f"jobs/{n}", "payload": n} for n in range(count)]
    assert (await calls.schedule_many(items)).status == 201


async def test_what_was_leased_is_acked_after_a_kill_whoever_has_it_by_then(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        await _filled(calls, 60)
        leased = await _lease(calls, wait=10)
        while len(leased) < 60:
            leased += await _lease(calls, wait=10)
        server.kill()
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        assert (await _say(calls, "ack", leased[:20]))["acked"] == 20
        assert await _all(calls) == [], "nobody else gets what is leased"
        again = leased[20:]
        assert (await _say(calls, "extend", again[:5], lease="60s"))["extended"] == 5
        assert (await _say(calls, "release", again[:10]))["released"] == 10
        given = await _all(calls)
        assert {one["id"] for one in given} == {one["id"] for one in again[:10]}
        assert {one["attempt"] for one in given} == {1}
        assert (await _say(calls, "ack", leased))["acked"] == 40
        assert await _all(calls) == []
        server.kill()
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        assert await _all(calls) == []
        assert (await _say(calls, "ack", again))["acked"] == 0


async def test_acks_that_were_answered_outlive_a_kill(tmp_path: Path) -> None:
    """Killed while acks are under way: those that were answered are final, the others done or given again."""
    data, chance = tmp_path / "data", random.Random(12)
    leased: list[dict[str, Any]] = []
    left: set[str] = set()
    answered: set[str] = set()
    for life in range(3):
        async with serving(data) as server, http(server.url) as calls:
            if not life:
                await _filled(calls, 1_200)
            else:
                assert await _all(calls) == [], "the leases of the life before are there"
                await _release(calls, leased)
            leased = await _all(calls)
            ids = {one["id"] for one in leased}
            assert not ids & answered
            assert not life or ids <= left
            steps = [leased[at : at + 2] for at in range(0, len(leased), 2)]

            async def ack(some: list[dict[str, Any]], calls: Http = calls) -> None:
                try:
                    assert (await _say(calls, "ack", some))["acked"] == len(some)
                except (aiohttp.ClientError, ConnectionError):
                    return
                answered.update(one["id"] for one in some)

            acks = [asyncio.create_task(ack(some)) for some in steps[: len(steps) * 2 // 3]]
            enough = len(answered) + chance.randrange(1, len(acks))
            async with asyncio.timeout(30):
                while len(answered) < enough:
                    await asyncio.sleep(0)
            server.kill()
            await asyncio.gather(*acks)
            left = ids - answered
    assert answered
    async with serving(data) as server, http(server.url) as calls:
        await _release(calls, leased)
        assert {one["id"] for one in await _all(calls)} <= left
        assert await server.stopped() == 0


async def test_what_was_nacked_comes_after_a_kill_once_with_its_reason(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        await _filled(calls, 4)
        leased = await _all(calls)
        said = await _say(calls, "nack", leased, delay="2s", reason="no paper")
        assert said == {"nacked": 4, "dead": 0, "gone": []}
        server.kill()
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        assert (await _say(calls, "ack", leased[:1]))["acked"] == 1
        again = await _lease(calls, wait=20)
        while len(again) < 3:
            again += await _lease(calls, wait=20)
        assert {one["id"] for one in again} == {one["id"] for one in leased[1:]}
        assert {(one["attempt"], one["reason"]) for one in again} == {(2, "no paper")}
        assert (await _say(calls, "ack", leased))["acked"] == 3
        assert await _all(calls) == []


async def test_a_lease_of_before_a_replay_touches_nobody_after_a_kill(tmp_path: Path) -> None:
    """Leased, acked, set back, leased again, and both are the first try of the message."""
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        await _filled(calls, 1)
        first = await _lease(calls, wait=10)
        assert (await _say(calls, "ack", first))["acked"] == 1
        await calls.call("POST", "/v1/groups/workers:replay", {"from": "1h"}, status=200)
        second = await _lease(calls, wait=10, lease="10m")
        assert [one["id"] for one in second] == [one["id"] for one in first]
        server.kill()
    stale, held = ([one["lease_id"] for one in leased] for leased in (first, second))
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        assert (await _say(calls, "nack", first))["gone"] == stale
        assert (await _say(calls, "extend", first, lease="1s"))["gone"] == stale
        assert (await _say(calls, "release", first))["gone"] == stale
        assert await _all(calls) == [], "the second lease holds"
        assert (await _say(calls, "extend", second, lease="10m"))["extended"] == 1
        assert (await _say(calls, "ack", first))["acked"] == 1
        assert (await _say(calls, "ack", second))["gone"] == held
        assert await _all(calls) == []


async def test_who_waits_is_answered_at_the_stop(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        await _filled(calls, 1)
        assert len(await _lease(calls, wait=10)) == 1
        waiting = asyncio.create_task(_lease(calls, wait=60))
        await asyncio.sleep(0.2)
        async with asyncio.timeout(60):
            assert await server.stopped() == 0
            assert await waiting == []
        assert "Traceback" not in server.output
