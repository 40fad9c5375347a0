"""`PUT /v1/messages/by-key/{key}`: made, changed, cancelled; versions; who may; what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.settings.config import Config
from tests.support.http import Http
from tests.support.stores import FailingMemory

from ..conftest import DAY_MS, HOUR_MS, Running, running, with_settings
from .conftest import Keyed
from .test_by_key import BODY, BY_KEY, keyed_one

JOBS = "/v1/groups/workers/messages"


async def put(server: Running, *, key: str = "k", status: int = 200, **members: object) -> Any:
    """The answer to a wish, a message unless it is cancelled."""
    body = dict(members) if "cancel" in members else {**BODY, **members}
    if "deliver_at" in members:
        del body["deliver_in"]
    return await server.call("PUT", BY_KEY + key, body, status=status)


async def test_made_changed_and_cancelled(server: Running) -> None:
    made = await put(server, status=201)
    assert made.body == {
        "id": made.body["id"],
        "state": "pending",
        "deliver_at": "2026-11-21T09:00:00.000Z",
        "changed": True,
    }
    assert made.headers["Location"] == f"/v1/messages/{made.body['id']}"
    changed = await put(server, topic="c", payload={"x": 1}, deliver_in="2h", qos=2, headers={"a": "b"})
    assert changed.body == {**made.body, "deliver_at": "2026-11-21T10:00:00.000Z"}
    shown = (await server.call("GET", made.headers["Location"])).body
    assert (shown["topic"], shown["payload"], shown["qos"], shown["headers"]) == (
        "c",
        {"x": 1},
        2,
        {"a": "b"},
    )
    assert (await server.call("GET", BY_KEY + "k")).body == shown
    assert server.app.core.opened.waiting.pending == 1
    for is_changed in (True, False):
        cancelled = (await put(server, cancel=True)).body
        assert (cancelled["state"], cancelled["changed"]) == ("cancelled", is_changed)
    anew = await put(server, status=201)
    assert anew.body["id"] != made.body["id"]
    assert server.app.metrics.moved == server.app.metrics.cancelled == 1


async def test_it_is_delivered_as_it_was_last(server: Running) -> None:
    _, link = await server.connect("s", "#")
    await put(server, status=201)
    await put(server, topic="c", payload="last", deliver_in="30m")
    await server.pass_time(2 * HOUR_MS)
    assert [(m.record.topic, m.record.payload) for m in link.sent] == [(b"c", b"last")]


async def test_a_lower_or_equal_version_changes_nothing_and_says_so(server: Running) -> None:
    made = (await put(server, status=201, version=[3, 7])).body
    for version in ([3, 7], [3, 6], [2, 9]):
        for members in ({"payload": "other"}, {"cancel": True}):
            told = (await put(server, version=version, **members)).body
            assert told == {**made, "changed": False}
    assert (await put(server, version=[3, 8], cancel=True)).body["changed"]
    told = (await put(server, version=[3, 8], payload="other")).body
    assert (told["id"], told["state"], told["changed"]) == (made["id"], "cancelled", False)
    assert server.app.core.opened.waiting.pending == 0
    assert (await put(server, status=201, version=[4, -1])).body["id"] != made["id"]


async def test_a_cancel_that_overtakes_its_message(server: Running) -> None:
    assert (await put(server, cancel=True, status=404)).slug == "not-found"
    noted = (await put(server, cancel=True, version=[2, 0])).body
    assert noted == {"id": None, "state": "cancelled", "deliver_at": None, "changed": False}
    assert (await put(server, version=[1, 0])).body == noted
    for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"deliver_in": 1})):
        assert (await server.call(method, BY_KEY + "k", body, status=404)).slug == "not-found"
    assert (await server.call("GET", "/v1/messages?key=k")).body["messages"] == []
    posted = await keyed_one(server, payload="posted")
    assert (await put(server, version=[2, 0])).body["id"] == posted.body["id"], "its version is still known"
    assert (await put(server, version=[3, 0])).body["changed"]


async def test_dispatched_it_is_too_late_or_another_wish(server: Running) -> None:
    await server.call("PUT", "/v1/groups/workers", {"filter": "#"}, status=201)
    made = (await put(server, status=201, version=[1, 0])).body
    await server.pass_time(HOUR_MS)
    late = await put(server, status=409)
    assert (late.slug, late.body["dispatched_at"]) == ("already-dispatched", "2026-11-21T09:00:00.000Z")
    assert [one["group"] for one in late.body["deliveries"]] == ["workers"]
    assert (await put(server, cancel=True, version=[3, 0], status=409)).slug == "already-dispatched"
    told = (await put(server, version=[2, 0])).body
    assert told == {**made, "state": "dispatched", "changed": False}
    undone = await put(server, version=[4, 0], key_scope="pending", status=409)
    assert undone.slug == "already-dispatched"
    (leased,) = (await server.call("POST", f"{JOBS}:lease", {"max": 1})).body["messages"]
    await server.call("POST", f"{JOBS}:ack", {"lease_ids": [leased["lease_id"]]})
    again = await put(server, key_scope="pending", status=201)
    await server.pass_time(HOUR_MS)
    assert (await put(server, version=[4, 0], status=201)).body["id"] not in (made["id"], again.body["id"])


async def test_what_a_post_has_made_is_changed_too(server: Running) -> None:
    """A repetition of the POST still gets its first answer."""
    made = await keyed_one(server)
    assert (await put(server, payload="other")).body["id"] == made.body["id"]
    again = await keyed_one(server, status=200)
    assert (again.body["id"], again.headers["Idempotent-Replayed"]) == (made.body["id"], "true")
    assert (await server.call("GET", BY_KEY + "k")).body["payload"] == "other"
    await put(server, key="own", status=201)
    assert (await keyed_one(server, "own", status=422, payload="x")).slug == "idempotency-mismatch"


async def test_all_at_once_the_highest_version_counts(server: Running) -> None:
    http = Http(server.http)
    versions = [5, 3, 9, 1, 9, 7]
    answers = await asyncio.gather(
        *(http.call("PUT", BY_KEY + "k", {**BODY, "payload": n, "version": [n, 0]}) for n in versions)
    )
    assert [answer.status for answer in answers] == [201] + [200] * 5
    assert [answer.body["changed"] for answer in answers] == [True, False, True, False, False, False]
    assert (await server.call("GET", BY_KEY + "k")).body["payload"] == 9


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**BODY, "key": "other"}, "key"),
        ({**BODY, "id": "0" * 32}, "id"),
        ({"topic": "a", "cancel": True}, "topic"),
        ({}, "payload"),
    ],
)
async def test_refused(server: Running, body: dict[str, object], field: str) -> None:
    for is_there in (False, True):
        refused = await server.call("PUT", BY_KEY + "k", body, status=422)
        assert refused.body["errors"][0]["field"] == field
        if not is_there:
            await put(server, status=201)
    assert (await put(server)).body["changed"]


LATE = {"late": "drop", "deliver_at": "2026-11-21T07:59:59Z"}
NOTHING = {"id": None, "state": "cancelled", "deliver_at": None, "changed": False}


@pytest.mark.parametrize("version", [{}, {"version": [2, 0]}])
class TestAPastTimeThatIsNotWantedLate:
    """Nobody gets the new message, and nobody the one whose place it takes."""

    async def test_the_pending_one_is_cancelled(self, server: Running, version: dict[str, object]) -> None:
        _, link = await server.connect("s", "#")
        made = (await put(server, status=201, version=[1, 0])).body
        told = (await put(server, payload="new", **LATE, **version)).body
        assert told == {**made, "state": "cancelled", "changed": True}
        assert (await server.call("GET", f"/v1/messages/{made['id']}")).body["state"] == "cancelled"
        assert (server.app.core.opened.waiting.pending, server.app.metrics.cancelled) == (0, 1)
        again = (await put(server, payload="new", **LATE, **version)).body
        assert again == {**told, "changed": False}
        lower = (await put(server, version=[1, 1], status=200 if version else 201)).body
        assert lower["state"] == ("cancelled" if version else "pending"), "its version counts"
        await server.pass_time(2 * HOUR_MS)
        assert len(link.sent) == (0 if version else 1)

    async def test_none_is_made(self, server: Running, version: dict[str, object]) -> None:
        assert (await put(server, **LATE, **version)).body == NOTHING
        await server.call("GET", BY_KEY + "k", status=404)
        lower = (await put(server, version=[1, 0], status=200 if version else 201)).body
        assert (lower == NOTHING) is bool(version)

    async def test_a_dispatched_one_stays_so(self, server: Running, version: dict[str, object]) -> None:
        made = (await put(server, status=201, version=[1, 0])).body
        await server.pass_time(HOUR_MS)
        told = await put(server, **LATE, **version, status=200 if version else 409)
        assert told.body == NOTHING if version else told.slug == "already-dispatched"
        assert (await server.call("GET", BY_KEY + "k")).body["state"] == "dispatched"
        if version:
            lower = (await put(server, version=[1, 1])).body
            assert lower == {**made, "state": "dispatched", "changed": False}
        assert (await put(server, **LATE, key_scope="pending")).body == NOTHING, "nothing of it is undone"

    async def test_one_that_is_kept_or_refused(self, server: Running, version: dict[str, object]) -> None:
        """A version that is known changes nothing; who may not change it cancels nothing."""
        made = (await put(server, status=201, version=[3, 0])).body
        if version:
            assert (await put(server, **LATE, **version)).body == {**made, "changed": False}
        await put(server, **LATE, deliver_to="nobody", status=422)
        assert (await server.call("GET", BY_KEY + "k")).body["state"] == "pending"


async def test_a_move_of_one_that_is_not_wanted_late(server: Running) -> None:
    """To a time that has passed: cancelled, by id, by key and in bulk; by a second, as a POST is refused."""
    ids = [await server.schedule(deliver_in="1h", late="drop", key=key) for key in "abc"]
    other = await server.schedule(deliver_in="2h")
    past = {"deliver_at": LATE["deliver_at"]}
    told = (await server.call("PATCH", f"/v1/messages/{ids[0]}", past)).body
    assert (told["id"], told["state"]) == (ids[0], "cancelled")
    assert told["deliver_at"] == "2026-11-21T07:59:59.000Z"
    told = (await server.call("PATCH", BY_KEY + "b", past)).body
    assert (told["id"], told["state"]) == (ids[1], "cancelled")
    body = {"filter": {"topic": "#"}, "shift": "-1h1s"}
    said = (await server.call("POST", "/v1/messages:reschedule", body)).body
    assert (said["matched"], said["changed"]) == (2, 2)
    states = [(await server.call("GET", f"/v1/messages/{one}")).body["state"] for one in (*ids, other)]
    assert states == ["cancelled", "cancelled", "cancelled", "pending"]
    late = await server.call("PATCH", f"/v1/messages/{ids[0]}", {"deliver_in": "1h"}, status=409)
    assert late.slug == "cancelled"


async def test_readable_and_not_too_long(server: Running) -> None:
    for body in (b"{", b'{"topic":"a","payload":"\xff"}', b"[]"):
        answer = await server.call("PUT", BY_KEY + "k", body, status=None)
        assert answer.status in (400, 422)
    await put(server, key="x" * 257, status=422)
    await put(server, key="x" * 257, cancel=True, version=[1, 0], status=422)
    await server.call("PUT", f"{BY_KEY}k?door=mqtt", BODY, status=422)


async def test_a_held_message_is_changed(server: Running) -> None:
    await server.pass_time(HOUR_MS)
    server.clock.now_ms -= HOUR_MS
    made = await put(server, status=201, deliver_in="1m")
    assert made.body["id"][12:16] == "ffff"
    assert (await put(server, payload="other", deliver_in="2m")).body["id"] == made.body["id"]
    assert (await put(server, cancel=True)).body["changed"]
    await server.pass_time(2 * HOUR_MS)
    assert server.app.core.opened.waiting.pending == 0


@with_settings(slices={"retention_ms": DAY_MS})
async def test_a_version_is_known_as_long_as_its_key(server: Running) -> None:
    await put(server, status=201, version=[5, 0])
    await put(server, key="noted", cancel=True, version=[5, 0])
    await server.pass_time(HOUR_MS)
    for key in ("k", "noted"):
        assert not (await put(server, key=key, version=[4, 0])).body["changed"]
    await server.call("POST", "/v1/clock:advance", {"by": "P3D"})
    await server.app.garbage.sweep()
    for key in ("k", "noted"):
        await put(server, key=key, status=201, version=[4, 0])


async def test_over_a_start_versions_are_known(
    tmp_path: Path, config: Config, clock: SimulatedClock, ram: FailingMemory | None
) -> None:
    async with running(tmp_path, config, clock, store=ram) as server:
        made = (await put(server, status=201, version=[2, 0])).body
        await put(server, version=[2, 1], payload="second")
        await put(server, key="noted", cancel=True, version=[2, 0])
    async with running(tmp_path, config, clock, store=ram) as server:
        assert (await put(server, version=[2, 1])).body == {**made, "changed": False}
        assert (await server.call("GET", BY_KEY + "k")).body["payload"] == "second"
        assert (await put(server, key="noted", version=[2, 0])).body["id"] is None


async def test_a_key_changes_what_it_may_change_alone(keyed: Keyed) -> None:
    """By the topic that it has, and by the one that it gets; and the key's name is the API key's own."""
    keyed.add("a", publish=["a/#"], deliver=["#"])
    path, other = BY_KEY + "k", {**BODY, "topic": "x"}
    made = await keyed.body("a", "PUT", path, BODY, status=201)
    assert (await keyed.call("a", "PUT", path, other, status=403)).slug == "forbidden"
    keyed.add("b")
    assert (await keyed.body("b", "PUT", path, BODY, status=201))["id"] != made["id"]
    keyed.file.revoke("a")
    keyed.add("a", publish=["x"], deliver=["#"])
    late = {"topic": "x", "payload": "hi", **LATE}
    for body in (other, late, {"cancel": True}, {"cancel": True, "version": [1, 0]}):
        assert (await keyed.call("a", "PUT", path, body, status=403)).slug == "forbidden"
    keyed.add("reader", "read")
    await keyed.call("reader", "PUT", path, BODY, status=403)
    assert keyed.server.app.core.opened.waiting.pending == 2


@pytest.mark.parametrize("body", [None, {"deliver_in": "2h"}])
async def test_a_message_with_another_topic_meanwhile_is_judged_by_that(
    keyed: Keyed, body: dict[str, object] | None
) -> None:
    """Its id stays. Others cancel or move it by id while the upsert is under way."""
    keyed.add("boss", "admin")
    keyed.add("a", publish=["a/#"], deliver=["seen/#"])
    server, path = keyed.server, BY_KEY + "k"
    made = await keyed.body("boss", "PUT", path, BODY, status=201)
    store, writer = server.store, server.app.core.writer
    for topic, status in (("seen/1", 403), ("b/1", 404)):
        await keyed.call("boss", "PUT", path, BODY)
        await server.app.quiet()
        store.gate.clear()
        waiting = [asyncio.create_task(keyed.schedule("boss", "x"))]
        while writer.is_idle:
            await asyncio.sleep(0.001)
        calls = (
            keyed.call("boss", "PUT", path, {**BODY, "topic": topic}),
            keyed.call("a", "PATCH" if body else "DELETE", f"/v1/messages/{made['id']}", body, status=status),
        )
        for count, call in enumerate(calls, 1):
            waiting.append(asyncio.create_task(call))
            while writer.queued < count and not waiting[-1].done():
                await asyncio.sleep(0.001)
        store.gate.set()
        await asyncio.gather(*waiting)
        shown = await keyed.body("boss", "GET", path)
        assert (shown["topic"], shown["state"]) == (topic, "pending")
    await keyed.call("a", "DELETE", f"/v1/messages/{made['id']}", status=404)


async def test_quotas_hold_for_what_grows(keyed: Keyed) -> None:
    keyed.add("a", pending=1, pending_bytes=2_000)
    path = BY_KEY + "k"
    owned = keyed.server.app.core.opened.owned
    await keyed.call("a", "PUT", path, BODY, status=201)
    small = owned.pending_bytes(b"a")
    for _ in range(3):
        await keyed.call("a", "PUT", path, {**BODY, "payload": "x" * 1_000})
    assert (await keyed.call("a", "PUT", path, {**BODY, "payload": "x" * 2_000}, status=429)).slug
    assert (await keyed.call("a", "PUT", BY_KEY + "l", BODY, status=429)).slug == "over-quota"
    await keyed.call("a", "PUT", path, BODY)
    assert (owned.pending(b"a"), owned.pending_bytes(b"a")) == (1, small + 16), (
        "a moved message carries its id"
    )
    await keyed.call("a", "PUT", path, {"cancel": True})
    assert (owned.pending(b"a"), owned.pending_bytes(b"a")) == (0, 0)


async def test_a_version_alone_counts_toward_the_rate(keyed: Keyed) -> None:
    """It is kept as a message is."""
    keyed.add("a", rate=1)
    answers = [
        await keyed.call("a", "PUT", f"{BY_KEY}k{n}", {"cancel": True, "version": [1, 0]}, status=None)
        for n in range(5)
    ]
    assert {answer.status for answer in answers} == {200, 429}
