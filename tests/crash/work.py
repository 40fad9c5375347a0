"""A pool of workers that fail in every way, and a book of what each of them was given and did.

    posters   a message a request, due at once or soon; the group's name in none of them
    workers   three of one group: each delivery is acked now or a little later, nacked with or without a
              delay, kept too long and acked late, extended, never answered; connections end in order or not
    pauser    pauses the group and resumes it

What follows from the book, whatever was killed when:

  - an answered message is done, or dead, or still to come;
  - what was acked a good while before a kill, or in a life that went on, is not given out again, nor dead;
  - no attempt is above `ATTEMPTS`, and none comes twice while a server lives, unless returned in order;
  - none comes before its due, before the time that a nack asked for, or while somebody has it.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

from server.codec import wire
from server.codec.fields import Properties
from server.codec.packets import Ack, Disconnect, Publish
from server.settings.times import parse_deliver_at
from tests.support.http import http
from tests.support.mqtt import Closed, Peer, dial, user, wall_ms
from tests.support.server import ServerProcess

SHARE = "$share/pool/work/#"
LEASE_MS = 1_000
ATTEMPTS = 6
BACKOFF_MS = 200
TERMS = (
    *(("ack-timeout", f"{LEASE_MS}ms"), ("max-attempts", str(ATTEMPTS))),
    *(("backoff", f"{BACKOFF_MS}ms,400ms,800ms"), ("expiry", "1h")),
)
SURE_MS = 1_500
"""An ack this long before a kill is on disk (ledger.py)."""
SOON_MS = 700
"""An ack this long ago has been read, by a server that lives; and a message that was on its way is here."""
SLACK_MS = 200
"""By which a delivery may be read here later than the server gave it."""
WINDOW = 30
WORKERS = ("w-1", "w-2", "w-3")
GONE = (aiohttp.ClientError, OSError, TimeoutError, Closed)


@dataclass(slots=True)
class Given:
    """A delivery. Times are ms of the wall clock."""

    at_ms: int
    attempt: int
    life: int
    acked_ms: int = 0
    """Its ack was sent then, and the connection stayed open for a while."""
    may_be_done: bool = False
    """An ack was sent."""
    is_let_go: bool = False
    """By a nack or the end of the connection."""
    is_returned: bool = False
    """By a connection that ended in order: no try."""
    nacked_ms: int = 0
    """Likewise, of a nack that came long before the lease was over."""
    wait_ms: int = 0
    """What the nack asked for, or the least that the back-off comes to."""


@dataclass(slots=True)
class Job:
    tag: str
    due_ms: int
    is_answered: bool = False
    id: str = ""
    given: list[Given] = field(default_factory=list)


class Pool:
    """The book, and the clients of one server over its lives."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.jobs: dict[str, Job] = {}
        self.kills_ms: list[int] = []
        self.faults: list[str] = []
        self.done: dict[str, int] = {}
        """What workers did, how often."""
        self._tags = count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._life = 0
        self.is_kind = False
        """Everything is acked at once now."""

    # -- lives

    async def enlist(self, server: ServerProcess) -> None:
        """Once, at the beginning: the group, before any message."""
        peer = await dial(server.mqtt)
        await peer.connect("founder")
        await peer.subscribe(SHARE, user_properties=TERMS)
        await peer.close()

    def begin(self, server: ServerProcess) -> None:
        self._life += 1
        jobs: list[Callable[[ServerProcess], Coroutine[Any, Any, None]]] = [
            self._post,
            self._post,
            self._pause,
        ]
        works = [self._while_it_lives(job, server) for job in jobs]
        works += [self._while_it_lives(lambda s, n=name: self._work(s, n), server) for name in WORKERS]  # type: ignore[misc]
        self._tasks = [asyncio.create_task(work) for work in works]

    def kill(self, server: ServerProcess) -> None:
        self.kills_ms.append(wall_ms())
        server.kill()

    async def died(self) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*self._tasks)

    async def drain(self, server: ServerProcess) -> set[str]:
        """Do all that is left; the messages that are dead then."""
        self._life += 1
        self.is_kind = True
        tasks = [asyncio.create_task(self._work(server, name)) for name in WORKERS]
        async with http(server.url) as calls:
            await calls.call("POST", "/v1/groups/pool:resume")
            quiet = 0
            while quiet < 3:
                await asyncio.sleep(1)
                group = (await calls.call("GET", "/v1/groups/pool", status=200)).body
                open_ = [s for s in group["groups"] if s["in_flight"] or s["lag_messages"]]
                pending = (await calls.metrics()).get("fasti_messages_pending", 0)
                quiet = 0 if open_ or pending else quiet + 1
            dead, cursor = set(), ""
            while True:
                page = (await calls.call("GET", f"/v1/dead?group=pool&limit=1000{cursor}", status=200)).body
                dead |= {one["payload"] for one in page["messages"]}
                if page["next"] is None:
                    break
                cursor = f"&cursor={page['next']}"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return dead

    async def _while_it_lives(
        self, job: Callable[[ServerProcess], Coroutine[Any, Any, None]], server: ServerProcess
    ) -> None:
        while server.process.poll() is None:
            with suppress(*GONE):
                await job(server)
            await asyncio.sleep(0.01)

    # -- clients

    async def _post(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                tag = f"j{next(self._tags)}"
                wait_ms = self.chance.choice((0, 0, 50, 400, 1_500))
                job = self.jobs[tag] = Job(tag, 0)
                body = {
                    "topic": f"work/{self.chance.randrange(5)}",
                    "payload": tag,
                    "deliver_in": f"{wait_ms}ms",
                }
                answer = await calls.call("POST", "/v1/messages", body)
                if answer.status == 201:
                    job.is_answered, job.id = True, answer.body["id"]
                    job.due_ms = parse_deliver_at(answer.body["deliver_at"])
                await asyncio.sleep(0.03 * self.chance.random())

    async def _pause(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(2 * self.chance.random())
                await calls.call("POST", "/v1/groups/pool:pause")
                await asyncio.sleep(0.2 * self.chance.random())
                await calls.call("POST", "/v1/groups/pool:resume")

    async def _work(self, server: ServerProcess, name: str) -> None:
        """Connections of one worker, one after the other. With another id each, or the same."""
        while True:
            client = name if self.chance.random() < 0.5 else f"{name}-{self.chance.randrange(1 << 30)}"
            peer = await dial(server.mqtt)
            await peer.connect(client, receive_maximum=WINDOW)
            await peer.subscribe(SHARE, user_properties=TERMS)
            worker = _Worker(self, peer)
            try:
                async with asyncio.timeout(3600 if self.is_kind else 0.2 + 2 * self.chance.random()):
                    await worker.serve()
            except TimeoutError:
                await worker.go()
            finally:
                worker.end()
                peer.drop()

    def note(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def arrived(self, tag: str, packet: Publish) -> Given:
        job = self.jobs.get(tag)
        given = Given(wall_ms(), int(user(packet, "fasti-attempt") or 1), self._life)
        if job is None:
            self.faults.append(f"strange {tag}")
            return given
        due_ms = parse_deliver_at(user(packet, "fasti-due") or "")
        if given.at_ms < max(due_ms, job.due_ms):
            self.faults.append(f"early: {tag} at {given.at_ms}, due {due_ms}, {job.due_ms}")
        if given.attempt > ATTEMPTS + self._lives_of(job):
            self.faults.append(f"attempt {given.attempt} of {tag}")
        job.given.append(given)
        return given

    def _lives_of(self, job: Job) -> int:
        """Attempts that a kill has taken from the count, or added to it."""
        return len({one.life for one in job.given})

    # -- what follows

    def summary(self, dead: set[str]) -> str:
        given = sum(len(job.given) for job in self.jobs.values())
        what = ", ".join(f"{what} {times}" for what, times in sorted(self.done.items()))
        return (
            f"{len(self.jobs)} jobs, {given} deliveries, {len(dead)} dead, {len(self.kills_ms)} kills; {what}"
        )

    def check(self, dead: set[str]) -> list[str]:
        found = list(self.faults)
        for job in self.jobs.values():
            found += self._check(job, job.tag in dead)
        return found

    def _check(self, job: Job, is_dead: bool) -> list[str]:
        found = []
        acks = [one.acked_ms for one in job.given if one.acked_ms]
        if job.is_answered and not is_dead and not any(one.may_be_done for one in job.given):
            found.append(f"lost: {job}")
        sure = [ms for ms in acks if self._is_sure(ms)]
        if sure:
            late = [one for one in job.given if one.at_ms > min(sure) + SOON_MS]
            if late:
                found.append(f"again after an ack at {min(sure)}: {job}")
            if is_dead:
                found.append(f"dead and acked at {min(sure)}: {job}")
        for one, other in zip(job.given, job.given[1:], strict=False):
            if one.life == other.life and other.attempt < one.attempt + (not one.is_returned):
                found.append(f"attempts run backward: {job}")
            if one.life != other.life and other.attempt < one.attempt and self._is_sure(one.at_ms):
                found.append(f"attempts run backward over a kill: {job}")
            if one.nacked_ms and other.at_ms < one.nacked_ms + one.wait_ms and self._is_sure(one.nacked_ms):
                found.append(f"before its nack asked for: {job}")
            if one.life == other.life and not one.is_let_go and other.at_ms < one.at_ms + LEASE_MS - SLACK_MS:
                found.append(f"with two at once: {job}")
        return found

    def _is_sure(self, at_ms: int) -> bool:
        """The server went on for a while."""
        return not any(at_ms - 200 <= kill_ms <= at_ms + SURE_MS for kill_ms in self.kills_ms)


class _Worker:
    """One connection."""

    def __init__(self, pool: Pool, peer: Peer) -> None:
        self._pool = pool
        self._peer = peer
        self._tasks: set[asyncio.Task[None]] = set()
        self._given: list[Given] = []

    async def serve(self) -> None:
        while True:
            packet = await self._peer.take(Publish, 3_600)
            given = self._pool.arrived(packet.payload.decode(), packet)
            self._given.append(given)
            task = asyncio.create_task(self._treat(packet, given))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def go(self) -> None:
        """The connection ends, one way or another."""
        way = self._pool.chance.choice(("disconnect", "fin", "reset", "error"))
        for given in self._given:
            given.is_let_go = True
            given.is_returned = way == "disconnect"
        self._pool.note(way)
        if way == "disconnect":
            await self._peer.close()
        elif way == "error":
            self._peer.send(Disconnect(0x83))
            await self._peer.hang_up()
        elif way == "fin":
            await self._peer.hang_up()

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _treat(self, packet: Publish, given: Given) -> None:
        chance = self._pool.chance
        if self._pool.is_kind:
            await self._ack(packet, given)
            return
        what = chance.choices(
            ("now", "soon", "nack", "auto", "late", "very late", "never", "extend", "twice", "nack and ack"),
            (35, 15, 12, 8, 8, 4, 6, 5, 4, 3),
        )[0]
        self._pool.note(what)
        if what == "soon":
            await asyncio.sleep(0.4 * chance.random())
        elif what == "late":
            await asyncio.sleep(LEASE_MS / 1000 + 0.6 * chance.random())
        elif what == "very late":
            await asyncio.sleep(LEASE_MS / 1000 + 2 * chance.random())
        elif what == "extend":
            await asyncio.sleep(0.5 * chance.random())
            self._peer.put("$control/extend", f'{{"packet_id":{packet.packet_id},"for":"2s"}}')
            await asyncio.sleep(1.8 * chance.random())
        if what in ("nack", "auto"):
            await asyncio.sleep(0.2 * chance.random())
            await self._nack(packet, given, None if what == "auto" else chance.randrange(900))
        elif what == "nack and ack":
            await self._nack(packet, given, 0)
        elif what != "never":
            await self._ack(packet, given)
            if what == "twice":
                self._peer.ack(packet)

    async def _ack(self, packet: Publish, given: Given) -> None:
        self._peer.ack(packet)
        given.may_be_done = not self._peer.is_closed
        acked_ms = wall_ms()
        if not self._pool.is_kind:
            await asyncio.sleep(0.3)
        if not self._peer.is_closed:
            given.acked_ms = acked_ms

    async def _nack(self, packet: Publish, given: Given, wait_ms: int | None) -> None:
        said = "auto" if wait_ms is None else f"{wait_ms}ms"
        properties = Properties(user_properties=(("retry-in", said), ("reason", "not now")))
        at_ms = wall_ms()
        given.is_let_go = True
        self._peer.send(Ack(wire.PUBACK, packet.packet_id, 0x80, properties))
        await asyncio.sleep(0.3)
        if not self._peer.is_closed and at_ms - given.at_ms < LEASE_MS // 2:
            given.nacked_ms = at_ms
            given.wait_ms = BACKOFF_MS * 8 // 10 if wait_ms is None else wait_ms
