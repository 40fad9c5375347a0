"""How long the server's loop is held while the work of the table goes on: what a PING waits for its answer.

An honest client (honest.py) pings each ms, on a connection that does nothing else: what 99 % of its pings and
the longest one waited. A hold of 20 ms is felt by 20 of them: each ping that could not be sent meanwhile
counts as well, with what was left of the wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from .due import at_once, drained_by
from .honest import Crowd, beside
from .http import send_all
from .mqtt import Publisher, connect, subscribed
from .process import Server, serving
from .results import Env, Result, percentile
from .workload import batches, item, next_month, now_ms, payload

PAYLOAD = 200
IN_FLIGHT = 4
TOPICS = 4
WINDOW = 1_000
FAN_OUT = 10
LARGEST = 10_000
"""Items of the largest batch."""
TICK_S = 0.001
TARGET = "max < 20"

Work = Callable[[Env, Server, "Pings"], Awaitable[None]]


class Pings:
    """What the pings of some stretches of work have found."""

    def __init__(self, server: Server) -> None:
        self._crowd = Crowd(server.mqtt, server.http, ("ping",), tick_s=TICK_S)
        self.waits_ms: list[float] = []

    @contextmanager
    def while_it_runs(self, from_ms: int = 0) -> Iterator[None]:
        """Pings in another process, from here on, or from that time, to the end."""
        with beside(self._crowd, from_ms) as found:
            yield
            ((felt,),) = found().values()
        assert not felt.lost
        self.waits_ms += felt.ticks_ms


async def holds(env: Env) -> list[Result]:
    results = []
    with serving(env.folder / "data") as server:
        env.seen.build = server.build()
        for name, work in WORKS.items():
            pings = Pings(server)
            for _ in range(env.sizes.runs):
                await work(env, server, pings)
            more = {"max_ms": max(pings.waits_ms), "p50_ms": percentile(pings.waits_ms, 0.5)}
            p99 = percentile(pings.waits_ms, 0.99)
            results.append(Result(f"held: {name}", "ms", [p99], target=TARGET, more=more, less=True))
    return results


async def _nothing(env: Env, _: Server, pings: Pings) -> None:
    with pings.while_it_runs():
        await asyncio.sleep(env.sizes.lead_s)


async def _batches(env: Env, server: Server, pings: Pings) -> None:
    requests = batches(next_month(env.sizes.batch, PAYLOAD, seed=now_ms()))
    with pings.while_it_runs():
        await send_all(server.http, requests, IN_FLIGHT)


async def _largest_keyed(env: Env, server: Server, pings: Pings) -> None:
    """Each item has a key of its own."""
    run, items = now_ms(), next_month(env.sizes.batch, PAYLOAD, seed=now_ms())
    keyed = [one[:-1] + b',"key":"%d-%d"}' % (run, n) for n, one in enumerate(items)]
    requests = batches(keyed, LARGEST)
    with pings.while_it_runs():
        await send_all(server.http, requests, 1)


async def _drain(env: Env, server: Server, pings: Pings) -> None:
    run = now_ms()
    async with subscribed(server.mqtt, f"held-{run}", TOPICS, lambda n: f"held/{run}/{n}") as clients:
        due = await at_once(env, server, lambda n: f"held/{run}/{n % TOPICS}")
        with pings.while_it_runs(due - 300):
            await drained_by(server, clients, due, env.sizes.drain)


async def _fan_out(env: Env, server: Server, pings: Pings) -> None:
    async with subscribed(server.mqtt, "held-to", FAN_OUT, lambda _: "held/plain") as clients:
        publisher = Publisher(await connect(server.mqtt, "held-from"), clients, 1, WINDOW)
        with pings.while_it_runs():
            await publisher.send(b"held/plain", payload(PAYLOAD).encode(), env.sizes.fan_out)
        publisher.close()


async def _replay(env: Env, server: Server, pings: Pings) -> None:
    topic, name, count = f"held/away/{now_ms()}", f"held-away-{now_ms()}", env.sizes.replay
    client = await connect(server.mqtt, name, expiry_s=3_600)
    await client.subscribe(topic, 1)
    client.close()
    await asyncio.sleep(0.1)
    await send_all(server.http, batches([item(topic, payload(PAYLOAD)) for _ in range(count)]), IN_FLIGHT)
    with pings.while_it_runs():
        client = await connect(server.mqtt, name, expiry_s=3_600, clean=False)
        await client.until(count)
    client.close()


WORKS: dict[str, Work] = {
    "nothing": _nothing,
    "batches of 1,000": _batches,
    "batches of 10,000, each with a key, one at a time": _largest_keyed,
    "all due at once, four topics": _drain,
    "plain to ten, QoS 1": _fan_out,
    "replay": _replay,
}
