"""A key of a whole batch: sent again it has the same ids, and what was refused is decided again."""

import asyncio
import json
from itertools import count
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.settings.config import Config
from server.settings.times import format_ms
from shards import keys
from shards.errors import Corrupt
from shards.pointers import pointers
from shards.store import Table
from shards.tables import BatchRow
from shards.verify import verify_tables
from tests.support.build import OPENED

from ..conftest import HOUR_MS, NDJSON, Running, with_settings
from .conftest import Keyed

BATCH = "/v1/messages:batch"
EACH = BATCH + "?each=true"
RETENTION_MS = 60_000
LARGE = 350
"""Items of a batch that is not for the desk, and is decided in steps."""


pytestmark = with_settings(slices={"retention_ms": RETENTION_MS})


def item(topic: str = "a", **members: Any) -> dict[str, Any]:
    return {"topic": topic, "payload": "x", "deliver_in": 60, **members}


def lines(items: list[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(one).encode() for one in items)


async def post(
    server: Running, items: list[dict[str, Any]], key: str = "k", path: str = EACH, **more: Any
) -> Any:
    """The results of each, or all ids."""
    headers = {"Content_Type": NDJSON, "Idempotency_Key": key}
    answer = await server.call("POST", path, lines(items), status=None, **headers, **more)
    if answer.status >= 400:
        return answer
    return answer.body["results"] if "results" in answer.body else answer.body["ids"]


def pending(server: Running) -> int:
    return server.app.core.opened.waiting.pending


def rows(server: Running) -> int:
    return len(list(server.store.scan(Table.DEDUPE, b"", keys.LAST)))


def ids_of(results: list[dict[str, Any]]) -> list[str]:
    return [one["id"] for one in results]


@pytest.mark.parametrize("many", [1, 64, LARGE])
@pytest.mark.parametrize("path", [BATCH, EACH, EACH + "&ids=true"])
async def test_sent_again_it_has_the_same_ids(server: Running, path: str, many: int) -> None:
    items = [item(f"t/{n % 7}", deliver_in=60 + n % 5) for n in range(many)]
    first = await post(server, items, path=path)
    again = await post(server, items, path=path)
    assert pending(server) == many
    assert rows(server) == 1, "one row for all"
    if path == BATCH:
        assert again == first
    else:
        assert again == [{**one, "replayed": True, "state": "pending"} for one in first]
    other = await post(server, items, "another", path)
    assert pending(server) == 2 * many
    assert len(other) == many


async def test_a_large_body(server: Running) -> None:
    """Its key is read in the thread that has read it."""
    items = [item(payload="x" * 2_000) for _ in range(LARGE)]
    first = await post(server, items)
    assert ids_of(await post(server, items)) == ids_of(first)
    items[-1]["payload"] = "y"
    assert (await post(server, items)).status == 422
    assert pending(server) == LARGE


async def test_state_is_the_messages(server: Running) -> None:
    items = [item(deliver_in=60), item(deliver_in=7_200), item(deliver_in=7_200)]
    first = ids_of(await post(server, items))
    await server.call("DELETE", f"/v1/messages/{first[1]}", status=204)
    await server.call("PATCH", f"/v1/messages/{first[2]}", {"deliver_in": 9_000})
    await server.pass_time(61_000)
    again = await post(server, items)
    assert ids_of(again) == first
    assert [one["state"] for one in again] == ["dispatched", "cancelled", "pending"]


@pytest.mark.parametrize("path", [BATCH, EACH])
@pytest.mark.parametrize("many", [3, LARGE])
async def test_another_batch_with_the_key_is_refused_whole(server: Running, path: str, many: int) -> None:
    await post(server, [item()] * many)
    for items in ([item("b")] * many, [item()] * (many - 1), [item()] * (many + 1)):
        refused = await post(server, items, path=path)
        assert (refused.status, refused.slug) == (422, "idempotency-mismatch")
        assert [error["field"] for error in refused.body["errors"]] == ["key"]
    assert pending(server) == many


async def test_a_refused_batch_does_not_read_the_ids_of_the_first(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be 10,000, and the refused one very short."""
    await post(server, [item()] * LARGE)
    monkeypatch.setattr(BatchRow, "ids", property(lambda row: pytest.fail("read")))
    assert (await post(server, [item("b")])).status == 422


async def test_its_key_is_none_of_a_message(server: Running) -> None:
    (first,) = ids_of(await post(server, [item()]))
    await server.call("GET", "/v1/messages/by-key/k", status=404)
    made = (await server.call("POST", "/v1/messages", item(), status=201, Idempotency_Key="k")).body["id"]
    assert made != first
    assert (await server.call("GET", "/v1/messages/by-key/k")).body["id"] == made
    assert ids_of(await post(server, [item()])) == [first]


@pytest.mark.parametrize("key", ["", "k" * 257])
@pytest.mark.parametrize("many", [1, LARGE])
async def test_a_wrong_key(server: Running, key: str, many: int) -> None:
    refused = await post(server, [item()] * many, key)
    assert refused.status == 422
    assert pending(server) == 0


@pytest.mark.parametrize("many", [2, LARGE])
async def test_items_may_have_keys_of_their_own(server: Running, many: int) -> None:
    items = [item(), item(key="own"), item(key="own"), *[item()] * many]
    first = await post(server, items)
    assert [one.get("replayed", False) for one in first[:3]] == [False, False, True]
    again = await post(server, items)
    assert ids_of(again) == ids_of(first)
    assert all(one["replayed"] for one in again)
    assert ids_of(await post(server, [item(key="own")], "other")) == ids_of(first)[1:2]


async def test_terms_of_keys_want_one_for_each_item(server: Running) -> None:
    results = await post(server, [item(), item(key="1")], path=EACH + "&key_only=true")
    assert [sorted(one) for one in results] == [["problem"], ["id"]]
    again = await post(server, [item(), item(key="1")], path=EACH + "&key_only=true")
    assert again == [results[0], {**results[1], "replayed": True, "state": "pending"}]


async def test_at_once_they_are_one_batch(server: Running) -> None:
    """Decided in one group, or in two."""
    for many in (3, LARGE):
        items = [item(f"t/{n}") for n in range(many)]
        found = await asyncio.gather(*[post(server, items, f"k-{many}") for _ in range(5)])
        assert len({tuple(ids_of(one)) for one in found}) == 1
        assert sum("replayed" in one for results in found for one in results) == 4 * many
    assert pending(server) == 3 + LARGE


async def test_over_several_turns_of_the_loop(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes 2 ms."""
    passing = count(server.app.core.clock.mono(), 2e-3)
    monkeypatch.setattr(SimulatedClock, "mono", lambda self: next(passing))
    items = [item(f"t/{n}", deliver_in=60 + n) for n in range(1_000)]
    first, second, alone = await asyncio.gather(
        post(server, items), post(server, items), server.schedule("b", deliver_in=60)
    )
    assert ids_of(first) == ids_of(second)
    assert alone not in ids_of(first)
    assert pending(server) == 1_001


@with_settings(limits={"pending": 4})
class TestRefused:
    @pytest.mark.parametrize("headers", [{}, {"headers": {"a": "b"}}])
    async def test_what_was_refused_is_decided_again(self, server: Running, headers: Any) -> None:
        items = [item(f"t/{n}", **headers) for n in range(6)]
        first = await post(server, items)
        assert [sorted(one) for one in first] == [["id"]] * 4 + [["problem"]] * 2
        for one in ids_of(first[:4])[:1]:
            await server.call("DELETE", f"/v1/messages/{one}", status=204)
        second = await post(server, items)
        assert ids_of(second[:4]) == ids_of(first[:4]), "a cancelled one stays cancelled"
        assert [sorted(one) for one in second[4:]] == [["id"], ["problem"]]
        third = await post(server, items)
        assert ids_of(third[:5]) == ids_of(second[:5])
        assert third[4]["replayed"]
        assert pending(server) == 4

    async def test_all_or_nothing_leaves_no_key(self, server: Running) -> None:
        assert (await post(server, [item()] * 5, path=BATCH)).status == 429
        assert (rows(server), pending(server)) == (0, 0)
        assert len(await post(server, [item()] * 4, path=BATCH)) == 4

    async def test_of_none_nothing_is_remembered(self, server: Running) -> None:
        await post(server, [item()] * 4, "full")
        results = await post(server, [item(), item("#")])
        assert [sorted(one) for one in results] == [["problem"]] * 2
        assert rows(server) == 1


async def test_an_item_that_was_wrong_once_does_not_shift_the_others(server: Running, config: Config) -> None:
    """Too far away at first, and no more when it is sent again: each item keeps its own answer."""
    far_ms = server.clock.now_ms + config.limits.max_delay_ms + 10_000
    items = [item("a"), item("far", deliver_in=None), item("b")]
    del items[1]["deliver_in"]
    items[1]["deliver_at"] = format_ms(far_ms)
    first = await post(server, items)
    assert [sorted(one) for one in first] == [["id"], ["problem"], ["id"]]
    await server.pass_time(20_000)
    second = await post(server, items)
    assert [second[n]["id"] for n in (0, 2)] == [first[n]["id"] for n in (0, 2)]
    assert sorted(second[1]) == ["id"]
    assert ids_of(await post(server, items)) == ids_of(second)
    assert pending(server) == 3


async def test_late_ones_are_dropped_only_once_they_were_not_placed(server: Running) -> None:
    soon = format_ms(server.clock.now_ms + 5_000)
    items = [item(f"t/{n}", late="drop", deliver_at=soon) for n in range(3)]
    for one in items:
        del one["deliver_in"]
    first = await post(server, items)
    await server.pass_time(10_000)
    assert ids_of(await post(server, items)) == ids_of(first)
    assert [sorted(one) for one in await post(server, items, "new")] == [["problem"]] * 3


async def test_a_clock_set_back(server: Running) -> None:
    await post(server, [item()], "first")
    server.clock.now_ms -= 10_000
    items = [item(deliver_in=1), item(deliver_in=3_600)]
    first = await post(server, items)
    again = await post(server, items)
    assert ids_of(again) == ids_of(first)
    await server.pass_time(20_000)
    assert ids_of(await post(server, items)) == ids_of(first)


async def pass_by(server: Running, by_ms: int) -> None:
    """Time passes, and what is behind retention is dropped."""
    await server.pass_time(by_ms)
    await server.app.housekeeping.run_due()
    server.app.core.writer.ran(2 * RETENTION_MS)
    await server.app.housekeeping.run_due()


async def test_retention_forgets_it_with_its_last_message(server: Running) -> None:
    soon, later = [item(deliver_in=1), item(deliver_in=2)], [item(deliver_in=1), item(deliver_in=72 * 3_600)]
    await post(server, soon, "soon")
    first = await post(server, later, "later")
    await pass_by(server, HOUR_MS)
    await server.app.garbage.walk()
    assert rows(server) == 1
    again = await post(server, later, "later")
    assert again[1]["id"] == first[1]["id"]
    assert "replayed" not in again[0], "its message is forgotten, as one under a key of its own"
    assert await post(server, [item("other")], "soon") != [], "the key is free"


async def test_each_user_has_keys_of_its_own(keyed: Keyed) -> None:
    keyed.add("own", "admin")
    found = [await post(keyed.server, [item()], **keyed.shown(name)) for name in ("own", "ops", "own")]
    assert len({ids_of(one)[0] for one in found}) == 2
    assert ids_of(found[0]) == ids_of(found[2])


@OPENED
async def test_a_row_that_cannot_be_read(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await post(server, [item()])
    real = server.store.get

    def get(table: Table, key: bytes) -> bytes | None:
        if table is Table.DEDUPE:
            raise Corrupt("block checksum mismatch")
        return real(table, key)

    monkeypatch.setattr(server.store, "get", get)
    refused = await post(server, [item()])
    assert (refused.status, refused.slug) == (503, "unreadable") or refused.slug == "unreadable"
    assert pending(server) == 1


async def test_verify_knows_its_rows(server: Running) -> None:
    await post(server, [item(), item()])
    store, directory = server.store, server.app.core.opened.directory
    assert list(pointers(store, directory)) == verify_tables(store) == []
    ((key, value),) = store.scan(Table.DEDUPE, b"", keys.LAST)
    batch = store.batch()
    batch.put(Table.DEDUPE, key, value[:28] + bytes(16) + b"\1" * 16)
    store.write(batch)
    assert list(pointers(store, directory)) == [], "what is lost is decided again"
    assert all("replayed" not in one for one in await post(server, [item(), item()]))


async def test_verify_finds_no_fault_in_a_key_whose_messages_have_expired(server: Running) -> None:
    """They were moved to an earlier time, and the key is kept until their first one."""
    (first,) = ids_of(await post(server, [item(deliver_in=72 * 3_600)]))
    await server.call("PATCH", f"/v1/messages/{first}", {"deliver_in": 1})
    await pass_by(server, HOUR_MS)
    await server.call("GET", f"/v1/messages/{first}", status=404)
    assert rows(server) == 1
    assert list(pointers(server.store, server.app.core.opened.directory)) == []
