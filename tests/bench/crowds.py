"""Hostile clients with a key that come in numbers, and those of the HTTP side. See attacks.py."""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from itertools import cycle

from .raw import Peer, publish, subscribe, take
from .scene import CUT, Attack, Scene, together

CONNECTIONS = 2_000
LARGE = b"f" * 100_000
PACE_S = 0.0015
"""Between connections: they stay below limits.connect_rate."""
FILTERS = 9_990
HEADERS = 1_350_000
LEVELS = 16
PREVIEWS = 6


# -- sessions


# -- many at once


def one_round(scene: Scene) -> str:
    """200 publishers send 60 KB at QoS 1 while the server is paused; one subscriber acks all."""
    reader = scene.peer("reader")
    reader.subscribe(["evil/round"], 1)
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
    one = publish("evil/round", b"p" * 60_000, qos=1, number=1)
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
        subscriber.subscribe(["evil/wide"])
        scene.sink.add(subscriber.socket)
        time.sleep(PACE_S)
    scene.start()
    one = publish("evil/wide", b"w" * 200)
    sent = scene.peer("writer", sinks=True).pour(one * 100, scene.until, 4 << 20)
    return f"{sent // len(one):,} sent, {scene.sink.bytes >> 20:,} MiB read"


def bursts(scene: Scene) -> str:
    """300 connections send 28 KB of small QoS 0 publishes each, all at one moment, again and again."""
    writers = [scene.peer(f"writer-{n}", sinks=True) for n in range(300)]
    one = publish("evil/burst") * 1_900
    scene.start()
    return _in_rounds(scene, [(writer, one) for writer in writers])


def subscribes_at_once(scene: Scene) -> str:
    """50 connections end at one moment a SUBSCRIBE of 9,990 filters, again and again."""
    readers = [scene.peer(f"reader-{n}", sinks=True) for n in range(50)]
    one = subscribe(f"evil/{n}" for n in range(FILTERS))
    scene.start()
    return _in_rounds(scene, [(reader, one) for reader in readers])


def _in_rounds(scene: Scene, said: list[tuple[Peer, bytes]]) -> str:
    """Each says its own but for the last byte, then all at one moment the last one; a round each second."""
    rounds, cut = 0, set[str]()
    while scene.is_on:
        for part in (slice(-1), slice(-1, None)):
            for peer, one in said:
                try:
                    peer.send(one[part])
                except OSError:
                    cut.add(peer.name)
            time.sleep(0.2)
        time.sleep(0.6)
        rounds += 1
    return f"{rounds} rounds of {sum(len(one) for _, one in said) / 1e6:.1f} MB, {len(cut)} cut off"


def topic_tree(scene: Scene) -> str:
    """2^16 filters in 66 sessions, and five publishes a second to new topics that match all of them."""
    filters = [
        "evil/" + "/".join("a+"[n >> level & 1] for level in range(LEVELS)) for n in range(1 << LEVELS)
    ]
    granted = 0
    for n in range(0, len(filters), 1_000):
        reader = scene.peer("reader")
        granted += reader.subscribe([f"{one}/#" for one in filters[n : n + 1_000]])
        scene.sink.add(reader.socket)
    scene.start()
    writer, sent = scene.peer("writer", sinks=True), 0
    while scene.is_on:
        writer.send(publish("evil/" + "a/" * LEVELS + str(sent), b"x"))
        sent += 1
        time.sleep(0.2)
    return f"{granted:,} filters granted, {sent} publishes"


def unread(scene: Scene) -> str:
    """400 subscribers that read nothing, of ten messages of 200 KB a second at QoS 0."""
    for n in range(400):
        reader = scene.peer(f"reader-{n}")
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        reader.subscribe(["evil/unread"])
    scene.start()
    writer, sent = scene.peer("writer", sinks=True), 0
    while scene.is_on:
        writer.send(publish("evil/unread", LARGE * 2))
        sent += 1
        time.sleep(0.1)
    return f"{sent} sent to each"


def greedy_members(scene: Scene) -> str:
    """Members of a group with Receive Maximum 65,535 never ack; beside them an honest one with 1."""
    shared = ["$share/g/evil/job"]
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
    jobs = (publish("evil/job", b"j", qos=1, number=next(numbers)) for _ in range(3_000))
    sent = scene.peer("writer").exchange(jobs, scene.until)
    while scene.is_on:
        time.sleep(0.1)
    return f"of {sent:,} the honest member got {taken[0]:,} in {scene.seconds:.0f} s"


# -- HTTP


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _post(
    scene: Scene, path: str, body: bytes, media: str = "application/json", key: str | None = None
) -> int:
    """The status; 0 if the server has cut the call."""
    asked = http.client.HTTPConnection(*scene.http, timeout=60)
    try:
        asked.request("POST", path, body, {"Content-Type": media} | _bearer(key or scene.evil))
        return asked.getresponse().status
    except CUT:
        return 0
    finally:
        asked.close()


def http_batches(scene: Scene) -> str:
    """Batches of 10,000 messages and 16 MiB each, four at a time."""
    line = json.dumps({"topic": "evil/batch", "payload": "x" * 1_590, "deliver_in": "1h"}).encode() + b"\n"
    body = line * 10_000
    assert len(body) <= 16 << 20
    said: list[int] = []

    def send() -> None:
        while scene.is_on:
            said.append(_post(scene, "/v1/messages:batch", body, "application/x-ndjson"))

    together([send] * 4)
    return f"{said.count(201)} taken of {len(said)}"


def http_deep_json(scene: Scene) -> str:
    """A JSON body of 15 MiB that is nothing but depth, or a broken batch of small items."""
    size = 15 << 20
    bodies = [b"[" * size, b'{"topic":"evil/a","payload":' + b"[" * size, b"[" + b"0," * (size // 2) + b"0]"]
    said = []
    for body, path in cycle([(b, p) for b in bodies for p in ("/v1/messages", "/v1/messages:batch")]):
        if not scene.is_on:
            break
        said.append(_post(scene, path, body))
    return f"{len(said)} bodies: {sorted(set(said))}"


def many_headers(scene: Scene) -> str:
    """A POST of a message with 1.35 million headers, 15 MB, three times."""
    headers = ",".join(f'"{n:x}":""' for n in range(HEADERS))
    body = f'{{"topic":"evil/x","payload":1,"headers":{{{headers}}}}}'.encode()
    return f"{len(body) / 1e6:.0f} MB: {[_post(scene, '/v1/messages', body) for _ in range(3)]}"


def previews(scene: Scene) -> str:
    """Six clients that may only read ask for previews of a rule with 15,000 equal BYSETPOS."""
    rule = "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;BYSETPOS=" + ",".join(["1"] * 15_000)
    asked = {"rrule": rule, "timezone": "UTC", "topic": "evil/x", "payload": 1}
    said = Counter[int]()

    def ask() -> None:
        while scene.is_on:
            said[_post(scene, "/v1/schedules:preview", json.dumps(asked).encode(), key=scene.reader)] += 1

    together([ask] * PREVIEWS)
    return f"{dict(said)}"


CROWDS: tuple[Attack, ...] = (
    one_round,
    fan_out,
    bursts,
    subscribes_at_once,
    topic_tree,
    unread,
    greedy_members,
    http_batches,
    http_deep_json,
    many_headers,
    previews,
)
