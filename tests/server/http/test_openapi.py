"""The description against the server: every route is in it, and what it says of queries and bodies holds."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from aiohttp import web

from server.http.calls import Call, Gives, call_of, described
from server.http.openapi import document_of
from server.http.problems import SLUGS
from server.http.schemas import Types
from server.http.values import shapes
from server.http.values.scalars import When
from server.settings.times import TimeError, parse_deliver_at

from ..conftest import NDJSON, Running

ROOT = Path(__file__).parents[3]
SAMPLES = {
    "group": "g",
    "id": "0" * 32,
    "start": "0",
    "n": "0",
    "client_id": "nobody",
    "name": "nightly",
    "key": "k",
    "ordering_key": "k",
    "file": "main.js",
}


def routes_of(server: Running) -> list[tuple[str, str, Call | None]]:
    """Method, path, description of each route."""
    assert server.http.app is not None
    return [
        (route.method.lower(), route.resource.canonical, call_of(route.handler))
        for route in server.http.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    ]


def calls_of(server: Running) -> Iterator[tuple[str, str, Call]]:
    for method, path, call in routes_of(server):
        assert call is not None, f"{method} {path} is not @described"
        yield method, re.sub(r"\{(\w+)\}", lambda found: SAMPLES[found[1]], path), call


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for inner in node.values():
            yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)


async def test_every_route_is_described(server: Running) -> None:
    document = (await server.call("GET", "/openapi.json")).body
    assert document["openapi"] == "3.1.0"
    listed = {(method, path) for path, one in document["paths"].items() for method in one}
    assert listed == {(method, path) for method, path, _ in routes_of(server)}
    operations = [one for path in document["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    schemas = document["components"]["schemas"]
    assert {ref.removeprefix("#/components/schemas/") for ref in references(document)} <= set(schemas)
    for path, one in document["paths"].items():
        for operation in one.values():
            declared = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))


def schemas_of(node: Any, members: bool = False) -> Iterator[dict[str, Any]]:
    """Every schema at and below this place; `members`: the names here are those of a type's members."""
    if isinstance(node, dict):
        if not members:
            yield node
        for name, inner in node.items():
            if members or name not in ("default", "example", "then", "x-codeSamples"):
                yield from schemas_of(inner, name == "properties" and not members)
    elif isinstance(node, list):
        for inner in node:
            yield from schemas_of(inner)


async def test_generators_of_clients_can_read_it(server: Running) -> None:
    """What openapi-generator and openapi-python-client fail on: tests/clients/generated runs them."""
    document = (await server.call("GET", "/openapi.json")).body
    components = document["components"]["schemas"]
    assert not [name for name in components if f"New{name}" in components], "Go has a function of that name"
    for name, schema in components.items():
        assert "anyOf" not in schema or "properties" not in schema, name
    for schema in schemas_of(document):
        if "$ref" in schema:
            assert len(schema) == 1, schema
        if "enum" in schema:
            assert "type" in schema, schema
        for member in schema.get("properties", {}).values():
            assert "default" not in member, "openapi-typescript takes it for a member that is always there"
        if "anyOf" in schema:
            assert "type" not in schema, schema
            kinds = [(one.get("type"), one.get("format")) for one in schema["anyOf"] if "type" in one]
            assert len(set(kinds)) == len(kinds), schema
            assert not any("anyOf" in one for one in schema["anyOf"]), schema


def said_of(given: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether the rules of a type allow these members."""
    return bool(jsonschema_rs.is_valid({"allOf": schema["then"]["allOf"]}, given))


async def test_what_is_true_of_several_members_is_said(server: Running) -> None:
    schemas = (await server.call("GET", "/openapi.json")).body["components"]["schemas"]
    at, after = {"deliver_at": "2030-01-01T00:00:00Z"}, {"deliver_in": "1m"}
    move, one, item = schemas["Move"], schemas["MessageRequest"], schemas["BatchItem"]
    assert [said_of(given, move) for given in (at, after, at | after, {})] == [True, True, False, False]
    for kind in (one, item):
        assert said_of({"topic": "a"} | at, kind)
        assert said_of({"deliver_to": "shop", "topic": "a"}, kind)
        assert not said_of({"deliver_to": None} | at, kind)
        assert not said_of({"topic": "a"} | at | after, kind)
    assert set(item["properties"]) - set(one["properties"]) == {"id"}
    follow_up = schemas["FollowUp"]["properties"]
    assert set(item["properties"]) - set(follow_up) == {"id", "key_scope"}
    timing = {"topic": "a", "cron": "@daily"}
    assert said_of(timing | {"every": None}, schemas["ScheduleRequest"])
    assert not said_of(timing | {"every": "1h"}, schemas["ScheduleRequest"])
    assert not said_of({"topic": "a"}, schemas["ScheduleRequest"])
    change = schemas["Change"]
    assert said_of({"ids": [], "group": "g"}, change)
    assert not said_of({"filter": {"topic": "#"}, "group": "g"}, change)
    assert not said_of({"ids": [], "filter": {"topic": "#"}}, change)
    assert not said_of({"filter": {"topic": None}}, change)
    assert "shift" not in schemas["CancelRequest"]["properties"]
    assert not said_of({"filter": {"topic": "#"}}, schemas["RescheduleRequest"])
    split, expire = {"kind": "split"}, {"kind": "expire"}
    jobs = (split | {"slice": "0"}, expire, split, expire | {"parts": 2})
    assert [said_of(given, schemas["JobRequest"]) for given in jobs] == [True, True, False, False]
    commits = ({"cuts": [], "pieces": []}, {"slices": []}, {"cuts": []}, {"pieces": [], "slices": []})
    assert [said_of(given, schemas["CommitJob"]) for given in commits] == [True, True, False, False]
    several = ({"published": 1}, {"faults": []}, {}, {"published": 1, "faults": []})
    assert [said_of(given, schemas["CommitJob"]) for given in several] == [True, True, False, False]
    assert one["properties"]["qos"]["description"] == "default 1"
    assert one["properties"]["key_scope"]["description"] == "default kept"


TIMES = {
    "2027-03-28T09:00[Europe/Bucharest]": True,
    "2027-03-28 09:00+03:00[Europe/Bucharest]": True,
    "2028-02-29t23:59:59.999999999z": True,
    "2026-12-31T23:59:60Z": True,
    "2027-01-31T00:00-23:59": True,
    "1970-01-02T00:00Z": True,
    "1969-12-31T23:59Z": False,
    "0000-01-01T00:00Z": False,
    "2027-00-10T00:00Z": False,
    "2027-13-10T00:00Z": False,
    "2027-04-31T00:00Z": False,
    "2027-02-30T00:00Z": False,
    "2027-01-01T24:00Z": False,
    "2027-01-01T00:60Z": False,
    "2027-01-01T00:00+24:00": False,
    "2027-01-01T00:00": False,
}


@pytest.mark.parametrize("text", TIMES)
def test_a_time_is_described_as_it_is_read(text: str) -> None:
    types = Types()
    types.of(When)
    described = jsonschema_rs.Draft202012Validator(types.components["When"], validate_formats=True)
    assert described.is_valid(text) == TIMES[text]
    if TIMES[text]:
        parse_deliver_at(text)
    else:
        with pytest.raises(TimeError):
            parse_deliver_at(text)


async def test_every_route_is_told_of(server: Running) -> None:
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    assert sorted(path for _, path, _ in routes_of(server) if path not in page) == []


async def test_a_route_without_a_description_is_found(server: Running) -> None:
    async def bare(request: web.Request) -> web.Response:
        return web.Response()

    site = web.Application()
    site.router.add_get("/bare", bare)
    assert document_of(site.router.routes())["paths"] == {}
    assert call_of(bare) is None


async def test_every_answer_is_typed(server: Running) -> None:
    """Each call gives something; what has a body says which."""
    for method, path, call in calls_of(server):
        assert call.gives, (method, path)
        for gives in call.gives:
            assert (gives.body is None) == (gives.status == 204), (method, path)
        assert set(call.problems) <= set(SLUGS)
        statuses = {gives.status for gives in call.gives} | {SLUGS[slug][0] for slug in call.problems}
        if call.body is not None:
            assert {400, 413, 415, 422, 429} <= statuses, (method, path)
        if call.query is not None:
            assert {400, 422} <= statuses, (method, path)


async def test_what_it_says_of_queries_holds(server: Running) -> None:
    """A parameter that is described is known, one that is not is refused."""
    for method, path, call in calls_of(server):
        if call.query is None:
            assert path in ("/livez", "/readyz", "/metrics", "/", "/console/main.js")
            continue
        async with server.http.request(method, f"{path}?nonsense=1") as response:
            assert response.status == 422, (method, path)
            detail = (await response.json())["errors"][0]["detail"]
        assert detail.endswith(f"known are: {', '.join(call.query) or 'none'}")


async def test_bodies_are_read_by_the_types_described(server: Running) -> None:
    for method, path, call in calls_of(server):
        if call.body is None or call.as_lines:
            continue
        async with server.http.request(method, path, json={"nonsense": 1}) as response:
            body = await response.json()
        if response.status != 404:
            assert (response.status, body["errors"][0]["field"]) in ((422, "nonsense"), (422, "topic")), path


async def test_hot_answers_that_are_put_together_by_hand_have_their_type(server: Running) -> None:
    """Those of which mypy sees nothing but bytes."""
    body = {"topic": "a/b", "payload": "hi"}
    made = await server.call("POST", "/v1/messages", body, status=201, Idempotency_Key="k")
    again = await server.call("POST", "/v1/messages", body, status=200, Idempotency_Key="k")
    for answer in (made, again):
        assert msgspec.to_builtins(msgspec.convert(answer.body, shapes.Scheduled)) == answer.body
        assert answer.headers["Location"].endswith(answer.body["id"])
        assert answer.headers["ETag"]
    assert again.headers["Idempotent-Replayed"] == "true"
    lines = b'{"topic":"a","payload":1}\n{"topic":"#","payload":1}'
    one = await server.call("POST", "/v1/messages:batch", lines[:25], status=201, Content_Type=NDJSON)
    assert msgspec.to_builtins(msgspec.convert(one.body, shapes.Accepted)) == one.body
    each = await server.call("POST", "/v1/messages:batch?each=true", lines, Content_Type=NDJSON)
    good, bad = msgspec.to_builtins(msgspec.convert(each.body, shapes.Results))["results"]
    assert (set(good), set(bad)) == ({"id"}, {"problem"})


def test_two_types_of_one_name_are_a_mistake() -> None:
    class Routes:
        @described("one", "", Gives(200, shapes.Slice))
        async def one(self, request: web.Request) -> web.Response:
            return web.Response()

        @described("two", "", Gives(200, msgspec.defstruct("Slice", ["x"])))
        async def two(self, request: web.Request) -> web.Response:
            return web.Response()

    site, routes = web.Application(), Routes()
    site.router.add_routes([web.get("/one", routes.one), web.get("/two", routes.two)])
    with pytest.raises(AssertionError, match="Slice"):
        document_of(site.router.routes())


async def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    async with server.http.get("/docs") as response:
        page = await response.text()
    assert response.content_type == "text/html"
    policy = response.headers["Content-Security-Policy"]
    assert all(f"{what} 'none'" in policy for what in ("default-src", "base-uri", "frame-ancestors"))
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    shown = re.sub(r"<pre>[^<]*</pre>", "", page)  # text, in which examples have addresses
    assert not re.search(r"<script|https?://|src=", shown)
    for _, path, _ in routes_of(server):
        assert path in page
    links = set(re.findall(r'href="#(\w+)"', page))
    assert {"Message", "Schedule", "Problem"} <= links <= set(re.findall(r'id="(\w+)"', page))


async def test_calls_stand_in_the_order_of_use(server: Running) -> None:
    document = (await server.call("GET", "/openapi.json")).body
    first, operations = next(iter(document["paths"].items()))
    assert (first, next(iter(operations))) == ("/v1/messages", "post"), "scheduling a message comes first"
    tags = [tag["name"] for tag in document["tags"]]
    used = [one["tags"][0] for path in document["paths"].values() for one in path.values()]
    assert sorted(dict.fromkeys(used), key=tags.index) == list(dict.fromkeys(used)), (
        "in the order of the tags"
    )
    assert set(used) <= set(tags)
    page = (await server.call("GET", "/docs")).body.decode()
    sections = re.findall(r"<h2><b>(\w+)</b> <code>([^<]+)</code>", page)
    assert sections[0] == ("post", "/v1/messages")
    assert len(sections) == len(used), "each once"


@pytest.mark.long
@pytest.mark.parametrize("ram", [None])  # a split's example takes a checkpoint
async def test_examples_are_taken(server: Running) -> None:
    """Each as it stands: what it names need not be there, but nothing of it is refused."""
    document = (await server.call("GET", "/openapi.json")).body
    assert server.http.app is not None
    wanted = {call.summary for _, _, call in routes_of(server) if call is not None and call.body is not None}
    sent = set()
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            (sample,) = one["x-codeSamples"]
            assert path.partition("{")[0] in sample["source"]
            if "requestBody" not in one:
                continue
            example = one["requestBody"]["content"]["application/json"]["example"]
            words = shlex.split(sample["source"])
            assert json.loads(words[words.index("-d") + 1]) == example
            url = next(word for word in words if "FASTI_URL" in word).removeprefix("$FASTI_URL")
            if "wait" in example:
                example["wait"] = "0s"  # there is nothing to come
            answer = await server.call(method.upper(), url, example, status=None)
            assert answer.status in (200, 201, 404, 409), (path, answer)
            sent.add(one["summary"])
    assert sent == wanted


def test_an_answer_begins_with_what_it_is_about() -> None:
    for place in (shapes.Group, shapes.Session, shapes.Endpoint):
        assert place.__struct_encode_fields__[0] == "name"
    message = shapes.Message.__struct_encode_fields__
    assert message.index("dispatched_at") < message.index("payload") < message.index("headers")
