"""Redis with its append-only file, which it fsyncs before it answers: one fsync for all that one round of its
loop has taken.

A scheduled message is what people make of it there: its id in a sorted set by due time, its body in a hash.
To take what is due is one Lua script that moves the first ids that are due into a second sorted set, by when
the lease ends, and answers ids and bodies; to ack is another that removes both.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from ..exchange import Failed, Line, line_to
from ..process import Address
from ..workload import Draft
from . import Kind, program

TAKE = """
local ids = redis.call('ZRANGE', 'due', '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #ids == 0 then return {} end
local leases = {}
for i = 1, #ids do leases[2 * i - 1] = ARGV[3] leases[2 * i] = ids[i] end
redis.call('ZREM', 'due', unpack(ids))
redis.call('ZADD', 'leased', unpack(leases))
return {ids, redis.call('HMGET', 'messages', unpack(ids))}
"""
DONE = """
local done = redis.call('ZREM', 'leased', unpack(ARGV))
redis.call('HDEL', 'messages', unpack(ARGV))
return done
"""
LEASE_S = 30


def _arguments(folder: Path, port: int) -> Iterator[object]:
    """Of one on what `folder` has of the last, if there was one."""
    settings = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": ""}
    for key, value in (settings | {"appendonly": "yes", "appendfsync": "always"}).items():
        yield from (f"--{key}", value)


REDIS = Kind("Redis", "fsynced, append-only file", program("redis-server", _arguments))


def command(*words: object) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def scheduled(draft: Draft, number: int) -> bytes:
    """One message: two commands, two lines of answer."""
    body = f"{draft.topic} {draft.text}".encode()
    return command("HSET", "messages", number, body) + command("ZADD", "due", draft.due_ms, number)


def lines(count: int) -> "Counted":
    """The end of that many answers of one line each."""
    return Counted(count)


class Counted:
    """An `End`: so many integers."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, data: bytes) -> int:
        if b"-" in data:
            raise Failed(data[:500].decode(errors="replace"))
        return len(data) if data.count(b"\n") >= self._count else 0


def answer_end(data: bytes) -> int:
    """The end of one answer of any kind. Raises Failed."""
    return max(0, _walk(data, 0, []))


def _walk(data: bytes, at: int, found: list[bytes]) -> int:
    """Collect the bulk strings of the answer that begins at `at`; its end, -1 while it is incomplete."""
    left = 1
    while left:
        stop = data.find(b"\r\n", at)
        if stop < 0:
            return -1
        kind, left = data[at], left - 1
        if kind == 45:
            raise Failed(data[at:stop].decode())
        start = stop + 2
        if kind == 42:
            left += int(data[at + 1 : stop])
        elif kind == 36 and data[at + 1] != 45:
            length = int(data[at + 1 : stop])
            if start + length + 2 > len(data):
                return -1
            found.append(data[start : start + length])
            start += length + 2
        at = start
    return at


class Worker:
    """Takes what is due, and acks it; see the module."""

    def __init__(self, line: Line, take: bytes, done: bytes) -> None:
        self._line, self._take, self._done = line, take, done

    @classmethod
    async def at(cls, at: Address, take: str = TAKE, done: str = DONE) -> Self:
        """`take`: a script that is told now in ms, how many at most, and when the lease ends."""
        line = await line_to(at, answer_end)
        names = [(await line.ask(command("SCRIPT", "LOAD", text))).split(b"\r\n")[1] for text in (take, done)]
        return cls(line, *names)

    async def take(self, most: int) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Ids and bodies of what is due, `most` of it."""
        now = time.time()
        taking = command("EVALSHA", self._take, 0, int(now * 1000), most, int(now + LEASE_S))
        found: list[bytes] = []
        _walk(await self._line.ask(taking), 0, found)
        half = len(found) // 2
        return found[:half], found[half:]

    async def ack(self, ids: Sequence[bytes]) -> None:
        answer = await self._line.ask(command("EVALSHA", self._done, 0, *ids))
        assert answer == b":%d\r\n" % len(ids), answer

    def close(self) -> None:
        self._line.close()
