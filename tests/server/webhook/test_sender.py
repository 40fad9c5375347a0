"""One post, to receivers that fail in every way."""

import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import ResolveResult
from aiohttp.client_reqrep import ConnectionKey, RequestInfo
from yarl import URL

from server.settings.config import ConfigError, Webhook
from server.webhook import sender as module
from server.webhook.poster import unreadable
from server.webhook.request import WebhookRequest
from server.webhook.sender import CERTIFICATES, CONNECTIONS, Lookup, Sender, TooLong, trusted
from server.webhook.targets import Blocked, TargetError
from server.webhook.verdicts import Reply
from shards.errors import Corrupt
from tests.support.receiver import (
    OK,
    Behave,
    Got,
    answer,
    drop,
    endless_headers,
    huge_body,
    raw,
    receiving,
    reset,
    silent,
    slow_body,
    slow_headers,
)

TLS = Path(__file__).parents[2] / "support" / "tls"
INNER = Webhook(allow_private=True)


class Names(Lookup):
    """Says what it is told to, one answer after the other."""

    def __init__(self, *answers: str) -> None:
        super().__init__(1)
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        del family
        self.asked.append(host)
        found = self.answers.pop(0).split(" ") if len(self.answers) > 1 else self.answers[0].split(" ")
        return [
            ResolveResult(
                hostname=host,
                host=one,
                port=port,
                family=socket.AF_INET6 if ":" in one else socket.AF_INET,
                proto=6,
                flags=0,
            )
            for one in found
        ]


@asynccontextmanager
async def sending(
    config: Webhook = INNER, names: Lookup | None = None, resting: int = 8
) -> AsyncIterator[Sender]:
    sender = Sender(config, trusted(config), names or Lookup(8), resting)
    try:
        yield sender
    finally:
        await sender.close()


def request(url: str, timeout_s: float = 60.0, body: bytes = b"hello") -> WebhookRequest:
    return WebhookRequest(URL(url), {"content-type": "text/plain", "webhook-id": "m1"}, body, timeout_s)


async def post_to(behave: Behave, timeout_s: float = 60.0) -> Reply:
    async with receiving() as receiver, sending() as sender:
        receiver.behave = behave
        return await sender.post(request(receiver.url(), timeout_s))


async def test_what_is_posted_arrives_as_it_is() -> None:
    async with receiving() as receiver, sending() as sender:
        reply = await sender.post(request(receiver.url("/a?b=c")))
        (got,) = receiver.got
    assert (reply.status, reply.fault) == (200, "")
    assert reply.latency_ms > 0
    assert (got.path, got.body) == ("/a?b=c", b"hello")
    assert got.headers["content-type"] == "text/plain"
    assert got.headers["content-length"] == "5"
    assert {"accept", "accept-encoding", "cookie", "user-agent"}.isdisjoint(got.headers)


@pytest.mark.parametrize("status", [200, 204, 301, 302, 307, 308, 404, 410, 429, 500, 503])
async def test_a_status_is_told_and_no_redirect_followed(status: int) -> None:
    async with receiving() as receiver, sending() as sender:
        receiver.behave = answer(status, f"Location: {receiver.url('/elsewhere')}", "Retry-After: 7")
        reply = await sender.post(request(receiver.url()))
        assert [got.path for got in receiver.got] == ["/hook"]
    assert (reply.status, reply.retry_after) == (status, "7")


@pytest.mark.parametrize(
    ("behave", "fault"),
    [
        (silent, "timed out after 0.3 s"),
        (slow_headers, "timed out after 0.3 s"),
        (drop, "the connection was closed without an answer"),
        (reset, "the connection was"),
        (raw(b"\x00\xff garbage\r\n\r\n"), "the answer is not HTTP"),
        (raw(b"SSH-2.0-OpenSSH_9\r\n"), "the answer is not HTTP"),
        (raw(b""), "the connection was closed without an answer"),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 500 + b"\r\n"), "the answer is not HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20_000 + b"\r\n\r\n"), "the answer is not HTTP"),
        (endless_headers, "the answer is not HTTP"),
    ],
)
async def test_what_is_no_answer(behave: Behave, fault: str) -> None:
    reply = await post_to(behave, 0.3 if fault.startswith("timed out") else 60.0)
    assert reply.status == 0
    assert reply.fault.startswith(fault), reply


@pytest.mark.parametrize("behave", [slow_body, huge_body, raw(OK[:-1]), raw(OK + OK)])
async def test_what_has_answered_has_answered_whatever_its_body_is(
    behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody waits long for it, nor keeps it."""
    monkeypatch.setattr(module, "DRAIN_S", 0.1)
    async with asyncio.timeout(60):
        assert (await post_to(behave, 600.0)).status == 200


async def test_a_connection_is_used_again() -> None:
    async with receiving() as receiver, sending() as sender:
        for _ in range(3):
            assert (await sender.post(request(receiver.url()))).status == 200
        assert receiver.connections == 1


async def test_nobody_listens() -> None:
    async with receiving() as receiver, sending() as sender:
        url = receiver.url()
    async with sending() as sender:
        reply = await sender.post(request(url))
    assert (reply.status, reply.fault) == (0, "not connected: Connection refused")


async def test_a_name_that_is_none() -> None:
    async with sending() as sender:
        reply = await sender.post(request("http://nothing.invalid/"))
    assert (reply.status, reply.fault) == (0, "the name was not found")


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://2130706433:{port}/"),
        *("http://0x7f000001:{port}/", "http://017700000001:{port}/", "http://127.1:{port}/"),
        *("http://0:{port}/", "http://[::ffff:127.0.0.1]:{port}/", "http://[::1]:{port}/"),
    ],
)
async def test_the_server_itself_is_out_of_reach_in_every_spelling(url: str) -> None:
    async with receiving() as receiver, sending(Webhook(allow_http=True)) as sender:
        try:
            reply = await sender.post(request(url.format(port=receiver.port)))
        except ValueError:
            return  # no URL at all
        assert reply.status == 0
        assert receiver.connections == 0


async def test_a_name_that_resolves_to_something_inner_is_not_connected_to() -> None:
    names = Names("127.0.0.1", "127.0.0.1 ::1")
    async with receiving() as receiver, sending(Webhook(allow_http=True), names) as sender:
        reply = await sender.post(request(f"http://evil.example:{receiver.port}/"))
        assert reply.fault == "the address is private or reserved (webhook.allow_private = true allows it)"
        assert (receiver.connections, names.asked) == (0, ["evil.example"])


async def test_who_resolves_otherwise_the_second_time_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at is what is connected to, and each connection is looked at."""
    connected: list[str] = []
    loop = asyncio.get_running_loop()

    async def refused(_: socket.socket, where: Sequence[object]) -> None:
        connected.append(str(where[0]))
        raise ConnectionRefusedError(111, "no")

    monkeypatch.setattr(loop, "sock_connect", refused)
    names = Names("93.184.216.34", "127.0.0.1", "93.184.216.34 10.0.0.1")
    async with sending(Webhook(allow_http=True), names) as sender:
        faults = []
        for number in range(3):
            faults.append((await sender.post(request(f"http://evil{number}.example/"))).fault)
    assert connected == ["93.184.216.34", "93.184.216.34"]
    assert faults[1] == "the address is private or reserved (webhook.allow_private = true allows it)"


SECRET = "db-7.internal"
REASONS = {
    "not sent",
    "the URL is not usable",
    "the address is private or reserved (webhook.allow_private = true allows it)",
    "the answer is not HTTP",
    "the answer is not HTTP: its end is undefined",
    "more than 2 interim answers (1xx)",
    "the connection was closed without an answer",
    "the connection was lost",
    "the name was not found",
    "not connected",
    "TLS: the certificate does not hold",
    "TLS: the handshake failed",
    *(f"TLS: {text}" for text in CERTIFICATES.values()),
    *(f"not connected: {text}" for text in CONNECTIONS.values()),
    *(f"the connection was lost: {text}" for text in CONNECTIONS.values()),
}
"""All that can be said of a post without an answer, but for its timeout."""


def certificate_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, f"certificate verify failed: not valid for '{SECRET}'")
    error.verify_code, error.verify_message = code, f"Hostname mismatch, not valid for '{SECRET}'."
    return error


def every_failure() -> Iterator[Exception]:
    """As aiohttp and the system raise them, each telling a name that is nobody's business."""
    key: Any = ConnectionKey(
        SECRET, 443, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None
    )
    request: Any = RequestInfo(URL(f"https://{SECRET}/"), "POST", {}, URL(f"https://{SECRET}/"))  # type: ignore[arg-type]
    for number in (*CONNECTIONS, errno.EACCES, errno.EMFILE, 0, -2):
        system = OSError(number, f"Connect call failed ('{SECRET}', 443)")
        yield system
        yield aiohttp.ClientOSError(*system.args)
        yield aiohttp.ClientConnectorError(key, system)
    yield OSError(f"Multiple exceptions: {SECRET}")
    yield aiohttp.ClientConnectorError(key, OSError(f"Multiple exceptions: {SECRET}"))
    yield aiohttp.ClientConnectorDNSError(key, socket.gaierror(-2, f"unknown: {SECRET}"))
    yield aiohttp.ClientConnectorError(key, Blocked(SECRET))
    for code in (*CERTIFICATES, 0, 7):
        yield aiohttp.ClientConnectorCertificateError(key, certificate_error(code))
    yield aiohttp.ClientConnectorSSLError(key, ssl.SSLError(1, f"[SSL: WRONG_VERSION_NUMBER] {SECRET}"))
    yield aiohttp.ServerDisconnectedError(SECRET)
    yield aiohttp.ClientResponseError(request, (), message=SECRET)
    yield aiohttp.InvalidURL(f"https://{SECRET}/")
    yield aiohttp.ClientPayloadError(SECRET)
    yield aiohttp.ClientConnectionError(SECRET)
    yield TooLong(SECRET)
    yield ValueError(SECRET)


@pytest.mark.parametrize("error", list(every_failure()), ids=lambda error: type(error).__name__)
async def test_a_reason_is_one_of_a_fixed_set_and_names_nothing(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> Any:
        raise error

    async with sending() as sender:
        monkeypatch.setattr(sender._session, "post", failing)
        fault = (await sender.post(request(f"https://{SECRET}/"))).fault
    assert fault in REASONS
    assert SECRET not in fault
    assert type(error).__name__ not in fault


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TargetError("must be https (webhook.allow_http)"), "must be https (webhook.allow_http)"),
        (Corrupt(f"row 17 in {SECRET}"), "the message is unreadable"),
        (KeyError(SECRET), "the server failed"),
    ],
)
def test_what_cannot_be_posted_names_nothing(error: Exception, reason: str) -> None:
    assert unreadable(error).reason == f"cannot be posted: {reason}"


def context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    return made


async def test_a_certificate_that_nobody_knows_is_refused() -> None:
    async with receiving(context()) as receiver, sending() as sender:
        reply = await sender.post(request(receiver.url(scheme="https", host="localhost")))
        assert receiver.got == []
    assert reply.status == 0
    assert reply.fault.startswith("TLS: "), reply


async def test_one_that_is_known_is_taken_for_its_name_alone() -> None:
    known = Webhook(allow_private=True, tls_ca=str(TLS / "cert.pem"))
    async with receiving(context()) as receiver, sending(known) as sender:
        assert (await sender.post(request(receiver.url(scheme="https", host="localhost")))).status == 200
        url = f"https://other.example:{receiver.port}/"
    async with receiving(context()) as receiver, sending(known, Names("127.0.0.1")) as sender:
        url = f"https://other.example:{receiver.port}/"
        assert (await sender.post(request(url))).fault == "TLS: the certificate is for another name"


@pytest.mark.parametrize("text", ["/nowhere.pem", __file__])
def test_authorities_that_cannot_be_read_name_their_setting(text: str) -> None:
    with pytest.raises(ConfigError, match=r"webhook\.tls_ca"):
        trusted(Webhook(tls_ca=text))


async def test_tls_to_who_speaks_none() -> None:
    async with receiving() as receiver, sending() as sender:
        reply = await sender.post(request(receiver.url(scheme="https"), 0.3))
        assert receiver.got == []
    assert reply.status == 0
    assert reply.fault


async def test_the_environment_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver, receiving() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url("/"))
        monkeypatch.setenv("HTTP_PROXY", proxy.url("/"))
        async with sending() as sender:
            assert (await sender.post(request(receiver.url()))).status == 200
        assert proxy.connections == 0


async def test_cookies_are_not_kept() -> None:
    async with receiving() as receiver, sending() as sender:
        receiver.behave = answer(200, "Set-Cookie: a=b")
        for _ in range(2):
            await sender.post(request(receiver.url()))
        assert "cookie" not in receiver.got[1].headers


async def test_an_answer_that_came_before_the_post_answers_no_post() -> None:
    """What a receiver says on a connection that rests is not taken for what it says of the next message."""

    async def twice(_: Got, writer: asyncio.StreamWriter) -> bool:
        writer.write(OK)
        await is_answered.wait()
        writer.write(OK)
        return True

    is_answered = asyncio.Event()

    async with receiving() as receiver, sending() as sender:
        receiver.script = [twice]
        receiver.behave = answer(500)
        assert (await sender.post(request(receiver.url()))).status == 200
        is_answered.set()
        await asyncio.sleep(0.05)
        unsure = await sender.post(request(receiver.url()))
        assert (unsure.status, unsure.fault) == (0, "the connection was closed without an answer")
        assert (await sender.post(request(receiver.url()))).status == 500


def endless(first: bytes, again: bytes) -> Behave:
    async def behave(_: Got, writer: asyncio.StreamWriter) -> bool:
        writer.write(first)
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(again)
                await writer.drain()
        return False

    return behave


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("behave", "status"),
    [
        (endless(b"", b"\r\n" * 4_000), 0),
        (endless(b"HTTP/1.1 100 Continue\r\n", b"x: y\r\n" * 500), 0),
        (endless(CHUNKED, b"1\r\nx\r\n" * 500), 200),
    ],
)
async def test_of_an_answer_that_does_not_end_little_is_read(
    behave: Behave, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of small parts a second would keep the loop of the server."""
    monkeypatch.setattr(module, "DRAIN_S", 60.0)
    reply = await post_to(behave)
    assert reply.status == status
    assert reply.fault == ("" if status else "the answer is not HTTP: its end is undefined")
    assert reply.latency_ms < 30_000


HINTS = b"HTTP/1.1 103 Early Hints\r\nx: HTTP/1.1 103\r\n\r\n"


def in_pieces(data: bytes, size: int) -> Behave:
    async def behave(_: Got, writer: asyncio.StreamWriter) -> bool:
        with suppress(ConnectionError):
            for at in range(0, len(data), size):
                writer.write(data[at : at + size])
                await writer.drain()
        return True

    return behave


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("interim", [INTERIM, HINTS, HINTS.replace(b"\r\n", b"\n"), b"\r\n" + HINTS])
async def test_two_interim_answers_may_come(interim: bytes, size: int) -> None:
    """Of 103 a receiver could send 64 KiB for each post: ten endpoints of them kept the loop for 3 s."""
    body = interim * 3
    final = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with receiving() as receiver, sending() as sender:
        receiver.script = [in_pieces(interim * count + final, size) for count in (2, 1, 3)]
        for _ in range(2):
            assert (await sender.post(request(receiver.url()))).status == 200
        refused = await sender.post(request(receiver.url()))
        assert (refused.status, refused.fault) == (0, "more than 2 interim answers (1xx)")
        receiver.behave = endless(b"", interim)
        assert (await sender.post(request(receiver.url()))).fault == "more than 2 interim answers (1xx)"


async def test_each_answer_on_a_connection_may_be_as_long() -> None:
    async with receiving() as receiver, sending() as sender:
        receiver.behave = answer(200, body=b"x" * 40_000)
        for _ in range(4):
            assert (await sender.post(request(receiver.url()))).status == 200
        assert receiver.connections == 1


async def test_so_many_connections_wait_for_the_next_message_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 600.0)
    async with receiving(host="0.0.0.0") as receiver, sending(resting=3) as sender:
        for number in range(30):
            await sender.post(request(receiver.url(host=f"127.0.1.{number}")))
        await asyncio.sleep(0.05)
        assert receiver.resting <= 4
        rested = receiver.connections
        for _ in range(20):
            assert (await sender.post(request(receiver.url(host="127.0.1.1")))).status == 200
        assert receiver.connections == rested


async def test_a_name_that_is_not_found_in_time_holds_up_no_other_and_is_known_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_up, hold = socket.getaddrinfo, threading.Event()

    def hanging(host: str, *more: Any) -> Any:
        if host.startswith("hangs"):
            hold.wait(60)
        return look_up("127.0.0.1", *more)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    async with receiving() as receiver, sending(names=Lookup(21)) as sender:
        urls = [receiver.url(host=f"hangs{number}.example") for number in range(20)]
        posts = [asyncio.create_task(sender.post(request(url, 0.3))) for url in urls]
        await asyncio.sleep(0.05)
        assert (await sender.post(request(receiver.url(host="quick.example")))).status == 200
        assert {(await post).fault for post in posts} == {"timed out after 0.3 s"}
        (lookup,) = sender.lookups(URL(receiver.url(host="HANGS3.example")))
        assert not sender.lookups(URL(receiver.url(host="quick.example")))
        hold.set()
        await lookup
        await asyncio.sleep(0)
        assert not sender.lookups(URL(urls[3]))
