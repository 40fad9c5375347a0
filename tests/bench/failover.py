"""What a cluster does when somebody is killed, and how a node catches up. Three nodes on three NATS servers.

failover   Four writers have batches of 100 stored, one after the other, in which one message is due at once;
           a session of the SDK receives those. Then the node that leads is killed with -9: how long after
           that another one gives its first 2xx, and the session has its first delivery; with the default
           `cluster.takeover_after` and with 2 s. And the same when the server of the log is killed that leads
           the stream: what elects then is the log.
standby    How fast a node that was away applies what it has missed, 200 B a message in batches of 1,000; its
           start, measured with nothing missed, is taken off. And how fast a copy of a node's data is made:
           checkpoint, stream, checked files on this disk, all on one disk here.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event, Thread

import aiohttp

import fasti
from server.cluster.copy_in import fetch
from server.cluster.key import ClusterKey
from tests.support.cluster import KEY, Node
from tests.support.nats import Nats

from .http import send_all
from .replicated import Trio, trio
from .results import Env, Result
from .scheduling import IN_FLIGHT, PAYLOAD
from .workload import NDJSON, batches, bodies, item, next_month, payload

WRITERS = 4
SOME = 100
"""Messages a batch while somebody is killed."""
TOPIC = "bench/failover"
ANSWER_S = 1.0
PAUSE_S = 0.01
LOAD_S = 2.0
STEADY_S = 3.0
"""After what was longest without anything, things have to go on for so long."""
LIMIT_S = 60.0
MISSED = 4
"""Times the messages that `batch` has in a round."""
TAKEOVER = ("3s", "2s")


class Writers:
    """Threads that have batches stored by whichever node takes them; `acked`: when, monotonic seconds."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.acked: list[float] = []
        self._nodes = nodes
        self._over = Event()
        (now,) = bodies([item(TOPIC, payload(PAYLOAD))])
        (later,) = bodies(next_month(SOME - 1, PAYLOAD))
        self._body = now + later
        self._threads = [Thread(target=self._write, daemon=True) for _ in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        """To one node while it takes them, then to the next."""
        at = 0
        while not self._over.is_set():
            connection = HTTPConnection(*self._nodes[at].http, timeout=ANSWER_S)
            with suppress(OSError, HTTPException):
                while not self._over.is_set() and self._is_taken(connection):
                    self.acked.append(time.monotonic())
            connection.close()
            at = (at + 1) % len(self._nodes)
            time.sleep(PAUSE_S)

    def _is_taken(self, connection: HTTPConnection) -> bool:
        connection.request("POST", "/v1/messages:batch", self._body, {"Content-Type": NDJSON})
        answer = connection.getresponse()
        answer.read()
        return 200 <= answer.status < 300


@contextmanager
def _writing(three: Trio) -> Iterator[list[float]]:
    """When batches were acked, while they are."""
    writers = Writers(list(three.cluster.nodes.values()))
    try:
        yield writers.acked
    finally:
        writers.close()


@asynccontextmanager
async def _receiving(three: Trio) -> AsyncIterator[list[float]]:
    """When deliveries came, while they do."""
    came: list[float] = []

    async def receive() -> None:
        urls = [node.url for node in three.cluster.nodes.values()]
        async with fasti.Client(urls) as client, client.subscribe(TOPIC, session="bench") as deliveries:
            async for delivery in deliveries:
                came.append(time.monotonic())
                await delivery.ack()

    task = asyncio.create_task(receive())
    try:
        yield came
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def failover(env: Env) -> list[Result]:
    results = []
    for takeover in TAKEOVER:
        with trio(env, cluster__takeover_after=takeover) as three:
            if three is None:
                return []
            rounds = [await _node_killed(three) for _ in range(env.sizes.runs)]
            target = "5" if takeover == TAKEOVER[0] else ""
            title = f"leader killed, takeover_after {takeover}"
            results += _told(title, rounds, target)
            if takeover == TAKEOVER[0]:
                rounds = [await _log_killed(three) for _ in range(env.sizes.runs)]
                results += _told("JetStream's leader killed", rounds, "")
    return results


def _told(title: str, rounds: Sequence[tuple[float, float]], target: str) -> list[Result]:
    acks, deliveries = zip(*rounds, strict=True)
    return [
        Result(f"cluster: {title}, no 2xx", "s", acks, target=target, less=True),
        Result(f"cluster: {title}, no delivery", "s", deliveries, target=target, less=True),
    ]


async def _node_killed(three: Trio) -> tuple[float, float]:
    leader = await asyncio.to_thread(three.cluster.wait_ready)
    async with _gaps(three) as gaps:
        leader.kill()
    three.cluster.start(leader.name)
    return gaps[0], gaps[1]


async def _log_killed(three: Trio) -> tuple[float, float]:
    log = three.log
    assert isinstance(log, Nats)
    await asyncio.to_thread(three.cluster.wait_ready)
    name = await asyncio.to_thread(log.leader, three.cluster.name)
    async with _gaps(three) as gaps:
        log.kill(name)
    log.start(name)
    await asyncio.to_thread(log.wait_ready)
    return gaps[0], gaps[1]


@asynccontextmanager
async def _gaps(three: Trio) -> AsyncIterator[list[float]]:
    """Kill somebody inside: from then on, how long until acks go on, and deliveries, seconds."""
    found: list[float] = []
    with _writing(three) as acked:
        async with _receiving(three) as came:
            await asyncio.sleep(LOAD_S)
            assert acked, "nothing is acked"
            assert came, "nothing is received"
            yield found
            killed = time.monotonic()
            while not all(_is_steady(times, killed) for times in (acked, came)):
                assert time.monotonic() - killed < LIMIT_S, three.cluster.told()
                await asyncio.sleep(PAUSE_S)
            found += [back(times, killed) - killed for times in (acked, came)]


def _is_steady(times: Sequence[float], killed: float) -> bool:
    """Whether something has come again for long enough after it had not."""
    now = time.monotonic()
    return now - killed > STEADY_S and now - back([*times, now], killed) > STEADY_S


def back(times: Sequence[float], since: float) -> float:
    """The end of the longest time without anything after `since`, which is given if nothing came."""
    pairs = pairwise([since, *sorted(at for at in times if at > since)])
    return max(pairs, key=lambda pair: pair[1] - pair[0], default=(since, since))[1]


async def standby(env: Env) -> list[Result]:
    count = env.sizes.batch * MISSED
    messages, records, copies, sizes = [], [], [], []
    with trio(env) as three:
        if three is None:
            return []
        follower = three.cluster.others(three.leader)[0]
        for number in range(env.sizes.runs):
            start_s = await _away(three, follower, ())
            before = _applied(three.leader)
            requests = batches(next_month(count, PAYLOAD, seed=number))
            seconds = await _away(three, follower, requests) - start_s
            messages.append(count / seconds)
            records.append((_applied(three.leader) - before) / seconds)
            size, seconds = await _copied(follower, env.folder / "copy")
            copies.append(size / seconds / 1e6)
            sizes.append(size / 1e6)
    more = {"records_per_s": median(records), "start_s": start_s}
    return [
        Result("cluster: a standby catches up", "msg/s", messages, more=more),
        Result("cluster: copy of a node's data", "MB/s", copies, more={"MB": sizes[-1]}),
    ]


async def _away(three: Trio, follower: Node, requests: Sequence[bytes]) -> float:
    """How long a follower takes from its start until it has what came while it was away, seconds."""
    await asyncio.to_thread(three.cluster.wait_ready)
    follower.terminate()
    if requests:
        await send_all(three.leader.http, requests, IN_FLIGHT)
    upto, started = _applied(three.leader), time.monotonic()
    follower.start()
    while _applied(follower) < upto:
        assert time.monotonic() - started < LIMIT_S, three.cluster.told()
        await asyncio.sleep(PAUSE_S)
    return time.monotonic() - started


def _applied(node: Node) -> int:
    """Up to which record it has the log; -1 while it does not say."""
    found = node.status()
    return -1 if found is None else int(found["applied"])


async def _copied(node: Node, folder: Path) -> tuple[int, float]:
    """Bytes, and seconds, of its data as another node takes it."""
    started = time.monotonic()
    async with aiohttp.ClientSession() as session:
        await fetch(session, node.url, ClusterKey([KEY]), folder)
    seconds = time.monotonic() - started
    size = _size(folder)
    shutil.rmtree(folder)
    return size, seconds


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
