"""Bulk cancel, shift, export and import through SDK and command line, against the real server."""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import fasti
from fasti import ranges
from tests.sdk.test_cli import fasti_cli, ok
from tests.support.http import http
from tests.support.server import serving


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with serving(tmp_path / "data", "--clock", "simulated") as server:
        yield server.url


@pytest.fixture
async def c(url: str) -> AsyncIterator[fasti.Client]:
    async with fasti.Client(url) as made:
        yield made


async def fill(c: fasti.Client, count: int = 40) -> None:
    items = (
        fasti.NewMessage(topic=f"{'ab'[n % 2]}/{n}", payload=n, delay=60 * (n + 1)) for n in range(count)
    )
    assert await c.messages.schedule_many(items) == count


async def times(c: fasti.Client, topic: str = "#") -> list[str]:
    return [m.raw["deliver_at"] async for m in c.messages.list(topic=topic)]


async def test_cancel_and_shift_in_steps(c: fasti.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "STEP_MESSAGES", 6)
    await fill(c)
    seen: list[int] = []
    dry = await c.messages.shift(timedelta(minutes=5), topic="a/#", dry_run=True, on_progress=seen.append)
    assert (dry, seen) == (fasti.BulkResult(20, 0), [6, 12, 18, 20])
    before = await times(c, "a/#")
    assert await c.messages.shift(timedelta(minutes=5), topic="a/#") == fasti.BulkResult(20, 20)
    assert await c.messages.shift(timedelta(minutes=-5), topic="a/#") == fasti.BulkResult(20, 20)
    assert await times(c, "a/#") == before
    assert await c.messages.shift("-30s", topic="a/#") == fasti.BulkResult(20, 20)
    assert await c.messages.cancel_where(topic="a/#", dry_run=True) == fasti.BulkResult(20, 0)
    assert await c.messages.cancel_where(topic="a/#") == fasti.BulkResult(20, 20)
    assert await c.messages.count() == 20
    with pytest.raises(fasti.Refused, match="must name"):
        await c.messages.cancel_where()


async def test_export_and_import(c: fasti.Client, tmp_path: Path) -> None:
    await fill(c)
    items = [item async for item in c.messages.export(topic="b/#", ids=True)]
    assert [item["payload"] for item in items] == list(range(1, 40, 2))
    with pytest.raises(fasti.Refused, match="id"):
        await c.messages.schedule_many(items, ids=True)
    async with (
        serving(tmp_path / "other", "--clock", "simulated") as other,
        fasti.Client(other.url) as there,
    ):
        assert await there.messages.schedule_many(items, ids=True) == 20
        assert [item async for item in there.messages.export(ids=True)] == items
    with pytest.raises(fasti.Refused):
        _ = [item async for item in c.messages.export(topic="a/#/b")]


async def test_the_command_line(url: str, c: fasti.Client, tmp_path: Path) -> None:
    await fill(c)
    file = tmp_path / "out.ndjson"
    at = ("--url", url, "-o", "json")
    assert json.loads(await ok("message", "export", str(file), "--ids", *at)) == {"exported": 40}
    lines = (await ok("message", "export", "--topic", "a/#", *at)).splitlines()
    assert [json.loads(line)["payload"] for line in lines] == list(range(0, 40, 2))
    said = json.loads(await ok("message", "cancel", "--topic", "a/#", "--dry-run", *at))
    assert said == {"matched": 20, "changed": 0}
    assert json.loads(await ok("message", "cancel", "--topic", "a/#", *at))["changed"] == 20
    assert json.loads(await ok("message", "shift", "15m", "--due-from", "2026-01-01T00:00Z", *at)) == {
        "matched": 20,
        "changed": 20,
    }
    assert json.loads(await ok("message", "shift", *at, "--topic", "b/#", "--", "-15m"))["changed"] == 20
    code, _, error = await fasti_cli("message", "import", str(file), "--ids", *at)
    assert code == 1
    assert "id" in error
    stripped = [json.loads(line) for line in file.read_text().splitlines()]
    for item in stripped:
        del item["id"]
    again = "\n".join(json.dumps(item) for item in stripped)
    assert json.loads(await ok("message", "import", "-", *at, stdin=again)) == {"accepted": 40}
    for wrong in ((), ("x", "--topic", "a"), ("0" * 32, "--dry-run")):
        assert (await fasti_cli("message", "cancel", *wrong, *at))[0] == 2


async def test_density(url: str, c: fasti.Client) -> None:
    await fill(c)
    found = await c.timeline.density(bucket=timedelta(minutes=10), topic="a/#")
    assert [bucket.count for bucket in found.buckets[:5]] == [5, 5, 5, 5, 0]
    assert (found.total, found.bucket, len(found.buckets)) == (20, timedelta(minutes=10), 144)
    shown = await ok("timeline", "density", "--next", "1h", "--bucket", "10m", "--url", url)
    assert "█" in shown
    assert "40 pending" in shown
    said = json.loads(await ok("timeline", "density", "--next", "1d", "-o", "json", "--url", url))
    assert said["bucket_s"] == 1_800
    assert (await fasti_cli("timeline", "density", "--next", "soon", "--url", url))[0] == 2


async def test_a_shift_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    """With the `as_of` of the call that broke off each message moves once, over kill -9 and start."""
    data = tmp_path / "data"
    wish = {"filter": {"topic": "#"}, "shift": "PT1H"}
    async with serving(data, "--clock", "simulated") as server, http(server.url) as calls:
        async with fasti.Client(server.url) as c:
            await fill(c)
            before = await times(c)
        body = {**wish, "limit": 15}
        part = (await calls.call("POST", "/v1/messages:reschedule", body, status=200)).body
        assert part["changed"] == 15
        server.kill()
    async with serving(data, "--clock", "simulated") as server, http(server.url) as calls:
        body = {**wish, "as_of": part["as_of"]}
        rest = (await calls.call("POST", "/v1/messages:reschedule", body, status=200)).body
        assert rest["changed"] == 25
        async with fasti.Client(server.url) as c:
            moved = [datetime.fromisoformat(at) - timedelta(hours=1) for at in await times(c)]
    assert moved == [datetime.fromisoformat(at) for at in before]
