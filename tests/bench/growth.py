"""What grows with what is stored, and with how many topics and sessions there are. It should be nothing.

A case is so many pending messages, topics and sessions; of each, what a message costs the server's processor
when it is taken (batches of 1,000; one by one, 64 in flight) and when it goes out (a drain to all sessions),
and how late it is. Three rows of cases: one grows, the others stay. What counts is the ratio to the smallest
case of its row; the plot shows these ratios. `--record` writes the plot into docs/growth.svg. Each case has a
server of its own: what is pending is what the case says, and the batches that it has been sent itself.

Each message goes to one session, however many there are, and what the clients do is not counted. Two ratios
have work in them that does grow. A thousand sessions are a thousand sockets: each is written to and its acks
are read for some deliveries at a time, 25 us, where one has them by the thousand. Of 100,000 topics each is
looked up for the first time, 2 us, as the cache of answers holds 49,000.

With `--quick --pending 1000000 10000000` it takes 4 minutes and 2 GB of disk.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import NamedTuple

from .due import at_once, drained_by, noting, timed_payloads
from .exchange import Lines
from .http import post, send_all, taken_end
from .mqtt import Client, subscribed
from .plot import Panel, draw
from .process import Server, serving
from .results import Env, Result, percentile
from .scheduling import timed
from .workload import batches, item, next_month, now_ms

IN_FLIGHT = 4
CALLERS = 64
PAYLOAD = 200
LATE_S = 8
"""At most: there are many cases."""
STEP = 10_000
BASE = (0, 1_000, 1)
TOPICS = (10, 1_000, 100_000)
SESSIONS = (1, 1_000)
FIGURES = ("batch", "single", "drain", "lateness p99")
UNITS = ("us", "us", "us", "ms")
PLOT = Path(__file__).parents[2] / "docs" / "growth.svg"


class Case(NamedTuple):
    pending: int
    topics: int
    sessions: int


def rows(pending: Sequence[int]) -> list[tuple[str, list[Case]]]:
    """What grows, and its cases, the smallest first."""
    stored, topics, sessions = BASE
    return [
        ("topics", [Case(stored, some, sessions) for some in TOPICS]),
        ("sessions", [Case(stored, topics, some) for some in SESSIONS]),
        ("pending", [Case(some, topics, sessions) for some in (stored, *pending)]),
    ]


async def growth(env: Env) -> list[Result]:
    found: dict[Case, list[float]] = {}
    for case in dict.fromkeys(case for _, cases in rows(env.sizes.pending) for case in cases):
        data = env.folder / "data"
        with serving(data, limits__connect_rate=0) as server:
            env.seen.build = server.build()
            await fill(server, 0, case.pending)
            found[case] = await measured(env, server, case)
        rmtree(data)
    return told(found, env.sizes.pending)


def told(found: dict[Case, list[float]], pending: Sequence[int]) -> list[Result]:
    """A result for each figure of each case, beside that of the smallest of its row."""
    results = []
    for name, cases in rows(pending):
        for at, case in enumerate(cases):
            for figure, unit, value, least in zip(FIGURES, UNITS, found[case], found[cases[0]], strict=True):
                base = (f"{cases[0][_place(name)]:,} {name}", [least]) if at else ("", [])
                text = f"{figure}, {case[_place(name)]:,} {name}"
                results.append(Result(text, unit, [value], *base, less=True, is_floor=True))
    return results


def plot(results: Sequence[Result], pending: Sequence[int], file: Path = PLOT) -> None:
    """The ratios, a panel for each thing that grows."""
    ratios = {result.name: result.ratio for result in results}
    panels = []
    for name, cases in rows(pending):
        values = [case[_place(name)] for case in cases]
        lines = {
            figure: [ratios.get(f"{figure}, {value:,} {name}") or 1.0 for value in values]
            for figure in FIGURES
        }
        panels.append(Panel(name, [_short(value) for value in values], lines))
    file.write_text(
        draw("of a message: processor time of the server, lateness; the smallest case = 1", panels)
    )


def _short(value: int) -> str:
    if value >= 1_000_000:
        return f"{value // 1_000_000} M"
    return f"{value // 1000} k" if value >= 1000 else str(value)


def _place(name: str) -> int:
    return Case._fields.index(name)


async def fill(server: Server, first: int, end: int) -> None:
    """Further messages due over the next month."""
    await send_all(server.http, _filling(first, end), IN_FLIGHT)


def _filling(first: int, end: int) -> Iterator[bytes]:
    for at in range(first, end, STEP):
        yield from batches(next_month(min(STEP, end - at), PAYLOAD, seed=at))


async def measured(env: Env, server: Server, case: Case) -> list[float]:
    """The figures of a case, in the order of FIGURES."""
    some = next_month(env.sizes.batch, PAYLOAD, topics=case.topics)
    found = []
    async with subscribed(server.mqtt, "growth", case.sessions, lambda n: f"growth/{n}/#") as clients:
        for run in range(env.sizes.runs):
            found.append(
                [
                    await _taken(server, batches(some), IN_FLIGHT, len(some)),
                    await _single(server, some[: env.sizes.single]),
                    await _drain(env, server, clients, case),
                    await _lateness(env, server, clients, case, run),
                ]
            )
    return [median(runs) for runs in zip(*found, strict=True)]


async def _single(server: Server, some: Sequence[bytes]) -> float:
    return await _taken(server, [post("/v1/messages", one) for one in some], CALLERS, len(some))


async def _taken(server: Server, requests: Sequence[bytes], in_flight: int, count: int) -> float:
    """What each of so many messages costs, us."""
    lines = await Lines.open(server.http, in_flight, taken_end)
    sample = await timed(server, lambda: lines.send_all(requests), count)
    lines.close()
    return sample.more["cpu_us"]


async def _drain(env: Env, server: Server, clients: Sequence[Client], case: Case) -> float:
    due = await at_once(env, server, lambda n: _topic(n, case))
    return (await drained_by(server, clients, due, env.sizes.drain)).more["cpu_us"]


async def _lateness(env: Env, server: Server, clients: Sequence[Client], case: Case, run: int) -> float:
    seconds = min(env.sizes.late_s, LATE_S)
    count = env.sizes.late_per_s * seconds
    late: list[float] = []
    for client in clients:
        client.look = noting(late)
    start = now_ms() + int(env.sizes.lead_s * 1000)
    step_ms = seconds * 1000 / count
    dues = [start + int(n * step_ms) for n in range(count)]
    items = [
        item(_topic(n * 7 + run, case), text, due)
        for n, (text, due) in enumerate(zip(timed_payloads(dues), dues, strict=True))
    ]
    await send_all(server.http, batches(items), IN_FLIGHT)
    while len(late) < count:
        await asyncio.sleep(0.05)
        assert now_ms() < dues[-1] + 30_000, f"{len(late)} of {count} came"
    for client in clients:
        client.look = None
    return percentile(late, 0.99)


def _topic(number: int, case: Case) -> str:
    """One of the case's topics: each belongs to one session."""
    topic = number % case.topics
    return f"growth/{topic % case.sessions}/{topic}"
