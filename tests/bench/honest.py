"""Honest clients: how long each waits for what it asks, while something else goes on at the server.

    ping      PINGREQ on a connection
    p2p       a publish at QoS 0 from one connection to another
    acked     the same at QoS 1: its PUBACK and its delivery
    schedule  a POST of one message that is due in two hours, on a kept connection
    listing   a GET of a page of ten, likewise

Each asks at every tick and waits for it. A stall counts for every tick that it covers, not once. A client
that was cut connects again; what it waits for that counts as well.

`beside` has them in a process of their own, `python -m tests.bench.honest CROWD`: it says `ready` when all
are connected, measures from a line on the standard input to its end, and says what it found. `during` has
them in this one.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count, product

from tests.support.server import ROOT

from .raw import PINGREQ, PINGRESP, PUBACK, PUBLISH, Address, Peer, publish
from .results import percentile
from .scene import CUT, together

AGAIN_S = 0.1
"""Until a client that was cut connects again."""

Ask = Callable[[], bool]
"""Ask once; whether it was granted. Raises OSError, EOFError, HTTPException when it was cut."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who asks whom for what: `count` clients of each name, each at every tick."""

    mqtt: Address
    http: Address
    names: Sequence[str]
    key: str = ""
    count: int = 1
    tick_s: float = 0.01
    patience_s: float = 30.0
    """Without an answer for so long, a client takes itself for cut."""

    def peer(self, stack: ExitStack, number: int, name: str) -> Peer:
        made = Peer(self.mqtt, f"honest-{name}-{number}", self.key, patience_s=self.patience_s)
        stack.callback(made.leave)
        return made

    def call(self, stack: ExitStack) -> HTTPConnection:
        kept = HTTPConnection(*self.http, timeout=self.patience_s)
        stack.callback(kept.close)
        kept.connect()
        return kept


@dataclass(frozen=True, slots=True)
class Felt:
    """What one honest client felt: what it waited each time, and by tick."""

    waits_s: Sequence[float]
    lost: int
    """Calls that were refused or not answered, and connections that were cut or refused."""
    tick_s: float = 0.01

    @property
    def waits_ms(self) -> list[float]:
        return [wait * 1e3 for wait in self.waits_s]

    @property
    def ticks_ms(self) -> list[float]:
        """A wait for each tick, had somebody asked at it."""
        tick = self.tick_s
        return [
            (wait - late * tick) * 1e3 for wait in self.waits_s for late in range(max(1, int(wait / tick)))
        ]

    @property
    def p99_ms(self) -> float:
        return percentile(self.ticks_ms, 0.99)

    @property
    def max_ms(self) -> float:
        return max(self.waits_ms)


Found = dict[str, list[Felt]]
"""By what was asked for, of each client."""


def ping(crowd: Crowd, stack: ExitStack, number: int) -> Ask:
    peer = crowd.peer(stack, number, "ping")

    def ask() -> bool:
        peer.send(PINGREQ)
        return peer.read()[0] >> 4 == PINGRESP

    return ask


def p2p(crowd: Crowd, stack: ExitStack, number: int, qos: int = 0) -> Ask:
    topic, numbers = f"honest/p2p/{number}/{qos}", count()
    reader, writer = (crowd.peer(stack, number, f"{who}-{qos}") for who in ("reader", "writer"))
    reader.subscribe([topic])

    def ask() -> bool:
        sent = next(numbers).to_bytes(8)
        writer.send(publish(topic, sent, qos=qos, number=1))
        if qos and (answer := _of(writer, PUBACK))[2:] and answer[2] >= 0x80:
            return False
        while _of(reader, PUBLISH)[-8:] != sent:
            pass
        return True

    return ask


def _of(peer: Peer, kind: int) -> bytes:
    """The body of the next packet of a kind."""
    while True:
        first, body = peer.read()
        if first >> 4 == kind:
            return body


def schedule(crowd: Crowd, stack: ExitStack, _: int) -> Ask:
    body = json.dumps({"topic": "honest/later", "payload": "x", "deliver_in": "2h"})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {crowd.key}"}
    kept = crowd.call(stack)
    return lambda: _status(kept, "POST", "/v1/messages", body, headers) == 201


def listing(crowd: Crowd, stack: ExitStack, _: int) -> Ask:
    kept = crowd.call(stack)
    return lambda: _status(kept, "GET", "/v1/messages?limit=10", None, {}) == 200


def _status(kept: HTTPConnection, method: str, path: str, body: str | None, headers: dict[str, str]) -> int:
    kept.request(method, path, body, headers)
    answer = kept.getresponse()
    answer.read()
    return answer.status


CLIENTS: dict[str, Callable[[Crowd, ExitStack, int], Ask]] = {
    "ping": ping,
    "p2p": p2p,
    "acked": partial(p2p, qos=1),
    "schedule": schedule,
    "listing": listing,
}
"""Each connects, until the stack is closed, with a number that makes its names the only ones."""


def felt(ask: Ask | None, connect: Callable[[], Ask], over: threading.Event, crowd: Crowd) -> Felt:
    """One client, connected, until `over`."""
    waits: list[float] = []
    lost = 0
    while not over.is_set():
        started = time.monotonic()
        try:
            ask = ask or connect()
            lost += not ask()
        except (*CUT, HTTPException):
            lost, ask = lost + 1, None
        waits.append(time.monotonic() - started)
        over.wait(max(0.0, crowd.tick_s - waits[-1]) if ask else AGAIN_S)
    return Felt(waits, lost, crowd.tick_s)


def watch(crowd: Crowd, over: threading.Event, ready: Callable[[], object]) -> Found:
    """All of them, until `over`; `ready` is called when they are connected."""
    found: dict[tuple[str, int], Felt] = {}

    def measure(name: str, number: int, stack: ExitStack, connected: Ask) -> None:
        def connect() -> Ask:
            stack.close()
            return CLIENTS[name](crowd, stack, number)

        found[name, number] = felt(connected, connect, over, crowd)

    with ExitStack() as stacks:
        doings = []
        for name, number in product(crowd.names, range(crowd.count)):
            stack = stacks.enter_context(ExitStack())
            connected = CLIENTS[name](crowd, stack, number)
            doings.append(partial(measure, name, number, stack, connected))
        ready()
        together(doings)
    return {name: [found[name, number] for number in range(crowd.count)] for name in crowd.names}


def during(crowd: Crowd, seconds: float) -> Found:
    """In this process, for so long. Blocks."""
    over = threading.Event()
    return watch(crowd, over, threading.Timer(seconds, over.set).start)


@contextmanager
def beside(crowd: Crowd, from_ms: int = 0) -> Iterator[Callable[[], Found]]:
    """In a process of their own, connected: call it to end them; killed in the end if they have not ended.

    `from_ms`: the wall time when they begin to ask. Blocks until then.
    """
    command = [sys.executable, "-m", "tests.bench.honest", json.dumps(asdict(crowd))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as other:
        try:
            assert other.stdin is not None
            assert other.stdout is not None
            if other.stdout.readline() != "ready\n":
                raise RuntimeError("the honest clients could not connect")
            time.sleep(max(0.0, from_ms / 1e3 - time.time()))
            print(file=other.stdin, flush=True)
            yield lambda: _read(other.communicate()[0])
        finally:
            other.kill()


def _read(said: str) -> Found:
    return {name: [Felt(**one) for one in every] for name, every in json.loads(said).items()}


def main(crowd: Crowd) -> None:
    with suppress(PermissionError):
        os.nice(-10)  # the attack is on this machine only because it has to be
    over = threading.Event()

    def end() -> None:
        sys.stdin.read()
        over.set()

    def ready() -> None:
        print("ready", flush=True)
        sys.stdin.readline()
        threading.Thread(target=end, daemon=True).start()

    found = watch(crowd, over, ready)
    print(json.dumps({name: [asdict(one) for one in every] for name, every in found.items()}), flush=True)


if __name__ == "__main__":
    main(Crowd(**json.loads(sys.argv[1])))
