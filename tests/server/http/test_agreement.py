"""Random lives of messages: a message, its deliveries, lists, filters and `why` say the same of it."""

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.delivery.outcomes import WORST
from server.http import why

from ..conftest import MINUTE_MS, Running
from .conftest import Keyed

LIST = "/v1/messages"
GROUPS: dict[str, dict[str, object]] = {
    "plain": {"keep": "all"},
    "line": {"order": True, "on_dead": "hold"},
    "fair": {"keep": "none", "fair": True},
    "few": {"per_key": {"concurrency": 2}, "keep": "1h", "filter": "x/1"},
}
STEPS = 80
OFTEN = {"send": 6, "lease": 6, "ack": 4, "nack": 4, "give_up": 2, "work": 4, "pass_time": 3, "requeue": 2}


@dataclass
class Walk:
    keyed: Keyed
    random: random.Random
    names: list[str] = field(default_factory=list)
    leases: dict[str, list[str]] = field(default_factory=dict)
    log: list[tuple[object, ...]] = field(default_factory=list)
    is_shop_there: bool = True

    @property
    def server(self) -> Running:
        return self.keyed.server

    async def call(self, path: str, body: object = None, method: str = "POST", key: str = "ops") -> Any:
        """A call that may be refused."""
        answer = await self.keyed.call(key, method, path, body, status=None)
        assert answer.status < 500, (answer, self.log[-5:])
        return answer

    # -- steps

    async def send(self, _: str) -> None:
        key = "shop" if self.is_shop_there and self.random.random() < 0.5 else "ops"
        body = {"topic": self.random.choice(["x/1", "x/2"]), "payload": "p"}
        rare: dict[str, Any] = {"ordering_key": "k", "expires_in": 90, "late": "drop"}
        body |= {name: value for name, value in rare.items() if self.random.random() < 0.3}
        answer = await self.call(LIST, {**body, "deliver_in": self.random.choice([0, 0, 5])}, key=key)
        if answer.status == 201:
            self.names.append(answer.body["id"])

    async def put(self, group: str) -> None:
        often = {"max_attempts": self.random.choice([1, 2, 5]), "backoff": [self.random.choice([1, 60])]}
        await self.call(f"/v1/groups/{group}", {"filter": "x/#", **often, **GROUPS[group]}, "PUT")

    async def lease(self, group: str) -> None:
        answer = await self.call(f"/v1/groups/{group}/messages:lease", {"max": 2})
        if answer.status == 200:
            self.leases.setdefault(group, []).extend(one["lease_id"] for one in answer.body["messages"])

    async def settle(self, group: str, verb: str, **more: object) -> None:
        if leases := self.leases.get(group):
            body = {"lease_ids": [leases.pop()], **more}
            await self.call(f"/v1/groups/{group}/messages:{verb}", body)

    async def ack(self, group: str) -> None:
        await self.settle(group, "ack", **self.random.choice([{}, {"result": 1}]))

    async def nack(self, group: str) -> None:
        await self.settle(group, "nack", delay=self.random.choice([0, 30]))

    async def give_up(self, group: str) -> None:
        await self.settle(group, "nack", delay="never")

    async def work(self, _: str) -> None:
        """What a member of "plain" does over MQTT."""
        member, settling = self.server.session("m"), self.server.app.core.settling
        for packet_id in [*member.session.flights]:
            if self.random.random() < 0.5:
                settling.ack(member, packet_id)
            else:
                settling.nack(member, packet_id, delay_ms=1_000, reason="no", done=str)

    async def pass_time(self, _: str) -> None:
        await self.server.pass_time(self.random.choice([500, 5_000, MINUTE_MS]))

    async def requeue(self, _: str) -> None:
        later = self.random.choice([{}, {"deliver_in": 30}])
        await self.call("/v1/dead:requeue", {"ids": [self.random.choice(self.names)], **later})

    async def change_a_retry(self, _: str) -> None:
        verb = self.random.choice(["retries:try", "retries:bury", "retries:drop", "dead:drop"])
        await self.call(f"/v1/{verb}", {"ids": [self.random.choice(self.names)]})

    async def change_a_group(self, group: str) -> None:
        verbs = {":skip": {}, ":pause": None, ":resume": None, "/keys/k:hold": None, "/keys/k:release": None}
        verb = self.random.choice([*verbs, ":replay"])
        body = verbs.get(verb, {"from": "2026-11-21T00:00:00Z"})
        await self.call(f"/v1/groups/{group}{verb}", body)

    async def delete(self, group: str) -> None:
        await self.call(f"/v1/groups/{group}?undone={self.random.choice(['dead', 'drop'])}", method="DELETE")

    async def change_rights(self, _: str) -> None:
        self.is_shop_there = not self.is_shop_there
        if self.is_shop_there:
            self.keyed.add("shop", "schedule", "read")
        else:
            self.keyed.file.revoke("shop")
            self.keyed.take()
        self.server.app.core.review()

    async def cancel(self, _: str) -> None:
        await self.call(f"{LIST}/{self.random.choice(self.names)}", method="DELETE")

    # -- what is said

    async def listed(self, query: str) -> dict[str, str]:
        """Outcome by id, of all pages."""
        found: dict[str, str] = {}
        cursor = ""
        while True:
            page = (await self.call(f"{LIST}?limit=5&count=true&{query}{cursor}", method="GET")).body
            assert not any(one["id"] in found for one in page["messages"])
            found |= {one["id"]: one["outcome"] for one in page["messages"]}
            if page["next"] is None:
                assert page["count"] == len(found)
                return found
            cursor = f"&cursor={page['next']}"

    async def check(self) -> None:
        every = await self.listed("state=all&outcomes=true")
        for outcome in ("failed", "retrying", "withheld", "done"):
            wanted = {name for name, one in every.items() if one == outcome}
            assert wanted == (await self.listed(f"outcome={outcome}")).keys(), self.log[-9:]
        for name, outcome in every.items():
            shown = (await self.call(f"{LIST}/{name}", method="GET")).body
            told = (await self.call(f"{LIST}/{name}/why", method="GET")).body
            context = outcome, shown, told, self.log[-9:]
            assert shown["outcome"] == outcome, context
            each = [_of(one) for one in shown.get("deliveries", ())]
            if each and shown["state"] == "dispatched":
                assert outcome == min(each, key=WORST.index), context
            assert not any("not listed" in one for one in told["sentences"]), context
            is_undone = shown["state"] in ("pending", "withheld") or {*each} & {*UNDONE}
            assert bool(told["waits_for"]) == bool(is_undone), context


UNDONE = ("queued", "running", "retrying", "withheld")


def _of(delivery: dict[str, Any]) -> Any:
    is_untried = delivery["state"] in ("waiting", "retry") and not delivery["attempts"]
    return "queued" if is_untried else why.OUTCOMES[delivery["state"]]


@pytest.mark.parametrize("seed", range(8))
async def test_all_say_the_same_of_a_message(keyed: Keyed, seed: int) -> None:
    walk = Walk(keyed, random.Random(seed))
    steps: list[Callable[[str], Coroutine[Any, Any, None]]] = [
        *(walk.send, walk.lease, walk.ack, walk.nack, walk.give_up, walk.work, walk.pass_time, walk.put),
        *(walk.requeue, walk.change_a_retry, walk.change_a_group, walk.delete, walk.change_rights),
        walk.cancel,
    ]
    keyed.add("shop", "schedule", "read")
    for group in ("plain", "line"):
        await walk.put(group)
    await keyed.server.connect("m", "$share/plain/x/#", window=1)
    await walk.send("")
    for _ in range(STEPS):
        (step,) = walk.random.choices(steps, [OFTEN.get(one.__name__, 1) for one in steps])
        group = walk.random.choice([*GROUPS])
        walk.log.append((step.__name__, group))
        await step(group)
        if walk.names and walk.random.random() < 0.4:
            await keyed.server.app.quiet()
            await walk.check()
