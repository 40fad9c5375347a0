"""10,000 connections (400 without FASTI_SOAK): subscribed and sent to, one too many, of HTTP and idle; and a
process that may open few files."""

import asyncio
import os
import resource
import time
from pathlib import Path

from server.codec.packets import Publish
from server.net.acceptor import FILES
from tests.support.mqtt import Peer, dial
from tests.support.soak import SOAK

from .crowd import gathered, is_normal, latencies, metric, present, until, used
from .frame import MIB, Table, bounded

COUNT = 10_000 if SOAK else 400
PROBE_S = 5.0 if SOAK else 0.3
SETTINGS = {
    "limits.connections": COUNT,
    "limits.connect_rate": 0,
    "limits.sessions": COUNT + 100,
    "limits.subscriptions": 2 * COUNT,
    "mqtt.maximum_packet_size": "16KiB",
    "limits.max_payload": "8KiB",
    "http.connections": COUNT,
    "http.connections_per_address": COUNT,
    "http.idle_timeout": "10m",
}
REFUSED = 'fasti_mqtt_connections_bounded_total{bound="limits.connections"}'


async def test_as_many_connections_as_may_be(tmp_path: Path, table: Table) -> None:
    table.head(f"{COUNT:,} MQTT connections, then as many of HTTP")
    async with bounded(tmp_path / "data", SETTINGS) as one:
        at, url = one.server.mqtt, one.server.url
        before = await latencies(one.server, PROBE_S)
        table.add("latency before", before)
        came: dict[Peer, float] = {}

        def on_publish(peer: Peer, packet: Publish, now_ms: int) -> None:
            assert packet.payload == b"to all"
            assert peer not in came
            came[peer] = time.monotonic()

        async def member(number: int) -> Peer:
            peer = await dial(at, on_publish=on_publish)
            connack = await peer.connect(f"member-{number}")
            assert not connack.reason
            assert await peer.subscribe("all", qos=0) == (0,)
            return peer

        # Two for who measures, one for who publishes.
        began = time.monotonic()
        members = await gathered(COUNT - 3, member)
        async with present(members):
            table.add("connected and subscribed in", f"{time.monotonic() - began:.1f} s")
            resident = one.server.rss_bytes()
            each = (resident - one.at_start_bytes) / len(members)
            table.add("RSS of a connection with a session", f"{each:,.0f} bytes")
            table.add("latency meanwhile", await latencies(one.server, PROBE_S))
            writer = await dial(at)
            await writer.connect("writer")
            members.append(writer)
            began = time.monotonic()
            writer.put("all", "to all", 0)
            await until(lambda: len(came) == COUNT - 3, lambda: f"{len(came)} have got it")
            times = sorted(arrived - began for arrived in came.values())
            table.add("a message to all: median, last", f"{times[len(times) // 2]:.3f}, {times[-1]:.3f} s")
            members += [await dial(at), await dial(at)]
            refused = await dial(at)
            await refused.gone()
            assert await metric(url, REFUSED) == 1
            assert "as many as limits.connections" in one.server.output
            one.check(table)
            of_connections = ("connections", "sessions", "subscriptions")
            allowed = sum(one.line(name) for name in of_connections)
            assert each <= allowed / COUNT, table
        began = time.monotonic()
        while await metric(url, "fasti_connections"):
            await asyncio.sleep(0.05)
        table.add("all gone after", f"{time.monotonic() - began:.1f} s")
        one.server.forget_peak()
        resident = one.server.rss_bytes()
        table.add("RSS then", f"{resident / MIB:.0f} MiB")
        callers = await gathered(COUNT - 2, lambda _: _idle(one.server.http))
        grown = (one.server.rss_bytes() - resident) / COUNT
        table.add("RSS of an idle HTTP connection", f"{grown:,.0f} bytes")
        assert await used(url, "http.connections") == COUNT - 1
        table.add("latency meanwhile, of MQTT", await latencies(one.server, PROBE_S))
        one.check(table)
        for writer_ in callers:
            writer_.transport.abort()
        await asyncio.sleep(0.1)
        after = await latencies(one.server, PROBE_S)
        table.add("latency after", after)
        assert is_normal(after, before), str(table)


async def _idle(address: tuple[str, int]) -> asyncio.StreamWriter:
    """A connection that has made one call."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head
    return writer


async def test_out_of_descriptors(tmp_path: Path, table: Table) -> None:
    """New connections are shed, which is said and counted; who is there and the store go on."""
    table.head("a process that may open few files")
    async with bounded(tmp_path / "data", {"limits.connections": 1_000, "limits.connect_rate": 0}) as one:
        at, pid = one.server.mqtt, one.server.pid
        open_files = len(os.listdir(f"/proc/{pid}/fd"))
        few = open_files + 200
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, hard))
        keeper = await dial(at)
        await keeper.connect("keeper", clean=False, session_expiry=600)
        await keeper.subscribe("kept", qos=1)
        peers = await gathered(400, lambda _: dial(at))
        async with present(peers):
            await until(lambda: sum(peer.is_closed for peer in peers) > 200, lambda: "none was shed")
            await asyncio.sleep(0.2)
            there = sum(not peer.is_closed for peer in peers)
            table.add("open files before, allowed", f"{open_files}, {few}")
            table.add("connections that were taken, of 400", there)
            assert f"out of file descriptors, {few} may be open" in one.server.output
            assert there >= few - open_files - 64 - 10
            # The store still opens what it needs, and who is there is served.
            for _ in range(20):
                ack = await keeper.publish("kept", b"x" * 8_000, qos=1, message_expiry=600)
                assert ack is not None
                assert not ack.reason
                keeper.ack(*await keeper.take_many(1))
            peers[0].drop() if not peers[0].is_closed else None
        await asyncio.sleep(0.2)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        shed = await metric(one.server.url, f'fasti_mqtt_connections_bounded_total{{bound="{FILES}"}}')
        table.add("shed, as counted", int(shed))
        assert shed == 400 - there
        late = await dial(at)
        assert not (await late.connect("late")).reason
        await late.close()
        await keeper.close()
