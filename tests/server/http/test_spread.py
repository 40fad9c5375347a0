"""`spread`: the emptiest moment of the window, the same every time, evenly for many."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web

from server.engine.clock import SimulatedClock
from server.http.spread import Spreader
from server.http.turns import Turns
from server.settings.config import Config
from server.settings.times import format_ms
from tests.support.reading import parse_one

from ..conftest import HOUR_MS, MINUTE_MS, NDJSON, START_MS, Running, running

WINDOW = {"deliver_in": "PT1H", "spread": "PT5M"}
OPENS = START_MS + HOUR_MS


async def one(server: Running, **members: object) -> str:
    """When that comes; a member that is None here is left out."""
    given = {"topic": "a", "payload": "x", **WINDOW, **members}
    body = {name: value for name, value in given.items() if value is not None}
    return str((await server.call("POST", "/v1/messages", body, status=201)).body["deliver_at"])


async def batch(server: Running, items: list[dict[str, Any]], query: str = "") -> Any:
    body = b"\n".join(json.dumps({"topic": "a", "payload": "x", **item}).encode() for item in items)
    status = 200 if "each" in query else 201
    path = "/v1/messages:batch" + query
    return (await server.call("POST", path, body, status=status, Content_Type=NDJSON)).body


def at_of(name: str) -> int:
    return int(name[:12], 16)


def remote(address: str) -> web.Request:
    asked: Any = {}
    return cast("web.Request", SimpleNamespace(remote=address, protocol=None, get=asked.get))


async def test_an_empty_window_gives_its_first_moment(server: Running) -> None:
    assert await one(server) == format_ms(OPENS)


async def test_busy_stretches_are_avoided(server: Running) -> None:
    busy = [{"deliver_at": format_ms(OPENS + n * 100)} for n in range(3_000) if not 1_500 <= n < 1_600]
    await batch(server, busy)
    at = await one(server)
    assert format_ms(OPENS + 150_000) <= at < format_ms(OPENS + 160_000)
    shown = (
        await server.call("GET", f"/v1/messages?due_from={OPENS + 150_000}&due_to={OPENS + 160_000}")
    ).body
    assert [m["deliver_at"] for m in shown["messages"]] == [at]


async def test_many_come_out_evenly(server: Running) -> None:
    ids = (await batch(server, [WINDOW] * 640))["ids"]
    dues = [at_of(name) for name in ids]
    assert min(dues) >= OPENS
    assert max(dues) <= OPENS + 5 * MINUTE_MS
    assert len(set(dues)) == 640
    per_part = Counter((due_ms - OPENS) // 4_688 for due_ms in dues)
    assert set(per_part.values()) <= {9, 10, 11}


async def test_one_by_one_as_in_a_batch(server: Running, tmp_path: Path) -> None:
    """Deterministic: the same timeline and wish give the same moment, however it is asked for."""
    alone = [await one(server) for _ in range(30)]
    async with running(tmp_path / "other", Config(), SimulatedClock(START_MS)) as other:
        results = (await batch(other, [WINDOW] * 10, "?each=true"))["results"]
        together = [at_of(r["id"]) for r in results]
        together += [at_of(name) for name in (await batch(other, [WINDOW] * 10))["ids"]]
        answers = await asyncio.gather(*(one(other) for _ in range(10)))
    assert alone[:20] == [format_ms(at_ms) for at_ms in together]
    assert sorted(answers) == sorted(alone[20:])


async def test_what_a_batch_brings_itself_counts(server: Running) -> None:
    plain = [{"deliver_at": format_ms(OPENS + n)} for n in range(100)]
    ids = (await batch(server, [*plain, WINDOW]))["ids"]
    assert at_of(ids[-1]) >= OPENS + 4_000


async def test_a_window_that_has_begun(server: Running) -> None:
    early = format_ms(START_MS - MINUTE_MS)
    assert await one(server, deliver_in=None, deliver_at=early, spread="PT5M") >= format_ms(START_MS)
    assert await one(server, deliver_in=None, deliver_at=early, spread="30s") == early
    assert await one(server, deliver_in=None, spread="PT0S") == format_ms(START_MS)


async def test_a_key_gives_the_first_answer(server: Running) -> None:
    first = await one(server, key="k")
    body = {"topic": "a", "payload": "x", **WINDOW, "key": "k"}
    again = await server.call("POST", "/v1/messages", body)
    assert again.body["deliver_at"] == first
    assert await one(server) != first


async def test_whoever_spreads_does_not_wait_for_the_other_calls_of_the_same_client(server: Running) -> None:
    """Others wait for the lock: a client's listings may not hold up their messages."""
    spreader, turns, done = (
        Spreader(server.app.status.timeline),
        Turns(server.clock, max_bytes=1),
        list[str](),
    )
    listing = turns.of(remote("10.0.0.1"))

    async def listings() -> None:
        while "spread" not in done:
            await listing.begin()
            done.append("listing")

    async def spread() -> None:
        limits = server.app.core.config.limits
        message = parse_one(b'{"topic":"a","payload":1,"spread":"10m"}', START_MS, limits)
        async with turns.of(remote("10.0.0.1")).alone(spreader.lock):
            await spreader.settled([message], START_MS, turns.apart())
        done.append("spread")

    await asyncio.gather(*(listings() for _ in range(100)), spread())
    assert done.count("listing") < 100 + 50
