"""Shared subscriptions over HTTP: shown with their members, set back for all of them, no sessions."""

from urllib.parse import quote

import pytest

from ..conftest import MINUTE_MS, START, Running, Start, with_settings

SESSIONS = "/v1/sessions"
TEXT = "$share/g/a/#"
GROUPS = "/v1/groups"
PATH = f"{GROUPS}/g"


def _ack_all(server: Running, *names: str) -> None:
    """What members have in flight is acked."""
    for name in names:
        member = server.session(name)
        for flight in list(member.session.flights.values()):
            assert flight.loan is not None
            server.app.core.settling.ack(member, flight.packet_id)


async def test_a_group_is_shown_with_its_members(server: Running) -> None:
    await server.connect("w1", TEXT)
    second, _ = await server.connect("w2", TEXT, "other")
    server.app.core.clients.leave(second, is_clean=False)
    for n in range(3):
        await server.schedule("a/x", deliver_in=60 * (n + 1))
    await server.pass_time(5 * MINUTE_MS)
    listed = (await server.call("GET", SESSIONS)).body
    assert [s["client_id"] for s in listed["sessions"]] == ["w1", "w2"]
    (body,) = (await server.call("GET", GROUPS)).body["groups"]
    assert (await server.call("GET", PATH)).body["groups"] == [body]
    assert body["position"]["at"] == "2026-11-21T08:05:00.000Z"
    assert (body["name"], body["filter"], body["expiry"]) == ("g", "a/#", 7 * 86_400)
    assert (body["undone"]["in_flight"], body["in_flight"], body["delivered"]) == (3, 3, 3)
    assert body["members"] == [
        {"client_id": "w1", "connected": True, "qos": 1, "in_flight": 3},
        {"client_id": "w2", "connected": False, "qos": 1, "in_flight": 0},
    ]


@pytest.mark.parametrize(
    ("method", "verb", "body"),
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", ":replay", {"from": "1h"}),
        ("POST", ":skip", {"to": "now"}),
    ],
)
async def test_a_group_is_no_session(server: Running, method: str, verb: str, body: object) -> None:
    await server.connect("w", TEXT)
    for name in (TEXT, "$share/nobody/t"):
        path = f"{SESSIONS}/{quote(name, safe='')}{verb}"
        refused = await server.call(method, path, body, status=404)
        assert (refused.slug, "/v1/groups" in refused.body["detail"]) == ("not-found", True)
    assert len((await server.call("GET", PATH)).body["groups"]) == 1


async def test_a_group_that_is_away_is_behind_and_its_members_are_not(server: Running) -> None:
    member, _ = await server.connect("w", TEXT)
    await server.schedule("a/0")
    await server.app.quiet()
    server.app.core.clients.leave(member, is_clean=True)
    await server.schedule("a/1", deliver_in=60)
    await server.schedule("b", deliver_in=120)
    await server.pass_time(5 * MINUTE_MS)
    (session,) = (await server.call("GET", SESSIONS)).body["sessions"]
    (group,) = (await server.call("GET", GROUPS)).body["groups"]
    # Given back, it waits for a member.
    assert (group["members"][0]["connected"], group["in_flight"]) == (
        False,
        1,
    )
    assert (group["lag_messages"], group["lag_seconds"], session["lag_messages"]) == (1, 240.0, 0)


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
    (body,) = (await server.call("POST", f"{PATH}:replay", {"from": since})).body["groups"]
    assert body["name"] == "g"
    await server.app.quiet()
    assert sorted(links[0].topics + links[1].topics) == sorted(["a/1", "a/2", *topics])
    await server.schedule("a/new")
    await server.app.quiet()
    assert (links[0].topics + links[1].topics).count("a/new") == 1


async def test_a_group_set_back_is_so_after_a_restart(start: Start) -> None:
    async with start() as server:
        member, _ = await server.connect("w", TEXT)
        await server.schedule("a/1", deliver_in=60)
        await server.pass_time(5 * MINUTE_MS)
        _ack_all(server, "w")
        server.app.core.clients.leave(member, is_clean=False)
        (body,) = (await server.call("POST", f"{PATH}:replay", {"from": "PT5M"})).body["groups"]
        assert (body["position"], body["lag_messages"]) == ({"at": START, "seq": 0}, 1)
    async with start() as server:
        (body,) = (await server.call("GET", PATH)).body["groups"]
        assert (body["position"], body["lag_messages"]) == ({"at": START, "seq": 0}, 1)
        _, link = await server.connect("w")
        assert link.topics == ["a/1"]


async def test_a_group_with_no_expiry_goes_with_the_last_session_that_holds_it(server: Running) -> None:
    await server.connect("w", TEXT)
    await server.call("PUT", "/v1/groups/g", {"filter": "a/#", "expiry": 0})
    await server.call("GET", PATH)
    await server.call("DELETE", f"{SESSIONS}/w", status=204)
    for method, body in (("GET", None), ("DELETE", None), ("POST", {"from": "1h"})):
        path = f"{PATH}:replay" if body else PATH
        assert (await server.call(method, path, body, status=404)).slug == "not-found"


@with_settings(mqtt={"deny_subscribe": ("a/secret",)})
async def test_what_nobody_may_subscribe_to_is_no_lag(server: Running) -> None:
    subscriber, _ = await server.connect("w", "a/#")
    server.app.core.clients.leave(subscriber, is_clean=False)
    await server.schedule("a/secret")
    await server.schedule("a/open")
    await server.app.quiet()
    assert (await server.call("GET", f"{SESSIONS}/w")).body["lag_messages"] == 1


@with_settings(limits={"retained": 1})
async def test_what_was_not_retained_is_counted(server: Running) -> None:
    for topic, status in (("a", 201), ("b", 429), ("c", 429)):
        body = {"topic": topic, "payload": "x", "retain": True}
        await server.call("POST", "/v1/messages", body, status=status)
    await server.app.quiet()
    text = (await server.call("GET", "/metrics")).body.decode()

    assert "fasti_retained_refused_total 2.0" in text
    assert 'fasti_limit_used{name="limits.retained"} 1.0' in text
    assert "fasti_flights_lost_total 0.0" in text
