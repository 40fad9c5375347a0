"""The process: listeners, signals, and the order in which things begin and end."""

import asyncio
import gc
import logging
import signal
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from shards.recover import format_of
from shards.rocks import RocksStore

from .app import App
from .bounds import told_short
from .clock import Clock, SimulatedClock, SystemClock
from .config import Config
from .core import timeline_of
from .delivery.subscriber import Closing
from .files import allow_open_files
from .http.front import Desk
from .http.gate import Gate
from .http.protocol import Protocol
from .mqtt.listeners import Listeners
from .schedules.retime import retime_if_changed, zones_version
from .site import build_desk, build_site

log = logging.getLogger(__name__)

STOP_S = 5.0


def serve(config: Config, *, is_simulated: bool) -> int:
    """Run until SIGTERM or SIGINT; the exit code. Raises what opening the store raises."""
    log.info("%s", told_short(config))
    allow_open_files(config.limits.connections)
    store = RocksStore(Path(config.store.dir))
    format_of(store)  # before anything is written
    wall_ms = SystemClock().wall_ms()
    clock: Clock = SimulatedClock(wall_ms) if is_simulated else SystemClock()
    retime_if_changed(lambda: timeline_of(config, clock, store), store, wall_ms, zones_version())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(Server(config, clock, store)))


class Server:
    """An app with its listeners."""

    def __init__(self, config: Config, clock: Clock, store: RocksStore) -> None:
        self.config = config
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self.app = App(config, clock, store, fatal=self._fatal)
        if isinstance(clock, SimulatedClock):
            clock.now_ms = max(clock.now_ms, self.app.core.horizon.clock_ms)
        self._listeners = Listeners(self.app.core.broker, config.mqtt)
        self._runner: web.AppRunner | None = None
        self._desk: Desk | None = None
        self._http: asyncio.Server | None = None
        self._is_started = False

    async def start(self) -> None:
        """Catch up with the timeline, then listen: MQTT first, which HTTP tells of."""
        await self.app.start()
        if self.exit_code:
            return
        http = self.config.http.listen
        listening = await self._listeners.open()
        gate = Gate(self.config, self.app.core.writer)
        self._runner = web.AppRunner(build_site(self.app, gate, listening), access_log=None)
        await self._runner.setup()
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        silent: dict[str, Any] = {"access_log": None}
        others = partial(Protocol, self._runner.server, loop=loop, **silent)
        self._desk = build_desk(self.app, gate, others)
        self._http = await loop.create_server(self._desk.connection, http.host, http.port, backlog=1024)
        http_port = self._http.sockets[0].getsockname()[1]
        self.app.launcher.reachable_at(f"http://{_reachable(http.host)}:{http_port}")
        self.app.housekeeping.start()
        self._is_started = True
        _settle_garbage_collector()
        _announce(f"{http.host}:{http_port}", listening)

    async def stop(self) -> None:
        """Stop accepting, tell the clients, finish the group commit, close the store."""
        if self._is_started:
            self.app.housekeeping.stop()
        self._listeners.close()
        if self._http is not None:
            self._http.close()
        if self._desk is not None:
            await self._desk.close()
        if self._runner is not None:
            await self._runner.cleanup()
        links = self._listeners.links
        for link in list(links):
            link.shut(Closing.STOPPING)
        deadline = asyncio.get_running_loop().time() + STOP_S
        # Bounded, and only at the end.
        while links and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await self.app.stop()

    def _fatal(self) -> None:
        self.exit_code = 1
        self.stopping.set()


async def _serve(server: Server) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stopping.set)
    try:
        await server.start()
        if not server.exit_code:
            await server.stopping.wait()
    finally:
        await server.stop()
    return server.exit_code


def _reachable(host: str) -> str:
    """Where a process of this machine finds what listens at `host`."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1" if host != "::" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _settle_garbage_collector() -> None:
    """What is there now stays; look at what comes less often.

    The wheel and the tail hold up to 100,000 objects that live for seconds and contain no cycles. Visiting
    them at the default pace costs a drain 5 to 8 % of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _announce(http: str, listening: list[dict[str, object]]) -> None:
    """Where the server listens and one line to try, for people and for scripts."""
    first, *more = listening
    others = "".join(f" {at['transport']}={at['host']}:{at['port']}" for at in more)
    lines = (
        f"listening http={http} mqtt={first['host']}:{first['port']}{others}",
        f"try: curl -s http://{http}/v1/messages -H 'content-type: application/json' "
        '-d \'{"topic":"hello","payload":"world","deliver_in":"5s"}\'',
    )
    print("\n".join(lines), flush=True)  # noqa: T201
