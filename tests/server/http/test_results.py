"""Results: what is taken with an ack, who may read it, how it is waited for, and that it is there or not."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from server import site
from server.engine.clock import SimulatedClock
from server.http.routes import results
from server.settings.config import Config
from shards import kept
from tests.support.http import Answer
from tests.support.memory_store import MemoryStore
from tests.support.stores import FailingMemory

from ..conftest import Running, running, until
from .conftest import Keyed
from .test_follow_ups import JOBS, NEXT, lease, undone
from .test_progress import leased


async def ack(server: Running, mine: str, result: object, status: int = 200, **more: Any) -> Any:
    body = {"lease_ids": [mine], "result": result, **more}
    answer = await server.call("POST", f"{JOBS}:ack", body, status=status)
    await server.app.quiet()
    return answer


async def got(server: Running, message: str, query: str = "", status: int = 200, **headers: str) -> Answer:
    return await server.call("GET", f"/v1/messages/{message}/result{query}", status=status, **headers)


@asynccontextmanager
async def waiting(
    server: Running, message: str, query: str = "?wait=60", status: int = 200, **headers: str
) -> "AsyncIterator[asyncio.Task[Answer]]":
    """A call that waits; it has ended at the end of the block."""
    core, before = server.app.core, dict(server.app.core.settling.awaited)
    task = asyncio.create_task(got(server, message, query, status, **headers))
    await until(lambda: task.done() or core.settling.awaited.keys() - before.keys() or len(before))
    yield task
    async with asyncio.timeout(10):
        await task
    await until(lambda: not core.settling.awaited)


@pytest.mark.parametrize("result", [{"pages": [1, 2.5]}, "é", 0, None, [], False, ""])
async def test_what_came_is_given(server: Running, result: object) -> None:
    message, mine = await leased(server)
    assert (await got(server, message)).body == {"outcome": "running"}
    assert (await ack(server, mine, result)).body["acked"] == 1
    found = (await got(server, message)).body
    assert found.pop("ended_at").startswith(("2026-11-21T07:5", "2026-11-21T08:0")), "the loop's time is real"
    assert found == {"outcome": "done", "result": result}
    assert (await got(server, message, "?group=workers")).body["result"] == result
    assert "result" not in (await got(server, message, "?group=others")).body
    assert await undone(server) == 0


async def test_as_it_came(server: Running) -> None:
    message, mine = await leased(server)
    raw = b'{"lease_ids":["' + mine.encode() + b'"],"result": {"n":1.0000,  "n": 1e999}}'
    await server.call("POST", f"{JOBS}:ack", raw, Content_Type="application/json")
    async with server.http.get(f"/v1/messages/{message}/result") as answer:
        assert b'"result":{"n":1.0000,  "n": 1e999},' in await answer.read()


async def test_together_with_what_follows(server: Running) -> None:
    message, mine = await leased(server)
    told = (await ack(server, mine, 1, then=[NEXT])).body
    assert (told["acked"], len(told["ids"])) == (1, 1)
    assert (await got(server, message)).body["result"] == 1


async def test_refusals_leave_the_lease(server: Running) -> None:
    message, mine = await leased(server)
    (other,) = await lease(server)
    most = "x" * ((64 << 10) - 2)
    both = {"lease_ids": [mine, other], "result": 1}
    refused = [
        await ack(server, mine, most + "x", 422),
        await server.call("POST", f"{JOBS}:ack", both, status=422),
        await server.call("POST", f"{JOBS}:ack", {**both, "lease_ids": []}, status=422),
    ]
    assert [[one["field"] for one in answer.body["errors"]] for answer in refused] == [["result"]] * 3
    broken = b'{"lease_ids":["' + mine.encode() + b'"],"result":"\xff"}'
    await server.call("POST", f"{JOBS}:ack", broken, status=400, Content_Type="application/json")
    assert await undone(server) == 2
    assert (await ack(server, mine, most)).body["acked"] == 1
    assert (await got(server, message)).body["result"] == most


async def test_gone_stores_nothing(server: Running) -> None:
    """Only the lease itself counts, as with follow-ups."""
    message, mine = await leased(server)
    await server.call("POST", f"{JOBS}:nack", {"lease_ids": [mine], "delay": 0})
    await server.app.quiet()
    (again,) = (await server.call("POST", f"{JOBS}:lease", {"max": 1})).body["messages"]
    assert (await ack(server, mine, "late")).body == {"acked": 0, "gone": [mine], "ids": []}
    assert await undone(server) == 1
    assert (await ack(server, again["lease_id"], "good")).body["acked"] == 1
    assert (await ack(server, again["lease_id"], "twice")).body["gone"] == [again["lease_id"]]
    assert (await got(server, message)).body["result"] == "good"


async def test_at_the_bound_the_lease_stays(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "RESULT_BYTES_EACH", 10)
    first, second = await lease(server, count=2)
    await ack(server, first, "x" * 6)
    refused = await ack(server, second, "x" * 6, 429)
    assert (refused.slug, refused.headers["Retry-After"]) == ("result-quota", "1")
    assert await undone(server) == 1
    assert (await ack(server, second, "")).body["acked"] == 1


async def test_a_failed_store_leaves_both(server: Running) -> None:
    message, mine = await leased(server)
    server.store.is_failing = True
    async with waiting(server, message) as waits:
        assert (await ack(server, mine, 1, status=None)).status in (500, 503)  # type: ignore[arg-type]
        server.store.is_failing = False
        await server.writable()
        assert not waits.done()
        assert await undone(server) == 1
        assert (await ack(server, mine, 2)).body["acked"] == 1
    assert waits.result().body["result"] == 2


async def test_what_is_stored_though_its_sync_has_failed_is_there(server: Running) -> None:
    message, mine = await leased(server)
    if isinstance(server.store, MemoryStore):
        server.store.survivors = 9
    server.store.keeps_next = True
    assert (await ack(server, mine, 1, status=None)).status == 503  # type: ignore[arg-type]
    await server.writable()
    assert (await ack(server, mine, 2)).body["gone"] == [mine]
    assert (await got(server, message)).body["result"] == 1


async def test_over_a_start(
    tmp_path: Path, config: Config, clock: SimulatedClock, ram: FailingMemory | None
) -> None:
    """What is answered is there after a kill."""
    async with running(tmp_path, config, clock, store=ram) as server:
        message, mine = await leased(server)
        (other,) = await lease(server)
        await ack(server, mine, {"n": 1})
        server.store.is_failing = True  # nothing that a stop would write
    server.store.is_failing = False
    async with running(tmp_path, config, clock, store=ram) as server:
        assert (await got(server, message)).body["result"] == {"n": 1}
        assert await undone(server) == 1
        assert (await ack(server, other, 2)).body["acked"] == 1, "a lease from before the start"


# -- several places


async def test_several_groups_are_named(server: Running) -> None:
    for name in ("a", "b", "c"):
        await server.call("PUT", f"/v1/groups/{name}", {"filter": "jobs/#"}, status=201)
    message = await server.schedule("jobs/1")
    await server.app.quiet()
    for name in ("a", "b"):
        path = f"/v1/groups/{name}/messages"
        (one,) = (await server.call("POST", f"{path}:lease", {"max": 1})).body["messages"]
        await server.call("POST", f"{path}:ack", {"lease_ids": [one["lease_id"]], "result": name})
        if name == "a":
            found = (await got(server, message)).body
            assert (found["outcome"], found["result"]) == ("queued", "a"), "c has not had it"
    refused = await got(server, message, status=409)
    assert (refused.slug, refused.body["groups"]) == ("several-results", ["a", "b"])
    assert (await got(server, message, "?group=b&wait=60")).body["result"] == "b"
    assert (await got(server, message, "?group=c")).body == {"outcome": "queued"}
    empty = await got(server, message, "?group=", status=422)
    assert empty.body["errors"][0]["field"] == "group"


# -- waiting


async def test_it_ends_as_soon_as_the_result_is_there(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without looking for it."""
    monkeypatch.setattr(results, "LOOK_S", 600)
    message, mine = await leased(server)
    async with waiting(server, message) as one, waiting(server, message) as other:
        await ack(server, mine, "here")
    assert [task.result().body["result"] for task in (one, other)] == ["here", "here"]


End = Callable[[Running, str], Awaitable[object]]


async def _acked(server: Running, mine: str) -> None:
    await server.call("POST", f"{JOBS}:ack", {"lease_ids": [mine]})


async def _died(server: Running, mine: str) -> None:
    await server.call("POST", f"{JOBS}:nack", {"lease_ids": [mine], "delay": "never"})


async def _dropped(server: Running, mine: str) -> None:
    await server.call("POST", f"{JOBS}:nack", {"lease_ids": [mine], "delay": "1h"})
    await server.call("POST", "/v1/retries:drop", {"filter": {"group": "workers"}})


@pytest.mark.parametrize(("end", "outcome"), [(_acked, "done"), (_died, "failed"), (_dropped, "dropped")])
async def test_it_ends_with_other_ends(
    server: Running, monkeypatch: pytest.MonkeyPatch, end: End, outcome: str
) -> None:
    monkeypatch.setattr(results, "LOOK_S", 0.02)
    message, mine = await leased(server)
    async with waiting(server, message) as waits:
        await end(server, mine)
    assert waits.result().body == {"outcome": outcome}


async def test_it_ends_when_the_message_is_cancelled_or_was(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LOOK_S", 0.02)
    message = await server.schedule("jobs/1", deliver_in="1h")
    async with waiting(server, message) as waits:
        moved = {"deliver_in": "2h"}
        await server.call("PATCH", f"/v1/messages/{message}", moved)
        assert not waits.done()
        await server.call("DELETE", f"/v1/messages/{message}", status=204)
    assert waits.result().body == {"outcome": "cancelled"}
    assert (await got(server, message, "?wait=60")).body == {"outcome": "cancelled"}
    nobody = await server.schedule("other", deliver_in=0)
    await server.app.quiet()
    assert (await got(server, nobody, "?wait=60")).body == {"outcome": "unclaimed"}


async def test_it_is_over_in_time(server: Running) -> None:
    message, _ = await leased(server)
    assert (await got(server, message, "?wait=0.05s")).body == {"outcome": "running"}
    for query, field in (("?wait=61", "wait"), ("?wait=x", "wait"), ("?x=1", "x")):
        refused = await got(server, message, query, 422)
        assert [one["field"] for one in refused.body["errors"]] == [field]


async def test_waits_are_bounded_and_who_goes_frees_its_place(
    tmp_path: Path,
    config: Config,
    clock: SimulatedClock,
    ram: FailingMemory | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One client has at most as many as it leaves for others."""
    monkeypatch.setattr(results, "LOOK_S", 0.02)
    monkeypatch.setattr(site, "WAITS_MAX", 4)
    async with running(tmp_path, config, clock, store=ram) as server:
        message, mine = await leased(server)
        awaited = server.app.core.settling.awaited
        tasks = [asyncio.create_task(got(server, message, "?wait=60")) for _ in range(2)]
        await until(lambda: [len(wakes) for wakes in awaited.values()] == [2])
        refused = await got(server, message, "?wait=60", 429)
        assert (refused.slug, refused.headers["Retry-After"]) == ("over-quota", "1")
        assert (await got(server, message)).body == {"outcome": "running"}, "it does not wait"
        tasks[0].cancel()
        await until(lambda: [len(wakes) for wakes in awaited.values()] == [1])
        tasks.append(asyncio.create_task(got(server, message, "?wait=60")))
        await until(lambda: [len(wakes) for wakes in awaited.values()] == [2])
        await ack(server, mine, 1)
        assert [answer.body["result"] for answer in await asyncio.gather(*tasks[1:])] == [1, 1]
        assert not awaited


async def test_a_server_that_stops_ends_them(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOK_S", 0.02)
    message, _ = await leased(server)
    async with waiting(server, message, status=503) as waits:
        server.app.end_streams()
    assert waits.result().slug == "not-ready"
    assert waits.result().headers["Retry-After"] == "1"


# -- who may


async def test_who_may_read_it(keyed: Keyed) -> None:
    """Who may publish to the topic; or receive it, and see the group."""
    server = keyed.server
    keyed.add("publisher", publish=["jobs/#"], subscribe=[], deliver=[])
    keyed.add("worker", publish=[], subscribe=["jobs/#"], deliver=["jobs/#"])
    keyed.add("receiver", publish=[], subscribe=["#"], deliver=["jobs/#"])
    keyed.add("stranger", publish=["other/#"], subscribe=["other/#"], deliver=["other/#"])
    keyed.add("sender", "schedule", publish=["jobs/#"])
    await keyed.body("worker", "POST", f"{JOBS}:lease", {"max": 1, "filter": "jobs/#"})
    message = await keyed.schedule("publisher", "jobs/1", deliver_in=0)
    await server.app.quiet()
    (one,) = (await keyed.body("worker", "POST", f"{JOBS}:lease", {"max": 1}))["messages"]
    body = {"lease_ids": [one["lease_id"]], "result": "secret"}
    assert (await keyed.body("worker", "POST", f"{JOBS}:ack", body))["acked"] == 1
    for name in ("ops", "publisher", "worker"):
        found = (await got(server, message, "?wait=1", **keyed.shown(name))).body
        assert (found["outcome"], found["result"]) == ("done", "secret"), name
    hidden = (await got(server, message, "?wait=60", **keyed.shown("receiver"))).body
    assert hidden == {"outcome": "done"}, "it does not see the group"
    unknown = "01a1fd5d9eff00000000000000100002"
    for one in (message, unknown):
        refused = await got(server, one, "?wait=60", 404, **keyed.shown("stranger"))
        assert (refused.slug, message in json.dumps(refused.body)) == ("not-found", one == message)
    await got(server, message, status=403, **keyed.shown("sender"))
    await got(server, message, status=401)


async def test_rights_are_judged_again_when_it_wakes(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOK_S", 0.02)
    server = keyed.server
    keyed.add("publisher", publish=["jobs/#"])
    message = await keyed.schedule("publisher", "jobs/1")
    async with waiting(server, message, status=404, **keyed.shown("publisher")) as waits:
        keyed.file.revoke("publisher")
        keyed.take()
    assert waits.result().slug == "not-found"


async def test_it_is_over_with_its_time_whether_it_was_swept_or_not(
    server: Running, clock: SimulatedClock
) -> None:
    message, mine = await leased(server)
    await ack(server, mine, "soon over")
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#", "result_ttl": "10s"})
    assert (await got(server, message)).body["result"] == "soon over"
    clock.now_ms += 11_000
    assert (await got(server, message)).body == {"outcome": "done"}
