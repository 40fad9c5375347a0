"""The process: listeners, signals, and the order of start and stop."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Protocol

import uvloop

from shards.private import narrow, warn_of_open
from shards.recover import check_own, format_of
from shards.rocks import RocksStore

from .build import form
from .cluster.swap import check_swapped
from .core import timeline_of
from .engine.clock import Clock, SimulatedClock, SystemClock
from .engine.lease import Lease
from .jobs.launch import UMASK_VARIABLE, check_archive
from .net.files import allow_open_files
from .net.tls import Certificates, http_certificates, mqtt_certificates
from .observe.tracing import Traces, open_traces
from .observe.version import server_version
from .schedules.retime import retime_if_changed, zones_version
from .serving import Server
from .settings.config import Config, ConfigError

log = logging.getLogger(__name__)

DRAIN_LOOK_S = 0.1
"""How often a drain looks whether anything is still out."""


class Process(Protocol):
    """A standalone server, or a node of a cluster."""

    stopping: asyncio.Event
    exit_code: int

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def reload(self) -> None: ...


def serve(
    config: Config, *, is_simulated: bool, start_ms: int | None = None, drain_ms: int = 0, umask: int
) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. Raises ConfigError, and what opening the store
    raises.

    `start_ms`: start of a simulated clock, unless it was later before; None: the machine's time. `drain_ms`:
    how long the stop of a standalone server waits for what is out, by the machine's time; a leader of a
    cluster hands over at once. `umask`: the process's at its start, for its jobs.
    """
    http_tls, mqtt_tls = http_certificates(config), mqtt_certificates(config)
    log.info("version %s, build: %s", server_version(), form())
    log.info("memory: %s", config.limits.memory)
    allow_open_files(config.connections)
    os.environ[UMASK_VARIABLE] = f"{umask:03o}"
    narrow(Path(config.store.dir))
    warn_of_open(config.store.backups_dir)
    check_archive(config)
    if config.cluster.log and is_simulated:
        raise ConfigError("cluster.log", "is for the system's clock: several nodes have no simulated one")
    traces = open_traces(os.environ)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if config.cluster.log:
                from .cluster.node import Node  # a standalone server imports none of it

                return runner.run(_serve(Node(config, http_tls, mqtt_tls, traces)))
            server = _alone(config, http_tls, mqtt_tls, traces, is_simulated=is_simulated, start_ms=start_ms)
            return runner.run(_serve(server, partial(_drain, server, drain_ms / 1_000)))
    finally:
        if traces is not None:
            traces.close()
        gc.freeze()  # else the interpreter visits all sessions once more before it ends: 40,000 in 3 s


def _alone(
    config: Config,
    http_tls: Certificates | None,
    mqtt_tls: Certificates | None,
    traces: Traces | None,
    *,
    is_simulated: bool,
    start_ms: int | None,
) -> Server:
    check_swapped(Path(config.store.dir))
    store = RocksStore(
        Path(config.store.dir),
        memtable_bytes=config.store.memtable_bytes,
        cache_bytes=config.store.cache_bytes,
    )
    format_of(store)  # before anything is written
    check_own(store)
    wall_ms = SystemClock().wall_ms() if start_ms is None else start_ms
    clock: Clock = SimulatedClock(wall_ms) if is_simulated else SystemClock()
    alone = Lease(clock, inf)
    retime_if_changed(lambda: timeline_of(config, clock, store), store, wall_ms, zones_version(), alone)
    return Server(config, clock, store, http_tls, mqtt_tls, traces=traces)


async def _serve(server: Process, drain: Callable[[asyncio.Event], Awaitable[None]] | None = None) -> int:
    """`drain`: awaited before the stop; ends when the event is set by a second signal."""
    loop, again = asyncio.get_running_loop(), asyncio.Event()

    def signalled() -> None:
        (again if server.stopping.is_set() else server.stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    try:
        await server.start()
        if not server.exit_code:
            await server.stopping.wait()
            if drain is not None:
                await drain(again)
    finally:
        await server.stop()
    return server.exit_code


async def _drain(server: Server, most_s: float, again: asyncio.Event) -> None:
    """Give groups and endpoints nothing new, and wait until nothing is out, `most_s` at most. A failure of
    the server ends the wait."""
    loop, core = asyncio.get_running_loop(), server.app.core
    if not most_s or server.exit_code:
        return
    drain = core.groups.loans.drain
    drain.begin(core.clock.wall_ms(), is_last=True)
    began_s = loop.time()
    log.info("drain: waiting %g s at most for %d messages that are out", most_s, drain.out)
    while (left_s := began_s + most_s - loop.time()) > 0 and not drain.is_done and not server.exit_code:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, DRAIN_LOOK_S)):
                await again.wait()
                break
    text = "drain: ended after %.1f s; %d messages are still out, %d of them leased over the stop"
    log.info(text, loop.time() - began_s, drain.out, drain.leased)
