"""Clients that keep a server busy until it dies, each noting in the ledger what it knows.

    posters    one message a request; two sizes of patience
    batcher    60 to 200 messages a request, all or nothing
    publisher  `$delayed` and plain QoS 1 over MQTT, by a client of its own
    canceller, mover   one answered message after the other, at any distance from its due
    reader     a persistent session that acks with holes and reconnects
    away       a persistent session that is there only at the end

A request whose answer does not come leaves its letters unanswered: the ledger knows what that means.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

import aiohttp

from server.codec.packets import Publish
from server.times import format_ms, parse_deliver_at
from tests.support.http import Http, http
from tests.support.mqtt import Closed, Peer, dial, user, wall_ms
from tests.support.server import ServerProcess

from .ledger import Inbox, Ledger, Letter

READER, AWAY = "reader", "away"
WINDOW = 40
HOLES = 0.03
PATIENCE_S = 60.0
GONE = (aiohttp.ClientError, OSError, TimeoutError, Closed)
"""What a client sees when the server dies under it."""


class Load:
    """The clients of one server, over all its lives."""

    def __init__(self, ledger: Ledger, chance: random.Random) -> None:
        self.ledger = ledger
        self.chance = chance
        self._tags = count(1)
        self._last_due_ms = 0
        self._tasks: list[asyncio.Task[None]] = []
        for name in (READER, AWAY):
            ledger.inboxes[name] = Inbox(name)

    # -- one life of the server

    async def enlist(self, server: ServerProcess) -> None:
        """Once, at the beginning: make the two sessions."""
        for name in (READER, AWAY):
            peer = await self.connect(server, name)
            assert await peer.subscribe("load/#") == (1,)
            await peer.close()

    def begin(self, server: ServerProcess) -> None:
        jobs: list[Callable[[ServerProcess], Coroutine[Any, Any, None]]] = [
            *[self._post, self._post, self._post, self._batch],
            *[self._publish, self._cancel, self._cancel, self._move, self._read],
        ]
        self._tasks = [asyncio.create_task(self._while_it_lives(job, server)) for job in jobs]

    async def end(self) -> None:
        """Wait for the clients to notice that the server is dead; or, if it lives, stop them."""
        for task in self._tasks:
            task.cancel()
        for answer in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(answer, Exception):
                raise answer

    async def died(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)

    async def drain(self, server: ServerProcess) -> None:
        """Every due has come: both sessions get all that they have not got."""
        await asyncio.sleep(max(0, self._last_due_ms - wall_ms()) / 1000)
        for name in (READER, AWAY):
            peer = await self.connect(server, name, holes=0.0)
            inbox = self.ledger.inboxes[name]
            seen, deadline = -1, time.monotonic() + PATIENCE_S
            # Half a second in which nothing comes is enough, if nothing is missing.
            while seen < len(inbox.arrivals) or (self.ledger.missing(inbox) and time.monotonic() < deadline):
                seen = len(inbox.arrivals)
                await asyncio.sleep(0.5)
            await peer.close()

    async def connect(self, server: ServerProcess, name: str, *, holes: float = HOLES) -> Peer:
        """A connection of one of the two sessions, which notes what comes and acks it, but for holes."""
        inbox = self.ledger.inboxes[name]
        inbox.connection += 1

        def arrived(peer: Peer, packet: Publish, now_ms: int) -> None:
            due = user(packet, "fasti-due")
            due_ms = parse_deliver_at(due) if due else 0
            attempt = int(user(packet, "fasti-attempt") or 1)
            arrival = self.ledger.arrived(inbox, packet.payload.decode(), now_ms, due_ms, attempt)
            if packet.qos and self.chance.random() >= holes:
                peer.ack(packet)
                arrival.acked_ms = wall_ms()

        peer = await dial(server.mqtt, 5, arrived)
        connack = await peer.connect(name, clean=False, session_expiry=3_600, receive_maximum=WINDOW)
        assert connack.reason == 0, connack
        return peer

    async def _while_it_lives(
        self, job: Callable[[ServerProcess], Coroutine[Any, Any, None]], server: ServerProcess
    ) -> None:
        with suppress(*GONE):
            await job(server)

    # -- writers

    async def _post(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                letter = self._letter("p")
                body = {"topic": letter.topic, "payload": letter.tag, "deliver_at": _due(letter)}
                answer = await calls.call("POST", "/v1/messages", body, status=201)
                self._accepted(letter, answer.body["id"])
                await asyncio.sleep(self.chance.random() * 0.01)

    async def _batch(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                request = f"b{next(self._tags)}"
                letters = [self._letter("b", request) for _ in range(self.chance.randrange(60, 200))]
                items = [
                    {"topic": x.topic, "payload": x.tag, "deliver_at": _due(x), "key": x.tag} for x in letters
                ]
                answer = await calls.schedule_many(items)
                assert answer.status == 201, answer
                for letter, name in zip(letters, answer.body["ids"], strict=True):
                    self._accepted(letter, name)
                await asyncio.sleep(self.chance.random() * 0.3)

    async def _publish(self, server: ServerProcess) -> None:
        peer = await dial(server.mqtt, 5)
        await peer.connect("publisher")
        while True:
            users: tuple[tuple[str, str], ...] = ()
            if self.chance.random() < 0.5:
                letter = self._letter("q")
                users = (("deliver-at", _due(letter)),)
            else:
                tag = f"l{next(self._tags)}"
                letter = self.ledger.letter(tag, f"load/live/{len(tag)}", 0, tag)
            ack = await peer.publish(letter.topic, letter.tag, user_properties=users)
            assert ack is not None
            assert ack.reason == 0, ack
            name = user(ack, "fasti-id")
            # A plain one has no name; a session is away, so it had to be stored all the same.
            assert bool(name) == bool(users)
            self._accepted(letter, name or "")
            await asyncio.sleep(self.chance.random() * 0.01)

    async def _cancel(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(self.chance.random() * 0.03)
                letter = self._any()
                if letter is None:
                    continue
                letter.is_cancel_asked = True
                answer = await calls.call("DELETE", f"/v1/messages/{letter.id}")
                assert answer.status in (204, 409), answer
                letter.is_cancelled = letter.is_cancelled or answer.status == 204
                letter.is_cancel_asked = letter.is_cancelled

    async def _move(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(self.chance.random() * 0.03)
                letter = self._any()
                if letter is None or not letter.dues:
                    continue
                await self._move_one(calls, letter)

    async def _move_one(self, calls: Http, letter: Letter) -> None:
        due_ms = self._soon()
        former, row = set(letter.dues), letter.row
        letter.dues.add(due_ms)
        letter.row = ""
        answer = await calls.call("PATCH", f"/v1/messages/{letter.id}", {"deliver_at": format_ms(due_ms)})
        assert answer.status in (200, 409), answer
        if answer.status == 200:
            letter.dues, letter.row = {due_ms}, answer.tag
        else:
            letter.dues, letter.row = former, row

    # -- readers

    async def _read(self, server: ServerProcess) -> None:
        while True:
            peer = await self.connect(server, READER)
            await asyncio.sleep(0.3 + self.chance.random())
            if peer.is_closed:
                return
            await (peer.close() if self.chance.random() < 0.5 else peer.hang_up())
            self.ledger.inboxes[READER].closed(wall_ms())

    # -- leaves

    def _soon(self) -> int:
        """A due: mostly within two seconds, some at once, some in the past."""
        due_ms = (
            wall_ms()
            + self.chance.choice((-1_000, 0, 20, 200, 700, 1_500, 2_500))
            + self.chance.randrange(200)
        )
        self._last_due_ms = max(self._last_due_ms, due_ms)
        return due_ms

    def _letter(self, kind: str, request: str = "") -> Letter:
        tag = f"{kind}{next(self._tags)}"
        topic = f"load/{kind}/{self.chance.randrange(50)}"
        return self.ledger.letter(tag, topic, self._soon(), request or tag)

    def _accepted(self, letter: Letter, name: str) -> None:
        letter.id, letter.row, letter.is_acked = name, name, True

    def _any(self) -> Letter | None:
        """An answered letter that nobody is doing anything to, most likely a recent one."""
        recent = [x for x in list(self.ledger.letters.values())[-400:] if x.row and not x.is_cancel_asked]
        return self.chance.choice(recent) if recent else None


async def whole_or_absent(ledger: Ledger, server: ServerProcess) -> list[str]:
    """After a start: each request is there whole, or, if it was not answered, perhaps not at all."""
    async with http(server.url) as calls:
        there = {m["payload"] for m in await calls.listed("state=all&topic=load/%23") if "payload" in m}
    requests: dict[str, list[Letter]] = {}
    for letter in ledger.letters.values():
        requests.setdefault(letter.request, []).append(letter)
    faults = []
    for request, letters in requests.items():
        sure = [x for x in letters if not x.is_cancel_asked]
        found = sum(x.tag in there for x in sure)
        if found not in (0, len(sure)) or (not found and any(x.is_acked for x in sure)):
            faults.append(f"{found} of {len(sure)} messages of request {request} are stored")
    return faults


def _due(letter: Letter) -> str:
    (due_ms,) = letter.dues
    return format_ms(due_ms)
