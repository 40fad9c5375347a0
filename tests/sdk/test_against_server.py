"""The whole way, against the real server in a process of its own: schedule, move, cancel, receive, return."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import fasti
from tests.sdk.conftest import PATIENT, QUICK, ROOT, quiet, taken
from tests.sdk.test_cli import ok
from tests.support.forked import Forked

LISTENING = re.compile(r"http\D{1,12}(127\.0\.0\.1:\d+).*?mqtt\D{1,12}(127\.0\.0\.1:\d+)", re.DOTALL)
FAR = datetime.now(UTC) + timedelta(days=300)


@dataclass
class Server:
    """A child that can be killed and started again on its data and its ports."""

    data: Path
    clock: str = "system"
    http: str = "127.0.0.1:0"
    mqtt: str = "127.0.0.1:0"
    child: Forked | None = None

    def start(self) -> None:
        log = self.data.parent / "server.log"
        begin = log.stat().st_size if log.exists() else 0
        given = ("--data", str(self.data), "--clock", self.clock, "--http", self.http, "--mqtt", self.mqtt)
        self.child = Forked(given, ROOT, os.environ, log)
        while (found := LISTENING.search(log.read_bytes()[begin:].decode())) is None:
            assert self.child.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
            time.sleep(0.01)
        self.http, self.mqtt = found.groups()

    def stop(self, *, kill: bool = False) -> None:
        if self.child is None:
            return
        child, self.child = self.child, None
        child.kill() if kill else child.terminate()
        assert child.wait(60) == 0 or kill

    @property
    def url(self) -> str:
        return f"http://{self.http}"


@asynccontextmanager
async def simulated(data: Path) -> AsyncIterator[Server]:
    """One with a clock that stands still until it is told."""
    async with running(Server(data, clock="simulated")) as made:
        yield made


@asynccontextmanager
async def running(made: Server) -> AsyncIterator[Server]:
    await asyncio.to_thread(made.start)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "data")
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def c(server: Server) -> AsyncIterator[fasti.Client]:
    async with fasti.Client(server.url, retry=PATIENT) as made:
        yield made


async def test_schedule_and_receive(c: fasti.Client) -> None:
    async with c.subscribe("orders/+/remind") as s:
        given: dict[str, Any] = {"delay": 0.3, "headers": {"x": "y"}, "key": "order-17"}
        m, again = [await c.messages.schedule("orders/17/remind", {"id": 17}, **given) for _ in range(2)]
        assert (m.state, again.id) == ("pending", m.id)
        [d] = await taken(s, 1)
        now = datetime.now(UTC)
        assert (d.id, d.topic, d.json(), d.attempt) == (m.id, "orders/17/remind", {"id": 17}, 1)
        assert d.due is not None
        assert d.lateness is not None
        assert d.due == m.deliver_at <= now, "never early"
        assert timedelta(0) <= d.lateness < timedelta(minutes=5)
        assert d.headers == {"x": "y"}
        await quiet(s)
    assert not await m.cancel()
    with pytest.raises(fasti.AlreadyDispatched):
        await m.reschedule(delay=5)
    assert (await m.refresh()).state == "dispatched"


@pytest.mark.parametrize("payload", [b"\x00\xff", "text", {"a": [1, None]}, 7, None])
async def test_payloads(c: fasti.Client, payload: object) -> None:
    async with c.subscribe("p") as s:
        m = await c.messages.schedule("p", payload, delay=0.1)
        assert (await c.messages.get(m.id)).payload == payload
        [d] = await taken(s, 1)
        raw = d.payload
    assert payload in (raw, raw.decode(errors="replace")) or payload == json.loads(raw)


async def test_cancel_and_reschedule(c: fasti.Client) -> None:
    async with c.subscribe("a/#") as s:
        gone = await c.messages.schedule("a/gone", "x", delay=0.4)
        moved = await c.messages.schedule("a/moved", "x", at=FAR)
        late = await c.messages.schedule("a/late", "x", delay=0.4)
        assert await gone.cancel()
        assert await gone.cancel()
        with pytest.raises(fasti.Refused) as refused:
            await gone.reschedule(delay=1)
        assert refused.value.slug == "cancelled"
        await moved.reschedule(delay=0.2)
        await late.reschedule(at=FAR)
        [d] = await taken(s, 1)
        assert d.id == moved.id
        await quiet(s, 0.6)
    with pytest.raises(fasti.NotFound):
        await c.messages.get("0" * 32)
    with pytest.raises(fasti.Refused):
        await c.messages.schedule("a/#", "wildcards are not for publishing")


async def test_many(c: fasti.Client) -> None:
    items = [fasti.NewMessage(topic=f"t/{n}", payload=n, at=FAR, key=f"k{n}") for n in range(2_500)]
    told: list[int] = []
    assert await c.messages.schedule_many(items, on_progress=told.append) == 2_500
    assert told == [1_000, 2_000, 2_500]
    assert await c.messages.schedule_many(items[:1_500]) == 1_500
    assert await c.messages.count(topic="t/#") == 2_500, "sent again, there once"
    listed = [m async for m in c.messages.list(topic="t/+", due_from=FAR - timedelta(days=1))]
    assert [m.payload for m in listed] == list(range(2_500)), "in order"
    with pytest.raises(fasti.Refused) as refused:
        await c.messages.schedule_many([*items[:3], {"topic": "t/#"}], batch=3)
    assert (refused.value.accepted, refused.value.errors[0]["line"]) == (3, 4)
    [found] = [s async for s in c.slices.list() if s.live]
    assert found.live == 2_500
    shards = (await c.slices.get(found.start)).shards
    assert sum(s.live for s in shards) == 2_500
    assert (await c.slices.shard(found.start, shards[0].shard)).live == shards[0].live


async def test_the_same_key_alone_and_in_a_batch(c: fasti.Client) -> None:
    alone = await c.messages.schedule("a", "x", at=FAR, key="k")
    batched, _ = await asyncio.gather(
        c.messages.schedule("a", "x", at=FAR, key="k"), c.messages.schedule("b", "x", at=FAR)
    )
    assert (batched.id, alone.replayed, batched.replayed, batched.state) == (alone.id, False, True, "pending")
    assert (await c.messages.schedule("a", "x", at=FAR, key="k")).replayed
    assert await alone.cancel()
    refused, other = await asyncio.gather(
        c.messages.schedule("a", "x", at=FAR, key="k"),
        c.messages.schedule("c", "x", at=FAR),
        return_exceptions=True,
    )
    assert isinstance(refused, fasti.KeyCancelled), "nobody will get it"
    assert refused.id == alone.id
    assert isinstance(other, fasti.Message)
    assert (other.replayed, other.state) == (False, "pending")
    with pytest.raises(fasti.Refused):
        await c.messages.schedule("a", "another", at=FAR, key="k")


async def test_a_persistent_session_goes_away_and_comes_back(c: fasti.Client) -> None:
    async with c.subscribe("s/#", session="audit") as s:
        await c.messages.schedule("s/0", "0")
        assert [d.text() for d in await taken(s, 1)] == ["0"]
        held = await c.messages.schedule("s/held", "held")
        d = await anext(s)
        assert d.id == held.id, "received and not acked"
    away = await c.sessions.get("audit")
    assert not away.connected
    for n in range(1, 4):
        await c.messages.schedule(f"s/{n}", str(n))
    last = await c.messages.schedule("s/last", "last")
    while (await last.refresh()).state != "dispatched":
        await asyncio.sleep(0.02)
    assert [x.client_id async for x in c.sessions.list()] == ["audit"]
    async with c.subscribe("s/#", session="audit") as s:
        back = await taken(s, 5)
        assert [d.text() for d in back] == ["held", "1", "2", "3", "last"]
        assert back[0].attempt == 2
        await quiet(s)
    await c.sessions.remove("audit")
    with pytest.raises(fasti.NotFound):
        await c.sessions.get("audit")


@pytest.mark.parametrize("kill", [False, True])
async def test_the_server_goes_and_comes_back(server: Server, c: fasti.Client, kill: bool) -> None:
    async with c.subscribe("s/#", session="worker") as s:
        await c.messages.schedule("s/1", "1")
        await taken(s, 1)
        server.stop(kill=kill)
        later = asyncio.create_task(c.messages.schedule("s/2", "2", delay=0.1))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(server.start)
        await later
        got: list[str] = []
        while "2" not in got:
            got += [d.text() for d in await taken(s, 1)]
        assert got in (["2"], ["1", "2"]), "an ack is not synced by itself: a killed server may send 1 again"
        assert s.connections == 2


@pytest.mark.parametrize("group", [None, "workers"])
async def test_an_ack_over_a_lost_connection_is_none(
    server: Server, c: fasti.Client, group: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fasti.subscribe.LATE_S", 0.1)  # a group's ack waits so long for a connection
    async with c.subscribe("s/#", session="worker", group=group) as s:
        await c.messages.schedule("s/1", "1")
        async with asyncio.timeout(60):
            first = await anext(s)
        server.stop(kill=True)
        assert not await first.ack(), "also at once, before the loop has seen it"
        await asyncio.to_thread(server.start)
        [again] = await taken(s, 1)
        assert again.id == first.id
        assert not await first.ack(), "the first answer stays"
        assert await again.ack()
        await quiet(s)
    async with c.subscribe("s/#", session="worker", group=group) as s:
        await quiet(s)
    assert not await first.ack()
    assert await again.ack()


async def test_at_qos_2_an_ack_over_a_lost_connection_is_kept(server: Server, c: fasti.Client) -> None:
    async with c.subscribe("s/#", session="worker", qos=2) as s:
        for n in (1, 2):
            await c.messages.schedule(f"s/{n}", str(n), qos=2)
        async with asyncio.timeout(60):
            one, two = await anext(s), await anext(s)
        assert await one.ack()
        server.stop(kill=True)
        assert await two.ack(), "it goes out when the message comes again"
        await asyncio.to_thread(server.start)
        await c.messages.schedule("s/3", "3", qos=2)
        assert [d.text() for d in await taken(s, 1)] == ["3"], "2 is not handed out again"
        await quiet(s)
    async with c.subscribe("s/#", session="worker", qos=2) as s:
        await quiet(s)


async def test_refusals_name_their_reason(c: fasti.Client) -> None:
    with pytest.raises(fasti.Refused):
        await c.advance(timedelta(days=1))
    async with c.subscribe("a", session="one") as first, c.subscribe("a", session="one"):
        with pytest.raises(fasti.Refused) as refused:
            async with asyncio.timeout(60):
                await anext(first)
        assert refused.value.reason_code == 0x8E


async def test_a_message_tells_with_whom_it_is(server: Server) -> None:
    at = ("--url", server.url)
    async with fasti.Client(server.url, retry=QUICK) as c:
        async with c.subscribe("jobs/#", group="workers", session="w") as s:
            made = await c.messages.schedule("jobs/1", "hi")
            assert made.deliveries == ()
            d = await anext(aiter(s))
            (one,) = (await made.refresh()).deliveries
            assert (one.group, one.filter, one.session) == ("workers", "jobs/#", None)
            assert (one.state, one.attempts, one.retry_at, one.reason) == ("in_flight", 1, None, "")
            shown = await ok("message", "get", made.id, *at)
            assert shown.splitlines()[-1].split() == ["workers", "jobs/#", "in_flight", "1", "-", "-"]
            await d.ack()
        while (await made.refresh()).deliveries[0].state != "done":
            await asyncio.sleep(0.01)
        assert made.deliveries == (fasti.Handling("done", "workers", "jobs/#"),)
    with pytest.warns(UserWarning, match="blocks the event loop"), fasti.sync.Client(server.url) as blocking:
        assert blocking.messages.get(made.id).deliveries == made.deliveries
    raw = json.loads(await ok("message", "get", made.id, "-o", "json", *at))
    assert raw["deliveries"] == [{"group": "workers", "filter": "jobs/#", "state": "done"}]


def test_command_line_subscribe(server: Server) -> None:
    environment = {**os.environ, "PYTHONPATH": "sdk"}
    command = [sys.executable, "-m", "fasti.cli", "subscribe", "a/#", "--session", "cli", "--count", "2"]
    with subprocess.Popen(
        [*command, "--url", server.url], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as child:
        with fasti.sync.Client(server.url, retry=QUICK) as c:
            deadline = time.monotonic() + 60
            while not any(s.connected for s in c.sessions.list()) and time.monotonic() < deadline:
                time.sleep(0.05)
            for n in range(2):
                c.messages.schedule("a/b", f"number {n}", delay=0.05 * n)
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert [line.split("  ")[-1] for line in out.splitlines()] == ["number 0", "number 1"]
    assert " ms  a/b" in out


async def test_a_drain_begins_and_ends(server: Server) -> None:
    async with fasti.Client(server.url) as c:
        await c.groups.put("workers", "work/#")
        assert not (await c.info()).draining
        drained = await c.server.drain()
        assert (drained["draining"], drained["out"], await c.server.drain()) == (True, 0, drained)
        assert (await c.info()).draining
        assert await c.server.drain(cancel=True) == {"draining": False, "since": None, "out": 0}
