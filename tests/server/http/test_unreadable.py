"""What comes from careless and from hostile clients: URLs, headers and bodies that are not what they seem."""

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, cast

import pytest
from aiohttp import web

from server.http.problems import MEDIA_TYPE
from server.http.protocol import Protocol

from ..conftest import Running

BODY = b'{"topic":"a","payload":1}'


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/messages?topic=%zz", "/v1/messages?topic=a%", "/v1/messages?topic=%ff"),
        *("/v1/sessions?cursor=%ed%a0%80", "/v1/sessions/%ff", "/v1/sessions/%zz", "/v1/sessions/%ed%a0%80"),
    ],
)
async def test_an_escape_that_is_none_is_not_readable(server: Running, path: str) -> None:
    head, _ = await spoken(server, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert b" 400 " in head.splitlines()[0]


async def test_a_session_is_not_hit_by_a_broken_escape(server: Running) -> None:
    await server.connect("%ff")
    head, _ = await spoken(server, b"DELETE /v1/sessions/%ff HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b" 400 " in head.splitlines()[0]
    head, _ = await spoken(server, b"DELETE /v1/sessions/%25ff HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b" 204 " in head.splitlines()[0]


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger"])
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE", "OPTIONS"])
async def test_a_verb_is_not_the_end_of_a_name(server: Running, method: str, verb: str) -> None:
    answer = await server.call(method, f"/v1/schedules/nightly:{verb}", status=405)
    assert answer.headers["Allow"] == "POST"


async def test_a_name_with_a_colon_is_still_refused_by_name(server: Running) -> None:
    timing = {"cron": "@daily", "timezone": "UTC", "topic": "a"}
    answer = await server.call("PUT", "/v1/schedules/a:b", timing, status=422)
    assert answer.body["errors"][0]["field"] == "name"


async def test_a_key_given_twice_is_refused(server: Running) -> None:
    head, body = await spoken(
        server, posted(BODY, "Content-Type: application/json", "Idempotency-Key: a", "Idempotency-Key: b")
    )
    assert b" 422 " in head.splitlines()[0]
    assert json.loads(body)["errors"][0]["field"] == "key"


async def test_a_body_that_is_not_what_its_headers_say(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    head, body = await spoken(
        server, posted(b"no gzip", "Content-Type: application/json", "Content-Encoding: gzip")
    )
    assert b" 400 " in head.splitlines()[0]
    assert json.loads(body)["type"] == "/problems/not-readable"
    await server.call("GET", "/livez")
    assert "Traceback" not in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_compressed_body_that_nobody_asks_for_is_not_unpacked(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MiB may say that it is a GiB: to read on to its end is one thing, to unpack it another."""
    begun, real = [], zlib.decompressobj

    def noted(form: int = 15, **more: Any) -> Any:
        begun.append(form)
        return real(form, **more)

    monkeypatch.setattr(zlib, "decompressobj", noted)
    packed = {"Content_Type": "application/json", "Content_Encoding": "gzip"}
    for path, status, count in (("/v1/nowhere", 404, 0), ("/v1/info", 405, 0), ("/v1/messages", 201, 1)):
        await server.call("POST", path, gzip.compress(BODY), status=status, **packed)
        assert len(begun) == count


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_body_is_one_whole_run(server: Running, encoding: str) -> None:
    def answer(raw: bytes, status: int) -> Awaitable[object]:
        named = {"Content_Type": "application/json", "Content_Encoding": encoding}
        return server.call("POST", "/v1/messages", raw, status=status, **named)

    pack = gzip.compress if encoding == "gzip" else zlib.compress
    await answer(pack(BODY), 201)
    await answer(pack(BODY)[:-1], 400)
    await answer(pack(BODY) + b"x", 400)
    await answer(pack(BODY) + pack(b" "), 400)
    if encoding == "deflate":
        await answer(pack(BODY)[2:-4], 201)  # some send it bare


async def test_a_compressed_body_counts_as_the_largest(server: Running) -> None:
    """Its length says nothing of what becomes of it in memory."""
    packed = {"Content_Type": "application/json", "Content_Encoding": "gzip"}
    await server.call("POST", "/v1/messages", gzip.compress(BODY), status=201, **packed)
    large = gzip.compress(
        b'{"topic":"a","payload":"%s"}' % (b"x" * (server.app.core.config.http.max_body + 1))
    )
    assert len(large) < 100_000
    await server.call("POST", "/v1/messages", large, status=413, **packed)


async def test_compressed_bodies_under_way_are_bounded_too(server: Running) -> None:
    config = server.app.core.config
    count = config.limits.queued_bytes // config.http.max_body
    under_way = [await asyncio.open_connection("127.0.0.1", server.http.port) for _ in range(count)]
    packed = posted(b"", "Content-Type: application/json", "Content-Encoding: gzip").replace(b": 0", b": 9")
    for _, writer in under_way:
        writer.write(packed.replace(b"/v1/messages ", b"/v1/messages:batch "))
    async with asyncio.timeout(60):
        while (await spoken(server, posted(BODY, "Content-Type: application/json")))[0].split()[1] != b"429":
            pass
    for _, writer in under_way:
        writer.close()


class Ended(Protocol):
    """Its connection is ended behind the last answer, as the front does."""

    wire: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast("asyncio.Transport", transport)
        super().connection_made(transport)


@pytest.fixture
async def listening(server: Running) -> AsyncIterator[tuple[str, int]]:
    """A site behind our own protocol, as the process has it."""
    site = web.Application()
    site.router.add_get("/", _root)
    runner = web.AppRunner(site, access_log=None)
    await runner.setup()
    assert runner.server is not None
    loop = asyncio.get_running_loop()
    served = runner.server

    def accepted() -> Ended:
        def answered(goes_on: bool) -> None:
            if not goes_on:
                one.wire.close()

        one = Ended(served, answered, lambda key: "", loop=loop)
        return one

    listener = await loop.create_server(accepted, "127.0.0.1", 0)
    yield listener.sockets[0].getsockname()
    listener.close()
    await runner.cleanup()


async def _root(_: web.Request) -> web.Response:
    return web.Response(text="here")


@pytest.mark.parametrize(
    "sent",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /?" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n",
        b"GET /?\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["line", "long", "nul", "latin1"],
)
async def test_what_is_no_http_is_a_problem_too(
    listening: tuple[str, int], sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head, body = await said(listening, sent)
    assert b" 400 " in head.splitlines()[0]
    assert MEDIA_TYPE.encode() in head
    assert json.loads(body)["type"] == "/problems/not-readable"
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    _, body = await said(listening, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert body == b"here"


def posted(body: bytes, *headers: str) -> bytes:
    lines = ["POST /v1/messages HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def spoken(server: Running, sent: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to bytes that no client library would send."""
    return await said(("127.0.0.1", server.http.port or 0), sent)


async def said(address: tuple[str, int], sent: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(sent)
        async with asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [line for line in head.lower().splitlines() if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(sizes[0].partition(b":")[2])) if sizes else b""
    finally:
        writer.close()
        await writer.wait_closed()
    return head, body
