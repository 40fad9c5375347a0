"""Shared subscriptions over HTTP: shown among the sessions, set back for all their members."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from server.engine.clock import SimulatedClock
from server.settings.config import Config

from ..conftest import MINUTE_MS, START, Running, running

SESSIONS = "/v1/sessions"
TEXT = "$share/g/a/#"
PATH = f"{SESSIONS}/{quote(TEXT, safe='')}"


def _ack_all(server: Running, *names: str) -> None:
    """What members have in flight is acked."""
    for name in names:
        member = server.app.core.sessions.get(name)
        assert member is not None
        for flight in list(member.session.flights.values()):
            member.session.ack(flight.packet_id)
            assert flight.loan is not None
            server.app.core.groups.acked(member, (flight,))


async def test_a_group_stands_among_the_sessions(server: Running) -> None:
    await server.connect("w1", TEXT)
    second, _ = await server.connect("w2", TEXT, "other")
    server.app.core.clients.leave(second, is_clean=False)
    for n in range(3):
        await server.schedule("a/x", deliver_in=60 * (n + 1))
    await server.pass_time(5 * MINUTE_MS)
    listed = (await server.call("GET", SESSIONS)).body
    assert [s["client_id"] for s in listed["sessions"]] == [TEXT, "w1", "w2"]
    assert all(("members" in s) == (s["client_id"] == TEXT) for s in listed["sessions"])
    body = (await server.call("GET", PATH)).body
    assert body == listed["sessions"][0]
    read = body.pop("read_position")
    assert read["at"] == "2026-11-21T08:05:00.000Z"
    assert (body.pop("undone")["in_flight"], body.pop("incarnation") > 0) == (body["in_flight"], True)
    assert body == {
        "client_id": TEXT,
        "connected": True,
        "members": [
            {"client_id": "w1", "connected": True, "qos": 1, "in_flight": 3},
            {"client_id": "w2", "connected": False, "qos": 1, "in_flight": 0},
        ],
        "expiry_s": 7 * 86_400,
        "subscriptions": [{"filter": "a/#", "qos": 2, "since": START}],
        "lag_messages": 0,
        "lag_messages_is_exact": True,
        "lag_seconds": 0.0,
        "in_flight": 3,
        "delivered": 3,
    }


async def test_a_group_that_is_away_is_behind_and_its_members_are_not(server: Running) -> None:
    member, _ = await server.connect("w", TEXT)
    await server.schedule("a/0")
    await server.app.quiet()
    server.app.core.clients.leave(member, is_clean=True)
    await server.schedule("a/1", deliver_in=60)
    await server.schedule("b", deliver_in=120)
    await server.pass_time(5 * MINUTE_MS)
    group, session = (await server.call("GET", SESSIONS)).body["sessions"]
    assert (group["connected"], group["in_flight"]) == (False, 1)  # given back, it waits for a member
    assert (group["lag_messages"], group["lag_seconds"], session["lag_messages"]) == (1, 240.0, 0)


async def test_groups_come_in_pages_with_the_sessions(server: Running) -> None:
    for name in ("!", "w"):
        await server.connect(name, TEXT, "$share/h/a/#")
    first = (await server.call("GET", f"{SESSIONS}?limit=2")).body
    assert [s["client_id"] for s in first["sessions"]] == ["!", TEXT]
    rest = (await server.call("GET", f"{SESSIONS}?limit=2&cursor={quote(first['next'])}")).body
    assert ([s["client_id"] for s in rest["sessions"]], rest["next"]) == (["$share/h/a/#", "w"], None)


@pytest.mark.parametrize(
    ("since", "topics"), [("PT5M", ["a/1", "a/2"]), ("2026-11-21T08:02:00Z", ["a/2"]), ("0s", [])]
)
async def test_a_group_is_set_back_for_all_its_members(
    server: Running, since: str, topics: list[str]
) -> None:
    links = [(await server.connect(name, TEXT))[1] for name in ("w1", "w2")]
    for n in (1, 2):
        await server.schedule(f"a/{n}", deliver_in=60 * n)
    await server.pass_time(5 * MINUTE_MS)
    assert sorted(links[0].topics + links[1].topics) == ["a/1", "a/2"]
    _ack_all(server, "w1", "w2")
    body = (await server.call("POST", f"{PATH}:replay", {"from": since})).body
    assert body["client_id"] == TEXT
    await server.app.quiet()
    assert sorted(links[0].topics + links[1].topics) == sorted(["a/1", "a/2", *topics])
    await server.schedule("a/new")
    await server.app.quiet()
    assert (links[0].topics + links[1].topics).count("a/new") == 1


async def test_a_group_set_back_is_so_after_a_restart(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    async with running(tmp_path, config, clock) as server:
        member, _ = await server.connect("w", TEXT)
        await server.schedule("a/1", deliver_in=60)
        await server.pass_time(5 * MINUTE_MS)
        _ack_all(server, "w")
        server.app.core.clients.leave(member, is_clean=False)
        body = (await server.call("POST", f"{PATH}:replay", {"from": "PT5M"})).body
        assert (body["read_position"], body["lag_messages"]) == ({"at": START, "seq": 0}, 1)
    async with running(tmp_path, config, clock) as server:
        body = (await server.call("GET", PATH)).body
        assert (body["read_position"], body["lag_messages"]) == ({"at": START, "seq": 0}, 1)
        _, link = await server.connect("w")
        assert link.topics == ["a/1"]


async def test_a_group_is_not_deleted_as_a_session_and_with_no_expiry_goes_with_the_last_one(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    async with running(tmp_path, config, clock) as server:
        await server.connect("w", TEXT)
        await server.call("PUT", "/v1/groups/g", {"filter": "a/#", "expiry": 0})
        assert (await server.call("DELETE", PATH, status=409)).slug == "wrong-state"
        await server.call("GET", PATH)
        await server.call("DELETE", f"{SESSIONS}/w", status=204)
        for method, body in (("GET", None), ("DELETE", None), ("POST", {"from": "1h"})):
            path = f"{PATH}:replay" if body else PATH
            assert (await server.call(method, path, body, status=404)).slug == "not-found"


async def test_what_nobody_may_subscribe_to_is_no_lag(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    denied = replace(config, mqtt=replace(config.mqtt, deny_subscribe=("a/secret",)))
    async with running(tmp_path, denied, clock) as server:
        subscriber, _ = await server.connect("w", "a/#")
        server.app.core.clients.leave(subscriber, is_clean=False)
        await server.schedule("a/secret")
        await server.schedule("a/open")
        await server.app.quiet()
        assert (await server.call("GET", f"{SESSIONS}/w")).body["lag_messages"] == 1


async def test_what_was_not_retained_is_counted(tmp_path: Path, clock: SimulatedClock) -> None:
    few = replace(Config(), limits=replace(Config().limits, retained=1))
    async with running(tmp_path, few, clock) as server:
        for topic, status in (("a", 201), ("b", 429), ("c", 429)):
            body = {"topic": topic, "payload": "x", "retain": True}
            await server.call("POST", "/v1/messages", body, status=status)
        await server.app.quiet()
        text = (await server.call("GET", "/metrics")).body.decode()
    assert "fasti_retained_refused_total 2.0" in text
    assert 'fasti_limit_used{name="limits.retained"} 1.0' in text
    assert "fasti_flights_lost_total 0.0" in text
