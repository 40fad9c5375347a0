"""The disk is full: writes answer 503, dispatch goes on from RAM, and all is well when there is room again.

The data directory is a small file system of its own in RAM, filled up by a file beside the database. That
takes the right to mount; without it the test is skipped.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from server.settings.times import parse_deliver_at
from shards.mark import Mark
from tests.support.http import Http, http
from tests.support.mqtt import dial, payloads, user
from tests.support.server import ServerProcess, run, serving

from .disks import LAG_MS, Filler, due_soon, later, reader_of, until_refused, until_taken
from .lag import lag_of


async def test_disk_full(small_disk: Path, record_property: Callable[[str, object], None]) -> None:
    data = small_disk / "data"
    filler = Filler(small_disk)
    async with serving(data) as server, http(server.url) as calls, lag_of(server.url) as lag:
        reader = await reader_of(server)
        acked = [await calls.schedule("before", f"b{n}", deliver_in="1h") for n in range(20)]
        soon = await due_soon(calls, 60)
        statuses = set[int]()
        reading = asyncio.create_task(_read(calls, acked[0], statuses))
        filler.fill()
        refused = await until_refused(calls)
        assert refused.slug == "store-unavailable"
        assert "Retry-After" in refused.headers
        assert refused.body["detail"].startswith("The disk is full")
        # Dispatch goes on: what was in RAM arrives, in time, while no write is taken.
        got = await reader.take_many(60)
        assert payloads(got) == soon
        last_ms = parse_deliver_at(user(got[-1], "fasti-due") or "")
        assert Mark(data / "bound").read() > last_ms, (
            "sent, and nothing on the disk says that it may have been"
        )
        publisher = await dial(server.mqtt)
        await publisher.connect("")
        publisher.put("soon/plain", "at once", 0)
        assert payloads(await reader.take_many(1)) == ["at once"], "nothing of it has to be stored"
        publisher.drop()
        assert (await calls.call("GET", "/readyz")).status == 503
        assert (await calls.call("DELETE", f"/v1/messages/{acked[0]}")).status == 503
        assert (await calls.call("PATCH", f"/v1/messages/{acked[1]}", {"deliver_in": "2h"})).status == 503
        for body in ("a", "b"):
            assert (await calls.call("POST", "/v1/messages", later(body))).status == 503
        await calls.call("GET", "/livez", status=200)
        assert "disk is full" in (await calls.call("GET", "/readyz")).body["detail"]
        filler.free()
        name = await until_taken(calls)
        reading.cancel()
        assert statuses == {200}, "what is read is there all the time"
        await calls.call("GET", "/readyz", status=200)
        await calls.call("DELETE", f"/v1/messages/{acked[0]}", status=204)
        await _whole(calls, acked, name)
        reader.drop()
        await asyncio.sleep(0.1)
    record_property("counted", f"{len(soon)} delivered in time on a full disk; /livez meanwhile: {lag}")
    assert lag.at(1) < LAG_MS, f"the loop waits for the disk: {lag}"
    async with serving(data) as server, http(server.url) as calls:
        await _whole(calls, acked, name)
        assert await server.stopped() == 0
    assert run("verify", "--data", str(data)).returncode == 0


async def test_full_at_the_nth_write(small_disk: Path) -> None:
    """With room for a few more writes each time: whatever is half written then, acked messages stay."""
    data = small_disk / "data"
    filler = Filler(small_disk)
    acked: list[str] = []
    async with serving(data) as server, http(server.url) as calls:
        for keep in (4_096, 60_000):
            filler.fill(keep)
            async with asyncio.timeout(60):
                while True:
                    answer = await calls.call("POST", "/v1/messages", later("x" * 1_000))
                    if answer.status == 503:
                        break
                    acked.append(answer.body["id"])
            filler.free()
            acked.append(await until_taken(calls))
        server.kill()
    async with serving(data) as server, http(server.url) as calls:
        found = {m["id"] for m in await calls.listed("state=pending")}
        assert set(acked) <= found, f"{len(set(acked) - found)} of {len(acked)} are gone"
        assert await server.stopped() == 0


async def test_start_on_a_full_disk(small_disk: Path) -> None:
    """It cannot, says so, and starts when there is room."""
    data = small_disk / "data"
    async with serving(data) as server, http(server.url) as calls:
        name = await calls.schedule("a", "x", deliver_in="1h")
        server.kill()
    filler = Filler(small_disk)
    filler.fill()
    failed = ServerProcess(data, log=small_disk.parent / "full.log")
    try:
        with pytest.raises(RuntimeError, match="ended with"):
            await failed.ready()
        assert failed.process.returncode == 1
        assert "Traceback" not in failed.output, failed.output
    finally:
        failed.kill()
    filler.free()
    async with serving(data) as server, http(server.url) as calls:
        await calls.call("GET", f"/v1/messages/{name}", status=200)
        assert await server.stopped() == 0


async def _read(calls: Http, name: str, statuses: set[int]) -> None:
    """Read all kinds of things, one after the other, and note the statuses of the answers."""
    of_one = f"/v1/messages/{name}"
    lists = [f"/v1/{what}" for what in ("messages", "groups", "dead", "retries", "schedules", "slices")]
    while True:
        for path in ("/metrics", "/livez", "/v1/messages:export", of_one, f"{of_one}/explain", *lists):
            statuses.add((await calls.call("GET", path)).status)


async def _whole(calls: Http, acked: list[str], name: str) -> None:
    for message in [*acked[1:], name]:
        found = await calls.call("GET", f"/v1/messages/{message}", status=200)
        assert found.body["state"] == "pending"
    gone = await calls.call("GET", f"/v1/messages/{acked[0]}", status=200)
    assert gone.body["state"] == "cancelled"
