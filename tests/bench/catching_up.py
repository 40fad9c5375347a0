"""Sessions that read what has passed.

replay       messages that were stored while a session was away, to that session: from its CONNACK to the
             last. Against mosquitto with as many queued; without it, against a sender of ready-made bytes.
structures   a filter that matches every tenth message of a slice, from the store: with shards per learned
             topic structure, against one where everything lies in structure 0.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from .due import bare_sender
from .http import send_all
from .mqtt import Publisher, connect
from .peers.mosquitto import MOSQUITTO
from .process import Address, Process, Server, peering, serving
from .race import Entry, Sample, peer, race, spent
from .results import Env, Result
from .workload import batches, item, payload

IN_FLIGHT = 4
PAYLOAD = 200
EXPIRY_S = 3_600
KINDS = 10
NEVER = 1_000_000_000
MIB = 1 << 20
SYNCED = "on disk, fsynced"
TARGET = "below mosquitto, +10 MiB"


async def replay(env: Env) -> list[Result]:
    """Each round has servers of its own, so that what their memory grows by is that of one round."""
    count = env.sizes.replay
    requests = batches([item(f"bench/away/{n % 100}", payload(PAYLOAD)) for n in range(count)])
    names = {"fasti": ()} | ({"before": (env.before,)} if env.before is not None else {})
    entries = [
        Entry(name, partial(_ours, env, name, requests, roots), SYNCED) for name, roots in names.items()
    ]
    with ExitStack() as stack:
        if peer(env, stack, MOSQUITTO) is not None:
            entries.append(Entry("mosquitto", partial(_broker, env, count), MOSQUITTO.ack))
            return await race(env, "replay", "s", entries, target=TARGET, less=True, also=[("rss", "MiB")])
        bare = stack.enter_context(peering(env.folder, "blast", str(count)))
        entries.append(Entry("bare sender", partial(_bare, bare, count), is_floor=True))
        return await race(env, "replay", "s", entries, target=TARGET, less=True)


async def _ours(env: Env, name: str, requests: Sequence[bytes], roots: tuple[Path, ...], run: int) -> Sample:
    with serving(env.folder / f"{name}-{run}", *roots) as server:
        if not roots:
            env.seen.build = server.build()
        return await _away(
            server, server.mqtt, partial(send_all, server.http, requests, IN_FLIGHT), env.sizes.replay
        )


async def _broker(env: Env, count: int, _: int) -> Sample:
    with MOSQUITTO.running(env.folder) as broker:
        assert broker is not None
        return await _away(*broker, partial(_queue, broker.at, count), count)


async def _away(process: Process, at: Address, fill: Callable[[], Awaitable[object]], count: int) -> Sample:
    """`rss`: by how much resident memory has grown at most, MiB; `rss_back`: from when all waited."""
    await _leave(at, "away")
    empty = process.rss_bytes()
    process.forget_peak()
    await fill()
    await asyncio.sleep(0.3)
    full = process.rss_bytes()
    with spent(process) as found:
        seconds = await _return(at, "away", count)
    more = found.by(count).more | {
        "msg_s": count / seconds,
        "rss": (process.peak_bytes() - empty) / MIB,
        "rss_back": (process.rss_bytes() - full) / MIB,
    }
    return Sample(seconds, more)


async def _bare(at: Address, count: int, _: int) -> Sample:
    return Sample(await bare_sender(at, count, 1))


async def _leave(at: Address, client_id: str) -> None:
    """Make a session that is interested, and go."""
    client = await connect(at, client_id, expiry_s=EXPIRY_S)
    await client.subscribe("bench/away/+", 1)
    client.close()
    await asyncio.sleep(0.1)


async def _return(at: Address, client_id: str, count: int) -> float:
    """Seconds from CONNACK to the last missed message."""
    client = await connect(at, client_id, expiry_s=EXPIRY_S, clean=False)
    started = time.monotonic()
    await client.until(count)
    client.close()
    return client.last - started


async def _queue(at: Address, count: int) -> None:
    """Plain publishes, which a broker queues; a subscriber beside shows when all are there."""
    probe = await connect(at, "probe")
    await probe.subscribe("bench/away/+", 1)
    publisher = Publisher(await connect(at, "source"), [probe], 1, 500)
    await publisher.send(b"bench/away/0", payload(PAYLOAD).encode(), count)
    publisher.close()
    probe.close()


async def structures(env: Env) -> list[Result]:
    learned, more = await _tenth(env, "learned")
    flat, _ = await _tenth(env, "flat", shards__structure_above=NEVER)
    return [Result("structures", "s", learned, "structure 0 only", flat, "", more)]


async def _tenth(env: Env, name: str, **settings: int) -> tuple[list[float], dict[str, float]]:
    """Seconds to replay a tenth of a slice, each run to a new session."""
    count = env.sizes.slice
    seconds, cpus = [], []
    with serving(env.folder / name, **settings) as server:
        await _fill(server, count)
        for run in range(env.sizes.runs):
            cpu = server.cpu_s()
            client = await connect(server.mqtt, f"tenth-{run}")
            started = time.monotonic()
            await client.subscribe("bench/+/kind-3/value", 1, replay_from="PT6H")
            await client.until(count // KINDS)
            client.close()
            seconds.append(client.last - started)
            cpus.append(server.cpu_s() - cpu)
    return seconds, {"cpu_us": min(cpus) / (count // KINDS) * 1e6}


async def _fill(server: Server, count: int) -> None:
    """Due at once, on many topics of ten structures."""
    text = payload(PAYLOAD)
    step = 50_000
    for first in range(0, count, step):
        numbers = range(first, min(count, first + step))
        items = [item(f"bench/{n // KINDS % 5_000}/kind-{n % KINDS}/value", text) for n in numbers]
        await send_all(server.http, batches(items), IN_FLIGHT)
    await asyncio.sleep(0.3)
