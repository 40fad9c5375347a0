"""More comes in than the disk takes: each sync takes 0.3 s longer, and clients want far more than that.

HTTP one by one, sent ahead, in batches; MQTT delayed, stored and plain, at levels 5 and 4. FASTI_SOAK=1: for
longer, and how soon it is as before.
"""

import asyncio
import json
from functools import partial
from pathlib import Path

import aiohttp

from server.codec.packets import Publish
from server.settings.times import format_ms
from tests.support.http import Http, http
from tests.support.latencies import Latencies
from tests.support.mqtt import Peer, dial, wall_ms
from tests.support.soak import SOAK

from .crowd import EVERYTHING, felt, told
from .frame import Bounded, Table, aside, bounded
from .load import Flooded, Pour, flood, pour

SYNC_MS = 300
LOAD_S = 20.0 if SOAK else 1.5
DUE = 200
QUOTA_EXCEEDED = 0x97
POURS = [
    Pour("$delayed/3600/load/mqtt", 1),
    Pour("$delayed/3600/load/mqtt", 1),
    Pour("stored/a", 1),
    Pour("stored/b", 1, level=4),
    Pour("plain/a", 0),
]
AWAY = {"clean": False, "session_expiry": 3_600}


async def test_ingest_faster_than_the_disk(tmp_path: Path, table: Table) -> None:
    table.head("ingest faster than the disk")
    settings = {"limits.queued": 1_000, "mqtt.receive_maximum": 200}
    program = ("tests.overload.slow", str(SYNC_MS))
    async with bounded(tmp_path / "data", settings, program=program) as running:
        server = running.server
        async with http(server.url, timeout_s=60) as calls:
            away = await dial(server.mqtt)
            await away.connect("away", **AWAY)
            await away.subscribe("stored/#")
            await away.close()
            before = await felt(server, EVERYTHING, 5.0, 2) if SOAK else {}
            due = await _due(running, calls)
            http_said, mqtt_said, during = await asyncio.gather(
                aside(flood, server.http, ["single", "batch"], 30, 4, LOAD_S),
                aside(pour, server.mqtt, POURS, LOAD_S),
                felt(server, EVERYTHING, LOAD_S, 2),
            )
            after = await felt(server, EVERYTHING, 5.0, 2) if SOAK else {}
            table.add("HTTP", http_said)
            for one, said in zip(POURS, mqtt_said, strict=True):
                table.add(f"MQTT level {one.level}, QoS {one.qos}, {one.topic}", said)
            for when, found in (("before", before), ("during", during), ("after", after)):
                told(table, found, when)
            await due.all_came(table)
            stored = await _exported(server.url)
            acked = {*http_said.accepted, *mqtt_said[0].accepted, *mqtt_said[1].accepted}
            table.add("acked as stored", len(acked))
            table.add("of these lost", len(acked - stored))
            owed = {*mqtt_said[2].accepted, *mqtt_said[3].accepted}
            got = await _fetched(running, owed)
            table.add("acked for a session that is away", len(owed))
            table.add("of these lost", len(owed - got))
        running.check(table)
    _judge(http_said, mqtt_said)
    assert acked <= stored
    assert owed <= got
    if SOAK:
        for name in ("schedule", "acked"):
            then, now = (
                Latencies(wait for one in found[name] for wait in one.waits_ms) for found in (before, after)
            )
            assert now.at(0.5) < 3 * then.at(0.5) + 50, name


def _judge(http_said: Flooded, mqtt_said: list[Flooded]) -> None:
    assert set(http_said.answers) == {201, 429}
    assert not http_said.without_retry
    assert not http_said.lost
    assert sum(http_said.answers.values()) == http_said.asked
    for one, said in zip(POURS, mqtt_said, strict=True):
        assert set(said.answers) <= {0, QUOTA_EXCEEDED}, one
        if one.level == 5:
            assert sum(said.answers.values()) == said.asked * bool(one.qos), one
            assert not said.lost, one


class Due:
    """Messages that fall due during the load, and who gets them."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self.came: dict[str, int] = {}
        self.again = self.early = 0
        self.peer: Peer

    def on_publish(self, peer: Peer, packet: Publish, now_ms: int) -> None:
        peer.ack(packet)
        payload = packet.payload.decode()
        due_ms = self.at_ms + int(payload)
        self.again += payload in self.came
        self.early += now_ms < due_ms
        self.came[payload] = now_ms - due_ms

    async def all_came(self, table: Table) -> None:
        async with asyncio.timeout(60):
            while len(self.came) < DUE:
                await asyncio.sleep(0.02)
        table.add("due meanwhile, to another client", len(self.came))
        table.add("how late", Latencies([float(late) for late in self.came.values()]))
        assert not self.early
        assert not self.again
        self.peer.drop()


async def _due(running: Bounded, calls: Http) -> Due:
    """200 messages all over the time of the load."""
    at_ms = wall_ms() + 1_000
    due = Due(at_ms)
    due.peer = await dial(running.server.mqtt, on_publish=due.on_publish)
    await due.peer.connect("due")
    await due.peer.subscribe("due")
    offsets = [int(number * LOAD_S * 1_000 / DUE) for number in range(DUE)]
    items = [
        {"topic": "due", "payload": str(by_ms), "deliver_at": format_ms(at_ms + by_ms)} for by_ms in offsets
    ]
    answer = await calls.schedule_many(items)
    assert answer.status == 201, answer
    return due


async def _exported(url: str) -> set[str]:
    """The payloads of what is stored."""
    async with (
        aiohttp.ClientSession(url) as session,
        session.get("/v1/messages:export?topic=load/%23") as answer,
    ):
        assert answer.status == 200
        return {json.loads(line)["payload"] for line in (await answer.read()).splitlines()}


async def _fetched(running: Bounded, owed: set[str]) -> set[str]:
    """What the session that was away is sent, until all that is owed is there."""
    got: set[str] = set()

    def on_publish(got: set[str], peer: Peer, packet: Publish, now_ms: int) -> None:
        peer.ack(packet)
        got.add(packet.payload.decode())

    peer = await dial(running.server.mqtt, on_publish=partial(on_publish, got))
    await peer.connect("away", **AWAY)
    async with asyncio.timeout(120):
        while not owed <= got:
            await asyncio.sleep(0.02)
    peer.drop()
    return got
