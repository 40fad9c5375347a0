"""A pool of workers that fail in every way, and a book of what each of them was given and did.

    posters   a message a request, due at once or soon; the group's name in none of them
    workers   three of one group, two by MQTT and one that pulls over HTTP: each delivery is acked now or a
              little later, nacked with or without a delay, kept too long and acked late, extended, never
              answered; connections end in order or not
    receiver  of an endpoint, which may take the place of the group: answers now or a little later, with 500,
              503 and a time, or never, or hangs up
    pauser    pauses the group and resumes it
    holder    of what orders: holds a key and lets it go
    mover     if all workers pull: moves messages

A puller's leases are its own over a kill: it goes on with them on the next server.

What follows from the book, whatever was killed when:

  - an answered message is done, or dead, or still to come;
  - what was acked a good while before a kill, or in a life that went on, is not given out again, nor dead;
  - no attempt is above `ATTEMPTS`, and none comes twice while a server lives, unless returned in order;
  - none comes before its due, before the time that a nack asked for, or while somebody has it;
  - if the group orders, of each key: first deliveries are in the order of positions, the next message comes
    when the one before is done or dead, and none while somebody has another one. If it limits its keys, none
    comes while so many are out.

What happened to a key, and its rows on disk after each kill, are kept for the account of a fault (`traces`).
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from server.codec import wire
from server.codec.fields import Properties
from server.codec.packets import Ack, Disconnect, Publish
from server.settings.times import parse_deliver_at
from tests.support.cluster import Node
from tests.support.http import Http, http
from tests.support.mqtt import Closed, Peer, dial, user, wall_ms
from tests.support.receiver import Got, answer
from tests.support.server import ServerProcess
from timeline.position import MessageId, Position, id_position

from .verified import rows_of_keys

SHARE = "$share/pool/work/#"
LEASE_MS = 1_000
ATTEMPTS = 6
BACKOFF_MS = 200
TERMS = (
    *(("ack-timeout", f"{LEASE_MS}ms"), ("max-attempts", str(ATTEMPTS))),
    *(("backoff", f"{BACKOFF_MS}ms,400ms,800ms"), ("expiry", "1h")),
)
RULES: dict[str, tuple[tuple[tuple[str, str], ...], int]] = {
    "": ((), 0),
    "order": ((("order", "true"),), 1),
    "pull": ((("order", "true"),), 1),
    "limits": ((("per-key-concurrency", "2"), ("fair", "true")), 2),
    "fair": ((("fair", "true"),), 0),
    "endpoint": ((), 1),
}
"""Further terms of the group, and how many of a key may be out; 0: any number. Of `pull` all workers pull.
Or an endpoint that orders."""
SURE_MS = 1_500
"""An ack this long before a kill is on disk (tests/support/ledger/arrivals.py)."""
SOON_MS = 700
"""An ack this long ago has been read, by a server that lives; and a message that was on its way is here."""
SLACK_MS = 200
"""By which a lease may begin before the time that the delivery says."""
EXTENDED_MS = 2_000
"""An extended lease ends so long from then, which may be earlier than before."""
WINDOW = 30
DRAIN_MS = 120_000
NEAR = 200
"""Deliveries of a key that may be out when another one comes."""
PULLER = "w-3"
WORKERS = ("w-1", "w-2", PULLER)
PULL = "/v1/groups/pool/messages:"
Server = ServerProcess | Node
GONE = (aiohttp.ClientError, OSError, TimeoutError, Closed)


@dataclass(slots=True)
class Given:
    """A delivery. Times are ms of the wall clock."""

    at_ms: int
    attempt: int
    life: int
    until_ms: int = 0
    """Until then the worker has it for certain, if it does not let it go."""
    is_leased: bool = False
    """By a pull: over a kill too."""
    acked_ms: int = 0
    """Its ack was sent then, and the connection stayed open for a while."""
    ack_sent_ms: int = 0
    let_go_ms: int = 0
    """By a nack or the end of the connection."""
    is_returned: bool = False
    """By a connection that ended in order: no try."""
    nacked_ms: int = 0
    """Likewise, of a nack that came long before the lease was over."""
    wait_ms: int = 0
    """What the nack asked for, or the least that the back-off comes to."""
    tag: str = ""
    key: str = ""

    def is_out(self, at_ms: int, life: int) -> bool:
        """Whether the worker has it then, for certain."""
        ends = [end for end in (self.ack_sent_ms, self.let_go_ms) if end]
        is_running = self.life == life or self.is_leased
        return is_running and at_ms < min([self.until_ms, *ends])


@dataclass(slots=True)
class Job:
    tag: str
    key: str = ""
    due_ms: int = 0
    is_answered: bool = False
    id: str = ""
    row: str = ""
    """The id of its row, if it was moved."""
    given: list[Given] = field(default_factory=list)

    @property
    def place(self) -> Position:
        return id_position(MessageId(int(self.row or self.id, 16)))

    def is_just_acked(self, given: Given) -> bool:
        """Whether an ack of another delivery was sent just before this one was read."""
        acks = [one.ack_sent_ms for one in self.given if one is not given and one.ack_sent_ms]
        return any(given.at_ms - SOON_MS < ack_ms <= given.at_ms for ack_ms in acks)

    def is_acked(self, at_ms: int) -> bool:
        """Whether an ack was sent by then, which ends the leases of all deliveries."""
        return any(0 < one.ack_sent_ms <= at_ms for one in self.given)

    def may_be_over(self, at_ms: int) -> bool:
        """Whether it may have been done or dead then: an ack was sent, or it was tried for the last time."""
        before = [one for one in self.given if one.at_ms <= at_ms]
        return self.is_acked(at_ms) or max((one.attempt for one in before), default=0) >= ATTEMPTS


@dataclass(slots=True)
class Came:
    """A delivery, by whichever door. `name`: by which the worker speaks of it."""

    tag: str
    id: str
    attempt: int
    due_ms: int
    name: Any
    until_ms: int
    """End of the lease."""


class Pool:
    """The book, and the clients of one server over its lives."""

    def __init__(self, chance: random.Random, rule: str = "") -> None:
        """`rule`: one of RULES."""
        self.chance = chance
        more, self.most = RULES[rule]
        self.is_endpoint, self.is_pull = rule == "endpoint", rule == "pull"
        self.name, self.place = "pool", "/v1/groups/pool"
        if self.is_endpoint:
            self.name, self.place = "hook", "/v1/endpoints/hook"
        self.terms = TERMS + more
        self.jobs: dict[str, Job] = {}
        self.given: list[tuple[Job, Given]] = []
        """All deliveries as they came."""
        self.kills_ms: list[int] = []
        self.faults: list[str] = []
        self.done: dict[str, int] = {}
        """What workers did, how often."""
        self.traces: dict[str, list[str]] = {}
        """What happened to each key, in order."""
        self.suspects: list[str] = []
        """The keys that `check` has found a fault with."""
        self.left: list[tuple[Given, str]] = []
        """Leases that a kill has left to whoever pulls next."""
        self.held: set[str] = set()
        """Keys that may be held by hand."""
        self.acking = asyncio.Event()
        """An ack is on its way."""
        self._tags = count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._life = 1
        self.is_kind = False
        """Everything is acked at once now."""

    # -- lives

    async def enlist(self, server: Server, url: str) -> None:
        """Once, at the beginning: the group, before any message; or the endpoint at `url`."""
        if self.is_endpoint:
            retry = {"max_attempts": ATTEMPTS, "backoff": [f"{BACKOFF_MS}ms", "400ms", "800ms"]}
            body = {
                "url": url,
                "order": True,
                "timeout": f"{LEASE_MS}ms",
                "concurrency": WINDOW,
                "retry": retry,
            }
            async with http(server.url) as calls:
                await calls.call("PUT", self.place, body, status=201)
            return
        peer = await dial(server.mqtt)
        await peer.connect("founder")
        await peer.subscribe(SHARE, user_properties=self.terms)
        await peer.close()

    def begin(self, server: Server) -> None:
        jobs: list[Callable[[Server], Coroutine[Any, Any, None]]] = [
            self._post,
            self._post,
            self._pause,
            *([self._hold] if self.most == 1 else []),
            *([self._move] if self.is_pull else []),
        ]
        works = [self._while_it_lives(job, server) for job in jobs]
        works += [self._while_it_lives(lambda s, n=name: self._work(s, n), server) for name in self.workers]  # type: ignore[misc]
        self._tasks = [asyncio.create_task(work) for work in works]

    @property
    def workers(self) -> tuple[str, ...]:
        return () if self.is_endpoint else WORKERS

    async def struck(self) -> None:
        """The next ack is on its way, and perhaps further."""
        self.acking.clear()
        if not self.is_endpoint:
            await self.acking.wait()
            await asyncio.sleep(0.005 * self.chance.random())

    def kill(self, server: Server) -> None:
        self.kills_ms.append(wall_ms())
        server.kill()

    async def died(self) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*self._tasks)
        self._life += 1

    async def drain(self, server: Server) -> set[str]:
        """Do all that is left; the messages that are dead then."""
        self.is_kind = True
        tasks = [asyncio.create_task(self._work(server, name)) for name in self.workers]
        async with http(server.url) as calls:
            await calls.call("POST", f"{self.place}:resume")
            for key in [*self.held]:
                await self._let_go(calls, key)
            quiet, until_ms = 0, wall_ms() + DRAIN_MS
            while quiet < 3:
                await asyncio.sleep(1)
                found = (await calls.call("GET", self.place, status=200)).body
                left = (found if self.is_endpoint else found["groups"][0])["undone"]
                open_ = left["lag"] or left["in_flight"] or left["retries"]
                pending = any(job.due_ms > wall_ms() for job in self.jobs.values())
                quiet = 0 if open_ or pending else quiet + 1
                assert wall_ms() < until_ms, f"it does not end: {found}"
            dead, cursor = set(), ""
            while True:
                page = (
                    await calls.call("GET", f"/v1/dead?group={self.name}&limit=1000{cursor}", status=200)
                ).body
                dead |= {one["payload"] for one in page["messages"]}
                if page["next"] is None:
                    break
                cursor = f"&cursor={page['next']}"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return dead

    async def _while_it_lives(
        self, job: Callable[[Server], Coroutine[Any, Any, None]], server: Server
    ) -> None:
        while server.is_running:
            with suppress(*GONE):
                await job(server)
            await asyncio.sleep(0.01)

    # -- clients

    async def _post(self, server: Server) -> None:
        async with http(server.url) as calls:
            while True:
                tag = f"j{next(self._tags)}"
                wait_ms = self.chance.choice((0, 0, 50, 400, 1_500))
                job = self.jobs[tag] = Job(tag, self._key())
                body = {"payload": tag, "deliver_in": f"{wait_ms}ms"}
                if self.is_endpoint:
                    body["deliver_to"] = self.name
                else:
                    body["topic"] = f"work/{self.chance.randrange(5)}"
                if job.key:
                    body["ordering_key"] = job.key
                answer = await calls.call("POST", "/v1/messages", body)
                if answer.status == 201:
                    job.is_answered, job.id = True, answer.body["id"]
                    job.due_ms = parse_deliver_at(answer.body["deliver_at"])
                    self.tell(job.key, f"posted {tag}, {job.id}, due {job.due_ms}")
                await asyncio.sleep(0.03 * self.chance.random())

    def _key(self) -> str:
        """None, one that many have, or one that few have."""
        few, many = self.chance.randrange(3), self.chance.randrange(60)
        return self.chance.choice(("", f"k{few}", f"k{many}", f"k{many}"))

    async def _pause(self, server: Server) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(2 * self.chance.random())
                await calls.call("POST", f"{self.place}:pause")
                await asyncio.sleep(0.2 * self.chance.random())
                await calls.call("POST", f"{self.place}:resume")

    async def _hold(self, server: Server) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(self.chance.random())
                key = self._key()
                if not key:
                    continue
                self.held.add(key)
                answer = await calls.call("POST", f"{self.place}/keys/{key}:hold")
                self.tell(key, f"held by hand: {answer.status}")
                await asyncio.sleep(0.4 * self.chance.random())
                for key in [*self.held]:
                    await self._let_go(calls, key)

    async def _let_go(self, calls: Http, key: str) -> None:
        answer = await calls.call("POST", f"{self.place}/keys/{key}:release")
        self.tell(key, f"let go by hand: {answer.status}")
        self.held.discard(key)

    async def _move(self, server: Server) -> None:
        """One of the last messages, ahead of its time. If nobody says whether it was, its key is unknown."""
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(0.1 * self.chance.random())
                job = self.chance.choice([*self.jobs.values()][-10:] or [Job("")])
                if not job.is_answered or job.given:
                    continue
                key, job.key, due_ms, job.due_ms = job.key, "", job.due_ms, 0
                wait_ms = self.chance.choice((0, 300, 1_000))
                answer = await calls.call("PATCH", f"/v1/messages/{job.id}", {"deliver_in": f"{wait_ms}ms"})
                job.due_ms = due_ms
                if answer.status == 200:
                    job.row, job.due_ms = answer.tag, parse_deliver_at(answer.body["deliver_at"])
                    self.tell(key, f"moved {job.tag} to {job.row}, due {job.due_ms}")
                job.key = key

    async def _work(self, server: Server, name: str) -> None:
        """Connections of one worker, one after the other."""
        async with http(server.url) as calls:
            while True:
                pulls = name == PULLER or self.is_pull
                door = _Pull(calls, self.chance) if pulls else await self._dialled(server, name)
                worker = _Worker(self, door, name)
                try:
                    async with asyncio.timeout(3600 if self.is_kind else 0.2 + 2 * self.chance.random()):
                        await worker.serve()
                except TimeoutError:
                    await worker.go()
                finally:
                    worker.end()
                    door.drop()
                    if not server.is_running:
                        self.left += worker.leases

    async def _dialled(self, server: Server, name: str) -> "_Mqtt":
        """With another id each time, or the same."""
        client = name if self.chance.random() < 0.5 else f"{name}-{self.chance.randrange(1 << 30)}"
        peer = await dial(server.mqtt)
        await peer.connect(client, receive_maximum=WINDOW)
        await peer.subscribe(SHARE, user_properties=self.terms)
        return _Mqtt(peer)

    async def posted(self, got: Got, writer: asyncio.StreamWriter) -> bool:
        """A post has come to the receiver."""
        said, due_ms = got.headers, parse_deliver_at(got.headers["fasti-due"])
        until_ms = wall_ms() + LEASE_MS - SLACK_MS
        came = Came(
            got.body.decode(), said["webhook-id"], int(said["fasti-attempt"]), due_ms, writer, until_ms
        )
        given = self.arrived(came, is_leased=False)
        ways = ("now", "soon", "500", "503", "never", "drop")
        what = "now" if self.is_kind else self.chance.choices(ways, (40, 20, 15, 5, 8, 12))[0]
        self.note(what)
        if what in ("soon", "500"):
            await asyncio.sleep(0.4 * self.chance.random())
        if what == "never":
            await asyncio.sleep(LEASE_MS / 1000 + 0.5)
            return False
        if any(kill_ms >= given.at_ms for kill_ms in self.kills_ms):
            return False
        at_ms = wall_ms()
        in_time_ms = at_ms if at_ms < given.until_ms else 0
        if what in ("now", "soon"):
            given.ack_sent_ms, given.acked_ms = at_ms, in_time_ms
            return await answer(200)(got, writer)
        given.let_go_ms, given.nacked_ms = at_ms, in_time_ms
        given.wait_ms = 1_000 if what == "503" else BACKOFF_MS * 8 // 10
        if what == "drop":
            return False
        return await answer(int(what), "Retry-After: 1")(got, writer)

    def is_acked(self, given: Given) -> bool:
        """Whether an ack of the message was sent, by anybody."""
        job = self.jobs.get(given.tag)
        return job is None or job.is_acked(wall_ms())

    def missed(self, given: Given, what: str) -> None:
        """The server did not know a lease. Of one that goes on it has to."""
        if wall_ms() < given.until_ms and not given.let_go_ms:
            self.faults.append(f"{what} of a lease was refused: {given}")
            self.suspects.append(given.key)

    def note(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def tell(self, key: str, what: str) -> None:
        if key:
            self.traces.setdefault(key, []).append(f"{wall_ms()} life {self._life}: {what}")

    def note_rows(self, data: Path) -> None:
        """Between two lives: what stands on disk of each key."""
        if self.most != 1 or self.is_endpoint:
            return
        rows = rows_of_keys(data, SHARE)
        for key in self.traces:
            self.tell(key, f"on disk: {rows.get(key, 'no row')}; in flight: {rows.get('')}")

    def accounts(self) -> list[str]:
        """All that happened to some of the keys that `check` has found a fault with."""
        return [f"key {key}:\n  " + "\n  ".join(self.traces.get(key, [])) for key in self.suspects[:3]]

    def arrived(self, came: Came, *, is_leased: bool) -> Given:
        job, now_ms = self.jobs.get(came.tag), wall_ms()
        given = Given(now_ms, came.attempt, self._life, came.until_ms, is_leased)
        if job is None:
            self.faults.append(f"strange {came.tag}")
            return given
        if given.at_ms < max(came.due_ms, job.due_ms):
            self.faults.append(f"early: {came.tag} at {given.at_ms}, due {came.due_ms}, {job.due_ms}")
        if given.attempt > ATTEMPTS + self._lives_of(job):
            self.faults.append(f"attempt {given.attempt} of {came.tag}")
        job.id = job.id or came.id
        given.tag, given.key = job.tag, job.key
        job.given.append(given)
        self.given.append((job, given))
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
        lines: dict[str, list[tuple[Job, Given]]] = {}
        for job, given in self.given if self.most else ():
            lines.setdefault(job.key, []).append((job, given))
        for key, line in lines.items():
            faults = disorder(line, dead, self.most) if key else []
            self.suspects += [key] if faults else []
            found += faults
        return found

    def _check(self, job: Job, is_dead: bool) -> list[str]:
        found = []
        acks = [one.acked_ms for one in job.given if one.acked_ms]
        if job.is_answered and not is_dead and not any(one.ack_sent_ms for one in job.given):
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
            if one.life == other.life and not one.let_go_ms and other.at_ms < one.until_ms:
                found.append(f"with two at once: {job}")
        return found

    def _is_sure(self, at_ms: int) -> bool:
        """The server went on for a while."""
        return not any(at_ms - 200 <= kill_ms <= at_ms + SURE_MS for kill_ms in self.kills_ms)


def disorder(line: list[tuple[Job, Given]], dead: set[str], most: int = 1) -> list[str]:
    """What is wrong with the deliveries of a key, in the order in which they came. `most`: how many may be
    out; with more than one they are in any order."""
    found: list[str] = []
    begun: dict[str, Job] = {}
    for at, (job, given) in enumerate(line):
        if job.is_just_acked(given):
            continue  # it was on its way when it was acked late
        near = line[max(0, at - NEAR) : at]
        out = [
            one for one in near if not one[0].is_acked(given.at_ms) and one[1].is_out(given.at_ms, given.life)
        ]
        if len(out) >= most:
            found.append(f"too many of a key out: {job}, {out}")
        if most > 1:
            continue
        if at and line[at - 1][1].life == given.life and job.place < line[at - 1][0].place:
            found.append(f"out of order: {job} after {line[at - 1][0]}")
        if job.tag in begun:
            continue
        if any(job.place < other.place for other in begun.values()):
            found.append(f"first out of order: {job}")
        passed = [x for x in begun.values() if x.tag not in dead and not x.may_be_over(given.at_ms)]
        if passed:
            found.append(f"went by: {job}, {passed}")
        begun[job.tag] = job
    return found


class _Mqtt:
    """A connection of a worker."""

    is_leased = False

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    @property
    def is_closed(self) -> bool:
        return self._peer.is_closed

    async def take(self) -> list[Came]:
        packet = await self._peer.take(Publish, 3_600)
        due_ms = parse_deliver_at(user(packet, "fasti-due") or "")
        attempt, late_ms = int(user(packet, "fasti-attempt") or 1), int(user(packet, "fasti-late-ms") or 0)
        tag, name = packet.payload.decode(), user(packet, "fasti-id") or ""
        return [Came(tag, name, attempt, due_ms, packet, due_ms + late_ms + LEASE_MS - SLACK_MS)]

    async def ack(self, packet: Publish) -> bool:
        self._peer.ack(packet)
        return not self._peer.is_closed

    async def nack(self, packet: Publish, wait_ms: int | None) -> None:
        said = "auto" if wait_ms is None else f"{wait_ms}ms"
        properties = Properties(user_properties=(("retry-in", said), ("reason", "not now")))
        self._peer.send(Ack(wire.PUBACK, packet.packet_id, 0x80, properties))

    async def extend(self, packet: Publish) -> None:
        self._peer.put("$control/extend", f'{{"packet_id":{packet.packet_id},"for":"{EXTENDED_MS}ms"}}')

    async def go(self, way: str, _: Iterable[Publish]) -> None:
        if way == "disconnect":
            await self._peer.close()
        elif way == "error":
            self._peer.send(Disconnect(0x83))
            await self._peer.hang_up()
        elif way == "fin":
            await self._peer.hang_up()

    def drop(self) -> None:
        self._peer.drop()


class _Pull:
    """A worker that pulls. What it does not give back is its own, though nobody hears of it any more."""

    is_leased = True
    is_closed = False

    def __init__(self, calls: Http, chance: random.Random) -> None:
        self._calls = calls
        self._chance = chance

    async def take(self) -> list[Came]:
        seconds = self._chance.choice((1, 1, 4))
        body = {"max": self._chance.randint(1, WINDOW), "wait": "500ms", "lease": f"{seconds}s"}
        answer = await self._calls.call("POST", f"{PULL}lease", body, status=200)
        return [
            Came(
                one["payload"],
                one["id"],
                one["attempt"],
                parse_deliver_at(one["deliver_at"]),
                one["lease_id"],
                parse_deliver_at(one["lease_until"]),
            )
            for one in answer.body["messages"]
        ]

    async def ack(self, lease: str) -> bool:
        return bool((await self._say("ack", lease))["acked"])

    async def nack(self, lease: str, wait_ms: int | None) -> Any:
        more = {} if wait_ms is None else {"delay": f"{wait_ms}ms"}
        return await self._say("nack", lease, reason="not now", **more)

    async def extend(self, lease: str) -> Any:
        return await self._say("extend", lease, lease=f"{EXTENDED_MS}ms")

    async def go(self, way: str, leases: Iterable[str]) -> None:
        if way == "disconnect":
            await self._say("release", *leases)

    def drop(self) -> None:
        """Its connection is the next one's."""

    async def _say(self, what: str, *leases: str, **more: object) -> Any:
        body = {"lease_ids": leases, **more}
        return (await self._calls.call("POST", PULL + what, body, status=200)).body if leases else {}


class _Worker:
    """What is done with what comes by one connection."""

    def __init__(self, pool: Pool, door: _Mqtt | _Pull, name: str) -> None:
        self._pool = pool
        self._door: Any = door
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self._given: list[tuple[Given, Any]] = []

    async def serve(self) -> None:
        if self._door.is_leased:
            left, self._pool.left = self._pool.left, []
            for given, name in left:
                self._tell(given, f"goes on with {name[:12]}, of an earlier life")
                self._begin(given, name)
        while True:
            for came in await self._door.take():
                given = self._pool.arrived(came, is_leased=self._door.is_leased)
                lease = f", lease {came.name[:12]}" if self._door.is_leased else ""
                self._tell(given, f"has {came.id}, try {came.attempt}, until {came.until_ms}{lease}")
                self._begin(given, came.name)

    def _begin(self, given: Given, name: Any) -> None:
        self._given.append((given, name))
        task = asyncio.create_task(self._treat(name, given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, given: Given, what: str) -> None:
        self._pool.tell(given.key, f"{self._name}, {given.tag}: {what}")

    async def _told(self, given: Given, what: str, call: Coroutine[Any, Any, Any]) -> Any:
        self._tell(given, what)
        answer = await call
        self._tell(given, f"{what}: {answer}")
        return answer

    @property
    def leases(self) -> list[tuple[Given, Any]]:
        """What it has neither acked nor let go, of a puller."""
        return [
            one for one in self._given if one[0].is_leased and not (one[0].ack_sent_ms or one[0].let_go_ms)
        ]

    async def go(self) -> None:
        """The connection ends, one way or another."""
        way = self._pool.chance.choice(("disconnect", "fin", "reset", "error"))
        names = []
        for given, name in self._given:
            if way == "disconnect" or not self._door.is_leased:
                given.let_go_ms = given.let_go_ms or wall_ms()
                given.is_returned = way == "disconnect"
                self._tell(given, f"leaves: {way}")
                names.append(name)
        self._pool.note(way)
        await self._door.go(way, names)

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _treat(self, name: Any, given: Given) -> None:
        with suppress(*GONE):
            await self._do(name, given)

    async def _do(self, name: Any, given: Given) -> None:
        chance = self._pool.chance
        if self._pool.is_kind:
            await self._ack(name, given)
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
            given.until_ms = min(given.until_ms, wall_ms() + EXTENDED_MS - SLACK_MS)
            is_acked = self._pool.is_acked(given)
            found = await self._told(given, "extend", self._door.extend(name))
            if self._door.is_leased and not (found["extended"] or is_acked):
                self._pool.missed(given, "more time")
            await asyncio.sleep(1.8 * chance.random())
        if what in ("nack", "auto"):
            await asyncio.sleep(0.2 * chance.random())
            await self._nack(name, given, None if what == "auto" else chance.randrange(900))
        elif what == "nack and ack":
            await self._nack(name, given, 0)
        elif what != "never":
            await self._ack(name, given)
            if what == "twice":
                await self._told(given, "ack again", self._door.ack(name))

    async def _ack(self, name: Any, given: Given) -> None:
        acked_ms = wall_ms()
        if not self._door.is_closed:
            given.ack_sent_ms = given.ack_sent_ms or acked_ms
        self._pool.acking.set()
        is_acked = self._pool.is_acked(given)
        is_taken = await self._told(given, "ack", self._door.ack(name))
        if not (is_taken or is_acked) and self._door.is_leased:
            self._pool.missed(given, "an ack")
        if not self._pool.is_kind:
            await asyncio.sleep(0.3)
        if is_taken and not self._door.is_closed:
            given.acked_ms = acked_ms

    async def _nack(self, name: Any, given: Given, wait_ms: int | None) -> None:
        at_ms = wall_ms()
        given.let_go_ms = given.let_go_ms or at_ms
        await self._told(given, f"nack for {wait_ms} ms", self._door.nack(name, wait_ms))
        await asyncio.sleep(0.3)
        if not self._door.is_closed and at_ms < given.until_ms:
            given.nacked_ms = at_ms
            given.wait_ms = BACKOFF_MS * 8 // 10 if wait_ms is None else wait_ms
