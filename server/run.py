"""The process: listeners, signals, and the order in which things begin and end."""

import asyncio
import logging
import signal
from pathlib import Path

import uvloop
from aiohttp import web

from shards.rocks import RocksStore

from .app import App
from .clock import Clock, SimulatedClock, SystemClock
from .config import Config
from .http.site import build_site
from .jobs import Housekeeping
from .mqtt.link import MqttLink
from .mqtt.reasons import Reason

log = logging.getLogger(__name__)

STOP_S = 5.0


def serve(config: Config, *, is_simulated: bool) -> int:
    """Run until SIGTERM or SIGINT; the exit code. Raises what opening the store raises."""
    store = RocksStore(Path(config.store.dir))
    wall_ms = SystemClock().wall_ms()
    clock: Clock = SimulatedClock(wall_ms) if is_simulated else SystemClock()
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
            clock.now_ms = max(clock.now_ms, self.app.horizon.clock_ms)
        self.housekeeping = Housekeeping(self.app)
        self._links: set[MqttLink] = set()
        self._runner: web.AppRunner | None = None
        self._mqtt: asyncio.Server | None = None

    async def start(self) -> None:
        """Open HTTP first, which says "not ready" until the timeline has been caught up with."""
        await self.app.start()
        if self.exit_code:
            return
        loop = asyncio.get_running_loop()
        mqtt, http = self.config.mqtt.listen, self.config.http.listen
        self._mqtt = await loop.create_server(
            lambda: MqttLink(self.app.broker, loop, self._links), mqtt.host, mqtt.port, backlog=1024
        )
        mqtt_port = self._mqtt.sockets[0].getsockname()[1]
        self.app.listening.append({"transport": "tcp", "host": mqtt.host, "port": mqtt_port})
        self._runner = web.AppRunner(build_site(self.app, self.housekeeping), access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, http.host, http.port, backlog=1024)
        await site.start()
        http_port = self._runner.addresses[0][1]
        self.housekeeping.start()
        _announce(f"{http.host}:{http_port}", f"{mqtt.host}:{mqtt_port}")

    async def stop(self) -> None:
        """Stop accepting, tell the clients, finish the group commit, close the store."""
        if self._mqtt is not None:
            self.housekeeping.stop()
        if self._mqtt is not None:
            self._mqtt.close()
        if self._runner is not None:
            await self._runner.cleanup()
        for link in list(self._links):
            link.shut(Reason.SERVER_SHUTTING_DOWN)
        deadline = asyncio.get_running_loop().time() + STOP_S
        # Bounded, and only at the end.
        while self._links and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
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


def _announce(http: str, mqtt: str) -> None:
    """Where the server listens and one line to try, for people and for scripts."""
    lines = (
        f"listening http={http} mqtt={mqtt}",
        f"try: curl -s http://{http}/v1/messages -H 'content-type: application/json' "
        '-d \'{"topic":"hello","payload":"world","deliver_in":"5s"}\'',
    )
    print("\n".join(lines), flush=True)  # noqa: T201
