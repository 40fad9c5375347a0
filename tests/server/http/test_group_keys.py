"""`/v1/groups/{group}/keys`: ordering keys in trouble: listed, held, released."""

from typing import Any

import pytest

from fasti.transport import quoted
from server.http.routes import ordering_keys

from ..conftest import Running

ONE = "/v1/groups/workers"
KEYS = f"{ONE}/keys"
MESSAGES = f"{ONE}/messages"


@pytest.fixture
async def ordered(server: Running) -> Running:
    await server.call("PUT", ONE, {"filter": "jobs/#", "order": True, "on_dead": "hold"}, status=201)
    return server


async def send(server: Running, *payloads: str) -> None:
    """Their first letters are their keys."""
    for payload in payloads:
        body = {"topic": "jobs/x", "payload": payload, "ordering_key": payload[0], "deliver_in": 0}
        await server.call("POST", "/v1/messages", body, status=201)
    await server.app.quiet()


async def lease(server: Running) -> dict[str, str]:
    found = (await server.call("POST", f"{MESSAGES}:lease", {"max": 100})).body["messages"]
    return {one["payload"]: one["lease_id"] for one in found}


async def nack(server: Running, lease_id: str, delay: str) -> None:
    await server.call("POST", f"{MESSAGES}:nack", {"lease_ids": [lease_id], "delay": delay})
    await server.app.quiet()


async def shown(server: Running, query: str = "") -> list[tuple[str, int, str | None]]:
    body: dict[str, Any] = (await server.call("GET", f"{KEYS}{query}")).body
    return [(one["key"], one["lag"], one["held"]) for one in body["keys"]]


async def test_keys_are_listed_by_lag_and_a_letter_holds_its_key(ordered: Running) -> None:
    server = ordered
    await send(server, "a1", "a2", *[f"b{n}" for n in range(30)], "c1", "d1", "d2")
    out = await lease(server)
    assert sorted(out) == ["a1", "b0", "c1", "d1"]
    await nack(server, out["a1"], "never")
    await nack(server, out["d1"], "1h")
    body = (await server.call("GET", KEYS)).body
    assert [one["key"] for one in body["keys"]] == ["b", "a", "d"]
    assert (body["blocked"], body["held"], body["is_standing"], body["next"]) == (3, 1, False, None)
    b, a, d = body["keys"]
    assert (b["lag"], b["lag_is_exact"], b["in_flight"], b["held"], b["id"]) == (29, True, 1, None, None)
    assert (a["lag"], a["held"], a["retry_at"], a["in_flight"]) == (1, "dead", None, 0)
    (letter,) = (await server.call("GET", "/v1/dead")).body["messages"]
    assert (a["id"], a["filter"]) == (letter["id"], "jobs/#")
    (retry,) = (await server.call("GET", "/v1/retries")).body["retries"]
    assert (d["id"], d["retry_at"], d["held"]) == (retry["id"], retry["retry_at"], None)
    assert not await lease(server)
    released = (await server.call("POST", f"{KEYS}/a:release")).body
    assert (released["held"], released["keys"][0]["held"]) == (0, None)
    assert list(await lease(server)) == ["a2"]
    assert len((await server.call("GET", "/v1/dead")).body["messages"]) == 1


async def test_pages(ordered: Running) -> None:
    await send(ordered, *[f"{key}{n}" for n in range(3) for key in "cab"], "c9")
    await lease(ordered)
    first = (await ordered.call("GET", f"{KEYS}?limit=2")).body
    assert [one["key"] for one in first["keys"]] == ["c", "a"]
    assert await shown(ordered, f"?limit=2&cursor={first['next']}") == [("b", 2, None)]
    for cursor in ("x", "1.zz.g"):
        refused = await ordered.call("GET", f"{KEYS}?cursor={cursor}", status=422)
        assert refused.body["errors"][0]["field"] == "cursor"


async def test_a_long_count_is_not_exact(ordered: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering_keys, "COUNT_KEY", 10)
    await send(ordered, *[f"a{n:02}" for n in range(30)])
    await lease(ordered)
    (one,) = (await ordered.call("GET", KEYS)).body["keys"]
    assert (one["lag_is_exact"], 10 <= one["lag"] < 29) == (False, True)


@pytest.mark.parametrize("key", ["a/b c", "%2F", "ö" * 64, "a:hold", "..", '{"id":7}', "a+b?#;&="])
async def test_a_key_is_held_by_hand_before_anything_of_it_came(ordered: Running, key: str) -> None:
    path = f"{KEYS}/{quoted(key)}"
    held = (await ordered.call("POST", f"{path}:hold")).body
    assert [(one["key"], one["held"]) for one in held["keys"]] == [(key, "hand")]
    body = {"topic": "jobs/x", "payload": "1", "ordering_key": key, "deliver_in": 0}
    await ordered.call("POST", "/v1/messages", body, status=201)
    await ordered.app.quiet()
    assert not await lease(ordered)
    assert await shown(ordered) == [(key, 1, "hand")]
    for _ in range(2):
        (one,) = (await ordered.call("POST", f"{path}:release")).body["keys"]
        assert (one["key"], one["held"]) == (key, None)
    assert list(await lease(ordered)) == ["1"]
    assert not await shown(ordered)


@pytest.mark.parametrize(
    ("escaped", "status"), [("", 404), ("%00", 422), ("%0A", 422), ("%FF", 400), ("a/b", 404)]
)
async def test_a_path_that_names_no_key_is_refused(ordered: Running, escaped: str, status: int) -> None:
    await ordered.call("POST", f"{KEYS}/{escaped}:hold", status=status)


async def test_messages_without_a_key_are_no_key_that_is_listed(server: Running) -> None:
    """They take turns as one, and nobody can hold it."""
    await server.call("PUT", ONE, {"filter": "jobs/#", "fair": True}, status=201)
    for _ in range(5):
        await server.call(
            "POST", "/v1/messages", {"topic": "jobs/x", "payload": "", "deliver_in": 0}, status=201
        )
    await send(server, "a1")
    for _ in range(3):
        await server.call("POST", f"{MESSAGES}:lease", {"max": 1})
    page = (await server.call("GET", KEYS)).body
    assert (page["keys"], page["blocked"]) == ([], 0)
    (group,) = server.app.core.groups.of_name("workers")
    assert group.session.order.room.rows == 1, "some wait"


async def test_refused(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await server.call("GET", KEYS, status=404)
    await server.call("POST", f"{KEYS}/a:hold", status=404)
    await server.call("PUT", ONE, {"filter": "jobs/#"}, status=201)
    assert (await server.call("GET", KEYS)).body["keys"] == []
    assert (await server.call("POST", f"{KEYS}/a:hold", status=409)).slug == "wrong-state"
    for wish in ({"on_dead": "hold"}, {"order": False, "on_dead": "next"}, {"order": True, "on_dead": "x"}):
        refused = await server.call("PUT", ONE, {"filter": "jobs/#", **wish}, status=422)
        assert refused.body["errors"][0]["field"] == "on_dead"
    await server.call("PUT", ONE, {"filter": "jobs/#", "order": True})
    refused = await server.call("POST", f"{KEYS}/{'a' * 129}:hold", status=422)
    assert refused.body["errors"][0]["field"] == "ordering_key"
    (group,) = server.app.core.groups.of_name("workers")
    monkeypatch.setattr(type(group.session.order.room), "is_full", True)
    assert (await server.call("POST", f"{KEYS}/a:hold", status=429)).slug == "over-quota"


async def test_a_requeued_letter_goes_first(ordered: Running) -> None:
    await send(ordered, "a1", "a2")
    await nack(ordered, (await lease(ordered))["a1"], "never")
    await ordered.call("POST", "/v1/dead:requeue", {"filter": {"group": "workers"}})
    await ordered.pass_time(1_000)
    assert list(await lease(ordered)) == ["a1"]


async def test_several_filters_are_several_orders(ordered: Running) -> None:
    body = {"filter": "jobs/a/#", "order": True}
    made = (await ordered.call("PUT", ONE, body, status=201)).body
    (warning,) = made["warnings"]
    assert "'jobs/#'" in warning
    await ordered.call("DELETE", f"{ONE}?filter=jobs%2F%23", status=204)
    assert "warnings" not in (await ordered.call("PUT", ONE, body)).body


async def test_a_group_that_orders_stays_a_second_at_least(server: Running) -> None:
    made = (await server.call("PUT", ONE, {"filter": "jobs/#", "order": True, "expiry": 0}, status=201)).body
    assert made["expiry"] is not True
    assert made["expiry"] == 1
