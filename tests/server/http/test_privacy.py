"""A key that may not read a topic learns nothing of it, whatever it calls.

Two servers live through the same, but that one of them has messages of a topic that the key may not read, at
groups and an endpoint of others, with every outcome. Each call of `/openapi.json` that reads is made of both,
with the names and ids of the one, and each value of its parameters: the answers are the same.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from server.engine.clock import SimulatedClock
from server.settings.config import Config
from tests.support.keys import KeysFile, with_keys
from tests.support.stores import FailingMemory

from ..conftest import HOUR_MS, START_MS, running
from .conftest import Keyed

STREAMS = ("/v1/events", "/v1/tail")
OWN = {"/v1/info", "/v1/jobs", "/v1/backups"}
"""Calls that say nothing of messages, and something of the process."""
WORD = "classified"
SECRET = f"{WORD}_other"


async def a_life(keyed: Keyed, topics: tuple[str, ...]) -> dict[str, str]:
    """Messages of each topic with each outcome; ids of the last topic's, by outcome."""
    names: dict[str, str] = {}
    for topic in topics:
        group, names = topic.split("/")[0], {}
        word, terms = f"{WORD}_{group}", {"filter": f"{group}/#", "keep": "all"}
        await keyed.call("ops", "PUT", f"/v1/groups/{group}", terms, status=201)
        path = f"/v1/groups/{group}/messages"
        for verb in ("ack", "nack", "nack", "", "queued"):
            outcome = {"ack": "done", "nack": "retrying", "": "running"}.get(verb, verb)
            name = await keyed.schedule("ops", topic, payload=word, deliver_in=0, key=f"{group}-{len(names)}")
            names["failed" if outcome in names else outcome] = name
            await keyed.server.app.quiet()
            if verb != "queued":
                lease = await keyed.body("ops", "POST", f"{path}:lease", {"max": 1})
                body = {"lease_ids": [lease["messages"][0]["lease_id"]]}
            if verb == "nack":
                more = {"delay": "never"} if "failed" in names else {"delay": "2h"}
                body |= {"reason": word, **more}
            if verb in ("ack", "nack"):
                await keyed.call("ops", "POST", f"{path}:{verb}", body)
                await keyed.server.app.quiet()
        names["pending"] = await keyed.schedule("ops", topic, payload=word, deliver_in=7_200)
        gone = names["cancelled"] = await keyed.schedule("ops", topic, deliver_in=7_200)
        await keyed.call("ops", "DELETE", f"/v1/messages/{gone}", status=204)
    return names


@pytest.fixture
async def pair(tmp_path: Path, config: Config) -> AsyncIterator[tuple[Keyed, Keyed, dict[str, str]]]:
    """Two servers with the same keys, one with the other topic and one without; ids of the first."""
    file = KeysFile(tmp_path / "keys.toml")
    key = file.add(
        "spy", "read", "schedule", **{name: ["mine/#"] for name in ("publish", "subscribe", "deliver")}
    )
    ops = file.add("ops", "read", "schedule", "admin")
    async with AsyncExitStack() as stack:
        found: list[Keyed] = []
        for name in ("with", "without"):
            clock = SimulatedClock(START_MS)
            server = await stack.enter_async_context(
                running(tmp_path / name, with_keys(config, file.path), clock, store=FailingMemory())
            )
            found.append(Keyed(server, file))
            found[-1].keys |= {"spy": key, "ops": ops}
        names = await a_life(found[0], ("mine/1", "other/1"))
        await a_life(found[1], ("mine/1",))
        for one in found:
            one.server.app.sampling.begin()
            await one.server.pass_time(HOUR_MS)
            await one.server.app.sampling.look()
        yield found[0], found[1], names


def paths_of(path: str, names: dict[str, str]) -> Iterator[str]:
    """The path with each name of the one server that the key should not know."""
    for name in chain(*[names.values()] if "{id}" in path else [[""]]):
        values = {"id": name, "group": "other", "name": "other", "key": "other-0", "client_id": "other"}
        yield re.sub(r"\{(\w+)\}", lambda found, values=values: values.get(found[1], "0"), path)


def queries_of(operation: dict[str, Any]) -> Iterator[str]:
    """None, each value of each parameter, and the topic."""
    yield ""
    for parameter in operation["parameters"]:
        name, schema = parameter["name"], parameter["schema"]
        if parameter["in"] == "query":
            values = schema.get("enum") or {"boolean": ["true"]}.get(schema.get("type"), [])
            known = {"topic": "other/%23", "group": "other", "key": "other-0", "reason": SECRET, "wait": "0s"}
            for value in [*values, *([known[name]] if name in known else [])]:
                yield f"?{name}={value}"
                if name in ("state", "outcome"):
                    yield f"?{name}={value}&outcomes=true&count=true&limit=1000"


async def answer(keyed: Keyed, path: str) -> tuple[int, str]:
    async with keyed.server.http.get(path, headers=keyed.shown("spy")) as found:
        body = await found.text()
    return found.status, re.sub(r'"(memory|store|disk_free)_bytes":\d+', "", body)


async def test_no_call_says_anything_of_a_topic_that_a_key_may_not_read(
    pair: tuple[Keyed, Keyed, dict[str, str]],
) -> None:
    one, other, names = pair
    assert {*names} == {"done", "retrying", "failed", "running", "queued", "pending", "cancelled"}
    async with one.server.http.get("/openapi.json", headers=one.shown("spy")) as found:
        document = json.loads(await found.text())
    made = 0
    for path, operations in document["paths"].items():
        if path in STREAMS or path in OWN or "get" not in operations:
            continue
        for filled in paths_of(path, names):
            for query in queries_of(operations["get"]):
                status, body = await answer(one, filled + query)
                assert (status, body) == await answer(other, filled + query), filled + query
                assert status != 500
                made += 1
    assert made > 100
    for call in ("/why", "/explain", ""):
        for name in names.values():
            assert (await answer(one, f"/v1/messages/{name}{call}"))[0] == 404
