"""The message under a key over HTTP: looked at, moved, cancelled, replaced; what is said when it is gone."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

from server.codec.packets import Properties, Publish
from server.mqtt.publish_requests import read_publish
from tests.support.http import Http

from ..conftest import DAY_MS, HOUR_MS, MINUTE_MS, NDJSON, START_MS, Running, with_settings
from .conftest import Keyed

BODY = {"topic": "a/b", "payload": "hi", "deliver_in": "1h"}
BY_KEY = "/v1/messages/by-key/"
ODD = (
    *("a/b", "explain", "why", "result", "by-key", "grüße ✓", "50%", "%2F", "{x}"),
    *("a?b#c&d=e", "a:b", "+", "\\", "0" * 32),
)


async def keyed_one(
    server: Running, key: str = "k", *, status: int = 201, query: str = "", **members: object
) -> Any:
    body = {**BODY, **members}
    if "deliver_at" in members:
        del body["deliver_in"]
    return await server.call("POST", f"/v1/messages{query}", {**body, "key": key}, status=status)


def path_of(key: str) -> str:
    return BY_KEY + quote(key, safe="")


# -- as by its id


async def test_it_is_the_message_with_its_id(server: Running) -> None:
    made = await keyed_one(server)
    path, own = BY_KEY + "k", f"/v1/messages/{made.body['id']}"
    one, other = await server.call("GET", path), await server.call("GET", own)
    assert (one.body, one.headers["ETag"]) == (other.body, made.headers["ETag"])
    moved = await server.call("PATCH", path, {"deliver_in": "2h"}, If_Match=one.headers["ETag"])
    assert (moved.body["id"], moved.body["deliver_at"]) == (made.body["id"], "2026-11-21T10:00:00.000Z")
    assert moved.headers["ETag"] == (await server.call("GET", own)).headers["ETag"]
    stale = await server.call("PATCH", path, {"deliver_in": 1}, status=412, If_Match=one.headers["ETag"])
    assert stale.slug == "precondition-failed"
    for _ in range(2):
        await server.call("DELETE", path, status=204)
    assert (await server.call("GET", own)).body["state"] == "cancelled"
    assert (await server.call("GET", path)).body["state"] == "cancelled"
    assert (await server.call("PATCH", path, {"deliver_in": 1}, status=409)).slug == "cancelled"
    assert server.app.core.opened.waiting.pending == 0


async def test_a_list_of_the_message_under_a_key(server: Running) -> None:
    """It has no entry where `by-key` answers 404, and selects by state, time and topic as any list."""
    made = [(await keyed_one(server, f"k{n}", topic=f"a/{n}", deliver_in=f"{n}h")).body["id"] for n in (1, 2)]

    async def listed(query: str) -> list[str]:
        page = (await server.call("GET", f"/v1/messages?{query}&count=true")).body
        assert (page["next"], page["count"]) == (None, len(page["messages"]))
        return [one["id"] for one in page["messages"]]

    assert [await listed(f"key=k{n}") for n in (1, 2, 3)] == [[made[0]], [made[1]], []]
    assert [await listed(f"key=k1&topic={topic}") for topic in ("a/1", "a/2")] == [[made[0]], []]
    assert await listed("key=k2&due_from=2026-11-21T10:00:00Z") == [made[1]]
    assert await listed("key=k2&due_to=2026-11-21T10:00:00Z") == []
    await server.call("PATCH", BY_KEY + "k1", {"deliver_in": "9h"})
    assert await listed("key=k1&due_from=2026-11-21T16:00:00Z") == [made[0]]
    await server.call("DELETE", BY_KEY + "k1", status=204)
    states = ("pending", "cancelled", "all", "dispatched")
    assert [await listed(f"key=k1&state={state}") for state in states] == [[], [made[0]], [made[0]], []]


async def test_every_key_has_a_path(server: Running) -> None:
    for key in ODD:
        made = await keyed_one(server, key)
        assert (await server.call("GET", path_of(key))).body["id"] == made.body["id"]
    for key in ODD:
        await server.call("DELETE", path_of(key), status=204)
    assert server.app.core.opened.waiting.pending == 0


async def test_too_late_is_said_with_when(server: Running) -> None:
    await keyed_one(server, deliver_in="1m")
    await server.pass_time(2 * MINUTE_MS)
    assert (await server.call("GET", BY_KEY + "k")).body["state"] == "dispatched"
    for method, body in (("DELETE", None), ("PATCH", {"deliver_in": 1})):
        late = await server.call(method, BY_KEY + "k", body, status=409)
        assert (late.slug, late.body["dispatched_at"]) == ("already-dispatched", "2026-11-21T08:02:00.000Z")


async def test_a_key_that_nobody_has_used(server: Running) -> None:
    await keyed_one(server)
    for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"deliver_in": 1})):
        for key in ("K", "k%20", "x" * 300):
            assert (await server.call(method, BY_KEY + key, body, status=404)).slug == "not-found"
    await server.call("GET", BY_KEY, status=404)
    await server.call("PATCH", BY_KEY + "k", {}, status=422)


async def test_a_held_message_has_its_key(server: Running) -> None:
    await server.pass_time(HOUR_MS)
    server.clock.now_ms -= HOUR_MS
    made = await keyed_one(server, deliver_in="1m")
    assert made.body["id"][12:16] == "ffff"
    await server.call("PATCH", BY_KEY + "k", {"deliver_in": "2m"})
    await server.call("DELETE", BY_KEY + "k", status=204)
    anew = await keyed_one(server, query="?replace=true", deliver_in="3m")
    await server.pass_time(2 * HOUR_MS)
    got = (await server.call("GET", BY_KEY + "k")).body
    assert (got["id"], got["state"]) == (anew.body["id"], "dispatched")


# -- gone


@with_settings(slices={"retention_ms": DAY_MS})
async def test_what_retention_has_dropped_is_gone(server: Running) -> None:
    """Nobody says 204: whether it went out is not known. When the key is forgotten, nothing is.

    A moved one is not gone with its first slice; the key of one that is gone is free.
    """
    made = {key: (await keyed_one(server, key)).body["id"] for key in ("k", "cancelled", "free", "moved")}
    await server.call("DELETE", BY_KEY + "cancelled", status=204)
    await server.call("PATCH", BY_KEY + "moved", {"deliver_in": "P9D"})
    server.app.garbage.stop()
    await server.call("POST", "/v1/clock:advance", {"by": "P3D"})
    calls = (("GET", None), ("DELETE", None), ("PATCH", {"deliver_in": 1}))
    for key in ("k", "cancelled", "free"):
        for method, body in calls:
            gone = await server.call(method, BY_KEY + key, body, status=410)
            assert (gone.slug, gone.body["id"]) == ("gone", made[key])
    anew = await keyed_one(server, "free")
    assert anew.body["id"] != made["free"]
    server.app.garbage._is_stopping = False
    await server.app.garbage.sweep()
    for key in ("k", "cancelled"):
        for method, body in calls:
            assert (await server.call(method, BY_KEY + key, body, status=404)).slug == "not-found"
    assert (await server.call("GET", BY_KEY + "free")).body["id"] == anew.body["id"]
    assert (await server.call("GET", BY_KEY + "moved")).body["id"] == made["moved"]
    await server.call("DELETE", BY_KEY + "moved", status=204)


# -- a POST under a key that is known


async def test_what_was_cancelled_is_said_and_scheduled_anew_when_asked(server: Running) -> None:
    first = await keyed_one(server)
    await server.call("DELETE", BY_KEY + "k", status=204)
    again = await keyed_one(server, status=200)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (again.body["id"], again.body["state"]) == (first.body["id"], "cancelled")
    other = {"payload": "other", "deliver_in": "2h"}
    assert (await keyed_one(server, status=422, **other)).slug == "idempotency-mismatch"
    anew = await keyed_one(server, query="?replace=true", **other)
    assert "Idempotent-Replayed" not in anew.headers
    assert (anew.body["id"] != first.body["id"], anew.body["state"]) == (True, "pending")
    retry = await keyed_one(server, status=200, query="?replace=true", **other)
    assert (retry.body["id"], retry.headers["Idempotent-Replayed"]) == (anew.body["id"], "true")
    assert (await server.call("GET", BY_KEY + "k")).body["payload"] == "other"
    assert (await server.call("GET", f"/v1/messages/{first.body['id']}")).body["state"] == "cancelled"
    assert server.app.core.opened.waiting.pending == 1


async def test_what_is_pending_or_dispatched_is_not_replaced(server: Running) -> None:
    first = await keyed_one(server)
    for state in ("pending", "dispatched"):
        again = await keyed_one(server, status=200, query="?replace=true")
        assert (again.body["id"], again.body["state"]) == (first.body["id"], state)
        other = await keyed_one(server, status=422, query="?replace=true", payload="other")
        assert other.slug == "idempotency-mismatch"
        await server.pass_time(2 * HOUR_MS)


async def test_replacing_counts_as_any_other_for_what_must_not_be_late(server: Running) -> None:
    """`late: drop` lets a repetition pass; what is scheduled anew is none."""
    late = {"late": "drop", "deliver_at": "2026-11-21T08:01:00Z"}
    await keyed_one(server, **late)
    await server.call("DELETE", BY_KEY + "k", status=204)
    await server.pass_time(2 * MINUTE_MS)
    await keyed_one(server, status=200, **late)
    refused = await keyed_one(server, status=422, query="?replace=true", **late)
    assert refused.body["errors"][0]["field"] == "deliver_at"
    assert server.app.core.opened.waiting.pending == 0


async def test_all_at_once_one_message_takes_the_place(server: Running) -> None:
    """In one group: cancels and replacements of one key, in the order of their coming."""
    made = await keyed_one(server)
    http = Http(server.http)
    first, *answers = await asyncio.gather(
        http.call("DELETE", BY_KEY + "k"),
        *(
            http.call("POST", "/v1/messages?replace=true", {**BODY, "key": "k", "deliver_in": f"{n}h"})
            for n in range(2, 10)
        ),
    )
    assert first.status == 204
    assert {answer.status for answer in answers} <= {201, 422}
    new = [answer.body["id"] for answer in answers if answer.status == 201]
    assert [message["id"] for message in await http.listed("state=pending")] == new
    assert len(new) <= 1
    assert (await server.call("GET", BY_KEY + "k")).body["id"] == (new or [made.body["id"]])[0]


async def test_a_relative_time_is_the_same_request_however_late_it_comes(server: Running) -> None:
    for key, spread in (("plain", {}), ("spread", {"spread": "5m"})):
        first = await keyed_one(server, key, **spread)
        await server.pass_time(20 * MINUTE_MS)
        for query in ("", "?replace=true", "?key_only=true"):
            again = await keyed_one(server, key, status=200, query=query, **spread)
            assert again.body["deliver_at"] == first.body["deliver_at"]


async def test_with_its_key_only_any_request_is_the_same(server: Running) -> None:
    """A time that was computed anew, and even another message; what was there first is told."""
    first = await keyed_one(server, deliver_at="2026-11-21T09:00:00Z")
    computed = {"deliver_at": "2026-11-21T09:00:00.007Z"}
    assert (await keyed_one(server, status=422, **computed)).slug == "idempotency-mismatch"
    for members in (computed, {"topic": "else", "payload": {"x": 1}}):
        again = await keyed_one(server, status=200, query="?key_only=true", **members)
        assert (again.body["id"], again.body["deliver_at"]) == (first.body["id"], "2026-11-21T09:00:00.000Z")
    fresh = await keyed_one(server, "new", query="?key_only=true")
    assert (await keyed_one(server, "new", status=200)).body["id"] == fresh.body["id"]
    both = "?key_only=true&replace=true"
    assert (await keyed_one(server, status=200, query=both, **computed)).body["id"] == first.body["id"]
    await server.call("DELETE", BY_KEY + "k", status=204)
    told = await keyed_one(server, status=200, query="?key_only=true", **computed)
    assert told.body["state"] == "cancelled"
    assert (await keyed_one(server, query=both, **computed)).body["id"] != first.body["id"]


async def test_they_are_of_a_key(server: Running) -> None:
    for query in ("replace=true", "key_only=true"):
        bare = await server.call("POST", f"/v1/messages?{query}", BODY, status=422)
        assert bare.body["errors"][0]["field"] == "key"
        items = [{**BODY, "key": query}, BODY]
        batch = await server.call("POST", f"/v1/messages:batch?{query}", items, status=422)
        assert [(e["line"], e["field"]) for e in batch.body["errors"]] == [(2, "key")]
        await server.call("GET", BY_KEY + quote(query), status=404)
        each = (await server.call("POST", f"/v1/messages:batch?{query}&each=true", items)).body["results"]
        assert (set(each[0]), each[1]["problem"]["errors"][0]["field"]) == ({"id"}, "key")
        refused = await server.call("POST", f"/v1/messages?{query}x", BODY, status=422)
        assert refused.body["errors"][0]["field"] == query.partition("=")[0]


@pytest.mark.parametrize("each", [False, True])
async def test_in_a_batch(server: Running, each: bool) -> None:
    """All of them, or each for itself: some keys are free, some were cancelled, some are pending."""
    for key in ("cancelled", "pending"):
        await keyed_one(server, key)
    await server.call("DELETE", BY_KEY + "cancelled", status=204)
    keys = ("new", "cancelled", "pending", "cancelled")
    lines = b"\n".join(json.dumps({**BODY, "deliver_in": "3h", "key": key}).encode() for key in keys)
    path = "/v1/messages:batch?replace=true" + ("&each=true" if each else "")
    refused = await server.call("POST", path, lines, status=200 if each else 422, Content_Type=NDJSON)
    if each:
        new, cancelled, pending, twin = refused.body["results"]
        assert pending["problem"]["type"] == "/problems/idempotency-mismatch"
        assert (set(new), set(cancelled)) == ({"id"}, {"id"})
        assert twin == {**cancelled, "replayed": True, "state": "pending"}
    else:
        assert refused.body["errors"][0]["line"] == 3
        assert server.app.core.opened.waiting.pending == 1, "nothing of it is stored, and nothing is lost"
    path += "&key_only=true"
    made = await server.call("POST", path, lines, status=200 if each else 201, Content_Type=NDJSON)
    ids = [result["id"] for result in made.body["results"]] if each else made.body["ids"]
    assert [(await server.call("GET", BY_KEY + key)).body["id"] for key in keys] == ids
    assert server.app.core.opened.waiting.pending == 3


async def test_an_export_is_taken_back_under_keys_that_were_cancelled(server: Running) -> None:
    await keyed_one(server)
    await server.call("DELETE", BY_KEY + "k", status=204)
    name = f"{START_MS + DAY_MS:012x}{0:04x}{0:04x}{(1 << 40):012x}"
    items = [{**BODY, "key": "k", "id": name}]
    made = await server.call("POST", "/v1/messages:batch?ids=true&replace=true", items, status=201)
    assert made.body["ids"] == [name]
    assert (await server.call("GET", BY_KEY + "k")).body["id"] == name


# -- whose it is


async def test_keys_are_each_key_s_own(keyed: Keyed) -> None:
    for name in ("a", "b"):
        keyed.add(name)
        await keyed.call(name, "POST", "/v1/messages", BODY, status=201, Idempotency_Key="k")
    own = await keyed.body("a", "GET", BY_KEY + "k")
    assert own["id"] != (await keyed.body("b", "GET", BY_KEY + "k"))["id"]
    await keyed.call("ops", "GET", BY_KEY + "k", status=404)
    await keyed.call("ops", "DELETE", BY_KEY + "k", status=404)
    await keyed.call("a", "DELETE", BY_KEY + "k", status=204)
    assert (await keyed.body("b", "GET", BY_KEY + "k"))["state"] == "pending"
    await keyed.call("a", "POST", "/v1/messages?replace=true", BODY, status=201, Idempotency_Key="k")
    again = await keyed.body("b", "POST", "/v1/messages?replace=true", BODY, Idempotency_Key="k")
    assert again["state"] == "pending"


async def test_rights_are_those_of_now(keyed: Keyed) -> None:
    """What a key has sent it may not see, or not change, any more."""
    keyed.add("reader", "read")
    await keyed.call("reader", "DELETE", BY_KEY + "k", status=403)
    await keyed.call("reader", "PATCH", BY_KEY + "k", {"deliver_in": 1}, status=403)
    keyed.add("writer", "schedule")
    await keyed.call("writer", "GET", BY_KEY + "k", status=403)
    keyed.add("a", publish=["a/#"], deliver=["a/#"])
    await keyed.call("a", "POST", "/v1/messages", BODY, status=201, Idempotency_Key="k")
    keyed.file.revoke("a")
    keyed.add("a", publish=["x"], deliver=["a/#"])
    assert (await keyed.body("a", "GET", BY_KEY + "k"))["state"] == "pending"
    assert len((await keyed.body("a", "GET", "/v1/messages?key=k"))["messages"]) == 1
    for method, body in (("DELETE", None), ("PATCH", {"deliver_in": 1})):
        assert (await keyed.call("a", method, BY_KEY + "k", body, status=403)).slug == "forbidden"
    keyed.file.revoke("a")
    keyed.add("a", publish=["x"], deliver=["x"])
    for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"deliver_in": 1})):
        assert (await keyed.call("a", method, BY_KEY + "k", body, status=404)).slug == "not-found"
    for name in ("a", "reader"):
        assert (await keyed.body(name, "GET", "/v1/messages?key=k"))["messages"] == []
    assert keyed.server.app.core.opened.waiting.pending == 1


async def test_a_key_that_came_over_mqtt(server: Running) -> None:
    """It is another one than that of HTTP."""
    users = (("deliver-in", "1h"), ("idempotency-key", "k"))
    packet = Publish(b"a/b", b"x", 1, False, False, 1, Properties(user_properties=users))
    ids: list[int] = []
    wish = read_publish(packet, b"device-7", START_MS, 10**12)
    server.app.core.publishing.publish([(wish, lambda reason, message: ids.append(message))])
    await server.app.quiet()
    await server.call("GET", BY_KEY + "k", status=404)
    path = BY_KEY + "k?door=mqtt"
    assert (await server.call("GET", path)).body["id"] == f"{ids[0]:032x}"
    await keyed_one(server)
    await server.call("PATCH", path, {"deliver_in": "2h"})
    await server.call("DELETE", path, status=204)
    assert (await server.call("GET", BY_KEY + "k?door=http")).body["state"] == "pending"
