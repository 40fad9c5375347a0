"""Where a node that does not lead is reached: the same addresses at which a leader serves.

The first opening settles the ports: where 0 was configured, what the system gave is taken from then on, so
that the node is found there in whichever state.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from aiohttp import web
from prometheus_client.registry import Collector

from ..auth.aside import Threads
from ..auth.keyring import Keyring
from ..engine.clock import SystemClock
from ..mqtt.listeners import Listeners
from ..mqtt.turned_away import Away, away_listeners
from ..net.crowd import Cause, Crowd, mqtt_bounds
from ..net.pool import pool_of
from ..net.proxies import proxies_of
from ..net.tls import Certificates
from ..observe.metrics import Metrics
from ..settings.config import Config
from ..settings.kinds import Address, where
from ..settings.watch import Watch
from .front import Front
from .view import Leader

log = logging.getLogger(__name__)


class Doors:
    """HTTP and MQTT of a node that does not lead, to be opened and closed again."""

    def __init__(
        self,
        config: Config,
        http_tls: Certificates | None,
        mqtt_tls: Certificates | None,
        figures: Collector,
        leader: Callable[[], Leader | None],
    ) -> None:
        """Raises KeysFileError."""
        self.config = config
        """With the ports at which it listens, once it has been opened."""
        self._tls = http_tls, mqtt_tls
        self._leader = leader
        self._metrics = Metrics()
        self._metrics.registry.register(figures)
        self._checks = Threads()
        self._keyring = Keyring(config, SystemClock(), self._checks)
        self._watch: Watch | None = None
        self._front: Front | None = None
        self._away: Listeners | None = None
        self._is_announced = False

    @property
    def places(self) -> tuple[str, str]:
        """URL and MQTT's host:port of this node, for others."""
        config = self.config
        http, mqtt = config.http.listen, config.mqtt.listen[0]
        scheme = "http" if self._tls[0] is None else "https"
        return (
            config.cluster.url or f"{scheme}://{_host(http)}:{http.port}",
            config.cluster.mqtt or f"{_host(mqtt)}:{mqtt.port}",
        )

    async def open(self, routes: Sequence[web.RouteDef]) -> None:
        """Raises OSError."""
        config, (http_tls, mqtt_tls) = self.config, self._tls
        pool = pool_of(config)
        self._front = Front(
            config, http_tls, self._keyring, self._metrics, routes, lambda: self._where("url"), pool
        )
        metrics, proxies = self._metrics, proxies_of(config)
        crowd = Crowd[Away](mqtt_bounds(config.limits), metrics.bounded_mqtt, metrics.tell_mqtt, proxies)
        self._away = away_listeners(config, mqtt_tls, crowd, pool, lambda: self._where("mqtt"))
        listening = await self._away.open()
        port = await self._front.open()
        ports = [int(str(said["port"])) for said in listening]
        at = zip(config.mqtt.listen, ports, strict=True)
        self.config = replace(
            config,
            http=replace(config.http, listen=replace(config.http.listen, port=port)),
            mqtt=replace(config.mqtt, listen=tuple(replace(one, port=port) for one, port in at)),
        )
        # Another each time: while this node leads the server's watch looks after the same certificates.
        self._watch = Watch([self._keyring, *(one for one in self._tls if one is not None)], _nothing)
        self._watch.start()
        if not self._is_announced:
            self._is_announced = True
            http, mqtt = self.config.http.listen, self.config.mqtt.listen[0]
            print(f"listening http={http} mqtt={where(mqtt.host, mqtt.port)}", flush=True)  # noqa: T201

    async def close(self) -> None:
        """They may be opened again."""
        if self._watch is not None:
            await self._watch.stop()
            self._watch = None
        if self._away is not None:
            self._away.close()
            await self._away.crowd.close(Cause.MOVED, 0)
            self._away = None
        if self._front is not None:
            await self._front.close()
            self._front = None

    async def end(self) -> None:
        """For good."""
        await self.close()
        self._checks.stop()

    def hang_up(self) -> None:
        """Read keys and certificates again."""
        if self._watch is not None:
            self._watch.hurry()

    def _where(self, what: str) -> str:
        leader = self._leader()
        if leader is None:
            return ""
        return leader["url"] if what == "url" else leader["mqtt"]


def _nothing() -> None:
    """Whoever is here is gone in a moment."""


def _host(address: Address) -> str:
    return f"[{address.host}]" if ":" in address.host else address.host
