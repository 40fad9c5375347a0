"""`/v1/retries`: what waits for its next try is listed, tried at another time, buried, dropped; rights."""

from typing import Any

import pytest

from server.http.routes import kept
from timeline.session import Terms

from ..conftest import MINUTE_MS, Running
from .conftest import Keyed
from .test_dead import TEXT, link_of

RETRIES = "/v1/retries"
ONE, NOTHING = {"matched": 1, "changed": 1}, {"matched": 0, "changed": 0}


async def fail(server: Running, *payloads: str, who: str = "w", key: str | None = None) -> list[str]:
    """Messages that a member of the group has nacked, to come again in a minute; their ids."""
    if server.app.core.sessions.get(who) is None:
        await server.connect(who, TEXT)
        group = server.group(TEXT)
        group.agree(Terms(max_attempts=9), group.keeping)
    ids = []
    for payload in payloads:
        more = {} if key is None else {"key": key}
        ids.append(await server.schedule(f"jobs/{payload}", payload, **more))
        await server.app.quiet()
        await nack(server, who)
    return ids


async def nack(server: Running, who: str, delay_ms: int = MINUTE_MS) -> None:
    subscriber = server.session(who)
    (packet_id,) = subscriber.session.flights
    settle = server.app.core.settling.nack
    settle(subscriber, packet_id, delay_ms=delay_ms, reason="db is down", done=lambda became: None)
    await server.app.quiet()


async def listed(server: Running, query: str = "") -> list[dict[str, Any]]:
    return (await server.call("GET", f"{RETRIES}{query}")).body["retries"]  # type: ignore[no-any-return]


async def act(server: Running, what: str, status: int = 200, **body: object) -> Any:
    return (await server.call("POST", f"{RETRIES}:{what}", body, status=status)).body


def sent(server: Running) -> list[str]:
    return [message.record.payload.decode() for message in link_of(server, "w").sent]


async def states(server: Running, name: str) -> list[str]:
    body = (await server.call("GET", f"/v1/messages/{name}")).body
    return [one["state"] for one in body["deliveries"]]


async def test_what_waits_is_listed_by_its_time(server: Running) -> None:
    first, second = await fail(server, "1", "2")
    (one, _) = await listed(server)
    assert (one["id"], one["group"], one["subscription"]) == (first, "workers", TEXT)
    assert (one["attempts"], one["reason"], one["retry_at"]) == (1, "db is down", "2026-11-21T08:01:00.000Z")
    assert [tried["reason"] for tried in one["tries"]] == ["db is down"]
    assert "died_at" not in one
    page = (await server.call("GET", f"{RETRIES}?limit=1&count=true")).body
    assert (page["retries"][0]["id"], page["count"]) == (first, 2)
    rest = await listed(server, f"?cursor={page['next']}")
    assert [retry["id"] for retry in rest] == [second]


async def test_filters(server: Running) -> None:
    (first,) = await fail(server, "1", key="order-1")
    await server.pass_time(MINUTE_MS // 2)
    (second,) = await fail(server, "2")

    async def of(query: str) -> list[str]:
        return [one["id"] for one in await listed(server, query)]

    both = [first, second]
    for query in ("?group=workers", "?group=%24share/workers/jobs/%23", "?topic=%23", "?reason=db"):
        assert await of(query) == both, query
    for query in ("?key=order-1", f"?id={first}", "?topic=jobs/1", "?to=2026-11-21T08:01:10Z"):
        assert await of(query) == [first], query
    assert await of("?from=2026-11-21T08:01:10Z") == [second]
    for query in ("?group=nobody", "?key=order-2", f"?key=order-1&id={second}", "?reason=expired"):
        assert await of(query) == [], query
    for chosen in ({"key": "order-1"}, {"id": first}, {"to": "2026-11-21T08:01:10Z"}, {"topic": "jobs/1"}):
        assert await act(server, "drop", filter=chosen, dry_run=True) == {"matched": 1, "changed": 0}
    assert await act(server, "drop", filter={"reason": "db"}) == {"matched": 2, "changed": 2}


async def test_tried_now_or_at_another_time(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    names = await fail(server, "1", "2", "3")
    before = len(sent(server))
    assert await act(server, "try", ids=names[:1]) == ONE
    await server.app.quiet()
    assert sent(server)[before:] == ["1"]
    assert await listed(server, f"?id={names[0]}") == [], "it is in flight"
    for what in ("try", "bury", "drop"):
        assert await act(server, what, ids=names[:1]) == NOTHING
    monkeypatch.setattr(kept, "STEP_ROWS", 1)
    moved = await act(server, "try", filter={"topic": "#"}, deliver_in="5m")
    assert moved == {"matched": 2, "changed": 2}, "each once, however late it is now"
    assert [one["retry_at"] for one in await listed(server)] == ["2026-11-21T08:05:00.000Z"] * 2
    await server.pass_time(MINUTE_MS)
    assert sent(server)[before:] == ["1"]
    at = {"ids": names[1:2], "deliver_at": "2026-11-21T08:02:00Z"}
    assert await act(server, "try", **at) == ONE
    await server.pass_time(MINUTE_MS)
    assert sent(server)[before:] == ["1", "2"]
    assert server.app.core.opened.waiting.retries == 3


async def test_the_next_one_of_a_place_is_none_that_is_in_flight(server: Running) -> None:
    first, second = await fail(server, "1", "2")
    await server.pass_time(MINUTE_MS // 2)
    await act(server, "try", ids=[first])
    assert sent(server) == ["1", "2", "1"]
    assert [one["id"] for one in await listed(server)] == [second]
    (group,) = (await server.call("GET", "/v1/groups")).body["groups"]
    undone = group["undone"]
    assert (undone["in_flight"], undone["retries"]) == (1, 1)
    assert undone["next_retry_at"] == (await listed(server))[0]["retry_at"]


async def test_buried_it_is_a_dead_letter(server: Running) -> None:
    (name,) = await fail(server, "1")
    await server.connect("mourner", "$dead/#")
    assert await act(server, "bury", ids=[name]) == ONE
    await server.app.quiet()
    (letter,) = (await server.call("GET", "/v1/dead")).body["messages"]
    assert (letter["id"], letter["reason"], letter["attempts"]) == (name, "buried; db is down", 1)
    assert [one.record.topic for one in link_of(server, "mourner").sent] == [b"$dead/workers/jobs/1"]
    assert (await listed(server), await states(server, name)) == ([], ["dead"])
    assert server.app.core.opened.waiting.retries == 0


async def test_dropped_it_is_nobodys(server: Running) -> None:
    (name,) = await fail(server, "1")
    left = await server.call("DELETE", f"/v1/messages/{name}", status=409)
    (one,) = left.body["deliveries"]
    assert (left.slug, one["state"], one["group"]) == ("already-dispatched", "retry", "workers")
    assert await act(server, "drop", ids=[name]) == ONE
    assert await act(server, "drop", ids=[name]) == NOTHING
    assert await states(server, name) == ["dropped"]
    assert (await server.call("DELETE", f"/v1/messages/{name}", status=409)).body["deliveries"] == []
    before = len(sent(server))
    await server.pass_time(2 * MINUTE_MS)
    assert len(sent(server)) == before


async def test_dead_letters_go_to_another_place(server: Running) -> None:
    (name,) = await fail(server, "1")
    await act(server, "bury", ids=[name])
    await server.connect("x", "$share/pool/a/#", "$share/pool/b/#", "$share/other/a/#")

    async def requeue(to: str, status: int = 200) -> Any:
        body = {"ids": [name], "to": to}
        return (await server.call("POST", "/v1/dead:requeue", body, status=status)).body

    for to in ("nobody", "pool", "$share/pool/c"):
        assert (await requeue(to, 422))["errors"][0]["field"] == "to"
    assert await requeue("other") == ONE
    await server.app.quiet()
    assert [one.id_text(0) for one in link_of(server, "x").sent] == [name]
    assert (await server.call("GET", "/v1/dead")).body["messages"] == []


async def test_a_dropped_dead_letter_is_dropped(server: Running) -> None:
    (name,) = await fail(server, "1")
    await act(server, "bury", ids=[name])
    assert (await server.call("POST", "/v1/dead:drop", {"ids": [name]})).body == ONE
    assert await states(server, name) == ["dropped"]


async def test_of_a_place_that_has_ended_nothing_is_there(server: Running) -> None:
    (name,) = await fail(server, "1")
    await server.call("DELETE", "/v1/groups/workers?undone=drop", status=204)
    assert await listed(server) == []
    assert await act(server, "try", ids=[name]) == NOTHING


async def test_density_counts_them(server: Running) -> None:
    await fail(server, "1", "2")
    span = "from=2026-11-21T08:00:00Z&to=2026-11-21T08:02:00Z&bucket=PT1M"
    path = f"/v1/timeline/density?{span}"
    counted = (await server.call("GET", f"{path}&retries=true")).body["buckets"]
    assert [one["retries"] for one in counted] == [0, 2]
    other = (await server.call("GET", f"{path}&retries=true&topic=other")).body["buckets"]
    assert [one["retries"] for one in other] == [0, 0]
    assert "retries" not in (await server.call("GET", path)).body["buckets"][0]


async def test_a_message_is_known_while_a_place_is_not_done_with_it(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = await fail(server, "1", key="order-1")
    monkeypatch.setattr(type(server.app.core.reader), "find", lambda *_: None)
    for path in (f"/v1/messages/{name}", "/v1/messages/by-key/order-1"):
        found = (await server.call("GET", path)).body
        assert (found["id"], found["state"], found["topic"]) == (name, "dispatched", "jobs/1")
        assert [one["state"] for one in found["deliveries"]] == ["retry"]
    await act(server, "drop", ids=[name])
    await server.call("GET", f"/v1/messages/{name}", status=404)
    await server.call("GET", "/v1/messages/by-key/order-1", status=410)


async def test_a_key_sees_and_changes_its_own(keyed: Keyed) -> None:
    keyed.add("app", "read", "schedule")
    keyed.add("looker", "read", "schedule")
    server = keyed.server
    subscriber, _ = await server.connect("a", "jobs/#")
    subscriber.owner = "app"
    name = await keyed.schedule("ops", "jobs/1", deliver_in=0)
    await server.app.quiet()
    await nack(server, "a")
    for who, count in (("ops", 1), ("app", 1), ("looker", 0)):
        page = await keyed.body(who, "GET", f"{RETRIES}?count=true")
        assert (len(page["retries"]), page["count"]) == (count, count)
        span = "from=2026-11-21T08:00:00Z&to=2026-11-21T09:00:00Z&bucket=PT1H&retries=true"
        counted = await keyed.body(who, "GET", f"/v1/timeline/density?{span}")
        assert counted["buckets"][0]["retries"] == count
    for what in ("try", "bury", "drop"):
        assert await keyed.body("looker", "POST", f"{RETRIES}:{what}", {"ids": [name]}) == NOTHING
    keyed.add("reader", "read")
    await keyed.call("reader", "POST", f"{RETRIES}:drop", {"ids": [name]}, status=403)
    assert await keyed.body("app", "POST", f"{RETRIES}:drop", {"ids": [name]}) == ONE


async def test_a_group_is_deleted_without_a_word_once_its_retry_is_acked(server: Running) -> None:
    """The row of the retry goes with the next cursor, which may be later."""
    await fail(server, "1")
    assert (await server.call("DELETE", "/v1/groups/workers", status=409)).slug == "undone"
    await server.pass_time(MINUTE_MS)
    subscriber = server.session("w")
    assert (await server.call("DELETE", "/v1/groups/workers", status=409)).slug == "undone"
    (packet_id,) = subscriber.session.flights
    server.app.core.settling.ack(subscriber, packet_id)
    await server.call("DELETE", "/v1/groups/workers", status=204)


async def twins(server: Running) -> tuple[str, str]:
    """A dead letter of two groups: which message it is, and the calls of the second group."""
    await server.call("PUT", "/v1/groups/twins", {"filter": "jobs/#"}, status=201)
    (name,) = await fail(server, "1")
    await act(server, "bury", ids=[name])
    path = "/v1/groups/twins/messages"
    (leased,) = (await server.call("POST", f"{path}:lease", {"max": 1})).body["messages"]
    nack = {"lease_ids": [leased["lease_id"]], "delay": "never"}
    assert (await server.call("POST", f"{path}:nack", nack)).body["dead"] == 1
    return name, path


async def test_a_place_that_gets_a_dead_letter_of_another_has_its_own_no_more(server: Running) -> None:
    name, _ = await twins(server)
    body = {"filter": {"id": name, "group": TEXT}, "to": "twins"}
    assert (await server.call("POST", "/v1/dead:requeue", body)).body == ONE
    assert (await server.call("GET", "/v1/dead")).body["messages"] == []


async def test_what_a_place_had_dropped_and_then_does_is_done(server: Running) -> None:
    name, path = await twins(server)
    theirs = {"filter": {"id": name, "group": "twins"}}
    assert (await server.call("POST", "/v1/dead:drop", theirs)).body == ONE
    body = {"filter": {"id": name, "group": TEXT}, "to": "twins"}
    assert (await server.call("POST", "/v1/dead:requeue", body)).body == ONE
    (leased,) = (await server.call("POST", f"{path}:lease", {"max": 1})).body["messages"]
    await server.call("POST", f"{path}:ack", {"lease_ids": [leased["lease_id"]]})
    told = (await server.call("GET", f"/v1/messages/{name}")).body["deliveries"]
    assert [one["state"] for one in told if one["group"] == "twins"] == ["done"]


async def set_back(server: Running) -> None:
    """The group has its messages still to read, and nobody gives them out."""
    for what, body in (("pause", None), ("replay", {"from": "PT1H"})):
        await server.call("POST", f"/v1/groups/workers:{what}", body)


async def test_what_is_set_back_and_skipped_stays_the_retry_or_the_dead_letter_that_it_is(
    server: Running,
) -> None:
    dead, waiting = await fail(server, "1", "2")
    await act(server, "bury", ids=[dead])
    await set_back(server)
    await server.call("POST", "/v1/groups/workers:skip", {"to": "now", "undone": "dead"})
    await server.app.quiet()
    letters = (await server.call("GET", "/v1/dead")).body["messages"]
    assert [(one["id"], one["reason"]) for one in letters] == [(dead, "buried; db is down")]
    assert [one["id"] for one in await listed(server)] == [waiting]


async def test_what_is_set_back_and_ends_with_its_group_is_one_dead_letter(server: Running) -> None:
    names = await fail(server, "1", "2")
    await act(server, "bury", ids=names[:1])
    await set_back(server)
    await server.call("DELETE", "/v1/groups/workers?undone=dead", status=204)
    await server.app.quiet()
    letters = (await server.call("GET", "/v1/dead")).body["messages"]
    assert sorted(one["id"] for one in letters) == sorted(names)


@pytest.mark.parametrize("wait", ["30s", "90s", "1h"])
async def test_a_try_at_another_time_moves_each_retry_once(
    server: Running, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    """Before, among, and behind those that the call has still to reach."""
    monkeypatch.setattr(kept, "STEP_ROWS", 2)
    monkeypatch.setattr(kept, "LOOK_ROWS", 3)
    ids = []
    for number in range(7):
        ids += await fail(server, str(number))
        await server.pass_time(5_000)
    assert await act(server, "try", filter={"topic": "#"}, deliver_in=wait, dry_run=True) == {
        "matched": 7,
        "changed": 0,
    }
    assert await act(server, "try", filter={"topic": "#"}, deliver_in=wait) == {"matched": 7, "changed": 7}
    found = await listed(server)
    assert sorted(one["id"] for one in found) == sorted(ids)
    assert len({one["retry_at"] for one in found}) == 1


async def test_pages_while_retries_move(server: Running) -> None:
    """One that goes to a later time is shown there, one that is over is not."""
    ids = []
    for number in range(5):
        ids += await fail(server, str(number))
        await server.pass_time(5_000)
    first = (await server.call("GET", f"{RETRIES}?limit=2")).body
    assert [one["id"] for one in first["retries"]] == ids[:2]
    await act(server, "try", ids=[ids[2]], deliver_in="2h")
    await act(server, "drop", ids=[ids[3]])
    second = (await server.call("GET", f"{RETRIES}?limit=5&cursor={first['next']}")).body
    assert ([one["id"] for one in second["retries"]], second["next"]) == ([ids[4], ids[2]], None)
