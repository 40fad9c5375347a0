"""`GET /v1/history`: its points, who sees what, and what a sample costs."""

from typing import Any

import pytest

from server.reports import sampling
from shards.errors import StoreFailed

from ..conftest import MINUTE_MS, Running
from .conftest import Keyed
from .test_retries import fail

STEP_MS = 10_000


async def sample(server: Running, by_ms: int = STEP_MS) -> None:
    await server.pass_time(by_ms)
    await server.app.sampling.look()


async def points(server: Running, query: str = "") -> list[dict[str, Any]]:
    answer = await server.call("GET", f"/v1/history{query}")
    found: list[dict[str, Any]] = answer.body["points"]
    return found


async def test_nothing_yet(server: Running) -> None:
    answer = await server.call("GET", "/v1/history")
    assert answer.body == {"since": None, "step_s": 10.0, "points": []}


async def test_a_point_has_what_was_counted_since_the_one_before(server: Running) -> None:
    await sample(server)
    await server.connect("till", "lots/#")
    for due_s in (5, 5, 60):
        await server.schedule(deliver_in=due_s)
    await sample(server)
    await sample(server)
    answer = (await server.call("GET", "/v1/history")).body
    assert answer["since"] == "2026-11-21T08:00:10.000Z"
    first, second = answer["points"]
    assert (first["at"], first["seconds"]) == ("2026-11-21T08:00:20.000Z", 10.0)
    assert (first["accepted"], first["dispatched"], first["pending"]) == (3, 2, 1)
    assert first["lateness"] == {"p50_ms": 5_000, "p99_ms": 5_000}
    assert (second["accepted"], second["dispatched"], second["pending"]) == (0, 0, 1)
    assert second["lateness"] == {"p50_ms": None, "p99_ms": None}
    assert second["memory_bytes"] > 0


async def test_the_first_point_has_all_since_the_start(server: Running) -> None:
    server.app.sampling.begin()
    await server.schedule(deliver_in=60)
    await sample(server)
    (first,) = await points(server)
    assert (first["accepted"], first["seconds"]) == (1, 10.0)
    assert first["store_bytes"] is not None


async def test_steps_add_up(server: Running) -> None:
    for _ in range(13):
        await server.schedule(deliver_in=1)
        await sample(server)
    fine = await points(server)
    assert [one["dispatched"] for one in fine] == [1] * 12
    minutes = await points(server, "?from=2026-11-21T08:00:10Z&step=1m")
    assert [(one["seconds"], one["dispatched"]) for one in minutes] == [(60.0, 6), (60.0, 6)]
    part = await points(server, "?from=2026-11-21T08:00:30Z&to=2026-11-21T08:00:50Z")
    assert [one["at"][17:19] for one in part] == ["40", "50"]
    assert len(await points(server, "?from=2026-11-20T08:00:00Z")) == 1  # 5 minutes


async def test_groups_and_reasons(server: Running) -> None:
    await sample(server)
    await fail(server, "1", "2")
    await server.call("POST", "/v1/retries:bury", {"filter": {"topic": "jobs/2"}})
    away, _ = await server.connect("away", "$share/away/a/#")
    till, _ = await server.connect("till", "a/#")
    for gone in (away, till):
        server.app.core.clients.leave(gone, is_clean=False)
    await server.schedule("a/1", deliver_in=1)
    for _ in range(sampling.LOOK_EACH):
        await sample(server, 5_000)
    *_, before, last = await points(server)
    assert (last["retries"], last["retries_by_reason"]) == (1, {"db is down": 1})
    assert last["dead_letters"] == 1
    assert sum(sum(one["died_by_reason"].values()) for one in await points(server)) == 1
    (whole,) = await points(server, "?step=1h")
    assert sum(whole["died_by_reason"].values()) == 1
    assert whole["retried"] == 2
    groups = {one["group"]: one for one in last["groups"]}
    assert (groups["away"]["lag_messages"], groups["workers"]["retries"]) == (1, 1)
    assert before["groups"] != [] or last["groups"] != []
    assert {one["session"]: (one["lag_messages"], one["retries"]) for one in last["sessions"]} == {
        "till": (1, 0)
    }
    (*_, one) = await points(server, "?group=away")
    assert [group["group"] for group in one["groups"]] == ["away"]
    assert (await points(server, "?group=none"))[-1]["groups"] == []


async def test_how_deliveries_of_a_group_ended(server: Running) -> None:
    server.app.sampling.begin()
    await fail(server, "1", "2", "3")
    for verb, topic in (("bury", "jobs/1"), ("drop", "jobs/2")):
        await server.call("POST", f"/v1/retries:{verb}", {"filter": {"topic": topic}})
    await server.pass_time(2 * MINUTE_MS)
    member = server.session("w")
    server.app.core.settling.ack(member, *member.session.flights)
    await server.app.quiet()
    for _ in range(2 * sampling.LOOK_EACH):
        await sample(server)
    found = [one["groups"] for one in await points(server)]
    ends = ("done", "dead", "dropped", "withheld")
    counted = [[group[0][name] for name in ends] for group in found if group]
    assert len(counted) == 2 * sampling.LOOK_EACH, "it is told though nothing is left of it"
    assert [sum(each) for each in zip(*counted, strict=True)] == [1, 1, 1, 0]
    metrics = (await server.call("GET", "/metrics")).body.decode()
    for name, count in zip(ends, (1, 1, 1, 0), strict=True):
        assert f'fasti_group_{name}_total{{filter="jobs/#",group="workers"}} {count}.0' in metrics


async def test_dead_letters_beyond_the_steps_of_a_sample_count_in_the_next(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.http.turns.STEP_S", 0.0)
    monkeypatch.setattr(sampling, "STEPS", 2)
    await sample(server)
    await fail(server, "1", "2", "3")
    await server.call("POST", "/v1/retries:bury", {"filter": {"topic": "#"}})
    await sample(server)
    await sample(server)
    counted = [sum(one["died_by_reason"].values()) for one in await points(server)]
    assert counted == [2, 1]


async def test_a_store_that_fails_is_left_out(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise StoreFailed

    await sample(server)
    monkeypatch.setattr(server.app.core.dead_letters, "read", broken)
    await sample(server)
    assert len(await points(server)) == 1


async def test_a_stretch_does_not_end_before_it_begins(server: Running) -> None:
    span = "from=2026-11-21T09:00:00Z&to=2026-11-21T08:00:00Z"
    await server.call("GET", f"/v1/history?{span}", status=422)


async def test_keys(keyed: Keyed) -> None:
    keyed.add("wide", "read")
    keyed.add("narrow", "read", deliver=["a/#"])
    await sample(keyed.server)
    await sample(keyed.server, MINUTE_MS)
    (found,) = (await keyed.body("narrow", "GET", "/v1/history"))["points"]
    assert set(found) == {"at", "seconds", "behind_ms"}
    (found,) = (await keyed.body("wide", "GET", "/v1/history"))["points"]
    assert "pending" in found
