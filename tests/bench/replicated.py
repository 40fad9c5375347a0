"""Three nodes on three servers of NATS, beside a server that is alone, in turns.

cluster    1,000 messages a request, four requests in flight, and one message at a time with 1, 16 and 64 in
           flight, over HTTP to the node that leads: each answer after the append that covers it
rows       the same with the log in PostgreSQL, a primary and two standbys: batches, and 64 in flight
waits      lateness at 1,000 a second, as `lateness` measures it, alone and while 10,000 a second are
           scheduled

Everything is on this machine and its disk: seven processes and the load share its cores, so that a ratio here
is less than three machines would have. What they would have is to be seen from the processor time of a
message, which is told apart: `cpu_us` of the node that leads (`their_cpu_us`: of the server that is alone),
`follower_us` of each of the others, `log_us` of each server of the log. `idle_ms`: processor time that the
cluster takes in a second in which nobody wants anything; the server that is alone is measured beside that.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from tests.support.cluster import Cluster
from tests.support.gauges import cpu_s
from tests.support.nats import BINARY, Nats
from tests.support.postgres import Postgres, programs

from .due import late
from .exchange import Lines
from .http import post, taken_end
from .race import Entry, Sample, contenders, race
from .results import Env, Result
from .scheduling import IN_FLIGHT, PAYLOAD, SYNCED, entry, timed
from .workload import batches, drafts, item

ALONE = "embedded"
JETSTREAM, POSTGRESQL = "JetStream", "PostgreSQL"
SINGLES = (1, 16, 64)
BESIDE = 10_000
"""Messages a second that are scheduled while others are due."""
REPLICATED = "in the log of a quorum, synced"
IDLE_S = 1.0


class Spent(NamedTuple):
    """Processor time so far, seconds: of who leads, of a follower, of a server of the log."""

    leader: float
    follower: float
    log: float


class Trio:
    """A cluster whose nodes are together, with the log that they share."""

    def __init__(self, cluster: Cluster, log: Nats | Postgres) -> None:
        self.cluster, self.log = cluster, log
        self.leader = cluster.wait_ready()

    def cpu_s(self) -> float:
        return cpu_s(self.leader.pid)

    def spent(self) -> Spent:
        followers = [cpu_s(node.pid) for node in self.cluster.others(self.leader)]
        servers = [sum(map(cpu_s, pids)) for pids in self.log.pids.values()]
        return Spent(self.cpu_s(), sum(followers) / len(followers), sum(servers) / len(servers))

    async def idle_ms(self) -> float:
        """Processor time of all of it in a second."""
        before = self.spent()
        await asyncio.sleep(IDLE_S)
        leader, follower, log = (now - was for now, was in zip(self.spent(), before, strict=True))
        return (leader + follower * 2 + log * 3) / IDLE_S * 1e3


@contextmanager
def trio(env: Env, kind: str = JETSTREAM, **settings: object) -> Iterator[Trio | None]:
    """Three nodes that are together; None if their log is not installed, which is said at the end of the run.

    `settings`: of each node, cluster__takeover_after="2s".
    """
    if not is_installed(kind):
        env.seen.missing.add(kind)
        yield None
        return
    folder = env.folder / "cluster"
    with ExitStack() as stack:
        log: Nats | Postgres = Nats(folder) if kind == JETSTREAM else Postgres()
        stack.enter_context(log)
        dotted = {key.replace("__", "."): value for key, value in settings.items()}
        made = Cluster(folder / "nodes", log.url, settings=dotted, is_cuttable=False)
        nodes = stack.enter_context(made)
        nodes.start()
        yield Trio(nodes, log)


def is_installed(kind: str) -> bool:
    return BINARY.exists() if kind == JETSTREAM else programs() is not None


async def cluster(env: Env) -> list[Result]:
    return await _beside(env, JETSTREAM, SINGLES)


async def rows(env: Env) -> list[Result]:
    return await _beside(env, POSTGRESQL, SINGLES[-1:])


async def _beside(env: Env, kind: str, singles: Sequence[int]) -> list[Result]:
    items = [item(*draft) for draft in drafts(env.sizes.batch, PAYLOAD)]
    loads = [("batch", batches(items), IN_FLIGHT, len(items))]
    for in_flight in singles:
        part = min(env.sizes.single, 10_000) // (10 if in_flight == 1 else 1)
        some = [post("/v1/messages", one) for one in items[: max(10, part)]]
        loads.append((f"single/{in_flight}", some, in_flight, len(some)))
    results = []
    with ExitStack() as stack:
        three = stack.enter_context(trio(env, kind))
        if three is None:
            return []
        servers = stack.enter_context(contenders(env))
        idle_ms = await three.idle_ms()
        for name, requests, in_flight, count in loads:
            entries = [await _replicated(three, requests, in_flight, count, idle_ms)]
            for who, server in servers:
                lines = await Lines.open(server.http, in_flight, taken_end)
                entries.append(entry(_called(who), SYNCED, server, lines, requests, count))
            target = "0.8" if name == "batch" else ""
            results += await race(env, f"cluster on {kind}: {name}", "msg/s", entries, target=target)
    return results


async def _replicated(
    three: Trio, requests: Sequence[bytes], in_flight: int, count: int, idle_ms: float
) -> Entry:
    lines = await Lines.open(three.leader.http, in_flight, taken_end)

    async def round_(_: int) -> Sample:
        before = three.spent()
        sample = await timed(three, lambda: lines.send_all(requests), count)
        now = three.spent()
        more = {
            "follower_us": (now.follower - before.follower) / count * 1e6,
            "log_us": (now.log - before.log) / count * 1e6,
            "idle_ms": idle_ms,
        }
        return Sample(sample.value, sample.more | more)

    return Entry("replicated", round_, REPLICATED)


async def waits(env: Env) -> list[Result]:
    results = []
    with ExitStack() as stack:
        three = stack.enter_context(trio(env))
        if three is None:
            return []
        servers = stack.enter_context(contenders(env))
        for name, per_s in (("", 0), (f", {BESIDE // 1000} k/s scheduled", BESIDE)):
            entries = [late(env, "replicated", three.leader, per_s)]
            entries += [late(env, _called(who), server, per_s) for who, server in servers]
            title = f"cluster: lateness p99{name}"
            results += await race(env, title, "ms", entries, target="2, early 0", less=True)
    return results


def _called(who: str) -> str:
    return ALONE if who == "fasti" else who
