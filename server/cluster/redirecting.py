"""Listeners of a node that does not lead: at the same sockets at which a leader serves.

They are bound once. If port 0 is configured the node keeps the port that the system gave.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

from aiohttp import web
from prometheus_client.registry import Collector

from ..auth.checking import Threads
from ..auth.keyring import Keyring
from ..engine.clock import SystemClock
from ..engine.commit_hook import ignore
from ..fair import Part
from ..http.front import HttpListener
from ..mqtt.listeners import Listeners
from ..mqtt.redirecting import Redirecting, redirecting_listeners
from ..net.acceptor import Ports
from ..net.crowd import Cause, Crowd, mqtt_bounds
from ..net.loop_time import LoopTime
from ..net.pool import pool_of
from ..net.proxies import proxies_of
from ..net.tls import Certificates
from ..observe.metrics import Metrics
from ..settings.config import Config
from ..settings.kinds import where
from ..settings.public import public_mqtt, public_url, reference_for
from ..settings.watch import Watch
from .routes import redirecting_site
from .view import Leader, Places

CLOSE_S = 0.1
"""How long clients may take to read their answers when this node begins to lead: others wait for it."""


class RedirectingListeners:
    """The HTTP and MQTT listeners of a node that does not lead; they can be closed and opened again."""

    def __init__(
        self,
        config: Config,
        http_tls: Certificates | None,
        mqtt_tls: Certificates | None,
        figures: Collector,
        leader: Callable[[], Leader | None],
        why: Callable[[], str],
    ) -> None:
        """`why`: what keeps this node from leading. Raises KeysFileError."""
        self.config = config
        """With the actual ports, once it has been opened."""
        self.ports = Ports()
        self._tls = http_tls, mqtt_tls
        self._leader = leader
        self._why = why
        self._metrics = Metrics()
        self._metrics.registry.register(figures)
        self._checks = Threads()
        self._keyring = Keyring(config, SystemClock(), self._checks)
        self._watch: Watch | None = None
        self._http: HttpListener | None = None
        self._mqtt: Listeners | None = None
        self._is_bound = False

    @property
    def places(self) -> Places:
        """Where clients and other nodes reach this one."""
        config = self.config
        listening = [replace(one, scheme=one.scheme or "mqtt") for one in config.mqtt.listen]
        mqtt = public_mqtt(config, listening)
        return Places(public_url(config, str(config.http.listen)), tuple(map(str, mqtt)))

    @property
    def is_open(self) -> bool:
        return self._http is not None

    async def open(self, routes: Sequence[web.RouteDef]) -> None:
        """Raises OSError."""
        if not self._is_bound:
            await self._bind()
        config, (http_tls, mqtt_tls) = self.config, self._tls
        pool, ports = pool_of(config), self.ports
        metrics, proxies = self._metrics, proxies_of(config)
        site = redirecting_site(config, self._keyring, metrics, routes, self._leader_url, self._why)
        time = LoopTime(monotonic, Part(), metrics.turned)
        self._http = HttpListener(config, pool, time, metrics, ports)
        await self._http.start(site)
        crowd = Crowd[Redirecting](
            mqtt_bounds(config.limits), metrics.bounded_mqtt, metrics.tell_mqtt, proxies
        )
        self._mqtt = redirecting_listeners(config, mqtt_tls, crowd, pool, self._leader_mqtt, ports)
        await self._mqtt.open()
        await self._http.open(config.http.listen, http_tls)
        # A new one each time: while this node leads the server's watch handles the same certificates. Between
        # two listeners there is nothing to do.
        self._watch = Watch([self._keyring, *(one for one in self._tls if one is not None)], ignore)
        self._watch.start()

    async def close(self) -> None:
        """Close the listeners; they can be opened again."""
        if self._watch is not None:
            await self._watch.stop()
            self._watch = None
        if self._mqtt is not None:
            self._mqtt.close()
            await self._mqtt.crowd.close(Cause.MOVED, 0)
            self._mqtt = None
        if self._http is not None:
            await self._http.close(CLOSE_S)
            self._http = None

    async def stop(self) -> None:
        """Close for good."""
        await self.close()
        self.ports.close()
        self._checks.stop()

    async def _bind(self) -> None:
        config = self.config
        http = await self.ports.keep(config.http.listen)
        mqtt = [await self.ports.keep(one) for one in config.mqtt.listen]
        self.config = replace(
            config, http=replace(config.http, listen=http), mqtt=replace(config.mqtt, listen=tuple(mqtt))
        )
        self._is_bound = True
        print(f"listening http={http} mqtt={where(mqtt[0].host, mqtt[0].port)}", flush=True)  # noqa: T201

    def reload(self) -> None:
        """Read keys and certificates again."""
        if self._watch is not None:
            self._watch.hurry()

    def _leader_url(self) -> str:
        leader = self._leader()
        return "" if leader is None else leader["url"]

    def _leader_mqtt(self, scheme: str) -> str:
        leader = self._leader()
        return "" if leader is None else reference_for(scheme, leader["mqtt_urls"])
