"""The simulated clock over HTTP: every due instant is met on the way, and housekeeping is done."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from server.engine.clock import SystemClock
from server.rounds.app import App
from server.settings.config import Config
from server.site import build_site
from shards.rocks import RocksStore
from timeline.horizon import BOUND_MS

from ..conftest import DAY_MS, HOUR_MS, START_MS, Running, with_settings

ADVANCE = "/v1/clock:advance"


async def test_nothing_is_late_however_far_the_step(server: Running) -> None:
    _, link = await server.connect("c", "#", window=1_000)
    delays = [1, 1, 59, 3_600, 5_000, 86_399, 86_400, 86_401]
    for delay in delays:
        await server.schedule(f"t/{delay}", deliver_in=delay)
    answer = await server.call("POST", ADVANCE, {"by": "P1D"})
    assert answer.body == {"now": "2026-11-22T08:00:00.000Z"}
    assert link.topics == [f"t/{delay}" for delay in delays[:-1]]
    assert {message.late_ms for message in link.sent} == {0}
    assert server.clock.now_ms == START_MS + DAY_MS
    assert (await server.call("GET", "/v1/info")).body["now"] == "2026-11-22T08:00:00.000Z"


async def test_two_walks_follow_each_other(server: Running) -> None:
    await asyncio.gather(*(server.call("POST", ADVANCE, {"by": by}) for by in ("1h", 3_600, "PT1H")))
    assert server.clock.now_ms == START_MS + 3 * HOUR_MS


async def test_a_step_of_nothing_dispatches_what_is_due(server: Running) -> None:
    name = await server.schedule()
    await server.call("POST", ADVANCE, {"by": 0})
    assert (await server.call("GET", f"/v1/messages/{name}")).body["state"] == "dispatched"


async def test_a_walk_behind_the_latest_time_seen_reaches_no_farther(server: Running) -> None:
    """What it reaches counts as dispatched after a kill; the clock had been set back."""
    horizon = server.app.core.horizon
    server.clock.now_ms -= HOUR_MS
    await server.call("POST", ADVANCE, {"by": "30m"})
    assert horizon.bound_ms <= START_MS + BOUND_MS
    await server.call("POST", ADVANCE, {"by": "40m"})
    assert horizon.bound_ms <= START_MS + HOUR_MS // 6 + BOUND_MS


async def test_a_session_expires_on_the_way(server: Running) -> None:
    subscriber, _ = await server.connect("c", "#", expiry_s=3_600)
    server.app.core.clients.leave(subscriber, is_clean=False)
    await server.call("POST", ADVANCE, {"by": "30m"})
    await server.call("GET", "/v1/sessions/c")
    await server.call("POST", ADVANCE, {"by": "31m"})
    await server.call("GET", "/v1/sessions/c", status=404)


async def test_what_waits_for_the_clock_is_met_on_the_way(server: Running) -> None:
    _, link = await server.connect("c", "#")
    await server.pass_time(HOUR_MS)
    server.clock.now_ms -= HOUR_MS
    await server.schedule("held", deliver_in="1m")
    gone = await server.schedule("gone", deliver_in="30s")
    await server.call("DELETE", f"/v1/messages/{gone}", status=204)
    await server.call("POST", ADVANCE, {"by": "2h"})
    assert [(m.record.topic, m.late_ms) for m in link.sent] == [(b"held", 0)]


@with_settings(slices={"retention_ms": DAY_MS})
class TestRetention:
    async def test_retention_follows_the_clock(self, server: Running) -> None:
        name = await server.schedule(deliver_in=60)
        await server.call("POST", ADVANCE, {"by": "1h"})
        assert len((await server.call("GET", "/v1/slices")).body["slices"]) == 1
        await server.call("POST", ADVANCE, {"by": "P3D"})
        assert (await server.call("GET", "/v1/slices")).body["slices"] == []
        await server.call("GET", f"/v1/messages/{name}", status=404)

    async def test_one_long_walk_does_what_short_ones_do(self, server: Running) -> None:
        await server.schedule(deliver_in=60)
        await server.call("POST", ADVANCE, {"by": "P3D"})
        assert (await server.call("GET", "/v1/slices")).body["slices"] == []

    @pytest.mark.long
    async def test_a_message_moves_on_far_beyond_the_retention_of_its_first_due(
        self, server: Running
    ) -> None:
        """Its id names a slice that was dropped long ago; its key answers as long as it is kept itself."""
        body = {"topic": "a/b", "payload": "hi", "deliver_in": "1h"}
        made = await server.call("POST", "/v1/messages", body, status=201, Idempotency_Key="k")
        name = made.body["id"]
        path = f"/v1/messages/{name}"
        for _ in range(3):
            tag = (await server.call("GET", path)).headers["ETag"]
            moved = await server.call("PATCH", path, {"deliver_in": "P10D"}, If_Match=tag)
            assert moved.body["id"] == name
            await server.call("PATCH", path, {"deliver_in": "P10D"}, status=412, If_Match=tag)
            await server.call("POST", ADVANCE, {"by": "P5D"})
            again = await server.call("POST", "/v1/messages", body, Idempotency_Key="k")
            assert (again.body["id"], again.headers["Idempotent-Replayed"]) == (name, "true")
        assert (await server.call("GET", path)).body["state"] == "pending"
        subscriber, link = await server.connect("c", "#")
        await server.call("POST", ADVANCE, {"by": "P5D"})
        assert [m.id_text(0) for m in link.sent] == [name]
        for packet_id in list(subscriber.session.flights):
            server.app.core.settling.ack(subscriber, packet_id)
        assert (await server.call("GET", path)).body["state"] == "dispatched"
        assert (await server.call("DELETE", path, status=409)).slug == "already-dispatched"
        await server.call("POST", ADVANCE, {"by": "P9D"})
        await server.call("GET", path, status=404)
        anew = await server.call("POST", "/v1/messages", body, status=201, Idempotency_Key="k")
        assert anew.body["id"] != name
        await server.call("PATCH", f"/v1/messages/{anew.body['id']}", {"deliver_in": "P30D"})
        await server.call("POST", ADVANCE, {"by": "P9D"})
        await server.call("DELETE", f"/v1/messages/{anew.body['id']}", status=204)
        assert server.app.core.opened.waiting.pending == 0


async def test_the_end_of_time_is_not_passed(server: Running) -> None:
    answer = await server.call("POST", ADVANCE, {"by": "P3650000D"}, status=422)
    assert answer.body["errors"][0]["field"] == "by"


async def test_a_store_that_fails_stops_the_walk(server: Running) -> None:
    server.store.is_failing = True
    assert (await server.call("POST", ADVANCE, {"by": "1h"}, status=503)).slug == "store-unavailable"
    server.store.is_failing = False


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[TestClient]:  # type: ignore[type-arg]
    app = App(Config(), SystemClock(), RocksStore(tmp_path), fatal=lambda: None)
    await app.start()
    site, _ = build_site(app, [])
    async with TestClient(TestServer(site)) as client:
        yield client
    await app.stop()


async def test_the_real_clock_is_not_moved(real: TestClient) -> None:  # type: ignore[type-arg]
    async with real.post(ADVANCE, json={"by": 1}) as answer:
        assert answer.status == 409
        assert (await answer.json(content_type=None))["type"] == "/problems/clock-not-simulated"
    async with real.get("/v1/info") as answer:
        assert (await answer.json())["clock"] == "system"
