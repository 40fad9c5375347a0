"""`debounce` of a POST: one message for many requests, never later than the first allowed."""

import json
from typing import Any

import pytest

from ..conftest import HOUR_MS, MINUTE_MS, NDJSON, Running
from .conftest import Keyed
from .test_by_key import BODY, BY_KEY, keyed_one

SECOND_MS = 1_000
DEBOUNCE = {"wait": "30s", "max_wait": "2m"}
BOUNCING = {"topic": "a/b", "payload": "x", "key": "k", "debounce": DEBOUNCE}


async def post(server: Running, *, status: int = 200, **members: object) -> Any:
    return await server.call("POST", "/v1/messages", {**BOUNCING, **members}, status=status)


async def test_the_last_payload_wins_and_never_beyond_the_bound(server: Running) -> None:
    _, link = await server.connect("s", "#")
    first = await post(server, status=201, payload=0)
    assert first.body["deliver_at"] == "2026-11-21T08:00:30.000Z"
    assert "Idempotent-Replayed" not in first.headers
    for n in range(1, 6):
        await server.pass_time(20 * SECOND_MS)
        again = await post(server, payload=n, topic=f"t/{n}")
        assert (again.body["id"], again.headers["Idempotent-Replayed"]) == (first.body["id"], "false")
        assert again.body["state"] == "pending"
        assert again.headers["ETag"] == (await server.call("GET", BY_KEY + "k")).headers["ETag"]
        assert not link.sent
    assert again.body["deliver_at"] == "2026-11-21T08:02:00.000Z"
    await server.pass_time(19 * SECOND_MS)
    assert (await post(server, payload="last")).body["deliver_at"] == "2026-11-21T08:02:00.000Z"
    await server.pass_time(SECOND_MS)
    assert [(m.record.topic, m.record.payload) for m in link.sent] == [(b"a/b", b"last")]
    anew = await post(server, status=201)
    assert anew.body["id"] != first.body["id"]
    await server.pass_time(30 * SECOND_MS)
    assert len(link.sent) == 2
    assert server.app.core.opened.waiting.pending == 0


async def test_one_that_was_moved_past_its_bound_comes_at_once(server: Running) -> None:
    """Also if it is not wanted late: it is not late, but due now."""
    _, link = await server.connect("s", "#")
    await post(server, status=201)
    await server.call("PATCH", BY_KEY + "k", {"deliver_in": "1h"})
    await server.pass_time(10 * MINUTE_MS)
    told = (await post(server, payload="last", late="drop")).body
    assert told["deliver_at"] == "2026-11-21T08:10:00.000Z"
    await server.pass_time(SECOND_MS)
    assert [m.record.payload for m in link.sent] == [b"last"]


async def test_cancelled_it_is_made_anew_with_a_bound_of_its_own(server: Running) -> None:
    first = await post(server, status=201)
    await server.pass_time(20 * SECOND_MS)
    await server.call("DELETE", BY_KEY + "k", status=204)
    await post(server, status=201)
    for _ in range(5):
        await server.pass_time(20 * SECOND_MS)
        again = await post(server)
    assert again.body["id"] != first.body["id"]
    assert again.body["deliver_at"] == "2026-11-21T08:02:20.000Z"


async def test_a_message_that_was_not_debounced_keeps_its_key(server: Running) -> None:
    await keyed_one(server)
    refused = await post(server, status=422)
    assert (refused.slug, refused.body["differs"]) == ("idempotency-mismatch", "payload")
    assert refused.body["errors"][0]["field"] == "key"
    assert "without debounce; cancel it" in refused.body["detail"]
    assert (await server.call("GET", BY_KEY + "k")).body["payload"] == "hi"
    await server.pass_time(2 * HOUR_MS)
    await post(server, status=201)
    assert (await keyed_one(server, status=422)).slug == "idempotency-mismatch"


async def test_a_version_of_its_key_stays_known(server: Running) -> None:
    await server.call("PUT", BY_KEY + "k", {"cancel": True, "version": [3, 0]})
    made = await post(server, status=201)
    await post(server)
    told = (await server.call("PUT", BY_KEY + "k", {**BODY, "version": [2, 0]})).body
    assert (told["id"], told["changed"]) == (made.body["id"], False)
    changed = (await server.call("PUT", BY_KEY + "k", {**BODY, "version": [4, 0]})).body
    assert changed["deliver_at"] == "2026-11-21T09:00:00.000Z", "an upsert says its own time"
    assert (await post(server)).body["deliver_at"] == "2026-11-21T08:00:30.000Z"


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"deliver_in": "1h"}, "deliver_in"),
        ({"deliver_at": "2030-01-01T00:00:00Z"}, "deliver_at"),
        ({"spread": "1m"}, "spread"),
        ({"key_scope": "pending"}, "key_scope"),
        ({"key": None}, "key"),
        ({"deliver_to": "nobody"}, "deliver_to"),
        ({"debounce": {"wait": "30s"}}, "debounce.max_wait"),
        ({"debounce": {"wait": "0s", "max_wait": "2m"}}, "debounce.wait"),
        ({"debounce": {"wait": "3m", "max_wait": "2m"}}, "debounce.max_wait"),
        ({"debounce": {"wait": "30s", "max_wait": "2m", "x": 1}}, "debounce.x"),
    ],
)
async def test_refused(server: Running, members: dict[str, object], field: str) -> None:
    refused = await post(server, status=422, **members)
    assert refused.body["errors"][0]["field"] == field
    assert server.app.core.opened.waiting.pending == 0


async def test_it_goes_with_a_single_message_alone(server: Running) -> None:
    for query in ("replace=true", "key_only=true", "key_scope=pending"):
        refused = await server.call("POST", f"/v1/messages?{query}", BOUNCING, status=422)
        assert refused.body["errors"][0]["field"] == "debounce"
    for kind in ("application/json", NDJSON):
        body: Any = [BOUNCING] if kind != NDJSON else json.dumps(BOUNCING).encode()
        refused = await server.call("POST", "/v1/messages:batch", body, status=422, Content_Type=kind)
        assert refused.body["errors"][0]["field"] == "debounce"
    assert (await server.call("PUT", BY_KEY + "k", BOUNCING, status=422)).body["errors"][0]["field"]


async def test_with_the_header_and_claims(server: Running) -> None:
    body = {name: value for name, value in BOUNCING.items() if name != "key"}
    await server.call("PUT", "/v1/groups/workers", {"filter": "a/#"}, status=201)
    for status in (201, 200):
        made = await server.call("POST", "/v1/messages?claims=true", body, status=status, Idempotency_Key="k")
        assert made.body["claims"] == {"groups": 1, "endpoints": 0, "sessions": 0}


async def test_a_held_message_bounces(server: Running) -> None:
    await server.pass_time(HOUR_MS)
    server.clock.now_ms -= HOUR_MS
    first = await post(server, status=201)
    assert first.body["id"][12:16] == "ffff"
    server.clock.now_ms += 20 * SECOND_MS
    assert (await post(server)).body["id"] == first.body["id"]
    await server.pass_time(MINUTE_MS)
    assert (await server.call("GET", BY_KEY + "k")).body["state"] == "dispatched"


async def test_who_may_not_change_the_pending_one(keyed: Keyed) -> None:
    keyed.add("a", publish=["a/#"], deliver=["#"])
    await keyed.call("a", "POST", "/v1/messages", BOUNCING, status=201)
    keyed.file.revoke("a")
    keyed.add("a", publish=["x"], deliver=["#"])
    refused = await keyed.call("a", "POST", "/v1/messages", {**BOUNCING, "topic": "x"}, status=403)
    assert refused.slug == "forbidden"
