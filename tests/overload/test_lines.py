"""One bound at a time is filled, and RSS grows by no more than its line of the sum. For FASTI_SOAK=1."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench.http import get
from tests.support.http import http
from tests.support.mqtt import Peer, dial
from tests.support.soak import SOAK

from .crowd import metric, used
from .frame import MIB, Bounded, Table, bounded
from .load import Caller, call

pytestmark = pytest.mark.skipif(not SOAK, reason="takes minutes: make soak")

SLACK = 1.25
"""What the allocator may keep of memory that was freed, and of pages that are not full."""
FLIGHT_BYTES = 760
SPARE_BYTES = 8 * MIB
"""What code that runs for the first time takes: modules, compiled patterns, memtables."""


@dataclass
class Filling:
    """How a bound is filled: `fill` returns what holds it full."""

    names: tuple[str, ...]
    """Lines of the sum."""
    settings: Mapping[str, object]
    fill: Callable[[Bounded, AsyncExitStack], Awaitable[None]]
    flights: int = 0
    """What is in flight beside them."""


async def _scheduled(running: Bounded, topic: str, count: int, size: int, delay: str) -> None:
    async with http(running.server.url, timeout_s=60) as calls:
        step = min(1_000, 500_000 // size)
        for first in range(0, count, step):
            items = [
                {"topic": f"{topic}/{number % 100}", "payload": "x" * size, "deliver_in": delay}
                for number in range(first, min(count, first + step))
            ]
            answer = await calls.schedule_many(items)
            assert answer.status == 201, answer


async def _wheel_of_large(running: Bounded, stack: AsyncExitStack) -> None:
    await _scheduled(running, "soon", 9_000, 4_000, "5m")
    assert await used(running.server.url, "wheel.max_bytes") > 24 * MIB


async def _wheel_of_small(running: Bounded, stack: AsyncExitStack) -> None:
    await _scheduled(running, "soon", 99_000, 10, "2m")
    assert await used(running.server.url, "wheel.max_entries") > 90_000


async def _tail(running: Bounded, stack: AsyncExitStack) -> None:
    await _scheduled(running, "past", 40_000, 1_000, "0s")
    async with asyncio.timeout(60):
        while await metric(running.server.url, "fasti_messages_pending") > 1_000:
            await asyncio.sleep(0.1)
    assert await used(running.server.url, "tail.max_bytes") > 24 * MIB


async def _schedules(running: Bounded, stack: AsyncExitStack) -> None:
    async with http(running.server.url, timeout_s=60) as calls:
        for first in range(0, 20_000, 50):
            bodies = [
                {"every": "1d", "topic": f"every/{number}", "payload": "x"}
                for number in range(first, first + 50)
            ]
            posts = [
                calls.call("PUT", f"/v1/schedules/s{first + index}", body)
                for index, body in enumerate(bodies)
            ]
            for answer in await asyncio.gather(*posts):
                assert answer.status < 300, answer


async def _subscriptions(running: Bounded, stack: AsyncExitStack) -> None:
    for number in range(40):
        peer = await _peer(running, stack, f"s{number}")
        for first in range(0, 1_000, 50):
            filters = [f"site/{number}/{'x' * 30}/{index}" for index in range(first, first + 50)]
            assert set(await peer.subscribe(*filters)) == {1}


async def _route_cache(running: Bounded, stack: AsyncExitStack) -> None:
    peer = await _peer(running, stack, "s")
    await peer.subscribe("#", qos=0)
    peer.on_publish = lambda *_: None
    for number in range(200_000):
        peer.put(f"some/topic/that/is/long/{number}", b"", 0)
        if not number % 500:
            await peer.publish("tick", b"", 1)
    assert await used(running.server.url, "limits.route_cache_bytes") > MIB  # it has been begun anew


async def _idle_http(running: Bounded, stack: AsyncExitStack) -> None:
    callers = [await _caller(running, stack) for _ in range(1_900)]
    for caller, told in callers:
        caller.transport.write(get("/readyz"))
        assert await told.get() == 200


async def _ahead(running: Bounded, stack: AsyncExitStack) -> None:
    """Heads that never end, as long as they may be."""
    part = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(
        b"X-%d: %s\r\n" % (number, b"x" * 8_000) for number in range(2)
    )
    for _ in range(1_800):
        caller, _told = await _caller(running, stack)
        caller.transport.write(part)
    await asyncio.sleep(2)


async def _unread(running: Bounded, stack: AsyncExitStack) -> None:
    """Pages of 4 MiB that nobody reads."""
    for _ in range(30):
        caller, _told = await _caller(running, stack)
        caller.transport.pause_reading()
        caller.transport.write(get("/v1/messages?limit=1000&topic=far/%23"))
    await asyncio.sleep(8)


async def _silent(running: Bounded, stack: AsyncExitStack) -> None:
    """Half a CONNECT, and nothing more."""
    for _ in range(4_000):
        peer = await dial(running.server.mqtt)
        stack.callback(peer.drop)
        peer.write(b"\x10\x40\x00\x04MQTT\x05")
    await asyncio.sleep(1)


async def _away(running: Bounded, stack: AsyncExitStack) -> None:
    for number in range(10_000):
        peer = await dial(running.server.mqtt)
        await peer.connect(f"a-session-{number}", clean=False, session_expiry=3_600)
        await peer.close()
    assert await metric(running.server.url, "fasti_sessions") == 10_000


async def _unacked(running: Bounded, stack: AsyncExitStack) -> None:
    for number in range(60):
        peer = await dial(running.server.mqtt, on_publish=lambda *_: None)
        stack.callback(peer.drop)
        await peer.connect(f"mute-{number}", clean=False, session_expiry=3_600)
        await peer.subscribe("t", qos=2)
    writer = await _peer(running, stack, "writer")
    for _ in range(2_000):
        await writer.publish("t", b"x", 1)
    async with asyncio.timeout(60):
        while await metric(running.server.url, "fasti_in_flight") < 60 * 2_000:
            await asyncio.sleep(0.1)


async def _lent(running: Bounded, stack: AsyncExitStack) -> None:
    """Members of groups with an ack timeout: in flight twice, with a lease."""
    writer = await _peer(running, stack, "writer")
    for number in range(60):
        peer = await dial(running.server.mqtt, on_publish=lambda *_: None)
        stack.callback(peer.drop)
        await peer.connect(f"mute-{number}")
        for group in range(125):
            assert await peer.subscribe(f"$share/{number}-{group}/t", qos=1, user_properties=LONG) == (1,)
    for _ in range(16):
        await writer.publish("t", b"x", 1)
    async with asyncio.timeout(60):
        while await metric(running.server.url, "fasti_in_flight") < 60 * 2_000:
            await asyncio.sleep(0.1)


async def _given_back(running: Bounded, stack: AsyncExitStack) -> None:
    """What a member has when it leaves in order: by then its groups have it alone."""
    writer = await _peer(running, stack, "writer")
    for number in range(25):
        peer = await dial(running.server.mqtt, on_publish=lambda *_: None)
        await peer.connect(f"fickle-{number}")
        for group in range(125):
            assert await peer.subscribe(f"$share/{number}-{group}/t/{number}", qos=1) == (1,)
        for _ in range(16):
            await writer.publish(f"t/{number}", b"x", 1)
        await asyncio.sleep(0.2)
        await peer.close()
    async with http(running.server.url) as calls:
        answer = await calls.call("GET", "/v1/groups/24-124")
        assert answer.body["groups"][0]["in_flight"] == 16


async def _in_bytes(running: Bounded, stack: AsyncExitStack) -> None:
    """Packets that never end."""
    for number in range(500):
        peer = await _peer(running, stack, f"half-{number}")
        peer.write(b"\x30\xff\xff\x03\x00\x01t" + b"x" * 60_000)
    await asyncio.sleep(2)


async def _peer(running: Bounded, stack: AsyncExitStack, name: str) -> Peer:
    peer = await dial(running.server.mqtt)
    stack.callback(peer.drop)
    await peer.connect(name)
    return peer


async def _caller(running: Bounded, stack: AsyncExitStack) -> tuple[Caller, asyncio.Queue[int]]:
    told: asyncio.Queue[int] = asyncio.Queue()
    caller = await call(running.server.http, lambda status, _: told.put_nowait(status))
    stack.callback(caller.transport.abort)
    return caller, told


LONG = (("ack-timeout", "1h"),)
HTTP = {"http.connections": 2_000, "http.connections_per_address": 2_000}
MANY = {"limits.connect_rate": 0, "limits.connections": 4_000, "limits.sessions": 10_000}
FILLINGS = [
    Filling(("connections",), {**MANY, "limits.connect_timeout_ms": 600_000}, _silent),
    Filling(("sessions", "memtables", "block cache"), MANY, _away),
    Filling(
        ("sessions", "connections"),
        {"limits.connections": 62, "limits.sessions": 62, "sessions.max_in_flight": 2_000},
        _unacked,
        62 * 2_000,
    ),
    Filling(
        ("sessions", "subscriptions", "connections", "groups"),
        {
            "limits.connections": 62,
            "limits.sessions": 62,
            "limits.groups": 7_500,
            "limits.subscriptions": 7_500,
            "limits.subscription_bytes": "1MiB",
            "sessions.max_in_flight": 2_000,
        },
        _lent,
        62 * 2_000,
    ),
    Filling(
        ("groups", "memtables", "block cache"),
        {"limits.groups": 3_200, "limits.subscription_bytes": "1MiB", "sessions.max_in_flight": 2_000},
        _given_back,
    ),
    Filling(
        ("wheel", "memtables", "block cache"),
        {"wheel.max_bytes": "32MiB", "wheel.max_entries": 50_000},
        _wheel_of_large,
    ),
    Filling(
        ("wheel", "memtables", "block cache"),
        {"wheel.max_bytes": "64MiB", "wheel.max_entries": 100_000},
        _wheel_of_small,
    ),
    Filling(
        ("tail", "memtables", "block cache"), {"tail.max_bytes": "32MiB", "tail.max_entries": 100_000}, _tail
    ),
    Filling(("schedules", "memtables", "block cache"), {"limits.schedules": 20_000}, _schedules),
    Filling(
        ("subscriptions", "sessions", "connections"),
        {"limits.subscriptions": 40_000, "limits.subscription_bytes": "4MiB", "limits.connections": 100},
        _subscriptions,
    ),
    Filling(("routes",), {"limits.route_cache_bytes": "8MiB"}, _route_cache),
    Filling(("connections",), HTTP, _idle_http),
    Filling(("connections", "unread and unsent"), {**HTTP, "limits.pool_bytes": "32MiB"}, _ahead),
    Filling(("answers",), {}, _unread),
    Filling(
        ("unread and unsent", "connections"),
        {"limits.pool_bytes": "32MiB", "limits.connections": 500, "limits.sessions": 500},
        _in_bytes,
    ),
]


@pytest.mark.parametrize("filling", FILLINGS, ids=lambda one: one.fill.__name__.strip("_"))
async def test_a_full_bound_is_within_its_line(filling: Filling, tmp_path: Path, table: Table) -> None:
    async with bounded(tmp_path / "data", filling.settings) as running, AsyncExitStack() as stack:
        await _scheduled(running, "far", 1_000, 8_000, "3h")
        before = running.server.rss_bytes()
        running.server.forget_peak()
        await filling.fill(running, stack)
        grown = running.server.peak_bytes() - before
        allowed = sum(running.line(name) for name in filling.names) + filling.flights * FLIGHT_BYTES
        table.head(f"{' + '.join(filling.names)}, {filling.fill.__name__.strip('_')}")
        table.add("in the sum", f"{allowed / MIB:.1f} MiB")
        table.add("measured", f"{grown / MIB:.1f} MiB")
        running.check(table)
    assert grown <= SLACK * allowed + SPARE_BYTES, table
