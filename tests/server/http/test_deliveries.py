"""`GET /v1/messages/{id}` says what has become of a dispatched message with each who was to get it."""

from typing import Any

from server.delivery import deliveries
from server.delivery.settling.lives import Outcome
from timeline.session import Terms

from ..conftest import MINUTE_MS, Running, with_settings
from .conftest import Keyed
from .test_dead import TEXT, give_up

pytestmark = with_settings(sessions={"max_attempts": 1})


async def told(server: Running, name: str) -> list[dict[str, Any]]:
    body = (await server.call("GET", f"/v1/messages/{name}", status=200)).body
    assert body["deliveries_truncated"] is False
    return body["deliveries"]  # type: ignore[no-any-return]


async def test_each_state_as_it_comes(server: Running) -> None:
    await server.connect("w", TEXT)
    await server.connect("s", "jobs/#")
    name = await server.schedule("jobs/1", deliver_in=60)
    pending = (await server.call("GET", f"/v1/messages/{name}")).body
    assert "deliveries" not in pending
    assert "deliveries_truncated" not in pending
    await server.pass_time(MINUTE_MS)
    group = {"group": "workers", "filter": "jobs/#"}
    assert await told(server, name) == [
        {**group, "state": "in_flight", "attempts": 1, "by": "w"},
        {"session": "s", "state": "in_flight", "attempts": 1},
    ]
    await give_up(server, "s", "jobs/#")
    why = "not acked after 1 deliveries"
    tried = {"at": "2026-11-21T08:01:00.000Z", "by": "s", "outcome": "lost", "reason": why, "seconds": None}
    dead = {"session": "s", "state": "dead", "attempts": 1, "reason": why, "tries": [tried]}
    assert (await told(server, name))[1] == dead
    await server.call("POST", "/v1/dead:requeue", {"ids": [name], "deliver_in": 90}, status=200)
    again = {**dead, "state": "retry", "retry_at": "2026-11-21T08:02:30.000Z"}
    assert (await told(server, name))[1] == again
    (page,) = (await server.call("GET", "/v1/messages?state=all")).body["messages"]
    assert "deliveries" not in page, "it is told of one message alone"


async def test_what_a_member_cannot_do_now_waits_with_its_reason(server: Running) -> None:
    member, _ = await server.connect("w", TEXT)
    workers = server.group(TEXT)
    workers.agree(Terms(max_attempts=3), workers.keeping)
    name = await server.schedule("jobs/1")
    await server.app.quiet()
    ((packet_id, lent),) = member.session.flights.items()
    assert lent.loan is not None
    lent.loan.since_s -= 500
    became: list[Outcome] = []
    core = server.app.core
    core.settling.nack(member, packet_id, delay_ms=90_000, reason="db is down", done=became.append)
    await server.app.quiet()
    why, at = "db is down", "2026-11-21T08:00:00.000Z"
    tried = {"at": at, "by": "w", "outcome": "failed", "reason": why, "seconds": 500.0}
    group = {"group": "workers", "filter": "jobs/#", "reason": why, "tries": [tried]}
    assert became == [Outcome.AGAIN]
    (found,) = await told(server, name)
    assert 500 <= found["tries"][0]["seconds"] < 560
    tried["seconds"] = found["tries"][0]["seconds"]
    assert found == {**group, "state": "retry", "attempts": 1, "retry_at": "2026-11-21T08:01:30.000Z"}
    await server.pass_time(90_000)
    assert await told(server, name) == [{**group, "state": "in_flight", "attempts": 2, "by": "w"}]


async def test_by_its_key_it_is_the_same(server: Running) -> None:
    await server.connect("w", TEXT)
    name = await server.schedule("jobs/1", key="order-17")
    await server.app.quiet()
    by_key = (await server.call("GET", "/v1/messages/by-key/order-17", status=200)).body
    assert by_key["deliveries"] == await told(server, name) != []


async def test_what_was_cancelled_was_nobodys(server: Running) -> None:
    await server.connect("w", TEXT)
    name = await server.schedule("jobs/1", deliver_in=60)
    await server.call("DELETE", f"/v1/messages/{name}", status=204)
    assert "deliveries" not in (await server.call("GET", f"/v1/messages/{name}")).body


async def test_that_there_are_more_is_said(server: Running, monkeypatch: Any) -> None:
    monkeypatch.setattr(deliveries, "RECEIVERS_MAX", 1)
    await server.connect("w", TEXT, "$share/others/jobs/#")
    name = await server.schedule("jobs/1")
    await server.app.quiet()
    body = (await server.call("GET", f"/v1/messages/{name}")).body
    assert ([one["group"] for one in body["deliveries"]], body["deliveries_truncated"]) == (["others"], True)


async def test_a_key_is_told_of_its_own(keyed: Keyed) -> None:
    server = keyed.server
    for owner in ("app", "other"):
        keyed.add(owner, "read", "schedule")
        subscriber, _ = await server.connect(f"of {owner}", "jobs/#", f"$share/{owner}/jobs/#")
        subscriber.owner = owner
    name = await keyed.schedule("app", "jobs/1", deliver_in=0)
    await server.app.quiet()

    async def of(key: str) -> list[str]:
        body = await keyed.body(key, "GET", f"/v1/messages/{name}")
        return [one.get("group") or one["session"] for one in body["deliveries"]]

    assert await of("ops") == ["app", "other", "of app", "of other"]
    assert await of("app") == ["app", "of app"]
    assert await of("other") == ["other", "of other"]
