"""MQTT where a node does not lead: each transport and level, what is no CONNECT, and the bounds."""

import asyncio
import logging
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from server.codec.packets import Connack, Connect, Publish
from server.codec.publish import Decoder
from server.mqtt.redirecting import Redirecting, redirecting_listeners
from server.net import lingering
from server.net.acceptor import Ports
from server.net.crowd import Cause, Crowd, mqtt_bounds
from server.net.pool import pool_of
from server.net.tls import mqtt_certificates
from server.settings.config import Config
from tests.support.encode import encode
from tests.support.mqtt import Peer, dial
from tests.support.rig import props
from tests.support.served import TLS, everywhere, until

LEADER = "leader.example:1883"
HELLO = encode(Connect(5, "a"), 5)


class Turning:
    """The listeners, where they listen, whom they name, and whom they have refused by which bound."""

    def __init__(self, settings: Config) -> None:
        self.where = LEADER
        self.asked: list[str] = []
        """The schemes of the listeners that asked where."""
        self.bounded: Counter[str] = Counter()
        self.crowd = Crowd[Redirecting](mqtt_bounds(settings.limits), self.bounded, lambda _: None)
        self.listeners = redirecting_listeners(
            settings,
            mqtt_certificates(settings),
            self.crowd,
            pool_of(settings),
            self.told,
            Ports(),
        )
        self.ports: dict[str, int] = {}

    def told(self, scheme: str) -> str:
        self.asked.append(scheme)
        return self.where

    async def dial(self, level: int = 5, scheme: str = "mqtt") -> Peer:
        return await dial(("127.0.0.1", self.ports[scheme]), level)


@asynccontextmanager
async def turning(settings: Config) -> AsyncIterator[Turning]:
    made = Turning(settings)
    listening = await made.listeners.open()
    made.ports = {at.scheme: at.port for at in listening}
    try:
        yield made
    finally:
        made.listeners.close()
        await made.crowd.close(Cause.MOVED, 0)
        await until(lambda: not len(made.crowd))


@pytest.fixture
async def away() -> AsyncIterator[Turning]:
    async with turning(everywhere()) as made:
        yield made


def told(connack: Connack) -> tuple[int, str | None]:
    return connack.reason, None if connack.properties is None else connack.properties.server_reference


@pytest.mark.parametrize(
    ("level", "where", "answer"),
    [
        (5, LEADER, (0x9C, LEADER)),
        (5, "", (0x88, None)),
        (4, LEADER, (3, None)),
        (4, "", (3, None)),
        (3, LEADER, (3, None)),
    ],
)
async def test_who_connects_is_told_where_to_go(
    away: Turning, level: int, where: str, answer: tuple[int, str | None]
) -> None:
    away.where = where
    peer = await away.dial(level)
    peer.send(Connect(level, "a"))
    assert told(await peer.take(Connack)) == answer
    await peer.gone()


async def test_it_is_asked_where_at_each_connect(away: Turning) -> None:
    early = await away.dial()
    for where, answer in (("", (0x88, None)), ("b:1", (0x9C, "b:1")), ("c:2", (0x9C, "c:2"))):
        away.where = where
        peer = await away.dial()
        peer.send(Connect(5, "a"))
        assert told(await peer.take(Connack)) == answer
    early.send(Connect(5, "a"))
    assert told(await early.take(Connack)) == (0x9C, "c:2")


@pytest.mark.parametrize("level", [4, 5])
async def test_over_tls(away: Turning, level: int) -> None:
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", away.ports["mqtts"], ssl=context, server_hostname="localhost"
    )
    writer.write(encode(Connect(level, "a"), level))
    async with asyncio.timeout(30):
        (connack,) = Decoder(1 << 20, level, "client").feed(await reader.read())
    assert isinstance(connack, Connack)
    assert told(connack) == ((0x9C, LEADER) if level == 5 else (3, None))
    assert away.asked == ["mqtts"]
    writer.close()


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_over_websockets(away: Turning, scheme: str) -> None:
    url = f"{'https' if scheme == 'wss' else 'http'}://localhost:{away.ports[scheme]}/mqtt"
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    options: dict[str, Any] = {"ssl": context} if scheme == "wss" else {}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=("mqtt",), **options) as ws,
    ):
        for byte in HELLO:
            await ws.send_bytes(bytes([byte]))
        async with asyncio.timeout(30):
            (connack,) = Decoder(1 << 20, 5, "client").feed(await ws.receive_bytes())
            assert isinstance(connack, Connack)
            assert told(connack) == (0x9C, LEADER)
            await ws.receive()
        assert ws.close_code == 1000
    assert away.asked == [scheme]


async def test_what_is_no_websocket_is_told_so(away: Turning) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", away.ports["ws"])
    writer.write(b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n")
    async with asyncio.timeout(30):
        assert (await reader.read()).startswith(b"HTTP/1.1 4")
    writer.close()


@pytest.mark.parametrize(
    ("level", "transport", "code"),
    [(5, "tcp", 0x9C), (4, "tcp", 3), (5, "websockets", 0x9C), (4, "websockets", 3)],
)
async def test_paho_is_told(away: Turning, level: int, transport: Any, code: int) -> None:
    """What an application sees: the reason, and where to go."""
    known = paho.MQTTv5 if level == 5 else paho.MQTTv311
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id="a",
        protocol=known,
        transport=transport,
        reconnect_on_failure=False,
    )
    answers: list[tuple[int, str | None]] = []
    is_answered = threading.Event()

    def connected(_: object, __: object, ___: object, reason: Any, properties: Any) -> None:
        answers.append((reason.value, getattr(properties, "ServerReference", None)))
        is_answered.set()

    client.on_connect = connected
    port = away.ports["mqtt" if transport == "tcp" else "ws"]

    def run() -> None:
        client.connect("127.0.0.1", port)
        client.loop_start()
        is_answered.wait(30)
        client.loop_stop()
        client.disconnect()

    await asyncio.to_thread(run)
    (answer,) = answers
    # paho shows the return codes of 3.1.1 as reasons of MQTT 5.
    assert answer == ((code, LEADER) if level == 5 else (0x88, None))


# -- what is no CONNECT, or more than one


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01", b"this port does not speak TLS\r\n"),
        (encode(Publish(b"t", b"x"), 4), b""),
        (HELLO.replace(b"\x04MQTT\x05", b"\x04MQTT\x06"), b"\x20\x03\x00\x84\x00"),
        (HELLO.replace(b"\x04MQTT\x05\x02", b"\x04MQTT\x05\x03"), b"\x20\x03\x00\x81\x00"),
        (encode(Connect(4, "a"), 4).replace(b"\x04MQTT\x04\x02", b"\x04MQTT\x04\x03"), b""),
    ],
)
async def test_what_is_no_connect_is_answered_as_a_server_does(
    away: Turning, data: bytes, answer: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", away.ports["mqtt"])
    writer.write(data)
    async with asyncio.timeout(30):
        assert await reader.read() == answer
    writer.close()


async def test_what_comes_behind_is_not_read(away: Turning) -> None:
    """Nor does it take the answer from the client: unread bytes at a close make the system send a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", away.ports["mqtt"])
    writer.write(HELLO + encode(Publish(b"t", b"x" * 900_000), 5) + b"\xff" * 100)
    async with asyncio.timeout(30):
        await writer.drain()
        (connack,) = Decoder(1 << 20, 5, "client").feed(await reader.read())
    assert isinstance(connack, Connack)
    assert told(connack) == (0x9C, LEADER)
    writer.close()


async def test_a_client_that_takes_only_small_packets(away: Turning) -> None:
    """[MQTT-3.1.2-24]: the reason without where to go."""
    peer = await away.dial()
    peer.send(Connect(5, "a", properties=props(maximum_packet_size=10)))
    assert told(await peer.take(Connack)) == (0x9C, None)


async def test_a_client_that_goes_before_it_is_answered(away: Turning) -> None:
    sock = socket.create_connection(("127.0.0.1", away.ports["mqtt"]))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.sendall(HELLO)
    sock.close()
    half = await away.dial()
    half.write(HELLO[:5])
    half.transport.write_eof()
    await half.gone()
    await until(lambda: not len(away.crowd))


# -- bounds


async def test_a_connection_has_its_time(caplog: pytest.LogCaptureFixture) -> None:
    async with turning(everywhere(connect_timeout_ms=100)) as away:
        silent, half = await away.dial(), await away.dial()
        half.write(HELLO[:5])
        await silent.gone()
        await half.gone()
        # One that shakes no hands with TLS either.
        reader, writer = await asyncio.open_connection("127.0.0.1", away.ports["mqtts"])
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_one_that_was_answered_does_not_stay(away: Turning, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps its side open is cut, be it silent or sending."""
    monkeypatch.setattr(lingering, "LINGER_S", 0.2)
    sock = socket.create_connection(("127.0.0.1", away.ports["mqtt"]))
    sock.sendall(HELLO)
    await until(lambda: len(away.crowd) == 1)
    await until(lambda: not len(away.crowd))
    sock.close()


@pytest.mark.parametrize(
    ("keys", "bound"),
    [
        ({"connections": 2}, "limits.connections"),
        ({"connections_per_address": 2}, "limits.connections_per_address"),
        ({"connect_rate": 2}, "limits.connect_rate"),
    ],
)
async def test_how_many_may_come(
    keys: dict[str, int], bound: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with turning(everywhere(**keys)) as away:
        loop = asyncio.get_running_loop()
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now)  # one second, however slow the machine is
        peers = [await away.dial() for _ in range(2)]
        with caplog.at_level(logging.WARNING):
            third = await away.dial()
            while not third.is_closed:
                await asyncio.sleep(0)
        monkeypatch.undo()
        assert away.bounded == {bound: 1}
        assert bound in caplog.text
        for peer in peers:
            peer.send(Connect(5, "a"))
            assert told(await peer.take(Connack)) == (0x9C, LEADER)


async def test_connects_that_are_not_whole_are_bounded_in_bytes() -> None:
    """The one that keeps most is cut; the others go on."""
    settings = everywhere(pool_bytes=1 << 16)
    async with turning(replace(settings, mqtt=replace(settings.mqtt, maximum_packet_size=1 << 20))) as away:
        will = encode(Connect(5, "a", properties=props(user_properties=(("k", "v" * 60_000),))), 5)
        large, small = await away.dial(), await away.dial(scheme="mqtt")
        large.write(will[:40_000])
        small.write(will[:25_000])
        await until(lambda: sum(one.held_bytes for one in away.crowd) == 65_000)
        small.write(will[25_000:26_000])
        await large.gone()
        assert away.bounded == {"limits.memory": 1}
        small.write(will[26_000:])
        assert told(await small.take(Connack)) == (0x9C, LEADER)
        assert sum(one.held_bytes for one in away.crowd) == 0


async def test_closing_ends_all(away: Turning) -> None:
    peers = [await away.dial(), await away.dial(scheme="ws")]
    tls = socket.create_connection(("127.0.0.1", away.ports["mqtts"]))
    await until(lambda: len(away.crowd) == 3)
    away.listeners.close()
    await away.crowd.close(Cause.MOVED, 0)
    for peer in peers:
        await peer.gone()
    await until(lambda: not len(away.crowd))
    tls.close()
    with pytest.raises(ConnectionError):
        await away.dial()
