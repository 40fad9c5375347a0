"""Hostile clients that come in numbers, and those of the HTTP side. See attacks.py."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from itertools import cycle

from .raw import Address, connect, publish, subscribe, take
from .scene import CUT, Attack, Scene

CONNECTIONS = 2_000
LARGE = b"f" * 100_000
PACE_S = 0.0015
"""Between connections: they stay below limits.connect_rate."""


# -- connections


def silent_connections(scene: Scene) -> str:
    """2,000 connections that never send anything."""
    return _held(scene, [scene.mqtt] * CONNECTIONS, [b""])


def half_connects(scene: Scene) -> str:
    """2,000 connections that send half a CONNECT."""
    return _held(scene, [scene.mqtt] * CONNECTIONS, [connect("half")[:9]])


def half_handshakes(scene: Scene) -> str:
    """1,000 connections with half a TLS handshake, 1,000 with half a websocket's."""
    halves = [b"\x16\x03\x01\x02\x00\x01", b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n"]
    return _held(scene, [scene.tls, scene.ws] * (CONNECTIONS // 2), halves)


def _held(scene: Scene, places: list[Address], said: list[bytes]) -> str:
    """Connect and say so much, wait for longer than `limits.connect_timeout`, count what is still open."""
    made: list[socket.socket] = []
    for at, data in zip(places, cycle(said), strict=False):
        found = socket.create_connection(at, 10)
        scene.opened.append(found)
        made.append(found)
        found.sendall(data)
        time.sleep(PACE_S)
    time.sleep(12)
    return f"{sum(map(_is_open, made)):,} of {len(made):,} open after 12 s"


def _is_open(found: socket.socket) -> bool:
    found.setblocking(False)
    try:
        while found.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def never_reads(scene: Scene) -> str:
    """A session with keep alive 1 s that never reads and says nothing, its socket full."""
    reader = scene.peer("never", lasting=True, keep_alive=1)
    reader.subscribe(["flood"], 0)
    writer = scene.peer("writer", sinks=True)
    sent = writer.pour(publish("flood", LARGE), scene.until)
    time.sleep(max(0.0, scene.until - time.monotonic()))
    asked = http.client.HTTPConnection(*scene.http, timeout=30)
    asked.request("GET", "/v1/sessions/never")
    found = json.loads(asked.getresponse().read())
    return f"{sent >> 20} MiB; after {scene.seconds:.0f} s connected: {found.get('connected')}"


# -- many at once


def one_round(scene: Scene) -> str:
    """200 publishers send 60 KB at QoS 1 while the server is paused; one subscriber acks all."""
    reader = scene.peer("reader")
    reader.subscribe(["round"], 1)
    writers = [scene.peer(f"writer-{n}") for n in range(200)]
    over, got = threading.Event(), [0]
    reader.socket.settimeout(0.5)

    def read() -> None:
        while True:
            try:
                got[0] += take(reader)
            except TimeoutError:
                if over.is_set():
                    return
            except CUT:
                return

    thread = threading.Thread(target=read)
    thread.start()
    acked = 0
    one = publish("round", b"p" * 60_000, qos=1, number=1)
    for _ in range(5):
        os.kill(scene.pid, signal.SIGSTOP)  # as on a machine that is paused: it then reads all in one round
        try:
            for writer in writers:
                writer.send(one)
        finally:
            os.kill(scene.pid, signal.SIGCONT)
        acked += sum(writer.read()[1][2:3] in (b"", b"\x00") for writer in writers)
    scene.start()
    while got[0] < acked and scene.is_on:
        time.sleep(0.05)
    over.set()
    thread.join()
    return f"{acked:,} acked, {acked - got[0]:,} lost"


def fan_out(scene: Scene) -> str:
    """A publisher at full speed to 2,000 subscribers of one topic."""
    for n in range(CONNECTIONS):
        subscriber = scene.peer(f"subscriber-{n}")
        subscriber.subscribe(["wide"])
        scene.sink.add(subscriber.socket)
        time.sleep(PACE_S)
    scene.start()
    one = publish("wide", b"w" * 200)
    sent = scene.peer("writer", sinks=True).pour(one * 100, scene.until, 4 << 20)
    return f"{sent // len(one):,} sent, {scene.sink.bytes >> 20:,} MiB read"


def greedy_members(scene: Scene) -> str:
    """Members of a group with Receive Maximum 65,535 never ack; beside them an honest one with 1."""
    shared = ["$share/g/job"]
    honest = scene.peer("worker", window=1, lasting=True)
    honest.subscribe(shared, 1)
    for n in range(3):
        greedy = scene.peer(f"greedy-{n}", window=65_535, lasting=True, sinks=True)
        greedy.send(subscribe(shared, 1))
    taken = [0]

    def work() -> None:
        try:
            while scene.is_on:
                taken[0] += take(honest)
        except CUT:
            pass

    honest.socket.settimeout(scene.seconds + 5)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    numbers = cycle(range(1, 60_000))
    jobs = (publish("job", b"j", qos=1, number=next(numbers)) for _ in range(3_000))
    sent = scene.peer("writer").exchange(jobs, scene.until)
    while scene.is_on:
        time.sleep(0.1)
    return f"of {sent:,} the honest member got {taken[0]:,} in {scene.seconds:.0f} s"


# -- HTTP


def _post(scene: Scene, path: str, body: bytes, media: str = "application/json") -> int:
    asked = http.client.HTTPConnection(*scene.http, timeout=60)
    try:
        asked.request("POST", path, body, {"Content-Type": media})
        return asked.getresponse().status
    except CUT:
        return 0
    finally:
        asked.close()


def http_batches(scene: Scene) -> str:
    """Batches of 10,000 messages and 16 MiB each, four at a time."""
    line = json.dumps({"topic": "batch", "payload": "x" * 1_600, "deliver_in": "1h"}).encode() + b"\n"
    body = line * 10_000
    assert len(body) <= 16 << 20
    said: list[int] = []

    def send() -> None:
        while scene.is_on:
            said.append(_post(scene, "/v1/messages:batch", body, "application/x-ndjson"))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{said.count(201)} taken of {len(said)}"


def http_deep_json(scene: Scene) -> str:
    """A JSON body of 15 MiB that is nothing but depth, or a broken batch of small items."""
    size = 15 << 20
    bodies = [b"[" * size, b'{"topic":"a","payload":' + b"[" * size, b"[" + b"0," * (size // 2) + b"0]"]
    said = []
    for body, path in cycle([(b, p) for b in bodies for p in ("/v1/messages", "/v1/messages:batch")]):
        if not scene.is_on:
            break
        said.append(_post(scene, path, body))
    return f"{len(said)} bodies: {sorted(set(said))}"


def http_slow_bodies(scene: Scene) -> str:
    """200 bodies that come by a byte a second."""
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 99999\r\n\r\n"
    )
    made = []
    for _ in range(200):
        found = socket.create_connection(scene.http, 10)
        scene.opened.append(found)
        made.append(found)
        found.sendall(head)
    while scene.is_on:
        for found in made:
            with contextlib.suppress(OSError):
                found.send(b" ")
        time.sleep(1)
    return f"{sum(map(_is_open, made))} of 200 open"


CROWDS: tuple[Attack, ...] = (
    one_round,
    silent_connections,
    half_connects,
    half_handshakes,
    never_reads,
    fan_out,
    greedy_members,
    http_batches,
    http_deep_json,
    http_slow_bodies,
)
