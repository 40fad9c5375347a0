"""One client asks as much and as fast as it can, twenty others ask a little: none of them starves.

The flood comes from an address of its own (127.0.0.2), as another client's does. What it asks for is dear:
listings and counts with filters that match nothing, density, exports, bulk dry runs, batches, schedules.
"""

import asyncio
from pathlib import Path
from statistics import median

from tests.bench.honest import Found
from tests.support.http import Http, http
from tests.support.soak import SOAK

from .crowd import EVERYTHING, felt, told
from .frame import Table, aside, bounded
from .load import flood

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
    "limits.sessions": 100,
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


async def test_one_client_floods_and_the_others_have_their_turns(tmp_path: Path, table: Table) -> None:
    async with bounded(tmp_path / "data", SETTINGS) as running:
        server = running.server
        async with http(server.url, timeout_s=60) as calls:
            await _filled(calls)
        runs = {"nothing": [], **FLOODS} if SOAK else {"all of it": ALL}
        for name, kinds in runs.items():
            table.head(f"one client floods with {name}, {OTHERS} others")
            connections = max(1, CONNECTIONS // max(1, len(kinds)))
            flooding = aside(
                flood, server.http, kinds, connections, 1, LOAD_S + (3 if SOAK else 1), "127.0.0.2"
            )
            said, others = await asyncio.gather(
                flooding, felt(server, EVERYTHING, LOAD_S, OTHERS, tick_s=0.08)
            )
            table.add("the flood", said)
            told(table, others, "of others")
            assert not said.lost
            assert not any(one.lost for every in others.values() for one in every), "each has had its turns"
            if SOAK:
                _judge(table, others)
        table.head("memory")
        running.check(table)


def _judge(table: Table, others: Found) -> None:
    """No one waits more than twice the median of all."""
    for name, every in others.items():
        medians = [median(one.waits_ms) for one in every]
        span = f"{min(medians):.1f} to {max(medians):.1f}, the middle {median(medians):.1f} ms"
        table.add(f"{name}: medians of the others", span)
        assert max(medians) <= 2 * median(medians) + 5, table
