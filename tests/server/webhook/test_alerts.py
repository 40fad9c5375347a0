"""Alerts: an endpoint is posted what dies at a place, signed and tried again like all posts."""

import json
from typing import Any

from server.webhook.signing import secret_of, signatures
from tests.server.conftest import MINUTE_MS, Running, Start
from tests.support.receiver import Receiver, answer

from .conftest import dead, put, settled, shown

GROUP = "/v1/groups/mail"
JOBS = {"filter": "jobs/#", "alerts": "ops"}


def told(receiver: Receiver) -> list[dict[str, Any]]:
    """The alerts that came, in order."""
    return [json.loads(got.body) for got in receiver.got if got.path == "/ops"]


SECRET = "whsec_" + "QUFB" * 8


async def with_ops(server: Running, receiver: Receiver, **members: object) -> None:
    """An endpoint for alerts, and a group of whose messages it is told."""
    await put(server, receiver, "ops", url=receiver.url("/ops"), **members)
    await server.call("PUT", GROUP, JOBS, status=201)


async def kill(server: Running, count: int = 1, **said: object) -> list[str]:
    """Messages of the group that become dead letters."""
    ids = await server.batch([{"topic": f"jobs/{number}", "payload": 1} for number in range(count)])
    await server.app.quiet()
    body = {"filter": "jobs/#", "max": 100}
    while leases := (await server.call("POST", f"{GROUP}/messages:lease", body)).body["messages"]:
        nack = {"lease_ids": [one["lease_id"] for one in leases], "delay": "never", **said}
        await server.call("POST", f"{GROUP}/messages:nack", nack)
    await server.app.quiet()
    return ids


async def test_of_a_dead_letter_an_endpoint_is_told(server: Running, receiver: Receiver) -> None:
    await with_ops(server, receiver)
    (name,) = await kill(server, reason="no")
    (got,) = await receiver.posts(1)
    assert (got.headers["content-type"], got.headers["fasti-topic"]) == ("application/json", "$alerts/ops")
    (alert,) = told(receiver)
    assert alert.pop("at").startswith("2026-11-21T08:00:0")
    assert alert == {
        "group": "mail",
        "event": "dead",
        "attempts": 1,
        "id": name,
        "topic": "jobs/0",
        "reason": "no",
    }
    alerts = (await server.call("GET", f"/v1/messages/{got.headers['webhook-id']}")).body
    assert (alerts["topic"], alerts["deliver_to"]) == ("$alerts/ops", "ops")
    assert (await server.call("GET", GROUP)).body["groups"][0]["alerts"] == "ops"


async def test_an_alert_is_signed_and_tried_again(server: Running, receiver: Receiver) -> None:
    await with_ops(server, receiver, secret=SECRET, retry={"backoff": ["1s"]})
    receiver.behave = answer(503)
    await kill(server)
    await receiver.posts(1)
    await settled(server)
    receiver.behave = answer(200)
    await server.pass_time(2_000)
    first, again = await receiver.posts(2)
    assert (first.body, first.headers["webhook-id"]) == (again.body, again.headers["webhook-id"])
    stamp, name = int(again.headers["webhook-timestamp"]), again.headers["webhook-id"]
    assert again.headers["webhook-signature"] == signatures([secret_of(SECRET)], name, stamp, again.body)


async def test_endpoints_that_alert_each_other_end(server: Running, receiver: Receiver) -> None:
    once = {"retry": {"max_attempts": 1}}
    await put(server, receiver, "ops", url=receiver.url("/ops"), **once)
    await put(server, receiver, **once, alerts="ops")
    body = {"url": receiver.url("/ops"), **once, "alerts": "billing"}
    assert (await server.call("PUT", "/v1/endpoints/ops", body)).body["alerts"] == "billing"
    receiver.behave = answer(500)
    name = await server.schedule("a", deliver_to="billing")
    await receiver.posts(2)
    await settled(server)
    await server.pass_time(2 * MINUTE_MS)
    await settled(server)
    (alert,) = told(receiver)
    assert (alert["endpoint"], alert["event"], alert["id"]) == ("billing", "dead", name)
    assert "500" in alert["reason"]
    assert [one["group"] for one in await dead(server)] == ["$endpoint/billing", "$endpoint/ops"]


async def test_an_alert_is_kept_over_a_restart(start: Start, receiver: Receiver) -> None:
    async with start() as server:
        await with_ops(server, receiver)
        await server.call("POST", "/v1/endpoints/ops:pause")
        await kill(server, 2)
    async with start() as server:
        assert (await shown(server, "ops"))["lag_messages"] == 2
        assert (await server.call("GET", GROUP)).body["groups"][0]["alerts"] == "ops"
        await server.call("POST", "/v1/endpoints/ops:resume")
        await receiver.posts(2)
        assert [one["topic"] for one in told(receiver)] == ["jobs/0", "jobs/1"]
        await server.call("PUT", GROUP, {"filter": "jobs/#"})
        await kill(server, 1)
        await server.pass_time(MINUTE_MS)
        assert len(told(receiver)) == 2, "a PUT without alerts ends them"


async def test_an_endpoint_that_alerts_go_to_may_be_deleted(server: Running, receiver: Receiver) -> None:
    await with_ops(server, receiver)
    await server.call("DELETE", "/v1/endpoints/ops", status=204)
    await kill(server, 3)
    metrics = (await server.call("GET", "/metrics")).body
    assert b"fasti_alerts_dropped_total 3" in metrics
    refused = await server.call("PUT", GROUP, JOBS, status=422)
    assert refused.body["errors"] == [{"field": "alerts", "detail": "alerts endpoint 'ops' not found"}]
