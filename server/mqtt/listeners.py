"""Where MQTT listens: plain TCP, TLS, websockets, websockets over TLS; as many as are configured.

How connections are accepted server/accepting.py says. Here it is decided which are: a link is made for each
at its accept, before TLS or HTTP, and counts from then on.

    accept ──> is there room? ──> [TLS] ──> [websocket] ──> link
"""

import asyncio
import logging
from functools import partial

from ..accepting import Acceptor, Opening
from ..auth.keyring import Keyring
from ..browsers import Pages, websocket_pages
from ..config import Config
from ..delivery.broker import Broker
from ..kinds import Address
from ..logs import by
from ..tls import Certificates
from .door import Door
from .link import Links, MqttLink
from .websocket import Websocket

log = logging.getLogger(__name__)

_TRANSPORTS = {"mqtt": "tcp", "mqtts": "tls", "ws": "ws", "wss": "wss"}


class Listeners:
    """All MQTT listeners of a server and the connections that came through them."""

    def __init__(
        self, broker: Broker, config: Config, keyring: Keyring, certificates: Certificates | None
    ) -> None:
        """`certificates`: of the listeners with TLS, if there are any."""
        self._broker = broker
        self._keyring = keyring
        self._lets_anybody = config.lets_anybody
        self._config = config.mqtt
        self._certificates = certificates
        self.links = Links(broker)
        self._acceptor = Acceptor()

    async def open(self) -> list[dict[str, object]]:
        """Start listening; where, as /v1/info tells it. Raises OSError."""
        return [await self._open(address) for address in self._config.listen]

    def close(self) -> None:
        """Accept no more. Connections stay."""
        self._acceptor.close()

    async def _open(self, address: Address) -> dict[str, object]:
        scheme = address.scheme or "mqtt"
        certificates = self._certificates if scheme in ("mqtts", "wss") else None
        pages = websocket_pages(self._broker.config, address) if scheme in ("ws", "wss") else None
        door = Door(self._keyring, certificates, lets_anybody=self._lets_anybody(address))
        port = await self._acceptor.open(
            address,
            partial(self._begin, door=door, pages=pages),
            None if certificates is None else certificates.context,
            handshake_s=self._broker.config.limits.connect_timeout_ms / 1000,
        )
        return {"transport": _TRANSPORTS[scheme], "host": address.host, "port": port}

    def review(self) -> None:
        """Keys or certificates are others now: end who is here by one that counts no more."""
        for link in self.links:
            link.review()

    def _begin(self, peer: str, *, door: Door, pages: Pages | None) -> Opening | None:
        """A link for a connection from `peer`, if there is room for one; with `pages`, a websocket."""
        loop = asyncio.get_running_loop()
        cause = by(peer)
        if not self._broker.admits(loop.time()):
            log.warning("connection refused: more than limits.connect_rate a second", extra=cause)
            return None
        if len(self.links) >= self._broker.config.limits.connections:
            text = "connection refused: %d are open, as many as limits.connections"
            log.warning(text, len(self.links), extra=cause)
            return None
        link = MqttLink(self._broker, loop, self.links, door)
        return link if pages is None else Websocket(link, pages)
