"""Where a message's processor time goes: us a stage, taken in (batches over HTTP) and given out (a drain).

The server runs as it is while py-spy looks 500 times a second at which function its threads are in; a stage's
share of the looks is its share of the processor time that the same work took without being looked at. A look
counts for the innermost of our own functions, so that a stage holds the C code that it calls. What no stage
claims is shown as the file it was in: the table below follows the code, not the other way round.

Beside it the floor, in this process: the same rows given to RocksDB with nothing around them.

It needs py-spy (`pip install '.[bench]'`), and the right to look at one's own processes. Compiled functions
cannot be seen by it: the server runs pure.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from .due import TOPICS, at_once, drained_by
from .http import send_all
from .mqtt import subscribed
from .process import Server, serving
from .results import Env, Result
from .workload import BATCH, batches, next_month, now_ms

IN_FLIGHT = 4
PAYLOAD = 200
ROW_BYTES = PAYLOAD + 45
RATE = 500
SMALL = 0.01
"""A share that is not worth a line of its own."""
OURS = ("server/", "shards/", "timeline/")


class Stage(NamedTuple):
    """`through`: files, or file:function, anywhere on the stack; `at`: where the innermost of ours is.

    Of the stages the first counts that matches; those with `through` come first.
    """

    name: str
    at: tuple[str, ...] = ()
    through: tuple[str, ...] = ()


IN = (
    Stage("sync", ("shards/rocks.py:flush", "server/rounds/app.py:_sync")),
    Stage("write", ("shards/rocks.py:write",)),
    Stage("put", ("shards/",)),
    Stage("draft", ("server/http/values/drafts.py", "server/engine/writer.py", "timeline/position.py")),
    Stage(
        "parse",
        (
            *("server/http/values/", "server/settings/times.py", "server/settings/durations.py"),
            *("timeline/filters.py", "timeline/"),
        ),
    ),
    Stage("answer", ("server/http/answers.py", "server/http/routes/")),
    Stage("loop and sockets", ("server/run.py",)),
    Stage("front", ("server/http/",)),
)
OUT = (
    Stage("acks", through=("server/mqtt/link.py:data_received", "server/mqtt/state.py")),
    Stage("wheel", ("timeline/wheel.py",)),
    Stage("loader", ("server/engine/loader.py", "shards/", "heapq.py")),
    Stage("encode", ("server/codec/", "server/mqtt/forms.py", "timeline/position.py")),
    Stage("socket", ("server/mqtt/", "server/run.py")),
    Stage("route", ("server/delivery/", "timeline/")),
)


async def budget(env: Env) -> list[Result]:
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if spy is None:
        env.seen.missing.add("py-spy")
        return []
    os.environ["FASTI_PURE"] = "1"
    with serving(env.folder / "data") as server:
        env.seen.build = server.build()
        results = await _stages(env, spy, server, "in", IN, _taken, env.sizes.batch)
        results += await _stages(env, spy, server, "out", OUT, _given, env.sizes.drain)
    return results + _floor(env)


Work = Callable[[Env, Server, Callable[[], None]], Awaitable[float]]
"""All messages; the function is called when what is measured begins. Processor seconds of the server."""


async def _stages(
    env: Env, spy: str, server: Server, way: str, stages: Sequence[Stage], work: Work, count: int
) -> list[Result]:
    alone = [await work(env, server, lambda: None) for _ in range(env.sizes.runs)]
    each_us = median(alone) / count * 1e6
    counts = Counter[str]()
    for _ in range(env.sizes.runs):
        counts += await _looked_at(env, spy, server, stages, work)
    every = sum(counts.values())
    for name in [name for name, seen in counts.items() if seen < SMALL * every]:
        counts["small things"] += counts.pop(name)
    results = [Result(f"budget {way}", "us", [cpu / count * 1e6 for cpu in alone], less=True)]
    order = [stage.name for stage in stages]
    for name in sorted(counts, key=lambda name: (order.index(name) if name in order else 99, name)):
        results.append(Result(f"budget {way}: {name}", "us", [counts[name] / every * each_us], less=True))
    return results


async def _looked_at(env: Env, spy: str, server: Server, stages: Sequence[Stage], work: Work) -> Counter[str]:
    """How often each stage was seen."""
    file = env.folder / "stacks"
    command = [spy, "record", "--pid", str(server.pid), "--format", "raw", "--output", str(file)]
    command += ["--rate", str(RATE), "--duration", "600", "--nonblocking"]
    running: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    await work(env, server, begin)
    running[0].send_signal(signal.SIGINT)
    running[0].wait(60)
    counts = Counter[str]()
    for line in file.read_text().splitlines():
        stack, _, seen = line.rpartition(" ")
        counts[stage_of(stack.split(";"), stages)] += int(seen)
    return counts


def stage_of(stack: Sequence[str], stages: Sequence[Stage]) -> str:
    """`stack`: `Class.function (server/run.py:12)`, outermost first."""
    frames = [_place(frame) for frame in stack]
    ours = [frame for frame in frames if frame.startswith(OURS)]
    leaf = ours[-1] if ours else ""
    for stage in stages:
        if any(_is_at(frame, place) for place in stage.through for frame in ours):
            return stage.name
        if leaf and any(_is_at(leaf, place) for place in stage.at):
            return stage.name
    if not leaf:
        return "other threads and the interpreter"
    return leaf.partition(":")[0]


def _place(frame: str) -> str:
    """server/run.py:serve"""
    name, _, rest = frame.rpartition(" (")
    path = rest.rpartition(":")[0]
    for room in OURS:
        at = path.rfind(f"/{room}")
        if at >= 0 and "site-packages" not in path:
            path = path[at + 1 :]
    return f"{path}:{name.rpartition('.')[2]}"


def _is_at(frame: str, place: str) -> bool:
    return frame == place if ":" in place else frame.startswith(place)


async def _taken(env: Env, server: Server, begin: Callable[[], None]) -> float:
    requests = batches(next_month(env.sizes.batch, PAYLOAD, seed=now_ms()))
    begin()
    cpu = server.cpu_s()
    await send_all(server.http, requests, IN_FLIGHT)
    return server.cpu_s() - cpu


async def _given(env: Env, server: Server, begin: Callable[[], None]) -> float:
    run = now_ms()
    async with subscribed(server.mqtt, "budget", TOPICS, lambda n: f"budget/{run}/{n}") as clients:
        due = await at_once(env, server, lambda n: f"budget/{run}/{n % TOPICS}")
        begin()
        cpu = server.cpu_s()  # before it is due: to load it from the disk is part of the price
        await drained_by(server, clients, due, env.sizes.drain)
        return server.cpu_s() - cpu


def _floor(env: Env) -> list[Result]:
    """Of a row put into a batch, written to the log and the skip list, and synced, us."""
    rows = [(os.urandom(16), os.urandom(ROW_BYTES)) for _ in range(env.sizes.batch)]
    put, written, listed, synced = (list[float]() for _ in range(4))
    for run in range(env.sizes.runs):
        logless = WriteOptions()
        logless.disable_wal = True  # type: ignore[method-assign, assignment]  # a property; the stub errs
        for options, into, is_logged in ((WriteOptions(), written, True), (logless, listed, False)):
            folder = env.folder / f"floor-{run}-{is_logged}"
            store = Rdict(str(folder), Options(raw_mode=True))
            spent = [0.0, 0.0, 0.0]
            for at in range(0, len(rows), BATCH):
                _one(store, rows[at : at + BATCH], options, is_logged, spent)
            store.close()
            shutil.rmtree(folder)
            put.append(spent[0] / len(rows) * 1e6)
            into.append(spent[1] / len(rows) * 1e6)
            if is_logged:
                synced.append(spent[2] / len(rows) * 1e6)
    log = [median(written) - median(listed)]
    parts = (("put", put), ("skip list", listed), ("log", log), ("sync", synced))
    return [Result(f"floor: {name}", "us", runs, less=True) for name, runs in parts]


def _one(
    store: Rdict,
    rows: Sequence[tuple[bytes, bytes]],
    options: WriteOptions,
    is_logged: bool,
    spent: list[float],
) -> None:
    """One group; adds up the processor time of making, writing and syncing it."""
    marks = [time.process_time()]
    batch = WriteBatch(raw_mode=True)
    for key, value in rows:
        batch.put(key, value)
    marks.append(time.process_time())
    store.write(batch, options)
    marks.append(time.process_time())
    if is_logged:
        store.flush_wal(True)
    marks.append(time.process_time())
    for n in range(3):
        spent[n] += marks[n + 1] - marks[n]
