"""`:ack` with `then`: the message is done and its follow-ups are there, or neither."""

from pathlib import Path
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.settings.config import Config
from tests.support.memory_store import MemoryStore
from tests.support.stores import FailingMemory

from ..conftest import Running, running
from .conftest import Keyed
from .test_by_key import BY_KEY

JOBS = "/v1/groups/workers/messages"
NEXT = {"topic": "next/1", "payload": "y", "deliver_in": "1h"}


async def lease(server: Running, *, count: int = 1) -> list[str]:
    """Leases of new messages; with the group, if it is the first time."""
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=None)
    for n in range(count):
        await server.schedule(f"jobs/{n}", n)
    await server.app.quiet()
    leased = (await server.call("POST", f"{JOBS}:lease", {"max": count, "lease": "1m"})).body["messages"]
    return [one["lease_id"] for one in leased]


async def ack(server: Running, leases: list[str], *then: object, status: int = 200) -> Any:
    body = {"lease_ids": leases, "then": list(then)}
    answer = await server.call("POST", f"{JOBS}:ack", body, status=status)
    await server.app.quiet()
    return answer


async def undone(server: Running) -> int:
    """Messages that the group has not finished."""
    group = (await server.call("GET", "/v1/groups/workers")).body["groups"][0]
    return int(sum(group["undone"][name] or 0 for name in ("lag", "in_flight", "retries")))


async def test_done_and_followed(server: Running) -> None:
    (mine,) = await lease(server)
    told = (await ack(server, [mine], NEXT, {**NEXT, "topic": "jobs/7", "deliver_in": 0})).body
    assert (told["acked"], told["gone"], len(told["ids"])) == (1, [], 2)
    assert (await server.call("GET", f"/v1/messages/{told['ids'][0]}")).body["topic"] == "next/1"
    (follow,) = (await server.call("POST", f"{JOBS}:lease", {"max": 5})).body["messages"]
    assert follow["id"] == told["ids"][1], "the first one is done"
    await ack(server, [follow["lease_id"]])
    assert await undone(server) == 0


async def test_gone_stores_nothing(server: Running) -> None:
    """Acked before; or its lease has lapsed, and another worker has it."""
    (mine,) = await lease(server)
    await ack(server, [mine], NEXT)
    assert (await ack(server, [mine], NEXT)).body == {"acked": 0, "gone": [mine], "ids": []}
    assert server.app.core.opened.waiting.pending == 1
    (late,) = await lease(server)
    await server.call("POST", f"{JOBS}:nack", {"lease_ids": [late], "delay": 0})
    await server.app.quiet()
    assert (await ack(server, [late], NEXT)).body["gone"] == [late]
    (again,) = (await server.call("POST", f"{JOBS}:lease", {"max": 1})).body["messages"]
    assert (await ack(server, [late], NEXT)).body["gone"] == [late]
    assert (await ack(server, [again["lease_id"]], NEXT)).body["acked"] == 1, "also that of a retry"
    assert server.app.core.opened.waiting.pending == 2
    assert await undone(server) == 0
    assert (await server.call("GET", "/v1/retries")).body["retries"] == []


@pytest.mark.parametrize(
    ("then", "field"),
    [
        ({"topic": "a"}, "then[1].payload"),
        ({**NEXT, "qos": 3}, "then[1].qos"),
        ({**NEXT, "debounce": None}, "then[1].debounce"),
        ({"topic": "a/+", "payload": "x"}, "then[1].topic"),
        ({**NEXT, "deliver_in": "soon"}, "then[1].deliver_in"),
        ({**NEXT, "id": "0" * 32}, "then[1].id"),
        ({**NEXT, "key": "k", "key_scope": "pending"}, "then[1].key_scope"),
        ({**NEXT, "deliver_to": "nobody"}, "deliver_to"),
        ({**NEXT, "key": "taken"}, "key"),
    ],
)
async def test_a_follow_up_that_is_refused_leaves_the_lease(
    server: Running, then: dict[str, object], field: str
) -> None:
    await server.call("PUT", BY_KEY + "taken", {"topic": "x", "payload": "x", "deliver_in": 9}, status=201)
    (mine,) = await lease(server)
    refused = await ack(server, [mine], NEXT, then, status=422)
    assert refused.body["errors"][0]["field"] == field
    assert (server.app.core.opened.waiting.pending, await undone(server)) == (1, 1)
    assert (await ack(server, [mine], NEXT)).body["acked"] == 1


async def test_of_exactly_one_lease_and_bounded(server: Running) -> None:
    leases = await lease(server, count=2)
    for some in (leases, []):
        assert (await ack(server, some, NEXT, status=422)).body["errors"][0]["field"] == "then"
    assert (await ack(server, leases[:1], *[NEXT] * 101, status=422)).body["errors"][0]["field"] == "then"
    assert (await ack(server, leases)).body["acked"] == 2
    assert server.app.core.opened.waiting.pending == 0


async def test_a_key_of_a_follow_up_is_as_in_a_post(server: Running) -> None:
    first = (await server.call("POST", "/v1/messages", {**NEXT, "key": "k"}, status=201)).body["id"]
    (mine,) = await lease(server)
    assert (await ack(server, [mine], {**NEXT, "key": "k"})).body["ids"] == [first]
    assert server.app.core.opened.waiting.pending == 1


@pytest.mark.parametrize("has_lapsed", [False, True])
async def test_a_failed_store_leaves_both(server: Running, has_lapsed: bool) -> None:
    (mine,) = await lease(server)
    server.store.is_failing = True
    assert (await ack(server, [mine], NEXT, status=None)).status in (500, 503)
    server.store.is_failing = False
    await server.writable()
    assert server.app.core.opened.waiting.pending == 0
    if has_lapsed:
        await server.call("POST", f"{JOBS}:release", {"lease_ids": [mine]})
        (mine,) = [
            one["lease_id"]
            for one in (await server.call("POST", f"{JOBS}:lease", {"max": 1})).body["messages"]
        ]
    assert (await ack(server, [mine], NEXT)).body["acked"] == 1
    assert (server.app.core.opened.waiting.pending, await undone(server)) == (1, 0)


@pytest.mark.parametrize("then", ["acked again", "nacked", "lapsed", "nothing"])
async def test_what_is_stored_though_its_sync_has_failed_is_done(server: Running, then: str) -> None:
    """The worker is told 503, and acks again: its follow-ups are there once."""
    (mine,) = await lease(server)
    if isinstance(server.store, MemoryStore):
        server.store.survivors = 9
    server.store.keeps_next = True
    assert (await ack(server, [mine], NEXT, {**NEXT, "key": "k"}, status=None)).status == 503
    if then == "nacked":
        await server.call("POST", f"{JOBS}:nack", {"lease_ids": [mine], "delay": 0}, status=None)
    if then == "lapsed":
        await server.pass_time(61_000)
    await server.writable()
    if then == "acked again":
        assert (await ack(server, [mine], NEXT, {**NEXT, "key": "k"})).body["gone"] == [mine]
    assert (server.app.core.opened.waiting.pending, await undone(server)) == (2, 0)
    assert (await server.call("POST", f"{JOBS}:lease", {"max": 1})).body["messages"] == []
    assert (await server.call("GET", "/v1/retries")).body["retries"] == []


async def test_over_a_start(
    tmp_path: Path, config: Config, clock: SimulatedClock, ram: FailingMemory | None
) -> None:
    async with running(tmp_path, config, clock, store=ram) as server:
        await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
        mine, other = await lease(server, count=2)
        await ack(server, [mine], NEXT)
    async with running(tmp_path, config, clock, store=ram) as server:
        assert (server.app.core.opened.waiting.pending, await undone(server)) == (1, 1)
        assert (await ack(server, [mine], NEXT)).body["gone"] == [mine]
        assert (await ack(server, [other], NEXT)).body["acked"] == 1, "a lease from before the start"
        assert await undone(server) == 0


async def test_who_may_place_them(keyed: Keyed) -> None:
    keyed.add("worker", "read")
    keyed.add("both", publish=["next/#"], deliver=["#"])
    await keyed.call("ops", "PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    await keyed.schedule("ops", "jobs/1", deliver_in=0)
    await keyed.server.app.quiet()
    leased = await keyed.body("both", "POST", f"{JOBS}:lease", {"max": 1, "filter": "jobs/#"})
    leases = [leased["messages"][0]["lease_id"]]
    body: dict[str, object] = {"lease_ids": leases, "then": [NEXT]}
    assert (await keyed.call("worker", "POST", f"{JOBS}:ack", body, status=403)).slug == "forbidden"
    other = {**body, "then": [{**NEXT, "topic": "jobs/2"}]}
    assert (await keyed.call("both", "POST", f"{JOBS}:ack", other, status=403)).slug == "forbidden"
    assert (await keyed.body("both", "POST", f"{JOBS}:ack", body))["acked"] == 1


async def test_no_way_takes_a_header_that_only_the_server_sets(server: Running) -> None:
    """It would be taken for the server's own, by each program that works on the message."""
    (mine,) = await lease(server)
    forged = {**NEXT, "headers": {"own": "1", "fasti-id": "forged"}}
    nightly = {"cron": "0 3 * * *", "timezone": "UTC", "topic": "a", "payload": "x"}
    for verb, path, body in (
        ("POST", "/v1/messages", forged),
        ("POST", "/v1/messages:batch", [NEXT, forged]),
        ("PUT", "/v1/messages/by-key/k", forged),
        ("PUT", "/v1/schedules/nightly", {**nightly, "headers": forged["headers"]}),
        ("POST", f"{JOBS}:ack", {"lease_ids": [mine], "then": [forged]}),
    ):
        problem = (await server.call(verb, path, body, status=422)).body
        assert "fasti-" in str(problem), path
    assert await undone(server) == 1
