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
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .http import answer_end, ask, post
from .process import Address, Process, answering, free_port, serving
from .results import Env, Result
from .workload import payload

WORKERS = 4
BATCH = 100
PAYLOAD = 200
FILL = 1_000
TOPIC = "bench/pull"
PATH = "/v1/groups/bench/messages"

LEASE = """
local ids = redis.call('LPOP', 'ready', ARGV[1])
if not ids then return {} end
local found = redis.call('HMGET', 'jobs', unpack(ids))
for i = 1, #ids do redis.call('ZADD', 'leased', ARGV[2], ids[i]) end
return {ids, found}
"""
ACK = """
local done = redis.call('ZREM', 'leased', unpack(ARGV))
redis.call('HDEL', 'jobs', unpack(ARGV))
return done
"""

Work = Callable[[Address], Awaitable[int]]
"""One worker: takes batches until there is nothing more; how many messages it has done."""


async def pulling(env: Env) -> list[Result]:
    count = env.sizes.pull
    with serving(env.folder / "data") as server:
        await ask(server.http, post(f"{PATH}:lease", json.dumps({"filter": TOPIC, "max": 1}).encode()))
        found = [await _measure(server.http, count, _fill, _pull) for _ in range(env.sizes.runs)]
    results = []
    for name, peer, fill, work in (
        ("redis", _redis, _fill_redis, _lease_redis),
        ("beanstalkd", _beanstalkd, _fill_beanstalkd, _reserve),
    ):
        with peer(env.folder) as at:
            if at is not None:
                base = [await _measure(at, count, fill, work) for _ in range(env.sizes.runs)]
                results.append(Result("pull 100", "msg/s", found, f"{name}, synced", base))
    return results or [Result("pull 100", "msg/s", found)]


async def _measure(
    at: Address, count: int, fill: Callable[[Address, int], Awaitable[None]], work: Work
) -> float:
    """Messages a second."""
    await fill(at, count)
    started = time.perf_counter()
    done = await asyncio.gather(*[work(at) for _ in range(WORKERS)])
    seconds = time.perf_counter() - started
    assert sum(done) == count, "each message is done once"
    return count / seconds


# -- fasti


class _Talk:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._held = b""

    async def post(self, path: str, body: object) -> dict[str, list[dict[str, str]]]:
        """The parsed answer. Raises AssertionError unless it is a 200."""
        self._writer.write(post(path, json.dumps(body).encode()))
        data, end = self._held, 0
        while not 0 < (end := answer_end(data)) <= len(data):
            data += await self._reader.read(1 << 20)
        self._held = data[end:]
        assert data.startswith(b"HTTP/1.1 200 "), data[:500]
        answer: dict[str, list[dict[str, str]]] = json.loads(data[data.index(b"\r\n\r\n") + 4 : end])
        return answer

    def close(self) -> None:
        self._writer.close()


async def _fill(at: Address, count: int) -> None:
    item = {"topic": TOPIC, "payload": payload(PAYLOAD), "deliver_in": 0}
    for start in range(0, count, FILL):
        body = json.dumps([item] * min(FILL, count - start)).encode()
        await ask(at, post("/v1/messages:batch", body))


async def _pull(at: Address) -> int:
    talk, done = _Talk(*await asyncio.open_connection(*at)), 0
    while found := (await talk.post(f"{PATH}:lease", {"max": BATCH, "wait": 1}))["messages"]:
        await talk.post(f"{PATH}:ack", {"lease_ids": [one["lease_id"] for one in found]})
        done += len(found)
    talk.close()
    return done


# -- redis


@contextmanager
def _redis(folder: Path) -> Iterator[Address | None]:
    program, at = shutil.which("redis-server"), ("127.0.0.1", free_port())
    if program is None:
        yield None
        return
    wishes = {
        "port": at[1],
        "bind": at[0],
        "dir": folder,
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
    }
    arguments = [part for key, value in wishes.items() for part in (f"--{key}", str(value))]
    with answering(Process([program, *arguments], folder / "redis.log", {}), at):
        yield at


class _Redis:
    """One connection, as far as is needed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def call(self, *words: object) -> object:
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
        self._writer.write(b"".join(parts))
        return await self._answer()

    async def _answer(self) -> object:
        line = await self._reader.readline()
        kind, rest = line[:1], line[1:-2]
        assert kind != b"-", line
        if kind == b"*":
            return [await self._answer() for _ in range(int(rest))]
        if kind == b"$":
            return (await self._reader.readexactly(int(rest) + 2))[:-2] if rest != b"-1" else None
        return int(rest) if kind == b":" else rest

    def close(self) -> None:
        self._writer.close()


async def _fill_redis(at: Address, count: int) -> None:
    redis = _Redis(*await asyncio.open_connection(*at))
    for start in range(0, count, FILL):
        ids = range(start, min(start + FILL, count))
        await redis.call("HSET", "jobs", *[word for one in ids for word in (one, payload(PAYLOAD))])
        await redis.call("RPUSH", "ready", *ids)
    redis.close()


async def _lease_redis(at: Address) -> int:
    redis, done = _Redis(*await asyncio.open_connection(*at)), 0
    lease, ack = [await redis.call("SCRIPT", "LOAD", text) for text in (LEASE, ACK)]
    while found := await redis.call("EVALSHA", lease, 0, BATCH, time.time() + 30):
        ids, payloads = found  # type: ignore[misc]
        assert len(payloads) == len(ids)
        done += int(str(await redis.call("EVALSHA", ack, 0, *ids)))
    redis.close()
    return done


# -- beanstalkd


@contextmanager
def _beanstalkd(folder: Path) -> Iterator[Address | None]:
    program, at = shutil.which("beanstalkd"), ("127.0.0.1", free_port())
    if program is None:
        yield None
        return
    data = folder / "beanstalkd"
    data.mkdir()
    arguments = ["-l", at[0], "-p", str(at[1]), "-b", str(data), "-f", "0"]
    with answering(Process([program, *arguments], folder / "beanstalkd.log", {}), at):
        yield at


async def _fill_beanstalkd(at: Address, count: int) -> None:
    reader, writer = await asyncio.open_connection(*at)
    data = payload(PAYLOAD).encode()
    for start in range(0, count, FILL):
        some = min(FILL, count - start)
        writer.write(b"put 0 0 30 %d\r\n%b\r\n" % (len(data), data) * some)
        for _ in range(some):
            assert (await reader.readline()).startswith(b"INSERTED ")
    writer.close()


async def _reserve(at: Address) -> int:
    reader, writer = await asyncio.open_connection(*at)
    done = 0
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
            return done
        writer.write(b"".join(b"delete %b\r\n" % one for one in ids))
        for _ in ids:
            assert await reader.readline() == b"DELETED\r\n"
        done += len(ids)
