"""Density against a plain count of what was asked, over slices of all widths."""

import random
from typing import Any

import pytest

from server.http import density
from server.settings.times import format_ms
from shards.read import Reader
from tests.support.build import OPENED

from ..conftest import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, Running, with_settings

PATH = "/v1/timeline/density"


async def asked(server: Running, status: int = 200, **query: object) -> Any:
    text = "&".join(f"{name.rstrip('_')}={value}" for name, value in query.items())
    return (await server.call("GET", f"{PATH}?{text}", status=status)).body


async def fill(server: Running, seed: int, count: int = 800) -> dict[str, tuple[str, int]]:
    """topic and due by id, those that are left."""
    chance = random.Random(seed)
    spans_s = (HOUR_MS // 1_000, 3 * 86_400, 90 * 86_400)
    items = [
        {
            "topic": f"{chance.choice('abc')}/{chance.randrange(99)}",
            "payload": n,
            "deliver_in": chance.randrange(1, chance.choice(spans_s)),
        }
        for n in range(count)
    ]
    ids = await server.batch(items)
    known = {
        name: (str(item["topic"]), START_MS + int(item["deliver_in"]) * 1_000)  # type: ignore[call-overload]
        for name, item in zip(ids, items, strict=True)
    }
    for name in chance.sample(ids, 60):
        await server.call("DELETE", f"/v1/messages/{name}", status=204)
        del known[name]
    for name in chance.sample(sorted(known), 60):
        by_s = chance.randrange(1, 5 * 86_400)
        await server.call("PATCH", f"/v1/messages/{name}", {"deliver_in": by_s})
        known[name] = (known[name][0], START_MS + by_s * 1_000)
    return known


def expected(known: dict[str, tuple[str, int]], low: int, start: int, end: int, width: int) -> list[int]:
    counts = [0] * -(-(end - start) // width)
    for _, due_ms in known.values():
        if max(start, low) <= due_ms < end:
            counts[(due_ms - start) // width] += 1
    return counts


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
async def test_counts_are_exact(server: Running, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "STEP_ROWS", 10)
    known = await fill(server, seed)
    for passed_ms in (0, 35 * MINUTE_MS):
        await server.pass_time(passed_ms)
        now_ms = server.clock.now_ms
        for start, end, bucket in (
            (START_MS, START_MS + 2 * HOUR_MS, 60_000),
            (START_MS - HOUR_MS, START_MS + 4 * DAY_MS, 15 * MINUTE_MS),
            (START_MS, START_MS + 100 * DAY_MS, DAY_MS),
            (START_MS + 12_345, START_MS + 100 * DAY_MS, 9 * DAY_MS + 1),
            (START_MS, START_MS + 100 * DAY_MS, 200 * DAY_MS),
        ):
            said = await asked(server, from_=start, to=end, bucket=f"{bucket}ms")
            counts = expected(known, now_ms + 1, start, end, bucket)
            assert [b["count"] for b in said["buckets"]] == counts
            assert said["total"] == sum(counts)
            topic = await asked(server, from_=start, to=end, bucket=f"{bucket}ms", topic="a/%23")
            only = {name: one for name, one in known.items() if one[0].startswith("a/")}
            assert [b["count"] for b in topic["buckets"]] == expected(only, now_ms + 1, start, end, bucket)


async def test_whole_slices_are_not_read(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    known = await fill(server, 3)

    def refuse(*_: object) -> Any:
        raise AssertionError("rows were read")

    monkeypatch.setattr(Reader, "run", refuse)
    said = await asked(server, from_=START_MS, to=START_MS + 100 * DAY_MS, bucket="P100D")
    assert said["total"] == len(known)


@with_settings(shards={"structure_above": 100})
@OPENED
async def test_only_shards_that_can_match_are_read(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in range(3):
        numbers, at = range(part * 500, part * 500 + 500), {"deliver_at": "2026-11-21T12:05:00Z"}
        topics = [f"{kind}/{n}/x" for n in numbers for kind in ("one", "two")]
        await server.batch([{"topic": topic, "payload": 0, **at} for topic in topics])
    read: list[int] = []
    run = Reader.run

    def noted(self: Reader, piece: Any, shard: Any, *bounds: Any) -> Any:
        read.append(shard.structure)
        return run(self, piece, shard, *bounds)

    monkeypatch.setattr(Reader, "run", noted)
    said = await asked(server, topic="one/%2B/x", bucket="P1D")
    assert said["total"] == 1_500
    patterns = {server.app.core.reader.structures.pattern(number) for number in read}
    assert patterns == {"#", "one/+/x"}


async def test_what_has_been_counts_if_it_is_asked_for(server: Running) -> None:
    known = await fill(server, 4)
    await server.pass_time(35 * MINUTE_MS)
    for width in (MINUTE_MS, HOUR_MS):
        query = {"from_": START_MS, "to": START_MS + 2 * HOUR_MS, "bucket": f"{width}ms"}
        said = await asked(server, **query, past="true")
        assert [b["count"] for b in said["buckets"]] == expected(
            known, 0, START_MS, START_MS + 2 * HOUR_MS, width
        )
        assert said["total"] > (await asked(server, **query))["total"]
        topic = await asked(server, **query, past="true", topic="a/%23")
        only = {name: one for name, one in known.items() if one[0].startswith("a/")}
        assert topic["total"] == sum(expected(only, 0, START_MS, START_MS + 2 * HOUR_MS, width))


async def test_a_day_from_now_by_default(server: Running) -> None:
    await server.schedule(deliver_in="90s")
    said = await asked(server)
    assert (len(said["buckets"]), said["buckets"][1]["count"], said["total"]) == (1_440, 1, 1)
    assert said["buckets"][1]["at"] == "2026-11-21T08:01:00.000Z"


@pytest.mark.parametrize(
    ("bucket", "start_ms"), [("PT1M", MINUTE_MS), ("PT90S", MINUTE_MS), ("PT2H", HOUR_MS)]
)
async def test_it_begins_with_the_minute_or_hour_that_has_begun(
    server: Running, bucket: str, start_ms: int
) -> None:
    await server.pass_time(100_001)
    now_ms = server.clock.now_ms
    assert now_ms % MINUTE_MS
    await server.schedule("t", deliver_in=60)
    found = await asked(server, bucket=bucket)
    assert found["from"] == format_ms(now_ms // start_ms * start_ms)
    assert found["total"] == 1
