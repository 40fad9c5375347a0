"""How connections begin and end, on real sockets: the last word, blocked sockets, places that count from the
accept on, floods in one chunk. The server has a thread and the usual loop, the clients are blocking."""

import asyncio
import gc
import logging
import select
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from queue import Queue
from termios import TIOCOUTQ
from typing import Any, cast

import pytest
import uvloop

from server.codec import wire
from server.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsubscribe,
    Will,
)
from server.codec.publish import Decoder
from server.engine.clock import SystemClock
from server.fair import Part
from server.mqtt import link as link_module
from server.mqtt.frames import BINARY, CLOSE
from server.mqtt.link import Links, MqttLink
from server.net import lingering
from server.net.crowd import Cause, Crowd, mqtt_bounds
from server.net.loop_time import LoopTime
from server.net.outgoing import Outgoing
from server.net.pool import pool_of
from server.settings.config import Config
from shards.fields import Record
from shards.rocks import RocksStore
from tests.support.build import OPENED
from tests.support.encode import encode
from tests.support.served import SCHEMES, TLS, Served, everywhere, serve

MIB = 1 << 20
LONGEST_S = 0.15
"""Processor time that a turn may take: 8 ms where nothing else runs, 500 if all is done at once."""


@pytest.fixture
def keys() -> dict[str, Any]:
    return {}


@pytest.fixture
def linger_s() -> float:
    """A place is given up after so long, in place of 2 s."""
    return 0.3


PATIENT = pytest.mark.parametrize("linger_s", [60.0])
"""For a client that reads the last word, whenever it comes to it."""


@pytest.fixture
def served(
    tmp_path: Path, keys: dict[str, Any], linger_s: float, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    monkeypatch.setattr(lingering, "LINGER_S", linger_s)
    settings = everywhere(**{"connect_rate": 0, "out_bytes": 65_536} | keys)
    begun: Queue[tuple[Served, asyncio.Event]] = Queue()

    async def run() -> None:
        async with serve(tmp_path / "data", settings) as made:
            over = asyncio.Event()
            begun.put((made, over))
            await over.wait()

    def main() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(main)
        made, over = begun.get(timeout=30)
        try:
            yield made
        finally:
            made.loop.call_soon_threadsafe(over.set)
            running.result(30)


class Client:
    """A blocking socket that speaks MQTT over any of the listeners."""

    def __init__(self, port: int, scheme: str = "mqtt", level: int = 5, receive_bytes: int = 0) -> None:
        raw = socket.socket()
        if receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.settimeout(30)
        raw.connect(("127.0.0.1", port))
        self.socket: socket.socket = raw
        if scheme in ("mqtts", "wss"):
            context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
            self.socket = context.wrap_socket(raw, server_hostname="localhost")
        self.is_web = scheme in ("ws", "wss")
        self.level = level
        self.decoder = Decoder(1 << 28, level, "client")
        self.inbox: list[Packet] = []
        self._frames = b""
        self.close_code: int | None = None
        if self.is_web:
            self.socket.sendall(REQUEST)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.socket.recv(1)
            assert head.startswith(b"HTTP/1.1 101 "), head

    def send(self, *packets: Packet) -> None:
        self.write(b"".join(encode(packet, self.level) for packet in packets))

    def write(self, data: bytes) -> None:
        self.socket.sendall(masked(BINARY, data) if self.is_web else data)

    def take(self, kind: type[Any]) -> Any:
        while not self.inbox:
            data = self.socket.recv(65_536)
            assert data, f"closed before {kind.__name__}"
            self._feed(data)
        packet = self.inbox.pop(0)
        assert isinstance(packet, kind), packet
        return packet

    def _feed(self, data: bytes) -> None:
        if not self.is_web:
            self.inbox += self.decoder.feed(data)
            return
        self._frames += data
        while len(self._frames) >= 2:
            kind, size = self._frames[0] & 15, self._frames[1]
            wide = 0 if size < 126 else 2 if size == 126 else 8
            size = int.from_bytes(self._frames[2 : 2 + wide]) if wide else size
            if len(self._frames) < 2 + wide + size:
                return
            payload = self._frames[2 + wide : 2 + wide + size]
            self._frames = self._frames[2 + wide + size :]
            if kind == BINARY:
                self.inbox += self.decoder.feed(payload)
            elif kind == CLOSE:
                self.close_code = int.from_bytes(payload[:2])

    def end(self) -> bool:
        """Read to the end of the stream; whether it was one, and not a reset. Of a websocket that the server
        ends to the frame that says so: then it waits for its client."""
        try:
            while self.close_code is None and (data := self.socket.recv(65_536)):
                self._feed(data)
        except (ConnectionError, ssl.SSLError):
            return False
        return True

    def connect(self, client_id: str = "", **more: Any) -> Connack:
        self.send(Connect(self.level, client_id, **more))
        connack: Connack = self.take(Connack)
        return connack

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        self.send(Subscribe(1, ((topic_filter, SubscribeOptions(qos)),)))
        self.take(Suback)


REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def masked(kind: int, payload: bytes, first: int = 0x80) -> bytes:
    """A frame of a client, with a mask that is not zero."""
    size, key = len(payload), b"\x12\x00\xff\x7a"
    head = bytes((first | kind,))
    if size < 126:
        head += bytes((0x80 | size,))
    elif size < 65_536:
        head += b"\xfe" + size.to_bytes(2)
    else:
        head += b"\xff" + size.to_bytes(8)
    mask = (key * (size // 4 + 1))[:size]
    data = (int.from_bytes(payload) ^ int.from_bytes(mask)).to_bytes(size)
    return head + key + data


def _until(holds: Callable[[], bool], seconds: float = 30) -> float:
    """How long it took."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < seconds
        time.sleep(0.01)
    return time.monotonic() - started


# -- the last word is read


@PATIENT
@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_reason_is_read_though_more_is_sent(served: Served, scheme: str) -> None:
    """A MiB behind the packet that ends the connection: none of it eats the DISCONNECT."""

    one = Client(served.ports[scheme], scheme)
    one.connect("a")
    bad = encode(Publish(b"t", b"x", 0, properties=Properties(topic_alias=999)), 5)
    one.write(bad + b"\x30\x03\x00\x01t" * (MIB // 5))
    time.sleep(0.3)
    assert one.take(Disconnect).reason == 0x94
    assert one.end()
    one.socket.close()
    _until(lambda: not served.listeners.crowd)


@PATIENT
@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_packet_that_is_too_large_is_answered(served: Served, scheme: str) -> None:
    one = Client(served.ports[scheme], scheme)
    one.connect("a")
    one.write(b"\x30" + wire.varint(2 * MIB) + bytes(2 * MIB))
    assert one.take(Disconnect).reason == 0x95
    assert one.end()
    one.socket.close()


@PATIENT
@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("level", [4, 5])
def test_a_refused_connect_is_answered(served: Served, scheme: str, level: int) -> None:
    one = Client(served.ports[scheme], scheme, level)
    one.write(encode(Connect(level, "$share/x"), level) + encode(Publish(b"t", b"x" * 1000), level) * 1000)
    time.sleep(0.3)
    assert one.take(Connack).reason == (0x85 if level == 5 else 2)
    assert one.end()
    one.socket.close()


# -- the last answers are read


def _disconnect(one: Client) -> bytes:
    return encode(Disconnect(), one.level)


ENDS: dict[str, tuple[str, ...]] = {
    "disconnect": SCHEMES,
    "half-close": ("mqtt", "ws"),
    "disconnect and half-close": ("mqtt", "ws"),
    "close frame": ("ws", "wss"),
    "disconnect and close frame": ("ws", "wss"),
}
"""How a client says that it sends no more, and where. TLS has no half-close."""


def _say_all(one: Client, packets: list[Packet], end: str) -> set[tuple[str, int, int]]:
    """Send packets and the end in one write; (kind, packet id, reason) of what was answered by the server's
    own end of the connection."""
    data = b"".join(encode(packet, one.level) for packet in packets)
    if "disconnect" in end:
        data += _disconnect(one)
    one.socket.sendall(
        (masked(BINARY, data) if one.is_web else data)
        + (masked(CLOSE, b"\x03\xe8") if "frame" in end else b"")
    )
    if "half-close" in end:
        one.socket.shutdown(socket.SHUT_WR)
    assert one.end()
    one.socket.close()
    return {
        (
            f"ACK {packet.kind}" if isinstance(packet, Ack) else type(packet).__name__,
            getattr(packet, "packet_id", 0),
            getattr(packet, "reason", 0),
        )
        for packet in one.inbox
    }


@PATIENT
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize(
    ("end", "scheme"), [(end, scheme) for end, found in ENDS.items() for scheme in found]
)
def test_a_client_that_ends_at_once_is_answered(served: Served, scheme: str, end: str, level: int) -> None:
    """Each kind of packet that has an answer, from CONNECT to the end in one write. Its session is
    persistent: most answers wait for the store."""
    one = Client(served.ports[scheme], scheme, level)
    lasting = Properties(session_expiry=60) if level == 5 else None
    packets: list[Packet] = [
        Connect(level, "a", clean_start=False, properties=lasting),
        Subscribe(1, (("t/#", SubscribeOptions(1)),)),
        Unsubscribe(2, ("t/#",)),
        Publish(b"t", b"x", 1, packet_id=3),
        Publish(b"$delayed/60/t", b"x", 1, packet_id=4),
        Publish(b"t", b"x", 2, packet_id=5),
        Ack(wire.PUBREL, 6),
        Pingreq(),
    ]
    wanted = {("Connack", 0, 0), ("Suback", 1, 0), ("Unsuback", 2, 0), ("Pingresp", 0, 0)}
    wanted |= {
        (f"ACK {wire.PUBACK}", 3, 0x10 if level == 5 else 0),
        (f"ACK {wire.PUBACK}", 4, 0),
        (f"ACK {wire.PUBREC}", 5, 0),
    }
    wanted |= {(f"ACK {wire.PUBCOMP}", 6, 0x92 if level == 5 else 0)}
    if level == 5:
        packets.append(Publish(b"$SYS/x", b"x", 1, packet_id=7))
        packets.append(
            Publish(b"$control/done", b'{"group": "$share/g/t", "id": "%032x"}' % 1, 1, packet_id=8)
        )
        wanted |= {(f"ACK {wire.PUBACK}", 7, 0x90), (f"ACK {wire.PUBACK}", 8, 0x83)}
    assert _say_all(one, packets, end) == wanted
    _until(lambda: not served.listeners.crowd)


@PATIENT
@pytest.mark.parametrize("end", ["disconnect", "half-close"])
def test_the_steps_of_qos_2_are_answered_at_the_end(served: Served, end: str) -> None:
    lasting = Properties(session_expiry=60)
    one, other = Client(served.ports["mqtt"]), Client(served.ports["mqtt"])
    one.connect("a", clean_start=False, properties=lasting)
    one.subscribe("t", 2)
    other.connect("b", clean_start=False, properties=lasting)
    other.send(Publish(b"t", b"x", 2, packet_id=9))
    assert other.take(Ack).kind == wire.PUBREC
    assert _say_all(other, [Ack(wire.PUBREL, 9)], end) == {(f"ACK {wire.PUBCOMP}", 9, 0)}
    came = one.take(Publish).packet_id
    assert _say_all(one, [Ack(wire.PUBREC, came)], end) == {(f"ACK {wire.PUBREL}", came, 0)}


@pytest.mark.parametrize(("end", "came"), [("disconnect", []), ("half-close", [b"gone"])])
def test_a_will_is_for_an_end_without_a_disconnect(served: Served, end: str, came: list[bytes]) -> None:
    one, other = Client(served.ports["mqtt"]), Client(served.ports["mqtt"])
    other.connect("b")
    other.subscribe("t/#")
    one.connect("a", will=Will(b"t/w", b"gone", 1))
    assert _say_all(one, [Publish(b"$delayed/60/x", b"x", 1, packet_id=1)], end)
    _until(lambda: len(served.listeners.crowd) == 1)
    other.send(Publish(b"t/end", b"end", 1, packet_id=1))
    found = []
    while b"end" not in found:
        packet = other.take(object)
        found += [packet.payload] if isinstance(packet, Publish) else []
    assert found == [*came, b"end"]
    other.socket.close()


def test_an_answer_is_waited_for_so_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store takes longer: the place is given up, and what was sent is done all the same."""
    monkeypatch.setattr(link_module, "LINGER_S", 0.2)
    held = threading.Event()
    flush = RocksStore.flush
    monkeypatch.setattr(RocksStore, "flush", lambda store: (held.wait(30), flush(store))[1])
    one = Client(served.ports["mqtt"])
    one.connect("a")
    try:
        assert _say_all(one, [Publish(b"$delayed/60/x", b"x", 1, packet_id=1)], "half-close") == set()
        _until(lambda: not served.listeners.crowd)
    finally:
        held.set()


def test_who_goes_on_sending_is_cut(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "LINGER_BYTES", MIB)

    one = Client(served.ports["mqtt"])
    one.connect("a")
    one.write(b"\x00\x00")
    with pytest.raises(ConnectionError):
        one.write(bytes(100 * MIB))
    one.socket.close()
    _until(lambda: not served.listeners.crowd)


# -- blocked sockets


def _blocked(served: Served, scheme: str, **connect: Any) -> Client:
    """Connected, subscribed to `big` and to a group's `job`, and reading no more."""
    one = Client(served.ports[scheme], scheme, receive_bytes=4_096)
    lasting = Properties(session_expiry=60)
    one.connect("zombie", will=Will(b"will", b"dead", 1), properties=lasting, **connect)
    one.subscribe("$share/g/job")
    one.subscribe("big", 0)
    return one


def _fill(served: Served) -> None:
    """Five jobs and 20 MB that the blocked one does not read."""
    one = Client(served.ports["mqtt"], level=4)
    one.connect("filler")
    for number in range(5):
        one.send(Publish(b"job", b"%d" % number, 1, packet_id=number + 1))
        one.take(Ack)
    for number in range(400):
        one.send(Publish(b"big", bytes(50_000), 0))
        if number % 20 == 0:
            one.send(Pingreq())
            one.take(Pingresp)
    one.socket.close()


class Counted:
    """A transport that counts what is given to it."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.given = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.given += len(data)
        self._transport.write(data)

    def unknown_bytes(self) -> int:
        """Given, not said to be unsent, and not with the system."""
        waiting = bytearray(4)
        ioctl(self._transport.get_extra_info("socket").fileno(), TIOCOUTQ, waiting)
        unsent = self._transport.get_write_buffer_size()
        return self.given - int(unsent) - int.from_bytes(waiting, sys.byteorder)


class TestWide:
    """With room for MiBs in one turn."""

    @pytest.fixture
    def keys(self) -> dict[str, Any]:
        return {"out_bytes": 8 * MIB, "maximum_packet_size": 8 * MIB}

    @pytest.mark.long
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_what_waits_below_tls_is_known(self, served: Served, scheme: str) -> None:
        """What is unsent bounds what a client gets: unsent bytes that nobody counts have no bound."""
        filler = Client(served.ports["mqtt"], level=4)
        filler.connect("filler")
        for number in range(32):
            filler.send(Publish(b"kept/%d" % number, bytes(MIB // 4), 1, retain=True, packet_id=1))
            filler.take(Ack)
        one = Client(served.ports[scheme], scheme, receive_bytes=4_096)
        one.connect("zombie")
        (link,) = [link for link in served.listeners.crowd if link._connection.client_id == "zombie"]  # type: ignore[union-attr]
        counted = link._transport = Counted(link._transport)  # type: ignore[assignment]
        one.send(Subscribe(1, (("kept/#", SubscribeOptions(0)),)))
        _until(lambda: counted.given > 7 * MIB)
        time.sleep(0.1)
        told: Queue[int] = Queue()
        served.loop.call_soon_threadsafe(lambda: told.put(counted.unknown_bytes()))
        unknown = told.get(timeout=30)
        print(f"{scheme}: of {counted.given:,} bytes {unknown:,} are not known")
        assert unknown < MIB // 4
        one.socket.close()
        filler.socket.close()


def _is_settled(served: Served, scheme: str, end: Callable[[], None], **connect: Any) -> None:
    """Once the blocked one is ended the will is out, the jobs are another member's, and the place is free."""
    healthy = Client(served.ports["mqtt"])
    healthy.connect("healthy")
    healthy.subscribe("will")
    zombie = _blocked(served, scheme, **connect)
    _fill(served)
    healthy.subscribe("$share/g/job")
    end()
    got = {healthy.take(Publish).payload for _ in range(6)}
    assert got == {b"dead", b"0", b"1", b"2", b"3", b"4"}
    healthy.socket.close()
    _until(lambda: not served.listeners.crowd)
    if scheme in ("mqtt", "ws"):
        _is_forgotten(zombie)
    zombie.socket.close()


def _is_forgotten(zombie: Client) -> None:
    """The system does not keep what was never taken: the client is told by a reset."""
    with pytest.raises(ConnectionError, match="reset"):
        list(iter(lambda: zombie.socket.recv(1 << 20), b""))


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
def test_keep_alive_ends_a_blocked_socket(served: Served, scheme: str) -> None:
    _is_settled(served, scheme, lambda: None, keep_alive=1)


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
def test_takeover_ends_a_blocked_socket(served: Served, scheme: str) -> None:
    def take_over() -> None:
        one = Client(served.ports["mqtt"])
        one.connect("zombie")
        one.socket.close()

    _is_settled(served, scheme, take_over)


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_servers_stop_ends_a_blocked_socket(served: Served, scheme: str) -> None:
    zombie = _blocked(served, scheme)
    _fill(served)
    _until(lambda: len(served.listeners.crowd) == 1)
    (link,) = served.listeners.crowd
    served.loop.call_soon_threadsafe(link.close, Cause.STOPPING)
    _until(lambda: not served.listeners.crowd)
    zombie.socket.close()


def test_a_client_that_ends_and_does_not_read(served: Served) -> None:
    """Its half of the connection is closed, what it was sent lies there: its place is free all the same."""
    zombie = _blocked(served, "mqtt")
    _fill(served)
    zombie.socket.shutdown(socket.SHUT_WR)
    session = served.app.core.sessions.get("zombie")
    assert session is not None
    _until(lambda: session.link is None)
    _until(lambda: not served.listeners.crowd)
    zombie.socket.close()


# -- places count from the accept on


def _are_closed(sockets: list[socket.socket]) -> int:
    """How many of them the server has closed within half a minute."""
    closed: set[socket.socket] = set()
    deadline = time.monotonic() + 30
    while len(closed) < len(sockets) and (left := deadline - time.monotonic()) > 0:
        for one in select.select([one for one in sockets if one not in closed], [], [], left)[0]:
            try:
                if one.recv(1_000):
                    continue
            except ConnectionError:
                pass
            closed.add(one)
    return len(closed)


@pytest.mark.long
@pytest.mark.parametrize("keys", [{"connections": 5, "connect_timeout_ms": 1_000}])
@pytest.mark.parametrize(
    ("scheme", "start"),
    [
        ("mqtt", b""),
        ("mqtt", b"\x10"),
        ("mqtts", b""),
        ("mqtts", b"\x16\x03\x01"),
        ("ws", b""),
        ("ws", b"GET /mqtt HTTP/1.1\r\nHost: x\r\n"),
        ("wss", b""),
    ],
)
def test_a_connection_counts_from_its_accept(
    served: Served, caplog: pytest.LogCaptureFixture, scheme: str, start: bytes
) -> None:
    caplog.set_level(logging.INFO)
    sockets = [socket.create_connection(("127.0.0.1", served.ports[scheme])) for _ in range(12)]
    for one in sockets:
        with suppress(ConnectionError):
            one.sendall(start)
    assert _are_closed(sockets) == 12
    _until(lambda: not served.listeners.crowd)
    assert served.app.metrics.bounded_mqtt == {"limits.connections": 7, "limits.connect_timeout": 5}
    lines = [line for line in caplog.records if line.name.startswith("server.")]
    assert [vars(line).get("by") for line in lines] == ["127.0.0.1"] * 12, "each says whose it was"
    for one in sockets:
        one.close()


@pytest.mark.long
@pytest.mark.parametrize("keys", [{"connect_timeout_ms": 500}])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_time_to_connect_includes_the_handshakes(served: Served, scheme: str) -> None:
    started = time.monotonic()
    one = Client(served.ports[scheme], scheme)
    one.end()
    assert time.monotonic() - started > 0.4
    one.socket.close()


# -- websockets


@PATIENT
@pytest.mark.parametrize("keys", [{"max_payload": MIB - 1}])
@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_frame_may_be_of_any_size(served: Served, scheme: str) -> None:
    """One with the largest packet, one with several, one packet over several frames and pings between."""
    one = Client(served.ports[scheme], scheme)
    one.connect("a", properties=Properties(maximum_packet_size=8 * MIB))
    one.subscribe("t", 0)
    largest = encode(Publish(b"t", b"x" * (MIB - 8), 0), 5)
    assert len(largest) == MIB
    several = encode(Publish(b"t", b"y" * 200_000, 0), 5) * 7
    assert len(several) > MIB
    one.write(largest)
    one.write(several)
    for at in range(0, len(largest), 300_000):
        one.socket.sendall(masked(9, b"ping"))
        one.write(largest[at : at + 300_000])
    assert [len(one.take(Publish).payload) for _ in range(9)] == [MIB - 8, *[200_000] * 7, MIB - 8]
    one.socket.sendall(masked(8, b"\x03\xe8"))
    assert one.end()
    assert one.close_code == 1000
    one.socket.close()
    _until(lambda: not served.listeners.crowd)


@pytest.mark.long
def test_many_empty_frames(served: Served) -> None:
    """They cost more to read than their bytes say: in turns, too."""
    one = Client(served.ports["ws"], "ws")
    one.connect("a")
    one.socket.sendall(masked(BINARY, b"") * 100_000 + masked(9, b"") * 100_000)
    one.send(Pingreq())
    one.take(Pingresp)
    one.socket.close()


@PATIENT
@pytest.mark.parametrize("scheme", ["ws", "wss"])
@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (REQUEST.replace(b"\r\n\r\n", b"\r\nOrigin: http://evil.example\r\n\r\n"), b"403"),
        (REQUEST.replace(b"/mqtt", b"/other"), b"404"),
        (REQUEST[:-2] + b"X: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_a_refused_request_is_answered(
    served: Served, scheme: str, request_head: bytes, status: bytes
) -> None:
    one = Client(served.ports[scheme], "mqtts" if scheme == "wss" else "mqtt")
    one.socket.sendall(request_head + bytes(MIB))
    time.sleep(0.1)
    answer = b""
    while data := one.socket.recv(65_536):
        answer += data
    assert answer.startswith(b"HTTP/1.1 " + status)
    one.socket.close()
    _until(lambda: not served.listeners.crowd)


# -- many packets in one chunk


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
@pytest.mark.parametrize(
    "packet", [b"\xc0\x00", b"\x30\x04\x00\x01t\x00", b"\x40\x02\x00\x09"], ids=["ping", "publish", "ack"]
)
def test_a_flood_leaves_the_others_their_turns(served: Served, scheme: str, packet: bytes) -> None:
    """512 KiB of tiny packets: no turn of the loop takes long, and all of them are handled in the end."""
    one = Client(served.ports[scheme], scheme)
    one.connect("a")
    one.subscribe("end")
    gc.disable()  # this process is a test's: it has far more to look through than a server
    turns = Turns(served.loop)
    flood = packet * (MIB // 2 // len(packet)) + encode(Publish(b"end", b"", 0), 5)
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(one.write, flood)
        while not isinstance(one.take(object), Publish):
            pass
        sending.result(30)
    longest = turns.stop()
    gc.enable()
    print(f"{longest * 1000:.1f} ms")
    assert longest < LONGEST_S
    one.socket.close()


class Turns:
    """Looks at how much processor time the turns of a loop take."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before = float("inf")
        self._longest = 0.0
        self._is_over = False
        loop.call_soon_threadsafe(self._look)

    def stop(self) -> float:
        """The longest, seconds."""
        self._is_over = True
        return self._longest

    def _look(self) -> None:
        now = time.thread_time()
        self._longest, self._before = max(self._longest, now - self._before), now
        if not self._is_over:
            self._loop.call_soon(self._look)


@PATIENT
@pytest.mark.parametrize("keys", [{"pool_bytes": 1 << 20}])
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_what_is_read_and_not_handled_is_bounded_in_all(served: Served, scheme: str) -> None:
    """Packets that never end: whoever keeps most is ended when all together keep too much."""

    def client(kept: int) -> Client:
        one = Client(served.ports[scheme], scheme)
        one.connect("")
        one.write(b"\x30" + wire.varint(900_000) + bytes(kept))
        return one

    small = [client(1_000) for _ in range(3)]
    links, pool = served.listeners.crowd, served.app.pool
    large = client(700_000)
    _until(lambda: pool.held > 700_000)
    other = client(500_000)
    assert large.take(Disconnect).reason == 0x97
    _until(lambda: 500_000 < pool.held < 510_000)
    for one in (*small, large, other):
        one.socket.close()
    _until(lambda: not links)
    assert pool.held == 0


# -- the queue of those that are held


class _Publishing:
    """What the queue asks."""

    def __init__(self) -> None:
        self.asked = 0
        self.congested = True

    def is_congested(self, _: str) -> bool:
        self.asked += 1
        return self.congested


@OPENED
async def test_held_links_wait_in_one_queue() -> None:
    """10,000 of them ask no more often than one, and go on in their order, a few at a time."""
    publishing, clock = _Publishing(), SystemClock()
    time_ = LoopTime(clock.mono, Part())
    crowd = Crowd[MqttLink](mqtt_bounds(Config().limits), Counter(), lambda _: None)
    links = Links(crowd, pool_of(Config()), cast("Any", publishing), Outgoing(clock.mono, Part()), time_)
    resumed: list[int] = []

    class Held:
        owner, key = "127.0.0.1", ""

        def __init__(self, number: int) -> None:
            self.number = number

        def go_on(self) -> None:
            resumed.append(self.number)
            if len(resumed) == 100:
                publishing.congested = True

    for number in range(10_000):
        links.wait(cast("Any", Held(number)))
    await asyncio.sleep(0.1)
    assert not resumed
    assert publishing.asked < 100
    publishing.congested = False
    async with asyncio.timeout(60):
        while not publishing.congested:
            await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert resumed == list(range(100))
    publishing.congested = False
    async with asyncio.timeout(60):
        while len(resumed) < 10_000:
            await asyncio.sleep(0)
    assert resumed == list(range(10_000))


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_sys_counts_the_bytes_of_mqtt(served: Served, scheme: str) -> None:
    """What dashboards of a mosquitto read; a websocket's frames are not counted."""
    client = Client(served.ports[scheme], scheme)
    client.connect("c")
    client.subscribe("t")
    client.send(Publish(b"t", b"x" * 100, 1, packet_id=7))
    answers = [client.take(Packet) for _ in range(2)]  # type: ignore[type-abstract]
    client.send(Pingreq())
    answers.append(client.take(Pingresp))
    client.socket.close()
    figures = {
        record.topic.decode().removeprefix("$SYS/broker/"): record.payload.decode()
        for record in asyncio.run_coroutine_threadsafe(_records(served), served.loop).result(30)
    }
    sent = Connect(5, "c"), Subscribe(1, (("t", SubscribeOptions(1)),)), Pingreq()
    received = sum(len(encode(packet, 5)) for packet in (*sent, Publish(b"t", b"x" * 100, 1, packet_id=7)))
    assert int(figures["bytes/received"]) == received
    assert int(figures["bytes/sent"]) > 100 + len(answers) * 2
    assert figures["publish/messages/received"] == figures["publish/messages/sent"] == "1"
    assert figures["publish/bytes/received"] == figures["publish/bytes/sent"] == "100"
    assert float(figures["load/bytes/received/1min"]) > 0
    assert float(figures["load/sockets/15min"]) >= float(figures["load/connections/15min"]) > 0
    assert float(figures["load/publish/dropped/5min"]) == 0


async def _records(served: Served) -> list[Record]:
    return served.app.figures.records()
