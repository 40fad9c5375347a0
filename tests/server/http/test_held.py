"""Messages that wait because the clock was set back are pending like all others, wherever one looks."""

from collections.abc import AsyncIterator
from math import inf
from pathlib import Path

import pytest

from server.core import timeline_of
from server.engine import errand
from server.engine.clock import SimulatedClock
from server.engine.lease import Lease
from server.schedules import retime
from server.settings.config import Config
from server.settings.times import parse_deliver_at
from shards.group_commit import GroupCommit
from shards.open_batch import OpenBatch
from shards.rocks import RocksStore
from tests.support.build import OPENED

from ..conftest import HOUR_MS, MINUTE_MS, START_MS, Running, running

NOW_MS = START_MS - HOUR_MS
DUE = "2026-11-21T07:10:00.000Z"


@pytest.fixture
async def back(server: Running, clock: SimulatedClock) -> AsyncIterator[Running]:
    """Set back by an hour."""
    await set_back(server, clock)
    yield server
    await server.pass_time(0)


async def set_back(server: Running, clock: SimulatedClock) -> None:
    await server.app.ask(lambda commit: None)
    await server.app.quiet()
    clock.now_ms -= HOUR_MS


async def dues(server: Running, query: str = "") -> list[str]:
    answer = await server.call("GET", f"/v1/messages?count=true{query}")
    messages = [message["deliver_at"] for message in answer.body["messages"]]
    assert answer.body["count"] == len(messages)
    return messages


async def test_list_count_density_and_export(back: Running) -> None:
    await back.schedule("a/b", deliver_at=DUE)
    await back.schedule("a/c", deliver_in="2h")
    cancelled = await back.schedule("a/d", deliver_at=DUE)
    await back.call("DELETE", f"/v1/messages/{cancelled}", status=204)
    assert back.app.core.opened.waiting.held == 2
    window = f"&due_from={NOW_MS}&due_to={NOW_MS + HOUR_MS}"
    for query in (window, f"{window}&topic=a/b"):
        assert await dues(back, query) == [DUE]
    assert len(await dues(back)) == 2
    for topic in ("", "&topic=a/b", "&topic=%23"):
        path = f"/v1/timeline/density?from={NOW_MS}&to={NOW_MS + HOUR_MS}&bucket=PT10M{topic}"
        view = (await back.call("GET", path)).body
        assert [bucket["count"] for bucket in view["buckets"]] == [0, 1, 0, 0, 0, 0]
    (line,) = [(await back.call("GET", f"/v1/messages:export?{window[1:]}")).body]
    assert line["topic"] == "a/b", "one line"


async def test_spread_sees_them(back: Running) -> None:
    wish = {"topic": "a", "payload": "x", "deliver_at": DUE, "spread": "PT5M"}
    answers = [(await back.call("POST", "/v1/messages", wish, status=201)).body for _ in range(3)]
    assert len({answer["deliver_at"] for answer in answers}) == 3
    assert back.app.core.opened.waiting.held == 3


async def test_many_are_shifted_and_cancelled(back: Running) -> None:
    for _ in range(3):
        await back.schedule("a/b", deliver_at=DUE)
    chosen = {"filter": {"topic": "a/#", "due_from": NOW_MS, "due_to": NOW_MS + HOUR_MS}}
    said = (await back.call("POST", "/v1/messages:reschedule", {**chosen, "shift": "PT1M"})).body
    assert (said["matched"], said["changed"]) == (3, 3)
    assert await dues(back) == ["2026-11-21T07:11:00.000Z"] * 3
    said = (await back.call("POST", "/v1/messages:cancel", chosen)).body
    assert (said["matched"], said["changed"]) == (3, 3)
    assert await dues(back) == []


async def test_retime_moves_them(
    tmp_path: Path, config: Config, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = "2026-11-21T09:30[Europe/Bucharest]"
    async with running(tmp_path / "data", config, clock) as server:
        await set_back(server, clock)
        names = [await server.schedule("a", deliver_at=wish) for _ in range(3)]
        names.append(await server.schedule("a", deliver_at="2026-11-22T09:30[Europe/Bucharest]"))
        assert server.app.core.opened.waiting.held == 3
    monkeypatch.setattr(retime, "parse_deliver_at", lambda text: parse_deliver_at(text) + MINUTE_MS)
    monkeypatch.setattr(retime, "GROUP_MESSAGES", 2)
    store = RocksStore(tmp_path / "data")
    report = retime.retime(
        timeline_of(config, clock, store), clock.now_ms, lambda line: None, Lease(clock, inf)
    )
    store.close()
    assert report == retime.Report(zoned=4, moved=4)
    async with running(tmp_path / "data", config, clock) as server:
        shown = [(await server.call("GET", f"/v1/messages/{name}")).body["deliver_at"] for name in names]
        assert shown == ["2026-11-21T07:31:00.000Z"] * 3 + ["2026-11-22T07:31:00.000Z"]


@OPENED
async def test_large_ones_are_released_in_several_groups(
    back: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, seal = [], OpenBatch.seal

    def sealed(group: OpenBatch) -> GroupCommit:
        sizes.append(group.size)
        return seal(group)

    for _ in range(20):
        await back.schedule("a/b", payload="x" * 1_000, deliver_at=DUE)
    monkeypatch.setattr(errand, "GROUP_BYTES", 5_000)
    monkeypatch.setattr(OpenBatch, "seal", sealed)
    await back.pass_time(11 * MINUTE_MS)
    assert back.app.core.opened.waiting.held == 0
    assert 5_000 <= max(sizes) < 8_000
