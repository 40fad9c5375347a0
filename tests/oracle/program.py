"""A random program: each step is one thing that a user, a worker, an operator or bad luck does.

    python -m tests.oracle --seed 7 --steps 400

The same seed makes the same choices; the order of what the server sends is its own. `CALM` has no days of
absence, and its places stay where they are; `SOLO` has keys that are taken one at a time, too; `WILD` has
places that end, begin anew and are set back.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.http import Answer
from tests.support.mqtt import Closed, dial, user

from .ledger import DAY, DEAD, DEAD_MS, DROPPED, UNDONE, WAITING, Message, Place, Stake
from .world import GONE, World, iso, ms_of, name_of

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
TOPICS = tuple(f"jobs/{a}/{b}" for a in "abc" for b in "xyz")
PLACES = {
    "put": ("group", "jobs/#"),
    "leased": ("group", "jobs/+/x"),
    "shared": ("group", "jobs/a/#"),
    "hook-1": ("endpoint", ""),
    "hook-2": ("endpoint", ""),
    "session-1": ("session", "jobs/#"),
    "session-2": ("session", "jobs/b/+"),
}
TRIES = 3
DELAYS = (0, 0, 1, 900, 20 * SECOND, 5 * MINUTE, 2 * HOUR, 26 * HOUR)
CALM: dict[str, float] = {
    "schedule": 30,
    "publish": 6,
    "cancel": 6,
    "move": 4,
    "repeat": 1,
    "lease": 22,
    "late_ack": 5,
    "lapse": 1,
    "member": 8,
    "session": 8,
    "resume": 2,
    "requeue": 3,
    "drop_dead": 1,
    "try_retry": 3,
    "bury_retry": 1,
    "drop_retry": 1,
    "advance": 14,
    "kill": 2,
    "stop": 1,
    "look": 3,
}
SOLO = CALM | {"one_at_a_time": 25}
WILD = SOLO | {
    "away": 2,
    "long_away": 0.3,
    "down": 1,
    "end": 5,
    "set_back": 2,
    "skip": 2,
    "expiring": 4,
    "ghost": 2,
}


@dataclass(frozen=True, slots=True)
class Held:
    """A lease of a worker."""

    place: Place
    stake: Stake
    tries: int
    lease_id: str


class Program:
    def __init__(
        self, world: World, chance: random.Random, weights: Mapping[str, float], is_told: bool
    ) -> None:
        self.world, self.chance, self.weights = world, chance, weights
        self.ledger = world.ledger
        self.held: list[Held] = []
        self.ghosts: list[Held] = []
        self.count = 0
        self.is_told = is_told

    async def run(self, steps: int) -> None:
        for name in PLACES:
            await self.open(name)
        names, weights = list(self.weights), list(self.weights.values())
        for step in range(1, steps + 1):
            self.ledger.step = step
            name = self.chance.choices(names, weights)[0]
            if self.is_told:
                print(step, name, flush=True)
            self.ledger.lapse(time.monotonic())
            act: Callable[[], Awaitable[None]] = getattr(self, name)
            if self.chance.random() < 0.02 and name not in ("kill", "stop", "down"):
                await asyncio.gather(act(), self.world.kill_in(self.chance.random() / 100))
                await self.world.revive()
            else:
                await act()
            there = {place.name for place in self.ledger.open()}
            for missing in [name for name in PLACES if name not in there]:
                await self.open(missing)
        self.ledger.step = steps + 1
        await self.drain()

    def place(self, name: str) -> Place | None:
        return next(
            (place for place in reversed(self.ledger.places) if place.name == name and place.is_open), None
        )

    def any_place(self, kind: str) -> Place:
        return self.chance.choice([place for place in self.ledger.open() if place.kind == kind])

    # -- places

    async def open(self, name: str) -> None:
        """Make it, in the way of its name; what was due before is behind it."""
        kind, text = PLACES[name]
        await self.world.settle()
        await self.world.advance(1)
        terms: dict[str, Any] = {"max_attempts": TRIES, "backoff": ["10s", "1m"]}
        tries, expiry = TRIES, None
        if kind == "session" or name == "shared":
            tries, expiry = 0 if kind == "session" else 20, 7 * DAY
            await self._enlist(name, f"$share/{name}/{text}" if kind == "group" else text)
        elif kind == "endpoint":
            number = 1 + sum(place.name == name for place in self.ledger.places)
            body: dict[str, Any] = {"url": self.world.receiver.url(f"/hook/{name}/{number}"), "retry": terms}
            await self.world.insist("PUT", f"/v1/endpoints/{name}", body)
        elif name == "leased":
            tries, body = 20, {"max": 1, "filter": text}
            got = await self.world.insist("POST", f"/v1/groups/{name}/messages:lease", body)
            if got.body["messages"]:
                self.ledger.fault(3, "given to another incarnation", f"a new {name}: {got.body}")
        else:
            await self.world.insist("PUT", f"/v1/groups/{name}", {"filter": text, **terms})
        self.ledger.opened(kind, name, text, max_tries=tries, expiry=expiry)

    async def _enlist(self, name: str, text: str) -> None:
        """Over MQTT: connect, subscribe, leave."""
        while True:
            try:
                peer = await dial(self.world.server.mqtt)
                await peer.connect(name, clean=False, session_expiry=7 * DAY // 1_000)
                assert await peer.subscribe(text) == (1,)
                await peer.close()
            except (Closed, *GONE):
                await self.world.restart(kill=True)
            else:
                return

    async def end(self) -> None:
        """Somebody deletes a place, with or without a word about what is undone."""
        place = self.any_place(self.chance.choice(("group", "endpoint", "endpoint", "session")))
        await self.world.settle()
        path = f"/v1/{place.kind}s/{place.name}"
        undone = self.chance.choice((None, "dead", "drop")) if self.world.says_undone else None
        if place.kind != "session" and undone:
            path += f"?undone={undone}"
        for client in [c for c, (where, _) in self.world.members.items() if where is place]:
            await self.world.leave(client, orderly=True)
        got = await self.world.insist("DELETE", path)
        if got.status == 409:
            if not any(stake.may & UNDONE for stake in place.stakes.values()):
                self.ledger.fault(
                    6, "miscounted", f"409 undone to the end of {place}, which has nothing undone"
                )
            return
        if self.world.says_undone and undone is None and place.kind != "session":
            for stake in place.stakes.values():
                if stake.may <= UNDONE:
                    self.ledger.blame(1, "ended without a word", place, stake, f"; DELETE: {got.status}")
        self.ledger.closed(place, DEAD if undone == "dead" else DROPPED)
        self.ghosts += [one for one in self.held if one.place is place]
        self.held = [one for one in self.held if one.place is not place]

    async def set_back(self) -> None:
        place = self.any_place(self.chance.choice(("group", "endpoint", "session")))
        await self.world.settle()
        to = self.ledger.high - self.chance.choice((MINUTE, HOUR, DAY))
        self.ledger.set_back(place, to)  # before: it may come before the answer
        await self.world.insist("POST", f"/v1/{place.kind}s/{place.name}:replay", {"from": iso(to)})
        await self.world.settle()

    async def skip(self) -> None:
        place = self.any_place(self.chance.choice(("group", "endpoint", "session")))
        if not self.world.can(f"/v1/{place.kind}s/", ":skip"):
            return
        await self.world.settle()
        undone = self.chance.choice(("dead", "drop"))
        body = {"to": "now", "undone": undone}
        got = await self.world.call("POST", f"/v1/{place.kind}s/{place.name}:skip", body)
        if got is None or got.status == 200:
            self.ledger.skipped(place, DEAD if undone == "dead" else DROPPED, is_sure=got is not None)

    async def resume(self) -> None:
        """An endpoint may have been paused, by a 410."""
        place = self.any_place("endpoint")
        await self.world.insist("POST", f"/v1/endpoints/{place.name}:resume")

    # -- messages

    async def schedule(self, **more: Any) -> None:
        self.count += 1
        delay = self.chance.choice(DELAYS)
        body: dict[str, Any] = {"topic": self.chance.choice(TOPICS), "payload": self.count, **more}
        if self.chance.random() < 0.4:
            body["deliver_to"] = self.any_place("endpoint").name
        body["deliver_in"] = delay / 1_000
        got = await self.world.insist("POST", "/v1/messages", body, Idempotency_Key=f"k{self.count}")
        if got.status not in (200, 201):
            self.ledger.fault(1, "refused", f"{body}: {got.status} {got.body}")
            return
        due = ms_of(got.body["deliver_at"])
        expires = body.get("expires_in")
        at = max(due, self.ledger.low)
        self.ledger.accepted(
            Message(
                got.body["id"],
                body["topic"],
                due,
                at,
                body.get("deliver_to", ""),
                expires and expires * 1_000,
            )
        )

    async def one_at_a_time(self) -> None:
        """Under a key that is taken while something of its message is undone."""
        await self.world.settle()
        self.count += 1
        key = self.chance.choice(("solo-1", "solo-2"))
        topic = self.chance.choice((*TOPICS, *["nobody's"] * len(TOPICS)))
        body = {"topic": topic, "payload": self.count, "key": key, "key_scope": "pending"}
        body["deliver_in"] = self.chance.choice(DELAYS) / 1_000
        if self.chance.random() < 0.4:
            body["deliver_to"] = self.any_place("endpoint").name
        was_free = self.ledger.is_free(key)
        got = await self.world.call("POST", "/v1/messages?key_only=true", body)
        if got is None:  # it may have been taken
            got = await self.world.insist("GET", f"/v1/messages/by-key/{key}")
            if got.status != 200 or got.body["id"] in self.ledger.messages:
                return
        elif got.status == 200:
            self.ledger.key_kept(key, got.body["id"], was_free=was_free)
            return
        due = ms_of(got.body["deliver_at"])
        to = got.body.get("deliver_to", "") if "topic" in got.body else body.get("deliver_to", "")
        message = Message(got.body["id"], got.body.get("topic", topic), due, max(due, self.ledger.low), to)
        self.ledger.key_given(key, message)
        self.ledger.accepted(message)

    async def expiring(self) -> None:
        await self.schedule(expires_in=self.chance.choice((5, 600, 7_200)))

    async def publish(self) -> None:
        """Over MQTT, with a delay and a key; sent again until it is acked."""
        self.count += 1
        topic, delay = self.chance.choice(TOPICS), self.chance.choice(DELAYS)
        users = (("deliver-in", f"{delay}ms"), ("idempotency-key", f"m{self.count}"))
        before, ack = self.ledger.low, None
        while ack is None:
            try:
                peer = await dial(self.world.server.mqtt)
                await peer.connect(f"sender-{self.count}")
                ack = await peer.publish(topic, str(self.count), user_properties=users)
                await peer.close()
            except (Closed, *GONE):
                await self.world.restart(kill=True)
        key = user(ack, "fasti-id")
        if ack.reason or key is None:
            self.ledger.fault(1, "refused", f"a publish to {topic}: {ack}")
            return
        due = int(key[:12], 16)  # an key begins with its place on the timeline
        if due < before + delay:
            self.ledger.fault(1, "placed early", f"{key} at {due}, asked for {before + delay}")
        self.ledger.accepted(Message(key, topic, due, due))

    async def repeat(self) -> None:
        """A recurring schedule, made or deleted."""
        name = self.chance.choice(("s1", "s2"))
        if self.chance.random() < 0.5:
            every = self.chance.choice((600, 3_600, 6 * 3_600))
            body = {"topic": f"jobs/sched/{name}", "payload": "x", "every": every, "limit": 8}
            await self.world.insist("PUT", f"/v1/schedules/{name}", body)
        else:
            await self.world.insist("DELETE", f"/v1/schedules/{name}")
        await self.world.settle()

    async def cancel(self) -> None:
        if not self.ledger.messages:
            return
        message = self.chance.choice(list(self.ledger.messages.values()))
        await self.world.settle()
        got = await self.world.insist("DELETE", f"/v1/messages/{message.id}")
        if got.status == 204:
            self.ledger.cancelled(message)
        elif got.status == 404:
            self.ledger.not_found(message)
        elif got.slug == "already-dispatched":
            left = got.body.get("deliveries")
            self.ledger.not_cancelled(
                message, None if left is None else [(name_of(one), one["state"]) for one in left]
            )

    async def move(self) -> None:
        ahead = [m for m in self.ledger.messages.values() if m.due > self.ledger.high and not m.is_cancelled]
        if ahead:
            message, delay = self.chance.choice(ahead), self.chance.choice(DELAYS)
            self.ledger.moving(message, self.ledger.low + delay)
            path = f"/v1/messages/{message.id}"
            if (await self.world.call("PATCH", path, {"deliver_in": delay / 1_000})) is None:
                await self.world.settle()
            got = await self.world.insist("GET", path)
            self.ledger.moved(message, ms_of(got.body["deliver_at"]))

    # -- workers

    async def lease(self) -> None:
        """A worker takes some, and does with each what workers do."""
        place = self.any_place("group")
        body = {"max": self.chance.randint(1, 8), "filter": place.filter, "lease": "1h"}
        for one in await self.take(place, body):
            roll = self.chance.random()
            if roll < 0.5:
                await self.ack(one)
            elif roll < 0.75:
                await self.nack(one, self.chance.choice((None, 0, 30 * SECOND, 10 * MINUTE, HOUR)))
            elif roll < 0.8:
                await self.nack(one, -1)
            else:
                self.held.append(one)

    async def take(self, place: Place, body: dict[str, Any], seconds: float = 3_600) -> list[Held]:
        lapses = time.monotonic() + seconds
        if place.name != "leased":
            body.pop("filter")  # it would be made anew if it were gone
        got = await self.world.call("POST", f"/v1/groups/{place.name}/messages:lease", body)
        if got is not None and got.status == 404:
            self.ledger.missing(place)
            return []
        if got is None:
            self.ledger.perhaps_taken(place)
            return []
        held = []
        for one in got.body["messages"]:
            self.ledger.given(place, one["id"], lapses=lapses)
            if one["id"] not in self.ledger.messages:  # of a schedule: it is found by listing
                await self.world.settle()
            if taken := place.stakes.get(one["id"]):
                taken.lapses = lapses
                held.append(Held(place, taken, taken.tries, one["lease_id"]))
        return held

    async def ack(self, one: Held) -> None:
        got = await self._settle(one, "ack")
        if got is None:
            self.ledger.unsure(one.stake)
        elif got.body["acked"]:
            self.ledger.finished(one.stake, tries=one.tries)
        else:
            self.ledger.gone(one.place, one.stake)

    async def nack(self, one: Held, delay: int | None) -> None:
        said = {} if delay is None else {"delay": "never" if delay < 0 else delay / 1_000}
        got = await self._settle(one, "nack", reason="not now", **said)
        if got is None:
            self.ledger.unsure(one.stake)
        elif got.body["dead"]:
            if delay is None or delay >= 0:
                self.ledger.failed(one.place, one.stake)
                if DEAD not in one.stake.may:
                    self.ledger.blame(
                        1, "dead for no cause", one.place, one.stake, f"; try {one.stake.tries}"
                    )
            self.ledger.buried(one.stake)
        elif got.body["nacked"]:
            wait = 8 * SECOND if delay is None and one.place.name == "put" else delay or 0
            self.ledger.failed(one.place, one.stake, not_before=self.ledger.low + wait)

    async def _settle(self, one: Held, verb: str, **more: Any) -> Answer | None:
        body = {"lease_ids": [one.lease_id], **more}
        got = await self.world.call("POST", f"/v1/groups/{one.place.name}/messages:{verb}", body)
        if got is not None and got.status != 200:
            self.ledger.fault(5, "a lease is refused", f"{one.stake.message.id} of {one.place}: {got.body}")
            return None
        return got

    async def late_ack(self) -> None:
        """Of what a worker has held for a while; its lease may be over."""
        if self.held:
            await self.ack(self.held.pop(self.chance.randrange(len(self.held))))

    async def lapse(self) -> None:
        """A worker dies with what it has."""
        place = self.any_place("group")
        taken = await self.take(place, {"max": 5, "filter": place.filter, "lease": "1s"}, 1.0)
        await asyncio.sleep(1.3)
        self.held += self.chance.sample(taken, len(taken) // 2)

    async def ghost(self) -> None:
        """An ack under a lease of a place that has been deleted."""
        if self.ghosts:
            one = self.ghosts.pop()
            body = {"lease_ids": [one.lease_id]}
            got = await self.world.call("POST", f"/v1/groups/{one.place.name}/messages:ack", body)
            if got is not None and got.status == 200 and got.body["acked"]:
                self.ledger.fault(3, "a former lease counts", f"{one.stake.message.id} of {one.place}")

    async def member(self) -> None:
        """Somebody joins the group over MQTT, or does something there, or leaves."""
        await self._by_mqtt("member", self.place("shared"), orderly=self.chance.random() < 0.6)

    async def session(self) -> None:
        place = self.any_place("session")
        await self._by_mqtt(place.name, place, orderly=self.chance.random() < 0.6)

    async def _by_mqtt(self, client: str, place: Place | None, *, orderly: bool) -> None:
        assert place is not None
        if client not in self.world.members:
            text = f"$share/{place.name}/{place.filter}" if place.kind == "group" else place.filter
            expiry = 7 * DAY // 1_000 if place.kind == "session" else 0
            await self.world.join(client, place, text, session_expiry=expiry, receive_maximum=12)
            await self.world.settle()
        elif self.chance.random() < 0.7:
            self._answer(client)
            await self.world.settle()
        else:
            await self.world.settle()
            await self.world.leave(client, orderly=orderly)

    def _answer(self, client: str, *, all_is_well: bool = False) -> None:
        there = self.world.members.get(client)
        for one in [one for one in self.world.inbox if there and one[1] is there[1]]:
            place, peer, packet = one
            stake = self.world.stake_of(place, packet)
            roll = 0.0 if all_is_well else self.chance.random()
            if stake is None or roll > 0.85:
                continue
            self.world.inbox.remove(one)
            if roll < 0.6:
                self.world.puback(peer, packet)
                self.ledger.finished(stake, time.monotonic())
            elif roll < 0.8:
                self.world.puback(peer, packet, "5m")
                until = self.ledger.low + 5 * MINUTE
                self.ledger.failed(place, stake, not_before=until, mono=time.monotonic())
            else:
                self.world.puback(peer, packet, "never")
                self.ledger.buried(stake, time.monotonic())

    # -- dead letters and retries

    def _some(self, *may: str) -> tuple[Place, Stake] | None:
        found = [
            (place, stake)
            for place, stake in self.ledger.all_stakes()
            if place.is_open and stake.may <= {*may} and self.ledger.high - stake.message.at < DEAD_MS
        ]
        return self.chance.choice(found) if found else None

    async def _change(
        self, path: str, place: Place, stake: Stake, then: Callable[[Stake], None], **more: Any
    ) -> int | None:
        """A bulk call for one message and place: how many it has changed, and what it is `then`."""
        texts = {"group": f"$share/{place.name}/{place.filter}", "endpoint": f"$endpoint/{place.name}"}
        one = {"id": stake.message.id, "group": texts.get(place.kind, place.name)}
        body = {"ids": [one["id"]], "group": one["group"], **more}
        if path.startswith("/v1/retries"):
            body = {"filter": one, **more}
        before, tries = stake.may, stake.tries
        stake.may, stake.not_before = before | {WAITING}, 0  # it may come before the answer
        got = await self.world.call("POST", path, body)
        if got is None:
            stake.may |= {DROPPED, DEAD}
            return None
        if got.status != 200:
            self.ledger.fault(1, "refused", f"{path} {body}: {got.status} {got.body}")
        changed = int(got.body.get("changed", 0))
        if stake.tries == tries:
            stake.may = before
            if changed:
                then(stake)
        return changed

    async def requeue(self) -> None:
        if found := self._some(DEAD):
            place, stake = found
            if await self._change("/v1/dead:requeue", place, stake, self.ledger.again) == 0:
                self.ledger.blame(1, "a dead letter is gone", place, stake, "; requeue changes nothing")

    async def drop_dead(self) -> None:
        if found := self._some(DEAD):
            await self._change("/v1/dead:drop", *found, self.ledger.dropped)

    async def _steer(self, verb: str, then: Callable[[Stake], None], **more: Any) -> None:
        if not self.world.can("/v1/retries", f":{verb}"):
            return
        await self.world.settle()
        if found := self._some(WAITING):
            await self._change(f"/v1/retries:{verb}", *found, then, **more)

    async def try_retry(self) -> None:
        delay = self.chance.choice((None, 20 * SECOND, HOUR))
        more = {} if delay is None else {"deliver_in": delay / 1_000}
        before = self.ledger.low
        await self._steer("try", lambda stake: setattr(stake, "not_before", before + (delay or 0)), **more)

    async def bury_retry(self) -> None:
        await self._steer("bury", self.ledger.buried)

    async def drop_retry(self) -> None:
        await self._steer("drop", self.ledger.dropped)

    # -- time, and the process

    async def advance(self) -> None:
        await self.world.settle()
        await self.world.advance(self.chance.choice((1, SECOND, 30 * SECOND, 10 * MINUTE, HOUR)))
        await self.world.settle()

    async def away(self, days: float | None = None) -> None:
        """Everybody is away; the server runs."""
        await self.world.settle()
        for client in list(self.world.members):
            await self.world.leave(client, orderly=True)
        for _ in range(int(24 * (days or self.chance.choice((1.2, 3)))) // 12 + 1):
            await self.world.advance(12 * HOUR)
            await self.world.settle()
        await self.world.look()

    async def long_away(self) -> None:
        await self.away(self.chance.choice((8, 16)))

    async def kill(self) -> None:
        await self.world.restart(kill=True)

    async def stop(self) -> None:
        await self.world.restart(kill=False)

    async def down(self) -> None:
        await self.world.settle()
        await self.world.restart(kill=self.chance.random() < 0.5, away_ms=self.chance.choice((HOUR, 2 * DAY)))

    async def look(self) -> None:
        await self.world.look()

    # -- the end

    async def drain(self) -> None:
        """Everybody does all the work there is, until every delay is over. Then nothing may be left."""
        await self.world.look()
        self.world.all_is_well = True
        for place in self.ledger.open():
            if place.kind == "endpoint":
                await self.world.insist("POST", f"/v1/endpoints/{place.name}:resume")
            if place.kind == "session" and place.name not in self.world.members:
                await self._by_mqtt(place.name, place, orderly=True)
        for one in self.held:
            await self.ack(one)
        for hours in (0, 1, 1, 1, 26, 1, 1):
            await self.world.advance(hours * HOUR)
            await self._take_all()
        await self.world.look()
        self.ledger.at_the_end()

    async def _take_all(self) -> None:
        given = -1
        while given != self.ledger.seen["given"]:
            given = self.ledger.seen["given"]
            for client in list(self.world.members):
                self._answer(client, all_is_well=True)
            for place in self.ledger.open():
                if place.kind == "group" and not (place.name == "shared" and "member" in self.world.members):
                    for one in await self.take(place, {"max": 1_000, "filter": place.filter}):
                        await self.ack(one)
            await self.world.settle()
