"""`client.pull`: against the stand-in what is sent and how often; what comes of it on the real server."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fasti
from fasti.testing import FastiServer, until
from tests.sdk.fake import Fake


def leased(number: int, payload: Any = "x", **more: Any) -> dict[str, Any]:
    return {
        "id": f"{number:032x}",
        "topic": "jobs/1",
        "deliver_at": "2030-01-01T00:00:00.000Z",
        "state": "dispatched",
        "qos": 1,
        "payload": payload,
        "attempt": 1,
        "lease_id": f"L{number}",
        "lease_until": "2030-01-01T00:00:30.000Z",
        **more,
    }


async def test_a_pulled_message_says_what_it_is(client: fasti.Client, fake: Fake) -> None:
    fake.due_work = [
        leased(1, {"id": 17}, headers={"trace": "a"}, content_type="application/json", attempt=3),
        leased(2, "/wA=", encoding="base64", schedule="nightly", qos=0),
        leased(3, "grün"),
    ]
    async with client.pull("workers", "jobs/#", max=10, wait=5, lease=timedelta(minutes=1)) as jobs:
        one, two, three = [await anext(jobs) for _ in range(3)]
    assert fake.asked == {"max": 10, "wait": "PT5S", "lease": "PT1M", "filter": "jobs/#"}
    assert (one.json(), one.attempt, one.headers, one.content_type, one.qos) == (
        *({"id": 17}, 3, {"trace": "a"}, "application/json", 1),
    )
    assert (one.id, one.due, one.lease_id) == (f"{1:032x}", datetime(2030, 1, 1, tzinfo=UTC), "L1")
    assert one.lease_until == datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC)
    assert (two.payload, two.schedule, two.qos, two.lateness) == (b"\xff\x00", "nightly", 0, None)
    assert (three.text(), three.raw["lease_id"], three.schedule, three.headers) == ("grün", "L3", None, {})


async def test_answers_of_one_turn_travel_together(client: fasti.Client, fake: Fake) -> None:
    fake.due_work = [leased(n) for n in range(2_600)]
    async with client.pull("workers", max=1_000) as jobs:
        got = [await anext(jobs) for _ in range(2_600)]
        fake.requests.clear()
        done = await asyncio.gather(*(job.ack() for job in got[:2_500]))
        assert done == [True] * 2_500
        assert [path.partition(":")[2] for _, path in fake.requests] == ["ack"] * 3
        assert not await got[0].ack(), "it was finished"
        fake.requests.clear()
        rest = got[2_500:]
        told = await asyncio.gather(
            rest[0].nack(5, "no"),
            rest[1].nack(5, "no"),
            rest[2].nack(),
            rest[3].extend(60),
            rest[4].ack(),
        )
        assert all(told)
        verbs = sorted(path.partition(":")[2] for _, path in fake.requests)
        assert verbs == ["ack", "extend", "nack", "nack"]
        assert await rest[5].nack(timedelta(minutes=5), "no paper")
        assert fake.asked == {
            "verb": "nack",
            "lease_ids": ["L2505"],
            "delay": "PT5M",
            "reason": "no paper",
        }
        with pytest.raises(ValueError, match="negative"):
            await rest[6].nack(-1)


async def test_one_that_fails_tells_each_of_its_callers(client: fasti.Client, fake: Fake) -> None:
    fake.due_work = [leased(n) for n in range(2)]
    async with client.pull("workers") as jobs:
        got = [await anext(jobs) for _ in range(2)]
        fake.faults = [(422, {})]
        failed = await asyncio.gather(*(job.ack() for job in got), return_exceptions=True)
        assert [type(error) for error in failed] == [fasti.Refused] * 2
        assert failed[0] is not failed[1]


def pass_s(seconds: float) -> None:
    """The loop's clock jumps."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


async def test_what_waits_here_beyond_its_lease_is_dropped_and_the_rest_given_back(
    client: fasti.Client, fake: Fake
) -> None:
    fake.due_work = [leased(n) for n in range(3)]
    async with client.pull("workers", lease=20) as jobs:
        assert (await anext(jobs)).lease_id == "L0"
        pass_s(30)
        fake.due_work = [leased(n) for n in range(3, 6)]
        assert (await anext(jobs)).lease_id == "L3"
    assert (fake.asked["verb"], sorted(fake.asked["lease_ids"])) == ("release", ["L4", "L5"])
    with pytest.raises(StopAsyncIteration):
        await anext(jobs)


async def test_what_waits_here_is_held_while_the_loop_comes_back(client: fasti.Client, fake: Fake) -> None:
    fake.due_work = [leased(n) for n in range(4)]
    async with client.pull("workers", lease=40) as jobs:
        got = [(await anext(jobs)).lease_id]
        fake.leased.remove("L2")
        for _ in range(2):
            pass_s(30)
            got.append((await anext(jobs)).lease_id)
    assert got == ["L0", "L1", "L3"], "2 was not ours any more"
    assert sum(path.endswith(":extend") for _, path in fake.requests) == 2


async def test_a_close_ends_a_loop_that_waits(client: fasti.Client, fake: Fake) -> None:
    async def forever() -> int:
        return len([job async for job in client.pull("workers")])

    task = asyncio.create_task(forever())
    await until(lambda: len(fake.requests) > 3)
    await client.close()
    async with asyncio.timeout(60):
        assert await task == 0


async def test_who_is_not_there(client: fasti.Client, fake: Fake) -> None:
    with pytest.raises(fasti.NotFound):
        await anext(client.pull("nobody"))
    fake.due_work = [leased(1)]
    jobs = client.pull("workers")
    await anext(jobs)
    fake.faults = ["cut"] * 9
    task = asyncio.ensure_future(anext(jobs))
    await until(lambda: not fake.faults)
    fake.faults = [(503, {})] * 9
    await until(lambda: not fake.faults)
    fake.due_work = [leased(2)]
    assert (await task).lease_id == "L2", "a server that was there is waited for"
    await jobs.aclose()
    async with fasti.Client("http://127.0.0.1:9", retry=fasti.Retry(attempts=1)) as lone:
        with pytest.raises(fasti.Unreachable):
            await anext(lone.pull("workers"))


@pytest.mark.parametrize(
    ("argument", "bad"),
    [("group", ""), ("group", "a/b"), ("max", 0), ("max", 1_001), ("wait", -1), ("lease", -1)],
)
def test_what_cannot_be_meant_is_refused_by_name(argument: str, bad: Any) -> None:
    given: dict[str, Any] = {"group": "g", argument: bad}
    with pytest.raises(fasti.BadArgument, match=f"^{argument} "):
        fasti.Client().pull(**given)


async def test_on_the_real_server(server: FastiServer) -> None:
    async with server.client() as c:
        await c.groups.put("workers", "jobs/#", max_attempts=2, backoff=["10s"])
        for n in range(4):
            await c.messages.schedule(f"jobs/{n}", {"n": n}, headers={"trace": str(n)})
        async with c.pull("workers", "jobs/#", max=3, lease=1) as jobs:
            got = [await anext(jobs) for _ in range(4)]
            assert [job.json()["n"] for job in got] == [0, 1, 2, 3]
            assert [job.headers for job in got] == [{"trace": str(n)} for n in range(4)]
            assert all(await asyncio.gather(got[0].ack(), got[1].nack(60, "later"), got[2].extend(600)))

            async def is_over() -> bool:
                (told,) = (await c.messages.get(str(got[3].id))).raw["deliveries"]
                return bool(told["state"] != "in_flight")

            async with asyncio.timeout(30):
                await until(is_over)
                await server.advance(seconds=13)
                last = await anext(jobs)
            assert (last.json()["n"], last.attempt) == (3, 2), "its lease was over"
            assert await got[3].ack(), "and yet who had it may finish it"
            await server.advance(seconds=60)
            async with asyncio.timeout(30):
                again = await anext(jobs)
            assert (again.json()["n"], again.attempt) == (1, 2)
            assert await again.nack(reason="never")
            assert [(d.attempts, d.reason) for d in [d async for d in c.dead.list()]] == [(2, "never")]
            await server.restart(kill=True)
            assert await got[2].ack(), "also over a kill"
        (group,) = await c.groups.get("workers")
        assert (group.in_flight, group.lag_messages) == (0, 0)


def test_without_an_event_loop(server: FastiServer) -> None:
    with server.sync_client() as c:
        c.groups.put("workers", "jobs/#")
        c.messages.schedule_many({"topic": "jobs/1", "payload": n} for n in range(3))
        with c.pull("workers", max=2) as jobs:
            one, two, three = next(jobs), next(jobs), next(jobs)
            assert (one.ack(), two.nack(5), three.extend(60)) == (True, True, True)
            assert three.lease_id != one.lease_id
            assert three.reject("no such order")
            assert [letter.reason for letter in c.dead.list()] == ["no such order"]
        assert [g.name for g in c.groups.list()] == ["workers"]


async def test_an_ack_with_what_follows(server: FastiServer) -> None:
    """A chain of three steps; gone, nothing of it is scheduled."""
    async with fasti.Client(server.url) as c, c.pull("chain", "chain/#", lease="1m") as jobs:
        await c.groups.put("chain", "chain/#")
        await c.messages.schedule("chain/0", 0)
        async for job in jobs:
            step = job.json() + 1
            if step == 3:
                assert await job.ack()
                break
            follow = fasti.NewMessage(topic=f"chain/{step}", payload=step)
            later = fasti.NewMessage(topic="later", payload=step, delay=3_600)
            assert await job.ack(then=[follow, later])
            assert not await job.ack(then=[follow])
        assert [m.payload async for m in c.messages.list(topic="later")] == [1, 2]
