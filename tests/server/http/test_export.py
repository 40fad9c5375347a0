"""Export and import: the same timeline again, also while it is being changed, ids included on request."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.http.routes import export
from server.http.turns import Turn, Turns
from server.settings.config import Config
from server.settings.times import format_ms

from ..conftest import HOUR_MS, MINUTE_MS, NDJSON, START_MS, Running, running

EXPORT, BATCH = "/v1/messages:export", "/v1/messages:batch"

ITEMS: list[dict[str, Any]] = [
    {"topic": "a/text", "payload": "grüße \n", "deliver_in": 60},
    {"topic": "a/json", "payload": {"x": [1, 2.50]}, "deliver_in": 120, "headers": {"k": "v"}},
    {"topic": "a/string", "payload": "s", "encoding": "json", "deliver_in": 120},
    {"topic": "b/bytes", "payload": "AAEC/w==", "encoding": "base64", "deliver_in": "3h", "qos": 0},
    {"topic": "b/all", "payload": "x", "deliver_in": "P40D", "qos": 2, "retain": True, "late": "drop"},
    {"topic": "c/local", "payload": "x", "deliver_at": "2027-03-28T09:00[Europe/Bucharest]"},
    {"topic": "b/more", "payload": "x", "deliver_in": "2h", "expires_in": 1.5, "content_type": "text/x"},
]


async def lines(server: Running, query: str = "") -> list[dict[str, Any]]:
    async with server.http.get(EXPORT + query) as response:
        assert (response.status, response.content_type) == (200, NDJSON)
        raw = await response.read()
    return [json.loads(line) for line in raw.splitlines()]


def ndjson(items: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(item, ensure_ascii=False).encode() + b"\n" for item in items)


async def put(server: Running, items: list[dict[str, Any]], query: str = "", status: int = 201) -> Any:
    return (await server.call("POST", BATCH + query, ndjson(items), status=status, Content_Type=NDJSON)).body


async def test_a_round_trip_gives_the_same_timeline(server: Running, tmp_path: Path) -> None:
    ids = (await put(server, ITEMS))["ids"]
    first = await lines(server)
    assert [item["topic"] for item in first] == [
        *("a/text", "a/json", "a/string", "b/more", "b/bytes", "b/all", "c/local")
    ]
    assert first[-1]["deliver_at"] == "2027-03-28T09:00[Europe/Bucharest]"
    with_ids = await lines(server, "?ids=true")
    assert sorted(item.pop("id") for item in with_ids) == sorted(ids)
    assert with_ids == first
    async with running(tmp_path / "other", Config(), SimulatedClock(START_MS)) as other:
        await put(other, first)
        assert await lines(other) == first


async def test_ids_are_kept(server: Running, tmp_path: Path) -> None:
    ids = (await put(server, ITEMS))["ids"]
    await server.call("PATCH", f"/v1/messages/{ids[0]}", {"deliver_in": "P2D"})
    exported = await lines(server, "?ids=true")
    clock = SimulatedClock(START_MS)
    async with running(tmp_path / "other", Config(), clock) as other:
        said = await put(other, exported, "?ids=true")
        assert said["ids"] == [item["id"] for item in exported]
        assert await lines(other, "?ids=true") == exported
        assert other.app.core.opened.waiting.pending == len(ITEMS)
        await other.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": "P3D"})
        await other.call("DELETE", f"/v1/messages/{ids[2]}", status=204)
        _, link = await other.connect("c", "#")
        await other.pass_time(50 * 24 * HOUR_MS)
        assert len(link.sent) == 3  # one is cancelled, one expired, one dropped as late
        shown = (await other.call("GET", f"/v1/messages/{ids[1]}")).body
        assert (shown["id"], shown["state"]) == (ids[1], "dispatched")
    async with running(tmp_path / "other", Config(), clock) as again:
        assert (await again.call("GET", f"/v1/messages/{ids[2]}")).body["state"] == "cancelled"


async def test_a_taken_id_is_an_error_of_its_line(server: Running) -> None:
    await put(server, ITEMS)
    exported = await lines(server, "?ids=true")
    free = {**exported[0], "id": f"{int(exported[0]['id'], 16) + 1000:032x}"}
    answer = await put(server, [free, exported[1], free], "?ids=true", 422)
    assert [(e["line"], e["field"]) for e in answer["errors"]] == [(2, "id")]
    each = (await put(server, [free, exported[1], free], "?ids=true&each=true", 200))["results"]
    assert [("id" in one) for one in each] == [True, False, False]
    assert each[1]["problem"]["errors"][0]["field"] == "id"
    assert len(await lines(server)) == len(ITEMS) + 1


async def test_no_later_message_gets_an_adopted_id(server: Running) -> None:
    """Its row is never written: seq is above every adopted one."""
    due_ms = START_MS + HOUR_MS
    seq = server.app.core.horizon.seq
    name = f"{due_ms:012x}{0:04x}{0:04x}{seq + 3:012x}"
    await put(
        server,
        [{"topic": "a", "payload": "adopted", "deliver_at": format_ms(due_ms), "id": name}],
        "?ids=true",
    )
    others = [await server.schedule("b", deliver_at=format_ms(due_ms)) for _ in range(5)]
    assert name not in others
    assert min(others) > name
    assert (await server.call("GET", f"/v1/messages/{name}")).body["payload"] == "adopted"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x", "32 lower-case hex"),
        (f"{START_MS:012x}{0:04x}{7:04x}{5:012x}", "another timeline"),
        (f"{START_MS:012x}{0:04x}{0:04x}{1 << 47:012x}", "beyond"),
    ],
)
async def test_an_id_that_cannot_be_taken(server: Running, name: str, why: str) -> None:
    item = {"topic": "a", "payload": "x", "id": name}
    answer = await put(server, [item], "?ids=true", 422)
    assert answer["errors"][0]["field"] == "id"
    assert why in answer["errors"][0]["detail"]
    assert (await put(server, [item], "", 422))["errors"][0]["detail"].startswith("is set by the server")


async def test_keys_and_ids_go_together(server: Running) -> None:
    item = {"topic": "a", "payload": "x", "deliver_in": "1h", "key": "k", "id": f"{START_MS:012x}{9:020x}"}
    for _ in range(2):
        assert (await put(server, [item, {**ITEMS[0]}], "?ids=true"))["ids"][0] == item["id"]
    assert [m["topic"] for m in await lines(server)] == ["a/text", "a/text", "a"]
    await server.call("PATCH", f"/v1/messages/{item['id']}", {"deliver_in": "2h"})
    assert (await put(server, [item], "?ids=true"))["ids"] == [item["id"]]


async def test_range_and_topic(server: Running) -> None:
    await put(server, ITEMS)
    since, until = START_MS + 2 * MINUTE_MS, START_MS + 3 * HOUR_MS
    found = await lines(server, f"?due_from={since}&due_to={until}")
    assert [item["topic"] for item in found] == ["a/json", "a/string", "b/more"]
    assert [i["topic"] for i in await lines(server, "?topic=b/%23")] == ["b/more", "b/bytes", "b/all"]
    await put(server, [{"topic": "c", "payload": 1, "deliver_in": "1h", "ordering_key": "c-1"}])
    assert [i["ordering_key"] for i in await lines(server, "?ordering_key=c-1")] == ["c-1"]


async def test_an_export_while_everything_moves(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there at the beginning comes once, wherever moves take it meanwhile; later ones do not."""
    monkeypatch.setattr(export, "STEP_ROWS", 3)
    items = [{"topic": "a", "payload": n, "deliver_in": 60 * (n + 1)} for n in range(60)]
    ids = (await put(server, items))["ids"]
    query = export.query_over(None, None, None)
    turn = Turn(Turns(server.clock, max_bytes=1), "", server.clock)
    reading = export.Reading(server.app.status.timeline, query, lambda: None, with_ids=True)
    found: list[str] = []
    for n in range(200):
        if reading.is_over:
            break
        found += [json.loads(line)["id"] for line in reading.step(turn)]
        name = ids[(n * 7) % 60]
        await server.call("PATCH", f"/v1/messages/{name}", {"deliver_in": 30 + (n * 1_103) % 7_200})
        await server.schedule("later", deliver_in=1_800)
    assert reading.is_over
    assert sorted(found) == sorted(ids)


async def test_a_client_that_goes_away_ends_the_export(server: Running) -> None:
    payload = "x" * 200_000
    for start in range(0, 40, 4):
        items = [{"topic": "a", "payload": payload, "deliver_in": 60 + start + n} for n in range(4)]
        await put(server, items)
    response = await server.http.get(EXPORT)
    assert await response.content.read(10)
    response.close()
    await asyncio.sleep(0)
    assert (await server.call("GET", "/v1/info")).status == 200
