"""Order by key: what it costs, and what others feel of a key that has much to do, or is in trouble.

    batch with a key      messages for the next month, each with an ordering key, against the same without
    pull 100 in order     pulling.py by a group that orders, against one that does not: of as many keys as
                          messages, so that few are busy; and of 1,000, of which 400 are out
    others, ...           999 tenants have PER_S messages a second together, and 16 workers, 10 ms for each:
                          their p99 alone, while another tenant dumps many, when the dump is accepted, and
                          beside a key whose message fails RETRIES times; of a group that orders, and of one
                          whose keys take turns
    keys in trouble       a tenth of all keys wait for a retry, each with a follower: memory, against the same
                          messages without a failure; rows; and of how many the server tells

The first and the second are measured beside another checkout too, if one is given.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from shards.rocks import RocksStore
from shards.store import Table

from .exchange import line_to
from .http import ask, get, post, send_all, taken_end
from .process import Address, Server, serving
from .pulling import ACK, LEASE_ID, entry, fill, pull
from .race import Entry, Sample, contenders, race, spent
from .results import Env, Result, percentile
from .workload import BATCH, batches, item, next_month, payload

IN_FLIGHT = 4
PAYLOAD = 200
BUSY_KEYS = 1_000
TENANTS = 999
PER_S = 300
EVERY_S = 0.1
WORKERS = 16
WORK_S = 0.01
RETRIES = 20
GROUP, TOPIC = "tenants", "bench/tenants"
SETTLE_S = 5.0
MIB = 1 << 20


async def ordering(env: Env) -> list[Result]:
    with ExitStack() as stack:
        servers = stack.enter_context(contenders(env))
        results = await _published(env, servers) + await _pulled(env, servers)
    for rule in ("order", "fair"):
        results += await _others(env, rule)
    return [*results, await _in_trouble(env)]


async def _made(at: Address, group: str, topic: str, rule: str = "order") -> None:
    body: dict[str, object] = {"filter": topic, "backoff": ["100ms"], "max_attempts": 0}
    if rule:
        body[rule] = True
    await ask(at, post(f"/v1/groups/{group}", json.dumps(body).encode()).replace(b"POST", b"PUT", 1))


# -- costs


async def _published(env: Env, servers: list[tuple[str, Server]]) -> list[Result]:
    entries = [_posts("fasti", servers[0][1], env, is_keyed=True)]
    entries += [_posts(f"{name}, no key", server, env, is_keyed=False) for name, server in servers]
    return await race(env, "batch with a key", "msg/s", entries, target="0.95")


def _posts(name: str, server: Server, env: Env, *, is_keyed: bool) -> Entry:
    async def round_(run: int) -> Sample:
        items = next_month(env.sizes.batch, PAYLOAD, run)
        if is_keyed:
            items = [one[:-1] + b',"ordering_key":"key-%d"}' % number for number, one in enumerate(items)]
        requests = batches(items)
        with spent(server) as found:
            await send_all(server.http, requests, IN_FLIGHT)
        return found.by(len(items))

    return Entry(name, round_, ACK)


async def _pulled(env: Env, servers: list[tuple[str, Server]]) -> list[Result]:
    count, results = env.sizes.pull, []
    for keys, target in ((count, "0.9"), (BUSY_KEYS, "0.8")):
        entries = []
        for name, server, is_ordered in [("fasti", servers[0][1], True), *[(*one, False) for one in servers]]:
            group, topic = f"{'order' if is_ordered else 'any'}-{keys}", f"bench/{keys}/{is_ordered}"
            await _made(server.http, group, topic, "order" if is_ordered else "")
            filled = partial(fill, topic=topic, keys=keys if server is servers[0][1] else 0)
            who = name if is_ordered else f"{name}, no order"
            entries.append(entry(who, ACK, server, server.http, count, filled, partial(pull, group=group)))
        results += await race(env, f"pull 100 in order of {keys:,} keys", "msg/s", entries, target=target)
    return results


# -- what others feel


class Crowd:
    """The tenants, and the workers of all of them. `late`: how long each message took, ms."""

    def __init__(self, at: Address) -> None:
        self._at = at
        self.late: list[float] = []
        self.dumped = 0
        self.failed = 0
        self._left = 0
        self._is_over = False

    async def work(self) -> None:
        """One worker. A message of the poison key fails, at once again."""
        path = f"/v1/groups/{GROUP}/messages"
        line = await line_to(self._at, taken_end)
        lease = post(f"{path}:lease", b'{"max":1,"wait":1}')
        while not self._is_over:
            answer = await line.ask(lease)
            got_ms, found = time.time_ns() / 1e6, LEASE_ID.findall(answer)
            if not found:
                continue
            (message,) = json.loads(answer[answer.index(b"\r\n\r\n") + 4 :])["messages"]
            await asyncio.sleep(WORK_S)
            kind, _, sent_ms = message["payload"].partition(" ")
            said = b'{"lease_ids":["%b"]}' % found[0]
            if kind == "poison" and self.failed < RETRIES:
                self.failed += 1
                await line.ask(post(f"{path}:nack", said[:-1] + b',"delay":"50ms"}'))
                continue
            await line.ask(post(f"{path}:ack", said))
            self.dumped += kind == "dump"
            if kind == "tenant":
                self.late.append(got_ms - float(sent_ms))
                self._left -= 1
        line.close()

    async def others(self, until: Callable[[], bool]) -> float:
        """Messages of the tenants until then, and what their p99 was."""
        first, number = len(self.late), 0
        line = await line_to(self._at, taken_end)
        while not until():
            sent, some = time.perf_counter(), range(number, number + round(PER_S * EVERY_S))
            text = f"tenant {time.time_ns() / 1e6:.1f}"
            items = [item(TOPIC, text, 0, f',"ordering_key":"t{n % TENANTS}"') for n in some]
            self._left += len(items)
            number += len(items)
            await line.ask(batches(items)[0])
            await asyncio.sleep(max(0.0, EVERY_S - (time.perf_counter() - sent)))
        while self._left:
            await asyncio.sleep(0.01)
        line.close()
        return percentile(self.late[first:], 0.99)

    async def for_s(self, seconds: float) -> float:
        end = time.perf_counter() + seconds
        return await self.others(lambda: time.perf_counter() >= end)

    async def beside(self, doing: asyncio.Task[None]) -> float:
        return await self.others(doing.done)

    def end(self) -> None:
        self._is_over = True


async def _others(env: Env, rule: str) -> list[Result]:
    phases: dict[str, list[float]] = {}
    for run in range(env.sizes.runs):
        with serving(env.folder / f"{rule}-{run}") as server:
            await _made(server.http, GROUP, TOPIC, rule)
            for phase, ms in (await _phases(env, server.http)).items():
                phases.setdefault(phase, []).append(ms)
    alone = phases.pop("alone")
    goals = {"a dump is accepted": "< 4", "a dump waits": "< 1.5", "a key fails": "< 1.5"}
    return [
        Result(f"others, {rule}, {phase}", "ms", ms, "alone", alone, goals[phase], less=True)
        for phase, ms in phases.items()
    ]


async def _phases(env: Env, at: Address) -> dict[str, float]:
    """The p99 of the tenants, ms, in each phase."""
    crowd = Crowd(at)
    workers = [asyncio.create_task(crowd.work()) for _ in range(WORKERS)]
    found = {"alone": await crowd.for_s(env.sizes.late_s)}
    found["a dump is accepted"] = await crowd.beside(asyncio.create_task(_dump(at, env.sizes.pull)))
    found["a dump waits"] = await crowd.for_s(env.sizes.late_s)
    assert crowd.dumped < env.sizes.pull, "it waits still"
    poison = item(TOPIC, "poison", 0, ',"ordering_key":"poison"')
    await ask(at, batches([poison])[0])
    end = time.perf_counter() + env.sizes.late_s
    found["a key fails"] = await crowd.others(lambda: crowd.failed >= RETRIES and time.perf_counter() >= end)
    crowd.end()
    await asyncio.gather(*workers)
    return found


async def _dump(at: Address, count: int) -> None:
    one = item(TOPIC, f"dump {payload(PAYLOAD)}", 0, ',"ordering_key":"heavy"')
    await send_all(at, batches([one] * BATCH) * (count // BATCH), 1)


# -- keys in trouble


async def _in_trouble(env: Env) -> Result:
    keys = env.sizes.pull
    fine, *_ = await _grown(env, keys, 0)
    grown, told, rows = await _grown(env, keys, keys // 10)
    more = {"told": float(told), "rows": float(len(rows)), "rows_MiB": sum(rows) / MIB}
    name = f"{keys // 10:,} of {keys:,} keys in trouble"
    return Result(name, "MiB", [grown / MIB], "none in trouble", [fine / MIB], more=more, less=True)


async def _grown(env: Env, keys: int, in_trouble: int) -> tuple[int, int, list[int]]:
    """Two messages of some keys and one of the others; the first ones of `in_trouble` keys fail, the others
    are done: how much memory has grown, of how many keys the server tells, and how large the rows are."""
    data, failed = env.folder / f"trouble-{in_trouble}", 0
    with serving(data) as server:
        await _made(server.http, GROUP, TOPIC)
        await asyncio.sleep(SETTLE_S)
        empty = server.rss_bytes()
        await fill(server.http, keys + keys // 10, TOPIC, keys)
        path, line = f"/v1/groups/{GROUP}/messages", await line_to(server.http, taken_end)
        lease = post(f"{path}:lease", b'{"max":100,"wait":1}')
        while ids := LEASE_ID.findall(await line.ask(lease)):
            bad = ids[: in_trouble - failed]
            failed += len(bad)
            for what, some, rest in (("nack", bad, b',"delay":"1h"'), ("ack", ids[len(bad) :], b"")):
                if some:
                    said = b'{"lease_ids":["%b"]%b}' % (b'","'.join(some), rest)
                    await line.ask(post(f"{path}:{what}", said))
        line.close()
        await asyncio.sleep(SETTLE_S)
        grown = server.rss_bytes() - empty
        told = json.loads(await ask(server.http, get(f"/v1/groups/{GROUP}/keys?limit=1")))["blocked"]
    rows = [len(key) + len(value) for key, value in RocksStore(data).scan(Table.ORDER, b"", b"\xff")]
    return grown, told, rows
