"""How long the server's loop is held while the work of the table goes on: what a PING waits for its answer.

A process of its own pings each ms, on a connection that does nothing else, and tells what 99 % of its pings
and the longest one waited. A hold of 20 ms is felt by 20 of them: each ping that could not be sent meanwhile
counts as well, with what was left of the wait.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from select import select

from .due import drained_by
from .http import send_all
from .mqtt import Publisher, connect
from .process import ROOT, Address, Server, address, serving
from .raw import PINGREQ, Peer
from .results import Env, Result, percentile
from .workload import batches, item, next_month, now_ms, payload

PAYLOAD = 200
IN_FLIGHT = 4
TOPICS = 4
WINDOW = 1_000
SMALL = 300
"""Items of a batch that is answered at the front."""
LARGEST = 10_000
"""Items of the largest batch."""
TICK_S = 0.001
TARGET = "max < 20"

Work = Callable[[Env, Server, "Felt"], Awaitable[None]]


class Felt:
    """What the pings of some stretches of work have found."""

    def __init__(self, at: Address) -> None:
        self._at = at
        self.waits_ms: list[float] = []

    @contextmanager
    def while_it_runs(self) -> Iterator[None]:
        """Pings in another process, from here on to the end."""
        arguments = [sys.executable, "-m", "tests.bench.holding", "{}:{}".format(*self._at)]
        with subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == b"pinging\n"
            yield
            other.stdin.close()
            self.waits_ms += json.loads(other.stdout.read())


async def holds(env: Env) -> list[Result]:
    results = []
    with serving(env.folder / "data") as server:
        env.seen.build = server.build()
        for name, work in WORKS.items():
            felt = Felt(server.mqtt)
            for _ in range(env.sizes.runs):
                await work(env, server, felt)
            more = {"max_ms": max(felt.waits_ms), "p50_ms": percentile(felt.waits_ms, 0.5)}
            p99 = percentile(felt.waits_ms, 0.99)
            results.append(Result(f"held: {name}", "ms", [p99], target=TARGET, more=more, less=True))
    return results


async def _nothing(env: Env, _: Server, felt: Felt) -> None:
    with felt.while_it_runs():
        await asyncio.sleep(env.sizes.lead_s)


async def _batches(env: Env, server: Server, felt: Felt) -> None:
    requests = batches(next_month(env.sizes.batch, PAYLOAD, seed=now_ms()))
    with felt.while_it_runs():
        await send_all(server.http, requests, IN_FLIGHT)


async def _small(env: Env, server: Server, felt: Felt) -> None:
    requests = batches(_keyed(env.sizes.batch // 2), SMALL)
    with felt.while_it_runs():
        await send_all(server.http, requests, IN_FLIGHT)


async def _known(env: Env, server: Server, felt: Felt) -> None:
    """All of them are sent again."""
    requests = batches(_keyed(env.sizes.batch // 2))
    await send_all(server.http, requests, IN_FLIGHT)
    with felt.while_it_runs():
        await send_all(server.http, requests, IN_FLIGHT)


async def _largest(env: Env, server: Server, felt: Felt) -> None:
    requests = batches(next_month(env.sizes.batch, PAYLOAD, seed=now_ms()), LARGEST)
    with felt.while_it_runs():
        await send_all(server.http, requests, 1)


async def _largest_keyed(env: Env, server: Server, felt: Felt) -> None:
    requests = batches(_keyed(env.sizes.batch), LARGEST)
    with felt.while_it_runs():
        await send_all(server.http, requests, 1)


def _keyed(count: int) -> list[bytes]:
    """Items, each with a key of its own."""
    run, items = now_ms(), next_month(count, PAYLOAD, seed=now_ms())
    return [one[:-1] + b',"key":"%d-%d"}' % (run, n) for n, one in enumerate(items)]


async def _drain(env: Env, server: Server, felt: Felt) -> None:
    await _drained(env, server, felt, "")


async def _group(env: Env, server: Server, felt: Felt) -> None:
    await _drained(env, server, felt, "$share/held/")


async def _drained(env: Env, server: Server, felt: Felt, group: str) -> None:
    count, run = env.sizes.drain, now_ms()
    clients = [await connect(server.mqtt, f"held-{run}-{n}") for n in range(TOPICS)]
    for n, client in enumerate(clients):
        await client.subscribe(f"{group}held/{run}/{'+' if group else n}", 1)
    due = now_ms() + int((env.sizes.lead_s + count / 40_000) * 1000)
    text = payload(PAYLOAD)
    await send_all(
        server.http, batches([item(f"held/{run}/{n % TOPICS}", text, due) for n in range(count)]), IN_FLIGHT
    )
    await asyncio.sleep(max(0.0, due / 1000 - time.time() - 0.3))
    with felt.while_it_runs():
        await drained_by(server, clients, due, count)
    for client in clients:
        client.close()


async def _plain(env: Env, server: Server, felt: Felt) -> None:
    await _published(server, felt, 1, env.sizes.plain)


async def _fan_out(env: Env, server: Server, felt: Felt) -> None:
    await _published(server, felt, 10, env.sizes.fan_out)


async def _published(server: Server, felt: Felt, subscribers: int, count: int) -> None:
    clients = [await connect(server.mqtt, f"held-to-{n}") for n in range(subscribers)]
    for client in clients:
        await client.subscribe("held/plain", 1)
    publisher = Publisher(await connect(server.mqtt, "held-from"), clients, 1, WINDOW)
    with felt.while_it_runs():
        await publisher.send(b"held/plain", payload(PAYLOAD).encode(), count)
    publisher.close()
    for client in clients:
        client.close()


async def _replay(env: Env, server: Server, felt: Felt) -> None:
    topic, name, count = f"held/away/{now_ms()}", f"held-away-{now_ms()}", env.sizes.replay
    client = await connect(server.mqtt, name, expiry_s=3_600)
    await client.subscribe(topic, 1)
    client.close()
    await asyncio.sleep(0.1)
    await send_all(server.http, batches([item(topic, payload(PAYLOAD)) for _ in range(count)]), IN_FLIGHT)
    with felt.while_it_runs():
        client = await connect(server.mqtt, name, expiry_s=3_600, clean=False)
        await client.until(count)
    client.close()


WORKS: dict[str, Work] = {
    "nothing": _nothing,
    "batches of 1,000": _batches,
    "batches of 300, each with a key": _small,
    "batches of 1,000, each with a known key": _known,
    "batches of 10,000, one at a time": _largest,
    "batches of 10,000, each with a key, one at a time": _largest_keyed,
    "all due at once, four topics": _drain,
    "all due at once, one group": _group,
    "plain to one, QoS 1": _plain,
    "plain to ten, QoS 1": _fan_out,
    "replay": _replay,
}


def ping(at: Address) -> list[float]:
    """Until the standard input ends; what each waited, ms."""
    peer, waits = Peer(at, "held-pings"), list[float]()
    print("pinging", flush=True)
    while not select([sys.stdin], [], [], 0)[0]:
        started = time.perf_counter()
        peer.send(PINGREQ)
        peer.read()
        wait = time.perf_counter() - started
        waits += [(wait - missed * TICK_S) * 1000 for missed in range(1 + int(wait / TICK_S))]
        time.sleep(max(0.0, TICK_S - wait))
    return waits


def main(arguments: Sequence[str]) -> int:
    try:
        print(json.dumps(ping(address(arguments[0]))), flush=True)
    except (OSError, EOFError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
