"""`/v1/groups`: made ahead of any member, shown, changed, paused, set back, ended."""

import pytest

from server.delivery.membership import END_MEMBERS
from shards.store import Table

from ..conftest import MINUTE_MS, START, TOGETHER, Running, Start, with_settings
from .conftest import Keyed, connected

GROUPS = "/v1/groups"
ONE = f"{GROUPS}/workers"
TEXT = "$share/workers/jobs/#"
KEY = b"\0share/" + TEXT.encode()


async def made(server: Running, status: int = 201, **wish: object) -> dict[str, object]:
    body = {"filter": "jobs/#", **wish}
    answer: dict[str, object] = (await server.call("PUT", ONE, body, status=status)).body
    return answer


async def test_a_group_is_made_ahead_of_any_member_and_keeps_what_comes(start: Start) -> None:
    async with start() as server:
        answer = await server.call("PUT", ONE, {"filter": "jobs/#"}, status=201)
        assert answer.headers["Location"] == "/v1/groups/workers?filter=jobs%2F%23"
        position = answer.body.pop("position")
        assert position["at"] == START
        nothing = {"lag": 0, "in_flight": 0, "retries": 0, "next_retry_at": None, "oldest_at": None}
        assert answer.body.pop("undone") == nothing
        assert answer.body.pop("incarnation") > 0
        assert answer.body == {
            "name": "workers",
            "filter": "jobs/#",
            "state": "active",
            "members": [],
            "left_at": START,
            "lag_messages": 0,
            "lag_messages_is_exact": True,
            "lag_seconds": 0.0,
            "in_flight": 0,
            "delivered": 0,
            "failed": 0,
            "dead_letters": 0,
            "ack_timeout": 0.0,
            "max_attempts": 20,
            "backoff": [1.0, 5.0, 30.0, 300.0, 1_800.0, 3_600.0],
            "expiry": "never",
            "rate": 0.0,
            "order": False,
            "on_dead": "next",
            "per_key": {"concurrency": 0, "rate": 0.0},
            "fair": False,
            "keep": "failed",
            "result_ttl": 3_600.0,
            "alerts": None,
            "keys_held": 0,
        }
        await server.schedule("jobs/1", deliver_in=60)
        await server.pass_time(5 * MINUTE_MS)
    async with start() as server:
        (view,) = (await server.call("GET", ONE)).body["groups"]
        assert (view["lag_messages"], view["lag_seconds"]) == (1, 240.0)
        _, link = await server.connect("w", TEXT, expiry_s=0)
        assert link.topics == ["jobs/1"]
        (view,) = (await server.call("GET", GROUPS)).body["groups"]
        assert (view["in_flight"], "left_at" in view) == (1, False)
        assert [member["client_id"] for member in view["members"]] == ["w"]


async def test_made_again_it_is_changed_in_place(server: Running) -> None:
    wish = {"ack_timeout": "30s", "max_attempts": 3, "backoff": ["1s", 5], "expiry": "2h", "rate": 2.5}
    first = await made(server, **wish)
    told = {"ack_timeout": 30.0, "max_attempts": 3, "backoff": [1.0, 5.0], "expiry": 7_200, "rate": 2.5}
    assert {name: first[name] for name in told} == told
    again = await made(server, status=200, **{name: first[name] for name in told})
    assert {name: again[name] for name in told} == told
    of_keys = {"order": False, "fair": True, "per_key": {"concurrency": 2, "rate": 1.5}}
    first = await made(server, status=200, fair=True, per_key={"concurrency": 2, "rate": "90/m"})
    assert {name: first[name] for name in of_keys} == of_keys
    again = await made(server, status=200, **of_keys)
    assert {name: again[name] for name in of_keys} == of_keys
    kept = {"keep": 172_800.0, "result_ttl": 60.0, "alerts": None}
    first = await made(server, status=200, keep="2d", result_ttl="1m", alerts="")
    assert {name: first[name] for name in kept} == kept
    again = await made(server, status=200, **kept)
    assert {name: again[name] for name in kept} == kept
    for word in ("failed", "all", "none"):
        assert (await made(server, status=200, keep=word))["keep"] == word
    plain = await made(server, status=200)
    assert (plain["keep"], plain["result_ttl"]) == ("failed", 3_600.0)
    usual = {"ack_timeout": 0, "max_attempts": 20, "expiry": "never", "rate": 0, "fair": False}
    assert {name: plain[name] for name in usual} == usual


@TOGETHER
@pytest.mark.parametrize(
    ("name", "wish", "field"),
    [
        ("a%2Fb", {}, "group"),
        ("a%2Bb", {}, "group"),
        ("a%23", {}, "group"),
        ("workers", {"per_key": {"concurrency": 1}, "order": True}, "per_key.concurrency"),
        ("workers", {"keep": "some"}, "keep"),
        ("workers", {"result_ttl": "8d"}, "result_ttl"),
        ("workers", {"alerts": "https://example.com/"}, "alerts"),
        ("workers", {"alerts": "nobody"}, "alerts"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    lasting: Running, name: str, wish: dict[str, object], field: str
) -> None:
    answer = await lasting.call("PUT", f"{GROUPS}/{name}", {"filter": "t", **wish}, status=422)
    assert answer.body["errors"][0]["field"] == field
    assert (await lasting.call("GET", GROUPS)).body["groups"] == []


@with_settings(limits={"groups": 1})
async def test_no_more_than_limits_say(server: Running) -> None:
    await made(server)
    assert (await server.call("PUT", f"{GROUPS}/more", {"filter": "t"}, status=429)).slug == "over-quota"
    await made(server, status=200, rate=1)


async def test_paused_it_is_given_nothing_and_goes_on_where_it_was(start: Start) -> None:
    async with start() as server:
        _, link = await server.connect("w", TEXT, expiry_s=0)
        (view,) = (await server.call("POST", f"{ONE}:pause")).body["groups"]
        assert view["state"] == "paused"
        await server.schedule("jobs/1")
        await server.app.quiet()
        assert link.topics == []
        assert [one["connected"] for one in view["members"]] == [True]
    async with start() as server:
        _, link = await server.connect("w", TEXT, expiry_s=0)
        await server.schedule("jobs/2")
        await server.app.quiet()
        assert link.topics == []
        (view,) = (await server.call("GET", ONE)).body["groups"]
        assert (view["state"], view["lag_messages"]) == ("paused", 2)
        (view,) = (await server.call("POST", f"{ONE}:resume")).body["groups"]
        assert view["state"] == "active"
        await server.app.quiet()
        assert link.topics == ["jobs/1", "jobs/2"]


async def test_it_is_set_back(server: Running) -> None:
    await made(server)
    await server.schedule("jobs/1")
    await server.app.quiet()
    member, link = await server.connect("w", TEXT, expiry_s=0)
    for flight in list(member.session.flights):
        server.app.core.settling.ack(member, flight)
    await server.call("POST", f"{ONE}:replay", {"from": "PT1H"})
    await server.app.quiet()
    assert link.topics == ["jobs/1", "jobs/1"]
    assert (await server.call("POST", f"{ONE}:replay", {"from": "x"}, status=422)).slug == "refused"


async def test_one_of_a_name_is_meant_by_its_filter(server: Running) -> None:
    for topic_filter in ("a", "b"):
        await server.call("PUT", ONE, {"filter": topic_filter}, status=201)
    await server.call("POST", f"{ONE}:pause?filter=a")
    states = {view["filter"]: view["state"] for view in (await server.call("GET", ONE)).body["groups"]}
    assert states == {"a": "paused", "b": "active"}
    await server.call("DELETE", f"{ONE}?filter=c", status=404)
    await server.call("DELETE", f"{ONE}?filter=a", status=204)
    first = (await server.call("GET", f"{ONE}?limit=1")).body
    assert ([view["filter"] for view in first["groups"]], first["next"]) == (["b"], None)
    await server.call("DELETE", ONE, status=204)
    for method, path in (("GET", ONE), ("DELETE", ONE), ("POST", f"{ONE}:pause"), ("POST", f"{ONE}:resume")):
        assert (await server.call(method, path, status=404)).slug == "not-found"


async def test_they_come_in_pages(server: Running) -> None:
    for name in ("c", "a", "b"):
        await server.call("PUT", f"{GROUPS}/{name}", {"filter": "t"}, status=201)
    first = (await server.call("GET", f"{GROUPS}?limit=2")).body
    assert [view["name"] for view in first["groups"]] == ["a", "b"]
    rest = (await server.call("GET", f"{GROUPS}?limit=2&cursor={first['next'].replace('/', '%2F')}")).body
    assert ([view["name"] for view in rest["groups"]], rest["next"]) == (["c"], None)


async def test_ended_its_members_hold_it_no_more_not_even_after_a_restart(start: Start) -> None:
    async with start() as server:
        present, link = await server.connect("present", TEXT)
        away, _ = await server.connect("away", TEXT, "own")
        server.app.core.clients.leave(away, is_clean=True)
        for n in range(END_MEMBERS + 10):
            await server.connect(f"w{n}", TEXT, expiry_s=0)
        await server.call("DELETE", ONE, status=204)
        core = server.app.core
        assert (len(core.groups), list(present.session.subscriptions)) == (0, [])
        assert core.sessions.quota.count == 1
        await server.schedule("jobs/1")
        await server.app.quiet()
        assert link.topics == []
        assert core.reader.get(Table.SESSIONS, KEY) is None
        assert core.reader.get(Table.CURSORS, KEY) is None
    async with start() as server:
        assert len(server.app.core.groups) == 0
        again = server.session("away")
        assert list(again.session.subscriptions) == ["own"]


async def test_a_key_sees_and_changes_its_own(keyed: Keyed) -> None:
    for name in ("a", "b"):
        keyed.add(name, "read")
        await keyed.call(name, "PUT", f"{GROUPS}/{name}", {"filter": "t"}, status=201)
    await connected(keyed, "b", "b1", "$share/both/t")
    await connected(keyed, "a", "a1", "$share/both/t")
    seen = {}
    for name in ("a", "b", "ops"):
        page = await keyed.body(name, "GET", GROUPS)
        seen[name] = [view["name"] for view in page["groups"]]
    assert seen == {"a": ["a"], "b": ["b", "both"], "ops": ["a", "b", "both"]}
    for other in ("b", "both"):
        await keyed.call("a", "GET", f"{GROUPS}/{other}", status=404)
        await keyed.call("a", "DELETE", f"{GROUPS}/{other}", status=404)
        await keyed.call("a", "POST", f"{GROUPS}/{other}:pause", status=404)
        await keyed.call("a", "POST", f"{GROUPS}/{other}:replay", {"from": "PT1H"}, status=404)
        await keyed.call("a", "PUT", f"{GROUPS}/{other}", {"filter": "t"}, status=403)
    await keyed.call("a", "PUT", f"{GROUPS}/a", {"filter": "t", "rate": 1}, status=200)
    await keyed.call("a", "DELETE", f"{GROUPS}/a", status=204)


async def test_the_owner_is_never_locked_out_by_who_may_not_receive_what_the_group_gets(keyed: Keyed) -> None:
    """Nor does such a key see the group, or change it, though its clients are the only members."""
    keyed.add("own", "read", "schedule")
    keyed.add("other", "read", "schedule", deliver=["else/#"])
    await keyed.call("own", "PUT", f"{GROUPS}/g", {"filter": "jobs/#"}, status=201)
    await connected(keyed, "other", "c1", "$share/g/jobs/#")
    calls: tuple[tuple[str, str, object], ...] = (
        ("GET", "", None),
        ("PUT", "", {"filter": "jobs/#", "max_attempts": 3}),
        ("POST", ":pause", None),
        ("POST", ":resume", None),
        ("POST", ":replay", {"from": "PT1H"}),
        ("POST", ":skip", {}),
        ("POST", "/messages:lease", {"max": 1}),
        ("DELETE", "?undone=drop", None),
    )
    for is_there in (True, False):
        if not is_there:
            await keyed.call("other", "DELETE", "/v1/sessions/c1", status=204)
        for method, verb, body in calls:
            refused = 403 if method == "PUT" else 404
            await keyed.call("other", method, f"{GROUPS}/g{verb}", body, status=refused)
            if method != "DELETE":
                await keyed.call("own", method, f"{GROUPS}/g{verb}", body, status=200)
    await keyed.call("own", "DELETE", f"{GROUPS}/g?undone=drop", status=204)


async def test_a_key_that_may_receive_nothing_of_it_holds_no_group_for_itself(keyed: Keyed) -> None:
    keyed.add("own", "read")
    keyed.add("other", "read", deliver=["else/#"])
    await keyed.call("other", "PUT", f"{GROUPS}/g", {"filter": "jobs/#"}, status=403)
    await connected(keyed, "other", "c1", "$share/g/jobs/#")
    await keyed.call("own", "PUT", f"{GROUPS}/g", {"filter": "jobs/#", "rate": 5}, status=200)
    await keyed.call("other", "PUT", f"{GROUPS}/g", {"filter": "jobs/#", "rate": 1}, status=403)
    (group,) = (await keyed.body("own", "GET", f"{GROUPS}/g"))["groups"]
    assert group["rate"] == 5


async def test_a_group_is_made_only_of_what_its_key_may_subscribe_to(keyed: Keyed) -> None:
    keyed.add("a", "read", subscribe=["mine/#"])
    await keyed.call("a", "PUT", f"{GROUPS}/g", {"filter": "mine/x"}, status=201)
    await keyed.call("a", "PUT", f"{GROUPS}/g", {"filter": "other"}, status=403)


async def test_a_key_has_so_many_groups_and_endpoints_and_no_more(keyed: Keyed) -> None:
    keyed.add("boss", "admin", groups=2)
    url = {"url": "https://shop.example.com/due"}
    await keyed.call("boss", "PUT", "/v1/endpoints/a", url, status=201)
    lease = "/v1/groups/b/messages:lease"
    await keyed.call("boss", "POST", lease, {"filter": "t", "max": 1})
    for method, path, wish in (
        ("PUT", "/v1/groups/c", {"filter": "t"}),
        ("PUT", "/v1/endpoints/c", url),
        ("POST", "/v1/groups/c/messages:lease", {"filter": "t", "max": 1}),
    ):
        answer = await keyed.call("boss", method, path, wish, status=429)
        assert (answer.slug, answer.headers["Retry-After"]) == ("over-quota", "1")
        assert answer.body["detail"] == "key 'boss' has 2 groups and endpoints, its limit is 2"
    assert (await keyed.body("ops", "GET", "/v1/endpoints"))["endpoints"][0]["name"] == "a"
    assert len(keyed.server.app.core.groups) == 2
    await keyed.call("boss", "PUT", "/v1/endpoints/a", {**url, "rate": 1})
    await keyed.call("boss", "DELETE", "/v1/endpoints/a", status=204)
    await keyed.call("boss", "PUT", "/v1/groups/c", {"filter": "t"}, status=201)
