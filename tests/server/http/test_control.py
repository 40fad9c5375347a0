"""Bulk cancel and shift: exact, each message once, safe to repeat."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from server.http.routes import control
from server.settings.times import time_text
from shards import keys
from shards.dedupe import Refused
from shards.draft import Draft
from shards.errors import Corrupt
from shards.group_commit import GroupCommit
from shards.open_batch import OpenBatch
from shards.store import Table
from tests.support.build import OPENED
from tests.support.http import Http
from timeline.position import MessageId, id_position

from ..conftest import HOUR_MS, MINUTE_MS, START_MS, Running

CANCEL, SHIFT = "/v1/messages:cancel", "/v1/messages:reschedule"
ALL = {"topic": "#"}


async def fill(server: Running, count: int = 600, topics: str = "ab") -> list[str]:
    """One message a minute, the first in one minute, topics in turn."""
    items = [
        {"topic": f"{topics[n % len(topics)]}/{n % 7}", "payload": n, "deliver_in": 60 * (n + 1)}
        for n in range(count)
    ]
    return await server.batch(items)


async def bulk(server: Running, path: str, status: int = 200, **body: object) -> Any:
    return (await server.call("POST", path, body, status=status)).body


async def dues(server: Running, state: str = "pending") -> dict[str, str]:
    return {m["id"]: m["deliver_at"] for m in await Http(server.http).listed(f"state={state}")}


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
    assert server.app.core.opened.waiting.pending == 300
    assert (await bulk(server, CANCEL, filter={"topic": "a/#"}))["matched"] == 0


async def test_cancel_by_ordering_key(server: Running) -> None:
    mine = await server.schedule(ordering_key="c-1", deliver_in="1h")
    for more in ({"ordering_key": "c-2"}, {"headers": {"c-1": "c-1"}}, {}):
        await server.schedule(deliver_in="1h", **more)
    said = await bulk(server, CANCEL, filter={"ordering_key": "c-1"})
    assert (said["matched"], said["changed"]) == (1, 1)
    assert list(await dues(server, "cancelled")) == [mine]


@pytest.mark.long
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
    assert server.app.core.opened.waiting.pending == len(left)


async def test_what_goes_too_far_stays(server: Running) -> None:
    await server.schedule(deliver_in="3649d")
    await server.schedule(deliver_in="1d")
    said = await bulk(server, SHIFT, filter=ALL, shift="P2D")
    assert (said["matched"], said["changed"]) == (2, 1)


async def test_a_cancel_has_no_shift(server: Running) -> None:
    body = await bulk(server, CANCEL, 422, filter=ALL, shift=1)
    assert [error["field"] for error in body["errors"]] == ["shift"]


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


async def in_pages(server: Running, path: str, limit: int, **body: object) -> list[int]:
    """How many each call has changed; `next` alone goes from one to the other."""
    counts, cursor = list[int](), dict[str, object]()
    while len(counts) < 20:
        said = await bulk(server, path, limit=limit, **body, **cursor)
        counts.append(said["changed"])
        if said["next"] is None:
            return counts
        cursor = {"cursor": said["next"]}
    raise AssertionError(f"no end: {counts}")


@pytest.mark.parametrize("shift_s", [3_600, 90, 60, 1, -1, -60, -90, -1_800])
@pytest.mark.parametrize("limit", [1_000, 40, 33])
async def test_a_shift_in_pages_moves_each_message_once(server: Running, shift_s: int, limit: int) -> None:
    """Forward and back, beyond the page and within it: by the cursor alone."""
    ids = await fill(server, 100)
    some = {"topic": "#", "due_from": START_MS + 40 * MINUTE_MS}
    counts = await in_pages(server, SHIFT, limit, filter=some, shift=shift_s)
    assert sum(counts) == 61  # messages 40 to 100
    found = await dues(server)
    assert [found[name] for name in ids] == [
        time_text(START_MS + n * MINUTE_MS + (shift_s * 1_000 if n >= 40 else 0)) for n in range(1, 101)
    ]


async def test_a_dry_run_in_pages_counts_each_message_once(server: Running) -> None:
    ids = await fill(server, 10)
    said = await bulk(server, SHIFT, filter=ALL, shift="PT1H", dry_run=True, limit=4)
    await server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": "3h"})  # counted before
    await server.call("PATCH", f"/v1/messages/{ids[2]}", {"deliver_in": 1})  # counted before
    more = await bulk(server, CANCEL, filter=ALL, dry_run=True, cursor=said["next"])
    assert (said["matched"], more["matched"], more["next"]) == (4, 6, None)


async def test_a_cancel_in_pages_finds_what_is_moved_meanwhile(server: Running) -> None:
    ids = await fill(server, 10)
    some = {"topic": "#", "due_to": START_MS + HOUR_MS}
    said = await bulk(server, CANCEL, filter=some, limit=4)
    for n, wait in ((4, 1), (5, 1_800), (6, 7_200)):  # behind the cursor, before it, out of the filter
        await server.call("PATCH", f"/v1/messages/{ids[n]}", {"deliver_in": wait})
    await server.call("PATCH", f"/v1/messages/{ids[5]}", {"deliver_in": 2_400})  # twice
    new = await server.schedule("a/new", deliver_in=1_200)
    more = await bulk(server, CANCEL, filter=some, cursor=said["next"])
    assert (said["changed"], more["matched"], more["changed"], more["next"]) == (4, 5, 5, None)
    assert set(await dues(server)) == {ids[6], new}


async def test_what_moves_away_before_its_time_is_cancelled_in_time(server: Running) -> None:
    """The place where it was has passed before the next page."""
    ids = await fill(server, 4)
    said = await bulk(server, CANCEL, filter=ALL, limit=1)
    await server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": "1h"})
    await server.pass_time(150_000)  # past messages 1 and 2; 3 is due in half a minute
    more = await bulk(server, CANCEL, filter=ALL, cursor=said["next"])
    assert (said["changed"], more["changed"]) == (1, 3)
    assert await dues(server) == {}


async def test_a_shift_leaves_what_others_move_meanwhile(server: Running) -> None:
    ids = await fill(server, 4)
    said = await bulk(server, SHIFT, filter=ALL, shift="1h", limit=1)
    await server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": "3h"})
    more = await bulk(server, SHIFT, filter=ALL, shift="1h", cursor=said["next"])
    assert (said["changed"], more["matched"], more["changed"]) == (1, 2, 2)
    assert (await dues(server))[ids[1]] == time_text(START_MS + 3 * HOUR_MS)


async def test_a_cursor_without_its_moment_is_refused(server: Running) -> None:
    """One of another list, or of an older server: with `as_of` it is good."""
    await fill(server, 3)
    said = await bulk(server, SHIFT, filter=ALL, shift="1h", limit=1)
    old = said["next"][:24]
    answer = await server.call("POST", SHIFT, {"filter": ALL, "shift": "1h", "cursor": old}, status=422)
    assert answer.body["errors"][0]["field"] == "cursor"
    more = await bulk(server, SHIFT, filter=ALL, shift="1h", cursor=old, as_of=said["as_of"])
    assert (more["changed"], more["next"]) == (2, None)


async def test_the_earlier_moment_counts(server: Running) -> None:
    """Beside a cursor, an `as_of` of a later call moves nothing twice."""
    await fill(server, 4)
    said = await bulk(server, SHIFT, filter=ALL, shift="90s", limit=2)
    later = (await bulk(server, SHIFT, filter=ALL, shift="90s", dry_run=True))["as_of"]
    more = await bulk(server, SHIFT, filter=ALL, shift="90s", cursor=said["next"], as_of=later)
    assert (said["changed"], more["changed"]) == (2, 2)
