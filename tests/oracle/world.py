"""A real server on a simulated clock, and everybody who talks with it: what they see goes into the ledger.

Nothing happens beside the steps of the program but posts of webhooks, deliveries over MQTT, and a kill in the
middle of a call. So each answer is known, or known to be missing: `call` gives None then, and the server runs
again. The clock runs when it is told (`advance`), and is set while the server runs (`step`). `tamper` stands
between the program and the server: it is how faults are planted (planted.py).
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

import aiohttp

from server.codec import wire
from server.codec.packets import Ack, Properties, Publish
from tests.support.http import Answer, Http
from tests.support.ledger.deliveries import Deliveries
from tests.support.ledger.messages import Message
from tests.support.ledger.stakes import Place, Stake
from tests.support.ledger.words import UNDONE
from tests.support.mqtt import Closed, Peer, dial, user
from tests.support.receiver import Got, Receiver, answer, drop
from tests.support.server import ServerProcess
from tests.support.stepped import WALL, Wall

START_MS = 1_772_445_600_000  # 2026-03-02T10:00:00Z
SETTINGS = {
    "webhook.allow_private": "true",
    "spark.enabled": "false",
    "webhook.timeout_ms": 2_000,
    "log.level": "error",
}
RESULTS = ((200, 12), (500, 4), (0, 1), (429, 1), (410, 0.3))
"""What a receiver answers, and how often; 0: it cuts the connection."""
PULL = "(pull)"
"""Who has what was leased, as deliveries say."""
EVERY: dict[object, int] = {"1h": 3_600_000, "6h": 21_600_000, "0 */2 * * *": 7_200_000}
"""Rules of schedules, and how far apart their instants are, ms."""
COUNTED = 'fasti_undone_dropped_total{reason="kept too long"}'
"""What retention takes of sessions, which is told by a number alone."""
LINE = 4_000
"""Characters of a line of the journal."""
Forward = Callable[[], Awaitable[Answer]]
Tamper = Callable[["World", str, str, Any, Forward], Awaitable[Answer]]
GONE = (aiohttp.ClientError, OSError, TimeoutError)


async def honest(world: "World", method: str, path: str, body: Any, forward: Forward) -> Answer:
    return await forward()


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms_of(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


class World:
    def __init__(
        self,
        home: Path,
        receiver: Receiver,
        *,
        seed: int = 0,
        tamper: Tamper = honest,
        journal: TextIO | None = None,
    ) -> None:
        self.home, self.receiver, self.seed, self.tamper = home, receiver, seed, tamper
        self.ledger = Deliveries(START_MS)
        self.ledger.clock.mono = time.monotonic()
        self.wall = Wall(home / "wall")
        self.journal = journal
        """Every call and its answer are written there."""
        self.ledger.book.tell = lambda fault: self.write("FAULT", fault)
        self.members: dict[str, tuple[Place, Peer]] = {}
        """Who is connected over MQTT, by client key."""
        self.inbox: list[tuple[Place, Peer, Publish]] = []
        """What came over MQTT at QoS 1 and has not been acked."""
        self.all_is_well = False
        """Every post is answered with 200 from now on."""
        self.paths: set[str] = set()
        self.retries: dict[tuple[str, str], int] = {}
        """(place, message) -> when it comes again, as last listed."""
        self.dead: set[tuple[str, str]] = set()
        self._retries: list[dict[str, Any]] = []
        self._dead: list[dict[str, Any]] = []
        self.lives = 0
        self._counted = 0.0
        receiver.behave = self._posted

    # -- the process

    async def start(self, away_ms: int = 0) -> None:
        """`away_ms`: what the wall clock has gone on meanwhile, or was set back."""
        self.lives += 1
        self._set(away_ms)
        clock = (
            "--clock",
            "simulated",
            "--clock-start",
            iso(self.ledger.clock.high),
            WALL,
            str(self.wall.file),
        )
        self.server = ServerProcess(
            self.home / "data",
            *clock,
            settings=SETTINGS,
            log=self.home / "server.log",
            program=("tests.support.stepped",),
        )
        await self.server.ready()
        timeout = aiohttp.ClientTimeout(total=30)
        self.session = aiohttp.ClientSession(base_url=self.server.url, timeout=timeout)
        self.http = Http(self.session)
        await self.advance(0)
        self._counted = await self._metric(COUNTED)
        if not self.paths:
            described = (await self.http.call("GET", "/openapi.json", status=200)).body["paths"]
            self.paths = set(described)
            one = described["/v1/groups/{group}"]["delete"].get("parameters", ())
            self.says_undone = any(given.get("name") == "undone" for given in one)

    def can(self, start: str, end: str = "") -> bool:
        """Whether this server has such a call at all."""
        return any(path.startswith(start) and path.endswith(end) for path in self.paths)

    async def end(self, *, kill: bool) -> None:
        self.write("kill" if kill else "stop")
        if kill:
            self.server.kill()
        else:
            await self._count_away()
            if await self.server.stopped():
                self.ledger.fault(1, "a bad end", self.server.output[-500:])
        await self.session.close()
        for place, peer in self.members.values():
            peer.drop()
            place.left_at = self.ledger.clock.ran
        self.members, self.inbox = {}, []
        await self.receiver_idle()
        self.ledger.losses.restarted(time.monotonic(), was_killed=kill)

    async def restart(self, *, kill: bool, away_ms: int = 0) -> None:
        await self.end(kill=kill)
        await self.start(away_ms)

    async def revive(self) -> None:
        if self.server.process.poll() is not None:
            await self.restart(kill=True)

    async def kill_in(self, seconds: float) -> None:
        """kill -9 from behind, while a call is under way."""
        await asyncio.sleep(seconds)
        self.server.kill()

    # -- HTTP

    async def call(self, method: str, path: str, body: Any = None, **headers: Any) -> Answer | None:
        """None: the server died before it answered; it is there again."""

        async def forward() -> Answer:
            return await self.http.call(method, path, body, **headers)

        try:
            got = await self.tamper(self, method, path, body, forward)
        except GONE:
            self.write(method, path, body, "no answer")
            await self.restart(kill=True)
            return None
        if path != "/metrics":
            self.write(method, path, body, got.status, got.body)
        if got.status >= 500:
            self.ledger.fault(1, "a call fails", f"{method} {path} {body}: {got.status} {got.body}")
        return got

    def write(self, *what: object) -> None:
        if self.journal is not None:
            print(self.ledger.book.step, " ".join(map(str, what))[:LINE], file=self.journal, flush=True)

    async def insist(self, method: str, path: str, body: Any = None, **headers: Any) -> Answer:
        """A call that can be repeated is, until it is answered."""
        while True:
            got = await self.call(method, path, body, **headers)
            if got is not None:
                return got

    async def pages(self, path: str, name: str) -> list[dict[str, Any]]:
        found, cursor = [], ""
        while True:
            body = (await self.insist("GET", f"{path}limit=1000{cursor}")).body
            found += body[name]
            if body["next"] is None:
                return found
            cursor = f"&cursor={quote(body['next'])}"

    async def advance(self, by_ms: int) -> None:
        """The clock runs; everything that is due on the way goes out in its time."""
        got = None
        while got is None:
            self.ledger.walk(by_ms)
            got = await self.call("POST", "/v1/clock:advance", {"by": by_ms / 1_000})
        self.ledger.arrived(ms_of(got.body["now"]))

    async def step(self, by_ms: int) -> None:
        """Somebody sets the clock while the server runs."""
        self.write("the clock is stepped", by_ms)
        self._set(by_ms)
        await self.advance(0)

    def _set(self, by_ms: int) -> None:
        if by_ms < 0:
            self.ledger.set_clock_back(self.ledger.clock.high + by_ms)
        else:
            self.ledger.known.advance(self.ledger.clock.high + by_ms)
        self.wall.now_ms = self.ledger.clock.high

    # -- what comes by itself

    async def _posted(self, got: Got, writer: asyncio.StreamWriter) -> bool:
        """A post: the path says which incarnation of which endpoint it is for."""
        _, name, number = got.path.strip("/").split("/")
        places = [place for place in self.ledger.places if place.name == name]
        place, key, life = places[int(number) - 1], got.headers["webhook-id"], self.lives
        is_again = got.headers.get("fasti-redelivered") == "true"
        self.ledger.given(place, key, attempt=int(got.headers["fasti-attempt"]), is_again=is_again)
        while (
            key not in self.ledger.messages.by_id
            and self.server.process.poll() is None
            and life == self.lives
        ):
            await asyncio.sleep(0.005)  # its publish has not been answered
        seed = f"{self.seed} {key} {got.headers['fasti-attempt']}"
        roll = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") / (1 << 64)
        status = 200 if self.all_is_well else pick(RESULTS, roll)
        self.write("post", got.path, key, got.headers["fasti-attempt"], status)
        await asyncio.sleep(roll / 100)
        stake = place.stakes.get(key)
        if stake is not None:
            self.ledger.settling.answered(place, stake, status, time.monotonic())
        return await (answer(status) if status else drop)(got, writer)

    async def receiver_idle(self) -> None:
        count = -1
        while self.receiver.open or count != len(self.receiver.got):
            count = len(self.receiver.got)
            await asyncio.sleep(0.04)

    async def join(self, client: str, place: Place, text: str, **properties: Any) -> Peer | None:
        """Connect and subscribe; deliveries come from then on. None: the server died meanwhile."""

        def came(peer: Peer, packet: Publish, _: int) -> None:
            key = user(packet, "fasti-id")
            assert key is not None, packet
            attempt = int(user(packet, "fasti-attempt") or 1)
            self.ledger.given(place, key, attempt=attempt, is_again=packet.dup or attempt > 1)
            self.write("mqtt", place, key)
            self.inbox.append((place, peer, packet))

        try:
            peer = await dial(self.server.mqtt, on_publish=came)
            self.members[client] = place, peer
            await peer.connect(client, clean=False, **properties)
            assert await peer.subscribe(text) == (1,)
        except (Closed, *GONE):
            await self.restart(kill=True)
            return None
        return peer

    def stake_of(self, place: Place, packet: Publish) -> Stake | None:
        return place.stakes.get(user(packet, "fasti-id") or "")

    def puback(self, peer: Peer, packet: Publish, retry_in: str | None = None) -> None:
        """An ack, or a nack that says when it is to come again."""
        self.write("puback", peer, user(packet, "fasti-id"), retry_in)
        if retry_in is None:
            peer.ack(packet)
        else:
            said = Properties(user_properties=(("retry-in", retry_in), ("reason", "not now")))
            peer.send(Ack(wire.PUBACK, packet.packet_id, 0x80, said))

    async def leave(self, client: str, *, orderly: bool) -> None:
        if client not in self.members:
            return  # the server was killed
        place, peer = self.members.pop(client)
        self.inbox = [one for one in self.inbox if one[1] is not peer]
        with suppress(Closed, *GONE):
            await (peer.close() if orderly else peer.hang_up())
        self.ledger.losses.left(place, orderly=orderly)

    # -- quiet points

    async def settle(self) -> None:
        """Until nothing comes any more."""
        count = -1
        while count != self.ledger.seen["given"] or self.receiver.open:
            count = self.ledger.seen["given"]
            await asyncio.sleep(0.03)
        await self._adopt()

    async def _adopt(self) -> None:
        """Messages of schedules: nobody has posted them, so they are found by listing."""
        ran = self.ledger.clock.ran
        listed = await self.pages("/v1/messages?topic=jobs/sched/%23&state=all&", "messages")
        for one in listed:
            known = self.ledger.messages.by_id.get(one["id"])
            if known is None or one["state"] not in ("cancelled", "expired"):
                continue
            known.is_cancelled |= one["state"] == "cancelled"
            if one["state"] == "expired" and not known.is_late:
                self.ledger.too_late(known)
            self.ledger.messages.not_fired(one["schedule"], one["id"])
        for one in listed:
            if one["id"] not in self.ledger.messages.by_id and one["state"] != "cancelled":
                due, is_late = ms_of(one["deliver_at"]), one["state"] == "expired"
                message = Message(one["id"], one["topic"], due, due, is_late=is_late)
                self.ledger.accepted_of_schedule(message, one["schedule"])
        self.ledger.messages.listed_at = ran

    async def look(self) -> None:
        """A quiet point: everything that the server shows is held against the ledger."""
        await self.settle()
        self.ledger.lapse(time.monotonic())
        await self._count_away()
        await self._look_at_places()
        await self._look_at_lists()
        await self._look_at_schedules()
        for message in list(self.ledger.messages.by_id.values()):
            if self.ledger.messages.is_out(message) and not message.is_cancelled:
                await self._look_at(message)

    async def _count_away(self) -> None:
        counted = await self._metric(COUNTED)
        self.ledger.fates.counted_away += round(counted - self._counted)
        self._counted = counted

    async def _look_at_schedules(self) -> None:
        for one in await self.pages("/v1/schedules?", "schedules"):
            every, following = EVERY.get(one.get("every") or one.get("cron")), one["next"]
            if following is not None and every is not None:
                is_told = one["silent"] is not None
                self.ledger.messages.goes_on(one["name"], ms_of(following["at"]), every, is_told=is_told)

    async def _look_at(self, message: Message) -> None:
        stakes = self.ledger.known.stakes_of(message.id)
        if self.ledger.messages.is_old(message) and not any(p.is_open and s.may & UNDONE for p, s in stakes):
            return
        got = await self.insist("GET", f"/v1/messages/{message.id}")
        if got.status == 404:
            self.ledger.looks.not_found(message)
            return
        shown = {name_of(one): self._state(one) for one in got.body.get("deliveries", ())}
        for place in self.ledger.known.open():
            if place.name in shown:
                self.ledger.looks.shown(place, message.id, shown[place.name])
            elif place.kind != "session" and message.id in place.stakes:
                self.ledger.looks.not_shown(place, message.id)
        if self.can("/v1/retries") and (self._two_answers(message, got)):
            await self.settle()
            await self._list()
            got = await self.insist("GET", f"/v1/messages/{message.id}")
            for place, what in self._two_answers(message, got):
                self.ledger.looks.two_answers(place, message.id, what)

    def _state(self, delivery: dict[str, Any]) -> str:
        until = delivery.get("lease_until")
        is_leased = delivery.get("by") == PULL and until and ms_of(until) > self.ledger.clock.high
        return "leased" if is_leased else str(delivery["state"])

    def _two_answers(self, message: Message, got: Answer) -> list[tuple[Place, str]]:
        """Where GET of a message and the lists of retries and of dead letters say different things."""
        told = [(name_of(one), one["state"]) for one in got.body.get("deliveries", ())]
        found = []
        for place in self.ledger.known.open():
            former = [p for p, _ in self.ledger.known.stakes_of(message.id) if p.name == place.name]
            states = [state for name, state in told if name == place.name]
            if former != [place] or not states:
                continue
            here = place.name, message.id
            lists = [name for name, all_ in (("retry", self.retries), ("dead", self.dead)) if here in all_]
            stake = place.stakes[message.id]
            if stake.was_finished:
                continue  # set back, and not read again yet
            if self.retries.get(here, self.ledger.clock.low + 1) <= self.ledger.clock.low and states == [
                "waiting"
            ]:
                continue  # a retry that is due, and nobody there
            if len(states) > 1 or lists != [state for state in states if state in ("retry", "dead")]:
                found.append((place, f"GET says {states}, and the lists {lists}"))
        return found

    async def _look_at_places(self) -> None:
        for _ in range(3):
            await self._list()
            groups = await self.pages("/v1/groups?", "groups")
            endpoints = await self.pages("/v1/endpoints?", "endpoints")
            shown = {one["name"]: one for one in groups + endpoints}
            wrong = [
                (place, why) for place in self.ledger.known.open() if (why := self._misses(place, shown))
            ]
            if not wrong:
                break
            await self.settle()
        for place, why in wrong:
            self.ledger.fault(6, "retries miscounted", f"{place}: {why}")
        sessions = await self.pages("/v1/sessions?", "sessions")
        ids = {one["client_id"] for one in sessions}
        for place in self.ledger.known.open():
            if place.kind == "session":
                if place.name not in ids:
                    self.ledger.lives.missing(place)
            elif place.name not in shown:
                self.ledger.lives.missing(place)
            else:
                self._count(place, shown[place.name])

    def _misses(self, place: Place, shown: dict[str, dict[str, Any]]) -> str:
        """What a place says of its retries and the list does not; empty: they agree."""
        if place.name not in shown or "undone" not in shown[place.name]:
            return ""
        told = shown[place.name]["undone"]
        when = [at for (name, _), at in self.retries.items() if name == place.name]
        first = iso(min(when)) if when else None
        agrees = (told["retries"], told["next_retry_at"]) == (len(when), first)
        return "" if agrees else f"it shows {told}, and its list {len(when)} from {first}"

    def _count(self, place: Place, shown: dict[str, Any]) -> None:
        if "undone" in shown:
            self.count(place, shown["undone"])
        else:
            undone = {name: shown[name] for name in ("lag_messages", "in_flight")}
            self.ledger.looks.figures(place, sum(undone.values()), undone, without_retries=True)

    def count(self, place: Place, undone: dict[str, Any]) -> None:
        """Hold an `undone` object against the ledger."""
        number = undone["lag"] + undone["in_flight"] + undone["retries"]
        self.ledger.looks.figures(place, number, undone, without_retries=False)

    async def _list(self) -> None:
        """Ask for all retries, and keep which there are of which place, and when they come again."""
        self.retries, self._retries = {}, []
        if self.can("/v1/retries"):
            self._retries = await self.pages("/v1/retries?", "retries")
            self.retries = {(name_of(one), one["id"]): ms_of(one["retry_at"]) for one in self._retries}
        self._dead = await self.pages("/v1/dead?", "messages")
        self.dead = {(name_of(one), one["id"]) for one in self._dead}

    async def _look_at_lists(self) -> None:
        await self._list()
        self.ledger.looks.dead_letters((name_of(one), one["id"], one["reason"]) for one in self._dead)
        listed = [(name_of(one), one["id"], ms_of(one["retry_at"])) for one in self._retries]
        self.ledger.looks.retries(listed, self.dead)
        for one in self._retries + self._dead:
            self._tries(one)

    def _tries(self, one: dict[str, Any]) -> None:
        """The last tries that failed, oldest first, 20 at most; by a clock that may have been set back."""
        tries = one.get("tries") or []
        times = [each["at"] for each in tries]
        is_in_order = times == sorted(times) or self.ledger.clock.epoch > 0
        if (
            len(tries) > 20
            or not is_in_order
            or any(each["at"] > iso(self.ledger.clock.top) for each in tries)
        ):
            self.ledger.fault(6, "tries are wrong", f"{one['id']} of {name_of(one)}: {tries}")

    async def _metric(self, name: str) -> float:
        got = await self.insist("GET", "/metrics")
        lines = (line.rpartition(" ") for line in got.body.decode().splitlines() if line.startswith(name))
        return sum(float(value) for _, _, value in lines)


def pick(chances: tuple[tuple[int, float], ...], roll: float) -> int:
    left = roll * sum(weight for _, weight in chances)
    for value, weight in chances:
        left -= weight
        if left < 0:
            return value
    return chances[0][0]


def name_of(entry: dict[str, Any]) -> str:
    """The place that a delivery, a dead letter or a retry names."""
    name = str(entry.get("endpoint") or entry.get("group") or entry.get("session"))
    return name.removeprefix("$endpoint/")
