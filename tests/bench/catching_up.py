"""Sessions that read what has passed.

replay       messages that were stored while a session was away, to that session: from its CONNACK to the
             last. Against mosquitto with as many queued; without it, against a sender of ready-made bytes.
structures   a filter that matches every tenth message of a slice, from the store: with shards per learned
             topic structure, against one where everything lies in structure 0.
"""

import asyncio
import time

from .due import bare_sender
from .http import send_all
from .mqtt import Publisher, connect
from .process import Address, Server, brokering, peering, serving
from .results import Env, Result
from .workload import batches, item, payload

IN_FLIGHT = 4
PAYLOAD = 200
EXPIRY_S = 3_600
KINDS = 10
NEVER = 1_000_000_000


async def replay(env: Env) -> list[Result]:
    count = env.sizes.replay
    seconds, bare, cpus = [], [], []
    with serving(env.folder / "data") as server:
        items = [item(f"bench/away/{n % 100}", payload(PAYLOAD)) for n in range(count)]
        requests = batches(items)
        for run in range(env.sizes.runs):
            await _leave(server.mqtt, f"away-{run}")
            await send_all(server.http, requests, IN_FLIGHT)
            await asyncio.sleep(0.3)
            cpu = server.cpu_s()
            seconds.append(await _return(server.mqtt, f"away-{run}", count))
            cpus.append(server.cpu_s() - cpu)
    with brokering(env.folder) as broker:
        for run in range(env.sizes.runs if broker else 0):
            assert broker is not None
            bare.append(await _broker_replay(broker[1], f"away-{run}", count))
    baseline = "mosquitto"
    if not bare:
        baseline = "bare sender"
        with peering(env.folder, "blast", str(count)) as peer:
            bare = [await bare_sender(peer, count, 1) for _ in range(env.sizes.runs)]
    more = {"msg_s": count / sorted(seconds)[len(seconds) // 2], "cpu_us": min(cpus) / count * 1e6}
    return [Result("replay", "s", seconds, baseline, bare, "< 1.5 at 100 k", more)]


async def _leave(at: Address, client_id: str) -> None:
    """Make a session that is interested, and go."""
    client = await connect(at, client_id, expiry_s=EXPIRY_S)
    await client.subscribe("bench/away/+", 1)
    client.close()
    await asyncio.sleep(0.1)


async def _return(at: Address, client_id: str, count: int) -> float:
    """Seconds from CONNACK to the last missed message. The session is ended."""
    client = await connect(at, client_id, expiry_s=EXPIRY_S, clean=False)
    started = time.monotonic()
    await client.until(count)
    client.close()
    await asyncio.sleep(0.1)
    (await connect(at, client_id)).close()
    return client.last - started


async def _broker_replay(at: Address, client_id: str, count: int) -> float:
    """The same at a broker, which queues plain publishes."""
    await _leave(at, client_id)
    probe = await connect(at, "probe")
    await probe.subscribe("bench/away/+", 1)
    publisher = Publisher(await connect(at, "source"), [probe], 1, 500)
    await publisher.send(b"bench/away/0", payload(PAYLOAD).encode(), count)
    publisher.close()
    probe.close()
    return await _return(at, client_id, count)


async def structures(env: Env) -> list[Result]:
    learned, more = await _tenth(env, "learned")
    flat, _ = await _tenth(env, "flat", shards__structure_above=NEVER)
    return [Result("structures", "s", learned, "structure 0 only", flat, "", more)]


async def _tenth(env: Env, name: str, **settings: object) -> tuple[list[float], dict[str, float]]:
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
