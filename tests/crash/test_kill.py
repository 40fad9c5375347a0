"""kill -9 at random instants under load, again and again on one data directory.

FASTI_SOAK=1 makes it 1,000 lives (an hour), FASTI_CYCLES=n so many; FASTI_SEED=n repeats a run's choices (its
timing is the machine's own). What was counted stands in the summary of the run; of a long one it is printed
every 25 lives what has been counted so far, and every 100 all that was promised is delivered and checked.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tests.support.http import http
from tests.support.ledger.arrivals import Arrivals
from tests.support.mqtt import wall_ms
from tests.support.server import ServerProcess, run, serving
from tests.support.soak import SOAK

from .load import Load, found_after_a_start, whole_or_absent
from .past import RETENTION_S, Past
from .verified import verified

LIVES = int(os.environ.get("FASTI_CYCLES") or (1_000 if SOAK else 3))
IS_LONG = LIVES > 50
RECENT_MS = 120_000
"""With many lives each start looks only at what is due since then; every hundredth at what is since the last
of them; the last one at all."""
PAST_MAX = 2_000
TOLD = 25
VERIFIED = 10
DRAINED = 100


async def test_kill_9_under_load(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    seed = int(os.environ.get("FASTI_SEED", random.randrange(1 << 32)))
    print(f"FASTI_SEED={seed}", flush=True)
    chance = random.Random(seed)
    account, past = Arrivals(), Past()
    load, book = Load(account, chance, past), account.book
    data, archive = tmp_path / "data", tmp_path / "archive"
    settings: dict[str, object] = {"slices.retention": f"{RETENTION_S}s", "slices.expire_by": "job"}
    if find_spec("pyarrow"):
        settings["slices.archive"] = archive
        load.has_archive = True
    past.fill(data, min(PAST_MAX, 12 + 3 * LIVES), wall_ms())
    begun, drained_ms = time.monotonic(), wall_ms()
    for life in range(LIVES):
        async with serving(data, settings=settings) as server:
            if not life:
                await load.enlist(server)
            is_drained = IS_LONG and life % DRAINED == DRAINED - 1
            since_ms = (drained_ms if is_drained else wall_ms()) - RECENT_MS
            await _found(account, past, server, since_ms if IS_LONG else None)
            if is_drained:
                await load.drain(server)
                drained_ms = wall_ms()
                assert not account.check(), f"life {life}, FASTI_SEED={seed}: {account.check()[:10]}"
            load.begin(server)
            is_short = IS_LONG and life % 10
            await asyncio.sleep(0.3 + chance.random() if is_short else 0.8 + 1.6 * chance.random())
            account.kills_ms.append(wall_ms())
            server.kill()  # while the clients go on until they notice
            await load.died()
        if not IS_LONG or life % VERIFIED == 0:
            book.heard(verified(data))
        assert not book.faults, f"life {life}, FASTI_SEED={seed}: {book.faults[:10]}"
        if IS_LONG and life % TOLD == TOLD - 1:
            seconds = time.monotonic() - begun
            print(f"{life + 1} lives in {seconds:.0f} s: {account.summary()}; {past.summary()}", flush=True)
    async with serving(data, settings=settings) as server:
        await _found(account, past, server, None)
        await load.drain(server)
        assert await server.stopped() == 0
        assert "Traceback" not in server.output, server.output
    for text in (f"{account.summary()}; {past.summary()}", account.counted()):
        record_property("counted", text)
        print(text, flush=True)
    faults = account.check()
    assert not faults, f"{len(faults)} faults, FASTI_SEED={seed}: {faults[:10]}"
    checked = run("verify", "--data", str(data))
    assert checked.returncode == 0, checked.stdout
    assert account.messages.fired
    assert book.seen["read positions"] + book.seen["retained"] > LIVES
    assert sum(one.is_accepted for one in account.messages.by_tag.values()) > 100 * LIVES
    assert past.jobs
    if "slices.archive" in settings:
        check_archive(archive, past)


async def _found(account: Arrivals, past: Past, server: ServerProcess, since_ms: int | None) -> None:
    """Look at what a start has found."""
    await found_after_a_start(account, server, since_ms)
    await whole_or_absent(account, server, since_ms)
    async with http(server.url) as calls:
        account.book.heard(await past.found(calls, is_all=since_ms is None))


def check_archive(folder: Path, past: Past) -> None:
    """Every message of every slice that has expired is in it, once."""
    import pyarrow.parquet as pq

    from spark.manifests import read_archive
    from spark.storage import storage_at

    found: list[str] = []
    for file in read_archive(storage_at(str(folder))).files():
        found += pq.read_table(folder / file.path, columns=["id"])["id"].to_pylist()
    assert len(found) == len(set(found))
    gone = [name for piece in past.pieces if piece.is_gone for name in piece.ids.values()]
    assert set(gone) <= set(found)
