"""`progress` of an extension: what is taken, where it is shown and to whom, how long it stays."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from server.delivery import progress
from server.engine.clock import SimulatedClock
from server.http.routes import tail
from server.settings.config import Config
from tests.support.stores import FailingMemory

from ..conftest import Running, running
from .conftest import Keyed
from .test_follow_ups import JOBS, lease
from .test_tail_route import stream, told

GROUP = "$share/workers/jobs/#"


async def extend(server: Running, leases: list[str], said: object, status: int = 200, **headers: str) -> Any:
    body = {"lease_ids": leases, "lease": "1m", "progress": said}
    return (await server.call("POST", f"{JOBS}:extend", body, status=status, **headers)).body


async def shown(server: Running, message: str) -> Any:
    """What the message's only delivery says; None: nothing."""
    (delivery,) = (await server.call("GET", f"/v1/messages/{message}")).body["deliveries"]
    return delivery.get("progress")


async def leased(server: Running) -> tuple[str, str]:
    """A message, and its lease."""
    (mine,) = await lease(server)
    (found,) = (await server.call("GET", "/v1/messages?state=dispatched")).body["messages"]
    return found["id"], mine


async def test_the_last_one_is_shown_while_the_worker_has_it(server: Running) -> None:
    message, mine = await leased(server)
    assert await shown(server, message) is None
    for said in ({"done": 1, "of": 9}, "é", 0, None, [], False):
        answer = await extend(server, [mine], said)
        assert (answer["extended"], answer["gone"]) == (1, [])
        assert await shown(server, message) == said
    plain = {"lease_ids": [mine], "lease": "1m"}
    await extend(server, [mine], 5)
    await server.call("POST", f"{JOBS}:extend", plain)
    assert await shown(server, message) == 5, "an extension without leaves it"


Ending = Callable[[Running, str], Awaitable[object]]


async def _nacked(server: Running, mine: str) -> None:
    await server.call("POST", f"{JOBS}:nack", {"lease_ids": [mine], "delay": 0})


async def _released(server: Running, mine: str) -> None:
    await server.call("POST", f"{JOBS}:release", {"lease_ids": [mine]})


@pytest.mark.parametrize("ending", [_nacked, _released])
async def test_the_next_worker_begins_anew(server: Running, ending: Ending) -> None:
    message, mine = await leased(server)
    await extend(server, [mine], "half")
    await ending(server, mine)
    await server.app.quiet()
    assert await shown(server, message) is None, "while nobody has it"
    (again,) = (await server.call("POST", f"{JOBS}:lease", {"max": 1})).body["messages"]
    assert again["id"] == message
    assert await shown(server, message) is None
    assert (await extend(server, [mine], "late"))["gone"] == [mine]
    assert await shown(server, message) is None
    await extend(server, [again["lease_id"]], "again")
    assert await shown(server, message) == "again"
    await server.call("POST", f"{JOBS}:ack", {"lease_ids": [again["lease_id"]]})
    assert await shown(server, message) is None


async def test_refusals_leave_the_lease_and_what_was_said(server: Running) -> None:
    message, mine = await leased(server)
    (other,) = await lease(server)
    most = "x" * (progress.BYTES_MAX - 2)
    await extend(server, [mine], most)
    for leases, said in (([mine, other], 1), ([], 1), ([mine], most + "x")):
        refused = await extend(server, leases, said, 422)
        assert [one["field"] for one in refused["errors"]] == ["progress"]
    broken = b'{"lease_ids":["' + mine.encode() + b'"],"lease":60,"progress":"\xff"}'
    await server.call("POST", f"{JOBS}:extend", broken, status=400, Content_Type="application/json")
    assert await shown(server, message) == most


async def test_a_group_has_a_bound(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "GROUP_BYTES", 10)
    message, mine = await leased(server)
    (other,) = await lease(server)
    await extend(server, [mine], 12345)
    await extend(server, [other], 12345)
    await extend(server, [mine], 54321)  # in its place
    await server.pass_time(30_000)
    refused = await extend(server, [mine], 123456, 429)
    assert refused["type"] == "/problems/over-quota"
    assert await shown(server, message) == 54321
    await server.call("POST", f"{JOBS}:ack", {"lease_ids": [other]})
    await extend(server, [mine], 123456)
    assert await shown(server, message) == 123456


@pytest.mark.parametrize("is_killed", [False, True])
async def test_over_a_start(
    tmp_path: Path, config: Config, clock: SimulatedClock, ram: FailingMemory | None, *, is_killed: bool
) -> None:
    """It is on disk when it is answered."""
    async with running(tmp_path, config, clock, store=ram) as server:
        message, mine = await leased(server)
        await extend(server, [mine], {"done": 7})
        if is_killed:
            server.store.is_failing = True  # nothing that a stop would write
    if is_killed:
        server.store.is_failing = False
    async with running(tmp_path, config, clock, store=ram) as server:
        assert await shown(server, message) == {"done": 7}
        assert server.group(GROUP).session.progress_bytes == len('{"done": 7}')
        await extend(server, [mine], 8)
        assert await shown(server, message) == 8


async def test_in_the_tail(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "EVERY_S", 0.01)
    message, mine = await leased(server)
    async with stream(server, "jobs/+") as jobs, stream(server, "other/#") as others:
        await extend(server, [mine], {"done": 1})
        event, said = await told(jobs)
        assert (event, said.pop("at")[:19]) == ("progress", "2026-11-21T08:00:00")
        assert said == {"id": message, "topic": "jobs/0", "group": "workers", "progress": {"done": 1}}
        await server.schedule("other/1")
        await server.app.quiet()
        assert (await told(others))[0] == "message"


async def test_who_sees_it(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who may see the message, and the group."""
    monkeypatch.setattr(tail, "EVERY_S", 0.01)
    server = keyed.server
    keyed.add("worker", subscribe=["jobs/#", "$share/workers/#"], deliver=["jobs/#"])
    keyed.add("beside", subscribe=["#"], deliver=["#"])
    await keyed.body("worker", "POST", f"{JOBS}:lease", {"max": 1, "filter": "jobs/#"})
    message = await keyed.schedule("ops", "jobs/0", deliver_in=0)
    await server.app.quiet()
    (found,) = (await keyed.body("worker", "POST", f"{JOBS}:lease", {"max": 1, "filter": "jobs/#"}))[
        "messages"
    ]
    assert found["id"] == message
    async with (
        stream(server, "jobs/#", **keyed.shown("worker")) as own,
        stream(server, **keyed.shown("beside")) as other,
    ):
        await extend(server, [found["lease_id"]], "half", **keyed.shown("worker"))
        assert (await told(own))[1]["progress"] == "half"
        await keyed.schedule("ops", "x", deliver_in=0)
        await server.app.quiet()
        assert (await told(other))[0] == "message", "it was not told before"
    path = f"/v1/messages/{message}"
    assert (await keyed.body("worker", "GET", path))["deliveries"][0]["progress"] == "half"
    assert (await keyed.body("beside", "GET", path))["deliveries"] == []
