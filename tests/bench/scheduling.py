"""How fast messages are taken, each answer after the fsync that covers it.

batch    1,000 messages a request, four requests in flight: NDJSON over HTTP
         against Redis (HSET and ZADD for each message, 1,000 of them a pipeline), PostgreSQL (one INSERT of
         1,000 rows), and the floor of it, a log: the same bytes, fdatasync after each batch
single   one message at a time, 64 in flight, each awaiting its own answer: raw HTTP, the SDK's
         `schedule()`, MQTT `$delayed` at QoS 1
         against Redis and PostgreSQL, a connection for each, and a server that answers a constant
         and stores nothing; raw HTTP also at 1 and 16

The load is bytes made before, so that the rate is the server's; but for the SDK, whose own cost is part of
the figure (`load_us`: processor time of this process for each message).
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import fasti
from server.codec.publish import publish_parts

from .exchange import Lines
from .http import post, send_all, taken_end
from .mqtt import LEVEL, Sender, connect
from .peers import postgres as pg
from .peers import redis as rd
from .process import Address, Server, Spends, peering
from .race import Entry, Sample, contenders, peer, race, spent
from .results import Env, Result, percentile
from .workload import BATCH, Draft, batches, bodies, cut, drafts, item

IN_FLIGHT = 4
SINGLES = (1, 16)
CALLERS = 64
PAYLOAD = 200
SYNCED = "on disk, fsynced"

Send = Callable[[], Awaitable[list[float]]]
"""All of a round; how long each request waited, where that is known."""


async def batch(env: Env) -> list[Result]:
    some = drafts(env.sizes.batch, PAYLOAD)
    items = [item(*draft) for draft in some]
    with ExitStack() as stack:
        requests, entries = batches(items), list[Entry]()
        servers = stack.enter_context(contenders(env))
        others = await _peers(env, stack, some, IN_FLIGHT, BATCH)
        for name, server in servers:  # last: a connection that says nothing for long is closed
            lines = await Lines.open(server.http, IN_FLIGHT, taken_end)
            entries.append(entry(name, SYNCED, server, lines, requests, len(some)))
        entries += others
        log = partial(_log, env.folder / "log", bodies(items), len(some))
        entries.append(Entry("fdatasync'd append", log, "on disk, fdatasync", is_floor=True))
        return await race(env, "batch", "msg/s", entries, target="150 k")


def entry(name: str, ack: str, process: Spends, lines: Lines, requests: Sequence[bytes], count: int) -> Entry:
    async def round_(_: int) -> Sample:
        return await timed(process, lambda: lines.send_all(requests), count)

    return Entry(name, round_, ack)


async def timed(process: Spends, send: Send, count: int) -> Sample:
    own = time.process_time()
    with spent(process) as found:
        waits = await send()
    more = {"load_us": (time.process_time() - own) / count * 1e6}
    if waits:
        more |= {"p50_ms": percentile(waits, 0.5) * 1000, "p99_ms": percentile(waits, 0.99) * 1000}
    return found.by(count, **more)


async def _log(path: Path, pieces: Sequence[bytes], count: int, _: int) -> Sample:
    """What durability costs at the least."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    started = time.perf_counter()
    for piece in pieces:
        os.write(file, piece)
        os.fdatasync(file)
    seconds = time.perf_counter() - started
    os.close(file)
    os.unlink(path)
    return Sample(count / seconds)


async def single(env: Env) -> list[Result]:
    some = drafts(min(env.sizes.single, 10_000), PAYLOAD)
    requests = [post("/v1/messages", item(*draft)) for draft in some]
    with ExitStack() as stack:
        servers = stack.enter_context(contenders(env))
        echo = stack.enter_context(peering(env.folder, "echo"))
        results = []
        for in_flight in SINGLES:
            # One in flight is bound by the disk's latency: a tenth tells as much.
            part = requests[: max(10, len(requests) // 10)] if in_flight == 1 else requests
            entries = [await _http(name, server, part, in_flight) for name, server in servers]
            results += await race(
                env, f"single/{in_flight}", "msg/s", [*entries, _echo(echo, part, in_flight)]
            )
        others = [*(await _peers(env, stack, some, CALLERS, 1)), _echo(echo, requests, CALLERS)]
        for way, made in (
            ("http", [await _http(name, server, requests, CALLERS) for name, server in servers]),
            ("sdk", [_sdk(name, server, some) for name, server in servers]),
            ("mqtt", [_mqtt(name, server, some) for name, server in servers]),
        ):
            results += await race(env, f"single/{CALLERS} {way}", "msg/s", [*made, *others])
        return results


async def _http(name: str, server: Server, requests: Sequence[bytes], in_flight: int) -> Entry:
    lines = await Lines.open(server.http, in_flight, taken_end)
    return entry(name, SYNCED, server, lines, requests, len(requests))


def _sdk(name: str, server: Server, some: Sequence[Draft]) -> Entry:
    """So many callers, each awaiting one `schedule()` after another."""

    async def call(client: fasti.Client, mine: Sequence[Draft]) -> None:
        for draft in mine:
            at = datetime.fromtimestamp(draft.due_ms / 1000, UTC)
            await client.messages.schedule(draft.topic, draft.text, at=at)

    async def send() -> list[float]:
        async with fasti.Client(f"http://{server.http[0]}:{server.http[1]}") as client:
            await asyncio.gather(*[call(client, some[n::CALLERS]) for n in range(CALLERS)])
        return []

    async def round_(_: int) -> Sample:
        return await timed(server, send, len(some))

    return Entry(name, round_, SYNCED)


def _mqtt(name: str, server: Server, some: Sequence[Draft]) -> Entry:
    """One connection, as many publishes in flight."""
    packets = [
        publish_parts(
            LEVEL,
            f"$delayed/{draft.due_ms // 1000}/{draft.topic}".encode(),
            draft.text.encode(),
            1,
            False,
            False,
        )
        for draft in some
    ]

    async def round_(number: int) -> Sample:
        sender = Sender(await connect(server.mqtt, f"sender-{number}"), CALLERS)

        async def send() -> list[float]:
            await sender.send(packets)
            return []

        sample = await timed(server, send, len(some))
        sender.close()
        return sample

    return Entry(name, round_, SYNCED)


async def _peers(env: Env, stack: ExitStack, some: Sequence[Draft], in_flight: int, size: int) -> list[Entry]:
    """Those that are installed, given `size` messages a request."""
    entries, count = [], len(some)
    if (redis := peer(env, stack, rd.REDIS)) is not None:
        lines = await Lines.open(redis.at, in_flight, rd.lines(2 * min(size, count)))
        commands = cut([rd.scheduled(draft, n) for n, draft in enumerate(some)], size)
        entries.append(entry("Redis", rd.REDIS.ack, redis.process, lines, commands, count))
    if (postgres := peer(env, stack, pg.POSTGRESQL)) is not None:
        await pg.prepare(postgres)
        hello = pg.hello(pg.PUT if size == 1 else pg.PUT_ALL)
        lines = await Lines.open(postgres.at, in_flight, pg.answer_end, hello)
        groups = [some[at : at + size] for at in range(0, count, size)]
        rows = [pg.put(*group) if size == 1 else pg.put_all(group) for group in groups]
        entries.append(entry("PostgreSQL", pg.POSTGRESQL.ack, postgres.process, lines, rows, count))
    return entries


def _echo(echo: Address, requests: Sequence[bytes], in_flight: int) -> Entry:
    async def round_(_: int) -> Sample:
        started = time.perf_counter()
        await send_all(echo, requests, in_flight)
        return Sample(len(requests) / (time.perf_counter() - started))

    return Entry("bare HTTP echo", round_, is_floor=True)
