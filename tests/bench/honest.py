"""Honest clients beside an attack: `python -m tests.bench.honest MQTT HTTP KEY`.

Three, of a broker without HTTP (port 0) the first two, each of which asks for something every 10 ms and waits
for it:

    ping      PINGREQ on a connection
    p2p       a publish at QoS 0 from one connection to another
    schedule  a POST of one message that is due in two hours, on a kept connection

It says `ready` when all are connected, measures until the standard input ends, and says what it found: a JSON
object with `Felt` of each. A stall counts for every tick that it covers, not once. A client that was cut
connects again; what it waits for that counts as well.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count

from .process import address
from .raw import PINGREQ, PINGRESP, PUBLISH, Address, Peer, publish
from .results import percentile
from .scene import CUT, together

TICK_S = 0.01
AGAIN_S = 0.1
"""Until a client that was cut connects again."""

Ask = Callable[[], bool]
"""Ask once; whether it was granted. Raises OSError, EOFError, HTTPException when it was cut."""
Client = Callable[[Address, Address, str], Ask]
"""Connect to the server, its MQTT and HTTP, with a key."""


@dataclass(frozen=True, slots=True)
class Felt:
    """What one honest client felt."""

    p99_ms: float
    max_ms: float
    lost: int
    """Calls that were refused or not answered, and connections that were cut or refused."""


def ping(mqtt: Address, http: Address, key: str) -> Ask:
    peer = Peer(mqtt, "honest-ping", key)

    def ask() -> bool:
        peer.send(PINGREQ)
        return peer.read()[0] >> 4 == PINGRESP

    return ask


def p2p(mqtt: Address, http: Address, key: str) -> Ask:
    reader, writer = Peer(mqtt, "honest-reader", key), Peer(mqtt, "honest-writer", key)
    reader.subscribe(["honest/p2p"])
    numbers = count()

    def ask() -> bool:
        sent = next(numbers).to_bytes(8)
        writer.send(publish("honest/p2p", sent))
        while True:
            first, body = reader.read()
            if first >> 4 == PUBLISH and body[-8:] == sent:
                return True

    return ask


def schedule(mqtt: Address, http: Address, key: str) -> Ask:
    kept = HTTPConnection(*http, timeout=30)
    kept.connect()
    body = json.dumps({"topic": "honest/later", "payload": "x", "deliver_in": "2h"})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def ask() -> bool:
        kept.request("POST", "/v1/messages", body, headers)
        answer = kept.getresponse()
        answer.read()
        return answer.status == 201

    return ask


CLIENTS: tuple[Client, ...] = (ping, p2p, schedule)


def felt(connect: Callable[[], Ask], connected: Ask, over: threading.Event) -> Felt:
    """One client, until `over`."""
    ask: Ask | None = connected
    trips: list[float] = []
    lost = 0
    while not over.is_set():
        started = time.monotonic()
        try:
            ask = ask or connect()
            lost += not ask()
        except (*CUT, HTTPException):
            lost, ask = lost + 1, None
        trips.append(time.monotonic() - started)
        over.wait(max(0.0, TICK_S - trips[-1]) if ask else AGAIN_S)
    ticks = [trip - late * TICK_S for trip in trips for late in range(max(1, int(trip / TICK_S)))]
    return Felt(percentile(ticks, 0.99) * 1e3, max(ticks) * 1e3, lost)


def main(mqtt: Address, http: Address, key: str) -> None:
    with suppress(PermissionError):
        os.nice(-10)  # the attack is on this machine only because it has to be
    over = threading.Event()
    found: dict[str, dict[str, float]] = {}

    def end() -> None:
        sys.stdin.read()
        over.set()

    def measure(client: Client, connected: Ask) -> None:
        found[client.__name__] = asdict(felt(partial(client, mqtt, http, key), connected, over))

    clients = CLIENTS if http[1] else CLIENTS[:2]
    measuring = [partial(measure, client, client(mqtt, http, key)) for client in clients]
    print("ready", flush=True)
    together([end, *measuring])
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(address(sys.argv[1]), address(sys.argv[2]), sys.argv[3])
