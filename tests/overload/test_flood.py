"""One client asks as much and as fast as it can, twenty others ask a little: none of them starves.

The flood comes from an address of its own (127.0.0.2), as another client's does. What it asks for is dear:
listings and counts with filters that match nothing, density, exports, bulk dry runs, batches, schedules.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.support.http import Http, http
from tests.support.latencies import Latencies
from tests.support.soak import SOAK

from .frame import Table, aside, bounded
from .load import Flooded, Measured, flood, measure

ROWS = 50_000 if SOAK else 10_000
OTHERS = 20 if SOAK else 5
LOAD_S = 6.0 if SOAK else 1.0
CONNECTIONS = 40 if SOAK else 20
FLOODS = {
    "listings": ["GET /v1/messages?topic=no/such/%2B/thing&limit=1000"],
    "counts": ["GET /v1/messages?topic=no/%23&count=true"],
    "density": ["GET /v1/timeline/density?topic=no/%23"],
    "exports": ["GET /v1/messages:export"],
    "bulk dry runs": ['POST /v1/messages:cancel {"filter":{"topic":"no/#"},"dry_run":true}'],
    "batches": ["batch"],
    "schedules": ["single"],
}
ALL = [kind for kinds in FLOODS.values() for kind in kinds]
SETTINGS = {
    "limits.connections": 100,
    "limits.queued": 50_000,
    "limits.queued_bytes": "16MiB",
    "http.connections": 500,
    "http.connections_per_address": 400,
}


async def _filled(calls: Http) -> None:
    for first in range(0, ROWS, 5_000):
        items = [
            {
                "topic": f"far/{number % 7}",
                "payload": "x" * 50,
                "deliver_in": f"{3_600 + number}s",
            }
            for number in range(first, first + 5_000)
        ]
        answer = await calls.schedule_many(items)
        assert answer.status == 201, answer


async def test_one_client_floods_and_the_others_have_their_turns(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    tables: list[str] = []
    async with bounded(tmp_path / "data", SETTINGS) as running:
        server = running.server
        async with http(server.url, timeout_s=60) as calls:
            await _filled(calls)
        runs = {"nothing": [], **FLOODS} if SOAK else {"all of it": ALL}
        for name, kinds in runs.items():
            table = Table(f"one client floods with {name}, {OTHERS} others")
            connections = max(1, CONNECTIONS // max(1, len(kinds)))
            flooding = aside(
                flood, server.http, kinds, connections, 1, LOAD_S + (3 if SOAK else 1), "127.0.0.2"
            )
            measuring = aside(measure, server.http, server.mqtt, OTHERS, LOAD_S, 0.05)
            said, others = await asyncio.gather(flooding, measuring)
            _tell(table, said, others)
            print(f"\n{table}")
            assert not said.lost
            assert not any(one.refused for one in others)
            for one in others:
                assert all(one.parts()), "a client has had no turn at all"
            if SOAK:
                _judge(table, others)
            tables.append(str(table))
        table = Table("memory")
        running.check(table)
        tables.append(str(table))
    text = "\n".join(tables)
    record_property("counted", text)
    print(f"\n{table}")


def _tell(table: Table, said: Flooded, others: list[Measured]) -> None:
    table.add("the flood", said)
    together = Measured()
    for one in others:
        together.add(one)
    for name, part in zip(("ping", "schedule", "p2p", "listing"), together.parts(), strict=True):
        table.add(f"{name} of others", Latencies(part))


def _judge(table: Table, others: list[Measured]) -> None:
    """No one waits more than twice the median of all."""
    for index, name in enumerate(("ping", "schedule", "p2p", "listing")):
        medians = [median(one.parts()[index]) for one in others]
        span = f"{min(medians):.1f} to {max(medians):.1f}, the middle {median(medians):.1f} ms"
        table.add(f"{name}: medians of the others", span)
        assert max(medians) <= 2 * median(medians) + 5, table
