"""Trusted proxies: what their headers say, what nobody else may say, and real listeners behind them."""

import asyncio
import json
import random
import socket
import ssl
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_network

import pytest

from server.codec.packets import Connect
from server.net.proxies import HEADER_MAX, Header, Proxies, ProxyHeaderError, header_in
from server.settings.config import Config, ConfigError
from server.settings.reading import load
from tests.support.encode import encode
from tests.support.served import TLS, Served, everywhere

from ..conftest import Fronted, Running

PROXIES = Proxies([ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")], has_header=True)
V2 = b"\r\n\r\n\0\r\nQUIT\n"
TCP4 = V2 + b"\x21\x11\x00\x0c" + bytes((203, 0, 113, 9, 10, 0, 0, 1)) + b"\x1f\x90\x07\x5b"
TCP6 = (
    V2
    + b"\x21\x21\x00\x29"
    + socket.inet_pton(socket.AF_INET6, "2001:db9::1") * 2
    + b"\0\x50\0\x50"
    + b"12345"
)


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ("X-Forwarded-For: 203.0.113.9", "203.0.113.9"),
        ("X-Forwarded-For: 1.2.3.4, 203.0.113.9, 10.0.0.7", "203.0.113.9"),
        ("X-Forwarded-For: 1.2.3.4\r\nx-forwarded-for:203.0.113.9", "203.0.113.9"),
        ("X-Forwarded-For: 10.1.1.1, 10.2.2.2", "10.1.1.1"),
        ("X-Forwarded-For: 203.0.113.9:4711", "203.0.113.9"),
        ("X-Forwarded-For: 1.2.3.4, nonsense, 10.0.0.7", "10.0.0.7"),
        ("X-Forwarded-For: ", "10.0.0.2"),
        ("X-Forwarded-For: ::ffff:203.0.113.9", "203.0.113.9"),
        ('Forwarded: for=1.2.3.4, for=203.0.113.9;proto=https;by=10.0.0.7, For="10.0.0.7:81"', "203.0.113.9"),
        ('Forwarded: proto=https;for="[2001:db9::7]:4711"', "2001:db9::7"),
        ("Forwarded: for=_hidden", "10.0.0.2"),
        ("Forwarded: by=203.0.113.9", "10.0.0.2"),
        # The proxy writes one of them; the other is what its client has sent.
        ("Forwarded: for=1.2.3.4\r\nX-Forwarded-For: 203.0.113.9", "10.0.0.2"),
        ("Forwarded: for=203.0.113.9\r\nX-Forwarded-For: 203.0.113.9", "203.0.113.9"),
        ("X-Other: 203.0.113.9", "10.0.0.2"),
    ],
)
def test_the_client_is_the_rightmost_that_is_not_trusted(headers: str, client: str) -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + headers.encode() + b"\r\n\r\n"
    assert PROXIES.client_in(head, "10.0.0.2") == client


def test_whom_it_trusts() -> None:
    assert all(map(PROXIES.trusts, ("10.9.9.9", "::ffff:10.9.9.9", "2001:db8::1")))
    assert not any(map(PROXIES.trusts, ("11.0.0.1", "2001:db9::1", "", "?")))
    assert not Proxies((), has_header=False).trusts("127.0.0.1")


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 1883\r\n\x10", Header(43, "203.0.113.9", 4711)),
        (b"PROXY TCP6 2001:db9::1 ::1 4711 1883\r\n", Header(38, "2001:db9::1", 4711)),
        (b"PROXY UNKNOWN\r\n", Header(15)),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", Header(35)),
        (TCP4 + b"\x10", Header(28, "203.0.113.9", 8_080)),
        (TCP6, Header(57, "2001:db9::1", 80)),
        (V2 + b"\x20\x00\x00\x00", Header(16)),
        (V2 + b"\x21\x31\x00\xd8" + bytes(216), Header(232)),
    ],
)
def test_headers_that_are_whole_and_those_that_are_not_yet(data: bytes, header: Header) -> None:
    assert header_in(data) == header
    for at in range(1, header.size):
        assert header_in(data[:at]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x20",
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 x 10.0.0.1 4711 1883\r\n",
        b"PROXY TCP4 1.2.3.400 10.0.0.1 4711 1883\r\n",
        b"PROXY TCP5 1.2.3.4 10.0.0.1 4711 1883\r\n",
        b"PROXY UNKNOWN " + b"x" * 200,
        V2 + b"\x31\x11\x00\x0c",
        V2 + b"\x21\x11\xff\xff",
        V2 + b"\x21\x11\x00\x04" + bytes(4),
    ],
)
def test_what_is_no_header_is_told(data: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        header_in(data)


def test_nothing_else_is_raised() -> None:
    chance = random.Random(1)
    for whole in (TCP4, TCP6, b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 1883\r\n"):
        for _ in range(5_000):
            data = bytearray(whole)
            data[chance.randrange(len(data))] = chance.randrange(256)
            try:
                header = header_in(bytes(data))
            except ProxyHeaderError:
                continue
            assert header is None or header.size <= HEADER_MAX


def test_settings() -> None:
    config, _ = load(None, {"FASTI__LIMITS__TRUSTED_PROXIES": "10.0.0.0/8,192.0.2.7"}, {})
    assert [str(one) for one in config.limits.trusted_proxies] == ["10.0.0.0/8", "192.0.2.7/32"]
    with pytest.raises(ConfigError, match=r"limits.trusted_proxies: a network must be"):
        load(None, {"FASTI__LIMITS__TRUSTED_PROXIES": "10.0.0.1/8"}, {})
    with pytest.raises(
        ConfigError, match=r"limits.trusted_proxies: is required, because mqtt.proxy_protocol is set"
    ):
        load(None, {"FASTI__MQTT__PROXY_PROTOCOL": "true"}, {})


# -- behind listeners

TRUSTED = (ip_network("127.0.0.1/32"),)
HELLO = encode(Connect(5, "a"), 5)


@pytest.fixture
def settings() -> Config:
    return everywhere(connect_timeout_ms=2_000, trusted_proxies=TRUSTED, proxy_protocol=True)


@pytest.mark.parametrize("header", [TCP4, b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 1883\r\n"])
async def test_a_connection_is_its_clients(served: Served, header: bytes) -> None:
    """However the header is cut."""
    reader, writer = await served.dial()
    writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(len(header)):
        writer.write(header[at : at + 1])
        await asyncio.sleep(0)
    writer.write(HELLO)
    assert (await reader.read(100))[:1] == b"\x20"
    assert [one.address for one in served.listeners.crowd] == ["203.0.113.9"]


async def test_the_header_comes_before_tls(served: Served) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", served.ports["mqtts"])) as raw:
        raw.sendall(TCP4)
        context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
        reader = asyncio.StreamReader()
        transport, _ = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader), sock=raw, ssl=context, server_hostname="localhost"
        )
        transport.write(HELLO)
        assert (await reader.read(100))[:1] == b"\x20"
        assert [one.address for one in served.listeners.crowd] == ["203.0.113.9"]
        transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize("sent", [HELLO, b"PROXY TCP4 x y\r\n", b"", b"PROXY TC"])
async def test_a_proxy_that_says_nothing_right_is_refused(served: Served, sent: bytes) -> None:
    reader, writer = await served.dial()
    writer.write(sent)
    async with asyncio.timeout(30):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    assert served.app.metrics.bounded_mqtt == {"mqtt.proxy_protocol": 1}
    assert not served.listeners.crowd


async def test_nobody_else_may_say_it(served: Served) -> None:
    reader, writer = await served.dial(address="127.0.0.2")
    writer.write(TCP4 + HELLO)
    assert (await reader.read(100))[:1] != b"\x20"
    reader, writer = await served.dial(address="127.0.0.2")
    writer.write(HELLO)
    assert (await reader.read(100))[:1] == b"\x20"


class TestHttp:
    @pytest.fixture
    def config(self) -> Config:
        limits = replace(Config().limits, trusted_proxies=TRUSTED)
        http = replace(Config().http, connections_per_address=2)
        return replace(Config(), limits=limits, http=http, mqtt=replace(Config().mqtt, proxy_protocol=True))

    @pytest.mark.parametrize("header", [b"", TCP4])
    async def test_a_request_is_its_clients(self, server: Running, header: bytes) -> None:
        at = server.http.server
        assert isinstance(at, Fronted)
        body = json.dumps({"topic": "t", "payload": "p", "deliver_in": "15m"}).encode()
        post = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", at.front_port)
        writer.write(header)
        for client, call in (("1.1.1.1", post), ("2.2.2.2", get), ("3.3.3.3", post)):
            call += b"X-Forwarded-For: %b\r\nContent-Length: %d\r\n\r\n" % (
                client.encode(),
                len(body) if call is post else 0,
            )
            writer.write(call + (body if call.startswith(b"POST") else b""))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 20")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            (front,) = at.listener.crowd
            assert front.address == ("203.0.113.9" if header else client)
            assert front.owner == front.address
        writer.close()

    async def test_a_proxy_has_as_many_connections_as_it_likes(self, server: Running) -> None:
        at = server.http.server
        assert isinstance(at, Fronted)
        wires = [await asyncio.open_connection("127.0.0.1", at.front_port) for _ in range(6)]
        for reader, writer in wires:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        for _, writer in wires:
            writer.close()
