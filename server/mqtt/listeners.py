"""MQTT listeners: plain TCP, TLS, websockets, websockets over TLS; as many as are configured.

server/net/acceptor.py says how connections are accepted, server/net/crowd.py which. Each gets its protocol at
its accept, before TLS or HTTP: a link, or a redirecting connection if this node does not lead.

    accept ──> is there room? ──> [TLS] ──> [websocket] ──> link
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..auth.keyring import Keyring
from ..net.acceptor import Acceptor, Ports
from ..net.browsers import Pages, websocket_pages
from ..net.crowd import Crowd
from ..net.loop_time import LoopTime
from ..net.opening import Caller, Opening
from ..net.tls import Certificates
from ..settings.config import Config
from ..settings.kinds import Address
from .authenticator import Authenticator
from .link import Links, MqttLink
from .parts import Parts
from .websocket import Inner, Websocket

Behind = Callable[[Caller], Inner]
"""Makes the protocol of a connection."""


class Listeners:
    """All MQTT listeners of a server."""

    def __init__(
        self,
        config: Config,
        certificates: Certificates | None,
        crowd: Crowd[Any],
        time: LoopTime,
        ports: Ports,
        behind: Callable[[Address, Certificates | None], Behind],
    ) -> None:
        """`certificates`: of the listeners with TLS, if any. `behind`: for each listener and its
        certificates."""
        self._config = config
        self.crowd = crowd
        self._certificates = certificates
        self._time = time
        self._behind = behind
        self._acceptor = Acceptor(
            crowd,
            time,
            ports,
            needs_header=True,
            handshake_bound="limits.connect_timeout",
            handshake_s=config.limits.connect_timeout_ms / 1000,
        )

    async def open(self) -> list[Address]:
        """Start listening; where, with schemes and actual ports. Raises OSError."""
        return [await self._open(address) for address in self._config.mqtt.listen]

    def close(self) -> None:
        """Accept no more. Connections stay."""
        self._acceptor.close()

    async def _open(self, address: Address) -> Address:
        scheme = address.scheme or "mqtt"
        certificates = self._certificates if address.has_tls else None
        pages = websocket_pages(self._config, address) if address.is_websocket else None
        begin = partial(self._begin, self._behind(address, certificates), pages)
        context = None if certificates is None else certificates.context
        port = await self._acceptor.open(address, begin, context)
        return replace(address, scheme=scheme, port=port)

    def _begin(self, behind: Behind, pages: Pages | None, caller: Caller) -> Opening:
        """`pages`: of a listener for websockets."""
        made = behind(caller)
        return made if pages is None else Websocket(made, pages, self._time)


def mqtt_listeners(
    parts: Parts,
    keyring: Keyring,
    certificates: Certificates | None,
    links: Links,
    time: LoopTime,
    ports: Ports,
) -> Listeners:
    """Listeners of a server: each connection is a link."""
    config = parts.config

    def behind(address: Address, own: Certificates | None) -> Behind:
        authenticator = Authenticator(keyring, own, lets_anybody=config.lets_anybody(address))
        return lambda caller: MqttLink(parts, asyncio.get_running_loop(), links, authenticator, caller)

    return Listeners(config, certificates, links.crowd, time, ports, behind)
