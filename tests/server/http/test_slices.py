"""The timeline's pieces over HTTP."""

import pytest

from timeline.slices import Counts, Slice

from ..conftest import DAY_MS, MINUTE_MS, START, START_MS, Running, with_settings


async def test_slices_are_listed_with_their_counts(server: Running) -> None:
    assert (await server.call("GET", "/v1/slices")).body == {
        "slices": [],
        "next": None,
        "split_above": 1_000_000,
        "held_by": None,
    }
    names = [await server.schedule(payload="x" * 100, deliver_in=60 * n) for n in (1, 2, 20, 5_000)]
    await server.call("DELETE", f"/v1/messages/{names[0]}", status=204)
    body = (await server.call("GET", "/v1/slices")).body
    assert [(s["start"], s["end"], s["count"], s["live"], s["shards"]) for s in body["slices"]] == [
        (START, "2026-11-21T08:15:00.000Z", 2, 1, 1),
        ("2026-11-21T08:15:00.000Z", "2026-11-21T08:30:00.000Z", 1, 1, 1),
        ("2026-11-24T18:00:00.000Z", "2026-11-25T00:00:00.000Z", 1, 1, 1),
    ]
    assert all(s["generation"] == 0 and s["bytes"] > 100 for s in body["slices"])
    assert body["next"] is None


async def test_slices_come_in_pages(server: Running) -> None:
    for n in range(5):
        await server.schedule(deliver_in=900 * n + 1)
    starts, path = [], "/v1/slices?limit=2"
    while True:
        body = (await server.call("GET", path)).body
        starts += [s["start"] for s in body["slices"]]
        if body["next"] is None:
            break
        path = f"/v1/slices?limit=2&cursor={body['next']}"
    assert len(starts) == 5
    assert starts == sorted(starts)


async def test_a_slice_and_a_shard_are_found_by_either_name(server: Running) -> None:
    await server.schedule(deliver_in=60)
    await server.schedule(deliver_in=61)
    first = (await server.call("GET", f"/v1/slices/{START}")).body
    assert first == (await server.call("GET", f"/v1/slices/{START_MS}")).body
    assert first == (await server.call("GET", "/v1/slices/2026-11-21T10%3A00%3A00%2B02%3A00")).body
    (shard,) = first["shards"]
    assert shard == (await server.call("GET", f"/v1/slices/{START}/shards/0")).body
    assert shard["bytes"] == first["bytes"]
    assert {name: shard[name] for name in ("shard", "structure", "count", "live", "borrowed", "sealed")} == {
        "shard": 0,
        "structure": "#",
        "count": 2,
        "live": 2,
        "borrowed": False,
        "sealed": False,
    }
    assert (shard["first"]["at"], shard["last"]["at"]) == (
        "2026-11-21T08:01:00.000Z",
        "2026-11-21T08:01:01.000Z",
    )
    assert shard["first"]["seq"] < shard["last"]["seq"]
    await server.pass_time(15 * MINUTE_MS)
    assert (await server.call("GET", f"/v1/slices/{START}/shards/0")).body["sealed"]


async def test_an_empty_and_a_borrowed_shard(server: Running) -> None:
    piece = Slice(START_MS + DAY_MS, START_MS + 2 * DAY_MS, 1)
    shard = piece.open_shard(0)
    other = Slice(START_MS + 4 * DAY_MS, START_MS + 5 * DAY_MS, 0)
    other.borrow([shard], Counts())
    server.app.core.directory.adopt(piece)
    server.app.core.directory.adopt(other)
    own = (await server.call("GET", f"/v1/slices/{piece.start_ms}/shards/0")).body
    assert (own["first"], own["last"], own["borrowed"], own["sealed"]) == (None, None, False, False)
    lent = (await server.call("GET", f"/v1/slices/{other.start_ms}/shards/0")).body
    assert (lent["borrowed"], lent["sealed"]) == (True, True)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/slices/0",
        "/v1/slices/soon",
        "/v1/slices/2026-11-21T08:00:01Z",
        f"/v1/slices/{START_MS}/shards/1",
        f"/v1/slices/{START_MS}/shards/-1",
        f"/v1/slices/{START_MS}/shards/x",
        f"/v1/slices/{START_MS}/shards/%C2%B2",
    ],
)
async def test_what_is_not_there_is_not_found(server: Running, path: str) -> None:
    await server.schedule(deliver_in=60)
    assert (await server.call("GET", path, status=404)).slug == "not-found"


@with_settings(shards={"cap_messages": 2})
async def test_a_full_shard_is_sealed(server: Running) -> None:
    for _ in range(3):
        await server.schedule(deliver_in=60)
    shards = (await server.call("GET", f"/v1/slices/{START}")).body["shards"]
    assert [(s["shard"], s["count"], s["cap"], s["sealed"]) for s in shards] == [
        (0, 2, 2, True),
        (1, 1, 2, False),
    ]


@with_settings(slices={"retention_ms": DAY_MS})
async def test_who_keeps_old_slices_is_named(server: Running) -> None:
    for name in ("workers", "idle"):
        await server.call("PUT", f"/v1/groups/{name}", {"filter": f"{name}/#"}, status=201)
    await server.schedule("workers/1", deliver_in=60)
    advance = "/v1/clock:advance"
    await server.call("POST", advance, {"by": "23h"})
    assert (await server.call("GET", "/v1/slices")).body["held_by"] is None
    await server.call("POST", advance, {"by": "P2D"})
    held_by = (await server.call("GET", "/v1/slices")).body["held_by"]
    assert held_by["group"] == "workers"
    # The slice of 08:00 was over at 08:15, and its retention a day later.
    assert 46 * 3_600 < held_by["seconds"] < 47 * 3_600
    await server.call("DELETE", "/v1/groups/workers?undone=drop", status=204)
    assert (await server.call("GET", "/v1/slices")).body["held_by"] is None
