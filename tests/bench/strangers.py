"""Hostile clients that show no key, or a wrong one. See attacks.py.

They come from 127.0.0.2 and up, each attack from an address of its own: the honest clients are on another
network.
"""

import http.client
import socket
import time
from collections import Counter
from contextlib import suppress
from itertools import count

from .raw import Address, connect
from .scene import CUT, Attack, Scene, is_open, together

CONNECTIONS = 2_000
CROWD = 200
PACE_S = 0.0015
"""Between connections: they stay below limits.connect_rate."""
_UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


class Crowd:
    """200 connections from one address. One that the server has cut is opened again."""

    def __init__(self, scene: Scene, at: Address, opening: bytes = b"") -> None:
        self._scene, self._at, self._opening = scene, at, opening
        self._source = scene.stranger()
        self._made: list[socket.socket | None] = [None] * CROWD
        self._sent = [0] * CROWD
        self.bytes = self.opened = 0

    def say(self, data: bytes) -> None:
        """Each sends as much of `data` as it is let, and begins where it ended the last time."""
        for n in range(CROWD):
            if not self._scene.is_on:
                break
            try:
                found = self._made[n] or self._open(n)
                first = self._sent[n] % len(data)
                sent = found.send(data[first:])
            except BlockingIOError:
                continue
            except OSError:
                self._made[n] = None
                continue
            self._sent[n] += sent
            self.bytes += sent

    def _open(self, n: int) -> socket.socket:
        made = self._scene.socket(self._at, self._source)
        made.sendall(self._opening)
        made.setblocking(False)
        self._scene.sink.add(made)
        self._made[n], self._sent[n] = made, 0
        self.opened += 1
        return made

    def remark(self) -> str:
        return f"{self.bytes:,} bytes on {self.opened:,} connections"


# -- what is begun and not ended


def silent_connections(scene: Scene) -> str:
    """2,000 connections that never send anything."""
    return _held(scene, [scene.mqtt], [b""])


def half_handshakes(scene: Scene) -> str:
    """1,000 connections with half a TLS handshake, 1,000 with half a websocket's."""
    return _held(scene, [scene.tls, scene.ws], [b"\x16\x03\x01\x02\x00\x01", _UPGRADE[:40]])


def _held(scene: Scene, places: list[Address], said: list[bytes]) -> str:
    """Connect and say so much, wait for longer than `limits.connect_timeout`, count what is still open."""
    made, source = [], scene.stranger()
    for n in range(CONNECTIONS):
        found = scene.socket(places[n % len(places)], source)
        made.append(found)
        found.sendall(said[n % len(said)])
        time.sleep(PACE_S)
    time.sleep(12)
    return f"{sum(map(is_open, made)):,} of {len(made):,} open after 12 s"


def dripped_bodies(scene: Scene) -> str:
    """200 POSTs with heads of 8 KB whose bodies come byte by byte, without a pause."""
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7000\r\n"
    head += b"".join(b"x%d: %b\r\n" % (n, b"v" * 70) for n in range(96)) + b"\r\n"
    crowd = Crowd(scene, scene.http, head)
    while scene.is_on:
        crowd.say(b"x")
    return crowd.remark()


# -- MQTT


def websocket_pings(scene: Scene) -> str:
    """200 websockets send 6 KB of pings each per second, and never a CONNECT."""
    crowd = Crowd(scene, scene.ws, _UPGRADE)
    while scene.is_on:
        crowd.say(b"\x89\x80\0\0\0\0" * 1_000)
        time.sleep(1)
    return crowd.remark()


def large_connects(scene: Scene) -> str:
    """200 connections end at one moment a CONNECT with 10,000 properties, again and again."""
    one = connect("large", properties=b"\x26\0\1a\0\1b" * 10_000)
    rounds, source = 0, scene.stranger()
    while scene.is_on:
        made = []
        for _ in range(CROWD):
            with suppress(OSError):
                made.append(scene.socket(scene.mqtt, source))
                made[-1].sendall(one[:-1])
        time.sleep(0.3)
        for found in made:
            with suppress(OSError):
                found.sendall(one[-1:])
        time.sleep(0.3)
        for found in made:
            found.close()
        rounds += 1
    return f"{rounds} rounds of {CROWD * len(one) >> 20} MiB"


def empty_properties_of_a_connect(scene: Scene) -> str:
    """CONNECT with 1 MB of empty user properties, on a new connection each."""
    one = connect("c", properties=b"\x26\0\0\0\0" * 200_000)
    made, source = 0, scene.stranger()
    while scene.is_on and made < 60:
        with suppress(OSError), scene.socket(scene.mqtt, source) as found:
            found.sendall(one)
            found.recv(100)
        made += 1
    return f"{made} connections"


# -- HTTP


def wrong_keys(scene: Scene) -> str:
    """16 clients show wrong keys as fast as they are answered, each from another address."""
    answers = Counter[int | str]()
    numbers = count()

    def ask() -> None:
        while scene.is_on:
            shown = {"Authorization": f"Bearer fasti_honest_{next(numbers):064x}"}
            asked = http.client.HTTPConnection(*scene.http, timeout=20, source_address=(scene.stranger(), 0))
            try:
                asked.request("GET", "/v1/info", headers=shown)
                answers[asked.getresponse().status] += 1
            except CUT:
                answers["cut"] += 1
            finally:
                asked.close()

    together([ask] * 16)
    return ", ".join(f"{answer}: {times:,}" for answer, times in answers.items())


def calls_without_a_key(scene: Scene) -> str:
    """200 connections send calls without a key, 200 at a time, and wait for no answer."""
    crowd = Crowd(scene, scene.http)
    calls = b"GET /v1/messages?topic=a HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
    while scene.is_on:
        crowd.say(calls)
    return crowd.remark()


STRANGERS: tuple[Attack, ...] = (
    silent_connections,
    half_handshakes,
    dripped_bodies,
    websocket_pings,
    large_connects,
    empty_properties_of_a_connect,
    wrong_keys,
    calls_without_a_key,
)
