"""`key_scope`: a key that is free when nothing of its message is undone; what a mismatch says."""

import asyncio
import json
from typing import Any

import pytest

from server.http.differing import FIELDS
from shards.draft import AS_EVER
from tests.support.http import Http

from ..conftest import HOUR_MS, NDJSON, Running
from .test_by_key import BODY, BY_KEY, keyed_one

SCOPE = "?key_scope=pending"
JOBS = "/v1/groups/workers/messages"
NOW = {"topic": "jobs/1", "payload": "x"}


async def lease(server: Running) -> dict[str, Any]:
    (message,) = (await server.call("POST", f"{JOBS}:lease", {"max": 1})).body["messages"]
    return {"lease_ids": [message["lease_id"]]}


async def job(server: Running, *, status: int, **members: object) -> str:
    body = {**NOW, "key": "k", "key_scope": "pending", **members}
    made = await server.call("POST", "/v1/messages", body, status=status)
    await server.app.quiet()
    return str(made.body["id"]) if status < 400 else str(made.slug)


async def test_one_at_a_time(server: Running) -> None:
    """As a unique job is: while it is pending, not taken, in hand, or waits for its next try."""
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    first = await job(server, status=201, deliver_in="1h")
    assert await job(server, status=200, deliver_in="1h") == first
    assert await job(server, status=422) == "idempotency-mismatch"
    await server.pass_time(HOUR_MS)
    assert await job(server, status=200, deliver_in="1h") == first, "nobody has taken it"
    leased = await lease(server)
    assert await job(server, status=200, deliver_in="1h") == first, "it is in hand"
    await server.call("POST", f"{JOBS}:nack", {**leased, "delay": "1h"})
    await server.app.quiet()
    assert await job(server, status=200, deliver_in="1h") == first, "it waits for its next try"
    await server.pass_time(HOUR_MS)
    leased = await lease(server)
    assert await job(server, status=200, deliver_in="1h") == first, "it is in hand again"
    await server.call("POST", f"{JOBS}:ack", leased)
    second = await job(server, status=201)
    assert second != first
    assert (await server.call("GET", BY_KEY + "k")).body["id"] == second
    assert (await server.call("GET", f"/v1/messages/{first}")).body["state"] == "dispatched"


async def test_an_endpoint_that_has_not_got_it_has_the_key(server: Running) -> None:
    """`deliver_to` is a receiver as a filter is."""
    await server.call("PUT", "/v1/endpoints/e", {"url": "https://example.com/"}, status=201)
    await server.call("POST", "/v1/endpoints/e:pause")
    first = await job(server, status=201, deliver_to="e")
    assert await job(server, status=200, deliver_to="e") == first
    await server.call("DELETE", "/v1/endpoints/e?undone=dead", status=204)
    await server.app.quiet()
    assert await job(server, status=201) != first


async def test_dead_or_cancelled_it_is_free_and_names_the_newest(server: Running) -> None:
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#", "max_attempts": 1}, status=201)
    first = await job(server, status=201)
    await server.call("POST", f"{JOBS}:nack", await lease(server))
    await server.app.quiet()
    assert [one["id"] for one in (await server.call("GET", "/v1/dead")).body["messages"]] == [first]
    second = await job(server, status=201, deliver_in="1h")
    await server.call("DELETE", BY_KEY + "k", status=204)
    third = await job(server, status=201, deliver_in="2h", payload="other")
    moved = await server.call("PATCH", BY_KEY + "k", {"deliver_in": "3h"})
    assert moved.body["id"] == third not in (first, second)
    assert await job(server, status=200, deliver_in="2h", payload="other") == third


async def test_it_may_be_said_in_three_places(server: Running) -> None:
    """In the body (which the front reads), as a parameter, for a whole batch. It is no part of the request,
    however that is written."""
    for n, query in enumerate(("", SCOPE, "?key_scope=kept")):
        members = {"key": f"{n}", **({} if query else {"key_scope": "pending"})}
        first = (await server.call("POST", f"/v1/messages{query}", {**NOW, **members}, status=201)).body["id"]
        await server.app.quiet()
        again = await server.call("POST", f"/v1/messages{query}", {**NOW, **members}, status=None)
        assert (again.status, again.body["id"] != first) == ((200, False) if "kept" in query else (201, True))
        kept = await server.call("POST", "/v1/messages", {**NOW, "key": f"{n}"}, status=200)
        assert kept.body["id"] == again.body["id"], "the same request, whatever its scope"
    trace = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "a": "b"}
    for n, more in enumerate(({"headers": {"a": "b"}}, {"headers": trace}, {"payload": {"a": 1}})):
        body = json.dumps({**NOW, **more, "key": f"more {n}"}, separators=(",", ":"))
        made = await server.call("POST", "/v1/messages", body.encode(), status=201)
        for scope in (
            body.replace(',"key":', ',"key_scope":"kept","key":'),
            "{" + f'"key_scope":"kept",{body[1:]}',
        ):
            again = await server.call("POST", "/v1/messages", scope.encode())
            assert again.body["id"] == made.body["id"]


async def test_a_member_of_the_payload_that_is_called_so_counts(server: Running) -> None:
    for n, odd in enumerate(({"a": 1, "key_scope": "x"}, {"a": 1}, {"a": 1, "key_scope": "y"})):
        for scope in ("first", "last"):
            said = {"key_scope": "kept", "key": scope}
            body = {**said, **NOW, "payload": odd} if scope == "first" else {**NOW, "payload": odd, **said}
            await server.call("POST", "/v1/messages", body, status=422 if n else 201)


async def test_the_key_may_be_in_the_header(server: Running) -> None:
    header = await server.call("POST", f"/v1/messages{SCOPE}", NOW, status=201, Idempotency_Key="h")
    await server.app.quiet()
    other = await server.call("POST", f"/v1/messages{SCOPE}", NOW, status=201, Idempotency_Key="h")
    assert header.body["id"] != other.body["id"]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("query", [True, False])
async def test_in_a_batch(server: Running, each: bool, query: bool) -> None:
    """One key whose message is done, one whose message is pending, one that is new, twice."""
    await keyed_one(server, "done", deliver_in="0s")
    waits = await keyed_one(server, "waits")
    await server.app.quiet()
    said = {} if query else {"key_scope": "pending"}
    lines = b"\n".join(
        json.dumps({**BODY, "key": key, **said}).encode() for key in ("done", "waits", "new", "new")
    )
    path = f"/v1/messages:batch{SCOPE if query else '?'}{'&each=true' if each else ''}&key_only=true"
    made = await server.call("POST", path, lines, status=200 if each else 201, Content_Type=NDJSON)
    ids = [result["id"] for result in made.body["results"]] if each else made.body["ids"]
    assert ids[1] == waits.body["id"]
    assert ids[2] == ids[3]
    assert len(set(ids)) == 3
    assert server.app.core.opened.waiting.pending == 3
    if each:
        assert [result.get("replayed", False) for result in made.body["results"]] == [
            False,
            True,
            False,
            True,
        ]


async def test_in_one_group_commit_one_message_is_made(server: Running) -> None:
    http = Http(server.http)
    await keyed_one(server, deliver_in="0s")
    await server.app.quiet()
    answers = await asyncio.gather(
        *(http.call("POST", f"/v1/messages{SCOPE}", {**BODY, "key": "k"}) for _ in range(8))
    )
    assert sorted(answer.status for answer in answers) == [200] * 7 + [201]
    assert len({answer.body["id"] for answer in answers}) == 1


async def test_it_is_of_a_key(server: Running) -> None:
    for body, query in ((BODY, SCOPE), ({**BODY, "key_scope": "pending"}, "")):
        bare = await server.call("POST", f"/v1/messages{query}", body, status=422)
        assert bare.body["errors"][0]["field"] == "key"
        batch = await server.call("POST", f"/v1/messages:batch{query}", [body], status=422)
        assert batch.body["errors"][0]["field"] == "key"
    await server.call("POST", "/v1/messages", {**BODY, "key_scope": "kept"}, status=201)
    for body, query in (({**BODY, "key": "k"}, "?key_scope=unique"), ({**BODY, "key_scope": "unique"}, "")):
        refused = await server.call("POST", f"/v1/messages{query}", body, status=422)
        assert refused.body["errors"][0]["field"] == "key_scope"


async def test_a_large_batch_is_decided_in_several_turns(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all who were to get a message have to be asked of each key."""
    core = server.app.core
    costs: list[int] = []
    submit = core.writer.submit

    def noted(*args: Any, cost: int = 1, **more: Any) -> None:
        costs.append(cost)
        submit(*args, cost=cost, **more)

    items = [{**BODY, "key": f"{n}"} for n in range(30)]
    monkeypatch.setattr(core.writer, "submit", noted)
    await server.call("POST", f"/v1/messages:batch{SCOPE}", items, status=201)
    await server.call("POST", "/v1/messages:batch", items, status=201)
    mixed = [*items[:29], {**BODY, "key": "own", "key_scope": "pending"}]
    await server.call("POST", "/v1/messages:batch?key_only=true", mixed, status=201)
    assert [cost for cost in costs if cost >= 30] == [300, 30, 39]


# -- what differs


CHANGES: dict[str, dict[str, object]] = {
    "topic": {"topic": "else"},
    "payload": {"payload": "secret"},
    "encoding": {"payload": "1", "content_type": "application/json"},
    "qos": {"qos": 0},
    "retain": {"retain": True},
    "late": {"late": "drop"},
    "expires_in": {"expires_in": "1m"},
    "deliver_to": {"deliver_to": "https://example.com/"},
    "ordering_key": {"ordering_key": "shop-7"},
    "content_type": {"content_type": "text/plain"},
    "headers": {"headers": {"a": "b"}},
    "deliver_at": {"deliver_in": "2h"},
}


async def test_a_mismatch_names_the_field_that_differs(server: Running) -> None:
    assert set(CHANGES) == {*FIELDS, "deliver_at"}
    for field, change in CHANGES.items():
        await keyed_one(server, field, **({"payload": 1} if field == "encoding" else {}))
        mismatch = await keyed_one(server, field, status=422, **change)
        assert mismatch.body["differs"] == field
        assert f"another {mismatch.body['differs']};" in mismatch.body["detail"]
        assert "key_only" in mismatch.body["detail"]
        assert "secret" not in json.dumps(mismatch.body)
        assert mismatch.body["errors"] == [{"field": "key", "detail": mismatch.body["detail"]}]


async def test_of_a_cancelled_message_it_says_so_and_what_is_still_known(server: Running) -> None:
    await keyed_one(server)
    await server.call("DELETE", BY_KEY + "k", status=204)
    topic = await keyed_one(server, status=422, topic="else")
    assert (topic.body["differs"], topic.body["state"]) == ("topic", "cancelled")
    payload = await keyed_one(server, status=422, payload="else")
    assert ("differs" in payload.body, payload.body["state"]) == (False, "cancelled")


async def test_what_is_only_written_otherwise_has_no_field(server: Running) -> None:
    await keyed_one(server)
    blank = json.dumps({**BODY, "key": "k"}, indent=1).encode()
    mismatch = await server.call("POST", "/v1/messages", blank, status=422)
    assert "differs" not in mismatch.body
    each = await server.call("POST", "/v1/messages:batch?each=true", [{**BODY, "key": "k", "qos": 2}])
    assert each.body["results"][0]["problem"]["differs"] == "qos"
    whole = await server.call("POST", "/v1/messages:batch", [{**BODY, "key": "k", "qos": 2}], status=422)
    assert (whole.body["differs"], whole.body["errors"][0]["line"]) == ("qos", 1)


async def test_twins_of_one_batch_are_compared_too(server: Running) -> None:
    items = [{**BODY, "key": "k"}, {**BODY, "key": "k", "payload": "else"}]
    mismatch = await server.call("POST", "/v1/messages:batch", items, status=422)
    assert mismatch.body["differs"] == "payload"
    assert server.app.core.opened.commit.taken(b"k" * 16, AS_EVER) is None
