"""A server that leads others, when its store takes nothing any more."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import Metric
from prometheus_client.registry import Collector

from server import serving
from server.codec import wire
from server.codec.packets import Ack, Disconnect
from server.delivery.cursors import LAST_COST, ROW_COST, SUBSCRIPTION_COST
from server.delivery.stored_sessions import StoredSessions
from server.engine.clock import SystemClock
from server.engine.lease import Lease
from server.http.problems import problem_middleware
from server.net import lingering
from server.net.acceptor import Ports
from server.observe.version import server_version
from server.rounds import app
from server.serving import Server, Term
from server.settings.config import Config
from server.settings.kinds import Address
from server.site import only_with_lease
from shards.store import Table
from shards.tables import cursor_row_of
from tests.support.mqtt import dial
from tests.support.served import until
from tests.support.server import serving as serving_process
from tests.support.stores import FailingStore
from timeline.position import START
from timeline.session import Subscription

AsyncCall = Callable[[], Awaitable[None]]
MOVED, UNAVAILABLE = 0x9D, 0x83
ANY = Address("127.0.0.1", 0)


LEASE_S = 600.0
"""No machine is as slow."""


class NoFigures(Collector):
    def collect(self) -> Iterator[Metric]:
        return iter(())


async def nothing() -> None:
    """There are no other doors."""


def leading(
    folder: Path,
    over: list[str],
    full: Callable[[], str],
    hand_over: AsyncCall = nothing,
) -> tuple[Server, FailingStore]:
    """A server in its term, and the store that it is on."""
    config = Config(
        http=replace(Config().http, listen=ANY),
        mqtt=replace(Config().mqtt, listen=(ANY,)),
        store=replace(Config().store, dir=str(folder)),
    )
    clock, store = SystemClock(), FailingStore(folder)
    stored = StoredSessions(config, store)
    lost = partial(over.append, "over")
    term = Term(Lease(clock, LEASE_S), lost, hand_over, stored, nothing, Ports(), (), NoFigures(), full)
    return Server(config, clock, store, None, None, term), store


@pytest.mark.long
async def test_while_the_log_is_full_messages_are_refused_and_the_term_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    over: list[str] = []
    full = ["the log is full"]
    server, _ = leading(tmp_path, over, lambda: full[0])
    await server.start()
    assert server._term is not None
    lease, clock, ahead_s = server._term.lease, server.app.core.clock, 0.0
    monkeypatch.setattr(clock, "mono", lambda: time.monotonic() + ahead_s)
    message = {"topic": "t", "payload": "x", "deliver_in": "1h"}
    try:
        said = capsys.readouterr().out
        peer = await dial(("127.0.0.1", int(said.partition("mqtt=127.0.0.1:")[2].split()[0])))
        await peer.connect("full", clean=False, session_expiry=60)
        await peer.subscribe("t/#", qos=1)  # no message: it goes through
        async with aiohttp.ClientSession(f"http://{said.partition('http=')[2].split()[0]}") as session:
            async with session.post("/v1/messages", json=message) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert (await answer.json())["detail"] == "the log is full."
            peer.put("t", "hi", 1, user_properties=(("deliver-in", "1h"),))
            assert (await peer.take(Ack)).reason == UNAVAILABLE
            full[0] = ""
            while ahead_s < 2 * LEASE_S:  # heartbeats go on, and the end is noticed
                ahead_s += LEASE_S / 3
                server.app.plan()
                await until(lambda: not lease.is_due)
            async with session.post("/v1/messages", json=message) as answer:
                assert answer.status == 201
        assert not over
    finally:
        await asyncio.wait_for(server.stop(), 60)


@pytest.mark.long
async def test_what_may_be_in_the_log_is_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its clients are sent away without an answer, and ask the next leader."""
    over: list[str] = []
    server, store = leading(tmp_path / "data", over, str)
    await server.start()
    closing = AsyncExitStack()
    try:
        said = capsys.readouterr().out
        port = int(said.partition("mqtt=127.0.0.1:")[2].split()[0])
        http = said.partition("http=")[2].split()[0]
        peers = [await dial(("127.0.0.1", port)) for _ in range(2)]
        for peer in peers:
            await peer.connect(f"c{port}-{peers.index(peer)}", clean=False, session_expiry=60)
        session = await closing.enter_async_context(aiohttp.ClientSession(f"http://{http}"))
        events = await closing.enter_async_context(session.get("/v1/events"))
        assert await events.content.readline() == b"event: figures\n"
        store.is_failing = True
        for qos, peer in enumerate(peers, 1):
            peer.put("t", "hi", qos, user_properties=(("deliver-in", "1h"),))
        for peer in peers:
            assert (await peer.take(Disconnect)).reason == MOVED
            await peer.gone()
            assert not [packet for packet in peer.inbox if isinstance(packet, Ack)]
        assert over == ["over"]
        async with asyncio.timeout(30):
            await events.content.read()  # who follows its figures is sent away, too
    finally:
        await closing.aclose()
        store.is_failing = False
        await asyncio.wait_for(server.stop(), 60)


@pytest.mark.long
async def test_who_stops_hands_over_before_its_slow_clients_have_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the last group in the store, and nothing sent after it."""
    for module, name in ((serving, "STOP_S"), (lingering, "LINGER_S")):
        monkeypatch.setattr(module, name, LEASE_S)  # here they have for ever
    handed_over = asyncio.Event()

    async def hand_over() -> None:
        assert server.app.core.writer.broken is not None
        assert cursor_row_of(store.get(Table.CURSORS, b"slow") or b"")
        handed_over.set()

    server, store = leading(tmp_path / "data", [], str, hand_over=hand_over)
    await server.start()
    said = capsys.readouterr().out
    port = int(said.partition("mqtt=127.0.0.1:")[2].split()[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x10\x16\0\x04MQTT\5\0\0\x3c\5\x11\0\0\0\x3c\0\4slow")
    assert (await reader.readexactly(4))[0] >> 4 == wire.CONNACK
    stopping = asyncio.ensure_future(server.stop())
    await asyncio.wait_for(handed_over.wait(), 60)
    assert not server.app.has_lease
    assert not stopping.done()
    writer.close()
    await asyncio.wait_for(stopping, 60)


@pytest.mark.long
@pytest.mark.parametrize(("leave_s", "is_whole"), [(LEASE_S, True), (0.0, False)])
async def test_who_stops_stores_its_sessions_for_a_time_and_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave_s: float, *, is_whole: bool
) -> None:
    """More than a batch of them; those that are not stored are as after a kill."""
    monkeypatch.setattr(app, "LEAVE_S", leave_s)
    monkeypatch.setattr(app, "STOP_S", LEASE_S)
    stored: list[int] = []

    async def hand_over() -> None:
        stored.append(sum(1 for _ in store.scan(Table.SESSIONS, b"", b"\xff")))

    server, store = leading(tmp_path / "data", [], str, hand_over=hand_over)
    await server.start()
    core, sessions, each = server.app.core, 450, 100
    for n in range(sessions):
        subscriber = core.sessions.open(f"s{n}", expiry_s=60, window=10)
        for k in range(each):
            core.subscriptions.subscribe(subscriber, Subscription(f"{n}/{k}", 1, START), None)
    await asyncio.wait_for(server.stop(), 60)
    most = LAST_COST // (2 * ROW_COST + SUBSCRIPTION_COST * each) + 1
    assert stored == [sessions if is_whole else most]


async def test_who_does_not_lead_any_more_answers_no_reads() -> None:
    """One that stood still for longer than its lease is asked before it has noticed; or while it reads."""
    leads, is_slow = True, False

    async def read(_: web.Request) -> web.Response:
        nonlocal leads
        leads = leads and not is_slow
        return web.Response(text="old")

    site = web.Application(middlewares=[problem_middleware, only_with_lease(lambda: leads)])
    site.router.add_get("/v1/messages", read)
    site.router.add_get("/v1/cluster", read)
    site.router.add_get("/livez", read)
    async with TestClient(TestServer(site)) as client:
        assert (await client.get("/v1/messages")).status == 200
        is_slow = True
        for _ in range(2):
            answer = await client.get("/v1/messages")
            assert answer.status == 503
            assert json.loads(await answer.text())["type"] == "/problems/no-leader"
        for path in ("/v1/cluster", "/livez"):
            assert (await client.get(path)).status == 200


@pytest.mark.process
async def test_what_begins_and_ends_is_one_line_each(tmp_path: Path) -> None:
    """With what one looks for afterwards, by name: which version, on which data, reachable where."""
    async with serving_process(tmp_path / "data", "--log", "json") as server:
        http, mqtt = (":".join(map(str, at)) for at in (server.http, server.mqtt))
        assert await server.stopped() == 0
    lines = [json.loads(line) for line in server.output.splitlines() if line.startswith("{")]
    said = [line for line in lines if line["logger"] == "server.serving"]
    assert [line["level"] for line in said] == ["info", "info"]
    begun, ended = said
    assert begun["event"].startswith(f"started: version {server_version()}, data in {tmp_path / 'data'}, ")
    assert begun["event"].endswith("; no keys required")
    assert (begun["version"], begun["data"]) == (server_version(), str(tmp_path / "data"))
    assert begun["listening"] == f"http {http}, tcp {mqtt}"
    assert begun["open"] is True
    assert ended["event"] == "stopped"
    assert lines[-1] is ended
