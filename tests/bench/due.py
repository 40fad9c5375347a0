"""What happens when messages become due.

lateness   1,000 messages a second at random instants, one QoS 1 subscriber: how long after its due time
           each arrives at the client; then the same while 20,000 a second are scheduled for later, in
           batches, by a process of its own: who measures does nothing else. Early is counted apart and must
           be 0. Against Redis that is asked each ms for what is due
           (and is given as much to schedule), and against the timers of a bare loop in the client's process.
drain      many messages due in one instant, to four QoS 1 subscribers that ack, each of a topic of its own,
           or all members of one group: from the due instant to the last ack taken (a PINGRESP after it).
           Against four workers of Redis that lease and ack 100 at a time, and against a sender of
           ready-made bytes to as many subscribers.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial

from .apart import Make, apart
from .exchange import Lines
from .http import send_all, taken_end
from .mqtt import Client, Look, all_of, connect, subscribed
from .peers import redis as rd
from .process import Address, Listens, Running, Server, peering
from .race import Entry, Sample, contenders, peer, race, spent
from .results import Env, Result, percentile
from .workload import BATCH, Draft, batches, cut, drafts, item, next_month, now_ms, payload

IN_FLIGHT = 4
PAYLOAD = 200
TOPICS = 4
BARE_S = 1
LEASE = 100
POLL_S = 0.001
BESIDE = 20_000
"""Messages a second that are scheduled while others are due."""
DISTINCT = 1_000_000_000
"""Above the ids of those that are due."""
ACK = "taken; the position is stored in the background"

Beside = Callable[[int], Awaitable[None]] | None
"""What goes on meanwhile; told when the first message is due, ms."""
Once = Callable[[int, Beside], Awaitable[list[float]]]
"""One round, of this number: how late each message came, ms."""


async def lateness(env: Env) -> list[Result]:
    results = []
    with ExitStack() as stack:
        servers = stack.enter_context(contenders(env))
        redis = peer(env, stack, rd.REDIS)
        for name, target, per_s in (
            ("lateness p99", "< 1.5, early 0", 0),
            (f"lateness p99, {BESIDE // 1000} k/s scheduled", "< 3, early 0", BESIDE),
        ):
            entries = [late(env, who, server, per_s) for who, server in servers]
            if redis is not None:
                beside = per_s and (_pipelines_beside, redis.at, per_s, env.sizes.late_s)
                polled = _round(partial(_polled, env, redis), beside or None)
                entries.append(Entry("Redis, polled each ms", polled, rd.REDIS.ack))
            if not per_s:
                entries.append(Entry("bare timers", partial(_timers, env), is_floor=True))
            results += await race(env, name, "ms", entries, target=target, less=True)
    return results


def late(env: Env, name: str, server: Listens, per_s: int) -> Entry:
    beside = per_s and (_batches_beside, server.http, per_s, env.sizes.late_s)
    return Entry(name, _round(partial(lateness_once, env, server), beside or None), ACK)


def _round(once: Once, load: tuple[Make, Address, int, int] | None) -> Callable[[int], Awaitable[Sample]]:
    """`load`: what is scheduled beside it, by a process of its own; see `apart`."""

    async def round_(run: int) -> Sample:
        with ExitStack() as stack:
            return _sample(await once(run, stack.enter_context(apart(*load)) if load else None))

    return round_


def _sample(found: Sequence[float]) -> Sample:
    late = [max(0.0, ms) for ms in found]
    more = {
        "p50_ms": percentile(late, 0.5),
        "max_ms": max(late),
        "early": float(sum(ms < 0 for ms in found)),
    }
    return Sample(percentile(late, 0.99), more)


def _batches_beside(at: Address, per_s: int, seconds: int) -> Callable[[int], Awaitable[None]]:
    requests = batches(next_month(per_s * seconds, PAYLOAD))

    async def beside(start_ms: int) -> None:
        await _paced(await Lines.open(at, 1, taken_end), requests, start_ms, BATCH / per_s)

    return beside


def _pipelines_beside(at: Address, per_s: int, seconds: int) -> Callable[[int], Awaitable[None]]:
    some = drafts(per_s * seconds, PAYLOAD)
    pipelines = cut([rd.scheduled(draft, n + DISTINCT) for n, draft in enumerate(some)])

    async def beside(start_ms: int) -> None:
        lines = await Lines.open(at, 1, rd.lines(2 * min(BATCH, len(some))))
        await _paced(lines, pipelines, start_ms, BATCH / per_s)

    return beside


async def _paced(lines: Lines, requests: Sequence[bytes], start_ms: int, every_s: float) -> None:
    """One after another, `every_s` apart as far as the answers allow."""
    for number, request in enumerate(requests):
        await asyncio.sleep(max(0.0, start_ms / 1000 + number * every_s - time.time()))
        await lines.send_all((request,))
    lines.close()


def noting(late: list[float]) -> Look:
    """Notes how late each message comes, ms; its payload is one of `timed_payloads`."""

    def look(data: bytes, _: int, stop: int) -> None:
        late.append(time.time_ns() / 1e6 - int(data[stop - PAYLOAD : stop - PAYLOAD + 13]))

    return look


def timed_payloads(dues: Sequence[int]) -> list[str]:
    """Payloads that begin with when they are due."""
    rest = payload(PAYLOAD - 13)
    return [f"{due}{rest}" for due in dues]


async def lateness_once(env: Env, server: Listens, run: int, beside: Beside = None) -> list[float]:
    """How late each message came, ms."""
    late: list[float] = []
    client = await connect(server.mqtt, f"late-{run}", look=noting(late))
    await client.subscribe(f"bench/late/{run}", 1)
    start, dues = _dues(env, run)
    items = [
        item(f"bench/late/{run}", text, due) for text, due in zip(timed_payloads(dues), dues, strict=True)
    ]
    await send_all(server.http, batches(items), IN_FLIGHT)
    assert now_ms() < start, "scheduling took longer than lead_s"
    other = asyncio.ensure_future(beside(start)) if beside else None
    await client.until(len(dues), env.sizes.lead_s + env.sizes.late_s + 30)
    if other is not None:
        await other
    client.close()
    return late


def _dues(env: Env, run: int) -> tuple[int, list[int]]:
    """The first instant, and many at random after it, ms."""
    chance = random.Random(run)
    start = now_ms() + int(env.sizes.lead_s * 1000)
    count = env.sizes.late_per_s * env.sizes.late_s
    return start, [start + chance.randrange(env.sizes.late_s * 1000) for _ in range(count)]


async def _polled(env: Env, redis: Running, run: int, beside: Beside) -> list[float]:
    """Redis, asked each ms; late is what has come with the answer."""
    start, dues = _dues(env, run)
    some = [Draft("bench/late", text, due) for text, due in zip(timed_payloads(dues), dues, strict=True)]
    lines = await Lines.open(redis.at, 1, rd.lines(2 * len(dues)))
    await lines.send_all((b"".join([rd.scheduled(draft, n) for n, draft in enumerate(some)]),))
    lines.close()
    other = asyncio.ensure_future(beside(start)) if beside is not None else None
    worker, late = await rd.Worker.at(redis.at), list[float]()
    while len(late) < len(dues):
        asked = time.perf_counter()
        ids, found = await worker.take(LEASE)
        now = time.time_ns() / 1e6
        late += [now - int(body.partition(b" ")[2][:13]) for body in found]
        if ids:
            await worker.ack(ids)
        await asyncio.sleep(max(0.0, POLL_S - (time.perf_counter() - asked)))
    worker.close()
    if other is not None:
        await other
    return late


async def _timers(env: Env, _: int) -> Sample:
    """How late a loop that does nothing else calls back."""
    loop, chance, late = asyncio.get_running_loop(), random.Random(0), list[float]()
    seconds, start = min(env.sizes.late_s, BARE_S), loop.time() + 0.1
    for _ in range(env.sizes.late_per_s * seconds):
        due = start + chance.random() * seconds
        loop.call_at(due, lambda due=due: late.append(max(0.0, loop.time() - due) * 1000))  # type: ignore[misc]
    await asyncio.sleep(seconds + 0.15)
    return _sample(late)


async def drain(env: Env) -> list[Result]:
    count = env.sizes.drain
    results = []
    with ExitStack() as stack:
        servers = stack.enter_context(contenders(env))
        redis = peer(env, stack, rd.REDIS)
        bare = stack.enter_context(peering(env.folder, "blast", str(count // TOPICS)))
        for name, group in (("drain", ""), ("drain group", "$share/bench/")):
            entries = [Entry(who, partial(_drained, env, server, group), ACK) for who, server in servers]
            if redis is not None:
                entries.append(Entry("Redis", partial(_leased, env, redis), rd.REDIS.ack))
            if not group:
                entries.append(Entry("bare sender", partial(_bare, bare, count), is_floor=True))
            results += await race(env, name, "msg/s", entries, target="60 k")
    return results


async def _drained(env: Env, server: Server, group: str, run: int) -> Sample:
    """Four subscribers: each of a topic of its own or, with a `group`, all members of it."""
    topic = f"bench/{'group' if group else 'topics'}/{run}"
    filters = f"{group}{topic}/"
    async with subscribed(server.mqtt, "drain", TOPICS, lambda n: f"{filters}{'+' if group else n}") as some:
        due = await at_once(env, server, lambda n: f"{topic}/{n % TOPICS}")
        return await drained_by(server, some, due, env.sizes.drain)


async def at_once(env: Env, server: Server, topic: Callable[[int], str]) -> int:
    """Schedule all of a drain, each to the topic of its number; when they are due, ms."""
    due, text = _due(env), payload(PAYLOAD)
    await send_all(
        server.http, batches([item(topic(n), text, due) for n in range(env.sizes.drain)]), IN_FLIGHT
    )
    return due


async def drained_by(server: Server, clients: Sequence[Client], due_ms: int, count: int) -> Sample:
    """From due until they have `count` more messages together, and the server has read their acks."""
    before = sum([client.received for client in clients])  # the first come sooner than this wakes
    await until(due_ms)
    with spent(server) as found:
        await all_of(clients, before + count)
        await asyncio.gather(*[client.ping() for client in clients])
    return found.by(count)


async def _leased(env: Env, redis: Running, run: int) -> Sample:
    """Four workers of Redis."""
    count, due = env.sizes.drain, _due(env)

    async def work(worker: rd.Worker) -> int:
        done = 0
        while (found := await worker.take(LEASE))[0]:
            await worker.ack(found[0])
            done += len(found[0])
        return done

    some = [Draft(f"bench/{run}/{n % TOPICS}", payload(PAYLOAD), due) for n in range(count)]
    lines = await Lines.open(redis.at, IN_FLIGHT, rd.lines(2 * min(BATCH, count)))
    await lines.send_all(cut([rd.scheduled(draft, n) for n, draft in enumerate(some)]))
    lines.close()
    workers = [await rd.Worker.at(redis.at) for _ in range(TOPICS)]
    await until(due)
    with spent(redis.process) as found:
        done = await asyncio.gather(*[work(worker) for worker in workers])
    for worker in workers:
        worker.close()
    assert sum(done) == count, "each message is done once"
    return found.by(count)


async def _bare(at: Address, count: int, _: int) -> Sample:
    return Sample(count / await bare_sender(at, count // TOPICS, TOPICS))


def _due(env: Env) -> int:
    """40,000 a second is slow: there is to be a pause between the last answer and due."""
    return now_ms() + int((env.sizes.lead_s + env.sizes.drain / 40_000) * 1000)


async def until(due_ms: int) -> None:
    left_s = due_ms / 1000 - time.time()
    assert left_s > 0, "scheduling took until due"
    await asyncio.sleep(left_s)


async def bare_sender(peer: Address, count: int, subscribers: int) -> float:
    """Seconds in which a sender that does nothing else gives `count` messages to each subscriber."""
    clients = [await connect(peer, f"bare-{n}") for n in range(subscribers)]
    started = time.monotonic()
    await asyncio.gather(*[_take(client, count) for client in clients])
    for client in clients:
        client.close()
    return time.monotonic() - started


async def _take(client: Client, count: int) -> None:
    await client.subscribe("bench/drain/0", 1)
    await client.until(count)
