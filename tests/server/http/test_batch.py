"""Many messages in one request: all or nothing, or each on its own; ids in order, errors by line."""

import asyncio
import json
from itertools import count
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.http.routes import batch
from shards.errors import Corrupt
from tests.support.build import OPENED
from timeline.position import MessageId

from ..conftest import MINUTE_MS, NDJSON, Running, with_settings

BATCH = "/v1/messages:batch"


def lines(*items: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(item).encode() for item in items)


def item(topic: str = "a", **members: Any) -> dict[str, Any]:
    return {"topic": topic, "payload": topic, "deliver_in": 60, **members}


async def post(server: Running, *items: dict[str, Any], status: int = 201, query: str = "") -> Any:
    answer = await server.call("POST", BATCH + query, lines(*items), status=status, Content_Type=NDJSON)
    return answer.body


def pending(server: Running) -> int:
    return server.app.core.opened.waiting.pending


async def test_ids_come_in_the_order_of_the_lines(server: Running) -> None:
    topics = [f"t/{n}" for n in range(2_500)]
    body = await post(server, *(item(topic, deliver_in=60 + n % 7) for n, topic in enumerate(topics)))
    assert body["accepted"] == len(set(body["ids"])) == 2_500
    for index in (0, 1_234, 2_499):
        got = (await server.call("GET", f"/v1/messages/{body['ids'][index]}")).body
        assert got["topic"] == topics[index]
    _, link = await server.connect("c", "#", window=3_000)
    await server.pass_time(2 * MINUTE_MS)
    assert sorted(link.topics) == sorted(topics)


@pytest.mark.parametrize("query", ["", "?each=true"])
async def test_a_large_one_is_decided_while_the_loop_turns(
    server: Running, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Each look at the clock takes 2 ms. Whoever comes meanwhile is answered behind it."""
    passing = count(server.app.core.clock.mono(), 2e-3)
    monkeypatch.setattr(SimulatedClock, "mono", lambda self: next(passing))
    writer, turns = server.app.core.writer, 0
    many = [item(f"t/{n}", key=f"k-{n}") for n in range(1_000)]
    status = 200 if query else 201
    large = asyncio.ensure_future(post(server, *many, query=query, status=status))
    while not writer.is_deciding:
        await asyncio.sleep(0)
    assert not pending(server)
    small = asyncio.ensure_future(server.call("POST", "/v1/messages", item("b"), status=201))
    while not small.done():
        turns += writer.is_deciding
        await asyncio.sleep(0)
    assert turns > 8
    body = await large
    ids = [one["id"] for one in body["results"]] if query else body["ids"]
    assert len(set(ids)) == 1_000
    assert pending(server) == 1_001
    again = await post(server, *many, query=query, status=status)
    assert ([one["id"] for one in again["results"]] if query else again["ids"]) == ids
    assert pending(server) == 1_001


async def test_an_array_is_a_batch_too(server: Running) -> None:
    body = (await server.call("POST", BATCH, [item("a"), item("b")], status=201)).body
    assert body["accepted"] == 2


async def test_an_empty_batch_is_accepted(server: Running) -> None:
    assert await post(server) == {"accepted": 0, "ids": []}
    assert (await server.call("POST", BATCH, [], status=201)).body == {"accepted": 0, "ids": []}
    assert await post(server, status=200, query="?each=true") == {"results": []}


async def test_a_bad_line_leaves_nothing_behind(server: Running) -> None:
    body = lines(item(), item("x/#")) + b"\n\n{\n" + lines(item(qos=3), item())
    answer = await server.call("POST", BATCH, body, status=422, Content_Type=NDJSON)
    assert [(e["line"], e["field"]) for e in answer.body["errors"]] == [(2, "topic"), (4, ""), (5, "qos")]
    assert pending(server) == 0
    assert not len(server.app.core.directory)


async def test_each_line_on_its_own(server: Running) -> None:
    body = lines(item("a"), item("x/#"), item("b")) + b"\n{"
    answer = await server.call("POST", BATCH + "?each=true", body, Content_Type=NDJSON)
    results = answer.body["results"]
    assert [sorted(result) for result in results] == [["id"], ["problem"], ["id"], ["problem"]]
    assert results[1]["problem"]["type"] == "/problems/refused"
    assert results[1]["problem"]["errors"][0]["field"] == "topic"
    assert pending(server) == 2


async def test_keys_make_lines_count_once(server: Running) -> None:
    first = await post(server, item("a", key="1"), item("b"), item("a", key="1"))
    assert first["accepted"] == 3
    assert first["ids"][0] == first["ids"][2] != first["ids"][1]
    again = await post(server, item("c"), item("a", key="1"))
    assert again["ids"][1] == first["ids"][0]
    assert pending(server) == 3


async def test_a_key_for_another_message_names_its_line(server: Running) -> None:
    await post(server, item("a", key="1"))
    body = lines(item("b")) + b"\n\n" + lines(item("other", key="1"))
    answer = await server.call("POST", BATCH, body, status=422, Content_Type=NDJSON)
    assert answer.slug == "idempotency-mismatch"
    assert [(e["line"], e["field"]) for e in answer.body["errors"]] == [(3, "key")]
    assert pending(server) == 1
    results = (await post(server, item("b"), item("o", key="1"), status=200, query="?each=true"))["results"]
    assert [result.get("problem", {}).get("type") for result in results] == [
        None,
        "/problems/idempotency-mismatch",
    ]
    items = [item("b"), item("other", key="1")]
    answer = await server.call("POST", BATCH, items, status=422)
    assert [e["line"] for e in answer.body["errors"]] == [2]


async def test_late_lines_are_named(server: Running) -> None:
    past = {"topic": "a", "payload": 1, "deliver_at": "2026-11-21T07:00:00Z", "late": "drop"}
    body = await post(server, item("a"), past, status=422)
    assert [(e["line"], e["field"]) for e in body["errors"]] == [(2, "deliver_at")]
    results = (await post(server, past, item("a"), status=200, query="?each=true"))["results"]
    assert [sorted(result) for result in results] == [["problem"], ["id"]]
    assert pending(server) == 1


async def test_keyed_and_plain_in_each_mode_come_back_by_key(server: Running) -> None:
    items = [item("a", key="1"), item("b"), item("a", key="1")]
    first = (await post(server, *items, status=200, query="?each=true"))["results"]
    again = (await post(server, *items, status=200, query="?each=true"))["results"]
    assert "replayed" not in first[0]
    known = {**first[0], "replayed": True, "state": "pending"}
    assert known == first[2] == again[0] == again[2], "said of those that were there"
    assert first[1] != again[1]
    assert "replayed" not in again[1]
    assert pending(server) == 3
    accepted = (await server.call("GET", "/metrics")).body.decode()
    assert "fasti_messages_accepted_total 3.0" in accepted


@pytest.mark.parametrize("value", ["yes", "1", ""])
async def test_each_is_true_or_false(server: Running, value: str) -> None:
    body = await post(server, item(), status=422, query=f"?each={value}")
    assert body["errors"][0]["field"] == "each"


async def test_one_object_is_no_batch(server: Running) -> None:
    await server.call("POST", BATCH, {"topic": "a"}, status=422)


@with_settings(http={"max_batch": 3}, limits={"pending": 4})
class TestBounds:
    async def test_items_are_bounded(self, server: Running) -> None:
        body = await post(server, *[item()] * 4, status=413)
        assert (body["type"], body["limit"]) == ("/problems/too-large", 3)
        assert pending(server) == 0

    async def test_a_quota_refuses_a_batch_whole_and_each_one_by_one(self, server: Running) -> None:
        await post(server, *[item()] * 2)
        full = await post(server, *[item()] * 3, status=429)
        assert full["type"] == "/problems/over-quota"
        assert pending(server) == 2
        results = (await post(server, *[item()] * 3, status=200, query="?each=true"))["results"]
        assert [sorted(result) for result in results] == [["id"], ["id"], ["problem"]]
        assert results[2]["problem"]["status"] == 429


@OPENED
async def test_a_known_message_that_cannot_be_read_is_a_problem_of_its_item(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [{"topic": "a", "payload": n, "deliver_in": 60} for n in range(3)]
    items[1]["key"] = "k"
    await server.call("POST", "/v1/messages:batch?each=true", items[1:2])

    def find(wanted: MessageId) -> None:
        raise Corrupt("block checksum mismatch")

    monkeypatch.setattr(server.app.core.reader, "find", find)
    results = (await server.call("POST", "/v1/messages:batch?each=true", items)).body["results"]
    assert [list(result) for result in results] == [["id"], ["problem"], ["id"]]
    assert results[1]["problem"]["type"] == "/problems/unreadable"


@with_settings(http={"buffered_bytes": 1 << 20})
class TestRoom:
    """Of 1 MiB for what calls gather."""

    async def test_what_has_been_read_of_batches_is_bounded(
        self, server: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An item of 2 bytes is some 700 of what is to be said of it, until the last one has been said."""
        under_way, most = 0, 0
        each = batch.Batch._each

        async def counted(*arguments: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await each(*arguments)
            finally:
                under_way -= 1

        monkeypatch.setattr(batch.Batch, "_each", counted)
        monkeypatch.setattr(batch, "YIELD_EVERY", 10)
        body = b"[" + b",".join([b"{}"] * 100) + b"]"
        call = {"status": 200, "Content_Type": "application/json"}
        calls = [server.call("POST", f"{BATCH}?each=true", body, **call) for _ in range(30)]  # type: ignore[arg-type]
        for answer in await asyncio.gather(*calls):
            assert len(answer.body["results"]) == 100
        assert 1 < most <= 5
        large = b"[" + b",".join([b"{}"] * 2_000) + b"]"  # more than there is room for at all
        assert len((await server.call("POST", f"{BATCH}?each=true", large, **call)).body["results"]) == 2_000  # type: ignore[arg-type]
