"""Listeners and real sockets: TLS, websockets, the wrong kind of hello, connect storms, idle connections, a
client that sends and does not read. The server runs in this process."""

import asyncio
import gc
import logging
import ssl
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from server.codec import wire
from server.codec.packets import (
    Ack,
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
)
from server.codec.publish import Decoder
from server.engine.clock import SystemClock
from server.fair import Part
from server.mqtt.link import Links, MqttLink
from server.mqtt.listeners import mqtt_listeners
from server.net.acceptor import Ports
from server.net.crowd import Cause, Crowd, mqtt_bounds
from server.net.loop_time import LoopTime
from server.rounds.app import App
from server.settings.config import Config
from server.settings.kinds import Address
from shards.rocks import RocksStore
from tests.support.encode import encode
from tests.support.keys import KeysFile, with_keys
from tests.support.mqtt import Peer, dial
from tests.support.rig import config
from tests.support.served import TLS, Served, ended, everywhere, until


@pytest.fixture
def settings() -> Config:
    return everywhere(connect_rate=0, out_bytes=4_096)


def _is_open(link: MqttLink) -> bool:
    return link._connection is not None and link._connection.outbox.is_open


async def _connected(served: Served, name: str = "", scheme: str = "mqtt", level: int = 5) -> Peer:
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    tls = {"ssl": context, "server_hostname": "localhost"} if scheme == "mqtts" else {}
    peer = await dial(("127.0.0.1", served.ports[scheme]), level, **tls)
    assert (await peer.connect(name)).reason == 0
    return peer


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
async def test_a_round_trip(served: Served, scheme: str, level: int) -> None:
    peer = await _connected(served, "a", scheme, level)
    await peer.subscribe("t", qos=2)
    peer.put("t", b"x" * 100_000, 2)
    assert (await peer.take(Publish)).payload == b"x" * 100_000
    await peer.take(Ack)
    await peer.close()


@pytest.mark.parametrize("scheme", ["ws", "wss"])
@pytest.mark.parametrize("path", ["/mqtt", "/"])
async def test_websockets(served: Served, scheme: str, path: str) -> None:
    """[MQTT-6.0.0-1] to [MQTT-6.0.0-4]: packets may be cut and joined in any way."""
    url = f"{'https' if scheme == 'wss' else 'http'}://localhost:{served.ports[scheme]}{path}"
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    async with aiohttp.ClientSession() as session:
        options = {"ssl": context} if scheme == "wss" else {}
        async with session.ws_connect(url, protocols=("mqtt",), **options) as socket:  # type: ignore[arg-type]
            assert socket.protocol == "mqtt"
            packets = (
                Connect(5, "a"),
                Subscribe(1, (("t", SubscribeOptions(1)),)),
                Publish(b"t", b"x" * 200_000, 1, packet_id=2),
                Pingreq(),
            )
            data = b"".join(encode(packet, 5) for packet in packets)
            for at in range(0, len(data), 70_000):
                await socket.send_bytes(data[at : at + 70_000])
            decoder, found = Decoder(1 << 28, 5, "client"), []
            async with asyncio.timeout(60):
                while len(found) < 5:
                    found += decoder.feed(await socket.receive_bytes())
            assert {type(packet) for packet in found} == {Connack, Suback, Publish, Ack, Pingresp}
            await socket.send_str("text")
            async with asyncio.timeout(60):
                while not socket.closed:
                    await socket.receive()
            assert socket.close_code == 1003
    await until(lambda: not served.listeners.crowd)


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
async def test_a_tls_hello_on_the_plain_port(
    served: Served, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    with caplog.at_level(logging.WARNING), pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", served.ports[scheme], ssl=context, server_hostname="x")
    (line,) = [one for one in caplog.records if "a TLS client on a port without TLS" in one.getMessage()]
    assert vars(line)["by"] == "127.0.0.1"
    await _connected(served)


async def test_http_on_the_plain_port(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    async with aiohttp.ClientSession() as calls:
        for call in (calls.get, calls.post):
            async with call(f"http://127.0.0.1:{served.ports['mqtt']}/v1/messages") as answer:
                assert answer.status == 421
                said = await answer.text()
    port = Config().http.listen.port
    assert said == f"This port speaks MQTT. HTTP is at port {port} (http.listen)."
    assert "an HTTP request on a port of MQTT" in caplog.text
    await until(lambda: not served.listeners.crowd)


async def test_a_connect_in_pieces_is_no_http(served: Served) -> None:
    data = encode(Connect(5, "GET /a"), 5)
    at = data.index(b"GET /")
    reader, writer = await served.dial()
    writer.write(data[:at])
    await until(lambda: any(link.held_bytes for link in served.listeners.crowd))
    writer.write(data[at:])
    assert (await reader.readexactly(1))[0] >> 4 == wire.CONNACK


async def test_plain_mqtt_on_the_tls_port(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await served.dial("mqtts")
    writer.write(encode(Connect(5, "a"), 5))
    await ended(reader)
    (line,) = [one for one in caplog.records if "this port speaks TLS" in one.getMessage()]
    assert vars(line)["by"] == "127.0.0.1"
    await _connected(served, scheme="mqtts")


@pytest.mark.long
async def test_a_storm_of_1_000_connects(served: Served) -> None:
    peers = await asyncio.gather(*[_connected(served, f"c{n}", level=4 + n % 2) for n in range(1_000)])
    assert len(served.listeners.crowd) == 1_000
    for peer in peers[:10]:
        peer.send(Pingreq())
        await peer.take(Pingresp)
    for peer in peers:
        peer.transport.close()
    await until(lambda: not served.listeners.crowd)


class _Quiet(asyncio.Protocol):
    """A client that costs next to nothing itself."""


@pytest.mark.long
async def test_an_idle_connection_costs_less_than_20_kb(served: Served) -> None:
    loop = asyncio.get_running_loop()
    hello = [encode(Connect(5, f"idle {n}"), 5) for n in range(150)]
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    transports = []
    for data in hello:
        transport, _ = await loop.create_connection(_Quiet, "127.0.0.1", served.ports["mqtt"])
        transport.write(data)
        transports.append(transport)
    await until(lambda: sum(_is_open(link) for link in served.listeners.crowd) == 150)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for transport in transports:
        transport.abort()
    # Both ends of each connection are in it.
    assert (after - before) / 150 < 20_000


async def test_keep_alive_counts_from_connect(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """[MQTT-3.1.2-22]: also for a client that sends nothing after it."""
    caplog.set_level(logging.INFO)
    peer = await dial(("127.0.0.1", served.ports["mqtt"]))
    await peer.connect("a", keep_alive=1)
    started = asyncio.get_running_loop().time()
    await peer.gone()
    assert 1.2 < asyncio.get_running_loop().time() - started < 4
    (line,) = [one for one in caplog.records if "keep alive" in one.getMessage()]
    assert (vars(line)["by"], vars(line)["fields"]) == ("127.0.0.1", {"client": "a"})


@pytest.mark.long
async def test_answers_that_nobody_reads_do_not_pile_up(served: Served) -> None:
    peer, other = await _connected(served, "a"), await _connected(served, "b")
    peer.transport.pause_reading()
    (link,) = [one for one in served.listeners.crowd if _name(one) == "a"]
    # Each is refused with a reason string: a hundred bytes for thirty.
    chunk = encode(Publish(b"$SYS/topic", b"x", 1, packet_id=7), 5) * 500
    sent = 0
    async with asyncio.timeout(60):
        while not link._is_held:
            peer.write(chunk)
            sent += 500
            await asyncio.sleep(0)
    assert link._transport is not None
    assert link._transport.get_write_buffer_size() < 1 << 20
    other.send(Pingreq())
    await other.take(Pingresp)
    # It goes on when the client reads.
    peer.transport.resume_reading()
    for _ in range(sent):
        await peer.take(Ack)
    for one in (peer, other):
        one.drop()


def _name(link: MqttLink) -> str:
    return link._connection.client_id if link._connection is not None else ""


@pytest.mark.long
async def test_one_stalled_reader_among_ten(served: Served) -> None:
    stalled, *readers = [await _connected(served, f"r{n}") for n in range(10)]
    for reader in (stalled, *readers):
        await reader.subscribe("t")
    stalled.transport.pause_reading()
    publisher = await _connected(served, "p")
    for _ in range(100):
        await publisher.publish("t", b"x" * 50_000)
    for reader in readers:
        reader.ack(*await reader.take_many(100))
    stalled.transport.resume_reading()
    stalled.ack(*await stalled.take_many(100))
    for one in (publisher, stalled, *readers):
        one.drop()


@pytest.mark.parametrize(("anonymous", "status"), [(None, b"101"), (True, b"421")])
async def test_any_host_will_do_only_where_a_key_has_to_be_shown(
    tmp_path: Path, anonymous: bool | None, status: bytes
) -> None:
    """127.1 is loopback for the system, and no address that is known to be."""
    keys = KeysFile(tmp_path / "keys.toml")
    keys.add("ops", "admin")
    settings = with_keys(config(listen=(Address("127.1", 0, "ws"),)), keys.path, allow_anonymous=anonymous)
    app = App(settings, SystemClock(), RocksStore(tmp_path / "data"), fatal=lambda: None)
    await app.start()
    crowd = Crowd[MqttLink](mqtt_bounds(settings.limits), Counter(), lambda _: None)
    loop_time = LoopTime(time.monotonic, Part())
    links = Links(crowd, app.pool, app.core.publishing, app.outgoing, loop_time)
    listeners = mqtt_listeners(app.core.mqtt, app.keyring, None, links, loop_time, Ports())
    try:
        (where,) = await listeners.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", where.port)
        writer.write(
            b"GET /mqtt HTTP/1.1\r\nHost: rebound.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert (await reader.readline()).split()[1] == status
        writer.close()
    finally:
        listeners.close()
        await crowd.close(Cause.STOPPING, 0)
        await app.stop()
