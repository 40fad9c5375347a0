"""The front: what it takes for a call of its own; it answers as aiohttp does and loses nothing."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from server.http.front import AHEAD_MAX, OWED, Front, HttpListener
from server.http.usual import WHOLE_MAX, LastHead, read_request
from server.net.crowd import Cause
from server.serving import CLOSE_S
from shards.errors import Corrupt
from tests.support.build import OPENED
from tests.support.fresh import fresh
from timeline.position import MessageId

from ..conftest import Fronted, Running, until, with_settings

BODY = b'{"topic":"a/b","payload":"hi","deliver_in":"15m"}'


def post(body: bytes = BODY, *headers: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = (b"Host: localhost", b"Content-Type: application/json", b"Content-Length: %d" % size, *headers)
    return b"POST /v1/messages HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + body


class Wire:
    """A connection that says what it is told and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:-2])
        body = await self.reader.readexactly(int(headers.get("Content-Length", 0)))
        return int(head[0].split()[1]), headers, json.loads(body) if body else None


Dial = Callable[[], Any]


@pytest.fixture
async def dial(server: Running) -> AsyncIterator[Dial]:
    """Opens connections to the front."""
    at = server.front
    made = []

    async def connect(port: int | None = None) -> Wire:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port or at.front_port))
        made.append(wire)
        return wire

    yield connect
    for wire in made:
        wire.writer.close()


def fronts(server: Running) -> int:
    """Connections that have not been handed over."""
    at = server.front
    return sum(one._inner is None for one in open_at(at))


def open_at(at: Fronted) -> list[Front]:
    return [one for one in at.listener.crowd if isinstance(one, Front)]


@pytest.mark.parametrize("end", [b"\x01\r\n\r\n", b"a\r\n\r\n", b"\r\n"])
@pytest.mark.parametrize("line", [b"a: \r\n", b"a:\t \t \r\n", b"a:" + b" " * 2_000 + b"\r\n"])
def test_a_head_of_empty_headers_is_looked_at_once(line: bytes, end: bytes) -> None:
    """Each had two ways to be matched, 40 of them 2^40: one request stopped the server for ever."""
    count = 7_000 // len(line)
    assert read_request(b"POST /v1/messages HTTP/1.1\r\n" + line * count + end) is None


def test_a_call_is_read() -> None:
    data = post(BODY, b"Idempotency-Key: order-17", b"Authorization: Bearer x", b"accept: */*")
    request = read_request(data + b"POST")
    assert request is not None
    assert (data[request.start : request.end], request.key) == (BODY, "order-17")
    assert request.authorization == "Bearer x"
    assert request.end == len(data)


LENGTHS = b"0|7|17|007|123456789|1234567890||-1|+7|7a|7 | 7|7\r\nX: y".split(b"|")


@pytest.mark.parametrize("first", [b"7", b"17", b"17 \t", b"000000017"])
@pytest.mark.parametrize("behind", [(), (b"X-Content-Length: 17", b"accept: */*")])
def test_a_head_like_the_last_one_is_read_as_the_first_one_is(
    first: bytes, behind: tuple[bytes, ...]
) -> None:
    def head(length: bytes, name: bytes = b"Content-Length") -> bytes:
        return post(b"", *behind, length=1).replace(b"Content-Length: 1\r", name + b": " + length + b"\r")

    last = LastHead()
    assert last.read(head(first)) == read_request(head(first)) is not None
    same = [head(length) for length in LENGTHS]
    others = [head(b"7", b"content-length"), head(b"7").replace(b"localhost", b"example.org")]
    for data in (*same, *others, *same):
        assert last.read(data + BODY) == read_request(data + BODY)
        for stop in range(len(data)):
            assert last.read(data[:stop]) == read_request(data[:stop])


KEYS = [b"k" * 256, b"k" * 600, *b"b|a b|a \t| a||\t|\xe4|a\0|a\r\nX: y|a\r\nHost: b".split(b"|")]


@pytest.mark.parametrize("first", [b"a", b"order-17 ", b"k" * 255])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_also_with_another_key(first: bytes, place: int) -> None:
    def head(key: bytes, length: bytes, name: bytes = b"Idempotency-Key: ") -> bytes:
        lines = post(b"").replace(b"Content-Length: 0", b"Content-Length: " + length).split(b"\r\n")
        lines.insert(place, name + key)
        return b"\r\n".join(lines)

    last = LastHead()
    assert last.read(head(first, b"7")) == read_request(head(first, b"7")) is not None
    same = [head(key, length) for key in KEYS for length in (b"7", b"19", b"7a")]
    others = [head(b"c", b"7", name) for name in (b"idempotency-key: ", b"Idempotency-Key:", b"X: y\r\n")]
    for data in (*same, *others, post(BODY), *same):
        assert last.read(data + BODY) == read_request(data + BODY)
        if len(data) < 400:
            for stop in range(len(data)):
                assert last.read(data[:stop]) == read_request(data[:stop])


@pytest.mark.parametrize("stop", range(len(post())))
def test_every_beginning_of_a_call_is_none_or_incomplete(stop: int) -> None:
    request = read_request(post()[:stop])
    assert request is None or request.end > stop


@pytest.mark.parametrize(
    "other",
    [
        b"GET /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n",
        post().replace(b"HTTP/1.1", b"HTTP/1.0"),
        post().replace(b"/v1/messages", b"/v1/messages?x=1"),
        post().replace(b"/v1/messages", b"/v1/messages:batch"),
        post().replace(b"Host: localhost\r\n", b""),
        post().replace(b"Content-Length: 49\r\n", b""),
        post().replace(b"Content-Length: 49", b"Content-Length: +49"),
        post().replace(b"Content-Length: 49", b"Content-Length: 49, 49"),
        post().replace(b"Content-Type: application/json\r\n", b""),
        post(BODY, b"Content-Length: 49"),
        post(BODY, b"Transfer-Encoding: chunked"),
        post(BODY, b"Content-Encoding: gzip"),
        post(BODY, b"Connection: close"),
        post(BODY, b"Connection: Upgrade"),
        post(BODY, b"Expect: 100-continue"),
        post(BODY, b"Authorization: Bearer x", b"authorization: Bearer y"),
        post(BODY, b"X-Folded: a\r\n b"),
        post(BODY, b"X-Bad : a"),
        post(BODY, b"X-Latin: \xe4"),
        post(BODY, b"X-Zero: \0"),
        post(BODY, b"X-Long: " + b"a" * 9_000),
    ],
)
def test_what_is_not_certain_is_not_ours(other: bytes) -> None:
    assert read_request(other) is None


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (BODY, []),
        (BODY, [b"Idempotency-Key: one"]),
        (b"{", []),
        (b"[]", []),
        (b'{"topic":"a/#","payload":1}', []),
        (b'{"topic":"a","payload":1,"late":"drop","deliver_at":"2020-01-01T00:00:00Z"}', []),
        (gzip.compress(BODY, mtime=0), [b"Content-Encoding: gzip"]),
        (BODY, [b"Authorization: Bearer x"]),
    ],
)
async def test_it_answers_as_the_framework_does(
    server: Running, dial: Dial, body: bytes, headers: list[bytes]
) -> None:
    at = server.http.server
    assert isinstance(at, TestServer)
    first, second = await dial(), await dial(at.port)
    said = []
    for wire in (first, second, first):
        wire.send(post(body, *headers))
        said.append(await wire.answer())
    assert said[0][0] == said[2][0] or b"Idempotency-Key: one" in headers
    statuses = {status for status, _, _ in said[1:]}
    assert len(statuses) == 1, said
    (_, one, told), (_, two, other) = said[2], said[1]
    assert parsedate_to_datetime(one.pop("Date")).year >= 2026
    two.pop("Date")
    assert one["Server"] == "fasti"
    if b"Idempotency-Key: one" not in headers and "ETag" in one:
        for shown in (one, two):
            shown["ETag"] = shown["Location"] = ""
        told["id"] = other["id"] = ""
    assert (told, one) == (other, two)


async def test_calls_sent_at_once_are_answered_in_order(server: Running, dial: Dial) -> None:
    wire = await dial()
    wire.send(b"".join(post(b'{"topic":"t/%d","payload":1,"deliver_in":"1h"}' % n) for n in range(20)))
    names = [(await wire.answer())[2]["id"] for _ in range(20)]
    assert names == sorted(names)
    topics = [(await server.call("GET", f"/v1/messages/{name}")).body["topic"] for name in names]
    assert topics == [f"t/{n}" for n in range(20)]


async def test_head_and_body_may_come_apart(server: Running, dial: Dial) -> None:
    wire = await dial()
    data = post()
    for part in (data[:-30], data[-30:-1], data[-1:]):
        wire.send(part)
        await asyncio.sleep(0.02)
    assert (await wire.answer())[0] == 201
    assert fronts(server) == 1


async def test_any_other_call_hands_the_connection_over(server: Running, dial: Dial) -> None:
    wire = await dial()
    wire.send(post() + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" + post())
    assert [(await wire.answer())[0] for _ in range(3)] == [201, 200, 201]
    assert fronts(server) == 0
    wire.send(post(b"{"))
    assert (await wire.answer())[0] == 400


async def test_a_message_that_is_spread_is_handed_over(server: Running, dial: Dial) -> None:
    wire = await dial()
    wire.send(post(b'{"topic":"a","payload":1,"deliver_in":"5m","spread":"PT1M"}'))
    assert (await wire.answer())[0] == 201
    assert fronts(server) == 0


@pytest.mark.parametrize("size", [WHOLE_MAX, 100_000])
async def test_large_bodies(server: Running, dial: Dial, size: int) -> None:
    wire = await dial()
    body = json.dumps({"topic": "a", "payload": "x" * size, "deliver_in": "1h"}).encode()
    wire.send(post(body) + post(body))
    assert [(await wire.answer())[0] for _ in range(2)] == [201, 201]


async def test_what_is_sent_ahead_is_bounded_and_not_lost(server: Running, dial: Dial) -> None:
    wire = await dial()
    each = post(json.dumps({"topic": "a", "payload": "x" * 1_000, "deliver_in": "1h"}).encode())
    count = 4 * AHEAD_MAX // len(each)
    wire.send(each * count)
    assert {(await wire.answer())[0] for _ in range(count)} == {201}
    assert fronts(server) == 1
    assert (await server.call("GET", "/v1/messages?count=true&limit=1")).body["count"] == count


async def test_a_client_that_leaves_before_the_answer(server: Running, dial: Dial) -> None:
    wire = await dial()
    wire.send(post())
    wire.writer.transport.abort()
    await until(lambda: not fronts(server) and server.app.core.is_settled())
    other = await dial()
    other.send(post())
    assert (await other.answer())[0] == 201


async def test_a_store_that_fails_is_said(server: Running, dial: Dial) -> None:
    wire = await dial()
    server.store.is_failing = True
    wire.send(post())
    status, headers, body = await wire.answer()
    assert (status, headers["Retry-After"], body["type"]) == (503, "1", "/problems/store-unavailable")
    assert headers["Content-Type"] == "application/problem+json"
    server.store.is_failing = False


@with_settings(limits={"pending": 1})
async def test_a_quota_is_said(server: Running, dial: Dial) -> None:
    wire = await dial()
    wire.send(post() + post())
    assert (await wire.answer())[0] == 201
    status, headers, body = await wire.answer()
    assert (status, headers["Retry-After"], body["type"]) == (429, "1", "/problems/over-quota")
    assert fronts(server) == 1


async def test_answers_are_counted(server: Running, dial: Dial) -> None:
    wire = await dial()
    wire.send(post())
    await wire.answer()
    metrics = (await server.call("GET", "/metrics")).body.decode()
    assert 'fasti_http_answers_total{method="POST",route="/v1/messages",status="201"} 1.0' in metrics


@asynccontextmanager
async def closing(listener: HttpListener) -> AsyncIterator[None]:
    task = asyncio.create_task(listener.crowd.close(Cause.STOPPING, CLOSE_S))
    yield
    await task


async def test_closing_lets_what_is_decided_be_answered(server: Running, dial: Dial) -> None:
    at = server.front
    wire, idle = await dial(), await dial()
    wire.send(post())
    while not any(front.state in OWED for front in open_at(at)):
        await asyncio.sleep(0)
    async with closing(at.listener):
        assert (await wire.answer())[0] == 201
    assert await wire.reader.read() == b""
    assert await idle.reader.read() == b""


@OPENED
async def test_what_cannot_be_answered_is_said(
    server: Running, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message under a key cannot be read: its client gets an answer, and the connection goes on."""
    wire = await dial()
    wire.send(post(BODY, b"Idempotency-Key: k"))
    assert (await wire.answer())[0] == 201

    def find(wanted: MessageId) -> None:
        raise Corrupt("block checksum mismatch")

    monkeypatch.setattr(server.app.core.reader, "find", find)
    wire.send(post(BODY, b"Idempotency-Key: k"))
    async with asyncio.timeout(30):
        status, _, body = await wire.answer()
    assert (status, body["type"]) == (500, "/problems/unreadable")
    wire.send(post())
    assert (await wire.answer())[0] == 201


async def test_what_waits_for_its_turn_on_a_connection_that_was_cut_is_dropped(
    server: Running, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    at = server.front
    wire = await dial()
    wire.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await wire.answer()
    (front,) = open_at(at)
    front.abort()
    front.data_received(b"GET /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert await wire.reader.read() == b""
    assert not caplog.records


async def test_what_is_left_of_a_connection_needs_no_collector(server: Running, dial: Dial) -> None:
    with fresh(Front) as left:
        for _ in range(3):
            wire = await dial()
            wire.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await wire.answer()
            wire.writer.close()
        assert left()
        await until(lambda: not left())


async def test_behind_a_call_that_aiohttp_has_answered_the_next_is_taken_here(
    server: Running, dial: Dial
) -> None:
    """And is answered at the stop: aiohttp, which is closed then, has nothing to do with it."""
    wire, lease = await dial(), b"POST /v1/groups/g/messages:lease"
    wire.send(post(b'{"max": 1, "filter": "a/#"}').replace(b"POST /v1/messages", lease))
    assert (await wire.answer())[2] == {"messages": []}
    assert not fronts(server)
    wire.send(post())
    assert (await wire.answer())[0] == 201
    wire.send(post(b'{"max": 1, "wait": 60}').replace(b"POST /v1/messages", lease))
    pull = server.app.core.pull
    while not pull.waiting:
        await asyncio.sleep(0)
    at = server.front
    (front,) = open_at(at)
    front.close(Cause.STOPPING)
    pull.stop()
    assert (await wire.answer())[2] == {"messages": []}
    assert await wire.reader.read() == b""
