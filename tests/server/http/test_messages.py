"""One message over HTTP: scheduled, looked at, moved, cancelled, and every no on the way."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.codec.packets import Properties, Publish
from server.mqtt.publish_requests import read_publish
from shards.record import decode
from timeline.position import MessageId, id_position

from ..conftest import DAY_MS, HOUR_MS, MINUTE_MS, START, START_MS, TOGETHER, Running, with_settings


async def test_a_message_is_scheduled_and_told_back(server: Running) -> None:
    answer = await server.call(
        "POST", "/v1/messages", {"topic": "a/b", "payload": "hi", "deliver_in": "15m"}, status=201
    )
    name = answer.body["id"]
    assert answer.body == {
        "id": name,
        "deliver_at": "2026-11-21T08:15:00.000Z",
        "state": "pending",
        "server_time": START,
    }
    assert answer.headers["Location"] == f"/v1/messages/{name}"
    got = await server.call("GET", answer.headers["Location"])
    assert got.headers["ETag"] == answer.headers["ETag"]
    assert got.body == {
        "id": name,
        "topic": "a/b",
        "payload": "hi",
        "encoding": "text",
        "deliver_at": "2026-11-21T08:15:00.000Z",
        "state": "pending",
        "outcome": "pending",
        "qos": 1,
    }


@pytest.mark.parametrize(
    "members",
    [
        {"payload": "grüße\n", "encoding": "text"},
        {"payload": "AAH/", "encoding": "base64"},
        {"payload": {"id": 17, "b": [1, None, 1e3]}, "encoding": "json", "content_type": "application/json"},
        {"payload": "said", "encoding": "json", "content_type": "application/vnd.x+json"},
        {
            "payload": "x",
            "encoding": "text",
            "headers": {"tenant": "7", "ü": ""},
            "content_type": "text/plain",
        },
        {"payload": "x", "encoding": "text", "qos": 0, "retain": True, "late": "drop", "expires_in": 90},
        {"payload": "x", "encoding": "text", "qos": 2, "expires_in": 0.25},
    ],
)
async def test_it_comes_back_as_it_came_in(server: Running, members: dict[str, Any]) -> None:
    name = await server.schedule(**members, deliver_in=60)
    got = (await server.call("GET", f"/v1/messages/{name}")).body
    assert got == {
        "id": name,
        "topic": "a/b",
        "deliver_at": "2026-11-21T08:01:00.000Z",
        "state": "pending",
        "outcome": "pending",
        "qos": 1,
        **members,
    }


async def test_without_a_time_it_is_due_now(server: Running) -> None:
    _, link = await server.connect("c", "#")
    name = await server.schedule()
    found = server.app.core.reader.find(MessageId(int(name, 16)))
    assert found is not None
    assert decode(found.value).due_ms == START_MS
    await server.app.quiet()
    assert [m.late_ms for m in link.sent] == [0]
    got = (await server.call("GET", f"/v1/messages/{name}")).body
    assert (got["state"], got["deliver_at"], got["dispatched_at"]) == ("dispatched", START, START)


async def test_what_came_late_keeps_the_due_it_asked_for(server: Running) -> None:
    _, link = await server.connect("c", "#")
    name = await server.schedule(deliver_at="2026-11-21T07:59:59Z")
    await server.app.quiet()
    assert [m.late_ms for m in link.sent] == [1_000]
    got = (await server.call("GET", f"/v1/messages/{name}")).body
    assert (got["deliver_at"], got["dispatched_at"]) == ("2026-11-21T07:59:59.000Z", START)


async def test_late_can_be_refused(server: Running) -> None:
    body = {"topic": "a", "payload": 1, "late": "drop", "deliver_at": "2026-11-21T07:59:59Z"}
    answer = await server.call("POST", "/v1/messages", body, status=422)
    assert [e["field"] for e in answer.body["errors"]] == ["deliver_at"]
    assert server.app.core.opened.waiting.pending == 0


async def test_a_retry_gets_its_first_answer_also_when_it_would_be_late(server: Running) -> None:
    body = {"topic": "a", "payload": 1, "late": "drop", "deliver_at": "2026-11-21T08:01:00Z"}
    first = await server.call("POST", "/v1/messages", body, status=201, Idempotency_Key="k")
    await server.pass_time(2 * MINUTE_MS)
    again = await server.call("POST", "/v1/messages", body, Idempotency_Key="k")
    assert again.body["id"] == first.body["id"]


async def test_the_same_key_and_request_get_the_first_answer(server: Running) -> None:
    body = {"topic": "a", "payload": 1, "deliver_in": "1h"}
    first = await server.call("POST", "/v1/messages", body, status=201, Idempotency_Key="order-17")
    server.clock.now_ms += MINUTE_MS
    again = await server.call("POST", "/v1/messages", body, Idempotency_Key="order-17")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.body == {**first.body, "server_time": "2026-11-21T08:01:00.000Z"}
    assert again.headers["ETag"] == first.headers["ETag"]
    assert again.headers["Location"] == first.headers["Location"]
    assert server.app.core.opened.waiting.pending == 1
    other = await server.call(
        "POST", "/v1/messages", {**body, "payload": 2}, status=422, Idempotency_Key="order-17"
    )
    assert other.slug == "idempotency-mismatch"
    assert [e["field"] for e in other.body["errors"]] == ["key"]


async def test_a_known_key_says_what_has_become_of_its_message(server: Running) -> None:
    keyed: dict[str, tuple[Any, str]] = {}
    for key, wish in (
        ("cancelled", {"deliver_in": "1h"}),
        ("pending", {"deliver_in": "1h"}),
        ("dispatched", {"deliver_in": "1m"}),
        ("expired", {"deliver_at": "2026-11-21T08:01:00Z", "late": "drop"}),
    ):
        body = {"topic": "a", "payload": key, **wish}
        answer = await server.call("POST", "/v1/messages", body, status=201, Idempotency_Key=key)
        assert answer.body["state"] == "pending"
        keyed[key] = body, answer.body["id"]
    await server.call("DELETE", f"/v1/messages/{keyed['cancelled'][1]}", status=204)
    await server.pass_time(2 * MINUTE_MS)
    for key, (body, name) in keyed.items():
        again = await server.call("POST", "/v1/messages", body, Idempotency_Key=key)
        assert (again.body["id"], again.body["state"]) == (name, key)
        # Not at the front, and in a batch.
        again = await server.call("POST", "/v1/messages?", body, Idempotency_Key=key)
        assert (again.body["id"], again.body["state"]) == (name, key)
    items = [{"topic": "b", "payload": 1, "key": key, "deliver_in": "1h"} for key in ("x", "y")]
    made = (await server.call("POST", "/v1/messages:batch?each=true", items)).body["results"]
    assert all(set(result) == {"id"} for result in made)
    await server.call("DELETE", f"/v1/messages/{made[0]['id']}", status=204)
    again = (await server.call("POST", "/v1/messages:batch?each=true", items)).body["results"]
    states = ["cancelled", "pending"]
    assert again == [
        {**result, "replayed": True, "state": state} for result, state in zip(made, states, strict=True)
    ]


async def test_a_key_covers_a_message_that_has_moved(server: Running) -> None:
    body = {"topic": "a", "payload": 1, "deliver_in": "1h"}
    first = await server.call("POST", "/v1/messages", body, status=201, Idempotency_Key="k")
    path = first.headers["Location"]
    moved = await server.call("PATCH", path, {"deliver_in": "2h"})
    again = await server.call("POST", "/v1/messages", body, Idempotency_Key="k")
    assert again.body["id"] == first.body["id"]
    assert again.headers["ETag"] == moved.headers["ETag"] != first.headers["ETag"]


@TOGETHER
@pytest.mark.parametrize(
    ("body", "status", "slug", "field"),
    [
        (b"{", 400, "not-readable", None),
        (b'{"topic": "\xff"}', 400, "not-readable", None),
        ({"topic": "a", "payload": 1, "deliver_in": "3650d", "spread": 1}, 422, "refused", "spread"),
    ],
)
async def test_what_is_wrong_is_named(
    lasting: Running, body: object, status: int, slug: str, field: str | None
) -> None:
    answer = await lasting.call("POST", "/v1/messages", body, status=status)
    assert answer.slug == slug
    assert [e["field"] for e in answer.body.get("errors", ())] == ([] if field is None else [field])


async def test_the_shape_of_a_request_is_checked(server: Running) -> None:
    body = b'{"topic":"a","payload":1}'
    wrong = await server.call("PUT", "/v1/messages", body, status=405)
    assert "POST" in wrong.headers["Allow"]


async def test_a_move_keeps_the_id_and_changes_the_tag(server: Running) -> None:
    _, link = await server.connect("c", "#")
    name = await server.schedule(deliver_in="1h")
    path = f"/v1/messages/{name}"
    old = (await server.call("GET", path)).headers["ETag"]
    moved = await server.call("PATCH", path, {"deliver_at": "2026-11-21T08:10:00Z"}, If_Match=old)
    assert moved.body == {
        "id": name,
        "deliver_at": "2026-11-21T08:10:00.000Z",
        "state": "pending",
        "server_time": START,
    }
    got = await server.call("GET", path)
    assert got.headers["ETag"] == moved.headers["ETag"] != old
    assert got.body["deliver_at"] == "2026-11-21T08:10:00.000Z"
    stale = await server.call("PATCH", path, {"deliver_in": 1}, status=412, If_Match=old)
    assert stale.slug == "precondition-failed"
    await server.call("PATCH", path, {"deliver_in": 1}, status=412, If_Match="W/" + got.headers["ETag"])
    await server.call("PATCH", path, {"deliver_in": "20m"}, If_Match=f'"x", {got.headers["ETag"]}')
    await server.call("PATCH", path, {"deliver_in": "30m"}, If_Match="*")
    await server.pass_time(HOUR_MS)
    assert [m.id_text(0) for m in link.sent] == [name]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "deliver_at"),
        ({"deliver_in": 1, "deliver_at": "2026-11-21T08:10:00Z"}, 422, "deliver_in"),
    ],
)
async def test_a_bad_move_is_refused(server: Running, body: object, status: int, field: str | None) -> None:
    name = await server.schedule(deliver_in="1h")
    answer = await server.call("PATCH", f"/v1/messages/{name}", body, status=status)
    assert [e["field"] for e in answer.body.get("errors", ())] == ([] if field is None else [field])


async def test_cancelled_is_cancelled(server: Running) -> None:
    _, link = await server.connect("c", "#")
    name = await server.schedule(deliver_in="1h", headers={"k": "v"})
    path = f"/v1/messages/{name}"
    server.clock.now_ms += MINUTE_MS
    assert (await server.call("DELETE", path, status=204)).body == b""
    await server.call("DELETE", path, status=204)
    got = (await server.call("GET", path)).body
    assert got == {
        "id": name,
        "topic": "a/b",
        "deliver_at": "2026-11-21T09:00:00.000Z",
        "state": "cancelled",
        "outcome": "cancelled",
        "cancelled_at": "2026-11-21T08:01:00.000Z",
        "qos": 1,
    }
    moved = await server.call("PATCH", path, {"deliver_in": 1}, status=409)
    assert moved.slug == "cancelled"
    await server.pass_time(2 * HOUR_MS)
    assert not link.sent
    assert (await server.call("GET", path)).body["state"] == "cancelled"


async def test_dispatched_is_dispatched(server: Running) -> None:
    name = await server.schedule(deliver_in="1m")
    path = f"/v1/messages/{name}"
    await server.pass_time(MINUTE_MS + 5)
    for method, body in (("DELETE", None), ("PATCH", {"deliver_in": 1})):
        late = await server.call(method, path, body, status=409)
        assert late.slug == "already-dispatched"
        assert late.body["dispatched_at"] == "2026-11-21T08:01:00.005Z"
    await server.schedule()  # the journal is written with the next group
    got = (await server.call("GET", path)).body
    assert (got["state"], got["dispatched_at"]) == ("dispatched", "2026-11-21T08:01:00.005Z")


async def test_one_that_was_past_its_time_to_live_has_expired(server: Running) -> None:
    _, link = await server.connect("c", "#")
    names = [await server.schedule(f"t/{n}", deliver_in="1m", expires_in=n) for n in (5, 20)]
    await server.pass_time(MINUTE_MS + 5_000)
    found = [(await server.call("GET", f"/v1/messages/{name}")).body for name in names]
    assert [m["state"] for m in found] == ["expired", "dispatched"]
    assert [m["dispatched_at"] for m in found] == ["2026-11-21T08:01:05.000Z"] * 2
    assert link.topics == ["t/20"]


async def test_a_cancel_of_what_was_dropped_as_late_names_nobody(server: Running) -> None:
    """A group that has not read so far will not get it."""
    await server.call("PUT", "/v1/groups/g", {"filter": "#"}, status=201)
    dropped = await server.schedule("t/dropped", deliver_in="1m", late="drop")
    waits = await server.schedule("t/waits", deliver_in="1m")
    await server.pass_time(MINUTE_MS + 2_500)
    left = {
        name: (await server.call("DELETE", f"/v1/messages/{name}", status=409)).body["deliveries"]
        for name in (dropped, waits)
    }
    assert left[dropped] == []
    assert [one["state"] for one in left[waits]] == ["waiting"]


async def test_what_was_dropped_as_late_has_expired_for_as_long_as_it_is_kept(server: Running) -> None:
    _, link = await server.connect("c", "#")
    dropped = await server.schedule("t/dropped", deliver_in="1m", late="drop")
    in_time = await server.schedule("t/in-time", deliver_in="62s", late="drop")
    await server.pass_time(MINUTE_MS + 2_500)
    assert link.topics == ["t/in-time"]
    for _ in range(2):
        found = [(await server.call("GET", f"/v1/messages/{name}")).body for name in (dropped, in_time)]
        assert [m["state"] for m in found] == ["expired", "dispatched"]
        assert [m["dispatched_at"] for m in found] == ["2026-11-21T08:01:02.500Z"] * 2
        listed = (await server.call("GET", "/v1/messages?state=expired&count=true")).body
        assert ([m["id"] for m in listed["messages"]], listed["count"]) == ([dropped], 1)
        await server.pass_time(5 * DAY_MS)
    late = await server.call("DELETE", f"/v1/messages/{dropped}", status=409)
    assert late.body["dispatched_at"] == "2026-11-21T08:01:02.500Z"


async def test_a_message_that_waits_for_the_clock_is_pending(server: Running) -> None:
    await server.pass_time(HOUR_MS)
    server.clock.now_ms -= HOUR_MS
    name = await server.schedule(deliver_in="1m")
    path = f"/v1/messages/{name}"
    assert name[12:16] == "ffff"
    assert (await server.call("GET", path)).body["state"] == "pending"
    await server.call("PATCH", path, {"deliver_in": "2m"})
    assert (await server.call("GET", path)).body["deliver_at"] == "2026-11-21T08:02:00.000Z"
    await server.call("DELETE", path, status=204)
    assert (await server.call("GET", path)).body["state"] == "cancelled"
    assert server.app.core.opened.waiting.pending == 0


async def test_what_is_not_there_is_not_found(server: Running) -> None:
    for name in ("0" * 32, "f" * 32, "nope", "A" * 32, "a:b", "%00"):
        for method, body in (("GET", None), ("PATCH", {"deliver_in": 1}), ("DELETE", None)):
            missing = await server.call(method, f"/v1/messages/{name}", body, status=404)
            assert missing.slug == "not-found"


async def test_concurrent_requests_share_a_group(server: Running) -> None:
    opened = server.app.core.opened
    names = await asyncio.gather(*(server.schedule(f"t/{n}", deliver_in=60) for n in range(50)))
    assert len(set(names)) == opened.waiting.pending == 50


async def test_a_publish_over_mqtt_is_shown_too(server: Running) -> None:
    subscriber, _ = await server.connect("away", "#")
    server.app.core.clients.leave(subscriber, is_clean=False)
    await server.app.quiet()
    packet = Publish(
        b"a/b",
        b"\xff",
        1,
        False,
        False,
        1,
        Properties(content_type="x/y", user_properties=(("k", "v"), ("deliver-in", "1m"))),
    )
    wish = read_publish(packet, b"device-7", START_MS, 10**12)
    ids: list[int] = []
    server.app.core.publishing.publish([(wish, lambda reason, message: ids.append(message))])
    await server.app.quiet()
    got = (await server.call("GET", f"/v1/messages/{ids[0]:032x}")).body
    assert got["payload"] == "/w=="
    assert got["encoding"] == "base64"
    assert got["publisher"] == "device-7"
    assert (got["content_type"], got["headers"]) == ("x/y", {"k": "v"})


@with_settings(tail={"max_entries": 16})
class TestTail:
    async def test_when_is_known_from_the_first_moment(self, server: Running) -> None:
        """Neither the tail nor the journal has the first ones yet."""
        names = [await server.schedule(f"t/{n}", deliver_in=60) for n in range(20)]
        await server.pass_time(MINUTE_MS)
        got = [(await server.call("GET", f"/v1/messages/{name}")).body for name in (names[0], names[19])]
        assert [m["state"] for m in got] == ["dispatched", "dispatched"]
        assert server.app.core.opened.reader.dispatched_ms(id_position(MessageId(int(names[0], 16)))) is None
        assert [m["dispatched_at"] for m in got] == ["2026-11-21T08:01:00.000Z"] * 2
        await server.schedule()
        assert (
            server.app.core.opened.reader.dispatched_ms(id_position(MessageId(int(names[0], 16)))) is not None
        )
        got = [(await server.call("GET", f"/v1/messages/{name}")).body for name in (names[0], names[19])]
        assert [m["dispatched_at"] for m in got] == ["2026-11-21T08:01:00.000Z"] * 2

    async def test_what_was_dropped_as_late_is_not_replayed_before_the_journal_is_written(
        self, server: Running
    ) -> None:
        subscriber, _ = await server.connect("away", "#")
        server.app.core.clients.leave(subscriber, is_clean=False)
        await server.app.quiet()
        dropped = await server.schedule("t/dropped", deliver_in=60, late="drop")
        for n in range(20):
            await server.schedule(f"t/{n}", deliver_in=60)
        await server.pass_time(MINUTE_MS + 2_000)
        _, link = await server.connect("away")
        assert (len(link.sent), "t/dropped" in link.topics) == (20, False)
        got = (await server.call("GET", f"/v1/messages/{dropped}")).body
        assert (got["state"], got["dispatched_at"]) == ("expired", "2026-11-21T08:01:02.000Z")


@with_settings(http={"max_body": 300_000})
async def test_a_large_body_is_refused(server: Running) -> None:
    body = b" " * 300_001
    large = await server.call("POST", "/v1/messages", body, status=413)
    assert large.slug == "too-large"

    async def chunks() -> AsyncIterator[bytes]:
        yield body[:150_000]
        yield body[150_000:]

    async with server.http.post(
        "/v1/messages", data=chunks(), headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.status == 413


@with_settings(limits={"pending": 2, "queued_bytes": 1_000})
class TestLimits:
    async def test_pending_is_bounded(self, server: Running) -> None:
        for _ in range(2):
            await server.schedule(deliver_in=60)
        full = await server.call("POST", "/v1/messages", {"topic": "a", "payload": 1}, status=429)
        assert (full.slug, full.headers["Retry-After"]) == ("over-quota", "1")
        await server.pass_time(MINUTE_MS)
        await server.schedule(deliver_in=60)

    async def test_bodies_under_way_are_bounded_in_bytes(self, server: Running) -> None:
        body = {"topic": "a", "payload": "x" * 700, "deliver_in": 60}
        calls = (server.http.post("/v1/messages", json=body) for _ in range(2))
        answers = await asyncio.gather(*calls)
        assert sorted(a.status for a in answers) == [201, 429]
        await server.schedule(payload="x" * 2_000)  # alone, any that http.max_body lets through


async def test_a_store_that_fails_says_so_and_comes_back(server: Running) -> None:
    name = await server.schedule(deliver_in="1h")
    server.store.is_failing = True
    for _ in range(2):
        lost = await server.call("POST", "/v1/messages", {"topic": "a", "payload": 1}, status=503)
        assert lost.slug == "store-unavailable"
    assert (await server.call("DELETE", f"/v1/messages/{name}", status=503)).slug == "store-unavailable"
    assert (await server.call("GET", "/readyz", status=503)).slug == "not-ready"
    server.store.is_failing = False
    await server.writable()
    assert (await server.call("GET", f"/v1/messages/{name}")).body["state"] == "pending"
    await server.call("DELETE", f"/v1/messages/{name}", status=204)


@with_settings(limits={"queued": 1})
async def test_a_full_queue_says_try_again(server: Running) -> None:
    body = {"topic": "a", "payload": 1, "deliver_in": 60}
    answers = await asyncio.gather(*(server.http.post("/v1/messages", json=body) for _ in range(30)))
    refused = [a for a in answers if a.status == 429]
    assert {a.status for a in answers} <= {201, 429}
    assert all(a.headers["Retry-After"] == "1" for a in refused)
    assert server.app.core.opened.waiting.pending == 30 - len(refused)


async def test_explain_says_where_a_message_lies(server: Running) -> None:
    near, far = await server.schedule(deliver_in="1m"), await server.schedule(deliver_in="P1D")
    await server.app.quiet()
    said = (await server.call("GET", f"/v1/messages/{far}/explain")).body
    assert isinstance(said["position"].pop("seq"), int)
    assert said == {
        "id": far,
        "position": {"at": "2026-11-22T08:00:00.000Z"},
        "held": False,
        "slice": "2026-11-22T08:00:00.000Z",
        "generation": 0,
        "shard": 0,
        "structure": "#",
        "borrowed": False,
        "in_wheel": False,
        "enters_ram_at": "2026-11-22T07:50:00.000Z",
    }
    said = (await server.call("GET", f"/v1/messages/{near}/explain")).body
    assert (said["in_wheel"], said["enters_ram_at"]) == (True, None)
    await server.pass_time(MINUTE_MS)
    said = (await server.call("GET", f"/v1/messages/{near}/explain")).body
    assert (said["in_wheel"], said["enters_ram_at"]) == (False, None)
    await server.call("GET", f"/v1/messages/{'0' * 32}/explain", status=404)


async def test_explain_knows_who_waits_for_the_clock(server: Running) -> None:
    await server.pass_time(HOUR_MS)
    server.clock.now_ms -= HOUR_MS
    name = await server.schedule(deliver_in="1m")
    said = (await server.call("GET", f"/v1/messages/{name}/explain")).body
    assert (said["held"], said["in_wheel"], "shard" in said) == (True, False, False)


async def test_where_nothing_may_be_posted_the_url_is_named(server: Running) -> None:
    url = "http://127.0.0.1:9/hook"
    refused = await server.call("POST", "/v1/messages", {"payload": "x", "deliver_to": url}, status=422)
    allowed = "webhook.allow_private = true (or FASTI__WEBHOOK__ALLOW_PRIVATE=true)"
    why = f"must not be a private or reserved address, unless the server's configuration has {allowed}"
    assert refused.body["errors"] == [{"field": "deliver_to", "detail": f"{url!r} {why}"}]
    refused = await server.call("PUT", "/v1/endpoints/inner", {"url": url}, status=422)
    assert refused.body["errors"] == [{"field": "url", "detail": why}]
    plain = await server.call("PUT", "/v1/endpoints/plain", {"url": "http://example.com/"}, status=422)
    allowed = "webhook.allow_http = true (or FASTI__WEBHOOK__ALLOW_HTTP=true)"
    why = f"must be https, unless the server's configuration has {allowed}"
    assert plain.body["errors"] == [{"field": "url", "detail": why}]


@pytest.mark.parametrize(
    "body", [rb'{"topic":"a","payload":"\ud800"}', rb'{"payload":"\udc00x","topic":"a"}']
)
async def test_half_of_a_surrogate_pair_is_called_that(server: Running, body: bytes) -> None:
    half = body[body.index(b"\\") :][:6].decode()
    refused = await server.call("POST", "/v1/messages", body, status=400)
    assert refused.body["detail"] == f"{half} is half of a surrogate pair, and no character"
    cut = await server.call("POST", "/v1/messages", body[:-2], status=400)
    assert "half of" not in cut.body["detail"]


async def test_a_rate_is_said_as_its_error_says_it(server: Running) -> None:
    """Of a group and an endpoint, as over MQTT and of each ordering key."""
    made = await server.call("PUT", "/v1/groups/g", {"filter": "a/#", "rate": "120/m"}, status=201)
    assert made.body["rate"] == 2.0
    url = "https://example.com/"
    made = await server.call("PUT", "/v1/endpoints/e", {"url": url, "rate": "7200/h"}, status=201)
    assert made.body["rate"] == 2.0
    refused = await server.call("PUT", "/v1/groups/g", {"filter": "a/#", "rate": -1}, status=422)
    assert "or like 100/m, 5/h" in refused.body["detail"]
