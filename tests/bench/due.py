"""What happens when messages become due.

lateness   1,000 messages a second at random instants, one QoS 1 subscriber: how long after its due time
           each arrives at the client. Early is counted apart and must be 0. Against the timers of a bare
           loop in the client's process.
drain      many messages due in one instant on four topics, each with a QoS 1 subscriber that acks: from
           the due instant to the last. Against a sender of ready-made bytes to as many subscribers.
"""

import asyncio
import random
import time

from .http import send_all
from .mqtt import Client, connect
from .process import Address, Server, peering, serving
from .results import Env, Result, percentile
from .workload import batches, instant, item, now_ms, payload

IN_FLIGHT = 4
PAYLOAD = 200
TOPICS = 4
BARE_S = 5


async def lateness(env: Env) -> list[Result]:
    found: list[list[float]] = []
    with serving(env.folder / "data") as server:
        for run in range(env.sizes.runs):
            found.append(await lateness_once(env, server, run))
    bare = await _bare_timers(env.sizes.late_per_s, min(env.sizes.late_s, BARE_S))
    late = [[max(0.0, ms) for ms in run] for run in found]
    p99 = [percentile(run, 0.99) for run in late]
    every = [ms for run in late for ms in run]
    more = {
        "p50_ms": percentile(every, 0.5),
        "max_ms": max(every),
        "early": float(sum(ms < 0 for run in found for ms in run)),
    }
    bare_p99 = [percentile(bare, 0.99)]
    return [Result("lateness p99", "ms", p99, "bare timers", bare_p99, "< 5, early 0", more)]


async def lateness_once(env: Env, server: Server, run: int) -> list[float]:
    """How late each message came, ms; the payload begins with when it was due."""
    count = env.sizes.late_per_s * env.sizes.late_s
    late: list[float] = []

    def look(data: bytes, _: int, stop: int) -> None:
        late.append(time.time_ns() / 1e6 - int(data[stop - PAYLOAD : stop - PAYLOAD + 13]))

    client = await connect(server.mqtt, f"late-{run}", look=look)
    await client.subscribe(f"bench/late/{run}", 1)
    chance = random.Random(run)
    start = now_ms() + int(env.sizes.lead_s * 1000)
    dues = [start + chance.randrange(env.sizes.late_s * 1000) for _ in range(count)]
    rest = payload(PAYLOAD - 13)
    await send_all(
        server.http, batches([item(f"bench/late/{run}", f"{due}{rest}", due) for due in dues]), IN_FLIGHT
    )
    assert now_ms() < start, "scheduling took longer than lead_s"
    await client.until(count, env.sizes.lead_s + env.sizes.late_s + 30)
    client.close()
    return late


async def _bare_timers(per_s: int, seconds: int) -> list[float]:
    """How late a loop that does nothing else calls back, ms."""
    loop = asyncio.get_running_loop()
    chance = random.Random(0)
    late: list[float] = []
    start = loop.time() + 0.1
    for _ in range(per_s * seconds):
        due = start + chance.random() * seconds
        loop.call_at(due, lambda due=due: late.append(max(0.0, loop.time() - due) * 1000))  # type: ignore[misc]
    await asyncio.sleep(seconds + 0.15)
    return late


async def drain(env: Env) -> list[Result]:
    count = env.sizes.drain
    rates, bare, cpus = [], [], []
    with serving(env.folder / "data") as server:
        for run in range(env.sizes.runs):
            seconds, cpu = await _drain(env, server, run)
            rates.append(count / seconds)
            cpus.append(cpu)
    with peering(env.folder, "blast", str(count // TOPICS)) as peer:
        for _ in range(env.sizes.runs):
            bare.append(count / await bare_sender(peer, count // TOPICS, TOPICS))
    more = {"cpu_us": min(cpus) / count * 1e6}
    return [Result("drain", "msg/s", rates, "bare sender", bare, "60 k", more)]


async def _drain(env: Env, server: Server, run: int) -> tuple[float, float]:
    """Seconds from the due instant to the last ack, and the server's processor seconds."""
    count = env.sizes.drain
    clients = [await connect(server.mqtt, f"drain-{run}-{n}") for n in range(TOPICS)]
    for n, client in enumerate(clients):
        await client.subscribe(f"bench/{run}/{n}", 1)
    text = payload(PAYLOAD)
    # 40,000 a second is slow: there is to be a pause between the last answer and due.
    due = now_ms() + int((env.sizes.lead_s + count / 40_000) * 1000)
    at = instant(due)
    items = [
        f'{{"topic":"bench/{run}/{n % TOPICS}","payload":"{text}","deliver_at":"{at}"}}'.encode()
        for n in range(count)
    ]
    await send_all(server.http, batches(items), IN_FLIGHT)
    left_s = due / 1000 - time.time()
    assert left_s > 0, "scheduling took until due"
    await asyncio.sleep(left_s)
    cpu, started = server.cpu_s(), time.monotonic()
    await asyncio.gather(*[client.until(count // TOPICS) for client in clients])
    for client in clients:
        client.close()
    return max(client.last for client in clients) - started, server.cpu_s() - cpu


async def bare_sender(peer: Address, count: int, subscribers: int) -> float:
    """Seconds in which a sender that does nothing else gives `count` messages to each subscriber."""
    clients = [await connect(peer, f"bare-{n}") for n in range(subscribers)]
    started = time.monotonic()
    await asyncio.gather(*[_take(client, count) for client in clients])
    for client in clients:
        client.close()
    return time.monotonic() - started


async def _take(client: Client, count: int) -> None:
    await client.subscribe("bench/drain/0", 1)
    await client.until(count)
