"""Where MQTT listens: plain TCP, TLS, websockets, websockets over TLS; as many as are configured.

server/net/acceptor.py says how connections are accepted. Here it is decided which are: a link is made for
each at its accept, before TLS or HTTP, and counts from then on.

    accept ──> is there room? ──> [TLS] ──> [websocket] ──> link
"""

import asyncio
from functools import partial

from ..auth.keyring import Keyring
from ..net.acceptor import Acceptor
from ..net.browsers import Pages, websocket_pages
from ..net.loop_time import LoopTime
from ..net.opening import Opening
from ..net.outgoing import Outgoing
from ..net.tls import Certificates
from ..observe.metrics import Metrics
from ..settings.kinds import Address
from .door import Door
from .link import Links, MqttLink
from .parts import Parts
from .websocket import Websocket

TRANSPORTS = {"mqtt": "tcp", "mqtts": "tls", "ws": "ws", "wss": "wss"}


class Listeners:
    """All MQTT listeners of a server and the connections that came through them."""

    def __init__(
        self,
        parts: Parts,
        keyring: Keyring,
        certificates: Certificates | None,
        metrics: Metrics,
        outgoing: Outgoing,
        time: LoopTime,
    ) -> None:
        """`certificates`: of the listeners with TLS, if there are any."""
        config = parts.config
        self._parts = parts
        self._keyring = keyring
        self._certificates = certificates
        self.links = Links(config.limits, parts.publishing, metrics, outgoing, time)
        self._time = time
        self._acceptor = Acceptor(
            metrics.bounded_mqtt,
            time,
            handshake_bound="limits.connect_timeout",
            handshake_s=config.limits.connect_timeout_ms / 1000,
        )

    async def open(self) -> list[dict[str, object]]:
        """Start listening; where, as /v1/info tells it. Raises OSError."""
        return [await self._open(address) for address in self._parts.config.mqtt.listen]

    def close(self) -> None:
        """Accept no more. Connections stay."""
        self._acceptor.close()

    async def _open(self, address: Address) -> dict[str, object]:
        config, scheme = self._parts.config, address.scheme or "mqtt"
        certificates = self._certificates if scheme in ("mqtts", "wss") else None
        pages = websocket_pages(config, address) if scheme in ("ws", "wss") else None
        door = Door(self._keyring, certificates, lets_anybody=config.lets_anybody(address))
        port = await self._acceptor.open(
            address,
            partial(self._begin, door=door, pages=pages),
            None if certificates is None else certificates.context,
        )
        return {"transport": TRANSPORTS[scheme], "host": address.host, "port": port}

    def review(self) -> None:
        """Keys or certificates are others now: end who is here by one that counts no more."""
        for link in self.links:
            link.review()

    def _begin(self, peer: str, *, door: Door, pages: Pages | None) -> Opening | None:
        """A link for a connection from `peer`, if there is room for one; with `pages`, a websocket."""
        loop = asyncio.get_running_loop()
        if not self.links.admits(peer, loop.time()):
            return None
        link = MqttLink(self._parts, loop, self.links, door, peer)
        return link if pages is None else Websocket(link, pages, self._time)
