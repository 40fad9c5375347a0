"""kill -9, and stops, under a pool of workers that fail in every way, again and again on one data directory.

FASTI_SOAK=1 makes it 100 lives (eight minutes), FASTI_CYCLES=n so many; FASTI_SEED=n repeats a run's choices.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.receiver import Receiver, receiving
from tests.support.server import run, serving
from tests.support.soak import SOAK

from .verified import verified
from .work import RULES, Pool

LIVES = int(os.environ.get("FASTI_CYCLES") or (100 if SOAK else 2))
JOBS = 50
"""At least so many are there for each life, before the kill."""


SETTINGS = {"webhook.allow_private": "true"}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[pytest.mark.short] if rule == "order" else []) for rule in RULES]
)
async def test_kill_9_with_a_pool_at_work(
    tmp_path: Path, record_property: Callable[[str, object], None], receiver: Receiver, rule: str
) -> None:
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}", flush=True)
    chance = random.Random(seed)
    pool, data = Pool(chance, rule), tmp_path / "data"
    receiver.behave = pool.posted
    for life in range(LIVES):
        async with serving(data, settings=SETTINGS) as server:
            if not life:
                await pool.enlist(server, receiver.url())
            pool.begin(server)
            await asyncio.sleep(1 + (3 if SOAK else 1.5) * chance.random())
            async with asyncio.timeout(60):
                while len(pool.jobs) <= JOBS * (life + 1):
                    await asyncio.sleep(0.02)
            is_killed = chance.random() < 0.7
            await pool.struck()
            if is_killed:
                pool.kill(server)
            else:
                assert await pool.stop(server) == 0, server.output
            await pool.died(was_killed=is_killed)
        found = verified(data)
        assert not found, f"life {life}, FASTI_SEED={seed}: {found[:5]}"
    async with serving(data, settings=SETTINGS) as server:
        dead = await pool.drain(server)
        assert await server.stopped() == 0
        assert "Traceback" not in server.output, server.output
    record_property("counted", pool.summary(dead))
    print(pool.summary(dead), flush=True)
    faults = pool.account.faults
    print(*pool.accounts(), sep="\n", flush=True)
    assert not faults, f"{len(faults)} faults, FASTI_SEED={seed}: {[str(one) for one in faults[:5]]}"
    checked = run("verify", "--data", str(data))
    assert checked.returncode == 0, checked.stdout
