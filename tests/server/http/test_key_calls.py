"""Every call, made with a key of every shape, against the table of docs/security.md.

The table says which scope a call needs and what it reaches: the words under it. A *shape* is a key: its
scopes, its rules (none, `mine/#`, ...), and whether it made the objects or `ops` did. For each route of the
server a *try* makes an object at `mine/...` or `theirs/...`, lets the key call it, and says whether the call
reached the object. A route without a row of the table, or without a try, fails the test.
"""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from server.http.calls import ADMIN, ANY, OPEN, READ, SCHEDULE

from ..conftest import Running
from .conftest import Keyed, connected
from .test_history import sample
from .test_openapi import SAMPLES, routes_of

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
SCOPE_OF = {"any": ANY, "none": OPEN}
ELSEWHERE = {"GET /v1/cluster"}
"""Calls that only a node of a cluster has."""
TOPICS = ("mine", "theirs")


class Row(NamedTuple):
    """A row of the table."""

    calls: tuple[str, ...]
    """`METHOD path`; `*` at the end: any text."""
    prefixes: tuple[str, ...]
    """All other calls below these paths."""
    scope: str
    words: tuple[str, ...]


class Shape(NamedTuple):
    """A key."""

    scopes: tuple[str, ...]
    rules: str
    has_made: bool
    """Whether the objects are its own; else those of `ops`."""

    def __str__(self) -> str:
        made = "its own" if self.has_made else "of ops"
        return f"{'+'.join(self.scopes)}, rules: {self.rules}, objects {made}"

    @property
    def lines(self) -> str:
        mine = '["mine/#"]'
        send = f'publish = ["mine/#", "$deliver/mine"]\nsubscribe = {mine}\n'
        return {
            "none": "",
            "deliver omitted": send,
            "narrow": f"{send}deliver = {mine}\n",
            "totals": f'{send}deliver = ["mine/#", "$SYS/#"]\n',
        }[self.rules]

    def reaches(self, word: str, topic: str) -> bool:
        """What the page says below the table."""
        is_free, is_mine = self.rules == "none", topic == "mine"
        return {
            "sends": is_free or is_mine,
            "sees": is_free or is_mine,
            "subscribes": is_free or is_mine,
            "places": self.has_made or ADMIN in self.scopes,
            "endpoints": is_free or is_mine or self.has_made,
            "totals": is_free or self.rules == "totals",
            "sees every message": is_free,
            "all": True,
        }[word]


def table() -> list[Row]:
    section = PAGE.read_text(encoding="utf-8").split("\n### Calls\n")[1]
    rows = []
    for line in re.findall(r"(?m)^\| (.+?) \| (\w+) \| (.+?) \|$", section.split("\n- **")[0]):
        calls, scope, words = line
        if scope != "scope":
            named = tuple(re.findall(r"`([^`]+)`", calls))
            is_rest = calls.startswith(("calls of", "other calls of"))
            pair = ((), named) if is_rest else (named, ())
            rows.append(Row(*pair, SCOPE_OF.get(scope, scope), tuple(words.split(", "))))
    return rows


def is_named(call: str, named: str) -> bool:
    return call.startswith(named[:-1]) if named.endswith("*") else call == named


def row_of(call: str, rows: list[Row]) -> Row:
    """The row of a call: one that names it, else one that has the rest."""
    exact = [row for row in rows if any(is_named(call, named) for named in row.calls)]
    path = call.partition(" ")[2]
    rest = [row for row in rows if any(re.match(rf"{re.escape(one)}\b", path) for one in row.prefixes)]
    (found,) = exact or rest
    return found


Try = Callable[["World"], Awaitable[bool]]
TRIES: dict[str, Try] = {}


def tries(*calls: str) -> Callable[[Try], Try]:
    def mark(one: Try) -> Try:
        for call in calls:
            assert call not in TRIES
            TRIES[call] = one
        return one

    return mark


class World:
    """One key of one shape, and the objects of one try."""

    def __init__(self, keyed: Keyed, shape: Shape) -> None:
        self.keyed = keyed
        self.shape = shape
        self.count = 0
        self.of = ""
        self.call = ""
        self.watched: dict[str, Any] = {}
        keyed.add("key", ADMIN)
        self._key_line = next(line for line in self._block.split("\n") if line.startswith("hash"))

    @property
    def _block(self) -> str:
        return self.keyed.file._blocks["key"]

    def be(self, scopes: tuple[str, ...], lines: str) -> None:
        """Give the key these rights."""
        said = json.dumps(list(scopes))
        block = f'[[key]]\nname = "key"\n{self._key_line}\nscopes = {said}\n{lines}'
        self.keyed.file._blocks["key"] = block
        self.keyed.file.write()
        self.keyed.take()

    async def begin(self, call: str, topic: str) -> None:
        for path in self.watched:
            if path.startswith("/v1/schedules"):
                await self.ops("DELETE", path)  # the calendar has room for a few
        self.count += 1
        self.call, self.of, self.watched = call, topic, {}
        self.be(self.shape.scopes, self.shape.lines)

    @property
    def topic(self) -> str:
        return f"{self.of}/{self.count}"

    @property
    def name(self) -> str:
        return f"n{self.count}"

    @property
    def shown(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keyed.keys['key']}"}

    @property
    def verb(self) -> str:
        return self.call.rpartition(":")[2]

    async def key(self, method: str, path: str, body: object = None) -> Any:
        """The answer to the key."""
        await self.look()
        return await self.keyed.call("key", method, path, body, status=None)

    async def ops(self, method: str, path: str, body: object = None) -> Any:
        return (await self.keyed.call("ops", method, path, body, status=None)).body

    @asynccontextmanager
    async def making(self) -> AsyncIterator[str]:
        """The name of the key that makes the objects; it may do everything meanwhile."""
        if self.shape.has_made:
            self.be((ADMIN,), "")
        yield "key" if self.shape.has_made else "ops"
        self.be(self.shape.scopes, self.shape.lines)

    async def make(self, method: str, path: str, body: object = None) -> Any:
        async with self.making() as name:
            answer = await self.keyed.call(name, method, path, body, status=None)
        assert answer.status < 300, (self.call, answer)
        if method == "PUT":
            await self.watch(path)
        return answer.body

    async def watch(self, path: str) -> None:
        """What a call that does not reach it must leave as it is."""
        self.watched[path] = await self.ops("GET", path)

    async def look(self) -> None:
        """Note how what is watched is now."""
        for path in self.watched:
            await self.watch(path)

    async def stays(self) -> bool:
        return all([await self.ops("GET", path) == before for path, before in self.watched.items()])

    async def message(self, **members: object) -> str:
        body = {"topic": self.topic, "payload": "p", "deliver_in": "1h", **members}
        name = (await self.ops("POST", "/v1/messages", body))["id"]
        if "deliver_in" not in members:
            await self.watch(f"/v1/messages/{name}")
        return str(name)

    async def text(self, path: str) -> str:
        await self.look()
        async with self.keyed.server.http.get(path, headers=self.shown) as answer:
            return await answer.text()

    async def opens(self, path: str) -> str:
        """The first lines of a stream; empty: refused."""
        async with self.keyed.server.http.get(path, headers=self.shown) as answer:
            if answer.status != 200:
                return ""
            return "".join([(await answer.content.readline()).decode() for _ in range(2)])

    async def leased(self, **terms: object) -> str:
        """The lease of a message of the group, held by who made the group."""
        await self.make("PUT", f"/v1/groups/{self.name}", {"filter": self.topic, **terms})
        await self.message(deliver_in=0)
        await self.keyed.server.app.quiet()
        found = await self.make("POST", f"/v1/groups/{self.name}/messages:lease", {"max": 1})
        return str(found["messages"][0]["lease_id"])

    async def failed(self, delay: str) -> None:
        """A message that the group's worker has returned."""
        body = {"lease_ids": [await self.leased()], "delay": delay}
        assert (await self.make("POST", f"/v1/groups/{self.name}/messages:nack", body))["gone"] == []

    async def endpoint(self, **terms: object) -> None:
        path = f"/v1/endpoints/{self.of}"
        await self.ops("DELETE", f"{path}?undone=drop")
        await self.make("PUT", path, {"url": "https://nowhere.invalid/", "timeout": "1s", **terms})


# -- messages


@tries("POST /v1/messages", "POST /v1/messages:batch")
async def sent(w: World) -> bool:
    one = {"topic": w.topic, "payload": "p", "deliver_in": "1h"}
    body = [one] if "batch" in w.call else one
    return bool((await w.key("POST", w.call.split()[1], body)).status == 201)


@tries("GET /v1/messages", "GET /v1/messages:export", "GET /v1/timeline/density")
async def listed(w: World) -> bool:
    name = await w.message()
    query = f"?topic={w.topic}&bucket=PT1H" if "density" in w.call else ""
    text = await w.text(f"{w.call.split()[1]}{query}")
    return (
        json.loads(text).get("total") == 1 if query else (name if "export" not in w.call else w.topic) in text
    )


@tries("GET /v1/messages/{id}", "GET /v1/messages/{id}/explain", "DELETE /v1/messages/{id}")
@tries("GET /v1/messages/{id}/why", "GET /v1/messages/{id}/result")
@tries("PATCH /v1/messages/{id}")
async def one_message(w: World) -> bool:
    method, path = w.call.split()
    body = {"deliver_in": "2h"} if method == "PATCH" else None
    return (await w.key(method, path.format(id=await w.message()), body)).status in (200, 204)


@tries("POST /v1/messages:cancel", "POST /v1/messages:reschedule")
async def many_messages(w: World) -> bool:
    await w.message()
    more = {} if w.verb == "cancel" else {"shift": "PT1H"}
    answer = await w.key("POST", w.call.split()[1], {"filter": {"topic": w.topic}, **more})
    return bool(answer.body.get("changed"))


@tries("GET /v1/messages/by-key/{key}", "PUT /v1/messages/by-key/{key}")
@tries("PATCH /v1/messages/by-key/{key}", "DELETE /v1/messages/by-key/{key}")
async def by_key(w: World) -> bool:
    """Idempotency keys are those of each API key."""
    body = {"topic": w.topic, "payload": "p", "deliver_in": "1h"}
    w.be((ADMIN,), "")
    made = await w.key("POST", "/v1/messages", {**body, "key": w.name})
    w.be(w.shape.scopes, w.shape.lines)
    await w.watch(f"/v1/messages/{made.body['id']}")
    method = w.call.split()[0]
    sent = {"PUT": {**body, "payload": "new"}, "PATCH": {"deliver_in": "2h"}}.get(method)
    return (await w.key(method, f"/v1/messages/by-key/{w.name}", sent)).status in (200, 204)


@tries("GET /v1/retries", "GET /v1/dead")
async def kept(w: World) -> bool:
    await w.failed("never" if "dead" in w.call else "1h")
    return w.topic in await w.text(w.call.split()[1])


@tries("POST /v1/retries:try", "POST /v1/retries:bury", "POST /v1/retries:drop")
@tries("POST /v1/dead:requeue", "POST /v1/dead:drop")
async def kept_changed(w: World) -> bool:
    await w.failed("never" if "dead" in w.call else "1h")
    answer = await w.key("POST", w.call.split()[1], {"filter": {"topic": w.topic}})
    return bool(answer.body.get("changed"))


@tries("GET /v1/tail")
async def tail(w: World) -> bool:
    return bool(await w.opens(f"/v1/tail?topic={w.topic}"))


# -- places


@tries("POST /v1/groups/{group}/messages:lease")
async def lease(w: World) -> bool:
    await w.make("PUT", f"/v1/groups/{w.name}", {"filter": w.topic})
    await w.message(deliver_in=0)
    await w.keyed.server.app.quiet()
    body = {"max": 1, "filter": w.topic}
    return bool((await w.key("POST", f"/v1/groups/{w.name}/messages:lease", body)).body.get("messages"))


@tries("POST /v1/groups/{group}/messages:ack", "POST /v1/groups/{group}/messages:nack")
@tries("POST /v1/groups/{group}/messages:extend", "POST /v1/groups/{group}/messages:release")
async def settled(w: World) -> bool:
    body = {"lease_ids": [await w.leased()], **BODIES.get(w.verb, {})}
    answer = await w.key("POST", f"/v1/groups/{w.name}/messages:{w.verb}", body)
    return bool(answer.status == 200 and not answer.body["gone"])


BODIES = {"replay": {"from": "PT1H"}, "skip": {"to": "now", "undone": "drop"}, "extend": {"lease": "1m"}}


async def place(w: World, path: str) -> bool:
    """A call of one place, or of an ordering key of it."""
    await w.watch(path)
    method, called = w.call.split()
    if "keys" in called:
        path += "/keys" if method == "GET" else f"/keys/k:{w.verb}"
    elif ":" in called:
        path += f":{w.verb}"
    if w.verb == "release":
        async with w.making() as name:
            await w.keyed.call(name, "POST", path.replace(":release", ":hold"))
    query = "?undone=drop" if method == "DELETE" and "sessions" not in called else ""
    return (await w.key(method, path + query, BODIES.get(w.verb))).status in (200, 204)


@tries(
    "GET /v1/groups", "GET /v1/sessions", "GET /v1/endpoints", "GET /v1/schedules", "GET /v1/schedules.ics"
)
async def objects(w: World) -> bool:
    what, name = w.call.split("/")[-1].removesuffix(".ics"), w.name
    if what == "groups":
        await w.make("PUT", f"/v1/groups/{name}", {"filter": w.topic})
    elif what == "sessions":
        await session(w)
    elif what == "endpoints":
        await w.endpoint()
        name = w.of
    else:
        await scheduled(w)
    return bool(re.search(rf"\b{name}\b", await w.text(w.call.split()[1])))


@tries(*(f"GET /v1/groups/{{group}}{end}" for end in ("", "/keys")), "DELETE /v1/groups/{group}")
@tries(*(f"POST /v1/groups/{{group}}:{verb}" for verb in ("pause", "resume", "replay", "skip")))
@tries(*(f"POST /v1/groups/{{group}}/keys/{{ordering_key}}:{verb}" for verb in ("hold", "release")))
async def group(w: World) -> bool:
    await w.make("PUT", f"/v1/groups/{w.name}", {"filter": w.topic, "order": True})
    return await place(w, f"/v1/groups/{w.name}")


@tries("PUT /v1/groups/{group}")
async def group_put(w: World) -> bool:
    path = f"/v1/groups/{w.name}"
    await w.make("PUT", path, {"filter": w.topic})
    return bool((await w.key("PUT", path, {"filter": w.topic, "max_attempts": 3})).status == 200)


async def session(w: World) -> None:
    async with w.making() as name:
        await connected(w.keyed, name, w.name, w.topic)


@tries("GET /v1/sessions/{client_id}", "DELETE /v1/sessions/{client_id}")
@tries("POST /v1/sessions/{client_id}:replay", "POST /v1/sessions/{client_id}:skip")
async def one_session(w: World) -> bool:
    await session(w)
    return await place(w, f"/v1/sessions/{w.name}")


@tries("PUT /v1/endpoints/{name}")
async def endpoint_put(w: World) -> bool:
    await w.endpoint()
    body = {"url": "https://elsewhere.invalid/"}
    return bool((await w.key("PUT", f"/v1/endpoints/{w.of}", body)).status == 200)


@tries(*(f"{method} /v1/endpoints/{{name}}" for method in ("GET", "DELETE")), "GET /v1/endpoints/{name}/keys")
@tries(*(f"POST /v1/endpoints/{{name}}:{verb}" for verb in ("pause", "resume", "replay", "skip", "test")))
@tries(*(f"POST /v1/endpoints/{{name}}/keys/{{ordering_key}}:{verb}" for verb in ("hold", "release")))
async def endpoint(w: World) -> bool:
    await w.endpoint(order=True)
    return await place(w, f"/v1/endpoints/{w.of}")


# -- schedules


async def scheduled(w: World) -> str:
    path = f"/v1/schedules/{w.name}"
    await w.make("PUT", path, {"every": "PT1H", "topic": w.topic, "payload": "p"})
    return path


@tries("PUT /v1/schedules/{name}")
async def schedule_put(w: World) -> bool:
    path = await scheduled(w)
    body = {"every": "PT2H", "topic": "mine/x", "payload": "new"}
    return bool((await w.key("PUT", path, body)).status == 200)


@tries("GET /v1/schedules/{name}", "GET /v1/schedules/{name}/upcoming", "DELETE /v1/schedules/{name}")
@tries(*(f"POST /v1/schedules/{{name}}:{verb}" for verb in ("pause", "resume", "skip", "trigger")))
async def schedule(w: World) -> bool:
    await scheduled(w)
    method, path = w.call.split()
    return (await w.key(method, path.format(name=w.name))).status in (200, 204)


# -- the server


@tries("GET /v1/events")
async def events(w: World) -> bool:
    return '"pending"' in await w.opens("/v1/events")


@tries("GET /metrics")
async def metrics(w: World) -> bool:
    text = await w.text("/metrics")
    told = {
        name for name in re.findall(r"(?m)^(\w+)(?:\{.*\})? ", text) if not name.startswith("fasti_build")
    }
    return told > {"fasti_horizon_behind_seconds"}


@tries("GET /v1/history")
async def history(w: World) -> bool:
    for _ in range(2):
        await sample(w.keyed.server)
    return '"pending"' in await w.text("/v1/history")


WHOLE = ("/v1/slices", "/v1/jobs", "/v1/archive", "/v1/backups", "/v1/clock", "/v1/drain", "/v1/info",
         "/openapi.json", "/docs", "/livez", "/readyz", "/console", "/v1/schedules:preview")  # fmt: skip
"""Paths of calls on the whole server, whose key need only be let in."""


async def let_in(w: World) -> bool:
    method, path = w.call.split()
    path = re.sub(r"\{(\w+)\}", lambda found: SAMPLES[found[1]], path)
    return (await w.key(method, path)).status not in (401, 403)


def try_of(call: str) -> Try:
    path = call.partition(" ")[2]
    return TRIES[call] if call in TRIES else {True: let_in}[path == "/" or path.startswith(WHOLE)]


# -- the walk


def shapes() -> Iterator[Shape]:
    for scopes in ((SCHEDULE,), (READ,), (SCHEDULE, READ), (ADMIN,)):
        for rules, has_made in product(("none", "narrow"), (False, True)):
            yield Shape(scopes, rules, has_made)
        yield Shape(scopes, "deliver omitted", has_made=False)
    yield Shape((READ,), "totals", has_made=False)
    yield Shape((ADMIN,), "totals", has_made=False)


def calls_of(server: Running) -> dict[str, str]:
    """`METHOD path` -> scope."""
    return {
        f"{method.upper()} {path}": call.scope for method, path, call in routes_of(server) if call is not None
    }


async def test_the_table_has_every_call_with_its_scope(keyed: Keyed) -> None:
    rows, calls = table(), calls_of(keyed.server)
    assert {call: row_of(call, rows).scope for call in calls} == calls
    named = {named for row in rows for named in row.calls} - ELSEWHERE
    assert [one for one in named if not any(is_named(call, one) for call in calls)] == []
    assert {word for row in rows for word in row.words} == {
        *("sends", "sees", "subscribes", "places", "endpoints", "totals", "sees every message", "all")
    }
    assert all(try_of(call) for call in calls)


def param(shape: Shape) -> Any:
    """One with a scope and rules, one with all: those of `make test`."""
    is_life = shape in (Shape((SCHEDULE,), "narrow", has_made=True), Shape((ADMIN,), "none", has_made=False))
    return pytest.param(shape, id=str(shape), marks=pytest.mark.long if is_life else pytest.mark.proof)


@pytest.mark.parametrize("shape", [param(shape) for shape in shapes()])
async def test_a_key_reaches_what_the_table_says(keyed: Keyed, shape: Shape) -> None:
    rows, world, wrong = table(), World(keyed, shape), []
    for call, scope in calls_of(keyed.server).items():
        row = row_of(call, rows)
        has_scope = scope in (ANY, OPEN, *shape.scopes) or ADMIN in shape.scopes
        for topic in TOPICS:
            await world.begin(call, topic)
            if not has_scope:
                is_in, expected = await let_in(world), False
            else:
                is_in = await try_of(call)(world)
                expected = all(shape.reaches(word, topic) for word in row.words)
            if is_in is not expected or not (is_in or await world.stays()):
                wrong.append((call, topic, f"reached: {is_in}, expected: {expected}"))
    assert not wrong, "\n".join(map(str, wrong))
