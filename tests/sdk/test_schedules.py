"""`client.schedules` and `fasti schedule`, against a real server on a simulated clock."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

import fasti
from tests.sdk.conftest import PATIENT
from tests.sdk.test_against_server import Server, running, simulated
from tests.sdk.test_cli import fasti_cli, ok


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with simulated(tmp_path / "data") as made:
        yield made


async def test_the_life_of_a_schedule(server: Server) -> None:
    async with fasti.Client(server.url) as c:
        made = await c.schedules.put(
            "nightly",
            cron="0 2 * * *",
            timezone="Europe/Bucharest",
            topic="jobs/nightly",
            payload={"n": 1},
            gap="skip",
            overlap="both",
            misfire="skip",
            jitter=30,
            headers={"a": "b"},
            expires_in="1h",
        )
        assert (made.name, made.state) == ("nightly", "active")
        assert (made.topic, made.payload) == ("jobs/nightly", {"n": 1})
        assert made.next is not None
        assert made.next_id is not None
        assert (await c.messages.get(made.next_id)).deliver_at == made.next.at
        assert (await c.schedules.get("nightly")) == made
        assert [s.name async for s in c.schedules.list()] == ["nightly"]
        assert [f.at for f in await c.schedules.upcoming("nightly", 1)] == [made.next.at]
        assert (await c.schedules.pause("nightly")).next is None
        assert (await c.schedules.resume("nightly")).state == "active"
        with pytest.raises(fasti.Refused, match="no occurrence is pending"):
            await c.schedules.skip((await c.schedules.pause("nightly")).name)
        resumed = await c.schedules.resume("nightly", from_="now")
        assert (resumed.state, resumed.silent) == ("active", None)
        assert resumed.next is not None
        skipped = await c.schedules.skip("nightly")
        assert skipped.next is not None
        assert skipped.next.at > resumed.next.at
        async with c.subscribe("jobs/#", session="worker") as deliveries:
            sent = await c.schedules.trigger("nightly")
            async for delivery in deliveries:
                assert (delivery.id, delivery.schedule, delivery.headers) == (sent, "nightly", {"a": "b"})
                break
        found = await c.messages.get(sent)
        assert (found.topic, found.schedule) == ("jobs/nightly", "nightly")
        assert (await c.messages.schedule("a", "x", delay=60)).schedule is None
        fires = await c.schedules.preview(
            cron="30 3 * * *", timezone="Europe/Bucharest", start="2027-03-28T00:00:00Z", count=1
        )
        assert fires[0].at == datetime(2027, 3, 28, 1, 30, tzinfo=UTC)
        assert fires[0].note is not None
        count = (await c.schedules.get("nightly")).count
        await c.advance(timedelta(days=30))
        assert (await c.schedules.get("nightly")).count in (count + 29, count + 30, count + 31)
        await c.schedules.delete("nightly")
        with pytest.raises(fasti.NotFound):
            await c.schedules.get("nightly")
        with pytest.raises(fasti.Refused) as refused:
            await c.schedules.put("x", cron="0 2 * * *", topic="a")
        assert "timezone" in str(refused.value)


async def test_one_message_a_second_over_kill_9(tmp_path: Path) -> None:
    chance = random.Random()
    async with running(Server(tmp_path / "data")) as made, fasti.Client(made.url, retry=PATIENT) as c:
        await c.schedules.put("tick", every=1, topic="tick", misfire="fire_all")
        for _ in range(4):
            await asyncio.sleep(chance.uniform(0.5, 1.5))
            await asyncio.to_thread(made.stop, kill=True)
            await asyncio.to_thread(made.start)
        async with asyncio.timeout(60):
            while (await c.schedules.get("tick")).count <= 4:
                await asyncio.sleep(0.1)
        before, count = -1, 0
        while before != count:  # one may fire while they are listed
            before = (await c.schedules.get("tick")).count
            dues = [m.deliver_at async for m in c.messages.list(state="all", topic="tick")]
            count = (await c.schedules.get("tick")).count
    assert len(dues) == count > 4
    assert {b - a for a, b in pairwise(dues)} == {timedelta(seconds=1)}, "none missing, none twice"


async def test_the_command(server: Server) -> None:
    at = ("--url", server.url)
    put = ("schedule", "put", "n", "jobs/n", "go", "--cron", "@daily", "-z", "UTC", "-o", "json")
    made = json.loads(await ok(*at, *put, "--late", "drop", "-H", "a=b", "-H", "c=d=e", "--retain"))
    assert (made["state"], made["late"], made["retain"]) == ("active", "drop", True)
    assert made["headers"] == {"a": "b", "c": "d=e"}
    assert (await fasti_cli(*at, *put, "-H", "a"))[0] == 2
    assert "@daily" in await ok(*at, "schedule", "ls")
    assert json.loads(await ok(*at, "schedule", "show", "n", "-n", "2", "-o", "json"))["upcoming"][1]["at"]
    assert len((await ok(*at, "schedule", "preview", "n", "-n", "3", "-o", "ndjson")).splitlines()) == 3
    lines = await ok(*at, "schedule", "preview", "--rrule", "FREQ=DAILY;COUNT=2", "-z", "UTC", "-o", "ndjson")
    assert len(lines.splitlines()) == 2
    assert "paused" in await ok(*at, "schedule", "pause", "n")
    assert "active" in await ok(*at, "schedule", "resume", "n", "--from", "now")
    assert (await fasti_cli(*at, "schedule", "resume", "n", "--from", "then"))[0] == 2
    assert "active" in await ok(*at, "schedule", "skip", "n")
    assert len(json.loads(await ok(*at, "schedule", "trigger", "n", "-o", "json"))["id"]) == 32
    assert "removed" in await ok(*at, "schedule", "rm", "n")
    code, _, said = await fasti_cli(*at, "schedule", "rm", "n")
    assert (code, "n" in said) == (1, True)
    code, _, said = await fasti_cli(
        *at, "schedule", "put", "n", "jobs/n", "--cron", "61 * * * *", "-z", "UTC"
    )
    assert (code, "minute" in said) == (1, True)
    code, _, _ = await fasti_cli(*at, "schedule", "preview", "n", "--cron", "@daily")
    assert code == 2
