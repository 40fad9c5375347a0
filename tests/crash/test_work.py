"""kill -9 under a pool of workers that fail in every way, again and again on one data directory.

FASTI_SOAK=1 makes it 60 lives (five minutes), FASTI_CYCLES=n so many; FASTI_SEED=n repeats a run's choices.
"""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.support.server import run, serving
from tests.support.soak import SOAK

from .verified import verified
from .work import Pool

LIVES = int(os.environ.get("FASTI_CYCLES") or (60 if SOAK else 3))
JOBS = 50
"""At least so many are there for each life, before the kill."""


async def test_kill_9_with_a_pool_at_work(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}", flush=True)
    chance = random.Random(seed)
    pool, data = Pool(chance), tmp_path / "data"
    for life in range(LIVES):
        async with serving(data) as server:
            if not life:
                await pool.enlist(server)
            pool.begin(server)
            await asyncio.sleep(1 + (3 if SOAK else 1.5) * chance.random())
            async with asyncio.timeout(60):
                while len(pool.jobs) <= JOBS * (life + 1):
                    await asyncio.sleep(0.02)
            pool.kill(server)
            await pool.died()
        found = verified(data)
        assert not found, f"life {life}, FASTI_SEED={seed}: {found[:5]}"
    async with serving(data) as server:
        dead = await pool.drain(server)
        assert await server.stopped() == 0
        assert "Traceback" not in server.output, server.output
    record_property("counted", pool.summary(dead))
    print(pool.summary(dead), flush=True)
    faults = pool.check(dead)
    assert not faults, f"{len(faults)} faults, FASTI_SEED={seed}: {faults[:5]}"
    checked = run("verify", "--data", str(data))
    assert checked.returncode == 0, checked.stdout
