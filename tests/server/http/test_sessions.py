"""Sessions over HTTP: where they stand, how far behind, set back, forgotten."""

import pytest

from server.delivery.link import Closing
from server.engine.commit_hook import Done
from server.engine.writer import Decide
from server.http import backlog
from server.http.routes import sessions
from shards.store import Table
from tests.support.build import OPENED
from timeline.position import before

from ..conftest import HOUR_MS, MINUTE_MS, START, START_MS, Running, Start

SESSIONS = "/v1/sessions"


async def test_a_session_that_keeps_up(server: Running) -> None:
    await server.connect("audit/1", "a/#", "b")
    await server.schedule("a/x", deliver_in=60)
    await server.pass_time(MINUTE_MS)
    body = (await server.call("GET", f"{SESSIONS}/audit%2F1")).body
    read = body.pop("read_position")
    assert body.pop("position") == read
    assert read["at"] == "2026-11-21T08:01:00.000Z"
    assert isinstance(read["seq"], int)
    undone = body.pop("undone")
    assert (undone["lag"], undone["in_flight"], undone["retries"]) == (0, body["in_flight"], 0)
    assert body.pop("incarnation") > 0
    assert body == {
        "name": "audit/1",
        "client_id": "audit/1",
        "connected": True,
        "connected_at": START,
        "expiry": 3_600,
        "expiry_s": 3_600,
        "subscriptions": [
            {"filter": "a/#", "qos": 1, "since": START},
            {"filter": "b", "qos": 1, "since": START},
        ],
        "lag_messages": 0,
        "lag_messages_is_exact": True,
        "lag_seconds": 0.0,
        "in_flight": 1,
        "delivered": 1,
        "failed": 0,
        "dead_letters": 0,
    }


async def test_of_large_messages_fewer_are_counted(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded in bytes, too: a thousand of 250 KB took 60 ms of the loop."""
    monkeypatch.setattr(sessions, "LIST_LOOK_ROWS", 100)
    monkeypatch.setattr(backlog, "LOOK_ROW_BYTES", 10)
    subscriber, _ = await server.connect("away", "a/#")
    server.app.core.clients.leave(subscriber, is_clean=False)
    for _ in range(5):
        await server.schedule("a/x", "x" * 400, deliver_in=60)
    await server.pass_time(2 * MINUTE_MS)
    (away,) = (await server.call("GET", SESSIONS)).body["sessions"]
    assert (away["lag_messages"], away["lag_messages_is_exact"]) == (3, False)
    one = (await server.call("GET", f"{SESSIONS}/away")).body
    assert (one["lag_messages"], one["lag_messages_is_exact"]) == (5, True)


async def test_those_of_a_page_are_found_in_steps(server: Running, turns_taken: list[str]) -> None:
    """Of 100,000 sessions a page took 66 ms of the loop, however short."""
    for name in ("c", "a", "d", "b"):
        await server.connect(name, "t")
    page = (await server.call("GET", f"{SESSIONS}?limit=2")).body
    assert ([one["client_id"] for one in page["sessions"]], page["next"]) == (["a", "b"], "b")
    assert len(turns_taken) == (1 + 4) + 2
    page = (await server.call("GET", f"{SESSIONS}?limit=2&cursor=b")).body
    assert ([one["client_id"] for one in page["sessions"]], page["next"]) == (["c", "d"], None)


async def test_one_that_is_away_falls_behind_by_what_it_wants(server: Running) -> None:
    subscriber, _ = await server.connect("away", "a/#")
    server.app.core.clients.leave(subscriber, is_clean=False)
    for n in range(5):
        await server.schedule("a/x", deliver_in=60 * (n + 1))
        await server.schedule("other", deliver_in=60 * (n + 1))
    gone = await server.schedule("a/gone", deliver_in=30)
    await server.call("DELETE", f"/v1/messages/{gone}", status=204)
    await server.pass_time(4 * MINUTE_MS)
    body = (await server.call("GET", f"{SESSIONS}/away")).body
    assert (body["connected"], body["left_at"]) == (False, START)
    assert "connected_at" not in body
    assert (body["lag_messages"], body["lag_messages_is_exact"], body["lag_seconds"]) == (4, True, 180.0)
    assert body["read_position"]["at"] == START


async def test_what_nobody_sent_is_no_lag(server: Running) -> None:
    subscriber, _ = await server.connect("away", "a/#")
    bare, _ = await server.connect("bare")
    server.app.core.clients.leave(subscriber, is_clean=False)
    server.app.core.clients.leave(bare, is_clean=False)
    await server.schedule("other")
    await server.pass_time(HOUR_MS)
    for body in (await server.call("GET", SESSIONS)).body["sessions"]:
        assert (body["lag_messages"], body["lag_seconds"]) == (0, 0.0)


async def test_lag_is_counted_only_so_far(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LOOK_ROWS", 4)
    monkeypatch.setattr(sessions, "LIST_LOOK_ROWS", 2)
    subscriber, _ = await server.connect("away", "a/#")
    server.app.core.clients.leave(subscriber, is_clean=False)
    for n in range(6):
        await server.schedule("other" if n < 3 else "a/x", deliver_in=60 * (n + 1))
    await server.pass_time(10 * MINUTE_MS)
    one = (await server.call("GET", f"{SESSIONS}/away")).body
    assert (one["lag_messages"], one["lag_messages_is_exact"], one["lag_seconds"]) == (1, False, 360.0)
    (listed,) = (await server.call("GET", SESSIONS)).body["sessions"]
    assert (listed["lag_messages"], listed["lag_messages_is_exact"], listed["lag_seconds"]) == (
        0,
        False,
        600.0,
    )


async def test_sessions_come_in_pages_by_name(server: Running) -> None:
    for name in ("c", "a/1", "b"):
        await server.connect(name)
    first = (await server.call("GET", f"{SESSIONS}?limit=2")).body
    assert [s["client_id"] for s in first["sessions"]] == ["a/1", "b"]
    rest = (await server.call("GET", f"{SESSIONS}?limit=2&cursor={first['next']}")).body
    assert ([s["client_id"] for s in rest["sessions"]], rest["next"]) == (["c"], None)


async def test_a_session_is_forgotten(server: Running) -> None:
    _, link = await server.connect("c:1", "#")
    await server.call("DELETE", f"{SESSIONS}/c%3A1", status=204)
    assert link.closed == [Closing.DROPPED]
    assert server.app.core.reader.get(Table.SESSIONS, b"c:1") is None
    assert server.app.core.reader.get(Table.CURSORS, b"c:1") is None
    assert not len(server.app.core.router)
    await server.call("GET", f"{SESSIONS}/c%3A1", status=404)
    await server.call("DELETE", f"{SESSIONS}/c%3A1", status=404)
    await server.schedule()
    await server.app.quiet()
    assert not link.sent


async def test_a_forgotten_session_stays_forgotten_after_a_restart(start: Start) -> None:
    async with start() as server:
        await server.connect("gone", "#")
        await server.connect("stays", "#")
        await server.call("DELETE", f"{SESSIONS}/gone", status=204)
    async with start() as server:
        body = (await server.call("GET", SESSIONS)).body
        assert [s["client_id"] for s in body["sessions"]] == ["stays"]


async def test_a_session_that_is_dropped_leaves_no_rows(server: Running) -> None:
    await server.connect("c", "#")
    assert server.app.core.reader.get(Table.SESSIONS, b"c") is not None
    server.app.core.clients.drop("c")
    await server.app.quiet()
    assert server.app.core.reader.get(Table.SESSIONS, b"c") is None
    assert server.app.core.reader.get(Table.CURSORS, b"c") is None
    await server.call("DELETE", f"{SESSIONS}/c", status=404)


@pytest.mark.parametrize(
    ("since", "topics"),
    [
        ("2026-11-21T08:00:00Z", ["t/1", "t/2", "t/3"]),
        ("2026-11-21T08:02:00Z", ["t/2", "t/3"]),
        ("PT3M", ["t/2", "t/3"]),
        ("119s", []),
        ("P10000D", ["t/1", "t/2", "t/3"]),
        ("2027-01-01T00:00:00Z", []),
    ],
)
async def test_a_connected_session_reads_again_from_where_it_is_set(
    server: Running, since: str, topics: list[str]
) -> None:
    subscriber, link = await server.connect("c", "t/#")
    for n in (1, 2, 3):
        await server.schedule(f"t/{n}", deliver_in=60 * n)
    await server.pass_time(5 * MINUTE_MS)
    assert link.topics == ["t/1", "t/2", "t/3"]
    for packet_id in list(subscriber.session.flights):
        server.app.core.settling.ack(subscriber, packet_id)  # what is in flight does not come twice
    body = (await server.call("POST", f"{SESSIONS}/c:replay", {"from": since})).body
    assert body["client_id"] == "c"
    await server.app.quiet()
    assert link.topics[3:] == topics
    await server.schedule("t/new")
    await server.app.quiet()
    assert link.topics[-1] == "t/new"


async def test_a_session_set_back_is_so_after_a_restart(start: Start) -> None:
    async with start() as server:
        subscriber, _ = await server.connect("c", "t/#")
        await server.schedule("t/1", deliver_in=60)
        await server.pass_time(5 * MINUTE_MS)
        for packet_id in list(subscriber.session.flights):
            server.app.core.settling.ack(subscriber, packet_id)
        server.app.core.clients.leave(subscriber, is_clean=False)
        body = (await server.call("POST", f"{SESSIONS}/c:replay", {"from": "PT5M"})).body
        assert (body["read_position"], body["lag_messages"]) == ({"at": START, "seq": 0}, 1)
    async with start() as server:
        body = (await server.call("GET", f"{SESSIONS}/c")).body
        assert (body["read_position"], body["lag_messages"]) == ({"at": START, "seq": 0}, 1)


async def test_what_it_has_in_flight_is_not_behind_when_it_is_set_back(server: Running) -> None:
    subscriber, _ = await server.connect("c", "t/#")
    await server.schedule("t/1", deliver_in=60)
    await server.pass_time(5 * MINUTE_MS)
    server.app.core.clients.leave(subscriber, is_clean=False)
    body = (await server.call("POST", f"{SESSIONS}/c:replay", {"from": "PT5M"})).body
    assert (body["read_position"], body["lag_messages"]) == ({"at": START, "seq": 0}, 0)
    assert body["in_flight"] == 1


async def test_a_session_that_is_not_stored_leaves_no_rows_behind(server: Running) -> None:
    await server.connect("c", "#", expiry_s=0)
    await server.call("POST", f"{SESSIONS}/c:replay", {"from": START})
    assert server.app.core.reader.get(Table.SESSIONS, b"c") is None


async def test_what_has_been_dropped_is_not_asked_for(server: Running) -> None:
    subscriber, _ = await server.connect("c", "#")
    server.app.core.clients.leave(subscriber, is_clean=False)
    server.app.core.directory.floor = before(START_MS - MINUTE_MS)
    body = (await server.call("POST", f"{SESSIONS}/c:replay", {"from": "P1D"})).body
    assert body["read_position"] == {"at": "2026-11-21T07:59:00.000Z", "seq": 0}


async def test_who_is_not_there_is_not_found(server: Running) -> None:
    for method, path, body in (
        ("GET", "nobody", None),
        ("DELETE", "nobody", None),
        ("POST", "nobody:replay", {"from": "1h"}),
    ):
        assert (await server.call(method, f"{SESSIONS}/{path}", body, status=404)).slug == "not-found"


@OPENED
async def test_one_that_goes_while_it_is_set_back_is_not_found(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.connect("c", "#")
    writer = server.app.core.writer
    submit = writer.submit

    def late(decide: Decide, done: Done, *, cost: int, size: int, owner: str) -> None:
        if cost:  # a heartbeat has none
            monkeypatch.undo()
            server.app.core.clients.drop("c")
        submit(decide, done, cost=cost, size=size, owner=owner)

    monkeypatch.setattr(writer, "submit", late)
    await server.call("POST", f"{SESSIONS}/c:replay", {"from": "1h"}, status=404)
