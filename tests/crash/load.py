"""Clients that keep a server busy until it dies, each noting in the account what it knows.

    posters    one message a request; two sizes of patience
    batcher    60 to 200 messages a request, all or nothing
    publishers `$delayed` and plain over MQTT: at QoS 0 and 1, and at QoS 2 by a client that goes on with a
               step that was not answered before a kill
    keeper     retained messages, numbered
    canceller, mover   one answered message after the other, at any distance from its due
    splitter   far messages, whose slice is cut by a job, over and over
    expirer    slices of the past (past.py) that have come behind retention: archived and dropped by jobs
    reader     a persistent session that acks with holes and reconnects
    exact      one at QoS 2, that holds packet ids
    loose      one at QoS 0, only as long as it is connected
    team       two members of a shared subscription
    away       a persistent session that is there only at the end
    ticks      two recurring schedules, every second

A request whose answer does not come leaves its messages unanswered: the account knows what that means.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import count, islice
from typing import Any
from urllib.parse import quote

import aiohttp
from msgspec import structs

from server.codec import wire
from server.codec.packets import Ack, Properties, Publish
from server.settings.times import format_ms, parse_deliver_at
from tests.support.http import Http, http
from tests.support.ledger.arrivals import Arrivals, Inbox
from tests.support.ledger.messages import Message
from tests.support.mover import archived, counted, expired, published
from tests.support.mqtt import Closed, Peer, dial, user, wall_ms
from tests.support.server import ServerProcess

from .past import Past

READER, AWAY, EXACT, LOOSE, TEAM = "reader", "away", "exact", "loose", "team"
MEMBERS = ("team-1", "team-2")
FILTERS = {READER: "load/#", AWAY: "load/#", EXACT: "load/#", LOOSE: "load/#", TEAM: "$share/team/load/#"}
QOS = {READER: 1, AWAY: 1, EXACT: 2, LOOSE: 0, TEAM: 1}
KEPT = ("kept/0", "kept/1", "kept/2")
TICKS = ("tick-a", "tick-b")
DAYS = 2_000
"""Ahead, one after the other: what is cut once is cut for good."""
FAR = 12
"""Messages of a slice that is to be cut."""
QUARTER_MS = 900_000
DAY_MS = 86_400_000
WINDOW = 40
HOLES = 0.03
PATIENCE_S = 60.0
RECENT = 200_000
"""Messages that a start looks at, if not at all."""
GONE = (aiohttp.ClientError, OSError, TimeoutError, Closed)
"""What a client sees when the server dies under it."""


class Load:
    """The clients of one server, over all its lives."""

    def __init__(self, account: Arrivals, chance: random.Random, past: Past) -> None:
        self.account, self.messages = account, account.messages
        self.past = past
        self.has_archive = False
        self.chance = chance
        self._tags = count(1)
        self._last_due_ms = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._held: set[int] = set()
        """Packet ids that the client `exact` has received and that are not released."""
        self._owing: tuple[Message, Publish, bool] | None = None
        """What the publisher at QoS 2 has not finished: whether it was received."""
        self._cut = 0
        for name in FILTERS:
            account.inboxes[name] = Inbox(name, is_lossy=name == LOOSE, is_shared=name == TEAM)

    # -- one life of the server

    async def enlist(self, server: ServerProcess) -> None:
        """Once, at the beginning: make the sessions and the schedules."""
        for client in (READER, AWAY, EXACT, *MEMBERS):
            name = TEAM if client in MEMBERS else client
            peer = await self.connect(server, name, client)
            assert await peer.subscribe(FILTERS[name], qos=QOS[name]) == (QOS[name],)
            await peer.close()
        async with http(server.url) as calls:
            for tick in TICKS:
                body = {"every": "1s", "topic": f"tick/{tick}", "payload": tick}
                await calls.call("PUT", f"/v1/schedules/{tick}", body, status=201)

    def begin(self, server: ServerProcess) -> None:
        jobs: list[Callable[[ServerProcess], Coroutine[Any, Any, None]]] = [
            *[self._post, self._post, self._post, self._batch],
            *[self._publish, self._publish_once, self._keep, self._split, self._expire],
            *[self._cancel, self._cancel, self._move, self._read_loosely],
            *[partial(self._read, name) for name in (READER, EXACT)],
            *[partial(self._serve_in_team, client) for client in MEMBERS],
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
        """Every due has come, but those of far messages: all sessions get what they have not got."""
        await asyncio.sleep(max(0, self._last_due_ms - wall_ms()) / 1000)
        self.account.until_ms = self._last_due_ms
        for name in (READER, AWAY, EXACT, TEAM):
            clients = MEMBERS if name == TEAM else (name,)
            peers = [await self.connect(server, name, client, holes=0.0) for client in clients]
            completing = [asyncio.create_task(self._complete(peer)) for peer in peers]
            inbox = self.account.inboxes[name]
            seen, deadline = -1, time.monotonic() + PATIENCE_S
            # Half a second in which nothing comes is enough, if nothing is missing.
            while seen < len(inbox.arrivals) or (self.account.missing(inbox) and time.monotonic() < deadline):
                seen = len(inbox.arrivals)
                await asyncio.sleep(0.5)
            for task in completing:
                task.cancel()
            for peer in peers:
                await peer.close()

    async def connect(
        self, server: ServerProcess, name: str, client: str = "", *, holes: float = HOLES
    ) -> Peer:
        """A connection of one of the sessions, which notes what comes and acks it, but for holes."""
        inbox = self.account.inboxes[name]
        inbox.open(wall_ms())

        def arrived(peer: Peer, packet: Publish, now_ms: int) -> None:
            due = user(packet, "fasti-due")
            due_ms = parse_deliver_at(due) if due else 0
            attempt = int(user(packet, "fasti-attempt") or 1)
            is_acked = packet.qos > 0 and self.chance.random() >= holes
            if packet.qos < 2 or packet.packet_id not in self._held:
                tag = packet.payload.decode()
                arrival = self.account.arrived(inbox, tag, now_ms, due_ms, attempt, packet.qos)
                if is_acked or packet.qos == 2:
                    self.account.acked(inbox, arrival, wall_ms())
            if packet.qos == 2:
                self._held.add(packet.packet_id)
            if is_acked:
                peer.send(Ack(wire.PUBACK if packet.qos == 1 else wire.PUBREC, packet.packet_id))

        peer = await dial(server.mqtt, 5, arrived)
        is_clean = name == LOOSE
        expiry_s = 0 if is_clean else 36_000
        connack = await peer.connect(
            client or name, clean=is_clean, session_expiry=expiry_s, receive_maximum=WINDOW
        )
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
                message = self._message("p")
                body = _body(message) | {"qos": self.chance.choice((1, 2))}
                asked_ms = wall_ms()
                answer = await calls.call("POST", "/v1/messages", body, status=201)
                self.account.written(asked_ms, wall_ms())
                self.messages.accepted(message, answer.body["id"])
                await asyncio.sleep(self.chance.random() * 0.01)

    async def _batch(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                request = f"b{next(self._tags)}"
                messages = [self._message("b", request) for _ in range(self.chance.randrange(60, 200))]
                await self._put(calls, messages, [_body(one) | {"key": one.tag} for one in messages])
                await asyncio.sleep(self.chance.random() * 0.3)

    async def _publish(self, server: ServerProcess) -> None:
        peer = await dial(server.mqtt, 5)
        await peer.connect("publisher")
        while True:
            users: tuple[tuple[str, str], ...] = ()
            if self.chance.random() < 0.5:
                message = self._message("q")
                users = (("deliver-at", format_ms(message.due)),)
            else:
                tag = f"l{next(self._tags)}"
                message = self.messages.ask(tag, f"load/live/{len(tag)}", 0)
            ack = await peer.publish(message.topic, message.tag, user_properties=users)
            assert ack is not None
            assert ack.reason == 0, ack
            name = user(ack, "fasti-id")
            # A plain one has no name; a session is away, so it had to be stored all the same.
            assert bool(name) == bool(users)
            self.messages.accepted(message, name or "")
            if self.chance.random() < 0.3:
                tag = f"z{next(self._tags)}"
                peer.put(self.messages.ask(tag, "load/z", 0).topic, tag, 0)
            await asyncio.sleep(self.chance.random() * 0.01)

    async def _publish_once(self, server: ServerProcess) -> None:
        """At QoS 2; what was not finished before the kill is gone on with."""
        peer = await dial(server.mqtt, 5)
        await peer.connect("once", clean=False, session_expiry=36_000)
        while True:
            if self._owing is None:
                message = self._message("o")
                is_delayed = self.chance.random() < 0.5
                users = (("deliver-at", format_ms(message.due)),) if is_delayed else ()
                message.due = message.due if is_delayed else 0
                number = int(message.tag[1:]) % 60_000 + 1
                packet = Publish(
                    message.topic.encode(),
                    message.tag.encode(),
                    2,
                    packet_id=number,
                    properties=Properties(user_properties=users),
                )
                self._owing = (message, packet, False)
                peer.send(packet)
            else:
                message, packet, is_received = self._owing
                if not is_received:
                    peer.send(structs.replace(packet, dup=True))
            if not self._owing[2]:
                received = await peer.take(Ack)
                assert (received.kind, received.packet_id) == (wire.PUBREC, packet.packet_id)
                assert received.reason < 0x80, received
                self.messages.accepted(message, user(received, "fasti-id") or "")
                self._owing = (message, packet, True)
            peer.send(Ack(wire.PUBREL, packet.packet_id))
            completed = await peer.take(Ack)
            assert (completed.kind, completed.packet_id) == (wire.PUBCOMP, packet.packet_id)
            self._owing = None
            await asyncio.sleep(self.chance.random() * 0.02)

    async def _keep(self, server: ServerProcess) -> None:
        """Retained messages; each topic's are numbered."""
        peer = await dial(server.mqtt, 5)
        await peer.connect("keeper")
        while True:
            topic = self.chance.choice(KEPT)
            acked, asked = self.messages.kept.get(topic, (0, 0))
            self.messages.kept[topic] = (acked, asked + 1)
            peer.send(Publish(topic.encode(), b"%d" % (asked + 1), 1, retain=True, packet_id=1))
            ack = await peer.take(Ack)
            assert ack.reason < 0x80, ack
            self.messages.kept[topic] = (asked + 1, asked + 1)
            await asyncio.sleep(self.chance.random() * 0.03)

    async def _split(self, server: ServerProcess) -> None:
        """Fill a far slice and cut it, by a job of which this is the hands."""
        async with http(server.url) as calls:
            while True:
                self._cut += 1
                start_ms = (wall_ms() // DAY_MS + 4 + self._cut % DAYS) * DAY_MS
                request = f"f{next(self._tags)}"
                dues = range(start_ms, start_ms + FAR * QUARTER_MS, QUARTER_MS)
                messages = [
                    self.messages.ask(f"f{next(self._tags)}", f"load/f/{number % 3}", due_ms, request)
                    for number, due_ms in enumerate(dues)
                ]
                await self._put(calls, messages, [_body(one) for one in messages])
                wish = {"kind": "split", "slice": start_ms, "run": "caller"}
                job = await calls.call("POST", "/v1/jobs", wish)
                if job.status == 201:
                    path, token = f"/v1/jobs/{job.body['id']}", job.body["token"]
                    cuts = [start_ms + part * FAR // 3 * QUARTER_MS for part in (1, 2)]
                    said = {"cuts": cuts, "pieces": await asyncio.to_thread(counted, job.body, cuts)}
                    done = await calls.call("POST", f"{path}:commit", {"token": token, **said})
                    self.account.book.seen["splits"] += done.status == 200
                await asyncio.sleep(self.chance.random() * 0.1)

    async def _expire(self, server: ServerProcess) -> None:
        """What has passed is archived, and dropped when it is behind retention, by jobs of which this is the
        hands."""
        async with http(server.url) as calls:
            while True:
                if self.has_archive:
                    await self._archive(calls)
                job = await calls.call("POST", "/v1/jobs", {"kind": "expire", "run": "caller"})
                if job.status == 201:
                    said = await asyncio.to_thread(expired, job.body)
                    starts_ms = {one["start_ms"] for one in said}
                    self.past.asked(starts_ms)
                    wish = {"token": job.body["token"], "slices": said}
                    done = await calls.call("POST", f"/v1/jobs/{job.body['id']}:commit", wish)
                    if done.status == 200:
                        self.past.dropped(starts_ms)
                await asyncio.sleep(self.chance.random() * 0.1)

    async def _archive(self, calls: Http) -> None:
        job = await calls.call("POST", "/v1/jobs", {"kind": "archive", "run": "caller"})
        if job.status != 201:
            return
        path, token = f"/v1/jobs/{job.body['id']}:commit", job.body["token"]
        done = await calls.call("POST", path, {"token": token, **await asyncio.to_thread(archived, job.body)})
        if done.status == 200 and done.body["state"] == "publishing":
            await asyncio.sleep(self.chance.random() * 0.1)
            told = await asyncio.to_thread(published, done.body)
            await calls.call("POST", path, {"token": token, **told})

    async def _cancel(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(self.chance.random() * 0.03)
                message = self._any()
                if message is None:
                    await self._look(calls)
                    continue
                message.is_cancel_asked = True
                answer = await calls.call("DELETE", f"/v1/messages/{message.id}")
                assert answer.status in (204, 409), answer
                self.messages.clock.shows(wall_ms())
                (self.messages.cancelled if answer.status == 204 else self.messages.not_cancelled)(message)

    async def _move(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(self.chance.random() * 0.03)
                message = self._any()
                if message is None or not message.due:
                    await self._look(calls)
                    continue
                due_ms = self._soon()
                self.messages.wish(message, due_ms)
                wish = {"deliver_at": format_ms(due_ms)}
                answer = await calls.call("PATCH", f"/v1/messages/{message.id}", wish)
                assert answer.status in (200, 409), answer
                if answer.status == 200:
                    self.messages.moved(message, due_ms, answer.tag)
                else:
                    self.messages.not_moved(message, due_ms)

    async def _look(self, calls: Http) -> None:
        """There is nothing to do: notice at least whether the server is still there."""
        await calls.call("GET", "/v1/messages?limit=1")

    # -- readers

    async def _read(self, name: str, server: ServerProcess) -> None:
        while True:
            peer = await self.connect(server, name)
            completing = asyncio.create_task(self._complete(peer))
            is_over = await self._lived(peer)
            completing.cancel()
            if is_over:
                return
            await (peer.close() if self.chance.random() < 0.5 else peer.hang_up())
            self.account.inboxes[name].closed(self.account.read_until(wall_ms()))

    async def _complete(self, peer: Peer) -> None:
        """Answer each PUBREL."""
        with suppress(*GONE):
            while True:
                ack = await peer.take(Ack, 1e6)
                assert ack.kind == wire.PUBREL, ack
                self._held.discard(ack.packet_id)
                peer.send(Ack(wire.PUBCOMP, ack.packet_id))

    async def _read_loosely(self, server: ServerProcess) -> None:
        peer = await self.connect(server, LOOSE)
        await peer.subscribe(FILTERS[LOOSE], qos=0)
        await peer.gone()

    async def _serve_in_team(self, client: str, server: ServerProcess) -> None:
        while True:
            peer = await self.connect(server, TEAM, client)
            if await self._lived(peer):
                return
            await peer.hang_up()

    async def _lived(self, peer: Peer) -> bool:
        """Leave the connection alone for a while; whether it has ended by itself."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3 + self.chance.random()):
                await peer.gone()
        return peer.is_closed

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

    def _message(self, kind: str, request: str = "") -> Message:
        tag = f"{kind}{next(self._tags)}"
        return self.messages.ask(tag, f"load/{kind}/{self.chance.randrange(50)}", self._soon(), request)

    async def _put(self, calls: Http, messages: list[Message], items: list[dict[str, object]]) -> None:
        answer = await calls.schedule_many(items)
        assert answer.status == 201, answer
        for message, name in zip(messages, answer.body["ids"], strict=True):
            self.messages.accepted(message, name)

    def _any(self) -> Message | None:
        """An answered one that nobody is doing anything to, most likely a recent one."""
        last = islice(reversed(self.messages.by_tag.values()), 400)
        recent = [one for one in last if one.row and not one.wishes and not one.is_cancel_asked]
        return self.chance.choice(recent) if recent else None


async def found_after_a_start(account: Arrivals, server: ServerProcess, since_ms: int | None = None) -> None:
    """Note what there is of schedules, read positions and retained messages, before anything goes on.

    `since_ms`: of schedules only what is due since then.
    """
    async with http(server.url) as calls:
        since = "" if since_ms is None else f"&due_from={since_ms}"
        rows = await calls.listed(f"state=all&topic=tick/%23{since}")
        for row in rows:
            account.messages.fires(row["schedule"], parse_deliver_at(row["deliver_at"]), row["id"])
        for session in (READER, AWAY, EXACT):
            answer = await calls.call("GET", f"/v1/sessions/{quote(session, safe='')}", status=200)
            place = answer.body["read_position"]
            account.found_place(session, (place["at"], place["seq"]))
        (team,) = (await calls.call("GET", "/v1/groups/team", status=200)).body["groups"]
        account.found_place(FILTERS[TEAM], (team["position"]["at"], team["position"]["seq"]))
    peer = await dial(server.mqtt, 5)
    await peer.connect("")
    await peer.subscribe("kept/#", qos=0)
    kept: dict[str, int] = {}
    with suppress(TimeoutError):
        while {topic for topic, (acked, _) in account.messages.kept.items() if acked} - kept.keys():
            packet = await peer.take(Publish, 10)
            kept[packet.topic.decode()] = int(packet.payload)
    for topic in account.messages.kept:
        account.messages.retained(topic, kept.get(topic, 0))
    await peer.close()


async def whole_or_absent(account: Arrivals, server: ServerProcess, since_ms: int | None = None) -> None:
    """After a start: each request is there whole, or, if it was not answered, perhaps not at all.

    `since_ms`: of those with later dues only.
    """
    there: Counter[str] = Counter()
    async with http(server.url) as calls:
        since = "" if since_ms is None else f"&due_from={since_ms}"
        async for message in calls.each(f"state=all&topic=load/%23{since}"):
            if "payload" in message:
                there[message["payload"]] += 1
    from_last = reversed(account.messages.by_tag.values())
    looked = from_last if since_ms is None else islice(from_last, RECENT)
    account.messages.stored(there, [one for one in looked if since_ms is None or min(one.dues) >= since_ms])


def _body(message: Message) -> dict[str, object]:
    return {"topic": message.topic, "payload": message.tag, "deliver_at": format_ms(message.due)}
