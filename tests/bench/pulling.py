"""Work that is asked for: four workers lease 100 messages at a time and ack them, until nothing is left.

fasti beside what people use for it, each answering an ack when that is on the disk:

    redis        a list of what is ready, a sorted set of what is leased until when, a hash of payloads; each
                 lease and each ack of 100 is one Lua script; append-only file, synced before each answer
    beanstalkd   reserve and delete know one job at a time: 100 of each are sent together; binlog, synced
                 on each write

A peer that is not installed is left out.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from .exchange import line_to
from .http import ask, post, taken_end
from .peers import redis as rd
from .peers.beanstalkd import BEANSTALKD
from .process import Address, Process
from .race import Entry, Sample, contenders, peer, race, spent
from .results import Env, Result
from .workload import payload

ACK = "on disk, fsynced"
WORKERS = 4
BATCH = 100
PAYLOAD = 200
FILL = 1_000
TOPIC = "bench/pull"
LEASE_ID = re.compile(rb'"lease_id":"([^"]+)"')
GROUP = "bench"
PATH = f"/v1/groups/{GROUP}/messages"

LEASE = """
local ids = redis.call('LPOP', 'ready', ARGV[2])
if not ids then return {} end
for i = 1, #ids do redis.call('ZADD', 'leased', ARGV[3], ids[i]) end
return {ids, redis.call('HMGET', 'messages', unpack(ids))}
"""

Fill = Callable[[Address, int], Awaitable[None]]
Work = Callable[[Address, "Tally"], Awaitable[None]]
"""One worker: takes batches until there is nothing more."""


class Tally:
    """How many messages all workers have done, and when by `perf_counter` the last one was acked: that
    nothing more comes they know later."""

    def __init__(self) -> None:
        self.count, self.last = 0, 0.0

    def acked(self, count: int) -> None:
        self.count += count
        self.last = time.perf_counter()


async def pulling(env: Env) -> list[Result]:
    count = env.sizes.pull
    with ExitStack() as stack:
        entries = []
        for name, server in stack.enter_context(contenders(env)):
            await ask(server.http, post(f"{PATH}:lease", json.dumps({"filter": TOPIC, "max": 1}).encode()))
            entries.append(entry(name, ACK, server, server.http, count, fill, pull))
        for kind, filled, work in (
            (rd.REDIS, _fill_redis, _lease_redis),
            (BEANSTALKD, _fill_beanstalkd, _reserve),
        ):
            found = peer(env, stack, kind)
            if found is not None:
                entries.append(entry(kind.name, kind.ack, *found, count, filled, work))
        return await race(env, "pull 100", "msg/s", entries)


def entry(name: str, ack: str, process: Process, at: Address, count: int, fill: Fill, work: Work) -> Entry:
    async def round_(_: int) -> Sample:
        await fill(at, count)
        tally = Tally()
        with spent(process) as found:
            await asyncio.gather(*[work(at, tally) for _ in range(WORKERS)])
        assert tally.count == count, "each message is done once"
        found.seconds = tally.last - found.started
        return found.by(count)

    return Entry(name, round_, ack)


# -- fasti


async def fill(at: Address, count: int, topic: str = TOPIC, keys: int = 0) -> None:
    """Messages that are due at once. `keys`: with so many ordering keys, one after the other."""
    item: dict[str, object] = {"topic": topic, "payload": payload(PAYLOAD), "deliver_in": 0}
    for start in range(0, count, FILL):
        some = range(start, min(start + FILL, count))
        items = [item | {"ordering_key": f"key-{n % keys}"} if keys else item for n in some]
        await ask(at, post("/v1/messages:batch", json.dumps(items).encode()))


async def pull(at: Address, tally: Tally, group: str = GROUP) -> None:
    path = f"/v1/groups/{group}/messages"
    line = await line_to(at, taken_end)
    lease = post(f"{path}:lease", json.dumps({"max": BATCH, "wait": 1}).encode())
    while ids := LEASE_ID.findall(await line.ask(lease)):
        await line.ask(post(f"{path}:ack", b'{"lease_ids":["%b"]}' % b'","'.join(ids)))
        tally.acked(len(ids))
    line.close()


# -- redis


async def _fill_redis(at: Address, count: int) -> None:
    line = await line_to(at, rd.answer_end)
    for start in range(0, count, FILL):
        ids = range(start, min(start + FILL, count))
        await line.ask(
            rd.command("HSET", "messages", *[word for one in ids for word in (one, payload(PAYLOAD))])
        )
        await line.ask(rd.command("RPUSH", "ready", *ids))
    line.close()


async def _lease_redis(at: Address, tally: Tally) -> None:
    worker = await rd.Worker.at(at, LEASE)
    while (found := await worker.take(BATCH))[0]:
        await worker.ack(found[0])
        tally.acked(len(found[0]))
    worker.close()


# -- beanstalkd


async def _fill_beanstalkd(at: Address, count: int) -> None:
    reader, writer = await asyncio.open_connection(*at)
    data = payload(PAYLOAD).encode()
    for start in range(0, count, FILL):
        some = min(FILL, count - start)
        writer.write(b"put 0 0 30 %d\r\n%b\r\n" % (len(data), data) * some)
        for _ in range(some):
            assert (await reader.readline()).startswith(b"INSERTED ")
    writer.close()


async def _reserve(at: Address, tally: Tally) -> None:
    reader, writer = await asyncio.open_connection(*at)
    while True:
        writer.write(b"reserve-with-timeout 0\r\n" * BATCH)
        ids = []
        for _ in range(BATCH):
            told = (await reader.readline()).split()
            if told[0] == b"RESERVED":
                ids.append(told[1])
                await reader.readexactly(int(told[2]) + 2)
        if not ids:
            writer.close()
            return
        writer.write(b"".join(b"delete %b\r\n" % one for one in ids))
        for _ in ids:
            assert await reader.readline() == b"DELETED\r\n"
        tally.acked(len(ids))
