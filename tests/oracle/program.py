"""A random program: each step is one thing that a user, a worker, an operator or bad luck does.

    python -m tests.oracle --seed 7 --steps 400

The same seed makes the same choices; the order of what the server sends is its own. `CALM` has no days of
absence, and its places stay where they are; `SOLO` has keys that are taken one at a time, too; `STEPPED` has
a clock that is set ahead and back, and schedules; `WILD` has places that end, begin anew and are set back.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tests.support.ledger.messages import Message
from tests.support.ledger.stakes import Lease, Place, Stake
from tests.support.ledger.words import BOUND_MS, DAY, DEAD, DEAD_MS, DROPPED, UNDONE, WAITING
from tests.support.mqtt import Closed, dial, user

from .world import EVERY, GONE, World, iso, ms_of, name_of

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
Steps = Mapping[str, float] | Sequence[str]
"""How likely each step is, or which ones are taken, again and again."""
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
STEPS = (700, 5 * SECOND, MINUTE, 2 * HOUR, DAY, 8 * DAY)
"""By so much the clock is wrong, ahead or back."""
STEPPED = CALM | {"step_clock": 14, "timetable": 12, "extend": 4, "look": 6}
WILD = SOLO | {
    "step_clock": 4,
    "timetable": 3,
    "away": 2,
    "long_away": 0.3,
    "down": 1,
    "end": 5,
    "set_back": 2,
    "skip": 2,
    "expiring": 4,
    "ghost": 2,
    "count_retries": 2,
    "try_all": 1.5,
    "requeue_to": 2,
    "extend": 2,
    "release": 4,
    "stale": 1,
    "requeue_former": 1,
    "cancel_all": 0.5,
}
STEERED = (
    *("schedule", "schedule", "schedule", "schedule", "advance", "lease", "lease", "lease", "look"),
    *("try_retry", "look", "count_retries", "cancel", "cancel", "lease", "bury_retry", "look"),
    *("requeue_to", "look", "end", "look", "schedule", "advance", "end", "drop_retry", "look"),
)
"""Steps one after the other, again and again: mostly those who steer what is undone."""
RULED = CALM | {"release": 20, "stale": 20, "lapse": 6}
"""Mostly what gives leases back, and comes with those of an earlier try."""


class Program:
    def __init__(self, world: World, chance: random.Random, steps: Steps) -> None:
        self.world, self.chance, self.steps = world, chance, steps
        self.ledger = world.ledger
        self.held: list[Lease] = []
        self.ghosts: list[Lease] = []
        self.count = 0
        self.rules: dict[str, object] = {}
        """Of the schedules of `timetable`."""
        self.wrong = 0
        """What the clock is ahead of where it was before somebody set it."""

    async def run(self, steps: int) -> None:
        for name in PLACES:
            await self.open(name)
        for step in range(1, steps + 1):
            self.ledger.book.step = step
            name = self._next(step)
            self.world.write(name)
            self.ledger.lapse(time.monotonic())
            act: Callable[[], Awaitable[None]] = getattr(self, name)
            if self.chance.random() < 0.02 and name not in ("kill", "stop", "down"):
                await asyncio.gather(act(), self.world.kill_in(self.chance.random() / 100))
                await self.world.revive()
            else:
                await act()
            there = {place.name for place in self.ledger.known.open()}
            for missing in [name for name in PLACES if name not in there]:
                await self.open(missing)
        self.ledger.book.step = steps + 1
        await self.drain()

    def _next(self, step: int) -> str:
        if not isinstance(self.steps, Mapping):
            return self.steps[step % len(self.steps)]
        return self.chance.choices(list(self.steps), list(self.steps.values()))[0]

    def place(self, name: str) -> Place | None:
        return next(
            (place for place in reversed(self.ledger.places) if place.name == name and place.is_open), None
        )

    def any_place(self, kind: str) -> Place:
        return self.chance.choice([place for place in self.ledger.known.open() if place.kind == kind])

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
        self.ledger.lives.opened(kind, name, text, max_tries=tries, expiry=expiry)

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
        undone = None if place.kind == "session" else undone
        if undone:
            path += f"?undone={undone}"
        for client in [c for c, (where, _) in self.world.members.items() if where is place]:
            await self.world.leave(client, orderly=True)
        got = await self.world.insist("DELETE", path)
        if got.status == 409:
            if undone or got.slug != "undone":
                self.ledger.fault(1, "refused", f"{path}: {got.status} {got.body}")
            else:
                self.world.count(place, got.body["undone"])
            if not any(stake.may & UNDONE for stake in place.stakes.values()):
                self.ledger.fault(
                    6, "miscounted", f"409 undone to the end of {place}, which has nothing undone"
                )
            return
        if self.world.says_undone and undone is None and place.kind != "session":
            for stake in place.stakes.values():
                if self.ledger.fates.is_surely_undone(place, stake):
                    self.ledger.known.blame(
                        1, "ended without a word", place, stake, f"; DELETE: {got.status}"
                    )
        self.ledger.lives.closed(place, DEAD if undone == "dead" else DROPPED)
        self.ghosts += [one for one in self.held if one.place is place]
        self.held = [one for one in self.held if one.place is not place]

    async def set_back(self) -> None:
        place = self.any_place(self.chance.choice(("group", "endpoint", "session")))
        await self.world.settle()
        if await self._is_gone(place):
            return
        to = self.ledger.clock.high - self.chance.choice((MINUTE, HOUR, DAY))
        self.ledger.lives.set_back(place, to)  # before: it may come before the answer
        await self.world.insist("POST", f"/v1/{place.kind}s/{place.name}:replay", {"from": iso(to)})
        await self.world.settle()

    async def skip(self) -> None:
        place = self.any_place(self.chance.choice(("group", "endpoint", "session")))
        if not self.world.can(f"/v1/{place.kind}s/", ":skip"):
            return
        await self.world.settle()
        if await self._is_gone(place):
            return
        undone, back = self.chance.choice(("dead", "drop")), self.chance.choice((0, 0, 10 * MINUTE, DAY))
        body = {"to": f"{back // SECOND}s" if back else "now", "undone": undone}
        to = self.ledger.clock.high - back if back else self.ledger.clock.top + 2
        got = await self.world.call("POST", f"/v1/{place.kind}s/{place.name}:skip", body)
        if got is not None and got.status == 200:
            self.world.count(place, got.body["undone"])
        if got is None or got.status == 200:
            then = DEAD if undone == "dead" else DROPPED
            self.ledger.lives.skipped(place, then, to, is_sure=got is not None)
        else:
            self.ledger.fault(1, "refused", f"{place}:skip {body}: {got.status} {got.body}")

    async def _is_gone(self, place: Place) -> bool:
        """Whether it has expired, and nobody has looked since."""
        if self.ledger.fates.may_be_gone(place):
            got = await self.world.insist("GET", f"/v1/{place.kind}s/{place.name}")
            if got.status == 404:
                self.ledger.lives.missing(place)
        return not place.is_open

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
            if self.count % 5 == 0:
                del body["topic"]  # it is of its endpoint alone, and of a filter only as `#` in bulk
        body["deliver_in"] = delay / 1_000
        got = await self.world.insist("POST", "/v1/messages", body, Idempotency_Key=f"k{self.count}")
        if got.status not in (200, 201):
            self.ledger.fault(1, "refused", f"{body}: {got.status} {got.body}")
            return
        due = ms_of(got.body["deliver_at"])
        expires = body.get("expires_in")
        to = body.get("deliver_to", "")
        topic = body.get("topic", f"$deliver/{to}")
        self.ledger.accepted(Message(got.body["id"], topic, due, due, to, expires and expires * 1_000))

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
            if got.status != 200 or got.body["id"] in self.ledger.messages.by_id:
                return
        elif got.status == 200:
            self.ledger.messages.key_kept(key, got.body["id"], was_free=was_free)
            return
        due = ms_of(got.body["deliver_at"])
        to = str((got.body if "topic" in got.body else body).get("deliver_to", ""))
        message = Message(got.body["id"], got.body.get("topic", topic), due, due, to)
        self.ledger.key_given(key, message)
        self.ledger.accepted(message)

    async def expiring(self) -> None:
        await self.schedule(expires_in=self.chance.choice((5, 600, 7_200)))

    async def publish(self) -> None:
        """Over MQTT, with a delay and a key; sent again until it is acked."""
        self.count += 1
        topic, delay = self.chance.choice(TOPICS), self.chance.choice(DELAYS)
        users = (("deliver-in", f"{delay}ms"), ("idempotency-key", f"m{self.count}"))
        before, ack = self.ledger.clock.low, None
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
        due, at = before + delay, int(key[:12], 16)  # a key begins with its place on the timeline
        if at < due:
            self.ledger.fault(1, "placed early", f"{key} at {at}, asked for {due}")
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

    async def timetable(self) -> None:
        """A schedule is made, gets another message or another rule, goes on from now, or ends."""
        name, roll = self.chance.choice(("t1", "t2", "t3")), self.chance.random()
        path = f"/v1/schedules/{name}"
        await self.world.settle()
        if roll < 0.75:
            rule = self.chance.choice(list(EVERY))
            kind = "cron" if "*" in str(rule) else "every"
            body = {"topic": f"jobs/sched/{name}", "payload": self.count, kind: rule, "limit": 40}
            body["timezone"] = "UTC"
            body["misfire"] = self.chance.choice(("fire_once", "fire_all", "skip"))
            if rule != self.rules.get(name):
                self.ledger.messages.forgotten(name)
            self.rules[name] = rule
            got = await self.world.insist("PUT", path, body)
            if got.status not in (200, 201):
                self.ledger.fault(1, "refused", f"{path} {body}: {got.status} {got.body}")
        elif roll < 0.9:
            await self.world.insist("DELETE", path)
            self.ledger.messages.forgotten(name)
            self.rules.pop(name, None)
        elif name in self.rules:
            await self.world.insist("POST", f"{path}:resume", {"from": "now"})
            self.ledger.messages.forgotten(name)
        await self.world.settle()

    async def cancel(self) -> None:
        if not self.ledger.messages.by_id:
            return
        message = self.chance.choice(list(self.ledger.messages.by_id.values()))
        await self.world.settle()
        got = await self.world.insist("DELETE", f"/v1/messages/{message.id}")
        if got.status == 204:
            self.ledger.cancelled(message)
        elif got.status == 404:
            self.ledger.looks.not_found(message)
        elif got.slug == "already-dispatched":
            left = got.body.get("deliveries")
            self.ledger.not_cancelled(
                message, None if left is None else [(name_of(one), one["state"]) for one in left]
            )

    async def cancel_all(self) -> None:
        """`{"topic": "#"}` is everything, also what has no topic."""
        await self.world.settle()
        await self.world.insist("POST", "/v1/messages:cancel", {"filter": {"topic": "#"}})
        await self.world.settle()  # what schedules have written is found, as cancelled
        for message in self.ledger.messages.by_id.values():
            if self.ledger.messages.is_ahead(message):
                got = await self.world.insist("GET", f"/v1/messages/{message.id}")
                if got.body["state"] == "cancelled":
                    self.ledger.cancelled(message)
                elif not self.ledger.messages.is_out(message, by=BOUND_MS) and not message.topic.startswith(
                    "jobs/sched"
                ):  # it may have been written since
                    self.ledger.fault(4, "everything is not all", f"{message.id} of {message.topic}")

    async def move(self) -> None:
        ahead = [m for m in self.ledger.messages.by_id.values() if self.ledger.messages.is_ahead(m)]
        if ahead:
            message, delay = self.chance.choice(ahead), self.chance.choice(DELAYS)
            self.ledger.moving(message, self.ledger.clock.low + delay)
            path = f"/v1/messages/{message.id}"
            if (await self.world.call("PATCH", path, {"deliver_in": delay / 1_000})) is None:
                await self.world.settle()
            got = await self.world.insist("GET", path)
            if got.status == 404:
                self.ledger.looks.not_found(message)
            else:
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

    async def take(self, place: Place, body: dict[str, Any], seconds: float = 3_600) -> list[Lease]:
        lapses = time.monotonic() + seconds
        if place.name != "leased":
            body.pop("filter")  # it would be made anew if it were gone
        waited = self.ledger.looks.due_there(place)
        got = await self.world.call("POST", f"/v1/groups/{place.name}/messages:lease", body)
        if got is not None and got.status == 404:
            self.ledger.lives.missing(place)
            return []
        if got is None:
            self.ledger.losses.perhaps_taken(place, is_leased=True)
            return []
        held = []
        self.ledger.looks.took(place, {one["id"] for one in got.body["messages"]}, waited)
        for one in got.body["messages"]:
            said = {"attempt": one.get("attempt"), "is_again": one.get("redelivered")}
            self.ledger.given(place, one["id"], lapses=lapses, **said)
            if one["id"] not in self.ledger.messages.by_id:  # of a schedule: it is found by listing
                await self.world.settle()
            if taken := place.stakes.get(one["id"]):
                self.ledger.settling.leased(taken, lapses)
                held.append(Lease(place, taken, taken.number, one["lease_id"]))
        return held

    async def ack(self, *leases: Lease) -> None:
        await self._settle("ack", leases)

    async def nack(self, one: Lease, delay: int | None) -> None:
        said = {} if delay is None else {"delay": "never" if delay < 0 else delay / 1_000}
        got, left = await self._settle("nack", [one], reason="not now", **said)
        if left and got["dead"]:
            if delay is None or delay >= 0:
                self.ledger.settling.failed(one.place, one.stake)
                if DEAD not in one.stake.may and one.stake.message.expires is None:
                    what = f"; try {one.stake.tries.most}"
                    self.ledger.known.blame(1, "dead for no cause", one.place, one.stake, what)
            self.ledger.settling.buried(one.stake)
        elif left:
            wait = 8 * SECOND if delay is None and one.place.name == "put" else delay or 0
            until = self.ledger.clock.low + wait
            self.ledger.settling.failed(one.place, one.stake, not_before=until, is_exact=delay is not None)

    async def extend(self) -> None:
        """A worker that has less than a second left asks for an hour, for some of what it has."""
        place = self.any_place("group")
        taken = await self.take(place, {"max": 3, "filter": place.filter, "lease": "2s"}, 2.0)
        await self._extend(*taken[:2])
        self.held += taken

    async def _extend(self, *leases: Lease) -> None:
        lapses = time.monotonic() + 3_600
        for one in (await self._settle("extend", leases, lease="1h"))[1]:
            self.ledger.settling.extended(one.stake, lapses)

    async def release(self) -> None:
        """A worker gives back some of what it has not begun."""
        place = self.any_place("group")
        taken = await self.take(place, {"max": 5, "filter": place.filter, "lease": "1h"})
        await self._release(*taken[:4])
        self.held += taken[4:]

    async def _release(self, *leases: Lease) -> None:
        for one in (await self._settle("release", leases))[1]:
            self.ledger.settling.returned(one.place, one.stake)

    async def stale(self) -> None:
        """A worker that is too late says something about a message that another has by now."""
        if not [one for one in self.held if one.number < one.stake.number]:
            await self.lapse()
            await self.lease()
        former = [one for one in self.held if one.number < one.stake.number]
        if former:
            one, verb = self.chance.choice(former), self.chance.choice(("ack", "nack", "extend", "release"))
            if verb == "nack":
                await self.nack(one, 0)
            else:
                await {"ack": self.ack, "extend": self._extend, "release": self._release}[verb](one)

    async def _settle(
        self, verb: str, leases: Sequence[Lease], **more: Any
    ) -> tuple[dict[str, Any], list[Lease]]:
        """The answer, and the leases with which that has done something; none if it is not known."""
        if not leases:
            return {}, []
        body = {"lease_ids": [one.name for one in leases], **more}
        got = await self.world.call("POST", f"/v1/groups/{leases[0].place.name}/messages:{verb}", body)
        if got is not None and got.status == 200:
            said = got.body
            done = said.get("dead", 0) + said[f"{verb.rstrip('e')}ed"]
            return said, self.ledger.leases.answered(verb, leases, done, said["gone"])
        for one in leases:
            if got is not None:
                what = f"{one.stake.message.id} of {one.place}: {got.body}"
                self.ledger.fault(5, "a lease is refused", what)
            if verb != "extend" or one.stake.lapses is not None:
                self.ledger.settling.unsure(one.stake)
                one.stake.may_be_nobodys |= verb == "extend"  # it may be an hour or not
            one.stake.returns.most += verb == "release"
        return {}, []

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
            body = {"lease_ids": [one.name]}
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
            if stake.is_held_too:
                roll = 0.0  # somebody else has finished it: whatever is said of it changes nothing
            if roll < 0.6:
                self.world.puback(peer, packet)
                self.ledger.settling.acked_unheard(place, stake, time.monotonic())
            elif roll < 0.8:
                self.world.puback(peer, packet, "5m")
                until = self.ledger.clock.low + 5 * MINUTE
                self.ledger.settling.failed(
                    place, stake, not_before=until, mono=time.monotonic(), is_exact=True
                )
            else:
                self.world.puback(peer, packet, "never")
                self.ledger.settling.buried(stake, time.monotonic())

    # -- dead letters and retries

    def _some(self, *may: str) -> tuple[Place, Stake] | None:
        found = [
            (place, stake)
            for place, stake in self.ledger.known.all_stakes()
            if place.is_open and stake.may <= {*may} and self.ledger.messages.age(stake.message) < DEAD_MS
        ]
        return self.chance.choice(found) if found else None

    async def _change(
        self, path: str, place: Place, stake: Stake, then: Callable[[Stake], None], **more: Any
    ) -> int | None:
        """A bulk call for one message and place: how many it has changed, and what it is `then`."""
        one = self._named(place, stake)
        body = {"ids": [one["id"]], "group": one["group"], **more}
        if path.startswith("/v1/retries"):
            body = {"filter": one, **more}
        before, number = stake.may, stake.number
        exact = stake.not_before, stake.is_exact, stake.reason
        # It may come before the answer.
        stake.may, stake.not_before, stake.is_exact = before | {WAITING}, 0, False
        got = await self.world.call("POST", path, body)
        if got is None:
            stake.may |= {DROPPED, DEAD}
            return None
        if got.status != 200:
            self.ledger.fault(1, "refused", f"{path} {body}: {got.status} {got.body}")
        changed = int(got.body.get("changed", 0))
        if stake.number == number:
            stake.may, (stake.not_before, stake.is_exact, stake.reason) = before, exact
            if changed:
                then(stake)
        return changed

    async def requeue(self) -> None:
        if found := self._some(DEAD):
            place, stake = found
            changed = await self._change("/v1/dead:requeue", place, stake, self.ledger.settling.again)
            if changed == 0 and not self.ledger.fates.may_be_gone(place):
                self.ledger.known.blame(1, "a dead letter is gone", place, stake, "; requeue changes nothing")

    def _letters(self, *, is_open: bool | None) -> list[tuple[Place, Stake]]:
        """Dead letters that place and id name alone; of open places, of closed ones or of both."""
        found = []
        for place, stake in self.ledger.known.all_stakes():
            others = [s for p, s in self.ledger.known.stakes_of(stake.message.id) if p.name == place.name]
            is_alone = not any(s.may & {DEAD} or s.was_finished for s in others if s is not stake)
            is_fresh = self.ledger.messages.age(stake.message) < DEAD_MS
            if stake.may <= {DEAD} and is_alone and is_fresh and is_open in (None, place.is_open):
                found.append((place, stake))
        return found

    async def requeue_to(self) -> None:
        """Another place gets what one has given up, also if that one has gone."""
        await self.world.settle()
        if not (letters := self._letters(is_open=None)):
            return
        place, stake = self.chance.choice(letters)
        to = self.any_place(self.chance.choice(("group", "endpoint")))
        if to.name == place.name:
            return
        there, before = self.ledger.settling.sending_to(to, stake.message, stake.total.most)
        number = there.number
        body = {"filter": self._named(place, stake), "to": to.name}
        got = await self.world.call("POST", "/v1/dead:requeue", body)
        if got is None:
            stake.may |= {DROPPED}
            return
        if got.status != 200:
            self.ledger.fault(1, "refused", f"requeue {body}: {got.status} {got.body}")
        is_changed = got.body.get("changed") == 1
        self.ledger.settling.sent_to(there, before, number, stake.total.most, is_changed=is_changed)
        if is_changed:
            self.ledger.settling.dropped(stake)
        elif not before & UNDONE:
            self.ledger.known.blame(
                1, "a dead letter is gone", place, stake, f"; requeue to {to} changes nothing"
            )

    async def requeue_former(self) -> None:
        """Without `to`, what a former place has given up goes to nobody."""
        await self.world.settle()
        if letters := self._letters(is_open=False):
            place, stake = self.chance.choice(letters)
            body = {"filter": self._named(place, stake)}
            got = await self.world.insist("POST", "/v1/dead:requeue", body)
            if got.status != 200 or got.body["changed"]:
                self.ledger.known.blame(3, "requeued to another incarnation", place, stake, f"; {got.body}")

    def _named(self, place: Place, stake: Stake) -> dict[str, str]:
        texts = {"group": f"$share/{place.name}/{place.filter}", "endpoint": f"$endpoint/{place.name}"}
        return {"id": stake.message.id, "group": texts.get(place.kind, place.name)}

    async def count_retries(self) -> None:
        """What would be steered is what is listed and counted; asking changes nothing."""
        if not self.world.can("/v1/retries"):
            return
        verb = self.chance.choice(("try", "bury", "drop"))
        for _ in range(3):
            await self.world.settle()
            listed = len(await self.world.pages("/v1/retries?", "retries"))
            counted = (await self.world.insist("GET", "/v1/retries?count=true&limit=1")).body["count"]
            body = {"filter": {"topic": "#"}, "dry_run": True}
            matched = (await self.world.insist("POST", f"/v1/retries:{verb}", body)).body["matched"]
            if listed == counted == matched:
                return
        what = f"{listed} listed, {counted} counted, {matched} of `#` in a dry run of :{verb}"
        self.ledger.fault(6, "retries miscounted", what)

    async def try_all(self) -> None:
        """A place is well again: everything that it waits for may come at once, or in an hour."""
        if not self.world.can("/v1/retries", ":try"):
            return
        await self.world.settle()
        place, delay = self.any_place("group"), self.chance.choice((0, HOUR))
        undone = [stake for stake in place.stakes.values() if WAITING in stake.may]
        for stake in undone:
            stake.not_before, stake.is_exact = 0, False
        text = f"$share/{place.name}/{place.filter}"
        body = {"filter": {"group": text}, "deliver_in": delay / 1_000}
        numbers, before = [stake.number for stake in undone], self.ledger.clock.low
        got = await self.world.call("POST", "/v1/retries:try", body)
        left = 0 if got is None else got.body["matched"] - got.body["changed"]
        may_stay = sum(stake.message.expires is not None for stake in undone) if delay else 0
        if got is not None and not 0 <= left <= may_stay:  # what would have expired by then stays as it is
            self.ledger.fault(6, "retries miscounted", f"{body}: {got.body}")
        if got is not None:
            all_ = await self.world.pages("/v1/retries?", "retries")
            listed = {one["id"] for one in all_ if name_of(one) == place.name}
            for stake, number in zip(undone, numbers, strict=True):
                is_retry = stake.message.id in listed and stake.may == {WAITING} and stake.number == number
                if is_retry and stake.message.expires is None and place.is_open:
                    self.ledger.settling.tried(stake, before + delay)

    async def drop_dead(self) -> None:
        if found := self._some(DEAD):
            await self._change("/v1/dead:drop", *found, self.ledger.settling.dropped)

    async def _steer(self, verb: str, then: Callable[[Stake], None], **more: Any) -> None:
        if not self.world.can("/v1/retries", f":{verb}"):
            return
        await self.world.settle()
        if found := self._some(WAITING):
            await self._change(f"/v1/retries:{verb}", *found, then, **more)

    async def try_retry(self) -> None:
        delay = self.chance.choice((None, 20 * SECOND, HOUR))
        more = {} if delay is None else {"deliver_in": delay / 1_000}
        before = self.ledger.clock.low
        await self._steer(
            "try", lambda stake: self.ledger.settling.tried(stake, before + (delay or 0)), **more
        )

    async def bury_retry(self) -> None:
        await self._steer("bury", lambda stake: self.ledger.settling.buried(stake, reason="buried"))

    async def drop_retry(self) -> None:
        await self._steer("drop", self.ledger.settling.dropped)

    # -- time, and the process

    async def advance(self) -> None:
        await self.world.settle()
        await self.world.advance(self.chance.choice((1, SECOND, 30 * SECOND, 10 * MINUTE, HOUR)))
        await self.world.settle()

    async def step_clock(self) -> None:
        """Somebody sets the clock wrong, or right again."""
        await self.world.settle()
        by = -self.wrong
        if not by or self.chance.random() < 0.2:
            by += self.chance.choice(STEPS) * self.chance.choice((1, -1))
        self.wrong += by
        await self.world.step(by)
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
        away = self.chance.choice((HOUR, 2 * DAY, -2 * HOUR))
        self.wrong += min(0, away)
        await self.world.restart(kill=self.chance.random() < 0.5, away_ms=away)

    async def look(self) -> None:
        await self.world.look()

    # -- the end

    async def drain(self) -> None:
        """Everybody does all the work there is, until every delay is over. Then nothing may be left."""
        await self.world.look()
        self.world.all_is_well = True
        behind = self.ledger.clock.top - self.ledger.clock.high
        await (self.world.advance if behind < 2 * DAY else self.world.step)(behind)
        await self.world.settle()
        for place in self.ledger.known.open():
            if place.kind == "endpoint":
                await self.world.insist("POST", f"/v1/endpoints/{place.name}:resume")
            if place.kind == "session" and place.name not in self.world.members:
                await self._by_mqtt(place.name, place, orderly=True)
        for place in self.ledger.known.open():
            await self.ack(*[one for one in self.held if one.place is place])
        self.held = []
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
            for place in self.ledger.known.open():
                if place.kind == "group" and not (place.name == "shared" and "member" in self.world.members):
                    await self.ack(*await self.take(place, {"max": 1_000, "filter": place.filter}))
            await self.world.settle()
