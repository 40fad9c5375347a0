"""`/v1/dead`: what was given up is listed, sent again to whom it was sent, dropped; bounds and rights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.delivery.subscriber import Subscriber
from server.engine.clock import SimulatedClock
from server.http.routes import kept
from server.settings.config import Config, Dead
from shards.delivery_rows import totals
from shards.store import Table
from tests.support.link import FakeLink

from ..conftest import MINUTE_MS, Running, running, with_settings
from .conftest import Keyed

DEAD = "/v1/dead"
TEXT = "$share/workers/jobs/#"


pytestmark = with_settings(sessions={"max_attempts": 1})


async def give_up(server: Running, name: str, filters: str) -> Subscriber:
    """What the session was sent and has not acked is given up: it comes back, once was enough."""
    known = server.app.core.sessions.get(name)
    if known is not None and known.link is not None:
        server.app.core.clients.leave(known, is_clean=False)
    subscriber, _ = await server.connect(name)
    await server.app.quiet()
    return subscriber


async def poison(server: Running, *payloads: object, topic: str = "jobs/1", who: str = "w") -> list[str]:
    """Messages that `who`, a session that subscribes to jobs/#, has given up; their ids."""
    if server.app.core.sessions.get(who) is None:
        await server.connect(who, "jobs/#")
    ids = []
    for payload in payloads:
        ids.append(await server.schedule(topic, payload, headers={"a": "b"}))
        await server.app.quiet()
        await give_up(server, who, "jobs/#")
    return ids


async def listed(server: Running, query: str = "") -> list[dict[str, Any]]:
    return (await server.call("GET", f"{DEAD}{query}", status=200)).body["messages"]  # type: ignore[no-any-return]


async def act(server: Running, what: str, status: int = 200, **body: object) -> Any:
    return (await server.call("POST", f"{DEAD}:{what}", body, status=status)).body


def link_of(server: Running, name: str) -> FakeLink:
    subscriber = server.session(name)
    assert isinstance(subscriber.link, FakeLink)
    return subscriber.link


async def test_what_is_given_up_is_listed_as_it_came_in(server: Running) -> None:
    (name,) = await poison(server, {"n": 1})
    (letter,) = await listed(server)
    place = (await server.call("GET", "/v1/sessions/w")).body
    assert (place["delivered"], place["failed"], place["dead_letters"]) == (1, 1, 1)
    died_at = letter.pop("died_at")
    assert [one["reason"] for one in letter.pop("tries")] == ["not acked after 1 deliveries"]
    assert letter == {
        "id": name,
        "topic": "jobs/1",
        "deliver_at": "2026-11-21T08:00:00.000Z",
        "state": "dispatched",
        "qos": 1,
        "payload": {"n": 1},
        "encoding": "json",
        "headers": {"a": "b"},
        "content_type": "application/json",
        "group": "w",
        "subscription": None,
        "attempts": 1,
        "reason": "not acked after 1 deliveries",
    }
    assert died_at == "2026-11-21T08:00:00.000Z"


async def test_requeued_it_comes_to_that_session_alone_under_its_id(server: Running) -> None:
    (name,) = await poison(server, "bad")
    _, other = await server.connect("other", "jobs/#")
    answer = await act(server, "requeue", ids=[name], deliver_in=60)
    assert answer == {"matched": 1, "changed": 1}
    assert await listed(server) == []
    link = link_of(server, "w")
    assert link.sent == []
    await server.pass_time(MINUTE_MS - 1)
    assert link.sent == []
    await server.pass_time(1)
    (message,) = link.sent
    assert (message.id_text(0), message.record.topic, message.record.payload) == (name, b"jobs/1", b"bad")
    assert message.attempts_before == 1
    assert message.due_ms == server.clock.now_ms
    assert other.sent == []
    # Once more it dies: what it was sent counts on.
    await give_up(server, "w", "jobs/#")
    (letter,) = await listed(server)
    assert (letter["id"], letter["attempts"]) == (name, 2)
    assert (letter["reason"], letter["headers"]) == ("not acked after 2 deliveries", {"a": "b"})
    assert await act(server, "requeue", ids=[name]) == {"matched": 1, "changed": 1}
    await server.app.quiet()
    assert [message.attempts_before for message in link_of(server, "w").sent] == [2]


async def test_a_retry_is_no_second_message(server: Running) -> None:
    (name,) = await poison(server, "bad")
    later = await server.schedule("jobs/2", deliver_in=90)
    await act(server, "requeue", ids=[name], deliver_in=60)
    opened = server.app.core.opened
    assert (opened.waiting.pending, opened.waiting.retries) == (1, 1), "limits.pending counts both"
    page = (await server.call("GET", "/v1/messages?count=true")).body
    assert ([message["id"] for message in page["messages"]], page["count"]) == ([later], 1)
    ranged = "/v1/messages?count=true&due_from=2026-11-21T08:00:00Z&due_to=2026-11-21T09:00:00Z"
    assert (await server.call("GET", ranged)).body["count"] == 1
    assert (await server.call("GET", "/v1/messages?count=true&topic=jobs/%23")).body["count"] == 1
    everything = (await server.call("GET", "/v1/messages?state=all")).body["messages"]
    assert [message["id"] for message in everything if message["topic"].startswith("jobs")] == [name, later]
    query = "from=2026-11-21T08:00:00Z&to=2026-11-21T10:00:00Z&bucket=PT1H"
    density = (await server.call("GET", f"/v1/timeline/density?{query}")).body
    assert [bucket["count"] for bucket in density["buckets"]] == [1, 0]
    exported = (await server.call("GET", "/v1/messages:export?ids=true")).body
    assert exported["id"] == later, "the only line"
    found = (await server.call("GET", f"/v1/messages/{name}")).body
    assert found["state"] == "dispatched"
    await server.call("DELETE", f"/v1/messages/{name}", status=409)
    cancelled = await server.call("POST", "/v1/messages:cancel", {"filter": {"topic": "#"}})
    assert cancelled.body["changed"] == 1
    await server.pass_time(2 * MINUTE_MS)
    assert [message.id_text(0) for message in link_of(server, "w").sent] == [name]
    assert server.app.core.opened.waiting.pending == 0


async def test_while_the_clock_is_set_back_it_waits_and_is_no_message_either(server: Running) -> None:
    (name,) = await poison(server, "bad")
    _, other = await server.connect("other", "jobs/#")
    server.clock.now_ms -= 10 * MINUTE_MS
    await act(server, "requeue", ids=[name], deliver_in=5 * 60)
    assert (server.app.core.opened.waiting.held, server.app.core.opened.waiting.retries) == (0, 1)
    page = (await server.call("GET", "/v1/messages?count=true")).body
    assert (page["messages"], page["count"]) == ([], 0)
    await server.pass_time(5 * MINUTE_MS)
    assert [message.id_text(0) for message in link_of(server, "w").sent] == [name]
    assert other.sent == []
    assert server.app.core.opened.waiting.held == 0
    # The message is where it was, and so is what is said of it.
    assert (await server.call("GET", f"/v1/messages/{name}")).body["state"] == "dispatched"
    assert server.app.core.reader.get(Table.MOVED, bytes.fromhex(name)) is None


async def test_two_groups_that_give_it_up_have_a_letter_each(server: Running) -> None:
    await server.connect("m", TEXT)
    await server.connect("w", "jobs/#")
    name = await server.schedule("jobs/1", "bad")
    await server.app.quiet()
    for one in ("m", "w"):
        await give_up(server, one, "")
    letters = await listed(server)
    assert [(letter["id"], letter["group"]) for letter in letters] == [(name, "workers"), (name, "w")]
    assert [letter["subscription"] for letter in letters] == [TEXT, None]
    for group in ("workers", "%24share/workers/jobs/%23"):
        assert [letter["group"] for letter in await listed(server, f"?group={group}")] == ["workers"]
    assert len(await listed(server, f"?id={name}")) == 2
    assert await listed(server, "?group=%24share/workers/other") == []
    answer = await act(server, "requeue", ids=[name], group="workers")
    assert answer == {"matched": 1, "changed": 1}
    await server.app.quiet()
    assert [message.id_text(0) for message in link_of(server, "m").sent] == [name]
    assert link_of(server, "w").sent == []
    assert await act(server, "drop", ids=[name, name]) == {"matched": 1, "changed": 1}
    assert await listed(server) == []
    kept = totals(server.app.core.opened.store)
    assert (kept.count, kept.bytes) == (0, 0)


async def test_lists_and_filters(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for index in range(7):
        names += await poison(server, f"{index}", topic=f"jobs/{index % 2}")
        await server.pass_time(MINUTE_MS)
    assert [letter["id"] for letter in await listed(server)] == names
    even = [letter["payload"] for letter in await listed(server, "?topic=jobs/0")]
    assert even == ["0", "2", "4", "6"]
    assert await listed(server, "?reason=after%201") == await listed(server)
    assert await listed(server, "?reason=expired") == []
    assert await listed(server, "?group=nobody") == []
    stretch = "?from=2026-11-21T08:02:00Z&to=2026-11-21T08:04:00Z"
    assert [letter["payload"] for letter in await listed(server, stretch)] == ["2", "3"]
    monkeypatch.setattr(kept, "LOOK_ROWS", 2)
    found: list[str] = []
    cursor = ""
    while True:
        page = (await server.call("GET", f"{DEAD}?limit=3&group=w{cursor}", status=200)).body
        found += [letter["id"] for letter in page["messages"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == names
    chosen = {"group": "w", "topic": "jobs/0", "from": "2026-11-21T08:02:00Z", "to": "2026-11-21T08:06:00Z"}
    assert await act(server, "drop", filter=chosen, dry_run=True) == {"matched": 2, "changed": 0}
    monkeypatch.setattr(kept, "STEP_ROWS", 1)
    assert await act(server, "drop", filter=chosen) == {"matched": 2, "changed": 2}
    assert [letter["payload"] for letter in await listed(server)] == ["0", "1", "3", "5", "6"]
    assert await act(server, "requeue", filter={"topic": "#"}) == {"matched": 5, "changed": 5}
    await server.app.quiet()
    payloads = [message.record.payload for message in link_of(server, "w").sent]
    assert payloads == [b"0", b"1", b"3", b"5", b"6"], "in the order of death"


async def test_of_a_session_that_is_gone_nothing_is_sent_again(server: Running) -> None:
    (name,) = await poison(server, "bad")
    await server.call("DELETE", "/v1/sessions/w", status=204)
    assert await act(server, "requeue", ids=[name]) == {"matched": 1, "changed": 0}
    assert len(await listed(server)) == 1


async def test_what_falls_due_when_its_session_is_gone_goes_nowhere(server: Running) -> None:
    (name,) = await poison(server, "bad")
    _, other = await server.connect("other", "jobs/#")
    await act(server, "requeue", ids=[name], deliver_in=60)
    await server.call("DELETE", "/v1/sessions/w", status=204)
    await server.pass_time(MINUTE_MS)
    assert other.sent == []
    assert (server.app.core.opened.waiting.pending, server.app.core.opened.waiting.retries) == (0, 0)
    metrics = (await server.call("GET", "/metrics")).body.decode()
    ended = 'undone_dropped_total{reason="session ended"} 1.0'
    for line in (ended, 'limit_used{name="dead.max_messages"} 0.0', "dead_letters_buried_total 1.0"):
        assert f"\nfasti_{line}\n" in metrics


@pytest.mark.parametrize(
    ("what", "body", "field"),
    [
        ("dead:requeue", {}, "filter"),
        ("retries:try", {}, "filter"),
        ("dead:drop", {"ids": ["0" * 32], "filter": {"topic": "#"}}, "filter"),
        ("dead:drop", {"filter": {"topic": "a"}, "group": "g"}, "group"),
        ("dead:drop", {"ids": [], "deliver_in": 5}, "deliver_in"),
        ("retries:bury", {"ids": [], "deliver_in": 1}, "deliver_in"),
        ("retries:try", {"ids": [], "deliver_in": 1, "deliver_at": "2030-01-01T00:00:00Z"}, "deliver_in"),
    ],
)
async def test_what_does_not_go_together(server: Running, what: str, body: object, field: str) -> None:
    answer = await server.call("POST", f"/v1/{what}", body, status=422)
    assert answer.body["errors"][0]["field"] == field


@with_settings(limits={"pending": 2})
async def test_limits_pending_counts_what_is_requeued(server: Running) -> None:
    await poison(server, "1", "2", "3")
    body = {"filter": {"topic": "#"}, "deliver_in": 60}
    answer = await server.call("POST", f"{DEAD}:requeue", body, status=429)
    assert answer.slug == "over-quota"
    assert (answer.body["matched"], answer.body["changed"]) == (3, 2)
    assert len(await listed(server)) == 1


async def test_at_the_bounds_the_oldest_go(tmp_path: Path, config: Config, clock: SimulatedClock) -> None:
    async with running(tmp_path / "few", replace(config, dead=Dead(max_messages=3)), clock) as server:
        names = await poison(server, *"12345")
        assert [letter["id"] for letter in await listed(server)] == names[2:]
        assert server.app.core.dead_letter_queue.crowded_out == 2
        assert await act(server, "drop", ids=names) == {"matched": 3, "changed": 3}
    tight = replace(config, dead=Dead(max_bytes=70_000))
    async with running(tmp_path / "small", tight, clock) as server:
        names = await poison(server, *["x" * 20_000] * 4)
        assert [letter["id"] for letter in await listed(server)] == names[1:]
        big = await poison(server, "y" * 100_000)
        assert [letter["id"] for letter in await listed(server)] == big, "the last one stays"


async def test_retention_counts_running_time(tmp_path: Path, config: Config, clock: SimulatedClock) -> None:
    path, day_ms = tmp_path / "data", 86_400_000
    short = replace(config, dead=Dead(retention_ms=2 * day_ms))
    async with running(path, short, clock) as server:
        await poison(server, "1")
        server.app.core.writer.ran(day_ms)
        await poison(server, "2")
        await server.app.housekeeping.run_due()
        assert len(await listed(server)) == 2
    clock.now_ms += 30 * day_ms  # away: that does not count
    async with running(path, short, clock) as server:
        await server.app.housekeeping.run_due()
        assert len(await listed(server)) == 2
        server.app.core.writer.ran(day_ms + 60_000)
        await server.app.housekeeping.run_due()
        assert [letter["payload"] for letter in await listed(server)] == ["2"]
        assert server.app.core.dead_letter_queue.expired == 1


@with_settings(dead={"retention_ms": 60_000})
async def test_retention_counts_what_passed_since_the_last_write(server: Running) -> None:
    """A server to which nobody writes has run on all the same."""
    await poison(server, "1")
    server.app.core.writer._mono -= 61
    await server.app.housekeeping._sweep_dead()
    assert await listed(server) == []


async def _owned_letter(keyed: Keyed, owner: str, client_id: str) -> str:
    server, core = keyed.server, keyed.server.app.core
    subscriber, _ = await server.connect(client_id, "jobs/#")
    subscriber.owner, subscriber.rights = owner, core_rights(keyed, owner, client_id)
    name = await keyed.schedule("ops", "jobs/1", deliver_in=0)
    await server.app.quiet()
    core.clients.leave(subscriber, is_clean=False)
    link = FakeLink()
    again, _ = core.clients.claim(link, client_id, clean_start=False, expiry_s=3_600, window=10)
    assert again is subscriber
    core.clients.resume(subscriber)
    await server.app.quiet()
    return name


def core_rights(keyed: Keyed, owner: str, client_id: str) -> Any:
    return keyed.server.app.keyring.rights_of(owner, client_id)


async def test_a_key_sees_and_changes_its_own(keyed: Keyed) -> None:
    keyed.add("app", "read", "schedule")
    keyed.add("looker", "read", "schedule")
    keyed.add("narrow", "read", "schedule", publish=["other/#"], subscribe=["jobs/#"])
    mine = await _owned_letter(keyed, "app", "a")
    seen = await _owned_letter(keyed, "narrow", "n")
    path = f"{DEAD}?limit=10"

    async def of(name: str) -> list[str]:
        return [letter["group"] for letter in (await keyed.body(name, "GET", path))["messages"]]

    # The second message was for both sessions; only the one that came back has given it up.
    assert await of("ops") == ["a", "n"]
    assert await of("app") == ["a"]
    assert await of("looker") == []
    assert await of("narrow") == ["n"]
    # It may see that one, as it may be sent it, and not change it.
    nothing, one = {"matched": 0, "changed": 0}, {"matched": 1, "changed": 1}
    for what in ("requeue", "drop"):
        assert await keyed.body("narrow", "POST", f"{DEAD}:{what}", {"ids": [seen]}) == nothing
        assert await keyed.body("looker", "POST", f"{DEAD}:{what}", {"ids": [mine]}) == nothing
    keyed.add("reader", "read")
    await keyed.call("reader", "POST", f"{DEAD}:drop", {"ids": [mine]}, status=403)
    # The session is another's by now: it is not for this key any more to have something sent there.
    subscriber = keyed.server.session("a")
    subscriber.owner = "looker"
    body = {"ids": [mine], "group": "a"}
    assert await keyed.body("app", "POST", f"{DEAD}:requeue", body) == {"matched": 1, "changed": 0}
    subscriber.owner = "app"
    assert await keyed.body("app", "POST", f"{DEAD}:requeue", body) == one
    await keyed.server.app.quiet()
    assert subscriber.link is not None
    found = [message for message in subscriber.link.sent if message.attempts_before]  # type: ignore[attr-defined]
    assert [(m.id_text(0), m.record.owner) for m in found] == [(mine, b"ops")]


async def test_what_its_owner_may_not_send_any_more_is_withheld(keyed: Keyed) -> None:
    keyed.add("app", "read", "schedule")
    keyed.add("boss", "admin")
    name = await _owned_letter(keyed, "app", "a")
    await keyed.body("app", "POST", f"{DEAD}:requeue", {"ids": [name], "deliver_in": 60})
    core = keyed.server.app.core
    assert core.opened.owned.pending(b"ops") == 1
    keyed.file.add("ops", "admin", publish=["nothing"])
    keyed.take()
    core.review()
    before = core.owners.withheld
    await keyed.server.pass_time(MINUTE_MS)
    subscriber = keyed.server.session("a")
    assert subscriber.link is not None
    assert subscriber.link.sent == []  # type: ignore[attr-defined]
    assert core.owners.withheld > before
    assert core.opened.owned.pending(b"ops") == 1
    told = await keyed.body("boss", "GET", f"/v1/messages/{name}")
    assert [(one["state"], one["withheld_by"]) for one in told["deliveries"]] == [
        ("withheld", "key 'ops' may not publish to 'jobs/1'")
    ]
    (row,) = (await keyed.body("boss", "GET", "/v1/retries"))["retries"]
    assert (row["id"], row["state"]) == (name, "withheld")
    keyed.file.add("ops", "admin")
    keyed.take()
    core.review()
    await keyed.server.app.quiet()
    assert [message.id_text(0) for message in subscriber.link.sent] == [name]  # type: ignore[attr-defined]


async def test_pages_while_letters_come_and_go(server: Running) -> None:
    """In the order of death: what is requeued or dropped is not there, what died since is the last."""
    ids = await poison(server, *range(5))
    first = (await server.call("GET", f"{DEAD}?limit=2")).body
    assert [one["id"] for one in first["messages"]] == ids[:2]
    await act(server, "drop", ids=[ids[0], ids[3]])
    await act(server, "requeue", ids=[ids[1], ids[2]], deliver_in="1h")
    ids += await poison(server, 5)
    second = (await server.call("GET", f"{DEAD}?limit=5&cursor={first['next']}")).body
    assert ([one["id"] for one in second["messages"]], second["next"]) == ([ids[4], ids[5]], None)
