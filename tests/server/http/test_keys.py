"""Keys over HTTP: who is let in, what scopes and rules let through, what a quota and a revoked key say."""

import asyncio
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.auth import checking
from server.auth.keyring import Refusal, Why
from server.auth.rate_limit import RateLimiter
from server.auth.rights import Principal
from server.engine.clock import SimulatedClock
from server.engine.requests import over_http
from server.engine.writer import Busy
from server.http import access, selection
from server.http.calls import ADMIN, ANY, OPEN, READ, SCHEDULE
from server.http.cursors import Cursors
from server.http.front import Front
from server.http.openapi import document_of
from server.http.routes import control, export
from server.http.turns import Turn
from server.http.values.bodies import FieldError
from server.settings.config import Config
from server.settings.times import format_ms
from shards.errors import StoreFailed
from tests.support.build import OPENED
from tests.support.keys import KeysFile, with_keys
from timeline.position import END, START, Position, at_of

from ..conftest import NDJSON, running
from .conftest import Keyed, connected
from .test_openapi import calls_of


def test_the_scopes_of_calls_are_those_that_there_are() -> None:
    assert {OPEN, ANY}.isdisjoint((READ, SCHEDULE, ADMIN))


@pytest.mark.long
async def test_every_call_but_the_probes_wants_a_key_and_its_scope(keyed: Keyed) -> None:
    for scope in (READ, SCHEDULE):
        keyed.add(scope, scope)
    opened = set()
    for method, path, call in calls_of(keyed.server):
        verb = method.upper()
        if call.scope == OPEN:
            opened.add(path)
            await keyed.server.call(verb, path)
            continue
        answer = await keyed.server.call(verb, path, status=401)
        assert answer.slug == "unauthorized"
        asked = access.BASIC if path == access.CALENDAR else access.CHALLENGE
        assert answer.headers["WWW-Authenticate"] == asked
        for name in (READ, SCHEDULE):
            shown = {"Authorization": f"Bearer {keyed.keys[name]}"}
            async with keyed.server.http.request(verb, path, headers=shown) as response:
                is_let = call.scope in (ANY, name)
                assert (response.status != 403) is is_let, (verb, path, response.status)
    assert opened == {"/livez", "/readyz", "/", "/console/main.js"}
    for verb, path in (("GET", "/nothing"), ("OPTIONS", "/v1/messages"), ("PUT", "/v1/messages")):
        await keyed.server.call(verb, path, status=401)
    await keyed.call("read", "GET", "/nothing", status=404)


@pytest.mark.parametrize(
    "shown",
    ["", "Bearer", "Bearer ", "Basic b3BzOng=", "Bearer a b", "Bearer fasti_ops_x", "Bearer fasti_nobody_x",
     "Bearer x", "fasti_ops_x", "Bearer ü"],
)  # fmt: skip
async def test_what_is_no_key_is_401(keyed: Keyed, shown: str) -> None:
    answer = await keyed.server.call("GET", "/v1/info", status=401, Authorization=shown)
    assert answer.slug == "unauthorized"
    assert answer.headers["WWW-Authenticate"].startswith("Bearer ")
    assert keyed.keys["ops"] not in json.dumps(answer.body)


async def test_nobody_comes_in_without_a_password(
    tmp_path: Path, file: KeysFile, config: Config, clock: SimulatedClock
) -> None:
    """As `u`, whose stored password is empty: `mosquitto_passwd -b FILE u ""`."""
    passwords = tmp_path / "passwords"
    salt = b"salt"
    stored = hashlib.pbkdf2_hmac("sha512", b"", salt, 101)
    passwords.write_text(f"u:$7$101${b64encode(salt).decode()}${b64encode(stored).decode()}\n")
    passwords.chmod(0o600)
    with_u = with_keys(config, file.path, password_file=str(passwords))
    async with running(tmp_path / "data", with_u, clock) as server:
        basic = [f"Basic {b64encode(text).decode()}" for text in (b"u", b"u:", b"u:x", b":", b"u:fasti_u_")]
        for shown in (None, "Basic", *basic, "Bearer", "Bearer u", "Bearer u:", "Bearer fasti_u_"):
            more = {} if shown is None else {"Authorization": shown}
            await server.call("GET", "/v1/info", status=401, **more)
        assert server.app.keyring.named("u") is not None
        for password in (b"", b"x"):
            answers: list[Principal | Refusal] = []
            server.app.keyring.check("u", password, "10.0.0.1", answers.append)
            while not answers:
                await asyncio.sleep(0)
            assert answers == [Refusal(Why.WRONG)]


async def test_a_key_under_the_name_of_another_is_401(keyed: Keyed) -> None:
    keyed.add("a")
    for key in (keyed.keys["ops"].replace("ops", "a"), keyed.keys["ops"] + "0", keyed.keys["ops"].upper()):
        await keyed.server.call("GET", "/v1/info", status=401, Authorization=f"Bearer {key}")
    await keyed.server.call("GET", "/v1/info", Authorization=f"bearer {keyed.keys['ops']}")


async def test_two_keys_in_one_request_are_none(keyed: Keyed) -> None:
    key = f"Bearer {keyed.keys['ops']}"
    headers = [("Authorization", key), ("Authorization", key)]
    async with keyed.server.http.get("/v1/info", headers=headers) as response:
        assert response.status == 400


async def test_who_shows_wrong_keys_is_told_to_wait_and_nobody_else(keyed: Keyed) -> None:
    keyed.add("late")
    for _ in range(6):
        await keyed.server.call("GET", "/v1/info", status=401, Authorization="Bearer fasti_ops_x")
    answer = await keyed.server.call("GET", "/v1/info", status=429, Authorization="Bearer fasti_ops_x")
    assert answer.slug == "over-quota"
    assert int(answer.headers["Retry-After"]) >= 1
    await keyed.call("late", "GET", "/v1/info")
    await keyed.call("ops", "GET", "/v1/info")


async def test_no_more_keys_are_checked_at_a_time_than_there_may_be(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed.add("late", is_old=True)
    monkeypatch.setattr(checking, "WAITING_MAX", 0)
    answer = await keyed.call("late", "GET", "/v1/info", status=429)
    assert answer.headers["Retry-After"] == "1"


async def test_a_key_sends_to_the_topics_of_its_rules(keyed: Keyed) -> None:
    keyed.add("a", publish=["a/%u/#"])
    await keyed.schedule("a", "a/a/1")
    body = {"topic": "a/b/1", "payload": "x"}
    for _ in range(2):  # at aiohttp's, then at the front
        answer = await keyed.call("a", "POST", "/v1/messages", body, status=403)
        assert answer.slug == "forbidden"
    lines = b"\n".join(json.dumps({"topic": t, "payload": "x"}).encode() for t in ("a/a/2", "b", "a/a/3"))
    answer = await keyed.call("a", "POST", "/v1/messages:batch", lines, status=403, Content_Type=NDJSON)
    assert answer.body["errors"][0] | {"detail": ""} == {"line": 2, "field": "topic", "detail": ""}
    each = await keyed.body("a", "POST", "/v1/messages:batch?each=true", lines, Content_Type=NDJSON)
    first, second, third = each["results"]
    assert "id" in first
    assert second["problem"]["type"] == "/problems/forbidden"
    assert "id" in third
    assert sorted(await keyed.topics("ops")) == ["a/a/1", "a/a/2", "a/a/3"]


async def test_what_a_key_may_not_retain_is_refused(keyed: Keyed) -> None:
    keyed.add("a", "admin", retained=1)
    body = {"payload": "x", "retain": True}
    await keyed.call("a", "POST", "/v1/messages", {"topic": "t/1", **body}, status=201)
    answer = await keyed.call("a", "POST", "/v1/messages", {"topic": "t/2", **body}, status=429)
    assert (answer.slug, answer.headers["Retry-After"]) == ("over-quota", "1")
    items = [{"topic": "t/1", **body}, {"topic": "t/2", **body}, {"topic": "t/2", "payload": "x"}]
    assert (await keyed.call("a", "POST", "/v1/messages:batch", items, status=429)).slug == "over-quota"
    each = (await keyed.body("a", "POST", "/v1/messages:batch?each=true", items))["results"]
    assert ["id" in one for one in each] == [True, False, True]
    assert each[1]["problem"]["type"] == "/problems/over-quota"
    # One that is delayed is retained if there is room when it fires.
    await keyed.call("a", "POST", "/v1/messages", {"topic": "t/2", "deliver_in": 60, **body}, status=201)


async def test_a_key_has_so_many_schedules_and_no_more(keyed: Keyed) -> None:
    keyed.add("boss", "admin", schedules=1)
    body = {"every": "PT1H", "topic": "t", "payload": "x"}
    await keyed.call("boss", "PUT", "/v1/schedules/one", body, status=201)
    answer = await keyed.call("boss", "PUT", "/v1/schedules/two", body, status=429)
    assert answer.body["detail"] == "key 'boss' has 1 schedules, its limit is 1"
    await keyed.call("boss", "PUT", "/v1/schedules/one", {**body, "payload": "y"})
    await keyed.call("ops", "PUT", "/v1/schedules/two", body, status=201)
    # Who changes a schedule has it from then on.
    await keyed.call("ops", "PUT", "/v1/schedules/one", {**body, "payload": "z"})
    await keyed.call("boss", "PUT", "/v1/schedules/three", body, status=201)
    await keyed.call("boss", "DELETE", "/v1/schedules/three", status=204)
    await keyed.call("boss", "PUT", "/v1/schedules/four", body, status=201)


async def test_a_schedule_sends_to_the_topics_of_the_rules(keyed: Keyed) -> None:
    keyed.add("boss", "admin", publish=["a/#"])
    for topic, status in (("a/1", 201), ("b/1", 403)):
        body = {"every": "PT1H", "topic": topic, "payload": "x"}
        await keyed.call("boss", "PUT", f"/v1/schedules/of-{topic[0]}", body, status=status)


async def test_what_a_key_may_not_see_is_not_there(keyed: Keyed) -> None:
    keyed.add("a", publish=["a/#"], deliver=["seen/#"])
    own = await keyed.schedule("ops", "a/1")
    seen = await keyed.schedule("ops", "seen/1")
    other = await keyed.schedule("ops", "b/1")
    gone = await keyed.schedule("ops", "b/gone")
    await keyed.call("ops", "DELETE", f"/v1/messages/{gone}", status=204)
    assert sorted(await keyed.topics("a")) == ["a/1", "seen/1"]
    assert await keyed.topics("a", "&topic=b/%23") == []
    assert (await keyed.body("a", "GET", "/v1/messages?count=true"))["count"] == 2
    assert (await keyed.body("ops", "GET", "/v1/messages?count=true"))["count"] == 3
    shown = {"Authorization": f"Bearer {keyed.keys['a']}"}
    async with keyed.server.http.get("/v1/messages:export", headers=shown) as response:
        exported = await response.text()
    assert sorted(json.loads(line)["topic"] for line in exported.splitlines()) == ["a/1", "seen/1"]
    assert (await keyed.body("a", "GET", "/v1/timeline/density?bucket=PT1H"))["total"] == 2
    assert (await keyed.body("ops", "GET", "/v1/timeline/density?bucket=PT1H"))["total"] == 3
    for name in (own, seen):
        await keyed.call("a", "GET", f"/v1/messages/{name}")
        await keyed.call("a", "GET", f"/v1/messages/{name}/explain")
    for name in (other, gone, "0" * 32):
        for method, path in (("GET", ""), ("GET", "/explain"), ("DELETE", ""), ("PATCH", "")):
            body = {"deliver_in": 60} if method == "PATCH" else None
            answer = await keyed.call("a", method, f"/v1/messages/{name}{path}", body, status=404)
            assert answer.slug == "not-found"
    assert (await keyed.body("ops", "GET", f"/v1/messages/{other}"))["state"] == "pending"


async def test_a_key_without_deliver_reads_what_it_may_subscribe_to(keyed: Keyed) -> None:
    keyed.add("shop", publish=["orders/#"], subscribe=["orders/#"])
    keyed.add("device", publish=[], subscribe=["dev/%c/#", "dev/%u/#"])
    own, pay = await keyed.schedule("ops", "orders/1"), await keyed.schedule("ops", "payroll/1")
    await keyed.schedule("ops", "dev/d1/x")
    await keyed.schedule("ops", "dev/device/x")
    assert await keyed.topics("shop") == ["orders/1"]
    assert await keyed.topics("shop", "&topic=payroll/%23") == []
    await keyed.call("shop", "GET", f"/v1/messages/{own}")
    await keyed.call("shop", "GET", f"/v1/messages/{pay}", status=404)
    # Over HTTP a rule with %c allows nothing; over MQTT the client d1 is sent its own topics.
    assert await keyed.topics("device") == ["dev/device/x"]
    rights = keyed.server.app.keyring.rights_of("device", "d1")
    assert rights is not None
    received = {topic: rights.may_receive(topic) for topic in (b"dev/d1/x", b"dev/d2/x", b"payroll/1")}
    assert received == {b"dev/d1/x": True, b"dev/d2/x": False, b"payroll/1": False}


async def test_the_name_of_a_page_says_nothing_of_what_is_not_there(keyed: Keyed) -> None:
    keyed.add("a", publish=["a/#"], deliver=["a/#"])
    names = []
    for hours, topic in enumerate(("a/1", "other", "other", "a/2", "a/3"), 1):
        names.append(await keyed.schedule("ops", topic, deliver_in=3_600 * hours))
    path, seen = "/v1/messages?limit=1", []
    for _ in range(3):
        page = await keyed.body("a", "GET", path)
        seen += page["messages"]
        if page["next"] is not None:
            place = Position(int(page["next"][:24], 16))
            assert format_ms(at_of(place)) == seen[-1]["deliver_at"]
            path = f"/v1/messages?limit=1&cursor={page['next']}"
    assert [message["id"] for message in seen] == [names[0], names[3], names[4]]
    assert page["next"] is None


async def test_nor_does_that_of_a_page_that_is_cut_at_what_is_not_there(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is short, and a bulk call stops, when much has been looked at: anywhere."""
    for module, name in ((selection, "LOOK_ROWS"), (selection, "STEP_ROWS"), (control, "LOOK_ROWS")):
        monkeypatch.setattr(module, name, 2)
    keyed.add("a", publish=["a/#"], deliver=["a/#"])
    topics = ["other", "a/1", *["other"] * 6, "a/2", *["other"] * 3]
    for hours, topic in enumerate(topics, 1):
        await keyed.schedule("ops", topic, deliver_in=3_600 * hours)
    places, path = {}, "/v1/messages?limit=1"
    while path:
        page = await keyed.body("ops", "GET", path)
        path = page["next"] and f"/v1/messages?limit=1&cursor={page['next']}"
        places[page["next"]] = page["messages"][0]["topic"] if page["messages"] else None
    hidden = [int(place[:24], 16) for place, topic in places.items() if place and topic == "other"]
    assert len(hidden) >= 8
    seen, given = [], []
    path = "/v1/messages?limit=5"
    while path:
        page = await keyed.body("a", "GET", path)
        seen += [message["topic"] for message in page["messages"]]
        given.append(page["next"] or "")
        path = page["next"] and f"/v1/messages?limit=5&cursor={page['next']}"
    assert seen == ["a/1", "a/2"]
    every = {"filter": {"topic": "#"}, "limit": 1}
    matched, cursor = 0, None
    while cursor is not None or not matched:
        bulk = {**every, "cursor": cursor} if cursor else every
        said = await keyed.body("a", "POST", "/v1/messages:cancel", {**bulk, "dry_run": True})
        matched, cursor = matched + said["matched"], said["next"]
        given.append(cursor or "")
    assert matched == 2
    assert sum(len(text) == 80 for text in given) >= 4, given
    for text in given:
        assert not any(f"{place:024x}"[:12] in text for place in hidden), text
    other = Cursors(b"another server's").text(START, is_hidden=True)
    for text, why in (
        (other, "begin without a cursor"),
        ("0" * 56, "begin without a cursor"),
        ("0" * 26, "was not issued"),
        ("x", "was not issued"),
    ):
        answer = await keyed.call("a", "GET", f"/v1/messages?cursor={text}", status=422)
        assert why in answer.body["errors"][0]["detail"]


def test_what_is_sealed_is_opened_by_who_has_sealed_it() -> None:
    one, other = Cursors(b"one"), Cursors(b"other")
    last = Position(END - 1)
    for place, as_of in ((START, None), (last, None), (Position(12_345), Position(9)), (START, END)):
        open_text, sealed = one.text(place, as_of), one.text(place, as_of, is_hidden=True)
        assert one.place(open_text) == other.place(open_text) == one.place(sealed) == (place, as_of)
        assert sealed == one.text(place, as_of, is_hidden=True)
        for at in range(len(sealed)):
            bad = sealed[:at] + ("1" if sealed[at] == "0" else "0") + sealed[at + 1 :]
            with pytest.raises(FieldError, match="begin without a cursor"):
                one.place(bad)
        with pytest.raises(FieldError, match="begin without a cursor"):
            other.place(sealed)


async def test_a_key_changes_what_it_may_send_to(keyed: Keyed) -> None:
    keyed.add("a", publish=["a/#"], deliver=["#"])
    own, twice, other = [await keyed.schedule("ops", topic) for topic in ("a/1", "a/2", "b/1")]
    for method, body in (("DELETE", None), ("PATCH", {"deliver_in": 60})):
        answer = await keyed.call("a", method, f"/v1/messages/{other}", body, status=403)
        assert answer.slug == "forbidden"
    await keyed.call("a", "PATCH", f"/v1/messages/{own}", {"deliver_in": 7_200})
    for _ in range(2):
        await keyed.call("a", "DELETE", f"/v1/messages/{own}", status=204)
    every = {"filter": {"topic": "#"}}
    moved = await keyed.body("a", "POST", "/v1/messages:reschedule", {**every, "shift": 60})
    assert (moved["matched"], moved["changed"]) == (1, 1)
    cancelled = await keyed.body("a", "POST", "/v1/messages:cancel", every)
    assert (cancelled["matched"], cancelled["changed"]) == (1, 1)
    states = [
        (await keyed.body("ops", "GET", f"/v1/messages/{name}"))["state"] for name in (own, twice, other)
    ]
    assert states == ["cancelled", "cancelled", "pending"]


async def test_idempotency_keys_are_each_key_s_own(keyed: Keyed) -> None:
    keyed.add("a")
    keyed.add("b")
    body = {"topic": "t", "payload": "x", "deliver_in": 60}
    made = {}
    for name in ("a", "b", "a", "b"):
        status = 200 if name in made else 201
        answer = await keyed.body(name, "POST", "/v1/messages", body, status=status, Idempotency_Key="k")
        assert made.setdefault(name, answer["id"]) == answer["id"]
    assert made["a"] != made["b"]
    item = json.dumps({**body, "key": "k2"}).encode()
    for name in ("a", "b"):
        for _ in range(2):
            each = await keyed.body(name, "POST", "/v1/messages:batch", item, status=201, Content_Type=NDJSON)
            made[name] = made.get(f"{name}2", each["ids"])
            assert made.setdefault(f"{name}2", each["ids"]) == each["ids"]
    assert made["a2"] != made["b2"]


@OPENED
@pytest.mark.parametrize(("error", "status"), [(Busy("full"), 429), (StoreFailed("broken"), 503)])
async def test_what_the_writer_refuses_is_charged_once(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    keyed.add("a", rate=100)
    await keyed.call("a", "GET", "/v1/info", Connection="close")  # the next is for the quick path

    def refuse(*_: object, **__: object) -> None:
        raise error

    taken: list[int] = []
    monkeypatch.setattr(RateLimiter, "take", lambda self, count=1: taken.append(count) or 0.0)
    monkeypatch.setattr(keyed.server.app.core.writer, "submit", refuse)
    body = {"topic": "a/b", "payload": "x", "deliver_in": 3_600}
    answer = await keyed.call("a", "POST", "/v1/messages", body, status=status)
    assert answer.headers["Retry-After"] == "1"
    assert taken == [1]


@OPENED
async def test_calls_wait_for_the_writer_apart_from_what_their_key_publishes(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed.add("a", rate=100)
    await keyed.call("a", "GET", "/v1/info", Connection="close")  # the next is for the quick path
    writer, lines = keyed.server.app.core.writer, list[str]()
    submit = writer.submit

    def noted(*args: Any, owner: str = "", **more: Any) -> None:
        lines.append(owner)
        submit(*args, owner=owner, **more)

    monkeypatch.setattr(writer, "submit", noted)
    body = {"topic": "a/b", "payload": "x", "deliver_in": 3_600}
    await keyed.call("a", "POST", "/v1/messages", body, status=201)
    await keyed.call("a", "POST", "/v1/messages:batch", [body], status=201)
    assert lines == [over_http("a")] * 2


async def test_a_rate_is_kept_and_says_when(keyed: Keyed) -> None:
    keyed.add("slow", rate=1)
    body = {"topic": "t", "payload": "x"}
    await keyed.call("slow", "POST", "/v1/messages:batch", [body] * 100, status=201)
    answer = await keyed.call("slow", "POST", "/v1/messages", body, status=429)
    assert answer.slug == "over-quota"
    assert 60 < int(answer.headers["Retry-After"]) <= 100
    for query in ("", "?each=true"):
        await keyed.call("slow", "POST", f"/v1/messages:batch{query}", [body], status=429)
    await keyed.schedule("ops", "t")
    assert (await keyed.body("slow", "GET", "/v1/messages?state=all&count=true"))["count"] == 101


async def test_a_key_has_so_many_bytes_pending_and_no_more(keyed: Keyed) -> None:
    keyed.add("few", pending_bytes=3_200)
    body = {"topic": "t", "payload": "x" * 1_000, "deliver_in": 3_600}
    answer = await keyed.call("few", "POST", "/v1/messages:batch", [body] * 4, status=429)
    assert (answer.slug, answer.headers["Retry-After"]) == ("over-quota", "1")
    assert answer.body["detail"] == "key 'few' has 0 bytes pending, its limit is 3200"
    name, *_ = (await keyed.body("few", "POST", "/v1/messages:batch", [body] * 3, status=201))["ids"]
    await keyed.call("few", "POST", "/v1/messages", body, status=429)
    await keyed.schedule("few", "t")
    await keyed.schedule("ops", "t", payload="x" * 5_000)
    await keyed.call("few", "PATCH", f"/v1/messages/{name}", {"deliver_in": 7_200})
    await keyed.call("few", "POST", "/v1/messages", body, status=429)
    await keyed.call("ops", "DELETE", f"/v1/messages/{name}", status=204)
    await keyed.call("few", "POST", "/v1/messages", body, status=201)
    await keyed.call("few", "POST", "/v1/messages", body, status=429)
    await keyed.server.pass_time(3_601_000)
    await keyed.call("few", "POST", "/v1/messages:batch", [body] * 3, status=201)


async def test_a_key_has_so_many_messages_pending_and_no_more(keyed: Keyed) -> None:
    keyed.add("few", pending=3)
    keyed.add("boss", "admin", pending=1)
    body = {"topic": "t", "payload": "x", "deliver_in": 3_600}
    answer = await keyed.call("few", "POST", "/v1/messages:batch", [body] * 4, status=429)
    assert (answer.slug, answer.headers["Retry-After"]) == ("over-quota", "1")
    assert answer.body["detail"] == "key 'few' has 0 messages pending, its limit is 3"
    assert (await keyed.body("few", "GET", "/v1/messages?count=true"))["count"] == 0, "none of it"
    name, *_ = (await keyed.body("few", "POST", "/v1/messages:batch", [body] * 3, status=201))["ids"]
    answer = await keyed.call("few", "POST", "/v1/messages", body, status=429)
    assert (answer.slug, answer.headers["Retry-After"]) == ("over-quota", "1")
    await keyed.schedule("ops", "t")
    await keyed.call("few", "PATCH", f"/v1/messages/{name}", {"deliver_in": 7_200})
    await keyed.call("few", "POST", "/v1/messages", body, status=429)
    await keyed.call("ops", "DELETE", f"/v1/messages/{name}", status=204)
    each = await keyed.body("few", "POST", "/v1/messages:batch?each=true", [body] * 2)
    first, second = each["results"]
    assert set(first) == {"id"}
    assert second["problem"]["type"] == "/problems/over-quota"
    await keyed.server.pass_time(3_601_000)
    await keyed.call("few", "POST", "/v1/messages:batch", [body] * 3, status=201)
    hourly = {"every": "PT1H", "topic": "t", "payload": "x"}
    await keyed.call("boss", "PUT", "/v1/schedules/a", hourly, status=201)
    await keyed.call("boss", "PUT", "/v1/schedules/b", hourly, status=429)


async def test_what_a_key_has_sent_is_withheld_when_it_is_revoked(keyed: Keyed) -> None:
    """One message, a batch, what the front has not seen before, a schedule; who sent it is nowhere told."""
    keyed.add("a", "admin")
    _, link = await keyed.server.connect("c", "#")
    names = [await keyed.schedule(who, who, late="deliver") for who in ("a", "ops")]
    body = {"topic": "batch", "payload": "x", "deliver_in": 3_600, "headers": {"h": "v"}}
    await keyed.call("a", "POST", "/v1/messages:batch", [body], status=201)
    await keyed.call(
        "a", "PUT", "/v1/schedules/s", {"every": "PT1H", "topic": "s", "payload": "x"}, status=201
    )
    for name in names:
        assert "owner" not in await keyed.body("ops", "GET", f"/v1/messages/{name}")
    shown = {"Authorization": f"Bearer {keyed.keys['ops']}"}
    async with keyed.server.http.get("/v1/messages:export", headers=shown) as response:
        assert "owner" not in await response.text()
    keyed.file.revoke("a")
    keyed.take()
    keyed.server.app.core.review()
    await keyed.server.pass_time(3_601_000)
    assert link.topics == ["ops"]
    page = await keyed.body("ops", "GET", "/metrics")
    assert b"fasti_messages_withheld_total 3.0" in page


async def test_a_key_that_is_revoked_or_changed_counts_at_once(keyed: Keyed) -> None:
    keyed.add("a")
    await keyed.schedule("a", "t")
    await keyed.schedule("a", "t")
    keyed.file.change("a", '["schedule", "read"]', '["read"]')
    keyed.take()
    await keyed.call("a", "POST", "/v1/messages", {"topic": "t", "payload": "x"}, status=403)
    await keyed.call("a", "GET", "/v1/messages")
    keyed.file.revoke("a")
    keyed.take()
    await keyed.call("a", "GET", "/v1/messages", status=401)
    await keyed.call("a", "POST", "/v1/messages", {"topic": "t", "payload": "x"}, status=401)


@pytest.mark.parametrize(("how", "status"), [("revoked", 401), ("other scope", 403), ("not", 200)])
async def test_a_body_that_comes_when_its_key_counts_no_more_does_nothing(
    keyed: Keyed, how: str, status: int
) -> None:
    keyed.add("a", "admin")
    shown = {"Authorization": f"Bearer {keyed.keys['a']}", "Content-Type": "application/json"}
    await keyed.call("a", "GET", "/v1/info")
    before = keyed.server.clock.now_ms

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"by":'
        for _ in range(3):
            await keyed.call("ops", "GET", "/v1/info")
        if how == "revoked":
            keyed.file.revoke("a")
        if how == "other scope":
            keyed.file.change("a", "admin", "read")
        keyed.take()
        yield b' "PT1S"}'

    async with keyed.server.http.post("/v1/clock:advance", data=slowly(), headers=shown) as response:
        assert response.status == status
    assert keyed.server.clock.now_ms - before == (1_000 if how == "not" else 0)


async def test_an_export_ends_when_its_key_is_revoked(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.routes.export.STEP_ROWS", 1)
    keyed.add("a")
    for _ in range(3):
        await keyed.schedule("ops", "t")
    shown = {"Authorization": f"Bearer {keyed.keys['a']}"}
    step = export.Reading.step

    def revoking(self: export.Reading, turn: Turn) -> list[bytes]:
        keyed.file._blocks.pop("a", None)
        keyed.file.write()
        keyed.take()
        return step(self, turn)

    monkeypatch.setattr(export.Reading, "step", revoking)
    with pytest.raises(Exception, match=r"payload|disconnected|closed|Transfer"):
        async with keyed.server.http.get("/v1/messages:export", headers=shown) as response:
            await response.read()


async def test_an_export_is_held_to_rules_that_change_meanwhile(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.http.routes.export.STEP_ROWS", 1)
    keyed.add("a", rate=9)
    for topic in ("x", "mine", "x", "mine"):
        await keyed.schedule("ops", topic)
    shown = {"Authorization": f"Bearer {keyed.keys['a']}"}
    step = export.Reading.step

    def narrowing(self: export.Reading, turn: Turn) -> list[bytes]:
        lines = step(self, turn)
        if "publish" not in keyed.file._blocks["a"]:
            keyed.file.change("a", "rate = 9", 'publish = ["mine"]\ndeliver = ["mine"]')
            keyed.take()
        return lines

    monkeypatch.setattr(export.Reading, "step", narrowing)
    async with keyed.server.http.get("/v1/messages:export", headers=shown) as response:
        exported = (await response.text()).splitlines()
    assert [json.loads(line)["topic"] for line in exported] == ["x", "mine", "mine"]


async def test_who_may_not_see_all_learns_of_no_id_that_is_taken(keyed: Keyed) -> None:
    keyed.add("a", publish=["a/#"], deliver=["a/#"])
    other = await keyed.schedule("ops", "other/1")
    for name in (other, other[:-1] + "0"):
        item = [{"id": name, "topic": "a/1", "payload": "x"}]
        for query in ("ids=true", "ids=true&each=true"):
            answer = await keyed.call("a", "POST", f"/v1/messages:batch?{query}", item, status=403)
            assert name not in json.dumps(answer.body)
    item = [{"id": other[:-1] + "0", "topic": "a/1", "payload": "x"}]
    await keyed.call("ops", "POST", "/v1/messages:batch?ids=true", item, status=201)


async def test_the_front_takes_who_is_known_and_hands_over_who_is_not(keyed: Keyed) -> None:
    at = keyed.server.front
    keyed.add("a", publish=["t"], is_old=True)
    keyed.add("b", publish=["t"])
    body = b'{"topic":"t","payload":"x"}'

    async def posted(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str
    ) -> tuple[int, bool]:
        """The status, and whether the front still has the connection."""
        shown = f"Authorization: Bearer {key}\r\n" if key else ""
        head = f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{shown}"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", answer)
        assert length is not None
        await reader.readexactly(int(length[1]))
        return int(answer.split()[1]), any(
            isinstance(one, Front) and one._inner is None for one in at.listener.crowd
        )

    for key, expected in (
        (keyed.keys["a"], (201, False)),
        (keyed.keys["a"], (201, True)),
        (keyed.keys["b"], (201, True)),
        ("", (401, False)),
        ("fasti_a_x", (401, False)),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", at.front_port)
        assert await posted(reader, writer, key) == expected
        writer.close()
        await writer.wait_closed()
        while any(isinstance(one, Front) for one in at.listener.crowd):
            await asyncio.sleep(0)


async def test_a_key_has_so_many_connections_of_either_protocol(keyed: Keyed) -> None:
    at = keyed.server.front
    keyed.add("few", connections=2)
    connections = keyed.server.app.core.clients.connections
    post = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    get = b"GET /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
    body = b'{"topic":"t","payload":"p","deliver_in":"15m"}'
    shown = f"Authorization: Bearer {keyed.keys['few']}\r\n".encode()

    async def ask(wire: tuple[asyncio.StreamReader, asyncio.StreamWriter], call: bytes) -> int:
        reader, writer = wire
        sent = body if call is post else b""
        writer.write(call + shown + b"Content-Length: %d\r\n\r\n" % len(sent) + sent)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        return int(head.split()[1])

    wires = [await asyncio.open_connection("127.0.0.1", at.front_port) for _ in range(4)]
    connections.add("few")  # one of MQTT's
    assert [await ask(wires[0], call) for call in (post, post, get)] == [201, 201, 200]
    assert [await ask(wires[1], call) for call in (post, post, get)] == [429, 429, 429]
    assert await ask(wires[2], get) == 429
    assert connections.refusal("few") == "key 'few' has 2 connections, its limit is 2"
    connections.add("few", -1)
    assert await ask(wires[1], post) == 201
    wires[0][1].close()
    async with asyncio.timeout(30):
        while connections.refusal("few"):
            await asyncio.sleep(0)
    assert await ask(wires[2], post) == 201
    for _, writer in wires:
        writer.close()
    async with asyncio.timeout(30):
        while connections.taken:
            await asyncio.sleep(0)


async def test_the_description_says_what_a_call_wants(keyed: Keyed) -> None:
    document = await keyed.body("ops", "GET", "/openapi.json")
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    paths = document["paths"]
    assert paths["/v1/messages"]["post"]["security"] == [{"key": ["schedule"]}]
    assert paths["/v1/info"]["get"]["security"] == [{"key": []}]
    assert paths["/livez"]["get"]["security"] == []
    assert {"401", "403", "429"} <= paths["/v1/slices"]["get"]["responses"].keys()
    assert "401" not in paths["/livez"]["get"]["responses"]
    assert keyed.server.http.app is not None
    plain = document_of(keyed.server.http.app.router.routes())
    assert "securitySchemes" not in plain["components"]
    assert "security" not in plain["paths"]["/v1/messages"]["post"]


async def test_the_server_s_own_programs_have_a_key(keyed: Keyed) -> None:
    own = keyed.server.app.keyring.own_key()
    await keyed.server.call("GET", "/v1/jobs", Authorization=f"Bearer {own}")
    assert access.CHALLENGE


async def test_a_key_sees_its_own_sessions(keyed: Keyed) -> None:
    for name in ("a", "b"):
        keyed.add(name, "read")
        await connected(keyed, name, f"{name}1", "t", f"$share/own-{name}/t", "$share/both/t")
    listed = {}
    for name in ("a", "ops"):
        page = await keyed.body(name, "GET", "/v1/sessions")
        listed[name] = [session["client_id"] for session in page["sessions"]]
    assert listed["a"] == ["a1"]
    assert listed["ops"] == ["a1", "b1"]
    for other in ("b1", "%24share%2Fown-a%2Ft", "nobody"):
        await keyed.call("a", "GET", f"/v1/sessions/{other}", status=404)
        await keyed.call("a", "DELETE", f"/v1/sessions/{other}", status=404)
        await keyed.call("a", "POST", f"/v1/sessions/{other}:replay", {"from": "PT1H"}, status=404)
    await keyed.call("a", "POST", "/v1/sessions/a1:replay", {"from": "PT1H"})
    await keyed.call("a", "DELETE", "/v1/sessions/a1", status=204)
    assert (await keyed.body("a", "GET", "/v1/sessions"))["sessions"] == []
    left = (await keyed.body("a", "GET", "/v1/groups"))["groups"]
    assert [one["name"] for one in left] == ["both", "own-a"], "they keep their place, and are still a's"
    await keyed.call("ops", "DELETE", "/v1/sessions/b1", status=204)


@OPENED
async def test_a_group_that_changes_hands_meanwhile_is_set_back_by_nobody_else(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and the writer's turn the group has passed to another key."""
    for name in ("a", "b"):
        keyed.add(name, "read")
    await connected(keyed, "a", "a1", "$share/g/t")
    core = keyed.server.app.core
    group = keyed.server.group("$share/g/t")
    await keyed.call("a", "POST", "/v1/groups/g:replay", {"from": "PT1H"}, status=200)
    sent: list[Position] = []
    monkeypatch.setattr(core.replay, "rewind", lambda commit, subscriber, to: sent.append(to))
    submit = core.writer.submit

    def joined(*args: Any, **options: Any) -> None:
        member = keyed.server.session("a1")
        member.owner = group.owner = "b"
        submit(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(core.writer, "submit", joined)
        await keyed.call("a", "POST", "/v1/groups/g:replay", {"from": "PT1H"}, status=404)
    assert not sent


RACED = {
    "PUT /v1/schedules/s": 403,
    "DELETE /v1/schedules/s": 404,
    "POST /v1/schedules/s:pause": 404,
    "POST /v1/schedules/s:skip": 404,
    "POST /v1/schedules/s:trigger": 404,
    "PUT /v1/endpoints/e": 403,
    "DELETE /v1/endpoints/e?undone=drop": 404,
    "POST /v1/endpoints/e:pause": 404,
}
"""Calls of an admin key whose rules change before the writer's turn, and the answers."""


@pytest.mark.parametrize("call", RACED)
async def test_the_writer_looks_at_the_rules_and_at_what_is_stored(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    schedule, endpoint = {"every": "PT1H", "topic": "a/1", "payload": "x"}, {"url": "https://a.invalid/"}
    await keyed.call("ops", "PUT", "/v1/schedules/s", schedule, status=201)
    await keyed.call("ops", "PUT", "/v1/endpoints/e", endpoint, status=201)
    keyed.add("boss", "admin", publish=["a/#", "$deliver/e"], deliver=["a/#"])
    method, path = call.split()
    one = path.partition(":")[0].partition("?")[0]
    body = {**schedule, "payload": "y"} if "schedules" in path else {"url": "https://b.invalid/"}
    before, submit = await keyed.body("ops", "GET", one), keyed.server.app.core.writer.submit

    def narrowed(*args: Any, **options: Any) -> None:
        if '"a/#"' in keyed.file._blocks["boss"]:
            keyed.file.change("boss", '"a/#", "$deliver/e"', '"b/#"')
            keyed.file.change("boss", '"a/#"', '"b/#"')
            keyed.take()
        submit(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(keyed.server.app.core.writer, "submit", narrowed)
        await keyed.call("boss", method, path, body if method == "PUT" else None, status=RACED[call])
    assert await keyed.body("ops", "GET", one) == before


async def test_an_admin_with_rules_has_dead_letters_sent_to_no_endpoint_of_others(keyed: Keyed) -> None:
    await keyed.call("ops", "PUT", "/v1/endpoints/e", {"url": "https://a.invalid/"}, status=201)
    keyed.add("boss", "admin", publish=["a/#"])
    body = {"filter": {"topic": "a/#"}, "to": "e"}
    answer = await keyed.call("boss", "POST", "/v1/dead:requeue", body, status=422)
    assert answer.body["errors"][0]["field"] == "to"
    keyed.file.change("boss", '"a/#"', '"a/#", "$deliver/e"')
    keyed.take()
    await keyed.call("boss", "POST", "/v1/dead:requeue", body)


async def test_what_falls_due_while_a_key_is_away_is_withheld_and_a_new_hash_leaves_no_gap(
    keyed: Keyed,
) -> None:
    keyed.add("shop", "schedule")
    _, link = await keyed.server.connect("audit", "o/#")
    held = await keyed.schedule("shop", "o/1", deliver_in=5)
    keyed.file.revoke("shop")
    keyed.take()
    await keyed.server.pass_time(5_000)
    told = await keyed.body("ops", "GET", f"/v1/messages/{held}")
    assert (told["state"], told["withheld_by"], told["deliveries"]) == (
        "withheld",
        "key 'shop' is revoked",
        [],
    )
    keyed.add("shop", "schedule")
    keyed.server.app.core.review()
    await keyed.server.app.quiet()
    await keyed.schedule("shop", "o/2", deliver_in=5)
    keyed.add("shop", "schedule")  # its entry has another hash
    await keyed.server.pass_time(5_000)
    assert [message.record.topic for message in link.sent] == [b"o/1", b"o/2"]
    assert (await keyed.body("ops", "GET", f"/v1/messages/{held}"))["state"] == "dispatched"
