"""A server with its listeners: order of start and stop."""

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web
from prometheus_client.registry import Collector

from shards.store import Store

from .auth.last_use import NOTE_S, LastUse
from .delivery.stored_sessions import StoredSessions
from .engine.clock import Clock, SimulatedClock
from .engine.lease import Lease
from .http.front import HttpListener
from .http.routes.info import listener_view
from .mqtt.link import Links, MqttLink
from .mqtt.listeners import mqtt_listeners
from .net.acceptor import Ports
from .net.crowd import Cause, Crowd, mqtt_bounds
from .net.proxies import proxies_of
from .net.tls import Certificates
from .observe.history import FINE_S
from .observe.logs import telling
from .observe.tracing import Traces
from .observe.version import server_version
from .rounds.app import App
from .rounds.counting import INTERVAL_S
from .rounds.idle_trim import LOOK_S, IdleTrim
from .settings.config import Config
from .settings.kinds import Address, where
from .settings.watch import Watch
from .site import build_site

log = logging.getLogger(__name__)

STOP_S = 5.0
CLOSE_S = 3.0
"""Maximum time for answers over HTTP when the server stops."""
END_S = 1.0
"""How often the server looks whether a rotated key's overlap has ended."""
HAND_OVER_S = 0.5
"""Maximum time that a leader which stops waits for running requests and posts, before another may lead."""
INSIDE = Address("127.0.0.1", 0)
"""Plain HTTP for the server's own jobs, if HTTP has TLS."""
REVIEW_S = 0.005
"""Maximum time of one step through the subscriptions of all sessions."""


@dataclass(frozen=True, slots=True)
class Term:
    """Additional parts of a server while it leads a cluster."""

    lease: Lease
    lost: Callable[[], None]
    """Called when it no longer leads."""
    hand_over: Callable[[], Awaitable[None]]
    """Awaited after the last group: another node may lead at once."""
    stored: StoredSessions
    """Sessions, as the node has read them before it led."""
    before_listening: Callable[[], Awaitable[None]]
    """Awaited before it listens."""
    ports: Ports
    """The node's sockets, in every state."""
    routes: Sequence[web.RouteDef]
    figures: Collector
    full: Callable[[], str]
    """Why the log has no room for messages; empty: it has."""


class Server:
    """An app with its listeners."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        store: Store,
        http_tls: Certificates | None,
        mqtt_tls: Certificates | None,
        term: Term | None = None,
        *,
        traces: Traces | None = None,
    ) -> None:
        """`term`: while it leads a cluster; None: standalone. `traces`: as for the core."""
        self.config = config
        self._data = Path(config.store.dir).absolute()
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self._term = term
        made = partial(App, config, clock, store, fatal=self._fatal, traces=traces)
        if term is None:
            self.app = made()
        else:
            self.app = made(lease=term.lease, lost=self._lose, full=term.full, stored=term.stored)
            self.app.metrics.registry.register(term.figures)
        if isinstance(clock, SimulatedClock):
            clock.now_ms = max(clock.now_ms, self.app.core.horizon.clock_ms)
        self._http_tls = http_tls
        app, bounds, proxies = self.app, mqtt_bounds(config.limits), proxies_of(config)
        core, metrics = app.core, app.metrics
        self._links = Crowd[MqttLink](bounds, metrics.bounded_mqtt, metrics.tell_mqtt, proxies)
        ports = Ports() if term is None else term.ports
        self._http = HttpListener(config, app.pool, app.time, metrics, ports, core.clients.connections)
        links = Links(self._links, app.pool, core.publishing, app.outgoing, app.time)
        self._listeners = mqtt_listeners(core.mqtt, app.keyring, mqtt_tls, links, app.time, ports)
        certificates = [one for one in (http_tls, mqtt_tls) if one is not None]
        self._watch = Watch([app.keyring, *certificates], self._review)
        self._last_use = LastUse(app.keyring.used, Path(config.store.dir))
        self._idle_trim = IdleTrim(store, app.workers, time.process_time)
        self._is_started = False
        self._is_lost = False
        self._reviewing: Iterator[None] = iter(())

    async def start(self) -> None:
        """Catch up with the timeline, then listen: first MQTT, which HTTP reports."""
        await self.app.start()
        if self.exit_code or self._is_lost:
            return
        if self._term is not None:
            await self._term.before_listening()
        http = self.config.http.listen
        opened = await self._listeners.open()
        listening: list[dict[str, object]] = [
            {"transport": one.transport, "host": one.host, "port": one.port}
            for one in map(listener_view, opened)
        ]
        more = () if self._term is None else self._term.routes
        await self._http.start(*build_site(self.app, opened, more))
        tls = self._http_tls
        http_port = await self._http.open(http, tls)
        at = f"{_reachable(http.host)}:{http_port}"
        if tls is not None and self.config.spark.enabled != "off":
            # The server's own jobs connect to an address that no certificate names.
            inside = await self._http.open(INSIDE, None)
            at = f"{INSIDE.host}:{inside}"
        self.app.launcher.reachable_at(f"http://{at}")
        self.app.sampling.begin()
        self.app.housekeeping.start(
            (self._last_use.note, NOTE_S),
            (partial(self.app.keyring.end_former, self._review), END_S),
            (self._idle_trim.look, LOOK_S),
            (self.app.counting.look, INTERVAL_S),
            (self.app.sampling.look, FINE_S),
        )
        self._watch.start()
        self._review()  # the files may have changed before
        self._is_started = True
        gc.collect()
        gc.freeze()  # most objects stay
        for key, address in self.config.open_beyond:
            text = "%s %s: other machines can reach it without a key (auth.allow_open)"
            log.warning(text, key, address)
        has_api_keys = self.app.keyring.has_api_keys
        self._log_start([{"transport": "http", "host": http.host, "port": http_port}, *listening])
        at = where(http.host, http_port)
        _announce(at, listening, self._data, has_tls=tls is not None, has_api_keys=has_api_keys)

    def _log_start(self, listening: Sequence[dict[str, object]]) -> None:
        """Log version, listeners and whether keys are needed, in one line."""
        at = ", ".join(f"{one['transport']} {where(one['host'], one['port'])}" for one in listening)
        version, is_open = server_version(), not self.app.keyring.has_api_keys
        asks = "no keys required" if is_open else "keys required"
        fields = telling(version=version, data=self._data, listening=at, open=is_open)
        text = "started: version %s, data in %s, listening on %s; %s"
        log.info(text, version, self._data, at, asks, extra=fields)

    async def stop(self) -> None:
        """Stop accepting, tell the clients, finish the group commit, close the store."""
        gc.unfreeze()
        if self._is_started:
            self.app.housekeeping.stop()
            await self._watch.stop()
            self._reviewing = iter(())
            await self._last_use.note()
        self._listeners.close()
        self.app.core.pull.stop()
        self.app.end_streams()
        cause = Cause.STOPPING if self._term is None else Cause.MOVED
        http = asyncio.ensure_future(self._http.close(CLOSE_S))
        mqtt = asyncio.ensure_future(self._links.close(cause, STOP_S))
        if self._term is None:
            await self.app.webhooks.stop()
        else:
            # Some clients take seconds to close their connections. The next leader does not wait for them.
            posts = self.app.webhooks.stop(HAND_OVER_S)
            await asyncio.gather(asyncio.wait([http], timeout=HAND_OVER_S), posts)
            await self.app.finish()
            await self._term.hand_over()
        await asyncio.gather(http, mqtt)
        await self.app.stop()
        if self._is_started:
            log.info("stopped")

    def reload(self) -> None:
        """SIGHUP: reread files."""
        self._watch.hurry()

    def _review(self) -> None:
        """Keys or certificates have changed: close connections of those no longer valid."""
        for link in self._links:
            link.review()
        self.app.core.review()
        self._reviewing = self.app.core.subscriptions.review()
        self._go_on_reviewing(self._reviewing)

    def _go_on_reviewing(self, steps: Iterator[None]) -> None:
        """Continue for a bounded time, then let others have their turn; not if it has been restarted."""
        loop = asyncio.get_running_loop()
        until = loop.time() + REVIEW_S
        if steps is self._reviewing:
            for _ in steps:
                if loop.time() >= until:
                    loop.call_soon(self._go_on_reviewing, steps)
                    break

    def _lose(self) -> None:
        """It no longer leads: close MQTT connections before running requests are answered with a failure.

        The log may have their messages all the same. Without an answer a client sends them again, to the next
        leader, which knows; and some clients ignore the reason of a PUBREC.
        """
        assert self._term is not None
        if not self._is_lost:
            self._is_lost = True
            for link in self._links:
                link.close(Cause.MOVED)
            self.app.end_streams()  # figures of a node that no longer leads are useless
            self._term.lost()

    def _fatal(self) -> None:
        self.exit_code = 1
        self.stopping.set()


def _reachable(host: str) -> str:
    """The address at which a process of this machine reaches `host`."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1" if host != "::" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _announce(
    http: str, listening: list[dict[str, object]], data: Path, *, has_tls: bool, has_api_keys: bool
) -> None:
    """Print the listeners, where the data is and a command to try, for people and for scripts."""
    first, *more = listening
    key = "-H 'authorization: Bearer KEY' " if has_api_keys else ""
    others = "".join(f" {at['transport']}={where(at['host'], at['port'])}" for at in more)
    lines = (
        f"listening http={http} mqtt={where(first['host'], first['port'])}{others}",
        f"data in {data}",
        f"try: curl -s http{'s' if has_tls else ''}://{http}/v1/messages {key}"
        "-H 'content-type: application/json' "
        '-d \'{"topic":"hello","payload":"world","deliver_in":"5s"}\'',
    )
    print("\n".join(lines), flush=True)  # noqa: T201
