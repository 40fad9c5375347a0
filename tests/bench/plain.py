"""Plain publishes, as of any MQTT broker: from one publisher to one subscriber, and to ten.

Rates are deliveries a second. The publisher never runs further ahead than the slowest subscriber's window, so
that nothing is dropped at QoS 0 and nobody falls behind at QoS 1 and 2. Against mosquitto, same clients.
"""

import time

from .mqtt import Publisher, connect
from .process import Address, Process, brokering, serving
from .results import Env, Result
from .workload import payload

PAYLOAD = 200
FAN_OUT = 10
WINDOW = 500
QOS_2_LESS = 4
"""It has four packets for two, at both ends."""
SHAPES = (("p2p", 1), ("fan-out", FAN_OUT))


async def plain(env: Env) -> list[Result]:
    results = []
    with serving(env.folder / "data") as server, brokering(env.folder) as broker:
        for shape, subscribers in SHAPES:
            count = env.sizes.plain if subscribers == 1 else env.sizes.fan_out
            for qos in (0, 1, 2):
                if qos == 2:
                    count //= QOS_2_LESS
                found = [await _run(server, server.mqtt, subscribers, qos, count) for _ in _runs(env)]
                base = [await _run(*broker, subscribers, qos, count) for _ in _runs(env)] if broker else []
                more = {"cpu_us": min(cpu for _, cpu in found)}
                rates, others = [rate for rate, _ in found], [rate for rate, _ in base]
                results.append(Result(f"{shape} qos {qos}", "msg/s", rates, "mosquitto", others, "", more))
    return results


def _runs(env: Env) -> range:
    return range(env.sizes.runs)


async def _run(process: Process, at: Address, subscribers: int, qos: int, count: int) -> tuple[float, float]:
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
    return deliveries / seconds, cpu / deliveries * 1e6
