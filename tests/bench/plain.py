"""Plain publishes, as of any MQTT broker: from one publisher to one subscriber, and to ten.

Rates are deliveries a second. The publisher never runs further ahead than the slowest subscriber's window, so
that nothing is dropped at QoS 0 and nobody falls behind at QoS 1 and 2. Against mosquitto, same clients.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack

from .mqtt import Publisher, connect
from .peers import mosquitto
from .process import Address, Process
from .race import Entry, Sample, contenders, peer, race
from .results import Env, Result
from .workload import payload

PAYLOAD = 200
FAN_OUT = 10
WINDOW = 500
QOS_2_LESS = 4
"""It has four packets for two, at both ends."""
SHAPES = (("p2p", 1), ("fan-out", FAN_OUT))
SYNCED = "on disk, fsynced, at QoS 1 and 2"


async def plain(env: Env) -> list[Result]:
    return await shapes(env, [(*shape, qos) for shape in SHAPES for qos in (0, 1, 2)])


async def shapes(env: Env, wanted: Sequence[tuple[str, int, int]]) -> list[Result]:
    """One after another: name, subscribers, QoS."""
    results = []
    with ExitStack() as stack:
        brokers: list[tuple[str, str, Process, Address]] = [
            (name, SYNCED, server, server.mqtt) for name, server in stack.enter_context(contenders(env))
        ]
        found = peer(env, stack, "mosquitto", mosquitto.mosquitto)
        if found is not None:
            brokers.append(("mosquitto", mosquitto.ACK, *found))
        for shape, subscribers, qos in wanted:
            count = env.sizes.plain if subscribers == 1 else env.sizes.fan_out
            if qos == 2:
                count //= QOS_2_LESS
            entries = [_entry(*broker, subscribers, qos, count) for broker in brokers]
            results += await race(env, f"{shape} qos {qos}", "msg/s", entries)
    return results


def _entry(
    name: str, ack: str, process: Process, at: Address, subscribers: int, qos: int, count: int
) -> Entry:
    async def round_(_: int) -> Sample:
        return await _run(process, at, subscribers, qos, count)

    return Entry(name, round_, ack)


async def _run(process: Process, at: Address, subscribers: int, qos: int, count: int) -> Sample:
    """Deliveries a second, and the server's processor time of each in us."""
    clients = [await connect(at, f"to-{n}") for n in range(subscribers)]
    for client in clients:
        await client.subscribe("bench/plain", qos)
    publisher = Publisher(await connect(at, "from"), clients, qos, WINDOW)
    text = payload(PAYLOAD).encode()
    await publisher.send(b"bench/plain", text, min(count, WINDOW))
    cpu, started = process.cpu_s(), time.perf_counter()
    await publisher.send(b"bench/plain", text, count)
    seconds, cpu = time.perf_counter() - started, process.cpu_s() - cpu
    publisher.close()
    for client in clients:
        client.close()
    deliveries = count * subscribers
    return Sample(deliveries / seconds, {"cpu_us": cpu / deliveries * 1e6})
