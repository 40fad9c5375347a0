"""A million messages due in one second, while others publish and schedule; without FASTI_SOAK=1 20,000.

A plain subscriber and a group of two get all of them, each in a process of its own.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from server.codec.packets import Publish
from server.settings.times import format_ms
from tests.bench.honest import Found
from tests.support.http import Http, http
from tests.support.mqtt import Peer, dial, wall_ms
from tests.support.soak import SOAK

from .crowd import EVERYTHING, felt, told
from .frame import Table, aside, bounded

COUNT = 1_000_000 if SOAK else 20_000
BATCH = 5_000
SETTINGS = {"limits.queued": 50_000, "shards.cap_messages": 100_000}
PATIENCE_S = 30.0
"""After so long without a message who reads gives up."""


@dataclass
class Read:
    """What one reader has got, by the number of the message."""

    seen: bytearray
    early: int = 0
    again: int = 0
    last_ms: int = 0

    def take(self, packet: Publish, now_ms: int) -> None:
        number, _, due_ms = packet.payload.partition(b" ")
        self.early += now_ms < int(due_ms)
        self.again += self.seen[int(number)]
        self.seen[int(number)] = 1
        self.last_ms = now_ms


def read(mqtt: tuple[str, int], pattern: str, names: list[str], ready: str, wanted: int) -> Read:
    """Clients that get `wanted` messages in all, and ack them. Blocks. `ready`: a file that is made."""

    say_ready = Path(ready).touch

    async def run() -> Read:
        found, count = Read(bytearray(wanted)), 0
        news = asyncio.Event()

        def on_publish(peer: Peer, packet: Publish, now_ms: int) -> None:
            nonlocal count
            count += 1
            peer.ack(packet)
            found.take(packet, now_ms)
            if not count % 100 or count >= wanted:
                news.set()

        peers = [await dial(mqtt, on_publish=on_publish) for _ in names]
        for peer, name in zip(peers, names, strict=True):
            await peer.connect(name)
            await peer.subscribe(pattern)
        say_ready()
        heard = time.monotonic() + 600  # the first message is a while away
        while sum(found.seen) < wanted and time.monotonic() < heard:
            news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), 1)
                heard = time.monotonic() + PATIENCE_S
        for peer in peers:
            await peer.close()
        return found

    return asyncio.run(run())


async def _fill(calls: Http, due_ms: int) -> None:
    for first in range(0, COUNT, BATCH):
        items: list[dict[str, object]] = []
        for number in range(first, first + BATCH):
            at_ms = due_ms + number * 1_000 // COUNT
            at = format_ms(at_ms)
            items.append({"topic": f"burst/{number % 10}", "payload": f"{number} {at_ms}", "deliver_at": at})
        answer = await calls.schedule_many(items)
        assert answer.status == 201, answer


async def test_all_due_in_one_second(tmp_path: Path, table: Table) -> None:
    table.head(f"{COUNT:,} due in one second")
    async with bounded(tmp_path / "data", SETTINGS) as running:
        server = running.server
        ready = [tmp_path / "alone", tmp_path / "group"]
        readers = [
            asyncio.create_task(aside(read, server.mqtt, "burst/#", ["alone"], str(ready[0]), COUNT)),
            asyncio.create_task(
                aside(read, server.mqtt, "$share/g/burst/#", ["one", "two"], str(ready[1]), COUNT)
            ),
        ]
        while not all(path.exists() for path in ready):
            await asyncio.sleep(0.02)
            assert not any(reader.done() for reader in readers)
        due_ms = wall_ms() + (120_000 if SOAK else 2_500)
        began = time.monotonic()
        async with http(server.url, timeout_s=60) as calls:
            await _fill(calls, due_ms)
        table.add("scheduled in", f"{time.monotonic() - began:.1f} s")
        # On a slow machine some are late by then: what is proved is the same.
        await asyncio.sleep(max(0.0, (due_ms - wall_ms()) / 1_000 - 1))
        running.server.forget_peak()
        others: Found = {name: [] for name in EVERYTHING}
        while not all(reader.done() for reader in readers):
            for name, every in (await felt(server, EVERYTHING, 5.0 if SOAK else 0.7, 2)).items():
                others[name] += every
        found = [await reader for reader in readers]
        told(table, others, "of others")
        for name, one in zip(("a subscriber", "a group"), found, strict=True):
            table.add(f"{name}: got", sum(one.seen))
            table.add(f"{name}: drained in", f"{(one.last_ms - due_ms) / 1_000:.1f} s")
            table.add(f"{name}: early", one.early)
            table.add(f"{name}: twice", one.again)
        running.check(table)
    for one in found:
        assert sum(one.seen) == COUNT
        assert not one.early
        assert not one.again
    assert not any(one.lost for every in others.values() for one in every)
