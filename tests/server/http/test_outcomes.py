"""What has become of messages: `outcome` of one, in lists and as a filter."""

import re
from typing import Any, get_args

import pytest

from server.delivery import outcomes
from server.delivery.outcomes import WORST, Outcome
from server.http import selection, why
from server.http.turns import Turn
from tests.support.tables import ROOT
from timeline.session import Terms

from ..conftest import MINUTE_MS, Running, with_settings
from .conftest import Keyed
from .test_dead import TEXT, give_up

pytestmark = with_settings(sessions={"max_attempts": 1})
LIST = "/v1/messages"


async def outcome(server: Running, name: str) -> str:
    """As told of the message alone, and in the list of all; the worst of its deliveries to groups."""
    told = (await server.call("GET", f"{LIST}/{name}", status=200)).body
    rows = await listed(server, "state=all&outcomes=true&limit=1000")
    assert told["outcome"] == rows.get(name, told["outcome"])
    each = [_of(one) for one in told.get("deliveries", ()) if "group" in one]
    if each:
        assert told["outcome"] == min(each, key=WORST.index)
    return str(told["outcome"])


def _of(delivery: dict[str, Any]) -> str:
    state = delivery["state"]
    is_untried = state in ("waiting", "retry") and not delivery["attempts"]
    return "queued" if is_untried else why.OUTCOMES[state]


async def listed(server: Running, query: str) -> dict[str, str]:
    """Outcome by id, of all pages."""
    found: dict[str, str] = {}
    cursor = ""
    while True:
        page = (await server.call("GET", f"{LIST}?{query}{cursor}", status=200)).body
        for one in page["messages"]:
            assert one["id"] not in found
            found[one["id"]] = one["outcome"]
        if page["next"] is None:
            return found
        cursor = f"&cursor={page['next']}"


async def selected(server: Running, wanted: str, more: str = "") -> list[str]:
    found = await listed(server, f"outcome={wanted}&count=true{more}")
    assert set(found.values()) <= {wanted}
    return [*found]


async def ack(server: Running, name: str) -> None:
    """The session acks all that it has."""
    member = server.session(name)
    for packet_id in [*member.session.flights]:
        server.app.core.settling.ack(member, packet_id)
    await server.app.quiet()


async def test_a_life_that_ends_well(server: Running) -> None:
    member, _ = await server.connect("w", TEXT)
    name = await server.schedule("jobs/1", deliver_in=60)
    assert await outcome(server, name) == "pending"
    server.app.core.clients.leave(member, is_clean=False)
    await server.pass_time(MINUTE_MS)
    assert await outcome(server, name) == "queued"
    await server.connect("w")
    await server.app.quiet()
    assert await outcome(server, name) == "running"
    assert await selected(server, "done") == []
    await ack(server, "w")
    assert await outcome(server, name) == "done"
    assert await selected(server, "done") == [name]
    assert await selected(server, "done", "&state=pending") == []


async def test_a_life_that_ends_badly(server: Running) -> None:
    member, _ = await server.connect("w", TEXT)
    workers = server.group(TEXT)
    workers.agree(Terms(max_attempts=2), workers.keeping)
    name = await server.schedule("jobs/1")
    await server.app.quiet()
    (packet_id,) = member.session.flights
    server.app.core.settling.nack(member, packet_id, delay_ms=90_000, reason="no", done=str)
    await server.app.quiet()
    assert await outcome(server, name) == "retrying"
    assert await selected(server, "retrying") == [name]
    await server.pass_time(90_000)
    assert await outcome(server, name) == "running"
    assert await selected(server, "retrying") == []
    (packet_id,) = member.session.flights
    server.app.core.settling.nack(member, packet_id, delay_ms=None, reason="no", done=str)
    await server.app.quiet()
    assert await outcome(server, name) == "failed"
    assert await selected(server, "failed") == [name]
    await server.call("POST", "/v1/dead:drop", {"ids": [name]}, status=200)
    assert await outcome(server, name) == "dropped"
    assert await selected(server, "failed") == []


async def test_the_worst_of_several_places_counts(server: Running) -> None:
    await server.connect("w", TEXT)
    await server.connect("x", "$share/others/jobs/#")
    others = server.group("$share/others/jobs/#")
    others.agree(Terms(max_attempts=3), others.keeping)
    name = await server.schedule("jobs/1")
    await server.app.quiet()
    await ack(server, "x")
    assert await outcome(server, name) == "running"
    await give_up(server, "w", TEXT)
    assert await outcome(server, name) == "failed"
    again = await server.schedule("jobs/2")
    await server.app.quiet()
    await ack(server, "w")
    await give_up(server, "x", TEXT)
    assert (await outcome(server, again), await outcome(server, name)) == ("retrying", "failed")
    assert await listed(server, "outcomes=true&state=dispatched") == {name: "failed", again: "retrying"}


async def test_what_nobody_was_to_get_is_unclaimed(server: Running) -> None:
    name = await server.schedule("jobs/1")
    kept = await server.schedule("jobs/1", retain=True)
    await server.app.quiet()
    await server.connect("w", TEXT)
    assert (await outcome(server, name), await outcome(server, kept)) == ("unclaimed", "done")


async def test_a_session_counts_with_what_went_wrong(server: Running) -> None:
    await server.connect("s", "jobs/#")
    name = await server.schedule("jobs/1")
    await server.app.quiet()
    assert await outcome(server, name) == "done"
    await give_up(server, "s", "jobs/#")
    assert await outcome(server, name) == "failed"
    await server.call("POST", "/v1/dead:requeue", {"ids": [name], "deliver_in": 90}, status=200)
    assert await outcome(server, name) == "retrying"
    await server.call("POST", "/v1/retries:drop", {"ids": [name]}, status=200)
    assert await outcome(server, name) == "done"


async def test_what_is_behind_its_key_or_at_qos_2_or_returned(server: Running) -> None:
    terms = {"filter": "jobs/#", "order": True}
    await server.call("PUT", "/v1/groups/workers", terms, status=201)
    member, _ = await server.connect("w", TEXT)
    first, second = [await server.schedule("jobs/1", ordering_key="k") for _ in range(2)]
    third = await server.schedule("jobs/1", qos=2)
    await server.app.quiet()
    assert [await outcome(server, name) for name in (first, second, third)] == [
        "running",
        "queued",
        "running",
    ]
    server.app.core.clients.leave(member, is_clean=True)
    await server.app.quiet()
    assert [await outcome(server, name) for name in (first, second)] == ["queued", "queued"]
    await server.connect("w")
    await server.app.quiet()
    packets = [number for number, one in server.session("w").session.flights.items() if one.qos == 1]
    server.app.core.settling.ack(server.session("w"), *packets)
    await server.app.quiet()
    assert [await outcome(server, name) for name in (first, second)] == ["done", "running"]


async def test_what_is_posted(server: Running) -> None:
    await server.call("PUT", "/v1/endpoints/e", {"url": "https://a.invalid/"}, status=201)
    await server.call("POST", "/v1/endpoints/e:pause")
    named = await server.schedule(deliver_to="e")
    await server.app.quiet()
    assert await outcome(server, named) == "queued"
    await server.call("DELETE", "/v1/endpoints/e?undone=dead", status=None)
    await server.app.quiet()
    assert await outcome(server, named) == "failed"


async def test_a_replay_makes_it_queued_until_it_is_read_again(server: Running) -> None:
    member, _ = await server.connect("w", TEXT)
    name = await server.schedule("jobs/1")
    await server.app.quiet()
    await give_up(server, "w", TEXT)
    assert await outcome(server, name) == "failed"
    member = server.session("w")
    server.app.core.clients.leave(member, is_clean=False)
    await server.call("POST", "/v1/groups/workers:replay", {"from": "PT1H"}, status=None)
    await server.app.quiet()
    assert await outcome(server, name) == "queued"
    await server.connect("w")
    await server.app.quiet()
    assert await outcome(server, name) == "running"
    await ack(server, "w")
    assert await outcome(server, name) == "done"
    assert await selected(server, "failed") == []


async def test_states_are_outcomes(server: Running) -> None:
    gone = await server.schedule("jobs/1", deliver_in=60)
    await server.call("DELETE", f"{LIST}/{gone}", status=204)
    late = await server.schedule("jobs/1", deliver_in=60, expires_in=1)
    server.clock.now_ms += 2 * MINUTE_MS
    await server.app.quiet()
    assert (await outcome(server, gone), await outcome(server, late)) == ("cancelled", "expired")


async def test_pages_of_a_filter(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await server.connect("w", TEXT)
    names = []
    for number in range(7):
        names.append(await server.schedule(f"jobs/{number}"))
        await server.schedule(f"others/{number}")
        await server.app.quiet()
        if number % 2:
            await ack(server, "w")
        else:
            await give_up(server, "w", TEXT)
    assert await selected(server, "failed", "&limit=1") == names[::2]
    assert await selected(server, "done", "&limit=2") == names[1::2]
    assert await selected(server, "failed", "&topic=jobs/4") == [names[4]]
    monkeypatch.setattr(selection, "LOOK_ROWS", 2)
    monkeypatch.setattr(selection, "STEP_ROWS", 2)
    monkeypatch.setattr(outcomes, "LOOKS_MAX", 1)
    assert await selected(server, "failed") == names[::2]
    assert await selected(server, "done") == names[1::2]
    page = (await server.call("GET", f"{LIST}?outcome=failed&count=true&limit=1")).body
    assert page["count"] == 4


async def test_of_many_rows_those_between_are_passed(server: Running) -> None:
    await server.connect("w", TEXT)
    most = outcomes.SKIPS * 2
    names = [await server.schedule("jobs/a" if number % most else "jobs/b") for number in range(most + 1)]
    for _ in range(9):
        await server.app.quiet()
        await give_up(server, "w", TEXT)
    assert await selected(server, "failed") == names
    assert await listed(server, "outcomes=true&state=all&topic=jobs/b") == {
        names[0]: "failed",
        names[-1]: "failed",
    }


async def test_steps_are_short_where_a_message_died_at_many_groups(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = range(4)
    for group in places:
        await server.call("PUT", f"/v1/groups/{group}", {"filter": "jobs/#"}, status=201)
    names = await server.batch([{"topic": "jobs/1", "payload": ""}] * 3)
    await server.app.quiet()
    for group in places:
        await server.call("POST", f"/v1/groups/{group}:skip", {}, status=200)
    await server.app.quiet()
    steps, begin = [0], Turn.begin

    async def counted(turn: Turn) -> None:
        steps[0] += 1
        await begin(turn)

    monkeypatch.setattr(Turn, "begin", counted)
    monkeypatch.setattr(outcomes, "LOOKS_MAX", outcomes.LOOKS_ROW * len(places))
    page = (await server.call("GET", f"{LIST}?outcome=failed&count=true")).body
    assert (page["count"], [one["id"] for one in page["messages"]]) == (3, names)
    assert steps == [2 * (3 + 1)]


@pytest.mark.parametrize("wanted", ["", "running", "nothing", "pending"])
async def test_other_filters_are_refused(server: Running, wanted: str) -> None:
    answer = await server.call("GET", f"{LIST}?outcome={wanted}", status=422)
    assert "index" in answer.body["errors"][0]["detail"]


async def test_places_that_a_key_does_not_see_count_unnamed(keyed: Keyed) -> None:
    server = keyed.server
    keyed.add("app", "read", "schedule", publish=["jobs/#"])
    keyed.add("blind", "read", "schedule", publish=["none/#"], deliver=["none/#"])
    await server.connect("w", TEXT)
    name = await keyed.schedule("app", "jobs/1", deliver_in=0)
    await server.app.quiet()
    await give_up(server, "w", TEXT)
    shown: dict[str, Any] = await keyed.body("app", "GET", f"{LIST}/{name}", status=200)
    assert (shown["outcome"], shown["deliveries"]) == ("failed", [])
    for query in ("outcome=failed", "state=all&outcomes=true"):
        assert len((await keyed.body("app", "GET", f"{LIST}?{query}"))["messages"]) == 1
        assert (await keyed.body("blind", "GET", f"{LIST}?{query}&count=true")) == {
            "next": None,
            "count": 0,
            "messages": [],
        }


def test_the_page_has_them_in_this_order() -> None:
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    section = page.split("### Outcome\n")[1].split("\n##")[0]
    assert tuple(re.findall(r"(?m)^\| `(\w+)` \|", section)) == WORST
    assert {f"`{name}`" for name in {*get_args(Outcome)} - {*WORST}} <= {*re.findall("`[a-z]+`", section)}
