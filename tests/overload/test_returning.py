"""Many sessions come back at once, each with a long backlog: 2,000 with the same 500 messages; and 200 with
500, half of them for one alone, so that each has to find its own among those of the others. 20 with 100
without FASTI_SOAK. All get all, in order, once; nobody waits more than twice as long as most.
"""

import asyncio
import time
from pathlib import Path

import pytest

from server.codec import wire
from server.codec.packets import Ack, Publish
from tests.support.mqtt import Peer, dial
from tests.support.soak import SOAK

from .crowd import gathered, is_normal, latencies, metric, present, until
from .frame import Table, bounded

pytestmark = pytest.mark.short

PROBE_S = 3.0 if SOAK else 0.3
WINDOW = 100
SLACK_S = 0.5
"""A machine that is busy with something else."""


class Session:
    """One of them, over two connections."""

    def __init__(self, at: tuple[str, int], number: int) -> None:
        self._at = at
        self.number = number
        self.got: list[int] = []
        self.began_s = self.first_s = self.last_s = 0.0
        self.faults: list[str] = []

    async def enlist(self, *filters: str) -> None:
        peer = await dial(self._at)
        await self._connect(peer)
        await peer.subscribe(*filters, qos=1)
        await peer.close()

    async def come_back(self) -> Peer:
        peer = await dial(self._at, on_publish=self._on_publish)
        self.began_s = time.monotonic()
        connack = await self._connect(peer)
        if not connack:
            self.faults.append("its session is gone")
        return peer

    async def _connect(self, peer: Peer) -> bool:
        connack = await peer.connect(f"s{self.number}", clean=False, session_expiry=3_600)
        assert not connack.reason
        return connack.session_present

    def _on_publish(self, peer: Peer, packet: Publish, now_ms: int) -> None:
        now = time.monotonic()
        self.first_s = self.first_s or now
        self.last_s = now
        if packet.dup:
            self.faults.append("sent again without a cause")
        self.got.append(int(packet.payload))
        peer.send(Ack(wire.PUBACK, packet.packet_id))


async def publish_all(at: tuple[str, int], topics: list[str]) -> None:
    """A message to each of these topics, in this order, its number as payload."""
    peer = await dial(at)
    await peer.connect("writer")
    acked = 0
    for number, topic in enumerate(topics):
        peer.put(topic, str(number), 1)
        if number - acked >= WINDOW - 1:
            await peer.take(Ack)
            acked += 1
    while acked < len(topics):
        await peer.take(Ack)
        acked += 1
    await peer.close()


def waits(sessions: list[Session], which: str) -> list[float]:
    return sorted(getattr(one, which) - one.began_s for one in sessions)


@pytest.mark.parametrize("own_of", [0, 200] if SOAK else [20])
async def test_sessions_return_at_once(tmp_path: Path, own_of: int, table: Table) -> None:
    """`own_of`: so many sessions have topics of their own; 0: none has."""
    count, backlog = own_of or 2_000, 500 if SOAK else 100
    table.head(f"{count:,} sessions return with {backlog} messages each")
    settings = {
        "limits.connections": count + 10,
        "limits.connect_rate": 0,
        "limits.sessions": count + 10,
        "limits.subscriptions": 3 * count,
        "sessions.max_in_flight": 1_000,
    }
    async with bounded(tmp_path / "data", settings) as one:
        at = one.server.mqtt
        sessions = [Session(at, number) for number in range(count)]
        await gathered(count, lambda number: sessions[number].enlist("all", f"own/{number}"))
        topics: list[str] = []
        shared = backlog // 2 if own_of else backlog
        for _ in range(shared):
            topics += ["all", *(f"own/{number}" for number in range(own_of))]
        began = time.monotonic()
        await publish_all(at, topics)
        table.add("messages stored", f"{len(topics):,} in {time.monotonic() - began:.1f} s")
        before = await latencies(one.server, PROBE_S)
        table.add("latency before", before)
        one.server.forget_peak()
        probing = asyncio.create_task(latencies(one.server, PROBE_S))
        began = time.monotonic()
        peers = await asyncio.gather(*(session.come_back() for session in sessions))
        async with present(peers):
            table.add("all are there after", f"{time.monotonic() - began:.1f} s")
            await until(
                lambda: all(len(session.got) >= backlog for session in sessions),
                lambda: f"{sum(len(session.got) for session in sessions):,} have come",
                300,
            )
            table.add("all have all after", f"{time.monotonic() - began:.1f} s")
            table.add("latency meanwhile", await probing)
            for name, which in (("first", "first_s"), ("last", "last_s")):
                found = waits(sessions, which)
                half = found[len(found) // 2]
                table.add(f"waited for its {name} message", f"median {half:.2f}, most {found[-1]:.2f} s")
            one.check(table)
            for session in sessions:
                wanted = [n for n, topic in enumerate(topics) if topic in ("all", f"own/{session.number}")]
                assert session.got == wanted
                assert not session.faults
            for which in ("first_s", "last_s"):
                found = waits(sessions, which)
                assert found[-1] <= 2 * found[len(found) // 2] + SLACK_S, str(table)
        assert await metric(one.server.url, "fasti_replay_queue") == 0
        after = await latencies(one.server, PROBE_S)
        table.add("latency after", after)
        assert is_normal(after, before), str(table)
