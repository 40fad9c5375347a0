"""Plain publishes, as of any MQTT broker: from one publisher to one subscriber, and to ten.

Rates are deliveries a second. The publisher never runs further ahead than the slowest subscriber's window, so
that nothing is dropped at QoS 0 and nobody falls behind at QoS 1 and 2. Against mosquitto, same clients.
"""

from contextlib import ExitStack
from functools import partial
from itertools import product

from .mqtt import Publisher, connect, subscribed
from .peers.mosquitto import MOSQUITTO
from .process import Address, Process
from .race import Entry, Sample, contenders, peer, race, spent
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
    results = []
    with ExitStack() as stack:
        brokers: list[tuple[str, str, Process, Address]] = [
            (name, SYNCED, server, server.mqtt) for name, server in stack.enter_context(contenders(env))
        ]
        found = peer(env, stack, MOSQUITTO)
        if found is not None:
            brokers.append(("mosquitto", MOSQUITTO.ack, *found))
        for (shape, subscribers), qos in product(SHAPES, (0, 1, 2)):
            count = env.sizes.plain if subscribers == 1 else env.sizes.fan_out
            if qos == 2:
                count //= QOS_2_LESS
            entries = [
                Entry(name, partial(_run, process, at, subscribers, qos, count), ack)
                for name, ack, process, at in brokers
            ]
            results += await race(env, f"{shape} qos {qos}", "msg/s", entries)
    return results


async def _run(process: Process, at: Address, subscribers: int, qos: int, count: int, _: int) -> Sample:
    """Deliveries a second, and the server's processor time of each in us."""
    async with subscribed(at, "to", subscribers, lambda _: "bench/plain", qos) as clients:
        publisher = Publisher(await connect(at, "from"), clients, qos, WINDOW)
        text = payload(PAYLOAD).encode()
        await publisher.send(b"bench/plain", text, min(count, WINDOW))
        with spent(process) as found:
            await publisher.send(b"bench/plain", text, count)
        publisher.close()
    return found.by(count * subscribers)
