"""schemathesis reads /openapi.json and tries to catch the server in a lie.

Every call is asked with what its description allows and with what it does not; no answer may be a 5xx, have a
status, media type, header or body that is not described, or say yes where the description says no. What is
left out, and why, is in schemathesis.toml beside this file. The same numbers are drawn each time; a longer
run with others:

    FASTI_SCHEMATHESIS="--seed 7 --max-examples 500" python -m pytest tests/server/http/test_schemathesis.py
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.http import Http, http
from tests.support.mqtt import dial
from tests.support.server import ROOT, ServerProcess, serving
from tests.support.soak import SOAK

CONFIG = Path(__file__).with_name("schemathesis.toml")
CLOCK = "/v1/clock:advance"
FIXED = "--generation-deterministic"
EXAMPLES = "20" if SOAK else "2"
"""Drawn ones of each call, beside its examples and those at its bounds."""
TIMEOUT_S = 3_600.0
QUICKER = {"HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"), "NO_PROXY": "127.0.0.1"}
"""What Hypothesis has computed of Unicode stays there, 3 s each time; no call looks for a proxy."""


async def furnished(server: ServerProcess, calls: Http) -> dict[str, list[str]]:
    """Something of everything on the server; the values of the dictionaries that schemathesis draws from."""
    far = {"deliver_at": "2030-01-01T00:00:00Z"}
    ids = [await calls.schedule(f"a/{n}", n, **far) for n in range(3)]
    ids += [await calls.schedule("a/b", "now"), await calls.schedule("x", {}, **far)]
    await calls.call("DELETE", f"/v1/messages/{ids[-1]}", status=204)
    timing = {"cron": "0 2 * * *", "timezone": "Europe/Bucharest", "topic": "a/nightly"}
    await calls.call("PUT", "/v1/schedules/nightly", timing, status=201)
    sessions = ["a/b:c", *(f"audit-{n}" for n in range(20))]
    for name in sessions:
        peer = await dial(server.mqtt)
        await peer.connect(name, session_expiry=3_600)
        await peer.subscribe("a/#")
        await peer.close()
    for group in ("workers", "a:pause"):
        await calls.call("PUT", f"/v1/groups/{group}", {"filter": "a/#"}, status=201)
    for n in range(4):
        await calls.schedule("a/job", n)
    wish = {"max": 2, "wait": "1s", "lease": "1h"}
    leased = (await calls.call("POST", "/v1/groups/workers/messages:lease", wish, status=200)).body[
        "messages"
    ]
    assert leased, "there is something to ack"
    leases = [one["lease_id"] for one in leased]
    pieces = (await calls.call("GET", "/v1/slices", status=200)).body["slices"]
    return {
        "ids": ids,
        "starts": [piece["start"] for piece in pieces],
        "sessions": sessions,
        "leases": leases,
    }


async def run(server: ServerProcess, folder: Path, values: dict[str, list[str]], *arguments: str) -> None:
    """Let schemathesis try; its report is the failure's message."""
    added = "".join(f"{name}.values = {json.dumps(known)}\n" for name, known in values.items())
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG.read_text(encoding="utf-8") + added, encoding="utf-8")
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, f"{server.url}/openapi.json", "--no-color", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **QUICKER},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, f"see above\n{done.stderr}{server.output[-5_000:]}"
    assert "Traceback" not in server.output, server.output


@pytest.mark.process
@pytest.mark.proof
async def test_nothing_is_found(tmp_path: Path) -> None:
    given = os.environ.get("FASTI_SCHEMATHESIS", "").split()
    settings = {"spark.enabled": "false"}
    data = tmp_path / "data"
    async with serving(data, "--clock", "simulated", settings=settings) as server, http(server.url) as calls:
        values = await furnished(server, calls)
        chosen = given or [FIXED, "--max-examples", EXAMPLES]
        await run(server, tmp_path, values, "--exclude-path", CLOCK, *chosen)


@pytest.mark.process
async def test_nothing_is_found_in_the_clock(tmp_path: Path) -> None:
    """By itself, on an empty timeline: a thousand years of a schedule that fires each second take a while."""
    async with serving(tmp_path / "data", "--clock", "simulated") as server:
        values = {"ids": ["0"], "starts": ["0"], "sessions": ["0"], "leases": ["0"]}
        await run(server, tmp_path, values, "--include-path", CLOCK, FIXED, "--max-examples", EXAMPLES)
