"""A pool of workers that fail in every way, and what each of them tells the account of deliveries.

    posters   a message a request, due at once or soon; the group's name in none of them
    workers   three of one group, two by MQTT and one that pulls over HTTP: each delivery is acked now or a
              little later, nacked with or without a delay, kept too long and acked late, extended, never
              answered; connections end in order or not
    receiver  of an endpoint, which may take the place of the group: answers now or a little later, with 500,
              503 and a time, or never, or hangs up
    pauser    pauses the group and resumes it
    holder    of what orders: holds a key and lets it go
    mover     if all workers pull: moves messages

What a worker has is its own over a kill and over a stop: a puller goes on with its leases on the next server.
Who has a message over MQTT says so on the next connection, and acks it by its id, or forgets it.

The account (tests/support/ledger/) hears what was asked and answered, given, acked, nacked, extended and let
go, and what was killed when, by the wall clock: what a client has sent is read a little later, or with the
end of its connection perhaps not at all.
"""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any

import aiohttp

from server.codec import wire
from server.codec.packets import Ack, Disconnect, Properties, Publish
from server.settings.times import parse_deliver_at
from tests.support.cluster import Node
from tests.support.http import Http, http
from tests.support.ledger.deliveries import Deliveries
from tests.support.ledger.messages import Message
from tests.support.ledger.stakes import Stake
from tests.support.ledger.words import FLIGHT
from tests.support.mqtt import Closed, Peer, dial, user, wall_ms
from tests.support.receiver import Got, answer
from tests.support.server import ServerProcess

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
SURE_S = 1.5
"""An ack this long before a kill is on disk (tests/support/ledger/arrivals.py)."""
SOON_S = 0.7
"""An ack this long ago has been read, by a server that lives; and a message that was on its way is here."""
READ_S = 0.3
"""What was sent so long before its connection ends has been read."""
LEFT_S = 0.03
"""A connection that was ended is at its end so soon, and no retry has come yet of what was on its way."""
SLACK_MS = 200
"""By which a lease may begin before the time that the delivery says."""
EXTENDED_MS = 2_000
"""An extended lease ends so long from then, which may be earlier than before."""
WINDOW = 30
DRAIN_MS = 120_000
PULLER = "w-3"
WORKERS = ("w-1", "w-2", PULLER)
PULL = "/v1/groups/pool/messages:"
Server = ServerProcess | Node
GONE = (aiohttp.ClientError, OSError, TimeoutError, Closed)


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
    is_leased: bool = False
    """By a pull: over the end of a connection too."""
    is_again: bool = False
    """It says that somebody may have had it before."""
    stake: Stake = field(default_factory=lambda: Stake(Message("", "", 0)))
    number: int = 0
    """Which delivery of its message it is."""
    is_over: bool = False
    """An ack or a nack was sent, or it was let go."""
    nacked_at: float = 0.0


class Pool:
    """The clients of one server over its lives, and the account of what they are owed."""

    def __init__(self, chance: random.Random, rule: str = "") -> None:
        """`rule`: one of RULES."""
        self.chance = chance
        more, most = RULES[rule]
        self.is_endpoint, self.is_pull = rule == "endpoint", rule == "pull"
        self.name, self.path = "pool", "/v1/groups/pool"
        if self.is_endpoint:
            self.name, self.path = "hook", "/v1/endpoints/hook"
        self.terms = TERMS + more
        self.workers = () if self.is_endpoint else WORKERS
        self.account = Deliveries(wall_ms(), sure=SURE_S, soon=SOON_S, near=0)
        kind = "endpoint" if self.is_endpoint else "group"
        self.place = self.account.lives.opened(kind, self.name, "work/#", max_tries=ATTEMPTS)
        self.place.most, self.place.is_ordered = most, most == 1
        self.place.backoff = tuple(ms * 8 // 10 for ms in (BACKOFF_MS, 400, 800))
        self.jobs: dict[str, Message] = {}
        """Messages by their text."""
        self.done: dict[str, int] = {}
        """What workers did, how often."""
        self.left: list[Came] = []
        """Leases that a kill has left to whoever pulls next."""
        self.kept: dict[str, list[Came]] = {}
        """By worker, what it has had over MQTT since before the start."""
        self.is_stopping = False
        self.held: set[str] = set()
        """Keys that may be held by hand."""
        self.acking = asyncio.Event()
        """An ack is on its way."""
        self._tags = count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self.life, self._killed_at = 1, 0.0
        self._ahead: dict[str, Message] = {}
        """Those that are not due yet."""
        self._timed: dict[str, Stake] = {}
        """What somebody has, or has acked of late."""
        self.is_kind = False
        """Everything is acked at once now."""

    # -- lives

    async def enlist(self, server: Server, url: str) -> None:
        """Once, at the beginning: the group, before any message; or the endpoint at `url`."""
        if self.is_endpoint:
            retry = {"max_attempts": ATTEMPTS, "backoff": [f"{BACKOFF_MS}ms", "400ms", "800ms"]}
            times = {"timeout": f"{LEASE_MS}ms", "retry": retry}
            body = {"url": url, "order": True, "concurrency": WINDOW, **times}
            async with http(server.url) as calls:
                await calls.call("PUT", self.path, body, status=201)
            return
        peer = await dial(server.mqtt)
        await peer.connect("founder")
        await peer.subscribe(SHARE, user_properties=self.terms)
        await peer.close()

    def begin(self, server: Server) -> None:
        self.account.down_until, self.is_stopping = self.now(), False
        jobs: list[Callable[[Server], Coroutine[Any, Any, None]]] = [
            self._post,
            self._post,
            self._pause,
            *([self._hold] if self.place.most == 1 else []),
            *([self._move] if self.is_pull else []),
        ]
        works = [self._while_it_lives(job, server) for job in jobs]
        works += [self._while_it_lives(lambda s, n=name: self._work(s, n), server) for name in self.workers]  # type: ignore[misc]
        self._tasks = [asyncio.create_task(work) for work in works]

    async def struck(self) -> None:
        """The next ack is on its way, and perhaps further."""
        self.acking.clear()
        if not self.is_endpoint:
            await self.acking.wait()
            await asyncio.sleep(0.005 * self.chance.random())

    def kill(self, server: Server) -> None:
        self._killed_at = self.now()
        server.kill()

    async def stop(self, server: Server) -> int:
        """In order; the exit code. Nobody leaves meanwhile, or who knows which came first."""
        self.is_stopping = True
        await asyncio.sleep(READ_S)
        code = await asyncio.to_thread(server.stop)
        self._killed_at = self.now()
        return code or 0

    async def died(self, *, was_killed: bool = True) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*self._tasks)
        self.now()
        self.account.losses.restarted(self._killed_at, was_killed=was_killed)
        self.account.down_until = inf
        self.life, self._killed_at = self.life + 1, 0.0

    async def drain(self, server: Server) -> int:
        """Do all that is left; how many messages are dead then."""
        self.is_kind = True
        self.account.down_until = self.now()
        tasks = [asyncio.create_task(self._work(server, name)) for name in self.workers]
        async with http(server.url) as calls:
            await calls.call("POST", f"{self.path}:resume")
            for key in [*self.held]:
                await self._let_go(calls, key)
            quiet, until_ms = 0, wall_ms() + DRAIN_MS
            while quiet < 3:
                await asyncio.sleep(1)
                found = (await calls.call("GET", self.path, status=200)).body
                left = (found if self.is_endpoint else found["groups"][0])["undone"]
                open_ = left["lag"] or left["in_flight"] or left["retries"]
                pending = any(job.due > wall_ms() for job in self.jobs.values())
                quiet = 0 if open_ or pending else quiet + 1
                assert wall_ms() < until_ms, f"it does not end: {found}"
            dead, cursor = list[tuple[str, str, str]](), ""
            while True:
                path = f"/v1/dead?group={self.name}&limit=1000{cursor}"
                page = (await calls.call("GET", path, status=200)).body
                dead += [(self.name, self.jobs[x["payload"]].id, x["reason"]) for x in page["messages"]]
                if page["next"] is None:
                    break
                cursor = f"&cursor={page['next']}"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.now()
        for _, name, _ in dead:
            self.account.looks.shown(self.place, name, "dead")
        self.account.looks.dead_letters(dead)
        self.account.at_the_end(is_quiet=True)
        return len(dead)

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
                to, topic = (self.name, "") if self.is_endpoint else ("", f"work/{self.chance.randrange(5)}")
                job = self.jobs[tag] = Message("", topic, 0, tag=tag, key=self._key(), to=to)
                body = {"payload": tag, "deliver_in": f"{wait_ms}ms"}
                body |= {"deliver_to": to} if to else {"topic": topic}
                if job.key:
                    body["ordering_key"] = job.key
                answer = await calls.call("POST", "/v1/messages", body)
                if answer.status == 201:
                    self._accepted(job, answer.body["id"], parse_deliver_at(answer.body["deliver_at"]))
                await asyncio.sleep(0.03 * self.chance.random())

    def _accepted(self, job: Message, name: str, due: int) -> None:
        if job.is_accepted:
            return
        job.id, job.row, job.due = name, name, due
        self.now()
        self._ahead[name] = job
        self.account.accepted(job)

    def now(self) -> float:
        """The account hears what time it is, on the wall, in seconds."""
        now_ms = self.account.book.step = max(wall_ms(), self.account.clock.high)
        self.account.arrived(now_ms, [job for job in self._ahead.values() if job.due <= now_ms])
        self._ahead = {name: job for name, job in self._ahead.items() if name not in self.place.stakes}
        self.account.lapse(now_ms / 1_000, [(self.place, stake) for stake in self._timed.values()])
        timed = self._timed.items()
        self._timed = {name: one for name, one in timed if one.lapses is not None or one.ack_read}
        return now_ms / 1_000

    def _key(self) -> str:
        """None, one that many have, or one that few have."""
        few, many = self.chance.randrange(3), self.chance.randrange(60)
        return self.chance.choice(("", f"k{few}", f"k{many}", f"k{many}"))

    async def _pause(self, server: Server) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(2 * self.chance.random())
                await calls.call("POST", f"{self.path}:pause")
                await asyncio.sleep(0.2 * self.chance.random())
                await calls.call("POST", f"{self.path}:resume")

    async def _hold(self, server: Server) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(self.chance.random())
                key = self._key()
                if not key:
                    continue
                self.held.add(key)
                await calls.call("POST", f"{self.path}/keys/{key}:hold")
                await asyncio.sleep(0.4 * self.chance.random())
                for key in [*self.held]:
                    await self._let_go(calls, key)

    async def _let_go(self, calls: Http, key: str) -> None:
        await calls.call("POST", f"{self.path}/keys/{key}:release")
        self.held.discard(key)

    async def _move(self, server: Server) -> None:
        """One of the last messages, ahead of its time. If nobody says whether it was, its turn is unknown."""
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(0.1 * self.chance.random())
                job = self.chance.choice([*self.jobs.values()][-10:] or [Message("", "", 0)])
                stake = self.place.stakes.get(job.id)
                if not job.is_accepted or job.wishes or (stake is not None and stake.number):
                    continue
                messages = self.account.messages
                messages.wish(job, 0)  # at any time
                wait_ms = self.chance.choice((0, 300, 1_000))
                answer = await calls.call("PATCH", f"/v1/messages/{job.id}", {"deliver_in": f"{wait_ms}ms"})
                self.now()
                messages.not_moved(job, 0)
                if answer.status == 200:
                    due = parse_deliver_at(answer.body["deliver_at"])
                    self.account.moved(job, due, answer.tag)
                    self._ahead[job.id] = job

    async def _work(self, server: Server, name: str) -> None:
        """Connections of one worker, one after the other."""
        async with http(server.url) as calls:
            while True:
                pulls = name == PULLER or self.is_pull
                door = _Pull(calls, self.chance) if pulls else await self._dialled(server, name)
                worker = _Worker(self, door, f"{name} {next(self._tags)}")
                try:
                    async with asyncio.timeout(3600 if self.is_kind else 0.2 + 2 * self.chance.random()):
                        await worker.serve()
                except TimeoutError:
                    if not self.is_stopping:
                        await worker.go()
                    while self.is_stopping and server.is_running:
                        await asyncio.sleep(0.02)
                finally:
                    worker.end()
                    door.drop()
                    if pulls and not server.is_running:
                        self.left += worker.undone
                    elif not pulls and (self.is_stopping or not server.is_running):
                        self.kept[name] = self.kept.get(name, []) + worker.undone
                await asyncio.sleep(LEFT_S)
                self.now()
                is_leased = pulls or self.is_stopping or not server.is_running
                self.account.losses.perhaps_taken(self.place, is_leased=is_leased)

    async def _dialled(self, server: Server, name: str) -> "_Mqtt":
        """With another id each time, or the same; its token says who it is."""
        client = name if self.chance.random() < 0.5 else f"{name}-{self.chance.randrange(1 << 30)}"
        peer = await dial(server.mqtt)
        token = (("fasti-token", name),)
        await peer.connect(client, receive_maximum=WINDOW, user_properties=token)
        await peer.subscribe(SHARE, user_properties=self.terms)
        return _Mqtt(peer, self.kept.pop(name, []))

    async def posted(self, got: Got, writer: asyncio.StreamWriter) -> bool:
        """A post has come to the receiver."""
        said, due_ms = got.headers, parse_deliver_at(got.headers["fasti-due"])
        until_ms, attempt = wall_ms() + LEASE_MS - SLACK_MS, int(said["fasti-attempt"])
        is_again = said.get("fasti-redelivered") == "true"
        came = Came(
            got.body.decode(), said["webhook-id"], attempt, due_ms, writer, until_ms, is_again=is_again
        )
        life, is_known = self.life, self.arrived(came, "")
        ways = ("now", "soon", "500", "503", "never", "drop")
        what = "now" if self.is_kind else self.chance.choices(ways, (40, 20, 15, 5, 8, 12))[0]
        self.note(what)
        if what in ("soon", "500"):
            await asyncio.sleep(0.4 * self.chance.random())
        if what == "never":
            await asyncio.sleep(LEASE_MS / 1000 + 0.5)
            return False
        if not is_known or life != self.life or self._killed_at:
            return False
        at, is_in_time = self.now(), self.account.settling.has(came.stake, came.number)
        if what in ("now", "soon"):
            self.account.settling.acking(came.stake)
            if is_in_time:
                self.is_read(came, at)
            return await answer(200)(got, writer)
        not_before = round(1_000 * at) + 1_000 if what == "503" else None
        self.account.settling.nacking(self.place, came.stake, came.number, not_before)
        if what == "drop":
            return False
        return await answer(int(what), "Retry-After: 1")(got, writer)

    def is_read(self, came: Came, sent: float) -> None:
        """Its ack was, for certain."""
        self.account.settling.is_read(came.stake, sent)
        self._timed[came.stake.message.id] = came.stake

    def held(self, stake: Stake, lapses: float) -> None:
        """The server says that it is leased on."""
        self.account.settling.held(stake, lapses)
        self._timed[stake.message.id] = stake

    def note(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def accounts(self) -> list[str]:
        """All that happened to some of the keys of faults, each with its time."""
        texts = "".join(str(fault) for fault in self.account.faults)
        keys = [job.key for job in self.jobs.values() if job.key and job.id and job.id in texts]
        found = []
        for key in list(dict.fromkeys(keys))[:3]:
            mine = [stake for stake in self.place.stakes.values() if stake.message.key == key]
            pasts = [f"{past}: {stake.message}" for stake in mine for past in stake.past]
            found.append("\n  ".join([f"key {key}:", *sorted(pasts)]))
        return found

    def arrived(self, came: Came, by: str) -> bool:
        """Whoever that is has it now. Whether anybody knows of it."""
        job = self.jobs.get(came.tag)
        if job is None:
            self.account.fault(3, "strange", f"{came.tag}, which nobody sent")
            return False
        self._accepted(job, came.id, came.due_ms)
        self.now()
        self.account.given(
            self.place,
            job.id,
            lapses=came.until_ms / 1_000,
            attempt=came.attempt,
            by=by,
            is_leased=came.is_leased,
            is_again=came.is_again or came.attempt > 1,
            due=came.due_ms,
        )
        if job.id in self.place.stakes:
            came.stake = self._timed[job.id] = self.place.stakes[job.id]
            came.number = came.stake.number
        return came.number > 0

    def summary(self, dead: int) -> str:
        what = ", ".join(f"{what} {times}" for what, times in sorted(self.done.items()))
        given = self.account.seen["given"]
        return f"{len(self.jobs)} jobs, {given} deliveries, {dead} dead, {self.life - 1} kills; {what}"


class _Mqtt:
    """A connection of a worker."""

    is_leased = False

    def __init__(self, peer: Peer, kept: list[Came]) -> None:
        """`kept`: what its worker has had since before the start."""
        self._peer = peer
        self.kept = kept

    @property
    def is_closed(self) -> bool:
        return self._peer.is_closed

    async def take(self) -> list[Came]:
        packet = await self._peer.take(Publish, 3_600)
        due_ms = parse_deliver_at(user(packet, "fasti-due") or "")
        attempt, late_ms = int(user(packet, "fasti-attempt") or 1), int(user(packet, "fasti-late-ms") or 0)
        tag, name = packet.payload.decode(), user(packet, "fasti-id") or ""
        until_ms = due_ms + late_ms + LEASE_MS - SLACK_MS
        return [Came(tag, name, attempt, due_ms, packet, until_ms, is_again=packet.dup)]

    async def ack(self, packet: Publish) -> bool:
        self._peer.ack(packet)
        return not self._peer.is_closed

    async def nack(self, packet: Publish, wait_ms: int | None) -> None:
        said = "auto" if wait_ms is None else f"{wait_ms}ms"
        properties = Properties(user_properties=(("retry-in", said), ("reason", "not now")))
        self._peer.send(Ack(wire.PUBACK, packet.packet_id, 0x80, properties))

    async def extend(self, packet: Publish) -> None:
        self._peer.put("$control/extend", f'{{"packet_id":{packet.packet_id},"for":"{EXTENDED_MS}ms"}}')

    async def holds(self, *names: str) -> bool:
        """Whether the server says that the worker has all of these messages still."""
        return await self._told("$control/holding", {"group": SHARE, "ids": names})

    async def done(self, name: str) -> bool:
        """An ack by id: whether it has ended anything."""
        return await self._told("$control/done", {"group": SHARE, "id": name})

    async def _told(self, topic: str, body: object) -> bool:
        number = self._peer.put(topic, json.dumps(body))
        while True:
            for packet in self._peer.inbox:
                if isinstance(packet, Ack) and packet.packet_id == number:
                    return packet.reason == 0
            if self._peer.is_closed:
                raise Closed(topic)
            await asyncio.sleep(0.01)

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
    kept = ()

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
                is_leased=True,
                is_again=one["redelivered"],
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
        self._given: list[Came] = []

    async def serve(self) -> None:
        if self._door.is_leased:
            left, self._pool.left = self._pool.left, []
            for came in left:
                self._begin(came)
        for came in self._door.kept:
            self._start(self._go_on(came))
        while True:
            for came in await self._door.take():
                if self._pool.arrived(came, self._name):
                    self._begin(came)

    def _begin(self, came: Came) -> None:
        self._given.append(came)
        self._start(self._treat(came))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def undone(self) -> list[Came]:
        """What it has neither acked nor let go."""
        return [came for came in self._given if not came.is_over]

    async def _go_on(self, came: Came) -> None:
        """With what it has had over MQTT since before the start."""
        pool, settling, stake = self._pool, self._pool.account.settling, came.stake
        way = pool.chance.choice(("hold", "hold and ack", "ack", "forget"))
        pool.note(f"{way} after a start")
        with suppress(*GONE):
            if "hold" in way:
                sent = pool.now()
                must_hold = settling.has(stake, came.number) and stake.is_leased
                if await self._door.holds(came.id):
                    if came.number == stake.number and FLIGHT in stake.may and stake.is_leased:
                        pool.held(stake, sent + (LEASE_MS - SLACK_MS) / 1_000)
                elif must_hold and settling.has(stake, came.number):
                    pool.account.settling.held_no_more(pool.place, stake, came.number, "holding")
            await asyncio.sleep(0.3 * pool.chance.random())
            if "ack" in way:
                sent = pool.now()
                settling.acking(stake)
                if await self._door.done(came.id):
                    pool.is_read(came, sent)

    async def go(self) -> None:
        """The connection ends, one way or another."""
        way = self._pool.chance.choice(("disconnect", "fin", "reset", "error"))
        account, place, now = self._pool.account, self._pool.place, self._pool.now()
        is_orderly, mine = way == "disconnect", [one for one in self._given if one.number == one.stake.number]
        fresh = [came for came in mine if now - came.nacked_at < READ_S]  # perhaps nobody reads that
        if not self._door.is_leased:
            account.losses.left(place, orderly=is_orderly, by=self._name)
        for came in fresh:
            account.settling.in_doubt(place, came.stake)
        for came in self._given if is_orderly or not self._door.is_leased else ():
            came.is_over = True
        for came in mine if is_orderly and self._door.is_leased else ():
            if FLIGHT in came.stake.may or now - came.nacked_at < READ_S:
                account.settling.returned(place, came.stake, now)
        self._pool.note(way)
        await self._door.go(way, [came.name for came in self._given])

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _treat(self, came: Came) -> None:
        with suppress(*GONE):
            await self._do(came)

    async def _do(self, came: Came) -> None:
        chance = self._pool.chance
        if self._pool.is_kind:
            await self._ack(came)
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
            account, stake, now = self._pool.account, came.stake, self._pool.now()
            if account.settling.has(stake, came.number) and stake.lapses is not None:
                until = min(stake.lapses, now + (EXTENDED_MS - SLACK_MS) / 1_000)
                account.settling.leased(stake, until, is_leased=came.is_leased)
            found = await self._door.extend(came.name)
            if self._door.is_leased and not found["extended"]:
                self._pool.now()
                account.settling.held_no_more(self._pool.place, stake, came.number, "extend")
            await asyncio.sleep(1.8 * chance.random())
        if what in ("nack", "auto"):
            await asyncio.sleep(0.2 * chance.random())
            await self._nack(came, None if what == "auto" else chance.randrange(900))
        elif what == "nack and ack":
            await self._nack(came, 0)
        elif what != "never":
            await self._ack(came)
            if what == "twice":
                await self._door.ack(came.name)

    async def _ack(self, came: Came) -> None:
        sent, account, life = self._pool.now(), self._pool.account, self._pool.life
        must_count = account.settling.has(came.stake, came.number)
        if not self._door.is_closed:
            account.settling.acking(came.stake)
        self._pool.acking.set()
        came.is_over = True
        is_taken = await self._door.ack(came.name)
        if came.is_leased and must_count and not is_taken:
            self._pool.now()
            account.settling.ack_refused(self._pool.place, came.stake, sent)
        if not self._pool.is_kind:
            await asyncio.sleep(READ_S)
        if is_taken and not self._door.is_closed and life == self._pool.life:
            self._pool.is_read(came, sent)

    async def _nack(self, came: Came, wait_ms: int | None) -> None:
        came.nacked_at, came.is_over = self._pool.now(), True
        not_before = None if wait_ms is None else round(1_000 * came.nacked_at) + wait_ms
        self._pool.account.settling.nacking(self._pool.place, came.stake, came.number, not_before)
        await self._door.nack(came.name, wait_ms)
        await asyncio.sleep(READ_S)
