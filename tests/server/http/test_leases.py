"""Pull over HTTP: what the calls take and give, who may, what becomes of clients that go."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from server.http.leasing import Leasing
from server.http.values import shapes
from server.pull.call import Call, Leased
from server.pull.lease_id import lease_text, parse_leases
from tests.support.fresh import fresh
from tests.support.http import Http

from ..conftest import Running, until
from .conftest import Keyed

PATH = "/v1/groups/workers/messages"
WAITING = 'fasti_limit_used{name="limits.waiting_pulls"}'


async def _lease(server: Running, most: int = 100, **members: object) -> list[dict[str, Any]]:
    body = {"max": most, **members}
    messages: list[dict[str, Any]] = (await server.call("POST", f"{PATH}:lease", body)).body["messages"]
    return messages


async def _waiting(server: Running, count: int = 1) -> None:
    """Until so many calls wait."""
    await until(lambda: server.app.core.pull.waiting == count)


async def _figures(server: Running) -> dict[str, float]:
    return await Http(server.http).metrics()


async def test_the_bound_is_told_with_what_is_taken_of_it(server: Running) -> None:
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    for n in range(3):
        await server.schedule(f"jobs/{n}")
    await server.app.quiet()
    leased = await _lease(server, 2)
    assert (await _figures(server))['fasti_limit_used{name="limits.leases"}'] == 2
    await server.call("POST", f"{PATH}:ack", {"lease_ids": [leased[0]["lease_id"]]})
    assert (await _figures(server))['fasti_limit_used{name="limits.leases"}'] == 1


@pytest.mark.parametrize("most", [1, 101])
async def test_an_answer_that_cannot_be_made_gives_its_leases_back(
    server: Running, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """From the quick path (1) and from the routes (101)."""
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    await server.schedule("jobs/1")
    await server.app.quiet()
    views = Leasing.views

    def unencodable(self: Leasing, leased: Sequence[Leased]) -> Iterator[shapes.LeasedMessage]:
        return (msgspec.structs.replace(view, topic="\ud800") for view in views(self, leased))

    monkeypatch.setattr(Leasing, "views", unencodable)
    await server.call("POST", f"{PATH}:lease", {"max": most}, status=500)
    monkeypatch.undo()
    (again,) = await _lease(server, most)
    assert again["topic"] == "jobs/1"


def _ids(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"lease_ids": [message["lease_id"] for message in messages]}


async def test_many_are_leased_as_each_is_shown(server: Running) -> None:
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    payloads: tuple[object, ...] = ("text", {"n": 1}, "more text", [2])
    for n in range(40):
        options = {"encoding": "base64"} if n % 5 == 4 else {}
        payload = "AP8=" if options else payloads[n % 4]
        headers = {"Idempotency-Key": f"key {n}"} if n % 3 == 2 else {}
        body = {"topic": f"jobs/{n % 2}", "payload": payload, "deliver_in": 1 + n, "qos": 1 + n % 7 // 6}
        await server.call("POST", "/v1/messages", body | options, status=201, **headers)
    await server.pass_time(60_000)
    leased = await _lease(server)
    assert len(leased) == 40
    for message in leased:
        shown = (await server.call("GET", f"/v1/messages/{message['id']}")).body
        names = {"id", "topic", "deliver_at", "state", "qos", "payload", "encoding"}
        assert names <= message.keys() & shown.keys()
        assert {name: message[name] for name in names} == {name: shown[name] for name in names}
        assert ("content_type" in message) == ("content_type" in shown)
        await server.call("POST", f"{PATH}:ack", {"lease_ids": [message["lease_id"]]})
    assert not server.app.core.pull.out


async def test_a_message_is_leased_as_it_is_shown_and_acked(server: Running) -> None:
    assert await _lease(server, filter="jobs/#") == []
    id_ = await server.schedule("jobs/17", {"id": 17}, headers={"a": "b"}, deliver_in=1)
    await server.pass_time(2_000)
    (message,) = await _lease(server, lease="1m")
    assert msgspec.to_builtins(msgspec.convert(message, shapes.LeasedMessage)) == message
    shown = (await server.call("GET", f"/v1/messages/{id_}")).body
    names = ("filter", "attempt", "redelivered", "reason", "tries", "lease_id", "lease_until")
    own = {name: message.pop(name) for name in names}
    shown.pop("dispatched_at", None)
    assert {name: shown[name] for name in message} == message
    assert (message["headers"], message["payload"]) == ({"a": "b"}, {"id": 17})
    assert (own["filter"], own["attempt"], own["reason"], own["tries"]) == ("jobs/#", 1, None, [])
    assert own["redelivered"] is False
    assert own["lease_until"] == "2026-11-21T08:01:02.000Z"
    lease_id = own["lease_id"]
    extended = (await server.call("POST", f"{PATH}:extend", {"lease_ids": [lease_id], "lease": 120})).body
    assert extended == {"extended": 1, "lease_until": "2026-11-21T08:02:02.000Z", "gone": []}
    acked = await server.call("POST", f"{PATH}:ack", {"lease_ids": [lease_id, lease_id]})
    assert acked.body == {"acked": 1, "gone": []}
    again = {"lease_ids": [lease_id]}
    assert (await server.call("POST", f"{PATH}:ack", again)).body == {"acked": 0, "gone": [lease_id]}
    nacked = await server.call("POST", f"{PATH}:nack", again)
    assert nacked.body == {"nacked": 0, "dead": 0, "gone": [lease_id]}
    extended = (await server.call("POST", f"{PATH}:extend", again | {"lease": "1m"})).body
    assert (extended["extended"], extended["gone"]) == (0, [lease_id])


async def test_a_nack_comes_again_with_attempt_and_reason(server: Running) -> None:
    await _lease(server, filter="jobs")
    id_ = await server.schedule("jobs")
    first = await _lease(server, wait=20)
    body = _ids(first) | {"delay": "PT5S", "reason": "no paper"}
    assert (await server.call("POST", f"{PATH}:nack", body)).body == {"nacked": 1, "dead": 0, "gone": []}
    assert await _lease(server) == []
    await server.pass_time(5_000)
    (message,) = await _lease(server, wait=20)
    assert (message["id"], message["attempt"], message["reason"]) == (id_, 2, "no paper")
    assert message["deliver_at"] == "2026-11-21T08:00:05.000Z"


async def test_a_nack_for_good_is_a_dead_letter_at_once(server: Running) -> None:
    await _lease(server, filter="jobs")
    id_ = await server.schedule("jobs")
    first = await _lease(server, wait=20)
    body = _ids(first) | {"delay": "never", "reason": "no such order"}
    assert (await server.call("POST", f"{PATH}:nack", body)).body == {"nacked": 0, "dead": 1, "gone": []}
    (letter,) = (await server.call("GET", "/v1/dead")).body["messages"]
    assert (letter["id"], letter["attempts"], letter["reason"]) == (id_, 1, "no such order")


async def test_a_call_waits_for_the_first_message(server: Running) -> None:
    waiting = asyncio.create_task(_lease(server, filter="jobs", wait="60s"))
    await _waiting(server)
    assert (await _figures(server))[WAITING] == 1
    await server.schedule("jobs", "now")
    (message,) = await waiting
    assert message["payload"] == "now"
    figures = await _figures(server)
    assert (figures[WAITING], figures["fasti_messages_leased_total"]) == (0, 1)


async def test_of_a_group_that_is_not_there(server: Running) -> None:
    assert (await server.call("POST", f"{PATH}:lease", {"max": 1}, status=404)).slug == "not-found"
    await server.call("POST", "/v1/groups/a%2Fb/messages:lease", {"max": 1, "filter": "x"}, status=422)
    await _lease(server, filter="jobs")
    await server.schedule("jobs")
    leased = await _lease(server, wait=5)
    other = await server.call("POST", "/v1/groups/other/messages:ack", _ids(leased), status=422)
    assert other.body["errors"][0]["field"] == "lease_ids"


async def test_an_mqtt_member_and_two_pullers_share(server: Running) -> None:
    await _lease(server, filter="jobs")
    waiting = [asyncio.create_task(_lease(server, wait=60)) for _ in range(2)]
    await _waiting(server, 2)
    _, link = await server.connect("w", "$share/workers/jobs")
    for n in range(10):
        await server.schedule("jobs", str(n))
    await server.app.quiet()
    leased = [message for answer in await asyncio.gather(*waiting) for message in answer]
    leased += await _lease(server)
    theirs = [message.record.payload.decode() for message in link.sent]
    assert sorted([message["payload"] for message in leased] + theirs) == [str(n) for n in range(10)]
    assert leased
    assert theirs
    body = (await server.call("POST", f"{PATH}:ack", _ids(leased))).body
    assert body == {"acked": len(leased), "gone": []}


async def test_a_group_that_is_paused_gives_nothing_and_one_that_is_ended_answers(server: Running) -> None:
    await _lease(server, filter="jobs")
    await server.call("POST", "/v1/groups/workers:pause")
    await server.schedule("jobs")
    assert await _lease(server) == []
    waiting = asyncio.create_task(_lease(server, wait=60))
    await _waiting(server)
    await server.call("POST", "/v1/groups/workers:resume")
    assert len(await waiting) == 1
    waiting = asyncio.create_task(_lease(server, wait=60))
    await _waiting(server)
    await server.call("DELETE", "/v1/groups/workers?undone=drop", status=204)
    assert await waiting == []
    assert (await server.call("POST", f"{PATH}:lease", {"max": 1}, status=404)).slug == "not-found"
    assert await _lease(server, filter="jobs") == []


async def test_more_calls_than_may_wait(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.app.core.pull, "_waiting_max", 2)
    waiting = asyncio.create_task(_lease(server, filter="jobs", wait=60))
    await _waiting(server)
    answer = await server.call("POST", f"{PATH}:lease", {"max": 1}, status=429)
    assert (answer.slug, answer.headers["Retry-After"]) == ("over-quota", "1")
    await server.schedule("jobs")
    assert len(await waiting) == 1


class Wire:
    """A connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def lease(self, **members: object) -> None:
        body = json.dumps({"max": 10, **members}).encode()
        head = f"POST {PATH}:lease HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


@asynccontextmanager
async def _wired(server: Running) -> AsyncIterator[Wire]:
    front = server.front
    reader, writer = await asyncio.open_connection("127.0.0.1", front.front_port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_client_that_goes_while_it_waits_is_given_nothing(server: Running, is_reset: bool) -> None:
    """Killed: its side is closed, and only a write would find that nobody reads."""
    await _lease(server, filter="jobs")
    async with _wired(server) as wire:
        wire.lease(wait=60)
        await _waiting(server)
        if is_reset:
            wire.writer.transport.abort()
        else:
            wire.writer.write_eof()
        await _waiting(server, 0)
        await server.schedule("jobs")
        (message,) = await _lease(server, wait=5)
        assert message["attempt"] == 1


async def test_what_was_given_to_a_client_that_has_gone_goes_to_others_at_once(server: Running) -> None:
    await _lease(server, filter="jobs")
    async with _wired(server) as wire:
        wire.lease(wait=60)
        await _waiting(server)
        wire.writer.transport.abort()
        await server.schedule("jobs")  # before it is looked whether anybody waits
        (message,) = await _lease(server, wait=20)
        assert message["attempt"] == 1


async def test_an_answered_call_leaves_nothing_for_the_collector(server: Running) -> None:
    """A worker makes hundreds of calls a second: what they leave would hold the loop when it is collected."""
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    for n in range(3):
        await server.schedule(f"jobs/{n}")
    with fresh(Call) as left:
        async with _wired(server) as wire:
            for _ in range(3):
                wire.lease(max=1, wait=20)
                assert (await wire.reader.readuntil(b"}]}")).startswith(b"HTTP/1.1 200")
            wire.lease(max=1)
            assert (await wire.reader.readuntil(b"[]}")).startswith(b"HTTP/1.1 200")
        assert not await _lease(server, 1)
        assert not left()


async def test_at_the_stop_a_call_that_waits_is_answered(server: Running) -> None:
    waiting = asyncio.create_task(_lease(server, filter="jobs", wait=60))
    await _waiting(server)
    server.app.core.pull.stop()
    assert await waiting == []


# -- keys


async def _as(keyed: Keyed, name: str, call: str, body: object, status: int = 200) -> Any:
    return await keyed.body(name, "POST", f"{PATH}:{call}", body, status=status)


async def test_a_key_leases_what_it_may_subscribe_to(keyed: Keyed) -> None:
    keyed.add("one", subscribe=["jobs/#"])
    keyed.add("two", subscribe=["jobs/#", "other/#"], deliver=["other/#"])
    keyed.add("sender", "schedule")
    wish = {"max": 10, "filter": "jobs/#"}
    await _as(keyed, "sender", "lease", wish, 403)
    await _as(keyed, "one", "lease", {"max": 1, "filter": "#"}, 403)
    await _as(keyed, "one", "lease", {"max": 1, "filter": "other/x"}, 403)
    await _as(keyed, "one", "lease", wish)
    await keyed.schedule("sender", "jobs/1", deliver_in=0)
    await keyed.server.app.quiet()
    assert (await _as(keyed, "two", "lease", wish))["messages"] == []  # it may not have this topic
    await _as(keyed, "two", "lease", {"max": 1}, 404)  # the group is not its own alone
    leased = (await _as(keyed, "one", "lease", wish))["messages"]
    assert len(leased) == 1
    keyed.add("three", subscribe=["else/#"])
    ids = _ids(leased)
    gone = ids["lease_ids"]
    assert await _as(keyed, "three", "ack", ids) == {"acked": 0, "gone": gone}
    assert (await _as(keyed, "three", "nack", ids))["gone"] == gone
    assert (await _as(keyed, "three", "extend", ids | {"lease": 60}))["gone"] == gone
    assert await _as(keyed, "one", "ack", ids) == {"acked": 1, "gone": []}


async def test_without_a_filter_a_key_sees_groups_of_its_own(keyed: Keyed) -> None:
    keyed.add("one")
    keyed.add("two")
    await _as(keyed, "one", "lease", {"max": 1, "filter": "a"})
    await _as(keyed, "one", "lease", {"max": 1})
    await _as(keyed, "two", "lease", {"max": 1}, 404)


async def test_who_waits_with_a_key_that_is_revoked_is_answered(keyed: Keyed) -> None:
    keyed.add("one")
    waiting = asyncio.create_task(_as(keyed, "one", "lease", {"max": 1, "filter": "a", "wait": 60}))
    await _waiting(keyed.server)
    keyed.file.revoke("one")
    keyed.take()
    assert await waiting == {"messages": []}
    await _as(keyed, "one", "lease", {"max": 1, "filter": "a"}, 401)


@pytest.mark.parametrize("when", ["overlap", "ended"])
async def test_leases_of_a_former_key_are_the_new_one_s_too(keyed: Keyed, when: str) -> None:
    """Also those of topics that the name has lost meanwhile, as without a rotation."""
    keyed.add("one", "admin", subscribe=["jobs/#"], deliver=["#"])
    await _as(keyed, "one", "lease", {"max": 1, "filter": "jobs/#"})
    for n in range(2):
        await keyed.schedule("ops", f"jobs/{n}", deliver_in=0)
    await keyed.server.app.quiet()
    ids = _ids((await _as(keyed, "one", "lease", {"max": 2, "filter": "jobs/#", "lease": "10m"}))["messages"])
    app, clock, former = keyed.server.app, keyed.server.clock, keyed.keys["one"]
    keyed.keys["one"] = keyed.file.rotate("one", clock.now_ms + 1_000)
    keyed.file.change("one", '["#"]', '["else/#"]')
    keyed.take()
    shown = {"Authorization": f"Bearer {former}"}
    wish = {"max": 1, "filter": "jobs/#", "wait": 60}
    waits = asyncio.create_task(keyed.server.call("POST", f"{PATH}:lease", wish, **shown))
    await _waiting(keyed.server)
    if when == "ended":
        clock.now_ms += 1_000
        await app.keyring.end_former(app.core.review)
        assert (await waits).body == {"messages": []}
        await keyed.server.call("GET", "/v1/info", status=401, **shown)
    waits.cancel()
    assert await _as(keyed, "one", "ack", ids) == {"acked": 2, "gone": []}


async def test_acks_that_come_late_are_refused_when_too_many_wait(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _lease(server, filter="jobs/#")
    await server.schedule("jobs/1", 1, deliver_in=1)
    await server.pass_time(2_000)
    leased = await _lease(server, wait=1)
    await server.call("POST", f"{PATH}:nack", {**_ids(leased), "delay": "1h"}, status=200)
    monkeypatch.setattr("server.delivery.settling.events.LATE_MAX", 0)
    answer = await server.call("POST", f"{PATH}:ack", _ids(leased), status=429)
    assert answer.slug == "over-quota"
    monkeypatch.undo()
    assert (await server.call("POST", f"{PATH}:ack", _ids(leased), status=200)).body["acked"] == 1


async def test_what_is_acked_after_its_place_was_set_back_is_undone_no_more(server: Running) -> None:
    """The group reads past it when it goes on, and gives it to nobody."""
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    id_ = await server.schedule("jobs/1")
    await server.pass_time(1_000)
    leased = await _lease(server)
    await server.call("POST", "/v1/groups/workers:pause")
    await server.call("POST", "/v1/groups/workers:replay", {"from": "PT1H"})
    await server.call("POST", f"{PATH}:ack", _ids(leased))
    (told,) = (await server.call("GET", f"/v1/messages/{id_}")).body["deliveries"]
    (group,) = (await server.call("GET", "/v1/groups/workers")).body["groups"]
    assert (told["state"], group["lag_messages"]) == ("done", 0)
    await server.call("DELETE", "/v1/groups/workers", status=204)


async def test_an_ack_after_a_nack_and_a_replay_ends_the_retry_and_the_unread_message(
    server: Running,
) -> None:
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    ids = [await server.schedule(f"jobs/{n}") for n in range(8)]
    await server.pass_time(1_000)
    leased = await _lease(server)
    await server.call("POST", f"{PATH}:nack", _ids(leased) | {"delay": "1h"})
    for what, body in (("pause", None), ("replay", {"from": "PT1H"})):
        await server.call("POST", f"/v1/groups/workers:{what}", body)
    assert (await server.call("POST", f"{PATH}:ack", _ids(leased))).body["acked"] == 8
    told = [(await server.call("GET", f"/v1/messages/{id_}")).body["deliveries"] for id_ in ids]
    assert [one["state"] for (one,) in told] == ["done"] * 8
    await server.call("DELETE", "/v1/groups/workers", status=204)


async def test_the_retry_of_a_moved_message_that_is_set_back_comes_once(server: Running) -> None:
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    first = await server.schedule("jobs/0")
    id_ = await server.schedule("jobs/1", deliver_in=60)
    await server.call("PATCH", f"/v1/messages/{id_}", {"deliver_in": 1})
    await server.pass_time(2_000)
    leased = await _lease(server)
    await server.call("POST", f"{PATH}:ack", _ids(leased[:1]))
    await server.call("POST", f"{PATH}:nack", _ids(leased[1:]) | {"delay": "10m"})
    await server.call("POST", "/v1/groups/workers:pause")
    await server.call("POST", "/v1/groups/workers:replay", {"from": "PT1H"})
    await server.call("POST", "/v1/retries:try", {"ids": [id_]})
    await server.call("POST", "/v1/groups/workers:resume")
    again = await _lease(server, 1)
    assert [(one["id"], one["attempt"]) for one in again] == [(id_, 2)]
    await server.call("POST", f"{PATH}:ack", _ids(again))
    assert [one["id"] for one in await _lease(server)] == [first]


async def test_a_late_ack_of_the_retry_of_a_moved_message_that_is_set_back_ends_it(server: Running) -> None:
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    id_ = await server.schedule("jobs/1", deliver_in=60)
    await server.call("PATCH", f"/v1/messages/{id_}", {"deliver_in": 1})
    await server.pass_time(2_000)
    for delay in ("0s", "1h"):
        leased = await _lease(server)
        await server.call("POST", f"{PATH}:nack", _ids(leased) | {"delay": delay})
        await server.pass_time(1_000)
    await server.call("POST", "/v1/groups/workers:pause")
    await server.call("POST", "/v1/groups/workers:replay", {"from": "PT1H"})
    assert (await server.call("POST", f"{PATH}:ack", _ids(leased))).body["acked"] == 1
    await server.call("POST", "/v1/groups/workers:resume")
    assert await _lease(server) == []


def _forged(lease_id: str, version: int) -> str:
    """The id that somebody makes of what anybody may know: the group, and where the message stands.
    `version` 0: that of a message that was done when it was given."""
    (lease,) = parse_leases([lease_id])
    return lease_text(lease._replace(number=version if version < 2 else lease.number ^ 1))


@pytest.mark.parametrize("when", ["running", "lapsed", "restored"])
async def test_leases_of_what_a_key_may_not_receive_are_gone_for_it(keyed: Keyed, when: str) -> None:
    """It may subscribe to the filter, and knows the ids."""
    keyed.add("own")
    keyed.add("other", deliver=["else/#"])
    keyed.add("some", deliver=["jobs/#"])
    await _as(keyed, "own", "lease", {"max": 1, "filter": "jobs/#"})
    for n in range(5):
        await keyed.schedule("own", f"jobs/{n}", deliver_in=0)
    await keyed.server.app.quiet()
    wish = {"max": 5, "filter": "jobs/#", "lease": "10m"}
    ids = _ids((await _as(keyed, "own", "lease", wish))["messages"])["lease_ids"]
    assert len(ids) == 5
    if when == "lapsed":
        await keyed.server.pass_time(700_000)
    elif when == "restored":
        for consumer in keyed.server.app.core.pull._consumers.values():
            consumer.member.rights = None  # as a former lease's holder has none
    calls: tuple[tuple[str, dict[str, object]], ...] = (
        ("ack", {}),
        ("nack", {"delay": "never"}),
        ("extend", {"lease": "1h"}),
        ("release", {}),
        ("ack", {"then": [{"topic": "else/1", "payload": "x"}]}),
    )
    for verb, more in calls:
        for lease_id in (ids[0], *(_forged(ids[0], version) for version in (0, 1, 3))):
            told = await _as(keyed, "other", verb, {"lease_ids": [lease_id], **more})
            assert told["gone"] == [lease_id]
            assert told.get("acked", 0) == told.get("nacked", 0) == told.get("dead", 0) == 0
    assert await _as(keyed, "some", "ack", {"lease_ids": ids[1:2]}) == {"acked": 1, "gone": []}
    assert await _as(keyed, "own", "ack", {"lease_ids": ids}) == {"acked": 4, "gone": ids[1:2]}


async def test_no_lease_id_can_be_made_of_others(server: Running) -> None:
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    for n in range(3):
        await server.schedule(f"jobs/{n}")
    await server.app.quiet()
    numbers = [lease.number for lease in parse_leases(_ids(await _lease(server))["lease_ids"])]
    assert len(set(numbers)) == 3
    steps = {abs(after - before) for before, after in pairwise(numbers)}
    assert min(steps) > 1 << 32
