"""Clients that never read, and clients that never ack, many of each, under a stream to all of them at QoS 0,
1 and 2 (200 of each for a while with FASTI_SOAK, else 30).

What one of them holds is bounded by `limits.out_bytes` and `sessions.max_in_flight`; what does not fit waits
in the store, or at QoS 0 is dropped and counted. Who reads and acks gets all, and others' latency stays as it
was.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

from server.codec import wire
from server.codec.packets import Ack, Publish
from tests.support.mqtt import Peer, dial
from tests.support.soak import SOAK

from .crowd import gathered, is_normal, latencies, metric, metrics, present
from .frame import MIB, Table, bounded

EACH = 200 if SOAK else 30
SECONDS = 30.0 if SOAK else 1.5
ROUNDS = 200
"""Of the stream at least, however slow the machine is."""
PROBE_S = 3.0 if SOAK else 0.3
OUT_BYTES = 64 << 10
PAYLOAD = 30_000 if SOAK else 8_000
WINDOW = 50
SETTINGS = {
    "limits.connections": 2 * EACH + 20,
    "limits.connect_rate": 0,
    "limits.sessions": 2 * EACH + 20,
    "limits.out_bytes": OUT_BYTES,
    "sessions.max_in_flight": WINDOW,
}
FLIGHT_BYTES = 760
"""A delivery that is not acked, of a member of a group."""


class Good:
    """A client that reads, acks and remembers."""

    def __init__(self) -> None:
        self.got: Counter[int] = Counter()
        """Different messages, by QoS."""
        self._seen: set[bytes] = set()

    def on_publish(self, peer: Peer, packet: Publish, now_ms: int) -> None:
        number = packet.payload[:10]
        if number not in self._seen:
            self._seen.add(number)
            self.got[int(number[:1])] += 1
        if packet.qos:
            peer.send(Ack(wire.PUBACK if packet.qos == 1 else wire.PUBREC, packet.packet_id))

    def answer(self, peer: Peer) -> None:
        for packet in peer.inbox:
            if isinstance(packet, Ack) and packet.kind == wire.PUBREL:
                peer.send(Ack(wire.PUBCOMP, packet.packet_id))
        peer.inbox.clear()


async def stream(peer: Peer, seconds: float, good: Good, reader: Peer) -> Counter[int]:
    """Publish at all QoS in turns, no faster than the one who reads keeps up with; how many of each."""
    sent: Counter[int] = Counter()
    end = time.monotonic() + seconds
    number = 0
    while number < ROUNDS or time.monotonic() < end:
        for qos in (0, 1, 2):
            peer.put("stream", f"{qos}{number:09}".ljust(PAYLOAD), qos)
            sent[qos] += 1
        number += 1
        for packet in peer.inbox:
            if isinstance(packet, Ack) and packet.kind == wire.PUBREC:
                peer.send(Ack(wire.PUBREL, packet.packet_id))
        peer.inbox.clear()
        good.answer(reader)
        await asyncio.sleep(0.005)
        while sent.total() - good.got.total() > 60:
            good.answer(reader)
            await asyncio.sleep(0.005)
    return sent


async def test_who_never_reads_and_who_never_acks(tmp_path: Path, table: Table) -> None:
    table.head(f"{EACH} that never read, {EACH} that never ack, under a stream of {PAYLOAD:,} bytes")
    async with bounded(tmp_path / "data", SETTINGS) as one:
        at, url = one.server.mqtt, one.server.url
        before = await latencies(one.server, PROBE_S)
        table.add("latency before", before)
        got: Counter[Peer] = Counter()

        def counting(peer: Peer, packet: Publish, now_ms: int) -> None:
            got[peer] += packet.qos > 0

        async def deaf(number: int) -> Peer:
            """A third at each QoS, some of them for good, and each fifth agrees to a keep alive of 1 s."""
            peer = await dial(at)
            more = {"clean": False, "session_expiry": 600} if number % 2 else {}
            keep_alive = 0 if number % 5 else 1
            await peer.connect(f"deaf-{number}", keep_alive=keep_alive, **more)
            await peer.subscribe("stream", qos=number % 3)
            peer.transport.pause_reading()
            return peer

        async def mute(number: int) -> Peer:
            peer = await dial(at, on_publish=counting)
            more = {"clean": False, "session_expiry": 600} if number % 2 else {}
            await peer.connect(f"mute-{number}", **more)
            await peer.subscribe("stream", qos=1 + number % 2)
            return peer

        deafs = await gathered(EACH, deaf)
        mutes = await gathered(EACH, mute)
        good = Good()
        reader = await dial(at, on_publish=good.on_publish)
        await reader.connect("good", clean=False, session_expiry=600)
        await reader.subscribe("stream", qos=2)
        writer = await dial(at)
        await writer.connect("writer")
        async with present([*deafs, *mutes, reader, writer]):
            probing = asyncio.create_task(latencies(one.server, max(PROBE_S, SECONDS - 2)))
            async with asyncio.timeout(SECONDS + 120):
                sent = await stream(writer, SECONDS, good, reader)
            for qos in (0, 1, 2):
                table.add(f"sent at QoS {qos}", sent[qos])
            async with asyncio.timeout(60):
                while (good.got[1], good.got[2]) != (sent[1], sent[2]):
                    good.answer(reader)
                    await asyncio.sleep(0.05)
            table.add("who reads and acks has got", ", ".join(f"{good.got[qos]:,}" for qos in (0, 1, 2)))
            table.add("latency meanwhile", await probing)
            found = await metrics(url)
            dropped = int(found["fasti_messages_dropped_total"])
            table.add("dropped, as counted", dropped)
            table.add("in flight", int(found["fasti_in_flight"]))
            connections = 2 * EACH + 20
            of_lines = one.line("unread and unsent") + connections * (OUT_BYTES + FLIGHT_BYTES * WINDOW)
            grown = one.server.peak_bytes() - one.at_start_bytes
            table.add("RSS more than at the start", f"{grown / MIB:.0f} MiB")
            table.add("of it by one connection", f"{grown / (2 * EACH):,.0f} bytes")
            table.add("out_bytes and in flight may have", f"{of_lines / MIB:.0f} MiB")
            one.check(table)
            assert grown <= of_lines, str(table)
            # Who does not ack has its window and no more, again and again.
            assert all(got[peer] == WINDOW for peer in mutes), str(table)
            # At QoS 0 what the deaf ones did not get and is in the tail no more.
            assert dropped > 0
            # By its keep alive a deaf one ends, others are held.
            ended = len(range(0, EACH, 5))
            async with asyncio.timeout(30):
                while await metric(url, "fasti_connections") > 2 * EACH + 2 - ended:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            assert await metric(url, "fasti_connections") == 2 * EACH + 2 - ended
            table.add("connections that keep alive has ended", ended)
        after = await latencies(one.server, PROBE_S)
        table.add("latency after", after)
        assert is_normal(after, before), str(table)
