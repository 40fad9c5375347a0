"""A drain under load: no try is lost, and what was out is finished, or counted in the log.

Producers, three MQTT workers of a group, two that pull and the receiver of an endpoint are at work when
SIGTERM comes, and go on. Then the server is started again on its data, and the same crew does the rest.
"""

import asyncio
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from server.codec.packets import Publish
from tests.support.http import Http, http
from tests.support.mqtt import Closed, Peer, dial, user
from tests.support.receiver import Got, Receiver, answer, receiving
from tests.support.server import ServerProcess, serving

LOAD_S, SLOWEST_S = 2.0, 0.3
DRAIN = ("--drain", "10s")
SETTINGS = {"webhook.allow_private": "true"}
PULL = "/v1/groups/pull/messages:"
KINDS = ("mqtt", "pull", "hook")
STUCK_EACH = 40
"""Of so many messages a worker keeps one, if it keeps any."""
GONE = (aiohttp.ClientError, OSError, TimeoutError, Closed)


@dataclass
class Crew:
    """All clients, over both lives of the server, and what they know of each message by its payload."""

    keeps: bool
    """Workers keep some messages until the server has been started again."""
    accepted: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    """Of calls without an answer."""
    given: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    again: list[str] = field(default_factory=list)
    """What was given with an attempt above 1, or after it was done."""
    kept: dict[str, str] = field(default_factory=dict)
    """Payload -> lease id; empty: of an MQTT worker."""
    numbers: Iterator[int] = field(default_factory=count)
    is_second: bool = False
    """The server has been started again."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def gave(self, payload: str, attempt: int) -> None:
        self.given[payload] += 1
        if self.done[payload] or attempt > 1:
            self.again.append(f"{payload} attempt {attempt}")

    def keeps_this(self, payload: str) -> bool:
        return self.keeps and not self.is_second and int(payload.split("-")[1]) % STUCK_EACH == 0

    def begin(self, server: ServerProcess, *, produces: bool) -> None:
        works = [self.subscribe(server, f"w{n}") for n in range(3)]
        works += [self.pull(server) for _ in range(2)]
        works += [self.produce(server)] if produces else []
        self.tasks = [asyncio.create_task(self.guarded(work)) for work in works]

    async def guarded(self, work: Coroutine[None, None, None]) -> None:
        with suppress(*GONE):
            await work

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        found = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert [one for one in found if isinstance(one, Exception)] == []

    async def produce(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                tags = [f"{kind}-{next(self.numbers)}" for kind in KINDS for _ in range(5)]
                items = [message(tag) for tag in tags]
                self.unsure.update(tags)
                assert (await calls.schedule_many(items)).status == 201
                self.accepted.update(tags)
                await asyncio.sleep(0.05)

    async def subscribe(self, server: ServerProcess, name: str) -> None:
        came: asyncio.Queue[Publish] = asyncio.Queue()
        worker = await dial(server.mqtt, on_publish=lambda _, packet, __: came.put_nowait(packet))
        await worker.connect(name, clean=False, session_expiry=600)
        await worker.subscribe("$share/mqtt/mqtt/#", user_properties=(("ack-timeout", "20s"),))
        async with asyncio.TaskGroup() as group:
            while not worker.is_closed:
                with suppress(TimeoutError):
                    group.create_task(self.work(worker, await asyncio.wait_for(came.get(), 0.1)))

    async def work(self, worker: Peer, packet: Publish) -> None:
        payload = packet.payload.decode()
        self.gave(payload, int(user(packet, "fasti-attempt") or 1))
        if self.keeps_this(payload):
            self.kept[payload] = ""
            return
        await asyncio.sleep(SLOWEST_S * random.random())
        if not worker.is_closed:
            self.done[payload] += 1
            worker.ack(packet)

    async def pull(self, server: ServerProcess) -> None:
        async with http(server.url) as calls:
            while True:
                asked = {"max": 20, "wait": "1s", "lease": "10m"}
                leased = (await calls.call("POST", f"{PULL}lease", asked, status=200)).body["messages"]
                for one in leased:
                    self.gave(one["payload"], one["attempt"])
                await asyncio.sleep(SLOWEST_S * random.random())
                mine = {one["payload"]: one["lease_id"] for one in leased}
                self.kept |= {payload: lease for payload, lease in mine.items() if self.keeps_this(payload)}
                await self.ack(calls, {payload: mine[payload] for payload in mine.keys() - self.kept.keys()})

    async def ack(self, calls: Http, leases: dict[str, str]) -> None:
        if leases:
            self.done.update(leases.keys())
            ids = {"lease_ids": list(leases.values())}
            acked = (await calls.call("POST", f"{PULL}ack", ids, status=200)).body
            assert acked == {"acked": len(leases), "gone": []}

    async def posted(self, got: Got, writer: asyncio.StreamWriter) -> bool:
        self.gave(got.body.decode(), int(got.headers["fasti-attempt"]))
        await asyncio.sleep(SLOWEST_S * random.random())
        self.done[got.body.decode()] += 1
        return await answer(200)(got, writer)


def message(tag: str) -> dict[str, object]:
    kind, _, number = tag.partition("-")
    more = {"deliver_to": "hook"} if kind == "hook" else {}
    return {"topic": f"{kind}/{number}", "payload": tag, **more}


async def make(calls: Http, receiver: Receiver) -> None:
    await calls.call("PUT", "/v1/endpoints/hook", {"url": receiver.url(), "concurrency": 20}, status=201)
    for group in ("mqtt", "pull"):
        await calls.call("PUT", f"/v1/groups/{group}", {"filter": f"{group}/#"}, status=201)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_drain_under_load(
    tmp_path: Path, record_property: Callable[[str, object], None], *, keeps: bool
) -> None:
    crew, data = Crew(keeps), tmp_path / "data"
    async with receiving() as receiver:
        receiver.behave = crew.posted
        async with serving(data, *DRAIN, settings=SETTINGS) as server:
            async with http(server.url) as calls:
                await make(calls, receiver)
            crew.begin(server, produces=True)
            await asyncio.sleep(LOAD_S)
            os.kill(server.pid, signal.SIGTERM)
            await until(lambda: "drain: waiting" in server.output)
            before = set(crew.unsure)
            assert await asyncio.to_thread(server.process.wait, 60) == 0
            assert crew.given.keys() <= before, "nothing new is given in a drain"
            given = len(crew.given)
            assert given > 100
            await crew.end()
            said = server.output
        (left,) = re.findall(r"drain: ended after (.+) s; (\d+) messages are still out, (\d+) of them", said)
        leased = [lease for lease in crew.kept.values() if lease]
        assert (int(left[1]), int(left[2])) == (len(crew.kept), len(crew.kept)), "over MQTT too"
        assert (float(left[0]) >= 10, bool(leased), len(crew.kept) > len(leased)) == (keeps,) * 3
        out = {payload for payload, times in crew.given.items() if times > crew.done[payload]}
        assert out == crew.kept.keys(), "all else that was given is finished"
        assert crew.again == [], "tries are lost"
        waiting = crew.accepted - crew.given.keys()
        assert waiting, "producers went on"
        crew.is_second = True
        async with serving(data, settings=SETTINGS) as server:
            crew.begin(server, produces=False)
            async with http(server.url) as calls:
                await crew.ack(calls, {payload: lease for payload, lease in crew.kept.items() if lease})
            await until(lambda: crew.accepted <= (+crew.done).keys())
            await crew.end()
            async with http(server.url) as calls:
                assert (await calls.call("GET", "/v1/dead", status=200)).body["messages"] == []
    assert [one for one in crew.again if one.split()[0] not in crew.kept] == []
    assert {payload for payload, times in crew.done.items() if times > 1} == set()
    assert crew.given.keys() <= crew.unsure
    told = f"{given} given before the drain, {len(out)} out at its end, {len(waiting)} waited; no try lost"
    record_property("counted", told)
