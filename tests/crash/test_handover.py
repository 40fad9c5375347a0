"""kill -9 of the server at steps of a split, while messages come and are cancelled; FASTI_SOAK=1: at all.

Whatever the step: what was acked is there, once; what was cancelled is not; no row lies about without a shard
and no file of the job is left; and the next job can finish what this one has begun.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from server.settings.times import format_ms, parse_deliver_at
from shards import keys
from shards.recover import read_directory
from shards.rocks import RocksStore
from shards.store import Table
from shards.verify import verify_counts
from tests.support.http import Http, http
from tests.support.mover import counted
from tests.support.server import ServerProcess, serving
from tests.support.soak import SOAK

from .handing import POINTS

COUNT = 20
STEP_MS = 600_000
USUAL = ("synced begin", "after plan", "after count", "after cut", "written cut", "synced cut")
TRIED = POINTS if SOAK else USUAL
GONE = (aiohttp.ClientError, AssertionError, ConnectionError)


@asynccontextmanager
async def doomed(data: Path, point: str) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(data, "--clock", "simulated", program=("tests.crash.handing", point))
    try:
        await server.ready()
        yield server
    finally:
        server.kill()
        await asyncio.sleep(0.01)


class Story:
    """What was asked for and what was answered."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.unsure: set[str] = set()
        """Cancels, moves and messages without an answer."""
        self.gone: set[str] = set()
        self.start_ms = 0

    async def fill(self, client: Http) -> None:
        self.ids["probe"] = await client.schedule("p", "probe", deliver_in="10d")
        explained = await client.call("GET", f"/v1/messages/{self.ids['probe']}/explain", status=200)
        self.start_ms = parse_deliver_at(explained.body["slice"])
        for number in range(COUNT):
            await self.put(client, f"m{number}", number)

    async def put(self, client: Http, text: str, number: int) -> None:
        self.unsure.add(text)
        body = {
            "topic": f"t/{number % 3}",
            "payload": text,
            "deliver_at": format_ms(self.start_ms + number * STEP_MS),
        }
        self.ids[text] = (await client.call("POST", "/v1/messages", body, status=201)).body["id"]
        self.unsure.discard(text)

    async def cancel(self, client: Http, text: str) -> None:
        self.unsure.add(text)
        await client.call("DELETE", f"/v1/messages/{self.ids[text]}", status=204)
        self.unsure.discard(text)
        self.gone.add(text)

    async def split(self, client: Http) -> None:
        """One whole job, with changes in between."""
        wish = {"kind": "split", "slice": self.start_ms, "run": "caller"}
        job = (await client.call("POST", "/v1/jobs", wish, status=201)).body
        await self.cancel(client, "m1")
        cuts = [self.start_ms + number * STEP_MS for number in (7, 14)]
        pieces = await asyncio.to_thread(counted, job, cuts)
        await self.cancel(client, "m3")
        await self.cancel(client, "m18")
        await self.put(client, "new", 8)
        await self.tell(client, job, "commit", cuts=cuts, pieces=pieces)

    async def tell(self, client: Http, job: Any, verb: str, **members: Any) -> Any:
        body = {"token": job["token"], **members}
        return (await client.call("POST", f"/v1/jobs/{job['id']}:{verb}", body, status=200)).body

    def check(self, payloads: list[str]) -> None:
        assert len(payloads) == len(set(payloads)), "something is there twice"
        sure = set(self.ids) - self.gone - self.unsure
        assert sure <= set(payloads)
        assert not set(payloads) & self.gone
        assert set(payloads) <= sure | self.unsure


def check_files(data: Path) -> None:
    """Of a server that has ended."""
    store = RocksStore(data)
    directory = read_directory(store, 1_000)
    assert verify_counts(store, directory) == []
    known = {shard.prefix for piece in directory for shard in piece.readable()}
    rows = [key for key, _ in store.scan(Table.MESSAGES, b"", keys.LAST)]
    assert {key[:10] for key in rows} <= known, "rows of nobody"
    shards = {key for key, _ in store.scan(Table.SHARDS, b"", keys.LAST)}
    assert shards == known, "shards of nobody"
    store.close()
    folder = data / "jobs"
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("point", TRIED)
async def test_killed_at(tmp_path: Path, point: str) -> None:
    story, data = Story(), tmp_path / "data"
    async with doomed(data, point) as server, http(server.url) as client:
        await story.fill(client)
        try:
            await story.split(client)
            # What comes after the answer may still be under way.
            async with asyncio.timeout(60):
                while server.process.poll() is None:
                    await asyncio.sleep(0.01)
        except GONE:
            pass
        assert await asyncio.to_thread(server.process.wait, 10) == -9, "the point was not reached"
    async with serving(data, "--clock", "simulated") as server:
        async with http(server.url) as client:
            payloads = [one["payload"] for one in await client.listed("state=pending")]
            story.check(payloads)
            jobs = (await client.call("GET", "/v1/jobs", status=200)).body["jobs"]
            assert all(job["state"] in ("done", "aborted") for job in jobs)
            assert not jobs or jobs[0]["state"] == "done" or "restarted" in jobs[0]["detail"]
            await finish(client)
            assert [one["payload"] for one in await client.listed("state=pending")] == payloads
            await client.call("POST", "/v1/clock:advance", {"by": "P11D"}, status=200)
            assert [one["payload"] for one in await client.listed("state=dispatched")] == payloads
            page = (await client.call("GET", "/metrics", status=200)).body.decode()
            assert re.search(r"^fasti_messages_early_total 0\.0$", page, re.MULTILINE)
        assert await server.stopped() == 0
    check_files(data)


async def finish(client: Http) -> None:
    """Split it all once more."""
    story = Story()
    for piece in (await client.call("GET", "/v1/slices", status=200)).body["slices"]:
        cuts = [parse_deliver_at(piece["start"]) + 3 * STEP_MS]
        wish = {"kind": "split", "slice": piece["start"], "run": "caller"}
        job = (await client.call("POST", "/v1/jobs", wish, status=201)).body
        pieces = await asyncio.to_thread(counted, job, cuts)
        await story.tell(client, job, "commit", cuts=cuts, pieces=pieces)
