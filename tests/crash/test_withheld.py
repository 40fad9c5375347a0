"""kill -9 while what was withheld goes out: each message comes once, and the counters agree with the rows."""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from server.__main__ import main
from tests.support.http import Http, http
from tests.support.keys import KeysFile
from tests.support.server import ServerProcess, serving
from tests.support.soak import SOAK

pytestmark = pytest.mark.short

KILLS = 30 if SOAK else 3
COUNT = 3_000
WITHHELD = "/v1/messages?state=withheld&count=true&limit=1"


async def test_a_kill_while_they_go_out_loses_and_doubles_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A group leases them at the end: nothing was given before. The key goes and comes between the kills."""
    chance, data = random.Random(), tmp_path / "data"
    file = KeysFile(tmp_path / "keys.toml")
    ops = {"Authorization": f"Bearer {file.add('ops', 'admin')}"}
    shop = {"Authorization": f"Bearer {file.add('shop', 'schedule', publish=['o/#'])}"}
    settings = {"auth.keys_file": str(file.path)}
    async with serving(data, settings=settings) as server, http(server.url) as calls:
        await calls.call("PUT", "/v1/groups/g", {"filter": "o/#", "expiry": "never"}, status=201, **ops)
        many = [{"topic": f"o/{n}", "payload": n, "deliver_in": "PT2S"} for n in range(COUNT)]
        ids = (await calls.call("POST", "/v1/messages:batch", many, status=201, **shop)).body["ids"]
        revoke(file, server)
        await count_until(calls, ops, COUNT)
    for _ in range(KILLS):
        async with serving(data, settings=settings) as server, http(server.url) as calls:
            file.change("shop", REVOKED, "")
            os.kill(server.process.pid, signal.SIGHUP)
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            server.kill()
            revoke(file, None)
        assert main(["verify", "--data", str(data)]) == 0, capfd.readouterr().out
    file.change("shop", REVOKED, "")
    async with serving(data, settings=settings) as server, http(server.url) as calls:
        await count_until(calls, ops, 0)
        got = Counter[str]()
        while found := await lease(calls, ops):
            got.update(found)
        assert got == Counter(ids)


REVOKED = "revoked = 2026-11-22T00:00:00Z\n"


def revoke(file: KeysFile, server: ServerProcess | None) -> None:
    file.revoke("shop")
    if server is not None:
        os.kill(server.process.pid, signal.SIGHUP)


async def count_until(calls: Http, ops: dict[str, str], count: int) -> None:
    while (await calls.call("GET", WITHHELD, status=200, **ops)).body["count"] != count:
        await asyncio.sleep(0.05)


async def lease(calls: Http, ops: dict[str, str]) -> list[str]:
    answer = await calls.call("POST", "/v1/groups/g/messages:lease", {"max": 1_000}, status=200, **ops)
    return [one["id"] for one in answer.body["messages"]]
