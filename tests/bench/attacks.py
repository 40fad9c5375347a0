"""What a hostile client does: each function one attack, its first line the story.

It has `Scene.seconds` and, where bytes are what hurts, a bound of its own on what it sends. What it returns
is a remark for the table. Being cut off by the server is a good end of an attack, no error.
"""

import random
import time
from collections.abc import Iterator
from itertools import count, cycle

from .raw import PINGREQ, ack, publish, subscribe, take
from .scene import Attack, Scene

RETAINED = 5_000
FAT = b"f" * 100_000
CHUNK = 256 << 10
TOO_MUCH = 256 << 20


def nothing(scene: Scene) -> str:
    """Nobody attacks: what the machine does to the honest client by itself."""
    time.sleep(scene.seconds / 2)
    return ""


# -- retained messages


def _retain(scene: Scene, size: int) -> None:
    numbers = cycle(range(1, 60_000))
    with scene.peer("keeper") as keeper:
        packets = (
            publish(f"evil/r/{n:05}", b"v" * size, qos=1, number=next(numbers), retain=True)
            for n in range(RETAINED)
        )
        keeper.exchange(packets, time.monotonic() + 60)
    scene.start()


def retained_subscribe(scene: Scene) -> str:
    """One SUBSCRIBE of a few KB over 5,000 retained topics, again and again."""
    _retain(scene, 10)
    reader = scene.peer("reader", sinks=True)
    same = subscribe(["evil/+/nope"] * 300)
    other = b"".join(subscribe([f"evil/+/{n}-{m}" for m in range(100)], 0, n + 3) for n in range(9))
    sent = reader.pour(same + other + subscribe(["evil/r/#"], 1, 2), scene.until, 64 << 10)
    return reader.sent(f"{sent:,} bytes")


def retained_one_at_a_time(scene: Scene) -> str:
    """5,000 retained messages at Receive Maximum 1: each PUBACK fetches one."""
    _retain(scene, 200)
    reader = scene.peer("reader", window=1)
    reader.send(subscribe(["evil/r/#"], 1))
    taken = 0
    while scene.is_on and taken < RETAINED:
        taken += take(reader)
    return f"{taken:,} taken"


# -- topics


def trie(scene: Scene) -> str:
    """1,000 filters of 255 bytes, each level `+` or `a`, and publishes to new topics as deep."""
    chance = random.Random(1)
    peer = scene.peer("subscriber")
    for _ in range(10):
        peer.subscribe(
            ["evil/" + "/".join(chance.choice("+a") for _ in range(125)) + "/b" for _ in range(100)]
        )
    scene.sink.add(peer.socket)
    scene.start()
    writer, sent = scene.peer("writer", sinks=True), 0
    while scene.is_on and sent < 2_000:
        writer.send(publish("evil/" + "a/" * 126 + str(sent)))
        sent += 1
        if sent % 10 == 0:
            time.sleep(0.02)
    return f"{sent:,} publishes"


def long_stored_topics(scene: Scene) -> str:
    """Topics of 60 KB, each a new one, due in an hour."""
    writer = scene.peer("writer")
    packets = (
        publish(f"$delayed/3600/evil/{n:08}/" + "t" * 60_000, b"x", qos=1, number=n % 60_000 + 1)
        for n in count()
    )
    return f"{writer.exchange(packets, scene.until):,} taken"


# -- large messages


def slow_reader_qos_0(scene: Scene) -> str:
    """A subscriber that never reads, of 100 KB messages at QoS 0."""
    return _slow_reader(scene, 0)


def slow_reader_qos_1(scene: Scene) -> str:
    """A subscriber that never reads, of 100 KB messages at QoS 1."""
    return _slow_reader(scene, 1)


def _slow_reader(scene: Scene, qos: int) -> str:
    reader = scene.peer("reader", lasting=qos > 0)
    reader.subscribe(["evil/fat"], qos)
    writer = scene.peer("writer", sinks=not qos)
    if not qos:
        return f"{writer.pour(publish('evil/fat', FAT), scene.until, TOO_MUCH) / len(FAT):,.0f} sent"
    return f"{writer.exchange(_fat(qos), scene.until):,} acked"


def _fat(qos: int) -> Iterator[bytes]:
    numbers = cycle(range(1, 60_000))
    for _ in range(TOO_MUCH // len(FAT)):
        yield publish("evil/fat", FAT, qos=qos, number=next(numbers))


# -- packets


def _properties(properties: bytes) -> bytes:
    return publish("evil/p", b"", properties=properties)


def many_properties(scene: Scene) -> str:
    """PUBLISH with 1,000 user properties, as many as there may be."""
    some = b"".join(b"\x26\0\5k%04d\0\1v" % n for n in range(1_000))
    writer = scene.peer("writer", sinks=True)
    sent = writer.pour(_properties(some), scene.until)
    return writer.sent(f"{sent >> 20} MiB")


def pings(scene: Scene) -> str:
    """PINGREQ in chunks of 256 KiB."""
    return _chunks(scene, PINGREQ)


def unknown_acks(scene: Scene) -> str:
    """PUBACK of packet ids that are not there, in chunks of 256 KiB."""
    return _chunks(scene, ack(0x40, 9))


def tiny_publishes(scene: Scene) -> str:
    """QoS 0 publishes of 11 bytes in chunks of 256 KiB."""
    return _chunks(scene, publish("evil/t"))


def _chunks(scene: Scene, one: bytes) -> str:
    writer = scene.peer("writer", sinks=True)
    sent = writer.pour(one * (CHUNK // len(one)), scene.until)
    return writer.sent(f"{sent // len(one):,} packets")


def refused_publishes(scene: Scene) -> str:
    """A client whose id has 60 KB publishes what is refused: what is logged of it?"""
    writer = scene.peer("evil\n" + "x" * 60_000, sinks=True)
    sent = writer.pour(publish("$SYS/x") * 1_000, scene.until, 128 << 10)
    return writer.sent(f"{sent:,} bytes")


ATTACKS: tuple[Attack, ...] = (
    nothing,
    retained_subscribe,
    retained_one_at_a_time,
    trie,
    long_stored_topics,
    slow_reader_qos_0,
    slow_reader_qos_1,
    many_properties,
    pings,
    unknown_acks,
    tiny_publishes,
    refused_publishes,
)
