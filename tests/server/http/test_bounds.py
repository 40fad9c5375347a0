"""The bounds on HTTP connections, over real sockets: how many, how long, how much.

Time is told, not waited for.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from server.http import front as front_module
from server.http.front import OWED, Front, State
from server.net import lingering
from server.net.crowd import BUSY, Cause, Crowd, http_bounds
from server.observe.metrics import Metrics
from server.settings.config import Config

from ..conftest import Running, until, with_settings

BODY = b'{"topic":"a/b","payload":"hi","deliver_in":"15m"}'
HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
OTHER = POST.replace(b"Host:", b"Expect: 100-continue\r\nHost:")
"""The same, which is not for the quick path."""
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Wire:
    """A client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, Any]:
        async with asyncio.timeout(30):
            head = await self.reader.readuntil(b"\r\n\r\n")
            sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await self.reader.readexactly(int(sizes[0].split(b":")[1])) if sizes else b""
        is_json = body and b"json" in head
        return int(head.split()[1]), json.loads(body) if is_json else body

    async def end(self) -> bytes:
        """What still comes, up to the end."""
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                return await self.reader.read()
        return b""


class Bench:
    """A server's front, and clients of it."""

    def __init__(self, server: Running) -> None:
        at = server.front
        self.at = at
        self.wires: list[Wire] = []

    @property
    def fronts(self) -> list[Front]:
        return [one for one in self.at.listener.crowd if isinstance(one, Front)]

    async def dial(self, source: str = "127.0.0.1") -> Wire:
        at = "127.0.0.1", self.at.front_port
        wire = Wire(*await asyncio.open_connection(*at, local_addr=(source, 0)))
        self.wires.append(wire)
        return wire

    async def one(self) -> tuple[Wire, Front]:
        """A client, and its connection."""
        before = set(self.fronts)
        wire = await self.dial()
        await until(lambda: any(front.is_begun for front in set(self.fronts) - before))
        (front,) = set(self.fronts) - before
        return wire, front

    def pass_time(self, seconds: float) -> None:
        """Look at all connections as if so much time had passed."""
        now = asyncio.get_running_loop().time()
        self.at.listener.crowd.look(now)
        self.at.listener.crowd.look(now + seconds)


@pytest.fixture
async def bench(server: Running, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    for module in (front_module, lingering):
        monkeypatch.setattr(module, "LINGER_S", 0.2)
    made = Bench(server)
    yield made
    for wire in made.wires:
        wire.writer.close()


async def kept(bench: Bench, front: Front) -> None:
    await until(lambda: front.held_bytes > 0)


async def test_a_silent_connection_ends(server: Running, bench: Bench) -> None:
    wire, _ = await bench.one()
    bench.pass_time(9)
    assert len(bench.fronts) == 1
    bench.pass_time(10.1)
    assert await wire.end() == b""
    await until(lambda: not bench.fronts)
    metrics = (await server.call("GET", "/metrics")).body.decode()
    assert 'fasti_http_connections_bounded_total{bound="http.head_timeout"} 1.0' in metrics


@pytest.mark.long
@pytest.mark.parametrize("sent", [b"POST", HEAD, b"GET /livez HTTP/1.1\r\nHost: a\r\n", b"\r\n"])
async def test_half_a_head_ends(bench: Bench, sent: bytes) -> None:
    wire, front = await bench.one()
    wire.send(sent)
    if sent.strip():
        await kept(bench, front)
    bench.pass_time(10.1)
    said = await wire.end()
    assert not sent.strip() or said.startswith(b"HTTP/1.1 408 ")
    await until(lambda: not bench.fronts)


LIST = b"GET /v1/messages?state=all HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (POST, [201]),
        (GET, [200]),
        (OTHER, [100, 201]),
        (POST + POST, [201, 201]),
        (POST + GET + POST + LIST, [201, 200, 201, 200]),
        (GET + LIST, [200, 200]),
        (POST + b"POST /v1", [201]),
        (GET + b"GET", [200]),
        (POST + OTHER[:-3], [201]),
        (GET + OTHER[:-3], [200]),
        (b"", []),
        (b"GET", []),
        (POST[:-3], []),
        (OTHER[:-3], []),
    ],
)
async def test_who_sends_no_more_is_answered_and_then_it_ends(
    bench: Bench, sent: bytes, statuses: list[int]
) -> None:
    """As `nc` does: a whole request, then the end of its side. What is not whole gets no answer."""
    wire, _ = await bench.one()
    wire.send(sent)
    wire.writer.write_eof()
    said = await wire.end()
    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", said)] == statuses
    await until(lambda: not bench.fronts)


async def test_who_sends_no_more_and_reads_slowly_gets_all(server: Running, bench: Bench) -> None:
    """Calls that are sent ahead wait while answers are not taken."""
    for _ in range(20):
        await server.schedule("t", "x" * 60_000)
    wire, front = await bench.one()
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    wire.send(LIST * 20)
    wire.writer.write_eof()
    await until(lambda: front._is_eof and front._is_full)
    assert front.held_bytes
    wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert (await wire.end()).count(b"HTTP/1.1 200 ") == 20
    await until(lambda: front not in bench.fronts)


@pytest.mark.parametrize("call", [POST, GET])
async def test_half_a_head_behind_a_call_ends(bench: Bench, call: bytes) -> None:
    wire, front = await bench.one()
    wire.send(call + b"POST /v1")
    assert (await wire.answer())[0] in (200, 201)
    await kept(bench, front)
    bench.pass_time(9)
    assert bench.fronts
    bench.pass_time(10.1)
    status, body = await wire.answer()
    assert (status, body["type"]) == (408, "/problems/request-timeout")
    assert await wire.end() == b""


async def test_half_a_short_body_ends(bench: Bench) -> None:
    wire, front = await bench.one()
    wire.send(POST[:-5])
    await kept(bench, front)
    bench.pass_time(10.1)
    assert (await wire.answer())[0] == 408


@pytest.mark.parametrize(
    "rest", [b"Content-Length: 90000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\n"]
)
async def test_half_a_body_ends(bench: Bench, rest: bytes) -> None:
    wire, front = await bench.one()
    wire.send(HEAD + rest + b"{")
    await until(lambda: front._inner is not None)
    bench.pass_time(9)
    assert bench.fronts
    bench.pass_time(10.1)
    assert await wire.end() == b""
    await until(lambda: not bench.fronts)


async def test_a_body_that_drips_ends(bench: Bench) -> None:
    """Each byte comes in time, and all of them would take years."""
    wire, front = await bench.one()
    wire.send(HEAD + b"Content-Length: 90000\r\n\r\n{")
    await until(lambda: front._inner is not None)
    front._since_s -= 11
    front._heard_s = asyncio.get_running_loop().time()
    bench.pass_time(0)
    assert await wire.end() == b""


async def test_a_body_that_is_fast_enough_goes_on(bench: Bench) -> None:
    wire, front = await bench.one()
    wire.send(HEAD + b"Content-Length: 90000\r\n\r\n" + b" " * 60_000)
    await until(lambda: front._body_bytes == 60_000)
    front._since_s -= 60
    bench.pass_time(1)
    wire.send(b" " * 30_000)
    assert (await wire.answer())[0] == 400


@pytest.mark.parametrize("call", [POST, OTHER, GET])
async def test_between_calls_a_connection_may_wait(bench: Bench, call: bytes) -> None:
    wire, _ = await bench.one()
    wire.send(call)
    while (await wire.answer())[0] == 100:
        pass
    bench.pass_time(74)
    wire.send(call)
    while (await wire.answer())[0] == 100:
        pass
    bench.pass_time(75.1)
    assert await wire.end() == b""


async def test_who_waits_for_an_answer_is_not_too_slow(server: Running, bench: Bench) -> None:
    wire, front = await bench.one()
    wire.send(POST)
    async with asyncio.timeout(30):
        while front.state not in OWED:
            await asyncio.sleep(0)
    bench.pass_time(1_000)
    assert (await wire.answer())[0] == 201


@with_settings(http={"connections": 3, "connections_per_address": 2})
class TestFew:
    async def test_more_are_closed_at_once(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        (_, _), (second, _) = await bench.one(), await bench.one()
        with caplog.at_level(logging.WARNING):
            assert await (await bench.dial()).end() == b""
        assert "as http.connections_per_address" in caplog.text
        second.writer.close()
        await until(lambda: len(bench.fronts) == 1)
        wire, _ = await bench.one()
        wire.send(GET)
        assert (await wire.answer())[0] == 200

    def test_addresses_are_counted_apart_and_all_together(self, caplog: pytest.LogCaptureFixture) -> None:
        class One:
            idle_since_s = BUSY

            def __init__(self, address: str) -> None:
                self.address = address

            def check(self, now_s: float, passed_s: float) -> None: ...
            def close(self, cause: Cause) -> None: ...
            def abort(self) -> None: ...

        http = replace(Config().http, connections=4, connections_per_address=2)
        metrics = Metrics()
        connections = Crowd[Any](http_bounds(http), metrics.bounded, metrics.tell_http)
        made = [One(f"2001:db8::{n}") for n in range(2)]
        for one in made:
            assert connections.admits(one.address, 0)
            connections.add(one)
        assert not connections.admits("2001:db8::ffff", 0)
        assert connections.admits("2001:db8:0:1::1", 0)
        for address in ("10.0.0.1", "10.0.0.2"):
            connections.add(One(address))
        assert not connections.admits("10.0.0.3", 0)
        assert "as many as http.connections" in caplog.text
        connections.discard(made[0])
        assert connections.admits("2001:db8::ffff", 0)
        assert metrics.connections == 3
        assert metrics.bounded == {"http.connections": 1, "http.connections_per_address": 1}


@with_settings(limits={"pool_bytes": 1 << 20})
class TestLittle:
    async def test_who_sends_most_ahead_is_closed(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The store hangs, so nobody is answered, and clients go on sending."""
        clients = [await bench.one() for _ in range(20)]
        for _, front in clients:
            front.state = State.DESK
        (small, first), *others = clients
        small.send(b"x" * 1_000)
        for wire, _ in others:
            wire.send(b"x" * 100_000)
        await until(lambda: len(bench.fronts) < 20)
        assert first in bench.fronts
        assert len(bench.fronts) > 5
        assert sum(front.held_bytes for front in bench.fronts) <= (1 << 20) + 20 * 64
        assert "limits.memory: it holds the most" in caplog.text

    async def test_what_waits_for_its_turn_counts_until_it_is_closed(self, bench: Bench) -> None:
        """One that has been cut is not chosen again: another has to go."""
        clients = [await bench.one() for _ in range(20)]
        for _, front in clients:
            front.keep_unread(100_000)
        there = [front for _, front in clients if front._transport is not None]
        assert len(there) == 10
        assert all(front.held_bytes == (100_000 if front in there else 0) for _, front in clients)
        for _, front in clients:
            if front not in there:
                front.keep_unread(100_000)
                assert front.held_bytes == 0

    async def test_who_does_not_read_is_closed(self, bench: Bench) -> None:
        _, front = await bench.one()
        assert front._transport is not None
        front._transport.write(bytes(16 << 20))
        bench.pass_time(0)
        await until(lambda: not bench.fronts)

    async def test_a_large_answer_that_does_not_go_out_counts_at_once(self, bench: Bench) -> None:
        """Not when all are looked at: by then there could be dozens."""
        wire, front = await bench.one()
        wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
        assert front._transport is not None
        front._transport.write(bytes(16 << 20))
        for _ in range(3):
            await asyncio.sleep(0)
        assert front._transport is None


async def test_an_answer_that_nobody_takes_ends_the_connection(bench: Bench) -> None:
    wire, front = await bench.one()
    wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
    assert front._transport is not None
    front._transport.write(bytes(16 << 20))
    await until(lambda: front.unsent_bytes > 0)
    now = asyncio.get_running_loop().time()
    look = bench.at.listener.crowd.look
    async with asyncio.timeout(30):
        while front.unsent_bytes != (front._unsent[0] or -1):
            look(now)
            await asyncio.sleep(0.05)
    look(now + 74)
    assert bench.fronts == [front]
    look(now + 76)
    await until(lambda: not bench.fronts)


@pytest.mark.parametrize("call", [GET, OTHER])
async def test_the_last_answer_is_read_though_more_is_sent(bench: Bench, call: bytes) -> None:
    """Unread bytes at a close would make the system send a reset, which takes the answer."""
    wire, front = await bench.one()
    wire.send(call.replace(b"Host:", b"Connection: close\r\nHost:") + b"x" * 1_000_000)
    await until(lambda: front.state is State.OVER)
    wire.send(b"x" * 1_000_000)
    said = await asyncio.wait_for(wire.reader.read(), 30)
    assert b"HTTP/1.1 20" in said
    wire.writer.close()
    await until(lambda: front not in bench.fronts)


async def test_413_comes_before_100(bench: Bench) -> None:
    wire, _ = await bench.one()
    wire.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 100000000\r\n\r\n")
    status, body = await wire.answer()
    assert (status, body["type"]) == (413, "/problems/too-large")
    assert await wire.end() == b""


async def test_100_comes_before_the_body(bench: Bench) -> None:
    wire, _ = await bench.one()
    wire.send(OTHER[: -len(BODY)])
    assert (await wire.answer())[0] == 100
    wire.send(BODY)
    assert (await wire.answer())[0] == 201
    wire.send(OTHER.replace(b"/v1/messages", b"/v1/nowhere"))
    assert [(await wire.answer())[0] for _ in range(2)] == [100, 404]


@with_settings(limits={"queued_bytes": 1 << 16})
async def test_429_comes_before_100(server: Running, bench: Bench) -> None:
    """One request is let through, however large; while it is there no other is."""
    first, front = await bench.one()
    first.send(HEAD + b"Content-Length: 90000\r\n\r\n{")
    await until(lambda: front._inner is not None and server.app.core.writer.queued_bytes > 0)
    wire, _ = await bench.one()
    wire.send(OTHER[: -len(BODY)])
    status, body = await wire.answer()
    assert (status, body["type"]) == (429, "/problems/over-quota")


async def test_empty_lines_before_a_call_are_passed_over(bench: Bench) -> None:
    wire, _ = await bench.one()
    wire.send(b"\r\n" * 50_000 + GET)
    assert (await wire.answer())[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (GET.replace(b"Host: localhost\r\n", b""), 400),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n", 414),
        (OTHER.replace(b"100-continue", b"miracle"), 417),
        (POST.replace(b"Host:", b"Content-Encoding: br\r\nHost:"), 415),
        (GET.replace(b"Host:", b"X: " + b"a" * 20_000 + b"\r\nHost:"), 431),
        (POST.replace(b"Host:", b"".join(b"X%d: a\r\n" % n for n in range(99)) + b"Host:"), 431),
        (POST.replace(b"Content-Length: 49", b"Transfer-Encoding: gzip"), 501),
        (GET.replace(b"HTTP/1.1", b"HTTP/2.0"), 505),
    ],
)
@pytest.mark.parametrize("before", [b"", POST, GET])
async def test_what_is_refused_is_a_problem_and_the_end(
    bench: Bench, before: bytes, sent: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also behind other calls, whose answers come first."""
    wire, _ = await bench.one()
    wire.send(before + sent)
    if before:
        assert (await wire.answer())[0] in (200, 201)
    answered, body = await wire.answer()
    assert (answered, body["status"]) == (status, status)
    assert await wire.end() == b""
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_a_tls_client_on_a_port_without_tls_is_cut_off_and_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    wire, _ = await bench.one()
    wire.send(b"\x16\x03\x01\x02\x00\x01")
    assert await wire.end() == b"this port does not speak TLS\r\n"
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == [
        "connection closed: a TLS client on a port without TLS"
    ]


@pytest.mark.parametrize("call", [POST, OTHER, GET])
async def test_chunks_and_calls_follow_each_other(bench: Bench, call: bytes) -> None:
    """The next head begins where the chunks end, however all of it is cut."""
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n" % (20, BODY[:20])
    chunked += b"%x;x=y\r\n%b\r\n0\r\nT: x\r\n\r\n" % (len(BODY) - 20, BODY[20:])
    data = chunked + call + chunked
    for step in (len(data), 50, 7):
        wire, _ = await bench.one()
        for at in range(0, len(data), step):
            wire.send(data[at : at + step])
            await asyncio.sleep(0)
        statuses: list[int] = []
        while len(statuses) < 3:
            status, _ = await wire.answer()
            statuses += [status] if status != 100 else []
        assert statuses == [201, 200 if call is GET else 201, 201]


NO_CHUNKS = {
    "too small": b"1\r\n \r\n" * 3_000 + b"0\r\n\r\n",
    "a long size": b"000000000\r\n\r\n",
    "a long extension": b"1;" + b"a" * 2_000 + b"\r\n \r\n0\r\n\r\n",
    "a long value": b"1;a=" + b"a" * 2_000 + b"\r\n \r\n0\r\n\r\n",
    "a long text": b'1;a="' + b"a" * 2_000 + b'"\r\n \r\n0\r\n\r\n',
    "long trailers": b"0\r\n" + b"T: %b\r\n" % (b"x" * 300) * 40 + b"\r\n",
}


@pytest.mark.long
@pytest.mark.parametrize("name", NO_CHUNKS)
@pytest.mark.parametrize("step", [1 << 20, 100])
async def test_nothing_behind_chunks_that_are_none_is_a_request(bench: Bench, name: str, step: int) -> None:
    """aiohttp reads chunks less strictly; what it finds behind them has not been looked at."""
    foreign = b"GET /livez HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 9\r\n\r\n"
    head = b"POST /v1/schedules/x:pause HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire, _ = await bench.one()
    data = head + NO_CHUNKS[name] + foreign
    for at in range(0, len(data), step):
        wire.send(data[at : at + step])
        await asyncio.sleep(0)
    said = await wire.end()
    assert said.startswith((b"HTTP/1.1 404 ", b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    assert b'{"status":"ok"}' not in said


async def test_a_body_behind_the_answer_to_an_upgrade_is_its_end(bench: Bench) -> None:
    """Nothing is upgraded, whenever the rest of the request comes."""
    wire, _ = await bench.one()
    head = b"POST /v1/none HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
    wire.send(head + b"Content-Length: 9\r\n\r\n1234")
    assert (await wire.answer())[0] == 404
    wire.send(b"56789" + GET)
    assert (await wire.answer())[0] == 200


async def test_chunks_of_a_byte_are_refused(bench: Bench) -> None:
    wire, _ = await bench.one()
    wire.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 10_000)
    status, body = await wire.answer()
    assert (status, body["type"]) == (400, "/problems/not-readable")
    assert await wire.end() == b""


async def test_whose_bodies_are_slow_leaves_room_for_those_of_others(server: Running, bench: Bench) -> None:
    """What is announced counts, and it may come at 1 KiB a second: one client could refuse all others."""
    large = HEAD.replace(b"messages", b"messages:batch") + b"Content-Length: %d\r\n\r\n[" % (16 << 20)
    small = (
        OTHER.replace(BODY, b"[" + BODY + b"]")
        .replace(b": 49", b": 51")
        .replace(b"messages", b"messages:batch")
    )
    slow = [await bench.dial() for _ in range(8)]
    for wire in slow:
        wire.send(large)
    refused = [await wire.answer() for wire in slow[4:]]
    assert [status for status, _ in refused] == [429] * 4
    other = await bench.dial("127.0.0.2")
    other.send(small)
    assert b"100 Continue" in await other.reader.readuntil(b"\r\n\r\n")
    assert (await other.answer())[0] == 201
    for wire in slow:
        wire.writer.close()
    await until(lambda: not server.app.core.writer.queued_bytes)
    again = await bench.dial()
    again.send(small)
    await again.reader.readuntil(b"\r\n\r\n")
    assert (await again.answer())[0] == 201
