"""Clients that keep a server busy until it dies, each noting in the ledger what it knows.

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

A request whose answer does not come leaves its letters unanswered: the ledger knows what that means.
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
from server.codec.fields import Properties
from server.codec.packets import Ack, Publish
from server.settings.times import format_ms, parse_deliver_at
from tests.support.http import Http, http
from tests.support.mover import archived, counted
from tests.support.mqtt import Closed, Peer, dial, user, wall_ms
from tests.support.server import ServerProcess

from .ledger import Inbox, Ledger, Letter
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
"""Letters that a start looks at, if not at all."""
GONE = (aiohttp.ClientError, OSError, TimeoutError, Closed)
"""What a client sees when the server dies under it."""


class Load:
    """The clients of one server, over all its lives."""

    def __init__(self, ledger: Ledger, chance: random.Random, past: Past) -> None:
        self.ledger = ledger
        self.past = past
        self.chance = chance
        self._tags = count(1)
        self._last_due_ms = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._held: set[int] = set()
        """Packet ids that the client `exact` has received and that are not released."""
        self._owing: tuple[Letter, Publish, bool] | None = None
        """What the publisher at QoS 2 has not finished: whether it was received."""
        self._cut = 0
        for name in FILTERS:
            ledger.inboxes[name] = Inbox(name, is_lossy=name == LOOSE, is_shared=name == TEAM)

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
            *[self._cancel, self._cancel, self._move, self._read, self._read_once, self._read_loosely],
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
        self.ledger.until_ms = self._last_due_ms
        for name in (READER, AWAY, EXACT, TEAM):
            clients = MEMBERS if name == TEAM else (name,)
            peers = [await self.connect(server, name, client, holes=0.0) for client in clients]
            completing = [asyncio.create_task(self._complete(peer)) for peer in peers]
            inbox = self.ledger.inboxes[name]
            seen, deadline = -1, time.monotonic() + PATIENCE_S
            # Half a second in which nothing comes is enough, if nothing is missing.
            while seen < len(inbox.arrivals) or (self.ledger.missing(inbox) and time.monotonic() < deadline):
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
        inbox = self.ledger.inboxes[name]
        inbox.open(wall_ms())

        def arrived(peer: Peer, packet: Publish, now_ms: int) -> None:
            due = user(packet, "fasti-due")
            due_ms = parse_deliver_at(due) if due else 0
            attempt = int(user(packet, "fasti-attempt") or 1)
            is_acked = packet.qos > 0 and self.chance.random() >= holes
            if packet.qos < 2 or packet.packet_id not in self._held:
                tag = packet.payload.decode()
                arrival = self.ledger.arrived(inbox, tag, now_ms, due_ms, attempt, packet.qos)
                # At QoS 2 the client has it now, whether the server hears of that or not.
                arrival.acked_ms = wall_ms() if is_acked or packet.qos == 2 else 0
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
                letter = self._letter("p")
                body: dict[str, object] = {
                    "topic": letter.topic,
                    "payload": letter.tag,
                    "deliver_at": _due(letter),
                }
                body["qos"] = self.chance.choice((1, 2))
                asked_ms = wall_ms()
                answer = await calls.call("POST", "/v1/messages", body, status=201)
                self.ledger.written(asked_ms, wall_ms())
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
            if self.chance.random() < 0.3:
                tag = f"z{next(self._tags)}"
                peer.put(self.ledger.letter(tag, "load/z", 0, tag).topic, tag, 0)
            await asyncio.sleep(self.chance.random() * 0.01)

    async def _publish_once(self, server: ServerProcess) -> None:
        """At QoS 2; what was not finished before the kill is gone on with."""
        peer = await dial(server.mqtt, 5)
        await peer.connect("once", clean=False, session_expiry=36_000)
        while True:
            if self._owing is None:
                letter = self._letter("o")
                is_delayed = self.chance.random() < 0.5
                users = (("deliver-at", _due(letter)),) if is_delayed else ()
                letter.dues = letter.dues if is_delayed else set()
                number = int(letter.tag[1:]) % 60_000 + 1
                packet = Publish(
                    letter.topic.encode(),
                    letter.tag.encode(),
                    2,
                    packet_id=number,
                    properties=Properties(user_properties=users),
                )
                self._owing = (letter, packet, False)
                peer.send(packet)
            else:
                letter, packet, is_received = self._owing
                if not is_received:
                    peer.send(structs.replace(packet, dup=True))
            if not self._owing[2]:
                received = await peer.take(Ack)
                assert (received.kind, received.packet_id) == (wire.PUBREC, packet.packet_id)
                assert received.reason < 0x80, received
                self._accepted(letter, user(received, "fasti-id") or "")
                self._owing = (letter, packet, True)
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
            acked, asked = self.ledger.kept.get(topic, (0, 0))
            self.ledger.kept[topic] = (acked, asked + 1)
            peer.send(Publish(topic.encode(), b"%d" % (asked + 1), 1, retain=True, packet_id=1))
            ack = await peer.take(Ack)
            assert ack.reason < 0x80, ack
            self.ledger.kept[topic] = (asked + 1, asked + 1)
            await asyncio.sleep(self.chance.random() * 0.03)

    async def _split(self, server: ServerProcess) -> None:
        """Fill a far slice and cut it, by a job of which this is the hands."""
        async with http(server.url) as calls:
            while True:
                self._cut += 1
                start_ms = (wall_ms() // DAY_MS + 4 + self._cut % DAYS) * DAY_MS
                letters = []
                for number in range(FAR):
                    tag = f"f{next(self._tags)}"
                    letter = self.ledger.letter(
                        tag, f"load/f/{number % 3}", start_ms + number * QUARTER_MS, tag
                    )
                    letters.append(letter)
                items = [{"topic": x.topic, "payload": x.tag, "deliver_at": _due(x)} for x in letters]
                for letter in letters:
                    letter.request = letters[0].tag
                answer = await calls.schedule_many(items)
                assert answer.status == 201, answer
                for letter, name in zip(letters, answer.body["ids"], strict=True):
                    self._accepted(letter, name)
                wish = {"kind": "split", "slice": start_ms, "run": "caller"}
                job = await calls.call("POST", "/v1/jobs", wish)
                if job.status == 201:
                    path, token = f"/v1/jobs/{job.body['id']}", job.body["token"]
                    cuts = [start_ms + part * FAR // 3 * QUARTER_MS for part in (1, 2)]
                    said = {"cuts": cuts, "pieces": await asyncio.to_thread(counted, job.body, cuts)}
                    done = await calls.call("POST", f"{path}:commit", {"token": token, **said})
                    self.ledger.splits += done.status == 200
                await asyncio.sleep(self.chance.random() * 0.1)

    async def _expire(self, server: ServerProcess) -> None:
        """What has come behind retention is archived and dropped, by a job of which this is the hands."""
        async with http(server.url) as calls:
            while True:
                job = await calls.call("POST", "/v1/jobs", {"kind": "expire", "run": "caller"})
                if job.status == 201:
                    said = await asyncio.to_thread(archived, job.body)
                    starts_ms = {one["start_ms"] for one in said}
                    self.past.asked(starts_ms)
                    wish = {"token": job.body["token"], "slices": said}
                    done = await calls.call("POST", f"/v1/jobs/{job.body['id']}:commit", wish)
                    if done.status == 200:
                        self.past.dropped(starts_ms)
                await asyncio.sleep(self.chance.random() * 0.1)

    async def _cancel(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                await asyncio.sleep(self.chance.random() * 0.03)
                letter = self._any()
                if letter is None:
                    await self._look(calls)
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
                    await self._look(calls)
                    continue
                await self._move_one(calls, letter)

    async def _look(self, calls: Http) -> None:
        """There is nothing to do: notice at least whether the server is still there."""
        await calls.call("GET", "/v1/messages?limit=1")

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
            if await self._lived(peer):
                return
            await (peer.close() if self.chance.random() < 0.5 else peer.hang_up())
            self.ledger.inboxes[READER].closed(self.ledger.read_until(wall_ms()))

    async def _read_once(self, server: ServerProcess) -> None:
        while True:
            peer = await self.connect(server, EXACT)
            completing = asyncio.create_task(self._complete(peer))
            is_over = await self._lived(peer)
            completing.cancel()
            if is_over:
                return
            await (peer.close() if self.chance.random() < 0.5 else peer.hang_up())
            self.ledger.inboxes[EXACT].closed(self.ledger.read_until(wall_ms()))

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

    def _letter(self, kind: str, request: str = "") -> Letter:
        tag = f"{kind}{next(self._tags)}"
        topic = f"load/{kind}/{self.chance.randrange(50)}"
        return self.ledger.letter(tag, topic, self._soon(), request or tag)

    def _accepted(self, letter: Letter, name: str) -> None:
        letter.id, letter.row, letter.is_acked = name, name, True

    def _any(self) -> Letter | None:
        """An answered letter that nobody is doing anything to, most likely a recent one."""
        last = islice(reversed(self.ledger.letters.values()), 400)
        recent = [x for x in last if x.row and not x.is_cancel_asked]
        return self.chance.choice(recent) if recent else None


async def found_after_a_start(ledger: Ledger, server: ServerProcess, since_ms: int | None = None) -> None:
    """Note what there is of schedules, read positions and retained messages, before anything goes on.

    `since_ms`: of schedules only what is due since then.
    """
    async with http(server.url) as calls:
        since = "" if since_ms is None else f"&due_from={since_ms}"
        rows = await calls.listed(f"state=all&topic=tick/%23{since}")
        found = Counter((row["schedule"], row["deliver_at"]) for row in rows)
        ledger.occurrences |= found
        for session in (READER, AWAY, EXACT):
            answer = await calls.call("GET", f"/v1/sessions/{quote(session, safe='')}", status=200)
            place = answer.body["read_position"]
            ledger.place(session, (place["at"], place["seq"]))
        (team,) = (await calls.call("GET", "/v1/groups/team", status=200)).body["groups"]
        ledger.place(FILTERS[TEAM], (team["position"]["at"], team["position"]["seq"]))
    peer = await dial(server.mqtt, 5)
    await peer.connect("")
    await peer.subscribe("kept/#", qos=0)
    kept: dict[str, int] = {}
    with suppress(TimeoutError):
        while {topic for topic, (acked, _) in ledger.kept.items() if acked} - kept.keys():
            packet = await peer.take(Publish, 10)
            kept[packet.topic.decode()] = int(packet.payload)
    for topic in ledger.kept:
        ledger.retained(topic, kept.get(topic, 0))
    await peer.close()


async def whole_or_absent(ledger: Ledger, server: ServerProcess, since_ms: int | None = None) -> list[str]:
    """After a start: each request is there whole, or, if it was not answered, perhaps not at all.

    `since_ms`: of those with later dues only.
    """
    there: Counter[str] = Counter()
    async with http(server.url) as calls:
        since = "" if since_ms is None else f"&due_from={since_ms}"
        async for message in calls.each(f"state=all&topic=load/%23{since}"):
            if "payload" in message:
                there[message["payload"]] += 1
    requests: dict[str, list[Letter]] = {}
    letters_from_last = reversed(ledger.letters.values())
    looked = letters_from_last if since_ms is None else islice(letters_from_last, RECENT)
    for letter in looked:
        if since_ms is not None and min(letter.dues, default=0) < since_ms:
            continue
        requests.setdefault(letter.request, []).append(letter)
    faults = [f"QoS 2 doubled: {count} messages {tag}" for tag, count in there.items() if count > 1]
    for request, letters in requests.items():
        sure = [x for x in letters if not x.is_cancel_asked]
        found = sum(x.tag in there for x in sure)
        if found not in (0, len(sure)) or (not found and any(x.is_acked for x in sure)):
            faults.append(f"halved requests: {found} of {len(sure)} messages of {request} are stored")
    return faults


def _due(letter: Letter) -> str:
    (due_ms,) = letter.dues
    return format_ms(due_ms)
