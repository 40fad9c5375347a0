"""Job queues of Node.js beside fasti: one program is load and workers of each in turn (peers/jobs.mjs).

    due           many jobs due in one instant, then with ordering keys: until the last is done, and how many
                  began out of turn
    lateness      how long after its due time a worker has each
    others' p99   ordering.py's tenants: alone, beside another one's dump and a failing job

BullMQ on Redis has nothing by key (its groups are part of BullMQ Pro), so it shows what others feel without.
pg-boss on PostgreSQL orders by key. Both answer when a job is on the disk. `server_s` and `load_s` are the
processor time of a round, of the server and of that program.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import PIPE

from tests.support.server import ROOT

from .exchange import Failed
from .ordering import BUSY_KEYS, EVERY_S, PER_S, RETRIES, TENANTS, WORK_S, WORKERS
from .peers import postgres as pg
from .peers import redis as rd
from .process import Running
from .pulling import ACK
from .race import Entry, Sample, contenders, peer, race
from .results import Env, Result

MODULES = ROOT / "build/peers/node_modules"
PROGRAM = Path(__file__).parent / "peers/jobs.mjs"
PEERS = {"BullMQ": rd.REDIS, "pg-boss": pg.POSTGRESQL}
MOST = 5_000
"""Jobs: for a key's next one, pg-boss sorts all that are due at each fetch."""
OTHERS = ("while a dump is accepted", "while it waits", "beside a failing job")


async def jobs(env: Env) -> list[Result]:
    if not MODULES.exists():
        env.seen.missing |= PEERS.keys()
        return []
    with ExitStack() as stack:
        ours = stack.enter_context(contenders(env))[0][1]
        queues = [("fasti", ACK, Running(ours, ours.http))]
        for name, kind in PEERS.items():
            if found := peer(env, stack, replace(kind, name=name)):
                queues.append((name, kind.ack, found))
        count, sizes = min(env.sizes.pull, MOST), env.sizes
        fixed = {
            "tenants": TENANTS, "per_s": PER_S, "every_s": EVERY_S, "workers": WORKERS, "work_s": WORK_S,
            "retries": RETRIES, "for_s": sizes.late_s,
        }  # fmt: skip

        def entries(scene: str, value: str, count: int, keys: int) -> list[Entry]:
            given = fixed | {"count": count, "keys": keys}
            return [
                Entry(name, partial(_round, name, at, scene, value, given), ack) for name, ack, at in queues
            ]

        due, keyed = entries("drain", "per_s", count, 0), entries("drain", "per_s", count, BUSY_KEYS)
        late = entries("late", "p99_ms", sizes.late_per_s * sizes.late_s, 0)
        others = entries("others", "alone", count, TENANTS)
        return [
            *await race(env, "jobs, due", "msg/s", due),
            *await race(env, f"jobs, due, {BUSY_KEYS:,} keys", "msg/s", keyed),
            *await race(env, "jobs, lateness p99", "ms", late, less=True),
            *await race(
                env, "jobs, others' p99", "ms", others, less=True, also=[(phase, "ms") for phase in OTHERS]
            ),
        ]


async def _round(
    name: str, peer: Running, scene: str, value: str, sizes: Mapping[str, float], _: int
) -> Sample:
    cpu_s = peer.process.cpu_s()
    words = [name, str(peer.at[1]), scene, json.dumps(sizes)]
    node = await asyncio.create_subprocess_exec(
        MODULES / ".bin/node", PROGRAM, f"{MODULES.parent}/", *words, stdout=PIPE, stderr=PIPE
    )
    told, wrong = await node.communicate()
    if node.returncode:
        raise Failed(f"{name}, {scene}:\n{wrong.decode(errors='replace')}")
    found: dict[str, float] = json.loads(told)
    return Sample(found.pop(value), found | {"server_s": peer.process.cpu_s() - cpu_s})
