"""HTTP of a node that does not lead: redirects, what is answered here, keys, and what clients do wrong."""

import asyncio
import io
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from server.cluster.redirecting import CLOSE_S
from server.cluster.routes import redirecting_site
from server.engine.clock import SystemClock
from server.fair import Part
from server.http.calls import ANY, OPEN, Gives, described
from server.http.front import HttpListener
from server.net.acceptor import Ports
from server.net.loop_time import LoopTime
from server.net.pool import pool_of
from server.net.tls import http_certificates
from server.observe.metrics import Metrics
from server.settings.config import Config
from server.settings.kinds import Address
from tests.support.http import open_site
from tests.support.keys import KeysFile, ring, with_keys
from tests.support.served import TLS, until

LEADER = "http://leader.example:8080"


def get(target: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {target} HTTP/1.1", "Host: localhost", *headers, "", "")).encode()


GET = get("/v1/messages")


class Calls:
    """As the cluster's: for who shows a key, and for nodes, which look for themselves."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/cluster", self.get),
            web.post("/v1/cluster/nodes", self.report),
            web.get("/v1/cluster/checkpoint", self.copy),
        ]

    @described("The cluster", ANY, Gives(200, dict[str, str]))
    async def get(self, _: web.Request) -> web.Response:
        return web.json_response({"node": "b"})

    @described("A node says something", OPEN, Gives(200, dict[str, int]), query=None)
    async def report(self, request: web.Request) -> web.Response:
        return web.json_response({"bytes": len(await request.read())})

    @described("A long answer", OPEN, Gives(200, bytes), query=None)
    async def copy(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await asyncio.sleep(30)
        return answer


class Wire:
    """A client that sends bytes and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        async with asyncio.timeout(30):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.split(": ", 1) for line in head[1:-2])
            body = await self.reader.readexactly(int(headers.get("Content-Length", 0)))
        assert headers["Server"] == "fasti"
        is_json = "json" in headers.get("Content-Type", "")
        return int(head[0].split()[1]), headers, json.loads(body) if is_json else body.decode()

    async def end(self) -> bytes:
        """What still comes, up to the end."""
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                return await self.reader.read()
        return b""


class Standing:
    """A node that does not lead, and clients of it."""

    def __init__(self, config: Config, keys: Path | None) -> None:
        self.where, self.why = LEADER, ""
        self.metrics = Metrics()
        keyring = ring(keys, SystemClock())
        time = LoopTime(monotonic, Part())
        self._tls = http_certificates(config)
        self._at = config.http.listen
        self._site = redirecting_site(
            config, keyring, self.metrics, Calls().routes(), lambda: self.where, lambda: self.why
        )
        self.listener = HttpListener(config, pool_of(config), time, self.metrics, Ports())
        self.port = 0
        self.wires: list[Wire] = []

    async def open(self) -> None:
        await self.listener.start(self._site)
        self.port = await self.listener.open(self._at, self._tls)

    async def close(self) -> None:
        await self.listener.close(CLOSE_S)

    async def dial(self) -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20))
        self.wires.append(wire)
        return wire

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], Any]:
        wire = await self.dial()
        wire.send(data)
        return await wire.answer()

    def pass_s(self, seconds: float) -> None:
        """Have the bounds in time looked at as if so much had passed."""
        now = asyncio.get_running_loop().time()
        self.listener.crowd.look(now)
        self.listener.crowd.look(now + seconds)

    @property
    def open_count(self) -> int:
        return len(self.listener.crowd)


@asynccontextmanager
async def standing(keys: Path | None = None, **http: Any) -> AsyncIterator[Standing]:
    config = with_keys(Config(), keys)
    config = replace(config, http=replace(config.http, listen=Address("127.0.0.1", 0), **http))
    made = Standing(config, keys)
    await made.open()
    try:
        yield made
    finally:
        for wire in made.wires:
            wire.writer.transport.abort()
        await made.close()


@pytest.fixture
async def stand() -> AsyncIterator[Standing]:
    async with standing() as made:
        yield made


def slug(body: Any) -> str:
    return str(body["type"]).removeprefix("/problems/")


# -- redirects


TARGETS = [
    *(b"/", b"/v1/messages?topic=a/%23&limit=1", b"/v1/messages/%2e%2E/x%2Fy%20z?a=%c3%a4&b=1+2&&c;d"),
    *(b"//evil.example/..;/a", b"/a?b#c", b"/docs", b"/metricsx", b"/v1/messages:batch?each=true"),
    b"/" + b"x" * 8_000,
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", [b"GET", b"POST", b"DELETE", b"PATCH"])
async def test_path_and_query_go_along_as_they_came(stand: Standing, method: bytes, target: bytes) -> None:
    status, headers, body = await stand.ask(method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, headers["Location"], body) == (307, LEADER + target.decode(), "")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://localhost/a%2Fb?c", "/a%2Fb?c"),
        ("http://localhost/", "/"),
        ("HTTP://localhost/a://b/c", "/a://b/c"),
    ],
)
async def test_a_target_may_be_a_url_of_this_host(stand: Standing, target: str, path: str) -> None:
    status, headers, _ = await stand.ask(get(target))
    assert (status, headers["Location"]) == (307, LEADER + path)


@pytest.mark.parametrize("target", ["@evil.example/", ".evil.example/", "http://evil.example/", "evil", "*"])
async def test_nobody_is_sent_elsewhere(stand: Standing, target: str) -> None:
    status, headers, body = await stand.ask(get(target))
    assert (status, slug(body)) == (400, "not-readable")
    assert "Location" not in headers


async def test_while_no_node_leads(stand: Standing) -> None:
    wire = await stand.dial()
    for where, expected in (("", 503), (LEADER, 307), ("", 503)):
        stand.where = where
        wire.send(GET)
        status, headers, body = await wire.answer()
        assert status == expected
        if status == 503:
            assert (slug(body), headers["Retry-After"]) == ("no-leader", "1")


async def test_a_client_follows(stand: Standing) -> None:
    """The method, the body and the query arrive; one that posts much gets its answer before it is done."""
    arrived: list[tuple[str, str, int]] = []

    async def lead(request: web.Request) -> web.Response:
        arrived.append((request.method, request.path_qs, len(await request.read())))
        return web.Response(status=201)

    leader = web.Application(client_max_size=1 << 26)
    leader.router.add_route("*", "/{path:.*}", lead)
    async with open_site(leader) as stand.where, aiohttp.ClientSession() as session:
        for size in (10, 8 << 20):
            url = f"http://127.0.0.1:{stand.port}/v1/messages:batch?each=true"
            async with session.post(url, data=io.BytesIO(b"x" * size)) as answer:
                assert answer.status == 201
    assert arrived == [("POST", "/v1/messages:batch?each=true", size) for size in (10, 8 << 20)]


# -- what is answered here


async def test_what_a_machine_asks(stand: Standing) -> None:
    wire = await stand.dial()
    for path, expected in (("/livez", 200), ("/readyz", 503), ("/metrics", 200), ("/v1/cluster", 200)):
        wire.send(get(path))
        status, headers, body = await wire.answer()
        assert status == expected, path
        if path == "/readyz":
            assert (slug(body), headers["Retry-After"]) == ("not-ready", "1")
            assert body["detail"] == "This node does not lead."
            stand.why = "its clock is wrong"
            wire.send(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await wire.answer())[2]["detail"] == "This node does not lead: its clock is wrong."
        if path == "/metrics":
            assert "fasti_" in body


async def test_answers_are_counted(stand: Standing) -> None:
    await stand.ask(GET)
    await stand.ask(b"nonsense\r\n\r\n")
    assert stand.metrics.answers["", "", 400] == 1
    assert sum(count for (_, _, status), count in stand.metrics.answers.items() if status == 307) == 1


async def test_a_body_for_the_cluster_is_read(stand: Standing) -> None:
    """Also one that waits to be asked for it."""
    head = b"POST /v1/cluster/nodes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
    assert (await stand.ask(head + b"\r\nabc"))[2] == {"bytes": 3}
    wire = await stand.dial()
    wire.send(head + b"Expect: 100-continue\r\n\r\n")
    async with asyncio.timeout(30):
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.send(b"abc")
    assert (await wire.answer())[2] == {"bytes": 3}


@pytest.fixture
def keys(tmp_path: Path) -> KeysFile:
    return KeysFile(tmp_path / "keys.toml")


async def test_keys_are_asked_for_what_is_told_here(keys: KeysFile) -> None:
    ops, sender = keys.add("ops", "admin"), keys.add("sender", "schedule")
    async with standing(keys.path) as stand:
        for path, key, expected in (
            *(("/livez", "", 200), ("/readyz", "", 503), ("/metrics", "", 401), ("/metrics", "wrong", 401)),
            *(("/metrics", sender, 403), ("/metrics", ops, 200), ("/v1/cluster", "", 401)),
            *(("/v1/cluster", sender, 200), ("/v1/messages", "", 307), ("/v1/messages", "wrong", 307)),
            ("/v1/backups", sender, 307),
        ):
            shown = [f"Authorization: Bearer {key}"] if key else []
            assert (await stand.ask(get(path, *shown)))[0] == expected, (path, key)


async def test_a_narrow_key_is_told_no_totals_here_either(keys: KeysFile) -> None:
    narrow = keys.add("narrow", "read", subscribe=["a/#"], deliver=["a/#"])
    counts = keys.add("counts", "read", deliver=["$SYS/#"])
    async with standing(keys.path) as stand:
        for key, is_told in ((narrow, False), (counts, True)):
            status, _, body = await stand.ask(get("/metrics", f"Authorization: Bearer {key}"))
            assert (status, "fasti_build_info" in body) == (200, True)
            assert ("fasti_messages_accepted_total" in body) is is_told


@pytest.mark.parametrize("path", ["/v1/messages", "/metrics", "/livez"])
async def test_another_host_is_refused(stand: Standing, path: str) -> None:
    status, headers, body = await stand.ask(f"GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode())
    assert (status, slug(body)) == (421, "foreign-host")
    assert "Location" not in headers


async def test_a_page_from_elsewhere_is_refused(stand: Standing) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
    assert (await stand.ask(head + b"Content-Length: 0\r\n\r\n"))[0] == 403


async def test_a_page_that_may_is_told() -> None:
    async with standing(origins=("http://page.example",)) as stand:
        more = b"Host: localhost\r\nOrigin: http://page.example\r\n"
        ask = b"OPTIONS /v1/messages HTTP/1.1\r\n" + more + b"Access-Control-Request-Method: POST\r\n\r\n"
        assert (await stand.ask(ask))[0] == 204
        status, headers, _ = await stand.ask(b"GET /v1/messages HTTP/1.1\r\n" + more + b"\r\n")
        assert (status, headers["Access-Control-Allow-Origin"]) == (307, "http://page.example")


async def test_over_tls() -> None:
    files = {"tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "key.pem")}
    async with standing(**files) as stand, AsyncExitStack() as ending:
        context = ssl.create_default_context(cafile=files["tls_cert"])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", stand.port, ssl=context, server_hostname="localhost"
        )
        ending.callback(writer.transport.abort)
        wire = Wire(reader, writer)
        wire.send(GET)
        assert (await wire.answer())[0] == 307


# -- bodies


def post(size: object, *headers: bytes) -> bytes:
    lines = (b"POST /v1/messages HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *headers)
    return b"\r\n".join((*lines, b"Content-Length: %d" % size)) + b"\r\n\r\n"


@pytest.mark.parametrize("size", [10, 10_000, 4 << 20])
async def test_a_body_is_not_waited_for(stand: Standing, size: int) -> None:
    """It is answered at the head. What comes of it is dropped, and the next request is read behind it."""
    wire = await stand.dial()
    wire.send(post(size))
    assert (await wire.answer())[0] == 307
    body = b"x" * size
    for at in range(0, size, 1 << 16):
        wire.send(body[at : at + (1 << 16)])
        await wire.writer.drain()
    wire.send(GET)
    assert (await wire.answer())[0] == 307


async def test_nobody_is_told_to_go_on_with_a_body(stand: Standing) -> None:
    wire = await stand.dial()
    wire.send(post(1_000, b"Expect: 100-continue"))
    status, headers, _ = await wire.answer()
    assert (status, headers["Connection"]) == (307, "close")
    wire.send(GET)  # a body, or another request: it is not answered
    stand.pass_s(3)
    assert await wire.end() == b""


async def test_a_body_without_an_end(stand: Standing) -> None:
    """The client reads its answer while it sends."""
    wire = await stand.dial()
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    wire.send(head + chunk)
    for _ in range(100):
        wire.send(chunk)
        await wire.writer.drain()
    status, headers, _ = await wire.answer()
    assert (status, headers["Connection"]) == (307, "close")
    with suppress(ConnectionError):
        async with asyncio.timeout(30):
            while True:
                wire.send(chunk)
                await wire.writer.drain()
    await until(lambda: stand.open_count == 0)


async def test_a_body_that_stops(stand: Standing) -> None:
    wire = await stand.dial()
    wire.send(post(1_000) + b"x")
    assert (await wire.answer())[0] == 307
    stand.pass_s(Config().http.body_timeout_ms / 1000 + 1)
    assert await wire.end() == b""
    assert stand.open_count == 0


# -- connections


async def test_requests_sent_at_once_are_answered_in_order(stand: Standing) -> None:
    wire = await stand.dial()
    heads = [
        *(f"GET /{n} HTTP/1.1\r\nHost: localhost\r\n\r\n" for n in range(10)),
        "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabcde",
        "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ]
    wire.send("".join(heads).encode())
    answers = [await wire.answer() for _ in heads]
    found = [headers.get("Location", "").removeprefix(LEADER) for _, headers, _ in answers]
    assert found == [*(f"/{n}" for n in range(10)), "/v1/messages", "", "/last"]
    assert await wire.end() == b""


async def test_http_1_0(stand: Standing) -> None:
    wire = await stand.dial()
    wire.send(b"GET /a?b HTTP/1.0\r\n\r\n")
    status, headers, _ = await wire.answer()
    assert (status, headers["Location"]) == (307, LEADER + "/a?b")
    assert await wire.end() == b""


async def test_a_head_that_never_ends(stand: Standing) -> None:
    silent, half = await stand.dial(), await stand.dial()
    half.send(GET[:-2])
    await until(lambda: stand.open_count == 2)
    await asyncio.sleep(0.05)
    stand.pass_s(Config().http.head_timeout_ms / 1000 + 1)
    status, headers, body = await half.answer()
    assert (status, slug(body), headers["Connection"]) == (408, "request-timeout", "close")
    assert await silent.end() == b""
    large = await stand.dial()
    large.send(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 4_000)
    assert (await large.answer())[0] == 431


async def test_nonsense_is_refused_without_a_traceback(
    stand: Standing, caplog: pytest.LogCaptureFixture
) -> None:
    for data, expected in (
        (b"\x00\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (post(1, b"Transfer-Encoding: chunked"), 400),
    ):
        assert (await stand.ask(data))[0] == expected, data
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("bound", ["connections", "connections_per_address"])
async def test_how_many_may_come(bound: str) -> None:
    async with standing(**{bound: 2}) as stand:
        wires = [await stand.dial() for _ in range(2)]
        await until(lambda: stand.open_count == 2)
        assert await (await stand.dial()).end() == b""
        assert stand.metrics.bounded == {f"http.{bound}": 1}
        for wire in wires:
            wire.send(GET)
            assert (await wire.answer())[0] == 307


async def test_a_client_that_goes_at_once(stand: Standing) -> None:
    sock = socket.create_connection(("127.0.0.1", stand.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.sendall(GET * 100)
    sock.close()
    assert (await stand.ask(GET))[0] == 307
    await until(lambda: stand.open_count == 1)


async def test_a_long_answer_delays_no_term(stand: Standing) -> None:
    """The node listens as a leader once this has ended; others wait for it."""
    slow = await stand.dial()
    slow.send(b"GET /v1/cluster/checkpoint HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await slow.reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(2):
        await stand.close()


async def test_closing_ends_all() -> None:
    async with standing() as stand:
        idle, half = await stand.dial(), await stand.dial()
        idle.send(GET)
        assert (await idle.answer())[0] == 307
        half.send(GET[:-2])
        await stand.close()
        assert await idle.end() == await half.end() == b""
        with pytest.raises(ConnectionError):
            await stand.dial()
