"""Lists and counts against the dullest right thing: a dict of what was asked, filtered and sorted."""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from server.http import selection
from server.http.turns import Turn, Turns
from server.settings.times import format_ms
from tests.support.soak import first_seed
from timeline.filters import matches

from ..conftest import HOUR_MS, MINUTE_MS, START_MS, Running

LIST = "/v1/messages"


async def page(server: Running, status: int = 200, **query: object) -> Any:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    return (await server.call("GET", f"{LIST}?{text}", status=status)).body


async def everything(server: Running, limit: int = 7, **query: object) -> list[Any]:
    """All messages of a listing, page after page."""
    found: list[Any] = []
    cursor = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        body = await page(server, limit=limit, **query, **more)
        assert len(body["messages"]) <= limit
        found += body["messages"]
        cursor = body["next"]
        if cursor is None:
            return found


@dataclass
class Model:
    """What was asked, by id: topic, due and whether it was cancelled."""

    topics: dict[str, str]
    dues: dict[str, int]
    cancelled: set[str]

    def state(self, name: str, now_ms: int) -> str:
        if name in self.cancelled:
            return "cancelled"
        return "dispatched" if self.dues[name] <= now_ms else "pending"

    def select(self, now_ms: int, state: str, low: int, high: int, topic: str) -> list[str]:
        return [
            name
            for name, due_ms in self.dues.items()
            if low <= due_ms < high
            and state in ("all", self.state(name, now_ms))
            and (not topic or matches(topic, self.topics[name]))
        ]


async def filled(server: Running, seed: int) -> Model:
    """Messages over three hours and three days, some moved, some cancelled, 70 minutes of them passed."""
    chance = random.Random(seed)
    items = [
        {
            "topic": f"{chance.choice('abc')}/{chance.randrange(4)}",
            "payload": n,
            "deliver_in": chance.choice((chance.randrange(1, 180) * 60, chance.randrange(1, 72) * 3600)),
        }
        for n in range(300)
    ]
    ids = await server.batch(items)
    model = Model({}, {}, set())
    for name, wish in zip(ids, items, strict=True):
        model.topics[name] = str(wish["topic"])
        model.dues[name] = START_MS + int(wish["deliver_in"]) * 1_000  # type: ignore[call-overload]
    for name in chance.sample(ids, 40):
        by_s = chance.randrange(1, 200) * 60
        await server.call("PATCH", f"{LIST}/{name}", {"deliver_in": by_s})
        model.dues[name] = START_MS + by_s * 1_000
    model.cancelled = set(chance.sample(ids, 40))
    for name in model.cancelled:
        await server.call("DELETE", f"{LIST}/{name}", status=204)
    await server.pass_time(70 * MINUTE_MS)
    return model


@pytest.mark.long
async def test_lists_and_counts_agree_with_a_model(server: Running) -> None:
    seed = first_seed()
    print(f"seed {seed}")
    model = await filled(server, seed)
    now_ms, chance = server.clock.now_ms, random.Random(seed)
    ranges = [(0, 1 << 47)]
    for _ in range(5):
        low = START_MS + chance.randrange(0, 80) * HOUR_MS // 20
        ranges.append((low, low + chance.randrange(0, 400) * 15 * MINUTE_MS))
    for low, high in ranges:
        bounds = {} if not low else {"due_from": format_ms(low), "due_to": format_ms(high)}
        for state in ("pending", "dispatched", "cancelled", "expired", "all"):
            for topic in ("", "a/%2B", "%2B/3", "%23"):
                query: dict[str, object] = {"state": state, **bounds, **({"topic": topic} if topic else {})}
                plain = topic.replace("%2B", "+").replace("%23", "#")
                expected = model.select(now_ms, state, low, high, plain)
                found = await everything(server, limit=50, **query)
                assert sorted(m["id"] for m in found) == sorted(expected), query
                counted = await page(server, limit=1, count="true", **query)
                assert counted["count"] == len(expected), query
    assert server.app.core.opened.waiting.pending == len(model.select(now_ms, "pending", 0, 1 << 47, ""))


async def test_an_ordering_key_is_shown_and_selects(server: Running) -> None:
    mine = [await server.schedule(ordering_key="c-1", deliver_in="1h") for _ in range(2)]
    await server.schedule(ordering_key="c-2", deliver_in="1h")
    await server.schedule("c-1", deliver_in="1h")
    found = (await server.call("GET", "/v1/messages?ordering_key=c-1&count=true")).body
    assert ([m["id"] for m in found["messages"]], found["count"]) == (mine, 2)
    assert found["messages"][0]["ordering_key"] == "c-1"
    await server.call("PATCH", f"/v1/messages/{mine[0]}", {"deliver_in": "2h"})
    found = (await server.call("GET", "/v1/messages?ordering_key=c-1")).body
    assert [m["id"] for m in found["messages"]] == [mine[1], mine[0]]


async def test_pages_are_in_order_and_complete(server: Running) -> None:
    ids = [await server.schedule(f"t/{n}", deliver_in=600 - 37 * (n % 11)) for n in range(30)]
    found = await everything(server, limit=4)
    dues = [message["deliver_at"] for message in found]
    assert dues == sorted(dues)
    assert {message["id"] for message in found} == set(ids)
    assert len(found) == 30
    alone = (await server.call("GET", f"{LIST}/{found[0]['id']}")).body
    assert found[0] | {"outcome": "pending"} == alone


async def test_the_default_is_a_hundred_pending(server: Running) -> None:
    await server.batch([{"topic": "a", "payload": n, "deliver_in": 60} for n in range(120)])
    first = await server.call("GET", LIST)
    assert len(first.body["messages"]) == 100
    assert "count" not in first.body
    rest = await page(server, cursor=first.body["next"])
    assert (len(rest["messages"]), rest["next"]) == (20, None)


async def test_states_with_their_times(server: Running) -> None:
    await server.schedule("t/expired", deliver_in=60, expires_in=1)
    await server.schedule("t/sent", deliver_in=60, expires_in=600)
    await server.schedule("t/plain", deliver_in=61)
    gone = await server.schedule("t/gone", deliver_in=62)
    await server.call("DELETE", f"{LIST}/{gone}", status=204)
    await server.schedule("t/later", deliver_in=600)
    await server.pass_time(2 * MINUTE_MS)
    found = {m["topic"][2:]: m for m in await everything(server, state="all")}
    assert {name: m["state"] for name, m in found.items()} == {
        "expired": "expired",
        "sent": "dispatched",
        "plain": "dispatched",
        "gone": "cancelled",
        "later": "pending",
    }
    assert found["sent"]["dispatched_at"] == found["plain"]["dispatched_at"] == "2026-11-21T08:02:00.000Z"
    for state, count in (("pending", 1), ("dispatched", 2), ("cancelled", 1), ("expired", 1), ("all", 5)):
        assert (await page(server, state=state, count="true"))["count"] == count


async def test_each_message_has_the_time_of_its_own_dispatch(server: Running) -> None:
    for minute in (1, 2, 3):
        await server.schedule(f"t/{minute}", deliver_in=minute * 60)
    for _ in range(3):
        await server.pass_time(MINUTE_MS + 10)
    await server.schedule("t/now")
    times = [m["dispatched_at"][14:] for m in await everything(server, state="dispatched")]
    assert times[:3] == ["01:00.010Z", "02:00.020Z", "03:00.030Z"]


async def test_messages_that_wait_for_the_clock_are_pending_too(server: Running) -> None:
    await server.pass_time(HOUR_MS)
    server.clock.now_ms -= HOUR_MS
    names = [await server.schedule(f"t/{n}", deliver_in=60 * n) for n in (1, 2, 3, 90)]
    await server.call("DELETE", f"{LIST}/{names[1]}", status=204)
    assert [m["id"] for m in await everything(server, limit=1)] == [names[0], names[2], names[3]]
    assert [m["id"] for m in await everything(server, state="cancelled")] == [names[1]]
    assert (await page(server, count="true"))["count"] == 3
    until = await page(server, count="true", due_to="2026-11-21T08:03:00Z")
    assert until["count"] == len(until["messages"]) == 1
    topic = await page(server, count="true", topic="t/3", due_from="2026-11-21T08:00:00Z")
    assert topic["count"] == 1


async def test_a_page_looks_at_so_many_rows_and_no_more(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "STEP_ROWS", 10)
    monkeypatch.setattr(selection, "LOOK_ROWS", 30)
    monkeypatch.setattr(selection, "COUNT_STEP_ROWS", 7)
    monkeypatch.setattr(selection, "TOPICS_MAX", 5)
    items = [{"topic": f"t/{n}", "payload": n, "deliver_in": 60} for n in range(100)]
    await server.batch([*items, {"topic": "last", "payload": 1, "deliver_in": 90}])
    first = await page(server, topic="last")
    assert first["messages"] == []
    assert first["next"] is not None
    assert [m["topic"] for m in await everything(server, topic="last")] == ["last"]
    assert len(await everything(server)) == 101
    assert (await page(server, topic="t/%23", count="true"))["count"] == 100


async def test_a_page_carries_so_many_bytes_and_no_more(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "PAGE_BYTES", 1_000)
    for n in range(6):
        await server.schedule(payload=f"{n}" * 400, deliver_in=60)
    body = await page(server)
    assert len(body["messages"]) == 3
    assert len(await everything(server, limit=100)) == 6


async def test_nobody_waits_for_an_abandoned_count(server: Running) -> None:
    query = selection.Query(selection.START, selection.END, "#", "all", 1)
    await server.schedule(deliver_in=60)
    turn = Turn(Turns(server.clock, max_bytes=1), "", server.clock)
    assert await selection.count(server.app.status.timeline, query, None, turn, lambda: True) == 0
    assert await selection.count(server.app.status.timeline, query, None, turn, lambda: False) == 1


async def test_a_parameter_stands_once(server: Running) -> None:
    answer = await server.call("GET", f"{LIST}?limit=1&limit=2", status=422)
    assert answer.body["errors"] == [{"field": "limit", "detail": "must appear only once"}]


async def test_pages_are_short_while_all_have_gathered_too_much(server: Running) -> None:
    """Each gives one message at least, and none is left out."""
    wanted = {await server.schedule(deliver_in=60 + number) for number in range(5)}
    turns = Turns(server.clock, max_bytes=1)
    start, found = selection.START, list[str]()
    for _ in wanted:
        query = selection.Query(start, selection.END, "#", "pending", 100)
        turn = Turn(turns, "", server.clock)
        views, last, _ = await selection.Selection(server.app.status.timeline, query, None).page(turn)
        found += [view.id for view in views]
        assert len(views) == 1
        assert turns.kept_bytes == 0
        start = selection.Position((last or 0) + 1)
    assert last is None
    assert set(found) == wanted


@pytest.mark.parametrize("state", ["pending", "all"])
async def test_pages_while_rows_move_appear_and_vanish(server: Running, state: str) -> None:
    """Ten messages, one a minute, and what becomes of each between the pages:

    1     moved far behind the cursor: shown before          7   moved to and fro: once
    2     cancelled: shown before                            8   cancelled: not pending
    5     moved before the cursor: once, as it is now        9   its time passes: not pending
    6     moved beyond the end: once                        10   as it was
    """
    ids = ["", *[await server.schedule(deliver_in=60 * n, topic=f"t/{n}") for n in range(1, 11)]]
    first = await page(server, limit=4, state=state)
    assert [one["id"] for one in first["messages"]] == ids[1:5]
    for n, wait in ((1, 7_200), (5, 30), (6, 7_200), (7, 9_000), (7, 400)):
        await server.call("PATCH", f"/v1/messages/{ids[n]}", {"deliver_in": wait})
    for n in (2, 8):
        await server.call("DELETE", f"/v1/messages/{ids[n]}", status=204)
    await server.schedule("new", deliver_in=700)
    second = await page(server, limit=3, state=state, cursor=first["next"])
    assert [one["id"] for one in second["messages"]] == ids[5:8]
    assert [one["deliver_at"] for one in second["messages"]] == [
        format_ms(START_MS + wait * 1_000) for wait in (30, 7_200, 400)
    ]
    await server.pass_time(570_000)
    third = await page(server, limit=4, state=state, cursor=second["next"])
    left = {"pending": [ids[10]], "all": [ids[8], ids[9], ids[10]]}[state]
    assert ([one["id"] for one in third["messages"]], third["next"]) == (left, None)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
async def test_any_changes_between_pages(server: Running, seed: int) -> None:
    """What is pending from the first page to the last comes once, what was made since never."""
    chance = random.Random(seed)
    model = await filled(server, seed)
    await server.pass_time(1_000)
    there = set(model.select(server.clock.now_ms, "pending", 0, 1 << 48, ""))
    left, seen, cursor = set(there), list[str](), ""
    while cursor is not None:
        answer = await page(server, limit=chance.randrange(1, 60), **({"cursor": cursor} if cursor else {}))
        seen += [one["id"] for one in answer["messages"]]
        cursor = answer["next"]
        for name in chance.sample(sorted(left), 12):
            if chance.random() < 0.2:
                await server.call("DELETE", f"{LIST}/{name}", status=204)
                left.discard(name)
            else:
                await server.call("PATCH", f"{LIST}/{name}", {"deliver_in": chance.randrange(10**3, 10**5)})
        await server.schedule("new", deliver_in=chance.randrange(10**5))
        await server.pass_time(chance.randrange(1_000))
    assert len(seen) == len(set(seen))
    assert left <= set(seen) <= there


async def test_a_message_that_is_moved_after_its_page_was_made_comes_though_its_place_has_passed(
    server: Running,
) -> None:
    ids = [await server.schedule(deliver_in=60 * n) for n in range(1, 4)]
    first = await page(server, limit=1)
    await server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": "1h"})
    await server.pass_time(150_000)
    second = await page(server, limit=5, cursor=first["next"])
    assert ([one["id"] for one in second["messages"]], second["next"]) == ([ids[1], ids[2]], None)


async def test_moves_before_and_after_the_first_page_in_one_millisecond_show_a_message_once(
    server: Running,
) -> None:
    ids = [await server.schedule(deliver_in=60 * n) for n in range(1, 4)]
    await server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": 200})
    first = await page(server, limit=1)
    await server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": 300})
    second = await page(server, limit=5, cursor=first["next"])
    assert [one["id"] for one in second["messages"]] == [ids[2], ids[1]]


async def test_what_leaves_the_range_is_not_shown(server: Running) -> None:
    ids = [await server.schedule(deliver_in=60 * n) for n in range(1, 5)]
    end = START_MS + HOUR_MS
    first = await page(server, limit=1, due_to=end)
    await server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": "2h"})
    await server.call("PATCH", f"/v1/messages/{ids[2]}", {"deliver_in": "59m"})
    second = await page(server, limit=5, due_to=end, cursor=first["next"])
    assert [one["id"] for one in second["messages"]] == [ids[2], ids[3]]
