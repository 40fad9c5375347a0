"""`GET /v1/messages/{id}/why`: each sentence is said, and each reason to wait, whatever a group keeps."""

import re
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest

from server.delivery import deliveries
from server.delivery.outcomes import Outcome
from server.http import why
from server.http.values import shapes
from server.settings.times import time_text
from shards.fields import Record
from tests.support.tables import ROOT
from timeline.position import START, message_id, position

from ..conftest import HOUR_MS, MINUTE_MS, Running
from .conftest import Keyed

MESSAGES = "/v1/messages"


class Noted(dict[str, str]):
    """A table that notes what is read of it."""

    def __init__(self, table: dict[str, str]) -> None:
        super().__init__(table)
        self.read = set[str]()

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return super().__getitem__(name)


@dataclass
class Tour:
    """Calls of `ops`, which may do everything, and what was said."""

    keyed: Keyed
    said: Noted
    waits: Noted
    names: dict[str, str] = field(default_factory=dict)

    @property
    def server(self) -> Running:
        return self.keyed.server

    async def call(self, path: str, body: object = None, method: str = "POST", status: int = 200) -> Any:
        return await self.keyed.body("ops", method, path, body, status=status)

    async def send(self, topic: str, **members: object) -> str:
        body = {"topic": topic, "payload": "x", "deliver_in": 0, **members}
        name: str = (await self.call(MESSAGES, body, status=201))["id"]
        await self.server.app.quiet()
        return name

    async def group(self, name: str, method: str = "PUT", **terms: object) -> None:
        terms = {"filter": f"{name}/#", "backoff": [60], "ack_timeout": "30s", **terms}
        answer = await self.keyed.call("ops", method, f"/v1/groups/{name}", terms, status=None)
        assert answer.status in (200, 201), answer.body

    async def lease(self, group: str) -> dict[str, Any]:
        body = {"max": 1}
        (leased,) = (await self.call(f"/v1/groups/{group}/messages:lease", body))["messages"]
        return leased  # type: ignore[no-any-return]

    async def settle(self, group: str, verb: str, leased: dict[str, Any], **more: object) -> None:
        body = {"lease_ids": [leased["lease_id"]], **more}
        await self.call(f"/v1/groups/{group}/messages:{verb}", body)
        await self.server.app.quiet()

    async def why(self, name: str, key: str = "ops") -> tuple[list[str], str | None]:
        told = await self.keyed.body(key, "GET", f"{MESSAGES}/{name}/why", status=200)
        return told["sentences"], told["waits_for"]


@pytest.fixture
def tour(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> Tour:
    made = Tour(keyed, Noted(why.SENTENCES), Noted(why.WAITS))
    monkeypatch.setattr(why, "SENTENCES", made.said)
    monkeypatch.setattr(why, "WAITS", made.waits)
    return made


async def before_it_is_due(t: Tour) -> None:
    name = await t.send("jobs/a", deliver_in=60)
    assert await t.why(name) == (
        ["API key 'ops' sent it, to be due at 2026-11-21T08:01:00.000Z."],
        "its due time, 2026-11-21T08:01:00.000Z",
    )
    await t.call(f"{MESSAGES}/{name}", {"deliver_in": 120}, "PATCH")
    (_, moved), _ = await t.why(name)
    assert moved == "It was moved to 2026-11-21T08:02:00.000Z."
    gone = await t.send("jobs/a", deliver_in=60)
    await t.keyed.call("ops", "DELETE", f"{MESSAGES}/{gone}", status=204)
    assert (await t.why(gone))[0][-1].startswith("It was cancelled at ")
    late = await t.send("jobs/a", deliver_in=60, expires_in=1)
    t.server.clock.now_ms += 3 * MINUTE_MS
    await t.server.app.quiet()
    assert (await t.why(late))[0][-1].startswith("It was dropped at ")
    unclaimed = await t.send("none")
    assert (await t.why(unclaimed))[0][-1].startswith("Nothing was to get it")
    await t.call("/v1/schedules/daily", {"topic": "none", "payload": "x", "every": "1h"}, "PUT", 201)
    page = (await t.call(f"{MESSAGES}?topic=none", method="GET"))["messages"]
    assert (await t.why(page[0]["id"]))[0][0].startswith("The schedule 'daily' sent it")


async def withheld_and_released(t: Tour) -> None:
    t.keyed.add("shop", "schedule", "read")
    name = await t.keyed.schedule("shop", "none/1", deliver_in=5)
    t.keyed.file.revoke("shop")
    t.keyed.take()
    await t.server.pass_time(5_000)
    said, waits = await t.why(name)
    assert (said[-1], waits) == (
        "It was due, and nobody is given it: key 'shop' is revoked.",
        "the right of its sender: key 'shop' is revoked",
    )
    t.keyed.add("shop", "schedule", "read")
    t.server.app.core.review()
    await t.server.app.quiet()
    assert (await t.why(name))[0][1].startswith("It was withheld until ")


async def tries(t: Tour, keep: object) -> None:
    await t.group("jobs", keep=keep, max_attempts=2)
    first = await t.send("jobs/1")
    said, waits = await t.why(first)
    assert said[-1] == "group 'jobs': it was not given yet."
    assert str(waits).startswith("group 'jobs': no worker is connected or asks for messages, since 20")
    leased = await t.lease("jobs")
    said, waits = await t.why(first)
    assert said[-1] == "group 'jobs': (pull) has it, try 1."
    assert str(waits).startswith("group 'jobs': the answer of (pull), or the end of its lease at ")
    await t.settle("jobs", "ack", leased)
    said, waits = await t.why(first)
    assert waits is None
    if keep in ("failed", "none"):
        assert said[-1].endswith(f"Not kept: keep is {keep}.")
    else:
        assert said[-1].startswith("group 'jobs': (pull) was done with it at ")
    name = await t.send("jobs/2")
    await t.settle("jobs", "nack", await t.lease("jobs"), reason="db is down")
    said, waits = await t.why(name)
    assert said[-2].endswith(", failed: db is down.")
    assert said[-1] == "group 'jobs': it comes again."
    assert str(waits).startswith("group 'jobs': the next try at ")
    await t.server.pass_time(HOUR_MS)
    await t.settle("jobs", "ack", await t.lease("jobs"))
    said, waits = await t.why(name)
    if keep == "none":
        assert said[-1].endswith("Not kept: keep is none.")
    else:
        assert (said[-1].endswith(", try 2."), waits) == (True, None)
        assert "db is down" in said[-2]
    dead = await t.send("jobs/3")
    for _ in range(2):
        await t.settle("jobs", "nack", await t.lease("jobs"), reason="no")
        await t.server.pass_time(HOUR_MS)
    assert (await t.why(dead))[0][-1] == "group 'jobs': it is a dead letter after 2 tries: no."
    await t.call("/v1/dead:drop", {"ids": [dead]})
    assert "dropped undone" in (await t.why(dead))[0][-1]


async def what_a_group_waits_for(t: Tour, monkeypatch: pytest.MonkeyPatch) -> None:
    name, core, text = await t.send("jobs/4"), t.server.app.core, "$share/rated/rated/#"
    await t.call("/v1/groups/jobs:pause")
    assert (await t.why(name))[1] == "group 'jobs': paused"
    await t.call("/v1/groups/jobs:resume")
    member, _ = await t.server.connect("m", text, window=1)
    rated = t.server.group(text)
    core.clients.leave(member, is_clean=False)
    first = await t.send("rated/1")
    assert "no worker is connected or asks for messages, since 20" in str((await t.why(first))[1])
    await t.server.connect("m", window=1)
    await t.server.app.quiet()
    assert (await t.why(first))[1] == "group 'rated': the answer of m"
    waits = await t.send("rated/2")
    assert "have as many messages as they take; 1 are in flight" in str((await t.why(waits))[1])
    core.leases.drained_since_ms = 1
    assert "the server drains" in str((await t.why(waits))[1])
    core.leases.drained_since_ms = None
    rated.agree(rated.terms, rated.keeping._replace(rate=0.001))
    assert rated.rate_limiter is not None
    rated.rate_limiter.spend(10)
    assert "its rate of 0.001 messages a second" in str((await t.why(waits))[1])
    rated.agree(rated.terms, rated.keeping._replace(rate=0))
    with monkeypatch.context() as patch:
        patch.setattr(type(rated), "find_room", lambda _: 1)
        assert "its turn; the group has read to 20" in str((await t.why(waits))[1])


async def keys_in_order(t: Tour) -> None:
    await t.group("line", order=True, on_dead="hold", max_attempts=2)
    await t.server.connect("l", "$share/line/line/#")
    first, second = [await t.send("line/1", ordering_key="k") for _ in range(2)]
    assert "those before it under the ordering key 'k'" in str((await t.why(second))[1])
    member = t.server.session("l")
    (packet_id,) = member.session.flights
    t.server.app.core.settling.nack(member, packet_id, delay_ms=None, reason="no", done=str)
    await t.server.app.quiet()
    said = str((await t.why(second))[1])
    assert said.startswith("group 'line': the message of 2026")
    await t.call("/v1/groups/line/keys/k:hold")
    assert (await t.why(second))[1] == "group 'line': the ordering key 'k' is held"
    assert first != second


async def a_retry_that_is_withheld(t: Tour) -> None:
    t.keyed.add("shop", "schedule", "read")
    await t.group("own")
    name = await t.keyed.schedule("shop", "own/1", deliver_in=0)
    await t.server.app.quiet()
    leased = await t.lease("own")
    t.keyed.file.revoke("shop")
    t.keyed.take()
    t.server.app.core.review()
    await t.settle("own", "nack", leased, reason="no")
    await t.server.pass_time(HOUR_MS)
    await t.call("/v1/groups/own/messages:lease", {"max": 1})
    await t.server.app.quiet()
    said, waits = await t.why(name)
    assert said[-1] == "group 'own': it is withheld: key 'shop' is revoked."
    assert waits == "the right of its sender: key 'shop' is revoked"
    assert said[-2].endswith(", failed: no.")


async def more_tries_than_are_kept(t: Tour) -> None:
    await t.group("often", max_attempts=0)
    name = await t.send("often/1")
    for _ in range(22):
        await t.settle("often", "nack", await t.lease("often"), reason="no")
        await t.server.pass_time(HOUR_MS)
    said, _ = await t.why(name)
    assert "group 'often': of 2 earlier tries nothing is known." in said
    assert len(said) == 2 + 1 + 20 + 1


async def what_a_key_does_not_see(t: Tour, monkeypatch: pytest.MonkeyPatch) -> None:
    t.keyed.add("app", "read", publish=["jobs/#"])
    name = await t.send("jobs/5")
    said, waits = await t.why(name, "app")
    assert (said[-1].endswith("it is queued."), waits) == (True, None)
    assert "group" not in " ".join(said)
    await t.server.connect("x", "$share/others/jobs/#")
    monkeypatch.setattr(deliveries, "RECEIVERS_MAX", 1)
    assert (await t.why(await t.send("jobs/6")))[0][-1] == "There are more places, which are not listed."


def the_clock(t: Tour) -> None:
    """Of a pending message that dispatch should have reached, or has passed."""
    core, at_ms = t.server.app.core, 1_000
    view = shapes.MessageShown("0" * 32, "a", time_text(at_ms), "pending", 1)
    place = position(at_ms, 1)
    name = message_id(place, 0, 0)
    shown = why.Shown(view, name, place, Record(b"a", b""), name)
    assert why.why_of(shown, core.groups, START, at_ms).waits_for == (
        "dispatch, which has come to 1970-01-01T00:00:00.000Z"
    )
    told = why.why_of(shown, core.groups, place, at_ms)
    assert told.waits_for == "the clock, which was set back, to reach 1970-01-01T00:00:01.000Z"
    assert told.sentences == ["It was to be due at 1970-01-01T00:00:01.000Z."]


@pytest.mark.parametrize("keep", ["failed", "all", "none", "1d"])
async def test_each_sentence_is_said(tour: Tour, monkeypatch: pytest.MonkeyPatch, keep: str) -> None:
    await before_it_is_due(tour)
    await withheld_and_released(tour)
    await tries(tour, keep)
    await what_a_group_waits_for(tour, monkeypatch)
    await keys_in_order(tour)
    await a_retry_that_is_withheld(tour)
    await more_tries_than_are_kept(tour)
    await what_a_key_does_not_see(tour, monkeypatch)
    the_clock(tour)
    never = {"none": {"done"}, "all": {"not_kept"}, "1d": {"not_kept"}}.get(keep, set())
    assert why.SENTENCES.keys() - tour.said.read == never
    assert why.WAITS.keys() == tour.waits.read


def test_the_page_by_symptom_quotes_what_is_said() -> None:
    page = (ROOT / "docs" / "why.md").read_text(encoding="utf-8")
    quoted = re.findall(r'"([^"]+)"', page.partition("## By symptom")[2].partition("\n## ")[0])
    templates = [*why.SENTENCES.values(), *why.WAITS.values()]
    texts = [re.sub(r" '?{\w+}'?", "", one) for one in templates]
    assert len(quoted) > 5
    assert [one for one in quoted if one != "all" and not any(one in text for text in texts)] == []
    named = {*re.findall(r"(?m)^\|[^|]*`([a-z]+)`", page)} - {"outcome"}
    assert named == {*get_args(Outcome)}


async def test_it_is_said_of_those_who_post(server: Running) -> None:
    await server.call("PUT", "/v1/endpoints/e", {"url": "https://a.invalid/"}, status=201)
    await server.call("POST", "/v1/endpoints/e:pause")
    name = await server.schedule(deliver_to="e")
    await server.app.quiet()
    told = (await server.call("GET", f"{MESSAGES}/{name}/why")).body
    assert told["waits_for"] == "endpoint 'e': paused"
    assert told["sentences"][-1] == "endpoint 'e': it was not given yet."
    await server.call("GET", f"{MESSAGES}/{'0' * 32}/why", status=404)


async def test_a_group_may_be_called_as_its_filter(tour: Tour) -> None:
    await tour.group("x", filter="x", keep="none")
    name = await tour.send("x")
    assert str((await tour.why(name))[1]).startswith("group 'x': no worker")
    await tour.settle("x", "ack", await tour.lease("x"))
    assert (await tour.why(name))[0][-1].endswith("Not kept: keep is none.")
    again = await tour.send("x")
    assert (await tour.why(again))[1] == "group 'x': no worker is connected or asks for messages"


async def test_what_was_never_tried_is_queued_also_if_it_has_a_row(tour: Tour) -> None:
    tour.keyed.add("shop", "schedule", "read")
    for group in ("own", "own2"):
        await tour.group(group, filter="own/#")
    name = await tour.keyed.schedule("shop", "own/1", deliver_in=0)
    await tour.server.app.quiet()
    tour.keyed.file.revoke("shop")
    tour.keyed.take()
    tour.server.app.core.review()
    for group in ("own", "own2"):
        await tour.call(f"/v1/groups/{group}/messages:lease", {"max": 1})
        await tour.server.app.quiet()
    assert (await tour.why(name))[1] == "the right of its sender: key 'shop' is revoked"
    tour.keyed.add("shop", "schedule", "read")
    tour.server.app.core.review()
    await tour.server.app.quiet()
    said, _ = await tour.why(name)
    assert said[-2:] == [f"group '{group}': it was not given yet." for group in ("own", "own2")]
    assert (await tour.call(f"{MESSAGES}/{name}", method="GET"))["outcome"] == "queued"


async def test_a_new_group_of_the_name_has_not_done_what_the_former_dropped(tour: Tour) -> None:
    await tour.group("jobs", max_attempts=1)
    name = await tour.send("jobs/1")
    await tour.settle("jobs", "nack", await tour.lease("jobs"), reason="no")
    await tour.call("/v1/dead:drop", {"ids": [name]})
    before = await tour.why(name)
    await tour.keyed.call("ops", "DELETE", "/v1/groups/jobs", status=204)
    await tour.server.app.quiet()
    await tour.group("jobs")
    assert await tour.why(name) == before


async def test_right_after_an_ack_its_story_is_known(tour: Tour) -> None:
    text = "$share/jobs/jobs/#"
    await tour.group("jobs", keep="all", backoff=[0])
    await tour.server.connect("m", text)
    name, settling = await tour.send("jobs/1"), tour.server.app.core.settling
    member = tour.server.session("m")
    settling.nack(member, *member.session.flights, delay_ms=0, reason="no", done=str)
    await tour.server.app.quiet()
    settling.ack(member, *member.session.flights)
    assert tour.server.group(text).rows.ended
    said, waits = await tour.why(name)
    assert (said[-1].startswith("group 'jobs': m was done with it"), waits) == (True, None)
    assert said[-1].endswith(", try 2.")
    assert said[-2].endswith(", failed: no.")


async def test_the_head_of_a_key_does_not_wait_for_its_key(tour: Tour) -> None:
    await tour.group("line", order=True, on_dead="hold", max_attempts=1)
    first, second = [await tour.send("line/1", ordering_key="k") for _ in range(2)]
    await tour.settle("line", "nack", await tour.lease("line"), reason="no")
    await tour.call("/v1/dead:requeue", {"ids": [first]})
    await tour.server.app.quiet()
    nobody = "group 'line': no worker is connected or asks for messages"
    assert (await tour.why(first))[1] == nobody
    assert str((await tour.why(second))[1]).startswith("group 'line': the message of 2026")
    await tour.settle("line", "ack", await tour.lease("line"))
    assert (await tour.why(second))[1] == nobody


async def test_that_a_key_is_held_comes_before_that_nobody_is_there(tour: Tour) -> None:
    await tour.group("line", order=True)
    await tour.call("/v1/groups/line/keys/k:hold")
    name = await tour.send("line/1", ordering_key="k")
    assert (await tour.why(name))[1] == "group 'line': the ordering key 'k' is held"


async def test_what_was_skipped_untried_and_requeued_for_later_is_queued(tour: Tour) -> None:
    await tour.group("jobs")
    name = await tour.send("jobs/1")
    await tour.call("/v1/groups/jobs:skip", {})
    await tour.server.app.quiet()
    assert (await tour.why(name))[0][-1] == "group 'jobs': it is a dead letter after 0 tries: skipped."
    await tour.call("/v1/dead:requeue", {"ids": [name], "deliver_in": 30})
    await tour.server.app.quiet()
    shown = await tour.call(f"{MESSAGES}/{name}", method="GET")
    assert (shown["outcome"], shown["deliveries"][0]["state"]) == ("queued", "retry")
    said, waits = await tour.why(name)
    assert said[-1] == "group 'jobs': it was not given yet."
    assert waits == "group 'jobs': the next try at 2026-11-21T08:00:30.000Z"
    assert (await tour.call(f"{MESSAGES}?outcome=retrying", method="GET"))["messages"] == []
