"""What connections cost that say nothing: resident memory of the server for each, and how fast they come.

idle       5,000 MQTT 5 clients without sessions connect, each with one subscription, and stay; then a message
           goes to all of them, so that they are seen to be held. Memory is what the process has more than
           before, by the number of clients; buffers of the kernel are not in it. Against mosquitto.
"""

import asyncio
import gc
import time

from server.codec.publish import publish_parts
from server.net.files import allow_open_files

from .mqtt import LEVEL, Client, connect
from .peers.mosquitto import mosquitto
from .process import Address, Process, serving
from .results import Env, Result

AT_ONCE = 100
TOPIC = "idle"
SETTLE_S = 1.0


async def idle(env: Env) -> list[Result]:
    count = env.sizes.idle
    allow_open_files(count)
    ours: list[float] = []
    seconds: list[float] = []
    theirs: list[float] = []
    for run in range(env.sizes.runs):
        with serving(
            env.folder / f"data-{run}", limits__connect_rate=0, limits__connections=count + 10
        ) as one:
            kib, spent = await _held(one, one.mqtt, count)
        ours.append(kib)
        seconds.append(spent)
        with mosquitto(env.folder) as found:
            if found is not None:
                theirs.append((await _held(found[0], found[1], count))[0])
    name = f"{count:,} idle connections"
    more = {"connect_s": sorted(seconds)[len(seconds) // 2]}
    base = "mosquitto" if theirs else ""
    return [Result(name, "KiB each", ours, base, theirs, "< 20", more)]


async def _held(server: Process, at: Address, count: int) -> tuple[float, float]:
    """(KiB for each connection, seconds until all were there)."""
    before = server.rss_bytes()
    started = time.monotonic()
    clients: list[Client] = []
    for first in range(0, count, AT_ONCE):
        names = range(first, min(first + AT_ONCE, count))
        clients += await asyncio.gather(*[_one(at, number) for number in names])
    spent = time.monotonic() - started
    await asyncio.sleep(SETTLE_S)
    each = (server.rss_bytes() - before) / 1024 / count
    head, tail = publish_parts(LEVEL, TOPIC.encode(), b"still there?", 0, False, False)
    clients[0].transport.write(head + tail)
    await asyncio.gather(*[client.until(1) for client in clients])
    for client in clients:
        client.transport.abort()
    del clients
    gc.collect()
    return each, spent


async def _one(at: Address, number: int) -> Client:
    client = await connect(at, f"idle-{number}")
    await client.subscribe(TOPIC, 1)
    return client
