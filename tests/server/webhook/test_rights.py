"""Who may have what delivered where, and who may look at endpoints."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.settings.config import Config, Webhook
from tests.server.conftest import MINUTE_MS, Running, running
from tests.support.keys import KeysFile, with_keys
from tests.support.receiver import Receiver, receiving


class Keyed:
    """A server that asks for keys, with an endpoint."""

    def __init__(self, server: Running, file: KeysFile, receiver: Receiver, ops: str) -> None:
        self.server = server
        self.receiver = receiver
        self._file = file
        self._keys = {"ops": ops}

    def add(self, name: str, *scopes: str, **fields: object) -> None:
        self._keys[name] = self._file.add(name, *scopes, **fields)
        self._take()

    def change(self, name: str, before: str, after: str) -> None:
        self._file.change(name, before, after)
        self._take()

    def _take(self) -> None:
        ring = self.server.app.keyring
        ring.take(ring.read())
        self.server.app.core.review()

    async def call(self, name: str, method: str, path: str, body: object = None, *, status: int = 200) -> Any:
        shown = {"Authorization": f"Bearer {self._keys[name]}"}
        return (await self.server.call(method, path, body, status=status, **shown)).body

    async def send(self, name: str, status: int = 201, **members: object) -> Any:
        return await self.call(name, "POST", "/v1/messages", {"payload": "x", **members}, status=status)


@pytest.fixture
async def keyed(tmp_path: Path, clock: SimulatedClock) -> AsyncIterator[Keyed]:
    file = KeysFile(tmp_path / "keys.toml")
    ops = file.add("ops", "admin")
    settings = replace(with_keys(Config(), file.path), webhook=Webhook(allow_private=True))
    async with receiving() as receiver, running(tmp_path / "data", settings, clock) as server:
        made = Keyed(server, file, receiver, ops)
        await made.call("ops", "PUT", "/v1/endpoints/billing", {"url": receiver.url()}, status=201)
        yield made


@pytest.mark.parametrize("scopes", [("schedule",), ("read",), ("schedule", "read")])
async def test_endpoints_are_the_admin_s(keyed: Keyed, scopes: tuple[str, ...]) -> None:
    keyed.add("app", *scopes)
    body = {"url": "https://example.com/"}
    await keyed.call("app", "PUT", "/v1/endpoints/billing", body, status=403)
    await keyed.call("app", "GET", "/v1/endpoints", status=403)
    await keyed.call("app", "GET", "/v1/endpoints/billing", status=403)
    await keyed.call("app", "DELETE", "/v1/endpoints/billing", status=403)
    for verb in ("pause", "resume", "test"):
        await keyed.call("app", "POST", f"/v1/endpoints/billing:{verb}", status=403)


async def test_who_sets_alerts_may_deliver_to_the_endpoint(keyed: Keyed) -> None:
    keyed.add("app", "read", "schedule", publish=["a/#"], deliver=["jobs/#"])
    keyed.add("told", "read", "schedule", publish=["$deliver/billing"], deliver=["jobs/#"])
    keyed.add("strange", "read", "schedule", publish=["$deliver/nobody"], deliver=["jobs/#"])
    body = {"filter": "jobs/#", "alerts": "billing"}
    refused = await keyed.call("app", "PUT", "/v1/groups/a", body, status=403)
    assert refused["detail"] == "alerts needs the right to $deliver/billing"
    await keyed.call("strange", "PUT", "/v1/groups/a", body, status=403)
    absent = body | {"alerts": "nobody"}
    assert (await keyed.call("strange", "PUT", "/v1/groups/a", absent, status=422))["type"].endswith(
        "refused"
    )
    assert (await keyed.call("told", "PUT", "/v1/groups/t", body, status=201))["alerts"] == "billing"
    await keyed.call("app", "PUT", "/v1/groups/a", {"filter": "jobs/#"}, status=201)


async def test_a_key_without_rules_may_have_all_delivered_anywhere(keyed: Keyed) -> None:
    keyed.add("app", "schedule")
    await keyed.send("app", topic="a", deliver_to="billing")
    await keyed.send("app", topic="a", deliver_to=keyed.receiver.url("/url"))
    await keyed.receiver.posts(2)


async def test_a_key_with_rules_may_where_they_say(keyed: Keyed) -> None:
    keyed.add("all", "schedule", publish=["#"])
    keyed.add("one", "schedule", publish=["orders/#", "$deliver/billing"])
    keyed.add("any", "schedule", publish=["$deliver/+"])
    url = keyed.receiver.url("/url")
    await keyed.send("all", 403, topic="orders/1", deliver_to="billing")
    await keyed.send("all", 403, topic="orders/1", deliver_to=url)
    await keyed.send("one", topic="orders/1", deliver_to="billing")
    await keyed.send("one", deliver_to="billing")
    await keyed.send("one", 403, topic="orders/1", deliver_to=url)
    await keyed.send("one", 403, topic="other", deliver_to="billing")
    await keyed.send("any", deliver_to=url)
    items = [{"topic": "orders/1", "payload": 1}, {"topic": "orders/1", "payload": 2, "deliver_to": url}]
    refused = await keyed.call("one", "POST", "/v1/messages:batch", items, status=403)
    assert refused["errors"][0]["line"] == 2
    each = await keyed.call("one", "POST", "/v1/messages:batch?each=true", items)
    assert [sorted(one) for one in each["results"]] == [["id"], ["problem"]]
    await keyed.receiver.posts(3)


async def test_a_schedule_of_an_admin_with_rules_keeps_to_them(keyed: Keyed) -> None:
    keyed.add("boss", "admin", "schedule", publish=["jobs/#"])
    body = {"every": "1m", "topic": "jobs/x", "deliver_to": "billing"}
    await keyed.call("boss", "PUT", "/v1/schedules/s", body, status=403)
    keyed.change("boss", '"jobs/#"', '"jobs/#", "$deliver/billing"')
    await keyed.call("boss", "PUT", "/v1/schedules/s", body, status=201)


async def test_what_was_allowed_and_is_not_any_more_is_withheld(keyed: Keyed) -> None:
    keyed.add("app", "schedule", publish=["a", "$deliver/billing"])
    await keyed.send("app", topic="a", deliver_to="billing", deliver_in="1m")
    await keyed.send("ops", topic="a", deliver_to="billing", deliver_in="2m")
    keyed.change("app", '"$deliver/billing"', '"$deliver/other"')
    await keyed.server.pass_time(MINUTE_MS)
    assert keyed.server.app.core.owners.withheld == 1
    await keyed.server.pass_time(MINUTE_MS)
    (got,) = await keyed.receiver.posts(1)
    assert got.headers["fasti-due"] == "2026-11-21T08:02:00.000Z"


async def test_an_endpoint_that_is_behind_posts_what_is_allowed_again(keyed: Keyed) -> None:
    """What is withheld when it falls due comes again, for places that were away too."""
    keyed.add("app", "schedule", publish=["a", "$deliver/billing"])
    await keyed.call("ops", "POST", "/v1/endpoints/billing:pause")
    await keyed.send("ops", topic="a", deliver_to="billing", deliver_in="1m")
    withheld = await keyed.send("app", topic="a", deliver_to="billing", deliver_in="2m")
    await keyed.send("ops", topic="a", deliver_to="billing", deliver_in="3m")
    keyed.change("app", '"$deliver/billing"', '"$deliver/other"')
    await keyed.server.pass_time(3 * MINUTE_MS)
    assert keyed.server.app.core.owners.withheld == 1
    keyed.change("app", '"$deliver/other"', '"$deliver/billing"')
    await keyed.call("ops", "POST", "/v1/endpoints/billing:resume")
    posts = await keyed.receiver.posts(3)
    assert withheld["id"] in [one.headers["webhook-id"] for one in posts]


async def test_what_an_endpoint_has_still_to_post_waits_for_the_right(keyed: Keyed) -> None:
    keyed.add("app", "schedule", publish=["a", "$deliver/billing"])
    await keyed.call("ops", "POST", "/v1/endpoints/billing:pause")
    name = (await keyed.send("app", topic="a", deliver_to="billing"))["id"]
    await keyed.send("ops", topic="a", deliver_to="billing")
    await keyed.server.app.quiet()
    keyed.change("app", '"$deliver/billing"', '"$deliver/other"')
    await keyed.call("ops", "POST", "/v1/endpoints/billing:resume")
    await keyed.receiver.posts(1)
    await keyed.server.app.quiet()
    told = await keyed.call("ops", "GET", f"/v1/messages/{name}")
    assert [(one["state"], one["withheld_by"]) for one in told["deliveries"]] == [
        ("withheld", "key 'app' may not publish to '$deliver/billing'")
    ]
    keyed.change("app", '"$deliver/other"', '"$deliver/billing"')
    posts = await keyed.receiver.posts(2)
    assert name == posts[-1].headers["webhook-id"]


async def test_a_key_does_not_see_where_others_have_things_delivered(keyed: Keyed) -> None:
    """The group of an endpoint belongs to nobody's key, so who is no admin is not told of it."""
    keyed.add("app", "schedule", "read")
    name = (await keyed.send("app", topic="a", deliver_to="billing"))["id"]
    await keyed.receiver.posts(1)
    await keyed.server.app.quiet()
    assert (await keyed.call("app", "GET", f"/v1/messages/{name}"))["deliveries"] == []
    assert len((await keyed.call("ops", "GET", f"/v1/messages/{name}"))["deliveries"]) == 1
    assert (await keyed.call("app", "GET", "/v1/sessions"))["sessions"] == []
