"""Groups on the real server: made ahead, kept with nobody there, paused, set back; nack and extend."""

import asyncio
from datetime import datetime, timedelta

import pytest

import fasti
from fasti.testing import FastiServer, until
from tests.sdk.conftest import quiet, take


async def test_a_group_made_ahead_misses_nothing_and_can_be_stopped_and_set_back(server: FastiServer) -> None:
    async with server.client() as c:
        made = await c.groups.put(
            "workers",
            "jobs/#",
            expiry=timedelta(days=2),
            ack_timeout=30,
            max_attempts=3,
            backoff=["1s", timedelta(minutes=1)],
            rate=1_000,
        )
        assert (made.name, made.filter, made.state, made.members) == ("workers", "jobs/#", "active", ())
        await c.messages.schedule("jobs/1", "1")
        await server.restart()
        async with c.subscribe("jobs/#", group="workers") as s:
            assert await take(s, 1) == ["1"], "it was there before its first member"
            (group,) = await c.groups.get("workers")
            assert len(group.members) == 1
        assert [g.state for g in await c.groups.pause("workers")] == ["paused"]
        await c.messages.schedule("jobs/1", "2")
        async with c.subscribe("jobs/#", group="workers") as s:
            waiting = asyncio.ensure_future(take(s, 1))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            (group,) = await c.groups.get("workers")
            assert (group.state, group.lag_messages) == ("paused", 1)
            assert [g.state for g in await c.groups.resume("workers", filter="jobs/#")] == ["active"]
            assert await waiting == ["2"]
            await c.groups.replay("workers", timedelta(hours=1))
            assert await take(s, 2) == ["1", "2"]
        await c.groups.delete("workers", filter="jobs/#")
        with pytest.raises(fasti.NotFound):
            await c.groups.get("workers")
        with pytest.raises(fasti.Refused):
            await c.groups.put("workers", "jobs/#", ack_timeout="9d")
        with pytest.raises(TypeError, match="'expire'"):
            await c.groups.put("workers", "jobs/#", expire=5)  # type: ignore[call-arg]


async def test_a_group_s_place_outlives_its_members_and_they_leave_nothing(server: FastiServer) -> None:
    async with server.client() as c:
        async with c.subscribe("jobs/#", group="workers", expiry=timedelta(hours=3)) as s:
            await c.messages.schedule("jobs/1", "1")
            assert await take(s, 1) == ["1"]
        assert [s.client_id async for s in c.sessions.list()] == []
        for n in range(3):
            await c.messages.schedule("jobs/1", f"while away {n}", delay=60)
        await server.restart(down_for=timedelta(minutes=2))
        async with c.subscribe("jobs/#", group="workers") as s:
            assert await take(s, 3) == [f"while away {n}" for n in range(3)], "all workers were restarted"
        await server.advance(hours=4)

        async def is_forgotten() -> bool:
            return not [g async for g in c.groups.list()]

        await until(is_forgotten)


async def test_a_nacked_message_comes_again_to_its_group_alone(server: FastiServer) -> None:
    async with (
        server.client() as c,
        c.subscribe("jobs/#", group="workers", max_attempts=2) as s,
        c.subscribe("jobs/#", session="audit") as audit,
    ):
        m = await c.messages.schedule("jobs/1", "x")
        assert (await anext(audit)).id == m.id
        d = await anext(s)
        assert await d.nack(timedelta(minutes=5), "no paper")
        again = asyncio.ensure_future(anext(s))
        await server.advance(minutes=4)
        await asyncio.sleep(0.1)
        assert not again.done()
        await server.advance(minutes=1)
        d = await again
        assert (d.id, d.attempt) == (m.id, 2)
        assert await d.nack(reason="no paper at all")

        async def is_dead() -> bool:
            return bool(await c.dead.get(m.id))

        await until(is_dead)
        (letter,) = await c.dead.get(m.id)
        assert (letter.group, letter.attempts, letter.reason) == ("workers", 2, "no paper at all")
        await quiet(audit, 0.2)


async def test_a_lease_is_extended_or_over(server: FastiServer) -> None:
    """Leases run on real time; the retry is on the timeline."""
    async with (
        server.client() as c,
        c.subscribe("jobs/#", group="workers", ack_timeout=60) as one,
    ):

        async def delivery() -> dict[str, str]:
            (told,) = (await m.refresh()).raw["deliveries"]
            return dict(told)

        async def has_come_back() -> bool:
            return (await delivery())["state"] != "in_flight"

        async def left() -> timedelta:
            return datetime.fromisoformat((await delivery())["lease_until"]) - (await c.info()).now

        m = await c.messages.schedule("jobs/1", "x")
        d = await anext(one)
        assert d.ack_timeout == timedelta(minutes=1)
        assert await left() <= timedelta(minutes=1)
        assert await d.extend(timedelta(hours=1))
        assert await left() > timedelta(minutes=50)
        assert await d.extend(0.1)
        await until(has_come_back)
        again = asyncio.ensure_future(anext(one))
        await server.advance(seconds=2)
        later = await again
        assert (later.text(), later.attempt) == ("x", 2)
        assert not await d.extend(30), "it is not ours any more"
        assert await d.ack(), "and yet it is done"
        assert await later.ack()
        assert [x async for x in c.dead.list()] == []
        await c.messages.schedule("jobs/1", "y")
        d = await anext(one)
        with pytest.raises(fasti.Refused, match="extend"):
            await d.extend("13h")


async def test_a_job_says_how_far_it_is(server: FastiServer) -> None:
    async with (
        server.client() as c,
        c.subscribe("jobs/#", group="workers", ack_timeout=60) as one,
        c.subscribe("jobs/#", session="s") as other,
    ):
        m = await c.messages.schedule("jobs/1", "x")
        d = await anext(one)
        assert await d.extend(timedelta(seconds=5))
        for value in ({"done": 1, "of": 9}, None, "é"):
            assert await d.progress(value)
            (group, *_) = (await m.refresh()).deliveries
            assert group.progress == value
            assert group.lease_until is not None
            assert group.lease_until - (await c.info()).now > timedelta(seconds=50)
        with pytest.raises(fasti.BadArgument):
            await d.progress({1, 2})
        with pytest.raises(fasti.Refused, match="4,096"):
            await d.progress("x" * 5_000)
        assert not await (await anext(other)).progress(1), "that of a session is shown to nobody"
        assert await d.ack()
        assert not await d.progress(1)


async def test_terms_beyond_the_bounds_are_refused_by_name(server: FastiServer) -> None:
    async with server.client() as c:
        with pytest.raises(fasti.Refused, match="ack-timeout") as refused:
            await anext(c.subscribe("jobs/#", group="workers", ack_timeout=timedelta(days=9)))
        assert refused.value.reason_code == 0x83


async def test_what_a_group_keeps_and_who_is_told(server: FastiServer) -> None:
    async with server.client() as c:
        await c.endpoints.put("ops", "https://example.com/")
        kept = {"keep": timedelta(days=2), "result_ttl": "1m", "alerts": "ops"}
        made = await c.groups.put("workers", "jobs/#", **kept)
        assert [made.raw[name] for name in kept] == [172_800.0, 60.0, "ops"]
        endpoint = await c.endpoints.put("billing", "https://example.com/", keep="none", alerts="ops")
        assert [endpoint.raw[name] for name in kept] == ["none", 3_600.0, "ops"]
        with pytest.raises(fasti.Refused) as refused:
            await c.groups.put("workers", "jobs/#", alerts="nobody")
        assert refused.value.errors[0]["field"] == "alerts"
        async with c.subscribe("jobs/#", group="workers", keep="all", alerts="") as s:
            await c.messages.schedule("jobs/1", "x")
            assert await take(s, 1) == ["x"]
        (changed,) = await c.groups.get("workers")
        assert [changed.raw[name] for name in kept] == ["all", 60.0, None]
        with pytest.raises(fasti.Refused, match="alerts"):
            await anext(c.subscribe("jobs/#", group="workers", alerts="nobody"))
        for name, value in kept.items():
            with pytest.raises(fasti.BadArgument, match=name):
                c.subscribe("jobs/#", **{name: value})


async def test_one_of_a_key_and_a_dead_letter_holds_it(server: FastiServer) -> None:
    async with server.client() as c:
        (made,) = [await c.groups.put("workers", "jobs/#", order=True, on_dead="hold")]
        assert (made.raw["order"], made.raw["on_dead"]) == (True, "hold")
        for text in ("a1", "a2", "b1"):
            await c.messages.schedule("jobs/x", text, ordering_key=text[0])
        async with c.subscribe("jobs/#", group="workers") as s:
            async with asyncio.timeout(30):
                first = [await anext(s) for _ in range(2)]
                assert sorted(d.text() for d in first) == ["a1", "b1"]
                for d in first:
                    if d.text() == "a1":
                        await d.reject("no")
                    else:
                        await d.ack()
                while not (found := [key async for key in c.groups.keys("workers") if key.held]):
                    await asyncio.sleep(0.05)
            (key,) = found
            assert (key.key, key.filter, key.lag, key.held) == ("a", "jobs/#", 1, "dead")
            assert [letter.id async for letter in c.dead.list()] == [key.id]
            (released,) = await c.groups.release("workers", "a")
            assert (released.key, released.held, await take(s, 1)) == ("a", None, ["a2"])
            (held,) = await c.groups.hold("workers", "x/y", filter="jobs/#")
            assert (held.key, held.held, held.lag) == ("x/y", "hand", 0)
        with pytest.raises(fasti.BadArgument):
            c.subscribe("jobs/#", on_dead="hold")
