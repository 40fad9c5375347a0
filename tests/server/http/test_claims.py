"""`POST /v1/messages?claims=true`: how many groups, endpoints and sessions would get the message now."""

from typing import Any

import pytest

from ..conftest import Running, with_settings
from .conftest import Keyed, connected

NOBODY = {"groups": 0, "endpoints": 0, "sessions": 0}
PATH = "/v1/messages?claims=true"


pytestmark = with_settings(webhook={"allow_private": True})


async def claims(server: Running, topic: str = "jobs/1", **members: object) -> Any:
    body = {"topic": topic, "payload": "x", "deliver_in": 3_600, **members}
    return (await server.call("POST", PATH, body, status=201)).body["claims"]


async def test_they_are_told_when_they_are_asked_for(server: Running) -> None:
    assert await claims(server) == NOBODY
    for query in ("", "?claims=false"):
        body = {"topic": "jobs/1", "payload": "x"}
        answer = await server.call("POST", f"/v1/messages{query}", body, status=201)
        assert set(answer.body) == {"id", "deliver_at", "state", "server_time"}


async def test_each_who_would_get_it_counts_once_also_away_or_paused(server: Running) -> None:
    await server.call("PUT", "/v1/groups/a", {"filter": "jobs/#"}, status=201)
    await server.call("PUT", "/v1/groups/a", {"filter": "jobs/+"}, status=201)
    await server.call("PUT", "/v1/groups/a", {"filter": "other"}, status=201)
    await server.call("POST", "/v1/groups/a:pause")
    away, _ = await server.connect("away", "jobs/1", "#")
    await server.connect("here", "jobs/1", "$share/b/jobs/1")
    server.app.core.clients.leave(away, is_clean=False)
    assert await claims(server) == {"groups": 3, "endpoints": 0, "sessions": 2}


async def test_the_endpoint_that_it_is_delivered_to(server: Running) -> None:
    for name in ("billing", "other"):
        url = {"url": "http://127.0.0.1:9/"}
        await server.call("PUT", f"/v1/endpoints/{name}", url, status=201)
    await server.connect("s", "jobs/#")
    assert await claims(server) == {"groups": 0, "endpoints": 0, "sessions": 1}
    assert await claims(server, deliver_to="billing") == {"groups": 0, "endpoints": 1, "sessions": 1}
    assert (await claims(server, deliver_to="http://127.0.0.1:9/x"))["endpoints"] == 1


async def test_again_under_its_key_it_is_what_would_get_it_by_now(server: Running) -> None:
    body = {"topic": "jobs/1", "payload": "x", "key": "k", "deliver_at": "2030-01-01T00:00:00Z"}
    first = (await server.call("POST", PATH, body, status=201)).body
    await server.connect("s", "jobs/#")
    again = (await server.call("POST", PATH, body)).body
    assert (again["id"], again["claims"]) == (first["id"], {**NOBODY, "sessions": 1})


async def test_with_spread_too(server: Running) -> None:
    await server.connect("s", "jobs/#")
    assert (await claims(server, spread="PT1M"))["sessions"] == 1


@pytest.mark.parametrize("query", ["claims=yes", "claims=true&claims=true", "replace=yes"])
async def test_what_is_no_answer_to_whether_is_refused(server: Running, query: str) -> None:
    body = {"topic": "jobs/1", "payload": "x"}
    answer = await server.call("POST", f"/v1/messages?{query}", body, status=422)
    assert answer.body["errors"][0]["field"] == query.partition("=")[0]
    await server.call("POST", "/v1/messages:batch?claims=true", [body], status=422)
    assert (await server.call("GET", "/v1/messages?state=all&count=true")).body["count"] == 0


async def test_a_key_counts_those_that_it_sees(keyed: Keyed) -> None:
    for name in ("a", "b"):
        keyed.add(name)
        await connected(keyed, name, f"{name}1", "jobs/#", f"$share/own-{name}/jobs/#", "$share/both/jobs/#")
    body = {"topic": "jobs/1", "payload": "x", "deliver_in": 3_600}
    seen = {name: await keyed.body(name, "POST", PATH, body, status=201) for name in ("a", "b", "ops")}
    assert seen["a"]["claims"] == {"groups": 2, "endpoints": 0, "sessions": 1}, "it made the one of both"
    assert seen["b"]["claims"] == {"groups": 1, "endpoints": 0, "sessions": 1}
    assert seen["ops"]["claims"] == {"groups": 3, "endpoints": 0, "sessions": 2}
    keyed.add("poster", "schedule")
    await keyed.call("ops", "PUT", "/v1/endpoints/billing", {"url": "http://127.0.0.1:9/"}, status=201)
    posted = await keyed.body("poster", "POST", PATH, {**body, "deliver_to": "billing"}, status=201)
    assert posted["claims"] == {**NOBODY, "endpoints": 1}, "it has named that one"
