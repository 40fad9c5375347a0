"""Problems over a real socket: ours, the parsers', aiohttp's and the unexpected ones."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from server.http.problems import MEDIA_TYPE, SLUGS, Problem, problem_middleware, problem_of
from server.http.values.batch_body import BatchError, TooMany
from server.http.values.bodies import FieldError, NotReadable, RequestError, UnsupportedMedia
from shards.errors import StoreFailed

Client = TestClient[web.Request, web.Application]

RAISED: dict[str, Exception] = {
    "quota": Problem("over-quota", "ten a second", headers={"Retry-After": "3"}, limit=10),
    "field": FieldError("topic", "is required"),
    "bug": KeyError("secret"),
    "moved": web.HTTPFound("/elsewhere"),
    "gone": web.HTTPGone(text="it was here"),
    "teapot": web.HTTPLengthRequired(),
    "full": StoreFailed("write to /d: IO error: No space left on device: While appending to file: /d/8.log"),
    "fixed": StoreFailed("/d: Read-only file system"),
    "opening": StoreFailed("/d is being reopened"),
    "failing": StoreFailed("sync of /d: IO error: Input/output error"),
}


async def raising(request: web.Request) -> web.StreamResponse:
    raise RAISED[request.match_info["name"]]


async def reading(request: web.Request) -> web.StreamResponse:
    return web.Response(body=await request.read())


async def breaking_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    if "chunked" in request.query:
        response.enable_chunked_encoding()
    else:
        response.content_length = 100
    await response.prepare(request)
    if "written" in request.query:
        await response.write(b"half")
    raise Problem("store-unavailable")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    app = web.Application(middlewares=[problem_middleware], client_max_size=1_000)
    app.router.add_get("/raise/{name}", raising)
    app.router.add_post("/read", reading)
    app.router.add_get("/break", breaking_off)
    async with TestClient(TestServer(app)) as client:
        yield client


async def said(response: aiohttp.ClientResponse) -> dict[str, Any]:
    assert response.content_type == MEDIA_TYPE
    members: dict[str, Any] = await response.json(content_type=MEDIA_TYPE)
    assert members["status"] == response.status
    return members


async def test_a_problem_goes_out_with_its_members_and_headers(client: Client) -> None:
    response = await client.get("/raise/quota")
    assert (response.status, response.headers["Retry-After"]) == (429, "3")
    assert await said(response) == {
        "type": "/problems/over-quota",
        "title": "A quota is used up",
        "status": 429,
        "detail": "ten a second",
        "limit": 10,
    }


async def test_what_a_parser_refuses_names_the_field(client: Client) -> None:
    response = await client.get("/raise/field")
    members = await said(response)
    assert (response.status, members["type"]) == (422, "/problems/refused")
    assert members["errors"] == [{"field": "topic", "detail": "is required"}]


async def test_no_route_a_wrong_method_and_a_large_body(client: Client) -> None:
    response = await client.get("/nowhere")
    assert (response.status, (await said(response))["type"]) == (404, "/problems/not-found")
    response = await client.put("/read")
    assert (response.status, response.headers["Allow"]) == (405, "POST")
    assert (await said(response))["type"] == "/problems/method-not-allowed"
    response = await client.post("/read", data=b"x" * 1_001)
    assert response.status == 413
    assert "1000" in (await said(response))["detail"]
    response = await client.post("/read", data=b"x")
    assert await response.read() == b"x"


async def test_a_bug_is_logged_and_not_told(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response = await client.get("/raise/bug?a=1")
    assert response.status == 500
    assert "secret" not in await response.text()
    assert "GET /raise/bug?a=1 failed" in caplog.text
    assert "KeyError: 'secret'" in caplog.text


async def test_a_redirect_and_a_status_without_slug_keep_their_meaning(client: Client) -> None:
    response = await client.get("/raise/moved", allow_redirects=False)
    assert (response.status, response.headers["Location"]) == (302, "/elsewhere")
    response = await client.get("/raise/gone")
    assert await said(response) == {
        "type": "about:blank",
        "title": "Gone",
        "status": 410,
        "detail": "it was here",
    }
    assert (await said(await client.get("/raise/teapot")))["detail"] == "Length Required"


@pytest.mark.parametrize("query", ["", "written", "chunked", "chunked&written"])
async def test_half_an_answer_is_cut_and_not_ended(client: Client, query: str) -> None:
    with pytest.raises(aiohttp.ClientError):
        await (await client.get(f"/break?{query}")).read()
    assert (await client.get("/nowhere")).status == 404


async def test_a_client_that_left_is_nobody_to_answer() -> None:
    async def reset(_: web.Request) -> web.StreamResponse:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await problem_middleware(aiohttp.test_utils.make_mocked_request("GET", "/"), reset)
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("error", "slug", "status"),
    [
        (NotReadable("x"), "not-readable", 400),
        (UnsupportedMedia("x"), "unsupported-media-type", 415),
        (TooMany(5), "too-large", 413),
        (FieldError("qos", "x"), "refused", 422),
        (BatchError([{"line": 3, "field": "qos", "detail": "x"}]), "refused", 422),
        (RequestError("x"), "refused", 422),
    ],
)
def test_every_refusal_of_the_parsers_has_a_problem(error: RequestError, slug: str, status: int) -> None:
    problem = problem_of(error)
    assert (problem.slug, problem.status) == (slug, status)
    assert problem.detail


def test_a_batch_lists_its_lines() -> None:
    problem = problem_of(BatchError([{"line": 3, "field": "qos", "detail": "x"}]))
    assert problem.members()["errors"] == [{"line": 3, "field": "qos", "detail": "x"}]
    assert problem.members()["error_count"] == 1


def test_the_table_is_names_and_error_statuses() -> None:
    for slug, (status, title) in SLUGS.items():
        assert slug.replace("-", "").isalpha()
        assert slug == slug.lower()
        assert 400 <= status < 600
        assert title
    assert "detail" not in Problem("internal").members()


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("full", "The disk is full: no write can be made durable until there is room."),
        ("fixed", "The file system is read-only: no write can be made durable."),
        ("opening", "The store is being reopened; try again."),
        ("failing", "No write can be made durable now."),
    ],
)
async def test_a_store_that_fails_is_503_with_the_reason(client: Client, name: str, detail: str) -> None:
    response = await client.get(f"/raise/{name}")
    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
    body = await said(response)
    assert (body["type"], body["detail"]) == ("/problems/store-unavailable", detail)
