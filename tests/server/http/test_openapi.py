"""The description against the server: every route is in it, and what it says of queries and bodies holds."""

import re
from collections.abc import Iterator
from typing import Any

from server.http.openapi import CALLS, document_of

from ..conftest import Running

SAMPLES = {"id": "0" * 32, "start": "0", "n": "0", "client_id": "nobody"}


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
    assert set(CALLS) <= {(method, path) for path, one in document["paths"].items() for method in one}
    operations = [one for path in document["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    schemas = document["components"]["schemas"]
    assert {ref.removeprefix("#/components/schemas/") for ref in references(document)} <= set(schemas)
    for path, one in document["paths"].items():
        for operation in one.values():
            declared = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            assert "default" in operation["responses"]


async def test_what_it_says_of_queries_holds(server: Running) -> None:
    """A parameter that is described is known, one that is not is refused."""
    for (method, path), call in CALLS.items():
        if path in ("/livez", "/readyz", "/metrics"):
            continue
        there = re.sub(r"\{(\w+)\}", lambda found: SAMPLES[found[1]], path)
        async with server.http.request(method, f"{there}?nonsense=1") as response:
            assert response.status == 422, (method, path)
            detail = (await response.json())["errors"][0]["detail"]
        assert detail.endswith(f"there are: {', '.join(call.query) or 'none'}") or set(
            detail.rpartition(": ")[2].split(", ")
        ) == set(call.query)


async def test_bodies_are_read_by_the_types_described(server: Running) -> None:
    for (method, path), call in CALLS.items():
        if call.body is None or path.endswith(":batch"):
            continue
        there = re.sub(r"\{(\w+)\}", lambda found: SAMPLES[found[1]], path)
        async with server.http.request(method, there, json={"nonsense": 1}) as response:
            body = await response.json()
        if response.status != 404:
            assert (response.status, body["errors"][0]["field"]) in ((422, "nonsense"), (422, "topic")), path


async def test_a_route_without_an_entry_is_listed(server: Running) -> None:
    routes = list(server.http.app.router.routes())  # type: ignore[union-attr]
    document = document_of(routes)
    described = {(method, path) for path, one in document["paths"].items() for method in one}
    assert {(r.method.lower(), r.resource.canonical) for r in routes if r.method != "HEAD"} == described  # type: ignore[union-attr]


async def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    async with server.http.get("/docs") as response:
        page = await response.text()
    assert response.content_type == "text/html"
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert not re.search(r"<script|https?://|src=", page)
    for _, path in CALLS:
        assert path in page
