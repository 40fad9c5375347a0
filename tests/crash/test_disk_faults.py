"""Disks that take nothing, or stop in the middle of a record: 503 for writes, and deliveries go on.

The kernel refuses writes beyond a limit on the size of files, which can be set for a running process: 0 is a
disk that takes nothing at all, not even what needs no room; the size of the log and a few bytes more is a
write that is cut off at exactly that byte.
"""

import asyncio
from pathlib import Path

import pytest

from server.settings.times import format_ms
from tests.support.http import Http, http
from tests.support.mqtt import payloads, wall_ms
from tests.support.server import run, serving

from .disks import later, limited, reader_of, until_taken

FAR_MS = 4_000
"""Beyond the bound of dispatch that the last group can have written."""


async def _refused(calls: Http, payload: str) -> list[str]:
    """Schedule until a write is refused; what was accepted."""
    accepted: list[str] = []
    async with asyncio.timeout(60):
        while True:
            answer = await calls.call("POST", "/v1/messages", later(payload))
            if answer.status == 503:
                return accepted
            assert answer.status == 201, answer
            accepted.append(answer.body["id"])


async def test_a_disk_that_takes_nothing_at_all(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with serving(data) as server, http(server.url) as calls:
        reader = await reader_of(server)
        due_ms = wall_ms() + FAR_MS
        soon = [await calls.schedule("soon/1", f"s{n}", deliver_at=format_ms(due_ms + n)) for n in range(20)]
        acked = [await calls.schedule("later", "x", deliver_in="1h")]
        with limited(server, 0):
            acked += await _refused(calls, "y")
            assert (await calls.call("DELETE", f"/v1/messages/{acked[0]}")).status == 503
            assert (await calls.call("PATCH", f"/v1/messages/{acked[0]}", {"deliver_in": "2h"})).status == 503
            assert (await calls.call("GET", "/readyz")).status == 503
            got = await reader.take_many(len(soon))
            assert payloads(got) == [f"s{n}" for n in range(20)]
            assert (await calls.call("POST", "/v1/messages", later("z"))).status == 503
        acked.append(await until_taken(calls))
        await calls.call("DELETE", f"/v1/messages/{acked[0]}", status=204)
        reader.drop()
        server.kill()
    async with serving(data) as server, http(server.url) as calls:
        there = {row["id"] for row in await calls.listed("state=pending")}
        assert set(acked[1:]) <= there
        assert acked[0] not in there
        assert await server.stopped() == 0
    assert run("verify", "--data", str(data)).returncode == 0


@pytest.mark.parametrize("cut", [1, 8, 150, 1_000])
async def test_a_write_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    """Within the head of a record of the log, its batch, its payload: what was acked is there, no half."""
    data = tmp_path / "data"
    async with serving(data) as server, http(server.url) as calls:
        acked = [await calls.schedule("later", "x", deliver_in="1h")]
        log = max(data.glob("*.log"))
        with limited(server, log.stat().st_size + cut):
            acked += await _refused(calls, "y" * 800)
        acked.append(await until_taken(calls))
        server.kill()
    async with serving(data) as server, http(server.url) as calls:
        rows = await calls.listed("state=pending")
        assert set(acked) <= {row["id"] for row in rows}
        assert {len(row["payload"]) for row in rows} <= {1, 800, len("again")}
        assert await server.stopped() == 0
    assert run("verify", "--data", str(data)).returncode == 0
