"""Bulk cancel and shift: exact, each message once, safe to repeat."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from server.http.routes import control
from server.http.values.views import time_text
from shards import keys
from shards.dedupe import Refused
from shards.draft import Draft
from shards.errors import Corrupt
from shards.group_commit import GroupCommit
from shards.open_batch import OpenBatch
from shards.store import Table
from tests.support.build import OPENED
from timeline.position import MessageId, id_position

from ..conftest import HOUR_MS, MINUTE_MS, NDJSON, START_MS, TOGETHER, Running

CANCEL, SHIFT = "/v1/messages:cancel", "/v1/messages:reschedule"
ALL = {"topic": "#"}


async def fill(server: Running, count: int = 600, topics: str = "ab") -> list[str]:
    """One message a minute, the first in one minute, topics in turn."""
    items = [
        {"topic": f"{topics[n % len(topics)]}/{n % 7}", "payload": n, "deliver_in": 60 * (n + 1)}
        for n in range(count)
    ]
    body = b"\n".join(json.dumps(item).encode() for item in items)
    answer = await server.call("POST", "/v1/messages:batch", body, status=201, Content_Type=NDJSON)
    return list(answer.body["ids"])


async def bulk(server: Running, path: str, status: int = 200, **body: object) -> Any:
    return (await server.call("POST", path, body, status=status)).body


async def dues(server: Running, state: str = "pending") -> dict[str, str]:
    found, cursor = {}, ""
    while True:
        body = (await server.call("GET", f"/v1/messages?limit=1000&state={state}{cursor}")).body
        found |= {m["id"]: m["deliver_at"] for m in body["messages"]}
        if body["next"] is None:
            return found
        cursor = f"&cursor={body['next']}"


async def test_a_dry_run_counts_and_changes_nothing(server: Running) -> None:
    await fill(server)
    before = await dues(server)
    some = {"topic": "a/#", "due_from": START_MS + 10 * MINUTE_MS, "due_to": START_MS + 30 * MINUTE_MS}
    for path, more in ((CANCEL, {}), (SHIFT, {"shift": "PT1H"})):
        said = await bulk(server, path, filter=some, dry_run=True, **more)
        assert (said["matched"], said["changed"], said["next"]) == (10, 0, None)
    assert await dues(server) == before
    assert (await bulk(server, CANCEL, filter=some))["changed"] == 10


async def test_cancel_by_topic(server: Running) -> None:
    ids = await fill(server)
    said = await bulk(server, CANCEL, filter={"topic": "a/#"})
    assert (said["matched"], said["changed"]) == (300, 300)
    assert set(await dues(server)) == set(ids[1::2])
    assert set(await dues(server, "cancelled")) == set(ids[::2])
    assert server.app.core.opened.pending == 300
    assert (await bulk(server, CANCEL, filter={"topic": "a/#"}))["matched"] == 0


async def test_cancel_by_ordering_key(server: Running) -> None:
    mine = await server.schedule(ordering_key="c-1", deliver_in="1h")
    for more in ({"ordering_key": "c-2"}, {"headers": {"c-1": "c-1"}}, {}):
        await server.schedule(deliver_in="1h", **more)
    said = await bulk(server, CANCEL, filter={"ordering_key": "c-1"})
    assert (said["matched"], said["changed"]) == (1, 1)
    assert list(await dues(server, "cancelled")) == [mine]
    await bulk(server, CANCEL, 422, filter={"ordering_key": ""})


@pytest.mark.parametrize("shift", ["PT1H", "-PT1H", 3600, -3600, "90s"])
async def test_a_shift_moves_each_message_once(
    server: Running, shift: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "LOOK_ROWS", 17)
    monkeypatch.setattr(control, "STEP_MESSAGES", 5)
    ids = await fill(server, 200)
    since = START_MS + 100 * MINUTE_MS
    said = await bulk(server, SHIFT, filter={"due_from": since}, shift=shift)
    assert (said["matched"], said["changed"]) == (101, 101)
    by_ms = {"PT1H": HOUR_MS, "-PT1H": -HOUR_MS, "90s": 90_000}.get(shift, 0) or shift * 1_000
    body = [(await server.call("GET", f"/v1/messages/{name}")).body for name in ids]
    assert [m["deliver_at"] for m in body[:99]] == [
        time_text(START_MS + (n + 1) * MINUTE_MS) for n in range(99)
    ]
    assert [m["deliver_at"] for m in body[99:]] == [
        time_text(START_MS + (n + 1) * MINUTE_MS + by_ms) for n in range(99, 200)
    ]


@OPENED
async def test_large_ones_are_shifted_a_few_at_a_time(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, seal = [], OpenBatch.seal

    def sealed(group: OpenBatch) -> GroupCommit:
        sizes.append(group.size)
        return seal(group)

    for _ in range(20):
        await server.schedule(payload="x" * 1_000, deliver_in="1h")
    monkeypatch.setattr(control, "GROUP_BYTES", 5_000)
    monkeypatch.setattr(OpenBatch, "seal", sealed)
    said = await bulk(server, SHIFT, filter=ALL, shift="PT1H")
    assert (said["matched"], said["changed"]) == (20, 20)
    assert 5_000 <= max(sizes) < 9_000


async def test_a_shift_is_resumed_with_its_as_of(server: Running) -> None:
    await fill(server, 100)
    first = await bulk(server, SHIFT, filter=ALL, shift="PT1H", dry_run=True)
    part = await bulk(server, SHIFT, filter=ALL, shift="PT1H", as_of=first["as_of"], limit=30)
    assert (part["matched"], part["changed"], part["as_of"]) == (30, 30, first["as_of"])
    rest = await bulk(server, SHIFT, filter=ALL, shift="PT1H", as_of=first["as_of"])
    assert (rest["matched"], rest["changed"]) == (70, 70)
    again = await bulk(server, SHIFT, filter=ALL, shift="PT1H", as_of=first["as_of"])
    assert again["matched"] == 0
    expected = [time_text(START_MS + HOUR_MS + (n + 1) * MINUTE_MS) for n in range(100)]
    assert sorted((await dues(server)).values()) == expected


async def test_a_limit_hands_out_a_cursor(server: Running) -> None:
    await fill(server, 100)
    cursor: dict[str, object] = {}
    counts = []
    while True:
        said = await bulk(server, CANCEL, filter=ALL, limit=40, **cursor)
        counts.append(said["changed"])
        if said["next"] is None:
            break
        cursor = {"cursor": said["next"], "as_of": said["as_of"]}
    assert counts == [40, 40, 20]


async def test_what_was_placed_meanwhile_is_not_touched(server: Running) -> None:
    await fill(server, 3)
    as_of = (await bulk(server, CANCEL, filter=ALL, dry_run=True))["as_of"]
    later = await server.schedule("a/9", deliver_in="PT2H")
    assert (await bulk(server, CANCEL, filter=ALL, as_of=as_of))["changed"] == 3
    assert list(await dues(server)) == [later]


async def test_truth_is_told_per_message(server: Running) -> None:
    """Single cancels and moves race with a bulk cancel: every message ends in one state, counted once."""
    ids = await fill(server, 400)
    moved, cancelled, said = await asyncio.gather(
        asyncio.gather(
            *(server.http.patch(f"/v1/messages/{n}", json={"deliver_in": "P3D"}) for n in ids[:40])
        ),
        asyncio.gather(*(server.http.delete(f"/v1/messages/{n}") for n in ids[40:80])),
        bulk(server, CANCEL, filter=ALL),
    )
    assert {answer.status for answer in cancelled} == {204}
    kept = [name for name, answer in zip(ids[:40], moved, strict=True) if answer.status == 200]
    left = await dues(server)
    assert set(left) <= set(kept)
    assert len(left) + len(await dues(server, "cancelled")) == 400
    assert said["changed"] <= said["matched"] <= 400
    assert server.app.core.opened.pending == len(left)


async def test_what_goes_too_far_stays(server: Running) -> None:
    await server.schedule(deliver_in="3649d")
    await server.schedule(deliver_in="1d")
    said = await bulk(server, SHIFT, filter=ALL, shift="P2D")
    assert (said["matched"], said["changed"]) == (2, 1)


@TOGETHER
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CANCEL, {"filter": {}}, "filter"),
        (CANCEL, {"filter": ALL, "shift": 1}, "shift"),
        (SHIFT, {"filter": ALL}, "shift"),
        (SHIFT, {"filter": ALL, "shift": "P1Y"}, "shift"),
        (CANCEL, {"filter": {"topic": "a/#/b"}}, "topic"),
        (CANCEL, {"filter": {"due_from": "soon"}}, "due_from"),
        (CANCEL, {"filter": ALL, "as_of": "x"}, "as_of"),
        (CANCEL, {"filter": ALL, "cursor": "x"}, "cursor"),
        (CANCEL, {"filter": ALL, "limit": 0}, "limit"),
        (CANCEL, {"filter": {"topics": "a"}}, "filter.topics"),
        (CANCEL, {}, "filter"),
    ],
)
async def test_refusals_name_the_field(lasting: Running, path: str, body: Any, field: str) -> None:
    answer = await lasting.call("POST", path, body, status=422)
    assert answer.body["errors"][0]["field"] == field


async def test_a_failure_says_how_far_it_came(server: Running) -> None:
    await fill(server, 3)
    server.store.is_failing = True
    answer = await server.call("POST", CANCEL, {"filter": ALL}, status=503)
    assert (answer.body["matched"], answer.body["changed"], len(answer.body["as_of"])) == (3, 0, 12)
    server.store.is_failing = False
    server.app.plan()
    await server.app.quiet()
    assert len(await dues(server)) == 3


async def test_one_that_cannot_be_read_stops_no_other(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await fill(server, 6)
    await server.call("PATCH", f"/v1/messages/{ids[2]}", {"deliver_in": 7_200})
    real, rotten = server.store.get, keys.place(id_position(MessageId(int(ids[2], 16))))

    def get(table: Table, key: bytes) -> bytes | None:
        if table is Table.MESSAGES and key.endswith(rotten):
            raise Corrupt("block checksum mismatch")
        return real(table, key)

    monkeypatch.setattr(server.store, "get", get)
    said = await bulk(server, SHIFT, filter=ALL, shift="PT1M")
    assert (said["matched"], said["changed"]) == (6, 5)
    said = await bulk(server, CANCEL, filter=ALL)
    assert (said["matched"], said["changed"]) == (6, 5)
    assert server.app.core.writer.given_up == 0


@OPENED
async def test_a_refusal_half_way_says_how_far_it_came(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await fill(server, 6)
    group = server.app.core.opened.open_batch
    real, moved = group.reserve, []

    def reserve(drafts: Sequence[Draft]) -> object:
        if len(moved) == 4:
            raise Refused("over-quota", "no slice")
        moved.append(drafts)
        return real(drafts)

    before = await dues(server)
    monkeypatch.setattr(group, "reserve", reserve)
    answer = await server.call("POST", SHIFT, {"filter": ALL, "shift": "PT1H"}, status=429)
    assert (answer.slug, answer.body["matched"], answer.body["changed"]) == ("over-quota", 6, 4)
    after = await dues(server)
    assert sum(before[name] != after[name] for name in ids) == 4
    monkeypatch.undo()
    more = {"as_of": answer.body["as_of"], "cursor": answer.body["next"]}
    said = await bulk(server, SHIFT, filter=ALL, shift="PT1H", **more)
    assert (said["matched"], said["changed"], said["next"]) == (2, 2, None)
