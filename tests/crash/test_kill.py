"""kill -9 at random instants under load, again and again on one data directory.

FASTI_SOAK=1 makes it many more lives, FASTI_CYCLES=1000 so many; FASTI_SEED=n repeats a run's choices (its
timing is the machine's own). What was counted stands in the summary of the run.
"""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.support.mqtt import wall_ms
from tests.support.server import ServerProcess, run, serving

from .ledger import Ledger
from .load import Load, found_after_a_start, whole_or_absent

LIVES = int(os.environ.get("FASTI_CYCLES") or (20 if os.environ.get("FASTI_SOAK") else 3))
RECENT_MS = 120_000
"""With many lives each start looks only at what is due since then; the last one looks at all."""


async def test_kill_9_under_load(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}")
    chance = random.Random(seed)
    ledger = Ledger()
    load = Load(ledger, chance)
    data = tmp_path / "data"
    for life in range(LIVES):
        async with serving(data) as server:
            if not life:
                await load.enlist(server)
            await found_after_a_start(ledger, server)
            recent_ms = wall_ms() - RECENT_MS if LIVES > 50 else None
            ledger.faults += await whole_or_absent(ledger, server, recent_ms)
            load.begin(server)
            await asyncio.sleep(0.8 + 1.6 * chance.random())
            await _kill(server, ledger)
            await load.died()
        assert not ledger.faults, ledger.faults[:10]
    async with serving(data) as server:
        await found_after_a_start(ledger, server)
        ledger.faults += await whole_or_absent(ledger, server)
        await load.drain(server)
        assert await server.stopped() == 0
        assert "Traceback" not in server.output, server.output
    for text in (ledger.summary(), ledger.counted()):
        record_property("counted", text)
        print(text)
    faults = ledger.check()
    assert not faults, f"{len(faults)} faults, FASTI_SEED={seed}: {faults[:10]}"
    checked = run("verify", "--data", str(data))
    assert checked.returncode == 0, checked.stdout
    acked = sum(letter.is_acked for letter in ledger.letters.values())
    assert ledger.occurrences
    assert ledger.checked > LIVES
    assert acked > 100 * LIVES


async def _kill(server: ServerProcess, ledger: Ledger) -> None:
    """At once, while the loop's clients go on until they notice."""
    ledger.kills_ms.append(wall_ms())
    server.kill()
