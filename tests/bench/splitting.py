"""How late messages are while the server's own Spark program splits a slice, beside how late without.

A slice far ahead is filled, the usual load of `lateness` is measured, then a split is started with
`"run":"server"` and the load is measured again and again until the job has ended.
"""

import json
from typing import Any

from .due import lateness_once
from .http import ask, get, post, send_all
from .process import Server, serving
from .results import Env, Result, percentile
from .workload import batches, item, now_ms, payload

AHEAD_MS = 30 * 86_400_000
SPAN_MS = 6 * 3_600_000
PARTS = 4
PAYLOAD = 200


async def splitting(env: Env) -> list[Result]:
    rows = env.sizes.split_rows
    with serving(env.folder / "data", slices__split_above=rows * 2) as server:
        start_ms = await _fill(server, rows)
        quiet = [await lateness_once(env, server, run) for run in range(env.sizes.runs)]
        job = await _split(server, start_ms)
        during: list[list[float]] = []
        while await _state(server, job) not in ("done", "aborted"):
            during.append(await lateness_once(env, server, len(quiet) + len(during)))
        ended = await _look(server, job)
    assert ended["state"] == "done", ended
    base = [percentile(run, 0.99) for run in quiet]
    p99 = [percentile(run, 0.99) for run in during]
    every = [ms for run in during for ms in run]
    more = {
        "p50_ms": percentile(every, 0.5),
        "max_ms": max(every),
        "max_without_ms": max(ms for run in quiet for ms in run),
        "early": float(sum(ms < 0 for run in (*quiet, *during) for ms in run)),
    }
    return [Result(f"lateness p99 in a split of {rows}", "ms", p99, "without", base, "3 x", more)]


async def _fill(server: Server, rows: int) -> int:
    """The start of the slice that has them all."""
    start_ms = (now_ms() + AHEAD_MS) // SPAN_MS * SPAN_MS
    text = payload(PAYLOAD)
    items = [item(f"bench/{n % 1000}", text, start_ms + 1 + n * (SPAN_MS - 2) // rows) for n in range(rows)]
    await send_all(server.http, batches(items), 4)
    return start_ms


async def _split(server: Server, start_ms: int) -> str:
    body = json.dumps({"kind": "split", "slice": start_ms, "parts": PARTS, "run": "server"}).encode()
    job: dict[str, Any] = json.loads(await ask(server.http, post("/v1/jobs", body)))
    return str(job["id"])


async def _state(server: Server, job: str) -> str:
    return str((await _look(server, job))["state"])


async def _look(server: Server, job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await ask(server.http, get(f"/v1/jobs/{job}")))
    return found
