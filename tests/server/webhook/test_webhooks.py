"""From a message to its receiver, by a whole server."""

import asyncio
import json
from base64 import b64decode, b64encode
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

import pytest

from server.webhook.signing import secret_of, signatures
from tests.server.conftest import HOUR_MS, MINUTE_MS, TOGETHER, Running
from tests.support.receiver import Behave, Receiver, answer, drop, receiving, silent

from .conftest import dead, put, settled, shown

SECRET = "whsec_" + b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + b64encode(bytes(range(32, 64))).decode()


async def test_a_message_is_posted_and_subscribers_have_it_too(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, secret=SECRET, headers={"X-Own": "1"})
    _, link = await server.connect("s", "orders/#")
    name = await server.schedule(
        "orders/17", {"id": 17}, deliver_to="billing", deliver_in="10s", headers={"x-theirs": "2"}
    )
    assert receiver.got == []
    await server.pass_time(10_000)
    (got,) = await receiver.posts(1)
    await settled(server)
    assert got.body == b'{"id": 17}'
    assert got.headers["webhook-id"] == name
    assert got.headers["content-type"] == "application/json"
    assert got.headers["fasti-topic"] == "orders/17"
    assert got.headers["fasti-attempt"] == "1"
    assert got.headers["fasti-due"] == "2026-11-21T08:00:10.000Z"
    assert (got.headers["x-own"], got.headers["x-theirs"]) == ("1", "2")
    stamp = int(got.headers["webhook-timestamp"])
    assert abs(stamp - server.app.webhooks.now_ms // 1_000) < 60
    assert got.headers["webhook-signature"] == signatures([secret_of(SECRET)], name, stamp, got.body)
    assert len(link.sent) == 1
    view = await shown(server)
    assert (view["delivered"], view["in_flight"], view["lag_messages"]) == (1, 0, 0)
    seen = (await server.call("GET", f"/v1/messages/{name}")).body
    assert seen["deliver_to"] == "billing"
    told = [(one["group"], one["state"]) for one in seen["deliveries"] if "group" in one]
    assert told == [("$endpoint/billing", "done")]


async def test_without_a_topic_it_has_that_of_its_endpoint(server: Running, receiver: Receiver) -> None:
    await put(server, receiver)
    name = (
        await server.call("POST", "/v1/messages", {"payload": "x", "deliver_to": "billing"}, status=201)
    ).body["id"]
    (got,) = await receiver.posts(1)
    assert got.headers["fasti-topic"] == "$deliver/billing"
    assert (await server.call("GET", f"/v1/messages/{name}")).body["topic"] == "$deliver/billing"


async def test_an_endpoint_may_want_envelopes(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, body="envelope", secret=SECRET)
    assert (await shown(server))["body"] == "envelope"
    name = await server.schedule("orders/17", "hello", deliver_to="billing")
    (got,) = await receiver.posts(1)
    stamp = int(got.headers["webhook-timestamp"])
    assert got.headers["webhook-signature"] == signatures([secret_of(SECRET)], name, stamp, got.body)
    said = json.loads(got.body)
    assert (said["type"], said["data"], said["encoding"]) == ("orders/17", "hello", "text")
    again = await server.call("PUT", "/v1/endpoints/billing", {"url": receiver.url("/hook")})
    assert again.body["body"] == "raw"
    await server.schedule("orders/17", "hello", deliver_to="billing")
    await receiver.posts(2)
    assert receiver.got[1].body == b"hello"


async def test_a_url_needs_no_endpoint(server: Running, receiver: Receiver) -> None:
    url = receiver.url("/a?b=c")
    await server.schedule("a", "x", deliver_to=url)
    (got,) = await receiver.posts(1)
    assert got.path == "/a?b=c"
    assert "webhook-signature" not in got.headers
    await server.call("POST", "/v1/messages", {"payload": "y", "deliver_to": url}, status=201)
    await receiver.posts(2)
    assert receiver.got[1].headers["fasti-topic"] == "$deliver/*"
    name = f"$endpoint/{receiver.url('')}"
    group = f"/v1/sessions/{quote(name, safe='')}"
    assert (await server.call("GET", group)).body["client_id"] == name
    assert (await server.call("POST", f"{group}:replay", {"from": "0s"})).body["client_id"] == name
    assert (await server.call("POST", f"{group}:skip", {})).body["undone"]["lag"] == 0
    await server.call("DELETE", group, status=404)


@pytest.mark.parametrize(
    ("deliver_to", "why"),
    [
        ("nobody", "endpoint 'nobody' not found"),
        ("a b", "must be an http(s) URL or the name"),
        ("ftp://x/", "must be an absolute URL"),
        ("https://u:p@x/", "must not contain a user"),
        ("https://x/" + "a" * 2_050, "has more than"),
    ],
)
async def test_where_nothing_can_be_delivered(server: Running, deliver_to: str, why: str) -> None:
    message = {"topic": "a", "payload": "x", "deliver_to": deliver_to}
    refused = await server.call("POST", "/v1/messages", message, status=422)
    assert refused.body["errors"][0]["field"] == "deliver_to"
    assert why in refused.body["errors"][0]["detail"]
    both = [{"topic": "a", "payload": 1}, message]
    batch = await server.call("POST", "/v1/messages:batch", both, status=422)
    assert (batch.body["errors"][0]["field"], batch.body["errors"][0]["line"]) == ("deliver_to", 2)
    each = await server.call("POST", "/v1/messages:batch?each=true", both)
    assert [sorted(one) for one in each.body["results"]] == [["id"], ["problem"]]
    schedule = {"every": "1h", "payload": "x", "deliver_to": deliver_to}
    refused = await server.call("PUT", "/v1/schedules/s", schedule, status=422)
    assert refused.body["errors"][0]["field"] == "deliver_to"


async def test_a_request_that_comes_again_has_its_first_answer_though_the_endpoint_is_gone(
    server: Running, receiver: Receiver
) -> None:
    await put(server, receiver)
    message = {"topic": "a", "payload": "x", "deliver_to": "billing", "key": "k", "deliver_in": "1h"}
    first = await server.call("POST", "/v1/messages", message, status=201)
    await server.call("DELETE", "/v1/endpoints/billing?undone=drop", status=204)
    again = await server.call("POST", "/v1/messages", message, status=200)
    assert again.body["id"] == first.body["id"]


async def test_a_batch_an_export_and_a_move_keep_it(server: Running, receiver: Receiver) -> None:
    await put(server, receiver)
    batch = [{"topic": f"a/{n}", "payload": n, "deliver_to": "billing", "deliver_in": "1h"} for n in range(3)]
    ids = (await server.call("POST", "/v1/messages:batch", batch, status=201)).body["ids"]
    await server.call("PATCH", f"/v1/messages/{ids[0]}", {"deliver_in": "2h"})
    async with server.http.get("/v1/messages:export") as response:
        lines = await response.read()
    assert lines.count(b'"deliver_to":"billing"') == 3
    for name in ids:
        await server.call("DELETE", f"/v1/messages/{name}", status=204)
    await server.call("POST", "/v1/messages:batch", lines, status=201, Content_Type="application/x-ndjson")
    await server.pass_time(3 * HOUR_MS)
    assert sorted(got.body for got in await receiver.posts(3)) == [b"0", b"1", b"2"]
    await settled(server)
    assert len(receiver.got) == 3


async def test_a_schedule_posts_each_time(server: Running, receiver: Receiver) -> None:
    await put(server, receiver)
    schedule = {"every": "1m", "payload": "tick", "deliver_to": "billing"}
    await server.call("PUT", "/v1/schedules/s", schedule, status=201)
    assert (await server.call("GET", "/v1/schedules/s")).body["deliver_to"] == "billing"
    for count in range(1, 4):
        await server.pass_time(MINUTE_MS)
        await receiver.posts(count)
    assert {got.headers["fasti-topic"] for got in receiver.got} == {"$deliver/billing"}


# -- what fails


async def test_a_failure_comes_again_with_the_same_id(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, retry={"max_attempts": 5, "backoff": ["1s", "10s"]})
    receiver.script = [answer(500), drop, answer(302, "Location: /elsewhere")]
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
    for count, wait_ms in ((2, 1_200), (3, 12_000), (4, 12_000)):
        await settled(server)
        assert len(receiver.got) == count - 1
        await server.pass_time(wait_ms)
        await receiver.posts(count)
    await settled(server)
    assert [got.headers["fasti-attempt"] for got in receiver.got] == ["1", "2", "3", "4"]
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
    assert len({got.path for got in receiver.got}) == 1
    await server.pass_time(HOUR_MS)
    assert len(receiver.got) == 4
    assert await dead(server) == []


async def test_after_so_many_it_is_dead_and_can_be_sent_again(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, retry={"max_attempts": 2, "backoff": ["1s"]})
    _, link = await server.connect("s", "$dead/#")
    receiver.behave = answer(503)
    name = await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
    await settled(server)
    await server.pass_time(2_000)
    await receiver.posts(2)
    await settled(server)
    (letter,) = await dead(server)
    assert (letter["id"], letter["attempts"]) == (name, 2)
    assert letter["reason"] == "HTTP 503 Service Unavailable"
    assert letter["deliver_to"] == "billing"
    await server.app.quiet()
    assert len(link.sent) == 1
    receiver.behave = answer(200)
    assert (await server.call("POST", "/v1/dead:requeue", {"ids": [name]})).body["changed"] == 1
    await server.pass_time(1)
    got = (await receiver.posts(3))[2]
    await settled(server)
    assert got.headers["webhook-id"] == name
    assert await dead(server) == []


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("is_date", [False, True])
async def test_retry_after_is_waited_for(
    server: Running, receiver: Receiver, status: int, *, is_date: bool
) -> None:
    await put(server, receiver)
    until_s = server.app.webhooks.now_ms / 1_000 + 120
    value = formatdate(until_s, usegmt=True) if is_date else "120"
    receiver.script = [answer(status, f"Retry-After: {value}")]
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
    await settled(server)
    await server.pass_time(100_000)
    await settled(server)
    assert len(receiver.got) == 1
    await server.pass_time(21_000)
    await receiver.posts(2)


async def test_a_410_pauses_and_nothing_is_lost(server: Running, receiver: Receiver) -> None:
    await put(server, receiver)
    receiver.script = [answer(410)]
    await server.schedule("a", "first", deliver_to="billing")
    await receiver.posts(1)
    async with asyncio.timeout(60):
        while (await shown(server))["state"] != "paused":
            await asyncio.sleep(0.01)
    await server.schedule("a", "second", deliver_to="billing")
    await server.pass_time(HOUR_MS)
    view = await shown(server)
    assert view["reason"] == "HTTP 410 Gone"
    assert (view["lag_messages"], server.app.core.opened.waiting.retries) == (1, 1)
    assert len(receiver.got) == 1
    resumed = (await server.call("POST", "/v1/endpoints/billing:resume")).body
    assert resumed["state"] == "active"
    assert "reason" not in resumed
    assert sorted(got.body for got in (await receiver.posts(3))[1:]) == [b"first", b"second"]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_410_of_a_receiver_that_it_has_no_more_pauses_nothing(
    server: Running, receiver: Receiver, is_deleted: bool
) -> None:
    """The URL was changed, or the endpoint made anew, while a post was under way."""
    await put(server, receiver)
    asked = asyncio.Event()

    async def late(got: Any, writer: asyncio.StreamWriter) -> bool:
        await asked.wait()
        return await answer(410)(got, writer)

    receiver.script = [late]
    await server.schedule("a", "first", deliver_to="billing")
    await receiver.posts(1)
    if is_deleted:
        await server.call("DELETE", "/v1/endpoints/billing?undone=drop", status=204)
        await server.pass_time(1)
    url = receiver.url() if is_deleted else receiver.url("/moved")
    await server.call("PUT", "/v1/endpoints/billing", {"url": url}, status=201 if is_deleted else 200)
    asked.set()
    await settled(server)
    await server.schedule("a", "second", deliver_to="billing")
    await receiver.posts(2)
    assert (await shown(server))["state"] == "active"


@pytest.mark.parametrize("behave", [silent, drop])
async def test_a_receiver_that_says_nothing_is_tried_again(
    server: Running, receiver: Receiver, behave: Behave
) -> None:
    await put(server, receiver, timeout="1s")
    receiver.script = [behave]
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
    await settled(server)
    await server.pass_time(2_000)
    assert (await receiver.posts(2))[1].headers["fasti-attempt"] == "2"


async def test_a_failed_post_disturbs_no_subscriber(server: Running, receiver: Receiver) -> None:
    await put(server, receiver)
    _, link = await server.connect("s", "a")
    receiver.script = [answer(500)]
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
    await settled(server)
    await server.pass_time(2_000)
    await receiver.posts(2)
    assert len(link.sent) == 1


# -- many


async def test_so_many_are_under_way_and_no_more(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, concurrency=3)
    receiver.behave = _slowly(0.02)
    batch = [{"topic": "a", "payload": n, "deliver_to": "billing"} for n in range(30)]
    await server.call("POST", "/v1/messages:batch", batch, status=201)
    await receiver.posts(30)
    await settled(server)
    assert receiver.open_max == 3
    assert {got.headers["fasti-attempt"] for got in receiver.got} == {"1"}


async def test_a_slow_endpoint_slows_no_other(server: Running, receiver: Receiver) -> None:
    async with receiving() as slow:
        slow.behave = silent
        await put(server, slow, "slow", timeout="60s")
        await put(server, receiver, "fast")
        names = ["slow", "fast"] * 200
        batch = [{"topic": "a", "payload": n, "deliver_to": name} for n, name in enumerate(names)]
        await server.call("POST", "/v1/messages:batch", batch, status=201)
        await receiver.posts(200)
        assert len(slow.got) == 10


async def test_a_slow_origin_slows_no_other_and_what_waits_counts_no_attempt(
    server: Running, receiver: Receiver
) -> None:
    async with receiving() as slow:
        slow.behave = _slowly(0.2)
        urls = [slow.url(), receiver.url()] * 25
        batch = [{"topic": "a", "payload": n, "deliver_to": url} for n, url in enumerate(urls)]
        await server.call("POST", "/v1/messages:batch", batch, status=201)
        async with asyncio.timeout(60):
            while len(slow.got) < 25 or len(receiver.got) < 25:
                await server.pass_time(50)
                await asyncio.sleep(0.01)
        await settled(server)
        assert slow.open_max <= 10
        assert len({got.body for got in slow.got}) == 25
        assert {got.headers["fasti-attempt"] for got in slow.got + receiver.got} == {"1"}


def _slowly(seconds: float) -> Behave:
    async def behave(got: Any, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(seconds)
        return await answer(200)(got, writer)

    return behave


# -- changed


async def test_an_endpoint_as_it_is_shown(server: Running, receiver: Receiver) -> None:
    made = await put(
        server,
        receiver,
        secret=SECRET,
        headers={"Authorization": "Bearer word"},
        concurrency=3,
        rate=5,
        timeout="2s",
        retry={"max_attempts": 4, "backoff": ["1s", 2]},
    )
    assert made["url"] == receiver.url()
    assert (made["state"], made["concurrency"], made["timeout"]) == ("active", 3, 2.0)
    assert made["rate"] == 5
    assert made["retry"] == {"max_attempts": 4, "backoff": [1.0, 2.0]}
    assert made["headers"] == ["authorization"]
    assert list(made["secret"]) == ["fingerprint"]
    text = str(made)
    assert "word" not in text
    assert SECRET[6:20] not in text
    listed = (await server.call("GET", "/v1/endpoints")).body
    assert [one["name"] for one in listed["endpoints"]] == ["billing"]
    assert listed["next"] is None
    again = await server.call("PUT", "/v1/endpoints/billing", {"url": receiver.url()}, status=200)
    assert (again.body["concurrency"], again.body["timeout"], again.body["rate"]) == (10, 600.0, 0)
    assert again.body["headers"] == []
    assert again.body["secret"] == made["secret"]
    assert again.body["created_at"] == made["created_at"]


@TOGETHER
@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"secret": "whsec_short"}, "secret"),
        ({"secret": "short"}, "secret"),
        ({"on_dead": "hold"}, "on_dead"),
        ({"order": True, "on_dead": "wait"}, "on_dead"),
        ({"expiry": "0s"}, "expiry"),
        ({"keep": "some"}, "keep"),
        ({"result_ttl": "999ms"}, "result_ttl"),
        ({"alerts": "billing"}, "alerts"),
    ],
)
async def test_what_is_no_endpoint(lasting: Running, members: dict[str, object], field: str) -> None:
    body = {"url": "https://example.com/", **members}
    refused = await lasting.call("PUT", "/v1/endpoints/billing", body, status=422)
    assert refused.body["errors"][0]["field"] == field, refused.body
    for value in (SECRET, "short"):
        assert value not in str(refused.body)


@pytest.mark.parametrize("name", ["a%2Fb", "*", "%C3%BC", "a" * 129, "a b"])
async def test_what_is_no_name(server: Running, name: str) -> None:
    refused = await server.call("PUT", f"/v1/endpoints/{name}", {"url": "https://x.example/"}, status=422)
    assert refused.body["errors"][0]["field"] == "name"


async def test_its_group_is_not_to_be_had_as_a_group_or_a_session(
    server: Running, receiver: Receiver
) -> None:
    await put(server, receiver)
    group = "%24endpoint%2Fbilling"
    assert (await server.call("GET", "/v1/groups")).body["groups"] == []
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", ":pause"), ("POST", "/messages:lease")):
        body = {"max": 1} if "lease" in path else None
        assert (await server.call(method, f"/v1/groups/{group}{path}", body, status=404)).slug == "not-found"
    for method in ("GET", "DELETE"):
        refused = await server.call(method, f"/v1/sessions/{group}", status=404)
        assert "/v1/endpoints" in refused.body["detail"]


async def test_there_is_none(server: Running) -> None:
    await server.call("GET", "/v1/endpoints/x", status=404)
    await server.call("DELETE", "/v1/endpoints/x", status=404)
    for verb in ("pause", "resume", "test"):
        await server.call("POST", f"/v1/endpoints/x:{verb}", status=404)
    await server.call("POST", "/v1/endpoints/x:replay", {"from": "1h"}, status=404)
    assert (await server.call("GET", "/v1/endpoints")).body == {"endpoints": [], "next": None}


async def test_both_secrets_sign_while_one_is_rotated(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, secret=SECRET)
    before = (await shown(server))["secret"]["fingerprint"]
    await server.call("PUT", "/v1/endpoints/billing", {"url": receiver.url(), "secret": OTHER})
    secret = (await shown(server))["secret"]
    assert secret["former"] == before != secret["fingerprint"]
    await server.schedule("a", "x", deliver_to="billing")
    (got,) = await receiver.posts(1)
    stamp, name = int(got.headers["webhook-timestamp"]), got.headers["webhook-id"]
    both = [secret_of(OTHER), secret_of(SECRET)]
    assert got.headers["webhook-signature"] == signatures(both, name, stamp, b"x")
    await server.call("PUT", "/v1/endpoints/billing", {"url": receiver.url(), "secret": None})
    assert (await shown(server))["secret"] is None
    await server.schedule("a", "y", deliver_to="billing")
    assert "webhook-signature" not in (await receiver.posts(2))[1].headers


async def test_a_pause_holds_and_a_resume_goes_on(server: Running, receiver: Receiver) -> None:
    await put(server, receiver)
    assert (await server.call("POST", "/v1/endpoints/billing:pause")).body["state"] == "paused"
    await server.schedule("a", "x", deliver_to="billing")
    await server.pass_time(MINUTE_MS)
    await asyncio.sleep(0.05)
    assert receiver.got == []
    assert (await shown(server))["lag_messages"] == 1
    assert (await server.call("POST", "/v1/endpoints/billing:resume")).body["state"] == "active"
    await receiver.posts(1)


async def test_a_replay_posts_again_what_was_posted(server: Running, receiver: Receiver) -> None:
    await put(server, receiver)
    await put(server, receiver, "other")
    await server.schedule("a", "x", deliver_to="billing")
    await server.schedule("a", "of another", deliver_to="other")
    await server.schedule("a", "of nobody")
    await receiver.posts(2)
    await settled(server)
    await server.pass_time(MINUTE_MS)
    await server.call("POST", "/v1/endpoints/billing:replay", {"from": "1h"})
    assert (await receiver.posts(3))[2].body == b"x"
    await settled(server)
    assert len(receiver.got) == 3


async def test_what_waits_for_one_that_is_deleted_goes_nowhere(server: Running, receiver: Receiver) -> None:
    await put(server, receiver)
    await server.schedule("a", "x", deliver_to="billing", deliver_in="1m")
    await server.call("DELETE", "/v1/endpoints/billing?undone=drop", status=204)
    await server.call("GET", "/v1/endpoints/billing", status=404)
    await server.pass_time(2 * MINUTE_MS)
    await put(server, receiver)
    await server.schedule("a", "y", deliver_to="billing")
    assert [got.body for got in await receiver.posts(1)] == [b"y"]


async def test_one_is_tried_out_at_once(server: Running, receiver: Receiver) -> None:
    await put(server, receiver, secret=SECRET)
    await server.call("POST", "/v1/endpoints/billing:pause")
    tried = (await server.call("POST", "/v1/endpoints/billing:test")).body
    assert (tried["ok"], tried["status"], tried["reason"]) == (True, 200, None)
    assert tried["latency_ms"] > 0
    (got,) = receiver.got
    assert got.headers["webhook-id"] == tried["webhook_id"]
    stamp = int(got.headers["webhook-timestamp"])
    signed = signatures([secret_of(SECRET)], tried["webhook_id"], stamp, got.body)
    assert got.headers["webhook-signature"] == signed
    receiver.behave = answer(404)
    tried = (await server.call("POST", "/v1/endpoints/billing:test")).body
    assert (tried["ok"], tried["status"], tried["reason"]) == (False, 404, "HTTP 404 Not Found")
    receiver.behave = drop
    tried = (await server.call("POST", "/v1/endpoints/billing:test")).body
    assert (tried["ok"], tried["status"]) == (False, None)
    assert tried["reason"] == "the connection was closed without an answer"


async def test_a_secret_is_in_no_log(
    server: Running, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await put(server, receiver, secret=SECRET, headers={"Authorization": "Bearer word"})
    receiver.script = [answer(500), answer(410)]
    await server.schedule("a", "x", deliver_to="billing")
    await receiver.posts(1)
    await settled(server)
    await server.pass_time(2_000)
    await receiver.posts(2)
    await settled(server)
    assert SECRET[6:] not in caplog.text
    assert "word" not in caplog.text
    assert str(b64decode(SECRET[6:])) not in caplog.text


async def test_an_endpoint_whose_deletion_is_not_written_is_gone_and_not_half_of_it(
    server: Running, receiver: Receiver
) -> None:
    """Its place has ended: what it had is dead letters, and a message for it is refused, not lost."""
    await put(server, receiver)
    await server.call("POST", "/v1/endpoints/billing:pause")
    await server.call("POST", "/v1/messages", {"payload": "x", "deliver_to": "billing"}, status=201)
    server.store.loses_next = True
    await server.call("DELETE", "/v1/endpoints/billing?undone=dead", status=503)
    await server.writable()
    await server.pass_time(2_000)
    await server.call("GET", "/v1/endpoints/billing", status=404)
    assert [letter["reason"] for letter in await dead(server)] == ["endpoint deleted"]
    message = {"payload": "x", "deliver_to": "billing"}
    assert (await server.call("POST", "/v1/messages", message, status=422)).slug == "refused"
    await put(server, receiver)
    await server.call("POST", "/v1/messages", {"payload": "x", "deliver_to": "billing"}, status=201)
    assert len(await receiver.posts(1)) == 1


async def test_an_endpoint_that_is_not_written_leaves_no_place(server: Running, receiver: Receiver) -> None:
    """Nobody could see or end it, and it would keep slices."""
    server.store.loses_next = True
    await server.call("PUT", "/v1/endpoints/billing", {"url": receiver.url()}, status=503)
    await server.writable()
    await server.call("GET", "/v1/endpoints/billing", status=404)
    assert len(server.app.core.groups) == 0
    await put(server, receiver)
    await server.call("POST", "/v1/messages", {"payload": "x", "deliver_to": "billing"}, status=201)
    assert len(await receiver.posts(1)) == 1
