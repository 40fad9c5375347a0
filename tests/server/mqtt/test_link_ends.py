"""How a link ends and holds back, step by step: a transport that only notes, a server without a thread."""

import asyncio
import gc
import socket
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest

from server.codec.packets import (
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
)
from server.delivery.publishing import Publishing
from server.delivery.subscriber import Subscriber
from server.delivery.subscriptions import Subscriptions
from server.fair import Part
from server.mqtt.frames import BINARY
from server.mqtt.link import Links, MqttLink
from server.mqtt.state import Connection
from server.mqtt.websocket import Websocket
from server.net.browsers import Pages
from server.net.crowd import Cause, Crowd, mqtt_bounds
from server.net.loop_time import LoopTime
from server.net.opening import Caller
from server.net.outgoing import PIECE_S, Outgoing
from server.net.pool import pool_of
from server.settings.kinds import Address
from tests.server.mqtt.test_links import REQUEST, masked
from tests.support.build import OPENED
from tests.support.encode import encode
from tests.support.fresh import fresh
from tests.support.rig import Rig, config

LONGEST_S = 0.06
"""What one callback may take: 5 ms where nothing else runs, 80 and more if all is done at once."""

PING, PONG = encode(Pingreq(), 5), encode(Pingresp(), 5)


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """This process is a test's: it has far more to look through than a server."""
    gc.disable()
    yield
    gc.enable()


CALLER = Caller("127.0.0.1", 1, cast(socket.socket, None))
"""Nobody touches its socket here."""
PAGES = Pages(Address("127.0.0.1", 0), hosts=("*",), origins=(), has_api_keys=False)


class Transport:
    """What a link does to its socket."""

    def __init__(self) -> None:
        self.out = b""
        self.unsent_bytes = 0
        self.is_paused = self.is_over = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def write(self, data: bytes) -> None:
        self.out += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_over = True

    def close(self) -> None:
        self.is_over = True

    abort = close


QUIET_TURNS = 20


class Served:
    """A rig whose connections are links."""

    def __init__(self, **keys: int) -> None:
        self.rig = Rig(config(**keys))
        start_s = self.rig.clock.mono() - time.monotonic()
        self.rig.clock.mono = lambda: start_s + time.monotonic()  # type: ignore[method-assign]
        core, clock = self.rig.core, self.rig.clock
        self.time = LoopTime(clock.mono, Part())
        self.crowd = Crowd[MqttLink](mqtt_bounds(core.config.limits), Counter(), lambda _: None)
        pool = pool_of(core.config)
        self.links = Links(self.crowd, pool, core.publishing, Outgoing(clock.mono, Part()), self.time)

    async def link(self, client_id: str) -> tuple[MqttLink, Transport]:
        link, transport = self.begin()
        link.data_received(encode(Connect(5, client_id), 5))
        await self.settle()
        assert connection_of(link).outbox.is_open
        return link, transport

    def begin(self) -> tuple[MqttLink, Transport]:
        link, transport = self.accepted(), Transport()
        link.connection_made(cast("Any", transport))
        return link, transport

    async def web(self, client_id: str) -> tuple[MqttLink, Websocket, Transport]:
        """Of a websocket, with its CONNECT behind it."""
        link, transport = self.accepted(), Transport()
        web = Websocket(link, PAGES, self.time)
        web.connection_made(cast("Any", transport))
        web.data_received(REQUEST + masked(BINARY, encode(Connect(5, client_id), 5)))
        await self.settle()
        return link, web, transport

    def accepted(self) -> MqttLink:
        rig = self.rig
        return MqttLink(rig.core.mqtt, asyncio.get_running_loop(), self.links, rig.authenticator, CALLER)

    async def settle(self) -> None:
        """Until nothing moves, on either side, and the loop has nothing to do for some turns."""
        loop: Any = asyncio.get_running_loop()
        quiet = 0
        while quiet < QUIET_TURNS:
            self.rig.pump()
            quiet = 0 if loop._ready else quiet + 1
            await asyncio.sleep(0)


def connection_of(link: MqttLink) -> Any:
    return link._connection


async def test_who_keeps_too_much_is_read_to_its_end() -> None:
    """Ended in the middle of what it sends: what still comes is read and dropped, or the reason is lost."""
    served = Served(pool_bytes=1 << 16)
    link, transport = await served.link("a")
    data = encode(Publish(b"a", bytes(200_000)), 5)
    link.data_received(data[:60_000])
    await served.settle()
    link.data_received(data[60_000:120_000])
    assert transport.is_over
    assert not transport.is_paused
    assert served.links.pool.held == 0


@pytest.mark.parametrize("lingers", [False, True])
async def test_what_is_left_of_a_connection_needs_no_collector(lingers: bool) -> None:
    """5 KB each, and the collector looks after millions of objects: of 100,000 ends 500 MB stayed."""
    served = Served()
    with fresh(MqttLink, Connection) as left:
        for _ in range(3):
            link, transport = await served.link("a")
            link.data_received(encode(Subscribe(1, (("a", SubscribeOptions(1)),)), 5))
            link.data_received(encode(Publish(b"a", b"x", 1, packet_id=2), 5))
            await served.settle()
            assert left()
            if lingers:
                link.linger()
            link.connection_lost(None)
            await served.settle()
            del link, transport
        assert not left()


async def test_what_is_left_of_a_websocket_needs_no_collector() -> None:
    served = Served()
    with fresh(MqttLink, Websocket) as left:
        for _ in range(3):
            link, web, _ = await served.web("a")
            assert left()
            web.data_received(masked(BINARY, encode(Disconnect(), 5)))
            await served.settle()
            web.connection_lost(None)
            await served.settle()
            del link, web
        assert not left()


async def test_what_a_client_has_not_read_at_its_end_counts_until_it_has_read_it() -> None:
    """It lingers as long as it reads a little of it."""
    served = Served(pool_bytes=1 << 17)
    pool = served.links.pool
    slow, deaf, sender = [await served.link(client_id) for client_id in "abc"]
    for link, transport in (slow, deaf):
        transport.unsent_bytes = 100_000
        link.pause_writing()
        link.linger()
        assert pool.held == 100_000
        if link is slow[0]:
            link.resume_writing()
            assert pool.held == 0
    sender[0].data_received(encode(Publish(b"a", bytes(200_000)), 5)[:50_000])
    assert served.crowd.bounded == {"limits.memory": 1}
    assert (deaf[0].held_bytes, sender[0].held_bytes) == (0, 50_000)


async def test_a_socket_that_a_fault_has_closed_can_be_ended_all_the_same() -> None:
    """uvloop has closed its handle, does not say so by `is_closing`, and has not called `connection_lost`."""
    served = Served()
    link, transport = await served.link("a")

    def refuse(*_: object) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    transport.resume_reading = refuse  # type: ignore[method-assign]
    transport.write = refuse  # type: ignore[assignment]
    transport.write_eof = refuse  # type: ignore[method-assign]
    link.close(Cause.STOPPING)
    link.connection_lost(None)
    assert not served.crowd
    assert served.rig.core.sessions.get("a") is None


# -- what is not handled when it ends


FILTERS = 8_000


def _much(*topics: bytes) -> bytes:
    """A SUBSCRIBE that waits for the PUBLISH before it and then takes some 80 ms, and what is behind it."""
    filters = tuple(("/" * 120 + str(number), SubscribeOptions(1)) for number in range(FILTERS))
    behind = [Publish(topic, b"", 0) for topic in topics]
    return b"".join(
        encode(packet, 5) for packet in (Publish(b"first", b"", 0), Subscribe(1, filters), *behind)
    )


@OPENED
@pytest.mark.long
@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("behind", [[], [b"last"]])
async def test_what_was_sent_before_the_end_is_handled_in_turns(
    behind: list[bytes], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, subscribe = 0, Subscriptions.subscribe

    def counted(*asked: Any) -> bool:
        nonlocal taken
        taken += 1
        return subscribe(*asked)

    served = Served(subscriptions_per_session=10_000, subscription_bytes_per_session=1 << 21)
    watcher = served.rig.connected("watcher").subscribed("first", "last", qos=0)
    monkeypatch.setattr(Subscriptions, "subscribe", counted)
    link, _ = await served.link("a")
    core = served.rig.core
    link.data_received(_much(*behind))
    started = time.thread_time()
    if how == "fin":
        link.eof_received()
    link.connection_lost(None)
    assert time.thread_time() - started < LONGEST_S
    assert core.sessions.get("a") is not None
    longest = 0.0
    while len(served.crowd):
        for step in (served.rig.compose, served.rig.settle, served.rig.turn, served.rig.deliver):
            started = time.thread_time()
            step()
            longest = max(longest, time.thread_time() - started)
        await asyncio.sleep(0)
    assert longest < LONGEST_S
    assert core.sessions.get("a") is None
    assert taken == FILTERS
    served.rig.pump()
    assert [packet.topic for packet in watcher.publishes()] == [b"first", *behind]


async def test_a_takeover_waits_for_nothing() -> None:
    served = Served()
    watcher = served.rig.connected("watcher").subscribed("last", qos=0)
    link, _ = await served.link("a")
    link.data_received(_much(b"last"))
    link.connection_lost(None)
    assert len(served.crowd) == 1
    started = time.thread_time()
    other, _ = served.begin()
    other.data_received(encode(Connect(5, "a"), 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert time.thread_time() - started < LONGEST_S
    assert connection_of(other).outbox.is_open
    assert list(served.crowd) == [other]
    await served.settle()
    assert not watcher.publishes()


async def test_what_is_left_of_who_broke_the_protocol_is_dropped() -> None:
    served = Served()
    link, web, transport = await served.web("a")
    flood = masked(BINARY, encode(Publish(b"a", b"", 0), 5) * 120_000)
    started = time.thread_time()
    web.data_received(flood + b"\x81\x00")
    assert time.thread_time() - started < LONGEST_S
    assert transport.is_over or not connection_of(link).outbox.is_open
    assert served.rig.core.sessions.get("a") is None
    assert served.links.pool.held == 0


# -- faults of the server's own


@OPENED
async def test_one_that_cannot_go_on_does_not_stop_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    made = [await served.link(f"c{number}") for number in range(4)]

    def cannot(data: bytes) -> None:
        raise ValueError("one bad packet")

    bad, _ = made[0]
    monkeypatch.setattr(connection_of(bad), "receive", cannot)
    for link, _ in made:
        link._hold()
    assert all(transport.is_paused for _, transport in made)
    await served.settle()
    assert not any(transport.is_paused for _, transport in made)
    assert [transport.is_over for _, transport in made] == [True, False, False, False]
    assert b"\x83" in made[0][1].out
    assert served.rig.core.sessions.get("c0") is None


@OPENED
async def test_a_subscribe_that_cannot_take_effect_ends_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for its round, and fails in the middle of dispatch: that is not dispatch's fault."""
    served = Served()
    other, _ = await served.link("other")
    link, transport = await served.link("a")
    core = served.rig.core

    def cannot(*_: object) -> bool:
        raise ValueError("one client's SUBSCRIBE")

    monkeypatch.setattr(core.subscriptions, "subscribe", cannot)
    subscribe = Subscribe(1, (("t", SubscribeOptions(1)),))
    link.data_received(encode(Publish(b"first", b"", 0), 5) + encode(subscribe, 5))
    await served.settle()
    assert transport.is_over
    assert b"\x83" in transport.out
    assert core.sessions.get("a") is None
    assert connection_of(other).outbox.is_open


# -- what is kept


@pytest.mark.long
async def test_packets_that_wait_count_as_kept() -> None:
    """Read from their bytes, but not handled: they wait behind a SUBSCRIBE that waits for its round."""
    served = Served()
    link, transport = await served.link("a")
    link.data_received(_much() + encode(Publish(b"t", bytes(1_000), 0), 5) * 100)
    assert served.links.pool.held == link.held_bytes > 1_000_000
    await served.settle()
    assert served.links.pool.held == 0
    # Without end, in small pieces: what has been handled is not counted for ever.
    first = encode(Publish(b"t", b"", 0), 5)
    for number in range(2_000):
        subscribe = Subscribe(number + 1, (("t" * 500, SubscribeOptions(1)),))
        link.data_received(first + encode(subscribe, 5))
        while True:
            for step in (served.rig.turn, served.rig.compose, served.rig.settle):
                step()
            await asyncio.sleep(0)
            if not transport.is_paused:
                break
        assert link.held_bytes < 100_000
    await served.settle()
    assert served.links.pool.held == 0


async def test_frames_that_wait_count_as_kept() -> None:
    served = Served()
    _, web, _ = await served.web("a")
    web.pause_reading()
    web.data_received(masked(BINARY, encode(Publish(b"t", bytes(1_000), 0), 5)) * 200)
    assert served.links.pool.held > 200_000
    web.resume_reading()
    await served.settle()
    assert served.links.pool.held == 0


# -- congestion


@pytest.mark.long
@OPENED
async def test_only_who_has_published_waits_while_the_server_is_congested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Acks, pings and subscriptions go on: by themselves, after a long chunk and in the queue."""
    is_congested = True
    monkeypatch.setattr(Publishing, "is_congested", lambda *_: is_congested)
    served = Served()
    publisher, publishing = await served.link("publisher")
    other, reading = await served.link("other")
    served.rig.core.publishing.is_pressed = True
    publisher.data_received(encode(Publish(b"t", b"", 0), 5) + PING)
    assert publishing.is_paused
    other.data_received(PING)
    assert not reading.is_paused
    flood = PING * 40_000 + encode(Subscribe(1, (("t", SubscribeOptions(0)),)), 5)
    await asyncio.sleep(0.01)
    reading.out = b""
    other.data_received(flood)
    assert reading.is_paused
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert reading.out == PONG * 40_000 + encode(Suback(1, (0,)), 5)
    assert not reading.is_paused
    await asyncio.sleep(0.02)
    assert publishing.is_paused
    is_congested = False
    async with asyncio.timeout(60):
        while publishing.is_paused:
            await asyncio.sleep(0.005)


@OPENED
async def test_many_that_are_lost_at_once_leave_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may be a member of a thousand groups: 6 ms."""
    served = Served()
    links = [(await served.link(f"c{number}"))[0] for number in range(3)]
    core = served.rig.core
    leave, left = core.clients.leave, list[str]()

    def slow(subscriber: Subscriber, **how: bool) -> None:
        until = time.monotonic() + PIECE_S
        while time.monotonic() < until:
            """It leaves its groups."""
        left.append(subscriber.name)
        leave(subscriber, **how)

    monkeypatch.setattr(core.clients, "leave", slow)
    for link in links:
        link.connection_lost(None)
    counts = [len(left)]
    while served.crowd:
        await asyncio.sleep(0)
        counts.append(len(left))
    assert counts == [0, 1, 2, 3]
    assert left == ["c0", "c1", "c2"]
    assert not len(core.sessions)


@pytest.mark.parametrize("says", ["connect", "ping", "nothing"])
async def test_what_has_come_and_waits_for_a_turn_is_a_sign_of_life(
    monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """A flood of its network keeps the bytes of a client waiting for longer than its keep alive."""
    served = Served()
    link, transport = served.begin()
    connection, loop = connection_of(link), asyncio.get_running_loop()
    connect = encode(Connect(5, "a", keep_alive=10), 5)
    if says != "connect":
        link.data_received(connect)
        await served.settle()
    started_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: started_s + 16)
    data = {"connect": connect, "ping": encode(Pingreq(), 5)}.get(says)
    if data is not None:
        served.time.wait(link.owner, partial(link.data_received, data))
    link._check_alive()
    await served.settle()
    assert (connection.outbox.is_open, transport.is_over) == ((True, False) if data else (False, True))
